//! The settings of a run: the parts, the number of rounds and their length.

use std::{env, io};

/// The names of the parts, each of which can be measured alone with `ONLY`.
pub const PARTS: [&str; 13] = [
    "cpu",
    "tls",
    "h2",
    "bodies",
    "grpc",
    "redis",
    "fleet",
    "latency",
    "away",
    "memory",
    "workers",
    "scale",
    "instructions",
];

#[derive(Debug, Clone)]
pub struct Settings {
    /// The number of rounds, without the first one that only warms up.
    pub rounds: usize,
    /// The length of a server's load in one round, seconds.
    pub seconds: u64,
    parts: Vec<String>,
}

// === impl Settings ===

impl Settings {
    /// Reads the settings from `ROUNDS`, `DURATION` and `ONLY`.
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

    /// Returns the same settings with rounds of another length.
    pub fn with_seconds(&self, seconds: u64) -> Self {
        Self { seconds, ..self.clone() }
    }

    pub fn wants(&self, part: &str) -> bool {
        self.parts.is_empty() || self.parts.iter().any(|wanted| wanted == part)
    }

    /// Returns whether a run with these settings may write `docs/performance.md`: all parts, in enough rounds.
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
