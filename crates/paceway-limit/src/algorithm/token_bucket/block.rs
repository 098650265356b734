//! Blocks: permits of one bucket that a gateway takes together and uses for requests that come later. Twin of
//! `block.lua`. Never lets a permit be used after the start of its interval.
//!
//! A permit that owns `[start, end)` may be used at any instant from `end - burst·per` to `start`: the permits that
//! are used in `[a, a + t)` then start at `a` or later and end before `a + t + burst·per`, which has room for
//! `burst + t/per` of them. The permits of a block all end within three quarters of a bucket from now, so that all of
//! them can be used at once, and each until its start. So that no permit starts too soon, a block of a bucket that is
//! nearly unused begins some time after now; the room before it is a hole that other requests use.
//!
//! A block is a promise like any other: until the start of its last permits, what comes back to the line stays where it was. A
//! quarter of the bucket is left to other requests: where requests wait, there are no blocks. Nor are there any on a line to
//! which permits came back that requests did not use: the permits after the first one would not know by how much it had moved.

use super::{Open, TokenBucket};
use crate::algorithm::{Grant, Micros};

/// The block that a gateway asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockAsk {
    /// The number of requests that it serves; each takes as many permits as the one that asks. One is no block.
    pub requests: i64,
    /// The first permit can be used for this long at least, µs.
    pub reach: Micros,
    /// Where the block begins if the end of the reserved line is nearer than `reach`, µs from now.
    pub jump: Micros,
}

/// No permit of a block is used later than 0.5 s after its grant, so that a gateway which misses a message stops soon.
pub const LONGEST_USE: Micros = 500_000;

/// The fewest permits of a bucket that gives blocks: below, a quarter of it is less than one.
const LEAST_BURST: i64 = 4;
/// The least rate of a bucket from which gateways take blocks, permits per second. A block costs the store about as much as a
/// request, and a slower bucket has few requests for each gateway in the time in which a permit of a block can be used.
const LEAST_RATE: i64 = 1000;

// === impl TokenBucket ===

impl TokenBucket {
    pub(in crate::algorithm) fn is_fast(&self) -> bool {
        self.per.saturating_mul(LEAST_RATE) <= self.den.saturating_mul(1_000_000)
    }
}

// === impl Open ===

impl Open {
    /// Takes a block of requests that take `cost` permits each. Returns the grant of the first one, and for how long from
    /// now it can be used, µs; the grant of each other one begins where that of the one before ends. `None`, and
    /// nothing is taken, if the bucket has too few permits.
    pub fn take_block(&mut self, cost: i64, ask: BlockAsk) -> Option<(Grant, Micros)> {
        let (rule, full) = (self.rule, self.rule.pace().full());
        let permits = ask.requests.checked_mul(cost)?;
        if ask.requests < 2
            || rule.burst < LEAST_BURST
            || permits > rule.burst
            || self.line.has_moved()
        {
            return None;
        }
        let mut start = self.line.tail;
        if start < ask.reach * rule.den {
            start = start.max(ask.jump * rule.den);
        }
        let fits = start + permits * rule.per <= full - full / 4;
        fits.then(|| {
            let grant = self.line.take(start, permits);
            let last = start + (permits - cost) * rule.per;
            self.line.promise(last.div_euclid(rule.den), last);
            (grant, start.div_euclid(rule.den))
        })
    }
}
