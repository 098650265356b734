//! How long, and what.

use std::{env, io};

/// What can be measured alone.
pub const PARTS: [&str; 8] =
    ["cpu", "redis", "latency", "away", "memory", "workers", "scale", "instructions"];

#[derive(Debug, Clone)]
pub struct Settings {
    /// After one that only makes everything warm.
    pub rounds: usize,
    /// Of load in a round, for each server.
    pub seconds: u64,
    parts: Vec<String>,
}

// === impl Settings ===

impl Settings {
    /// From `ROUNDS`, `DURATION` and `ONLY`.
    pub fn read() -> io::Result<Self> {
        let only = env::var("ONLY").unwrap_or_default();
        let parts: Vec<String> =
            only.split([',', ' ']).filter(|part| !part.is_empty()).map(String::from).collect();
        if let Some(part) = parts.iter().find(|part| !PARTS.contains(&part.as_str())) {
            let known = PARTS.join(", ");
            return Err(io::Error::other(format!("ONLY: no part `{part}`, but {known}")));
        }
        let (rounds, seconds) = (number("ROUNDS", 8)?, number("DURATION", 2)?);
        Ok(Self { rounds: rounds as usize, seconds, parts })
    }

    /// The same, with rounds of another length.
    pub fn with_seconds(&self, seconds: u64) -> Self {
        Self { seconds, ..self.clone() }
    }

    pub fn wants(&self, part: &str) -> bool {
        self.parts.is_empty() || self.parts.iter().any(|wanted| wanted == part)
    }

    /// Whether all is measured, and long enough to be written down.
    pub fn is_complete(&self) -> bool {
        self.parts.is_empty() && self.rounds >= 8
    }
}

fn number(name: &str, default: u64) -> io::Result<u64> {
    match env::var(name) {
        Ok(text) if !text.is_empty() => match text.parse() {
            Ok(number @ 1..=1000) => Ok(number),
            _ => Err(io::Error::other(format!("{name}: {text} is no number from 1 to 1000"))),
        },
        _ => Ok(default),
    }
}
