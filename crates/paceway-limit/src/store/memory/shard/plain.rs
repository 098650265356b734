//! The plain way of a decision: one token bucket grants a request now. Never lets a request wait, nor refuses it.

use super::{SWEEP, Shard};
use crate::{
    algorithm::{
        Algorithm, Micros, TokenBucket,
        reserve::{Part, Reserved},
        timeline::Packed,
        token_bucket::Open,
    },
    store::{
        Check,
        memory::{MemoryStore, stored_state::Print},
    },
};
use smallvec::smallvec;
use std::sync::atomic::Ordering::Relaxed;

// === impl MemoryStore ===

impl MemoryStore {
    /// Grants a request now, whose key has this `print`. `None`, and nothing is changed, where [`reserve::decide`](crate::algorithm::reserve::decide)
    /// has more to do: most requests are granted here, with half of its instructions.
    #[inline]
    pub(in crate::store::memory) fn grant_now(
        &self,
        shard: &mut Shard,
        check: &Check,
        print: Print,
        now: Micros,
    ) -> Option<Reserved> {
        match &check.algorithm {
            Algorithm::TokenBucket(rule) if self.shared.lost.load(Relaxed) == 0 => {
                shard.grant_now(print, *rule, check.cost, now)
            }
            _ => None,
        }
    }
}

// === impl Shard ===

impl Shard {
    fn grant_now(
        &mut self,
        print: Print,
        rule: TokenBucket,
        cost: i64,
        now: Micros,
    ) -> Option<Reserved> {
        let place = self.find(print)?;
        let kept = self.states.get_mut(place)?;
        if self.has_gates || kept.aside > 0 {
            return None;
        }
        let pace = *self.paces.get(kept.kind.pace()?)?;
        let mut open = Open::new(Some(&mut kept.packed.unpack(pace, Vec::new())), now, rule);
        let (0, start) = open.earliest(0, cost) else { return None };
        let grant = open.take(start, cost);
        let level = open.level();
        let (packed, new_pace, holes) = Packed::new(open.close()?.0);
        if new_pace != pace || !holes.is_empty() {
            return None;
        }
        kept.packed = packed;
        self.due += SWEEP;
        self.sweep(now);
        let parts = Some(smallvec![Part { at: 0, grant }]);
        Some(Reserved { at: 0, retry_after: 0, bound_by: 0, level, parts, queued: None })
    }
}
