//! The concurrency permits that this process holds in its store, or may hold because an answer is still to come. While the
//! store is away, a gateway decides by them. The number of keys is bounded; the permits of further keys are not known.

use crate::{
    algorithm::{
        Micros,
        concurrency::{Holder, Ticket},
    },
    store::Checks,
};
use ahash::RandomState;
use indexmap::IndexMap;
use parking_lot::Mutex;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    mem,
    sync::Arc,
    time::Duration,
};
use tokio::time::Instant;

/// Keys whose permits are remembered. The permits of further keys are not.
const MAX_KEYS: usize = 65_536;

/// How long a permit that was not refunded stays known after its lease has ended: its call may still run.
const KEPT: Duration = Duration::from_secs(60);

/// Keys that are looked at for each key that is new. Those whose last permit has ended are removed, so that the table has
/// about as many keys as were in use in the last minute.
const LOOKS: usize = 4;

/// The permits of all keys that this process knows of.
#[derive(Debug, Default)]
pub(in crate::store) struct KnownPermits(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    keys: IndexMap<Arc<str>, KeyPermits, RandomState>,
    /// The place in `keys` where the search for ended permits continues.
    next: usize,
    /// Holders whose permits changed since the local state last asked, for each key that it decides.
    followed: HashMap<Arc<str>, BTreeSet<Holder>, RandomState>,
}

/// The permits of one key.
#[derive(Debug, Default)]
struct KeyPermits {
    all: BTreeMap<Holder, KnownPermit>,
    /// When each is forgotten, so that an ended permit is found without looking at all of them.
    ends: BTreeSet<(Instant, Holder)>,
    /// How many of them the store has not answered yet.
    asked: usize,
}

/// A permit that this process holds, or may hold.
#[derive(Debug, Clone, Copy)]
struct KnownPermit {
    /// When its lease ends unless it is renewed. For a permit that was only asked for: when no caller waits for the answer
    /// any more.
    until: Instant,
    /// The store has not answered yet.
    is_asked: bool,
}

// === impl KnownPermits ===

impl KnownPermits {
    /// Begins to record which permits of `key` change, for [`Self::changes`]. Returns all that are held, in order, each
    /// with how long its lease lasts yet in µs; a lease that has ended has a value below 0.
    pub(in crate::store) fn follow(&self, key: &Arc<str>) -> Vec<(Holder, Micros)> {
        let now = Instant::now();
        let inner = &mut *self.0.lock();
        inner.followed.insert(key.clone(), BTreeSet::new());
        inner.forget_ended(key, now);
        inner.held(key, now)
    }

    /// Ends what [`Self::follow`] began.
    pub(in crate::store) fn unfollow(&self, key: &str) {
        self.0.lock().followed.remove(key);
    }

    /// All permits of `key` that are held, as [`Self::follow`] returns them.
    pub(in crate::store) fn held(&self, key: &str) -> Vec<(Holder, Micros)> {
        self.0.lock().held(key, Instant::now())
    }

    /// The permits of `key` that changed since the last call, and those of the holders `also`: how long each lease lasts yet,
    /// or `None` if the permit is not held any more. The cost is that of the changes, however many permits are held.
    pub(in crate::store) fn changes(
        &self,
        key: &Arc<str>,
        also: impl Iterator<Item = Holder>,
    ) -> BTreeMap<Holder, Option<Micros>> {
        let now = Instant::now();
        let inner = &mut *self.0.lock();
        inner.forget_ended(key, now);
        let mut changed = inner.followed.get_mut(key).map(mem::take).unwrap_or_default();
        changed.extend(also);
        let permits = inner.keys.get(key);
        let left = |holder: &Holder| {
            let permit = permits?.all.get(holder).filter(|permit| !permit.is_asked)?;
            Some(left(permit.until, now))
        };
        changed.into_iter().map(|holder| (holder, left(&holder))).collect()
    }

    /// How many requests of this process have asked the store for a permit of `key` and have no answer yet.
    pub(in crate::store) fn asked(&self, key: &Arc<str>) -> i64 {
        let inner = &mut *self.0.lock();
        inner.forget_ended(key, Instant::now());
        inner.keys.get(key).map_or(0, |permits| permits.asked as i64)
    }

    /// The request with `ticket` asks the store for permits, and waits up to `span` for the answer. Until then it may
    /// hold them.
    pub(in crate::store) fn asks(&self, checks: &Checks, ticket: Ticket, span: Duration) {
        let permit = KnownPermit { until: Instant::now() + span, is_asked: true };
        for check in checks.iter().filter(|check| check.is_lease()) {
            self.set(&check.key, ticket, permit);
        }
    }

    /// The store refused the request with `ticket`, or gave no answer, so it holds no permit that it did not hold before.
    pub(in crate::store) fn refused(&self, checks: &Checks, ticket: Ticket) {
        let inner = &mut *self.0.lock();
        for check in checks.iter().filter(|check| check.is_lease()) {
            inner.remove(&check.key, ticket.holder(), |permit| permit.is_asked);
        }
    }

    /// The permit of `ticket` has been refunded.
    pub(in crate::store) fn refunded(&self, key: &str, ticket: Ticket) {
        self.0.lock().remove(key, ticket.holder(), |_| true);
    }

    /// The store granted or renewed the permit of `ticket` for a `lease`, in µs.
    pub(in crate::store) fn hold(
        &self,
        key: &Arc<str>,
        lease: Option<Micros>,
        ticket: Ticket,
        now: Instant,
    ) {
        let until = now + Duration::from_micros(lease.unwrap_or_default().unsigned_abs());
        self.set(key, ticket, KnownPermit { until, is_asked: false });
    }

    fn set(&self, key: &Arc<str>, ticket: Ticket, permit: KnownPermit) {
        let now = Instant::now();
        let inner = &mut *self.0.lock();
        if !inner.keys.contains_key(key) && !inner.make_room(now) {
            return;
        }
        inner.forget_ended(key, now);
        inner.note(key, ticket.holder());
        inner.keys.entry(key.clone()).or_default().set(ticket.holder(), permit);
    }

    #[cfg(test)]
    pub(in crate::store) fn keys(&self) -> usize {
        self.0.lock().keys.len()
    }
}

// === impl Inner ===

impl Inner {
    fn held(&self, key: &str, now: Instant) -> Vec<(Holder, Micros)> {
        let all = self.keys.get(key).into_iter().flat_map(|permits| &permits.all);
        let held = all.filter(|(_, permit)| !permit.is_asked);
        held.map(|(holder, permit)| (*holder, left(permit.until, now))).collect()
    }

    fn remove(&mut self, key: &str, holder: Holder, is_meant: impl Fn(&KnownPermit) -> bool) {
        let Some(permits) = self.keys.get_mut(key) else { return };
        if permits.all.get(&holder).is_some_and(is_meant) {
            permits.remove(holder);
            if permits.all.is_empty() {
                self.keys.swap_remove(key);
            }
            self.note(key, holder);
        }
    }

    /// Records that a permit changed, if the local state follows its key.
    fn note(&mut self, key: &str, holder: Holder) {
        // While the store decides, no key is followed.
        if !self.followed.is_empty()
            && let Some(changed) = self.followed.get_mut(key)
        {
            changed.insert(holder);
        }
    }

    /// Drops the permits of `key` that ended over [`KEPT`] ago, and the requests for one that no caller waits for.
    fn forget_ended(&mut self, key: &Arc<str>, now: Instant) {
        while let Some(holder) = self.keys.get(key).and_then(|permits| permits.ended(now)) {
            self.remove(key, holder, |_| true);
        }
    }

    /// Looks at the next [`LOOKS`] keys for permits that have ended. Returns whether there is room for one more key.
    fn make_room(&mut self, now: Instant) -> bool {
        for _ in 0..LOOKS {
            let Some((key, _)) = self.keys.get_index(self.next) else {
                self.next = 0;
                break;
            };
            let (key, before) = (key.clone(), self.keys.len());
            self.forget_ended(&key, now);
            // If the key was removed, the last key is in its place now.
            self.next += usize::from(self.keys.len() == before);
        }
        self.keys.len() < MAX_KEYS
    }
}

// === impl KeyPermits ===

impl KeyPermits {
    fn set(&mut self, holder: Holder, permit: KnownPermit) {
        // A request that asks again with a permit that it was notified of holds that permit.
        if permit.is_asked && self.all.get(&holder).is_some_and(|known| !known.is_asked) {
            return;
        }
        self.remove(holder);
        self.asked += usize::from(permit.is_asked);
        self.ends.insert((permit.forgotten(), holder));
        self.all.insert(holder, permit);
    }

    fn remove(&mut self, holder: Holder) {
        if let Some(permit) = self.all.remove(&holder) {
            self.asked -= usize::from(permit.is_asked);
            self.ends.remove(&(permit.forgotten(), holder));
        }
    }

    /// A permit that is to be forgotten by `now`.
    fn ended(&self, now: Instant) -> Option<Holder> {
        self.ends.first().filter(|(end, _)| *end <= now).map(|(_, holder)| *holder)
    }
}

// === impl KnownPermit ===

impl KnownPermit {
    fn forgotten(&self) -> Instant {
        self.until + if self.is_asked { Duration::ZERO } else { KEPT }
    }
}

/// From `now` until `until`, in µs; below 0 if that is past.
fn left(until: Instant, now: Instant) -> Micros {
    let micros = |span: Duration| i64::try_from(span.as_micros()).unwrap_or(i64::MAX);
    if until > now { micros(until - now) } else { -micros(now - until) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::advance;

    fn ticket(number: i64) -> Ticket {
        Ticket { gateway: 1, number, deadline: 0 }
    }

    fn key(number: usize) -> Arc<str> {
        format!("p:{{k}}:C:k:{number}").into()
    }

    /// A client that comes once under each of many keys, and whose permits are never refunded (those of `POST
    /// /limiters/NAME/acquire`, say), leaves no key for longer than its lease and a minute.
    #[tokio::test(start_paused = true)]
    async fn a_key_whose_permits_have_ended_makes_room() {
        let known = KnownPermits::default();
        for number in 0..40_000 {
            known.hold(&key(number), Some(1_000_000), ticket(1), Instant::now());
            advance(Duration::from_millis(10)).await;
        }
        // 61 s at 100 a second are 6,100 keys that may still count.
        assert!((6_100..9_000).contains(&known.keys()), "{}", known.keys());
    }

    #[tokio::test(start_paused = true)]
    async fn a_refunded_key_is_removed() {
        let known = KnownPermits::default();
        known.hold(&key(1), Some(1_000_000), ticket(1), Instant::now());
        known.refunded(&key(1), ticket(1));
        assert_eq!(known.keys(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_pending_request_counts_until_its_caller_stops_waiting() {
        let (known, now) = (KnownPermits::default(), Instant::now());
        let permit = KnownPermit { until: now + Duration::from_millis(50), is_asked: true };
        (0..3).for_each(|number| known.set(&key(1), ticket(number), permit));
        known.hold(&key(1), Some(1_000_000), ticket(0), now);
        assert_eq!((known.asked(&key(1)), known.held(&key(1)).len()), (2, 1));
        advance(Duration::from_millis(50)).await;
        assert_eq!((known.asked(&key(1)), known.held(&key(1)).len()), (0, 1));
    }

    /// With 10,000 permits under way, an outage would otherwise look at all of them for each decision.
    #[tokio::test(start_paused = true)]
    async fn only_permits_that_changed_are_looked_at() {
        let (known, now) = (KnownPermits::default(), Instant::now());
        for number in 0..10_000 {
            known.hold(&key(1), Some(1_000_000), ticket(number), now);
        }
        assert_eq!(known.follow(&key(1)).len(), 10_000);
        assert!(known.changes(&key(1), std::iter::empty()).is_empty());
        known.refunded(&key(1), ticket(7));
        known.hold(&key(1), Some(2_000_000), ticket(8), now);
        let changed = known.changes(&key(1), [ticket(9).holder()].into_iter());
        let expected = [(7, None), (8, Some(2_000_000)), (9, Some(1_000_000))]
            .map(|(number, left)| (ticket(number).holder(), left));
        assert_eq!(changed, BTreeMap::from(expected));
        assert!(known.changes(&key(1), std::iter::empty()).is_empty());
        advance(Duration::from_secs(61)).await;
        let ended = known.changes(&key(1), std::iter::empty());
        assert_eq!((ended.len(), ended.values().flatten().count()), (9_998, 0));
        known.unfollow(&key(1));
        assert_eq!(known.keys(), 1);
    }
}
