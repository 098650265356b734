//! The names of the algorithms in a configuration. Decides nothing.

use super::kind::Choice;
use crate::{
    config::unit::{self, Rate},
    suggest::suggest,
};

/// The algorithm that a limiter names, before its other keys are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::config) enum RuleKind {
    TokenBucket,
    SlidingWindow,
    FixedWindow,
    LeakyBucket,
    WarmUp,
    Concurrency,
}

// === impl RuleKind ===

impl RuleKind {
    /// All kinds.
    pub(super) const EVERY: &'static [Self] = &[
        Self::TokenBucket,
        Self::SlidingWindow,
        Self::FixedWindow,
        Self::LeakyBucket,
        Self::WarmUp,
        Self::Concurrency,
    ];

    pub(in crate::config) fn parse(name: &str) -> Result<Self, String> {
        let found = Self::CHOICES.iter().find(|(word, _)| *word == name);
        found.map(|(_, kind)| *kind).ok_or_else(|| {
            let names: Vec<_> = Self::CHOICES.iter().map(|(word, _)| *word).collect();
            let hint = suggest(name, names.iter().copied())
                .unwrap_or_else(|| format!("there are: {}", names.join(", ")));
            format!("is no algorithm; {hint}")
        })
    }

    /// Reads a rate of a limiter of this kind, which may have windows of a calendar.
    ///
    /// # Errors
    ///
    /// The reason, as [`unit::rate`] words it.
    pub(in crate::config) fn read_rate(
        self,
        text: &str,
        has_calendar: bool,
    ) -> Result<Rate, String> {
        match self {
            Self::FixedWindow if has_calendar => unit::rate_of_a_calendar(text),
            Self::FixedWindow => unit::rate_of_a_window(text),
            _ => unit::rate(text),
        }
    }

    /// Whether the rate of a limiter of this kind can be learned.
    pub(in crate::config) fn has_auto_rate(self) -> bool {
        matches!(self, Self::TokenBucket | Self::SlidingWindow | Self::LeakyBucket)
    }

    /// Whether a limiter of this kind can keep several rates at once, such as `[5/s, 100/min]`.
    pub(in crate::config) fn takes_lists(self) -> bool {
        matches!(self, Self::TokenBucket | Self::SlidingWindow | Self::FixedWindow)
    }
}

impl Choice for RuleKind {
    const CHOICES: &'static [(&'static str, Self)] = &[
        ("token_bucket", Self::TokenBucket),
        ("sliding_window", Self::SlidingWindow),
        ("fixed_window", Self::FixedWindow),
        ("leaky_bucket", Self::LeakyBucket),
        ("warm_up", Self::WarmUp),
        ("concurrency", Self::Concurrency),
    ];
}
