//! The settings of an upstream that throttles: how it says so, and what the gateway does then.

use super::keys::Choice;
use crate::throttle::{Style, ThrottleRules};
use std::num::NonZeroU32;

/// The handling of the refusals of one upstream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThrottleConfig {
    /// Whether refusals pause limiters and are retried. If false (`throttle: off`), they are counted and passed on.
    pub is_on: bool,
    /// Which answers are refusals, and how long the pause is.
    pub rules: ThrottleRules,
    /// The limiters that a refusal pauses, among those that the request was charged to.
    pub pauses: PausedLimiters,
    /// How refused requests are sent again.
    pub retry: RetryConfig,
}

/// The limiters of a refused request that are paused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PausedLimiters {
    /// All of them, each for the key that the request had there.
    All,
    /// Those of this list of indices into [`Config::limiters`](super::Config::limiters), as far as the request has them.
    Some(Vec<usize>),
}

/// How refused requests are sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryConfig {
    /// The times that a request is sent, the first included. 1 means that it is never sent again.
    pub attempts: NonZeroU32,
    /// The bytes of the longest body that is kept for another attempt. A request with a longer one is sent once.
    pub max_body: usize,
}

// === impl ThrottleConfig ===

impl ThrottleConfig {
    /// Whether a refused request may be sent again.
    pub fn retries(&self) -> bool {
        self.is_on && self.retry.attempts.get() > 1
    }
}

// === impl PausedLimiters ===

impl PausedLimiters {
    /// Whether a refusal pauses the limiter with this index.
    pub fn has(&self, limiter: usize) -> bool {
        match self {
            Self::All => true,
            Self::Some(some) => some.contains(&limiter),
        }
    }
}

// === impl Style ===

impl Choice for Style {
    const CHOICES: &'static [(&'static str, Self)] = &Self::NAMED;
}
