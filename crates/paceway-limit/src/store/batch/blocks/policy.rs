//! When gateways ask for blocks. Only arithmetic; the limiters that give blocks are those whose checks say so.

use crate::{
    algorithm::{Algorithm, TokenBucket},
    store::{Check, Checks},
};

/// When a gateway asks for blocks.
#[derive(Debug, Clone, Copy)]
pub struct BlockPolicy {
    /// The fewest requests that a block serves.
    pub least: i64,
}

// === impl BlockPolicy ===

impl Default for BlockPolicy {
    fn default() -> Self {
        Self { least: 3 }
    }
}

impl BlockPolicy {
    /// No blocks.
    pub const OFF: Self = Self { least: i64::MAX };

    fn is_off(self) -> bool {
        self.least == i64::MAX
    }

    /// The bucket that a request asks alone, if it is one that gives blocks.
    #[inline]
    pub(super) fn bucket(self, checks: &Checks) -> Option<(&Check, TokenBucket)> {
        match &**checks {
            [check @ Check { blocks: true, algorithm: Algorithm::TokenBucket(rule), .. }] => {
                (!self.is_off()).then_some((check, *rule))
            }
            _ => None,
        }
    }
}
