//! The blocks of a gateway: permits of busy limiters that the store has granted together, for requests that come later.
//! Decides only when a gateway asks for a block, and how large it is; the store decides whether it gets one.
//!
//! Requests of one limiter are served in the order in which they came: from the block only while none that came before waits
//! for the store. Permits are dropped when the limiter is paused, changed, reset or lowered.

mod key_block;
mod policy;

pub use policy::BlockPolicy;

pub(super) use key_block::Undecided;

use crate::{
    algorithm::{
        Level, Micros, TokenBucket,
        concurrency::Ticket,
        reserve::Part,
        token_bucket::{BlockAsk, LONGEST_USE},
    },
    store::{Check, Checks, Decision, Pauses, Source, health::Member, pauses::KeepsPermits},
};
use key_block::{Block, KeyBlock, Keys, micros, reach, span};
use metrics::Counter;
use parking_lot::Mutex;
use std::{
    mem,
    sync::{Arc, Weak, atomic::Ordering::SeqCst},
    time::Duration,
};
use tokio::time::Instant;

/// After an upstream has lowered a limiter, its permits stay in the store for 10 s, where the next answers can lower them.
const LOWERED: Duration = Duration::from_secs(10);

/// The requests for blocks in one call. More would take longer to find in it, and a call that carries that many is cheap
/// for each.
const BLOCKS: usize = 32;

/// The call that is made next, as far as a request for a block is concerned.
#[derive(Debug, Clone, Copy)]
pub(super) struct NextCall {
    pub(super) number: u64,
    /// The number of requests for blocks in it.
    pub(super) blocks: usize,
}

/// The blocks of one worker.
pub(super) struct Blocks {
    pub(super) policy: BlockPolicy,
    member: Option<Arc<Member>>,
    pauses: Arc<Pauses>,
    keys: Mutex<Keys>,
    /// Requests that were decided from blocks.
    served: Counter,
    /// Permits of blocks that ended before requests used them.
    lapsed: Counter,
}

/// The answer to a request that comes.
pub(super) enum Entered {
    /// A permit of a block.
    Served(Decision),
    /// The store is asked.
    Asks(Option<Undecided>),
}

/// The next step of a request whose turn in the queue has come.
pub(super) enum BlockTurn {
    Served(Decision),
    /// It asks, and for a block.
    AsksFor(BlockAsk),
    /// It waits for the block that the call asks for.
    Waits,
    Asks,
}

// === impl Blocks ===

impl Blocks {
    pub(super) fn new(
        policy: BlockPolicy,
        member: Option<Arc<Member>>,
        pauses: &Arc<Pauses>,
        [served, lapsed]: [Counter; 2],
    ) -> Arc<Self> {
        let (keys, pauses) = (Mutex::default(), pauses.clone());
        let blocks = Arc::new(Self { policy, member, pauses, keys, served, lapsed });
        let weak = Arc::downgrade(&blocks);
        let keeper: Weak<dyn KeepsPermits> = weak;
        blocks.pauses.tell(keeper);
        blocks
    }

    /// A request comes: it is served from the block of its limiter, or counted as one that asks the store.
    #[inline]
    pub(super) fn enter(&self, checks: &Checks, ticket: Option<Ticket>) -> Entered {
        match self.policy.bucket(checks) {
            // Most limiters are slow.
            None => Entered::Asks(None),
            Some(_) if ticket.is_some() => Entered::Asks(None),
            Some((check, rule)) => self.enter_fast(check, rule),
        }
    }

    fn enter_fast(&self, check: &Check, rule: TokenBucket) -> Entered {
        let now = Instant::now();
        let mut keys = self.keys.lock();
        let Some(key) = keys.find(check, rule, now) else { return Entered::Asks(None) };
        if key.cost == check.cost {
            key.count(now);
            if key.undecided.load(SeqCst) == 0
                && let Some(decision) = self.serve(key, now)
            {
                return Entered::Served(decision);
            }
        }
        Entered::Asks(Some(Undecided::of(key)))
    }

    /// The turn of a request has come in the queue, for the `call` that is made `now`.
    pub(super) fn next(&self, checks: &Checks, call: NextCall, now: Instant) -> BlockTurn {
        let NextCall { number, blocks } = call;
        let Some((check, rule)) = self.policy.bucket(checks) else { return BlockTurn::Asks };
        let mut keys = self.keys.lock();
        let Some(key) = keys.all.get_mut(&check.key) else { return BlockTurn::Asks };
        if key.is_asked && key.last_call == number {
            return BlockTurn::Waits;
        }
        if key.rule != rule || key.cost != check.cost {
            key.last_call = number;
            return BlockTurn::Asks;
        }
        if let Some(decision) = self.serve(key, now) {
            return BlockTurn::Served(decision);
        }
        if key.last_call == number {
            return BlockTurn::Asks;
        }
        (key.last_call, key.is_asked) = (number, false);
        // Where many requests are in the queue already, one call carries all of them.
        let queued = i64::try_from(key.undecided.load(SeqCst)).unwrap_or(i64::MAX);
        let ask = key.ask(now).filter(|ask| {
            ask.requests >= self.policy.least.max(2 * queued) && blocks < BLOCKS && self.may_ask()
        });
        match ask {
            Some(ask) => {
                key.is_asked = true;
                BlockTurn::AsksFor(ask)
            }
            None => BlockTurn::Asks,
        }
    }

    /// The store has granted a block to the request of `checks`, whose call was sent at `sent`: the decision has its level for
    /// that request. The permits lapse if the answer is late or the limiter was paused or changed since.
    pub(super) fn put(
        &self,
        checks: &Checks,
        ask: BlockAsk,
        (decision, usable): (&mut Decision, Micros),
        (sent, is_late): (Instant, bool),
    ) {
        let now = Instant::now();
        let (Some((check, rule)), Some(part)) =
            (self.policy.bucket(checks), decision.parts.first().copied())
        else {
            return;
        };
        let (requests, cost) = (ask.requests, check.cost);
        let (level, first, lapsed) = (decision.level, part.grant, self.lapsed.clone());
        let block = Block { sent, usable, first, level, requests, cost, next: 1, lapsed };
        if is_late {
            return self.not_given(checks);
        }
        // A pause of which the store does not know yet.
        let is_paused = self.pauses.get(&check.key).is_some();
        let mut keys = self.keys.lock();
        let Some(key) = keys.all.get_mut(&check.key) else { return };
        let is_asked = mem::take(&mut key.is_asked);
        let passed = micros(now.saturating_duration_since(sent));
        key.usable = ((usable.min(LONGEST_USE) - passed).clamp(0, reach(rule)), now);
        if !is_asked || is_paused || key.rule != rule || key.cost != cost || !self.may_ask() {
            return;
        }
        decision.level.remaining += block.left();
        key.block = Some(block);
    }

    /// The store has given no block to the request of `checks`.
    pub(super) fn not_given(&self, checks: &Checks) {
        let Some((check, rule)) = self.policy.bucket(checks) else { return };
        if let Some(key) = self.keys.lock().all.get_mut(&check.key) {
            let is_asked = mem::take(&mut key.is_asked);
            if is_asked {
                key.not_before = Instant::now() + span(reach(rule));
            }
        }
    }

    /// An upstream has lowered the limiter `key`.
    pub(super) fn lowered(&self, key: &str) {
        if let Some(key) = self.keys.lock().all.get_mut(key) {
            key.clear();
            key.not_before = Instant::now() + LOWERED;
        }
    }

    /// Whether this gateway may keep permits: it receives the messages about pauses, and no other gateway decides alone, whose
    /// share would have to be charged with each of them.
    fn may_ask(&self) -> bool {
        self.pauses.hears() && self.member.as_ref().is_none_or(|member| !member.misses_others())
    }

    /// The decision about a request by the next permit of the block that can still be used.
    fn serve(&self, key: &mut KeyBlock, now: Instant) -> Option<Decision> {
        let block = key.block.as_mut()?;
        let [per, den, _] = key.rule.args();
        let length = key.cost * per;
        let passed = micros(now.saturating_duration_since(block.sent));
        let may_ask = self.may_ask();
        let found = (block.next..block.requests).find(|i| {
            let usable = (block.usable + (i * length).div_euclid(den)).min(LONGEST_USE);
            // The clocks of the gateway and of the store may run at rates that differ by a thousandth.
            may_ask && passed <= usable - usable / 1024
        });
        let Some(i) = found else {
            key.clear();
            return None;
        };
        block.lapse_until(i);
        block.next = i + 1;
        self.served.increment(key.cost.unsigned_abs());
        let level = Level {
            remaining: block.level.remaining + block.left(),
            reset_after: (block.level.reset_after - passed).max(0),
            ..block.level
        };
        let grant = block.first.after(i * length, den);
        if block.next == block.requests {
            key.block = None;
        }
        Some(Decision {
            admitted: true,
            wait: 0,
            retry_after: 0,
            bound_by: 0,
            level,
            parts: std::iter::once(Part { at: 0, grant }).collect(),
            queued: None,
            source: Source::Shared,
        })
    }
}

impl KeepsPermits for Blocks {
    fn drop_permits(&self, key: Option<&str>) {
        let mut keys = self.keys.lock();
        match key {
            Some(key) => keys.all.get_mut(key).into_iter().for_each(KeyBlock::clear),
            None => keys.all.values_mut().for_each(KeyBlock::clear),
        }
    }
}
