//! The blocks of a gateway: permits of busy limiters that the store has granted together, for requests that come later.
//! Decides only when a gateway asks for a block, and how large it is; the store decides whether it gets one.
//!
//! Requests of one limiter are served in the order in which they came: from the block only while none that came before waits
//! for the store. Permits are dropped when the limiter is paused, changed, reset or lowered.

mod key_block;

use crate::{
    algorithm::{
        Algorithm, Level, Micros, Rule, TokenBucket,
        concurrency::Ticket,
        reserve::Part,
        token_bucket::{BlockAsk, LONGEST_USE},
    },
    store::{
        Backend, BoxFuture, Check, Checks, Decision, Entry, Pauses, Reply, StoreError,
        health::Member, pauses::KeepsPermits,
    },
};
use key_block::{Block, KeyBlock, Keys, micros, reach, span};
use metrics::Counter;
use parking_lot::Mutex;
use std::{
    mem,
    sync::{Arc, Weak},
    time::Duration,
};
use tokio::time::Instant;

/// After an upstream has lowered a limiter, its permits stay in the store for 10 s, where the next answers can lower them.
const LOWERED: Duration = Duration::from_secs(10);

/// The requests for blocks in one call. More would take longer to find in it, and a call that carries that many is cheap
/// for each.
const BLOCKS: usize = 32;

/// The fewest requests that a block serves.
const LEAST: i64 = 3;

/// The blocks of one worker.
#[derive(Debug)]
pub(super) struct Blocks {
    backend: Arc<dyn Backend>,
    /// Each server of a Cluster sends its own messages about pauses, and those of one of them may be lost.
    is_off: bool,
    member: Option<Arc<Member>>,
    pauses: Arc<Pauses>,
    keys: Mutex<Keys>,
    /// Requests that were decided from blocks.
    served: Counter,
    /// Permits of blocks that ended before requests used them.
    lapsed: Counter,
}

/// A block that the store has granted.
struct GivenBlock {
    ask: BlockAsk,
    /// An instant before the grant.
    sent: Instant,
    /// How long the call may take.
    limit: Duration,
    /// For how long from the grant the first permit can be used, µs.
    usable: Micros,
}

// === impl Blocks ===

impl Blocks {
    pub(super) fn new(
        backend: Arc<dyn Backend>,
        member: Option<Arc<Member>>,
        pauses: &Arc<Pauses>,
        [served, lapsed]: [Counter; 2],
    ) -> Arc<Self> {
        let (is_off, keys) = (backend.placement().has_many_servers(), Mutex::default());
        let pauses = pauses.clone();
        let blocks = Arc::new(Self { backend, is_off, member, pauses, keys, served, lapsed });
        let weak = Arc::downgrade(&blocks);
        let keeper: Weak<dyn KeepsPermits> = weak;
        blocks.pauses.tell(keeper);
        blocks
    }

    /// The bucket that a request asks alone, if it is one that gives blocks.
    #[inline]
    fn bucket<'c>(&self, checks: &'c Checks) -> Option<(&'c Check, TokenBucket)> {
        match &**checks {
            [
                check @ Check {
                    blocks: true,
                    algorithm: Rule::Rate(Algorithm::TokenBucket(rule)),
                    ..
                },
            ] => (!self.is_off).then_some((check, *rule)),
            // Most limiters are slow.
            _ => None,
        }
    }

    /// Counts a request that comes, and serves it from the block of its limiter if it `is_next`: no entry that came before
    /// waits for the store.
    #[inline]
    pub(super) fn enter(
        &self,
        checks: &Checks,
        ticket: Option<Ticket>,
        is_next: bool,
    ) -> Option<Decision> {
        let (check, rule) = self.bucket(checks).filter(|_| ticket.is_none())?;
        let now = Instant::now();
        let mut keys = self.keys.lock();
        let key = keys.find(check, rule, now).filter(|key| key.cost == check.cost)?;
        key.count(now);
        if is_next { self.serve(key, now) } else { None }
    }

    /// Serves a request whose turn in the queue has come `now` from the block of its limiter.
    pub(super) fn serve_queued(&self, entry: &Entry, now: Instant) -> Option<Decision> {
        let Entry::Reserve { checks, ticket: None, .. } = entry else { return None };
        let (check, rule) = self.bucket(checks)?;
        let mut keys = self.keys.lock();
        let key = keys.all.get_mut(&check.key).filter(|key| key.is_of(check, rule))?;
        self.serve(key, now)
    }

    /// Executes the entries of a call, which may take as long as `limit`. The first request of each limiter that gives blocks
    /// may ask for one. Callers receive decisions alone.
    pub(super) fn run(
        self: &Arc<Self>,
        entries: Arc<Vec<Entry>>,
        limit: Duration,
    ) -> BoxFuture<Result<Vec<Reply>, StoreError>> {
        let sent = Instant::now();
        let Some(asking) = self.asking(&entries, sent) else { return self.backend.run(entries) };
        let (blocks, entries) = (self.clone(), Arc::new(asking));
        Box::pin(async move {
            let answer = blocks.backend.run(entries.clone()).await;
            let replies = answer.inspect_err(|_| {
                entries.iter().for_each(|entry| blocks.not_given(entry));
            })?;
            let replies = entries.iter().zip(replies).map(|(entry, reply)| match (entry, reply) {
                (Entry::Block { checks, ask, .. }, Reply::Block { decision, usable }) => {
                    let block = GivenBlock { ask: *ask, sent, limit, usable };
                    Reply::Decision(blocks.put(checks, decision, block))
                }
                (entry, reply) => {
                    blocks.not_given(entry);
                    reply
                }
            });
            Ok(replies.collect())
        })
    }

    /// The entries of a call, some of which ask for blocks; `None` if none does.
    fn asking(&self, entries: &[Entry], now: Instant) -> Option<Vec<Entry>> {
        let asking = entries.iter().enumerate().filter_map(|(i, entry)| match entry {
            Entry::Reserve { checks, ticket: None, .. } => Some((i, self.bucket(checks)?)),
            _ => None,
        });
        let asking: Vec<_> = asking.collect();
        if asking.is_empty() || !self.may_ask() {
            return None;
        }
        let mut keys = self.keys.lock();
        for (_, (check, rule)) in &asking {
            if let Some(key) = keys.all.get_mut(&check.key) {
                key.enter_call(check, *rule);
            }
        }
        let mut asks = Vec::new();
        for (i, (check, _)) in asking {
            if let Some(key) = keys.all.get_mut(&check.key)
                && let Some(queued) = key.take_queued()
            {
                // Where many requests are in the call already, it carries all of them.
                let least = LEAST.max(2 * queued);
                let ask = key.ask(now).filter(|ask| ask.requests >= least && asks.len() < BLOCKS);
                key.is_asked = ask.is_some();
                asks.extend(ask.map(|ask| (i, ask)));
            }
        }
        drop(keys);
        let mut entries = if asks.is_empty() { return None } else { entries.to_vec() };
        for (i, ask) in asks {
            if let Entry::Reserve { checks, budget, .. } = &entries[i] {
                entries[i] = Entry::Block { checks: checks.clone(), budget: *budget, ask };
            }
        }
        Some(entries)
    }

    /// Keeps a block that the store has granted to the request of `checks`, and returns the decision about that request. The
    /// permits lapse if the answer is late, or if the limiter was paused or changed since.
    fn put(&self, checks: &Checks, mut decision: Decision, given: GivenBlock) -> Decision {
        let GivenBlock { ask, sent, limit, usable } = given;
        let now = Instant::now();
        let (Some((check, rule)), Some(part)) =
            (self.bucket(checks), decision.parts.first().copied())
        else {
            return decision;
        };
        let (requests, cost) = (ask.requests, check.cost);
        let (level, first, lapsed) = (decision.level, part.grant, self.lapsed.clone());
        let block = Block { sent, usable, first, level, requests, cost, next: 1, lapsed };
        // A pause of which the store does not know yet.
        let is_paused = self.pauses.get(&check.key).is_some();
        let mut keys = self.keys.lock();
        let Some(key) = keys.all.get_mut(&check.key) else { return decision };
        let (is_asked, passed) = (mem::take(&mut key.is_asked), now - sent);
        if passed >= limit {
            key.not_before = now + span(reach(rule));
            return decision;
        }
        let left = usable.min(LONGEST_USE) - micros(passed);
        key.usable = (left.clamp(0, reach(rule)), now);
        if is_asked && !is_paused && key.is_of(check, rule) && self.may_ask() {
            decision.level.remaining += block.left();
            key.block = Some(block);
        }
        decision
    }

    /// The store has given no block to an entry, which may have asked for one.
    fn not_given(&self, entry: &Entry) {
        let Entry::Block { checks, .. } = entry else { return };
        let Some((check, rule)) = self.bucket(checks) else { return };
        if let Some(key) = self.keys.lock().all.get_mut(&check.key)
            && mem::take(&mut key.is_asked)
        {
            key.not_before = Instant::now() + span(reach(rule));
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
            level,
            parts: std::iter::once(Part { at: 0, grant }).collect(),
            ..Decision::default()
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
