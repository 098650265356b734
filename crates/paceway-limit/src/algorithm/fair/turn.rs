//! The turn of one request: its tenant with its weight, and its priority. It decides nothing.

use super::{Priority, turns::MAX_WEIGHT};
use std::sync::Arc;

/// The tenant of a request that names none.
pub const NO_TENANT: &str = "-";

/// How a request takes its turn among those that wait for the same limiter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Turn {
    /// The tenant that slots are counted for, such as the value of `x-team`. At most [`Turn::LONGEST`] bytes count.
    pub tenant: Arc<str>,
    /// The share of the tenant among the tenants that wait, from 1 to [`MAX_WEIGHT`].
    pub weight: i64,
    /// The priority of the request; higher ones are served first.
    pub priority: Priority,
}

// === impl Turn ===

impl Turn {
    /// The longest name of a tenant, in bytes. Longer ones are cut, so that a caller cannot fill the store with them.
    pub const LONGEST: usize = 128;

    /// The turn of a request of `tenant` with this weight, which is brought into the range from 1 to [`MAX_WEIGHT`].
    pub fn new(tenant: impl Into<Arc<str>>, weight: i64, priority: Priority) -> Self {
        let tenant: Arc<str> = tenant.into();
        let end = (0..=Self::LONGEST).rev().find(|end| tenant.is_char_boundary(*end)).unwrap_or(0);
        let tenant = if tenant.len() > Self::LONGEST { Arc::from(&tenant[..end]) } else { tenant };
        Self { tenant, weight: weight.clamp(1, MAX_WEIGHT), priority }
    }

    /// The turn of a request that says nothing of itself, such as one of a program that asks for a decision.
    pub fn of_nobody() -> Self {
        Self::new(NO_TENANT, 1, Priority::Normal)
    }
}
