//! The requests for the keys of fast limiters, counted, and their blocks. Asks no store.

use crate::{
    algorithm::{Grant, Level, Micros, TokenBucket, token_bucket::BlockAsk},
    store::Check,
};
use ahash::RandomState;
use indexmap::IndexMap;
use metrics::Counter;
use std::{mem, sync::Arc, time::Duration};
use tokio::time::Instant;

/// The limiters, by key, whose requests are counted at one time.
const KEYS: usize = 256;
/// Places that are looked at for one that another key may have.
const LOOKS: usize = 4;
/// A key that was not asked for this long may lose its place.
const IDLE: Duration = Duration::from_secs(1);
/// The requests of one block.
const MOST: i64 = 64;
/// How long a slow store is remembered whose answers leave little of the time in which permits can be used.
const SLOW: Duration = Duration::from_secs(10);
/// Estimates of requests are in sixteenths.
const SIXTEENTHS: i64 = 16;

#[derive(Debug, Default)]
pub(super) struct Keys {
    pub(super) all: IndexMap<Arc<str>, KeyBlock, RandomState>,
    /// The place in `all` where the search for an idle key continues.
    next: usize,
}

/// The requests for one key, and its block.
#[derive(Debug)]
pub(super) struct KeyBlock {
    pub(super) rule: TokenBucket,
    pub(super) cost: i64,
    /// The requests since `since`.
    seen: i64,
    since: Instant,
    /// How many requests come while the first permit of a block can be used, in sixteenths.
    expected: i64,
    /// How long the first permit of the last block could be used when it came, µs, and when that was.
    pub(super) usable: (Micros, Instant),
    /// No block is asked for before this instant.
    pub(super) not_before: Instant,
    /// The requests in the call that is made next; 0 when the first of them has been looked at.
    in_call: i64,
    /// A block was asked for, and nothing has happened since that forbids its use.
    pub(super) is_asked: bool,
    pub(super) block: Option<Block>,
}

/// A block that the store has granted. The permits that it has when it is dropped have lapsed.
#[derive(Debug)]
pub(super) struct Block {
    /// An instant before the store made the grant, from which on the times of the permits count.
    pub(super) sent: Instant,
    pub(super) usable: Micros,
    pub(super) first: Grant,
    /// The level after the block.
    pub(super) level: Level,
    pub(super) requests: i64,
    /// The permits of each request.
    pub(super) cost: i64,
    /// The first request that it can serve.
    pub(super) next: i64,
    pub(super) lapsed: Counter,
}

// === impl Keys ===

impl Keys {
    /// The counts of a key, which begin now if it is new or its rule has changed; `None` if there is no place for it.
    pub(super) fn find(
        &mut self,
        check: &Check,
        rule: TokenBucket,
        now: Instant,
    ) -> Option<&mut KeyBlock> {
        let place = match self.all.get_index_of(&check.key) {
            Some(place) => place,
            None => {
                self.make_room(now)?;
                self.all.insert_full(check.key.clone(), KeyBlock::new(check, rule, now)).0
            }
        };
        let (_, key) = self.all.get_index_mut(place)?;
        let is_other_cost = key.cost != check.cost && now >= key.since + 2 * IDLE;
        if key.rule != rule || is_other_cost {
            *key = KeyBlock::new(check, rule, now);
        }
        Some(key)
    }

    fn make_room(&mut self, now: Instant) -> Option<()> {
        if self.all.len() < KEYS {
            return Some(());
        }
        for _ in 0..LOOKS {
            self.next = (self.next + 1) % KEYS;
            let (_, key) = self.all.get_index(self.next)?;
            if now >= key.since + IDLE {
                self.all.swap_remove_index(self.next);
                return Some(());
            }
        }
        None
    }
}

// === impl KeyBlock ===

impl KeyBlock {
    fn new(check: &Check, rule: TokenBucket, now: Instant) -> Self {
        Self {
            rule,
            cost: check.cost,
            seen: 0,
            since: now,
            expected: 0,
            usable: (reach(rule), now),
            not_before: now,
            in_call: 0,
            is_asked: false,
            block: None,
        }
    }

    /// Whether its block is for requests of this check.
    pub(super) fn is_of(&self, check: &Check, rule: TokenBucket) -> bool {
        self.rule == rule && self.cost == check.cost
    }

    /// Counts a request of the call that is made next.
    pub(super) fn enter_call(&mut self, check: &Check, rule: TokenBucket) {
        // A call with a request of another cost asks for no block.
        self.in_call += if self.is_of(check, rule) { 1 } else { MOST };
    }

    /// How many requests the call has that is made next, for the first of them alone.
    pub(super) fn take_queued(&mut self) -> Option<i64> {
        Some(mem::take(&mut self.in_call)).filter(|queued| *queued > 0)
    }

    /// Drops the block, and the one that the call which is under way may bring.
    pub(super) fn clear(&mut self) {
        (self.is_asked, self.block) = (false, None);
    }

    /// Counts a request, and estimates after each `reach` how many come in one.
    pub(super) fn count(&mut self, now: Instant) {
        let (reach, passed) = (reach(self.rule), micros(now.saturating_duration_since(self.since)));
        if passed >= reach {
            let seen = self.seen * SIXTEENTHS * reach / passed.max(1);
            let lasts = self.expected > 0 && passed < 2 * reach;
            self.expected = if lasts { (3 * self.expected + seen) / 4 } else { seen };
            (self.seen, self.since) = (0, now);
        }
        self.seen += 1;
    }

    /// The block for the request that asks and for those that are expected while its permits can be used, or somewhat fewer of
    /// these, so that few permits lapse.
    pub(super) fn ask(&self, now: Instant) -> Option<BlockAsk> {
        if now < self.not_before {
            return None;
        }
        let reach = reach(self.rule);
        let usable = match self.usable {
            (_, since) if now >= since + SLOW => reach,
            (usable, _) => usable,
        };
        let expected = self.expected * usable / reach.max(1);
        let requests = (1 + expected * 7 / 8 / SIXTEENTHS).min(MOST);
        let fits = requests * self.cost <= self.rule.capacity() / 4;
        fits.then_some(BlockAsk { requests, reach, jump: reach + reach / 3 })
    }
}

// === impl Block ===

impl Block {
    /// The permits that are left.
    pub(super) fn left(&self) -> i64 {
        (self.requests - self.next) * self.cost
    }

    /// The permits of the requests before the `i`-th have lapsed.
    pub(super) fn lapse_until(&mut self, i: i64) {
        self.lapsed.increment(((i - self.next) * self.cost).unsigned_abs());
        self.next = i;
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.lapse_until(self.requests);
    }
}

/// For how long the first permit of a block can be used, at least: three eighths of the time in which the bucket refills, 0.3 s
/// at most.
pub(super) fn reach(rule: TokenBucket) -> Micros {
    let [per, den, most] = rule.args();
    (per * most / den / 8 * 3).min(300_000)
}

pub(super) fn micros(span: Duration) -> Micros {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}

pub(super) fn span(micros: Micros) -> Duration {
    Duration::from_micros(micros.unsigned_abs())
}
