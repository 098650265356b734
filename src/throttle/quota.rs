//! A quota of which an answer says how much remains, and the limiter that it belongs to. Lowers nothing itself.

use paceway_limit::Rate;
use std::{borrow::Cow, time::Duration};

/// A quota of an upstream, as one answer describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuotaReport {
    /// The vendor's name for it, such as `tokens`; empty if it has none.
    pub name: Cow<'static, str>,
    /// The permits that remain.
    pub remaining: u64,
    /// The permits of the whole quota.
    pub limit: Option<u64>,
    /// The period of the quota.
    pub window: Option<Duration>,
    /// The time until the quota is full, or until its window ends.
    pub reset: Option<Duration>,
}

// === impl QuotaReport ===

impl QuotaReport {
    /// Whether this quota is the one that a limiter keeps with `rate` and `capacity`, the permits that it can give at once.
    /// `is_only` is true if the answer reports one quota and the request has one rate. Lowering the wrong limiter would hold calls that the upstream would take: 3 calls that
    /// remain of this second say nothing about the 5000 of an hour.
    pub fn is_of(&self, limiter: &str, rate: &Rate, capacity: u64, is_only: bool) -> bool {
        if let Some(window) = self.window {
            return window == rate.period;
        }
        // The limit of a bucket is its size: 40 for Shopify's, which gets 2 a second. A limiter may keep a little less.
        let is_size = |limit: u64| (limit - limit / 16..=limit).contains(&capacity);
        if self.limit.is_some_and(|limit| limit == rate.count || is_size(limit)) {
            return true;
        }
        let ends_in_time = self.reset.is_none_or(|reset| reset <= rate.period);
        // A team that takes 4000 of a vendor's 5000 for itself has the same quota in mind.
        let is_near = |limit: u64| limit / 2 <= rate.count && rate.count / 2 <= limit;
        let is_named = !self.name.is_empty() && self.name.eq_ignore_ascii_case(limiter);
        ends_in_time && (is_named || (is_only && self.limit.is_none_or(is_near)))
    }
}
