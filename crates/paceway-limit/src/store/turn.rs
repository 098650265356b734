//! The turn of a request at a limiter that shares its slots fairly: the tenant that it belongs to, and what operators see
//! of each tenant. It decides nothing: `algorithm/fair` does.

use crate::algorithm::fair::{Priority, turns::MAX_WEIGHT};
use std::sync::Arc;

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

/// What one tenant has of a limiter's slots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TenantLevel {
    /// The tenant, such as the value of `x-team`; empty for all tenants together beyond the first
    /// [`MAX_TENANTS`](crate::algorithm::fair::turns::MAX_TENANTS).
    pub tenant: Arc<str>,
    /// The weight of its last request.
    pub weight: i64,
    /// The priority of these requests. A tenant with requests of two priorities is listed twice.
    pub priority: Priority,
    /// How many of its requests wait.
    pub waiting: u64,
    /// The permits that it was granted since it is known. A tenant is forgotten when none of its requests waits and it is
    /// not ahead of its share.
    pub granted: u64,
}

// === impl Turn ===

impl Turn {
    /// The longest name of a tenant, in bytes. Longer ones are cut, so that a caller cannot fill the store with them.
    pub const LONGEST: usize = 128;

    /// The turn of a request of `tenant` with this weight, which is brought into the range from 1 to [`MAX_WEIGHT`].
    pub fn new(tenant: impl Into<Arc<str>>, weight: i64, priority: Priority) -> Self {
        let tenant: Arc<str> = tenant.into();
        let end = (0..=Self::LONGEST).rev().find(|end| tenant.is_char_boundary(*end)).unwrap_or(0);
        let tenant = match tenant.len() > Self::LONGEST {
            true => Arc::from(&tenant[..end]),
            false => tenant,
        };
        Self { tenant, weight: weight.clamp(1, MAX_WEIGHT), priority }
    }
}
