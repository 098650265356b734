//! Slots that have become free before the slots of waiting calls. A call that leaves refunds its slot, which would stay
//! unused although others wait: 80 of 100 waiting calls that leave at 20/s would leave 4 s without a call.
//!
//! An *opening* is such a slot: the state of a limiter and an instant. It concerns the first call whose own slot comes
//! later, which asks the store again shortly before the opening. Its old slot is the next opening. So a slot
//! costs one further call of the store as a rule, and a few at most, however many calls wait. The table grants nothing: the store decides.

use ahash::RandomState;
use parking_lot::Mutex;
use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

/// A call moves up only if it comes at least this much earlier. Instants are known here to a few ms, because an answer of
/// the store takes time.
pub(crate) const LEAST_GAIN: Duration = Duration::from_millis(5);
/// How many calls find an opening unusable before it is left to newcomers. An opening of one permit is of no use to calls
/// that cost 5, and an opening of one limiter does not help a call that another limiter delays.
const MOST_REFUSALS: u8 = 4;
/// How long an opening without a call is kept. A call whose slot the store has promised already may enter only now, because
/// the answer was under way.
const UNCLAIMED_FOR: Duration = Duration::from_secs(1);
/// How many of them are kept. A further one takes the place of the oldest.
const MOST_UNCLAIMED: usize = 64;

/// The openings of all states in this process, with the calls that may use them. All of its workers share them.
#[derive(Debug, Default)]
pub struct Openings {
    table: Mutex<OpeningTable>,
    next: AtomicU64,
}

#[derive(Debug, Default)]
struct OpeningTable {
    /// As many calls as wait in this process; the gateway bounds them by `max_waiting`.
    calls: HashMap<Arc<str>, CallsBySlot, RandomState>,
    /// The openings that no call has been offered, the oldest first.
    unclaimed: VecDeque<Unclaimed>,
}

/// An opening that no call has been offered.
#[derive(Debug)]
struct Unclaimed {
    key: Box<str>,
    opening: Opening,
    until: Instant,
}

/// A slot that has become free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opening {
    /// The instant of the slot; it may be past.
    pub at: Instant,
    /// The number of calls for which the store had no grant there.
    refusals: u8,
}

type CallsBySlot = BTreeMap<(Instant, u64), MovableCall>;

/// A call that waits for its slot.
#[derive(Debug)]
struct MovableCall {
    /// The opening for which it will ask.
    opening: Option<Opening>,
    notify: Arc<Notify>,
}

/// The place of one call among those that may move up, until it is dropped.
#[derive(Debug)]
pub(crate) struct MovablePlace<'a> {
    openings: &'a Openings,
    key: Arc<str>,
    at: (Instant, u64),
    notify: Arc<Notify>,
}

// === impl Opening ===

impl Opening {
    /// A slot that has become free at the instant `at`.
    pub fn new(at: Instant) -> Self {
        Self { at, refusals: 0 }
    }

    /// The same opening after the store had no grant there for a call; `None` when enough calls have asked.
    pub(crate) fn refused(self) -> Option<Self> {
        let refusals = self.refusals + 1;
        (refusals < MOST_REFUSALS).then_some(Self { refusals, ..self })
    }
}

// === impl Openings ===

impl Openings {
    /// Enters a call whose slot of the state `key` comes at `at`.
    pub(crate) fn enter(&self, key: &Arc<str>, at: Instant) -> MovablePlace<'_> {
        let at = (at, self.next.fetch_add(1, Relaxed));
        let notify = Arc::new(Notify::new());
        let call = MovableCall { opening: None, notify: notify.clone() };
        let mut table = self.table.lock();
        table.calls.entry(key.clone()).or_default().insert(at, call);
        if let Some(opening) = table.claim(key) {
            table.offer(key, opening, opening.at, 1);
        }
        drop(table);
        MovablePlace { openings: self, key: key.clone(), at, notify }
    }

    /// Records that a slot of the state `key` has become free. The first call of this process whose slot comes later will
    /// ask for it.
    pub fn opened(&self, key: &str, opening: Opening) {
        self.offer(key, opening, opening.at, 1);
    }

    /// Offers an opening to the first `count` calls whose slots come after both the opening and `after`. A call that will
    /// ask for an earlier opening is one of these: the answer to it says when the next slot is free.
    pub(crate) fn offer(&self, key: &str, opening: Opening, after: Instant, count: usize) {
        self.table.lock().offer(key, opening, after, count);
    }
}

// === impl OpeningTable ===

impl OpeningTable {
    fn offer(&mut self, key: &str, opening: Opening, after: Instant, count: usize) {
        let first = after.max(opening.at + LEAST_GAIN);
        let mut is_claimed = false;
        if let Some(calls) = self.calls.get_mut(key) {
            for (_, call) in calls.range_mut((first, 0)..).take(count) {
                is_claimed = true;
                if call.opening.is_none_or(|known| opening.at < known.at) {
                    call.opening = Some(opening);
                    call.notify.notify_one();
                }
            }
        }
        if !is_claimed && opening.refusals == 0 {
            let earlier = self.claim(key).filter(|earlier| earlier.at < opening.at);
            if self.unclaimed.len() >= MOST_UNCLAIMED {
                self.unclaimed.pop_front();
            }
            let (opening, until) = (earlier.unwrap_or(opening), Instant::now() + UNCLAIMED_FOR);
            self.unclaimed.push_back(Unclaimed { key: key.into(), opening, until });
        }
    }

    /// Takes the opening of a state that no call has been offered.
    fn claim(&mut self, key: &str) -> Option<Opening> {
        if self.unclaimed.is_empty() {
            return None;
        }
        let now = Instant::now();
        self.unclaimed.retain(|unclaimed| unclaimed.until > now);
        let i = self.unclaimed.iter().position(|unclaimed| *unclaimed.key == *key)?;
        self.unclaimed.remove(i).map(|unclaimed| unclaimed.opening)
    }
}

// === impl MovablePlace ===

impl MovablePlace<'_> {
    /// Resolves `lead` before an opening that the call should ask for.
    pub(crate) async fn near_opening(&self, lead: Duration) -> Opening {
        loop {
            let Some(opening) = self.opening() else {
                self.notify.notified().await;
                continue;
            };
            if opening.at.saturating_duration_since(Instant::now()) <= lead {
                return self.take().unwrap_or(opening);
            }
            tokio::select! {
                biased;
                () = self.notify.notified() => {}
                () = sleep_until(opening.at - lead) => {}
            }
        }
    }

    fn opening(&self) -> Option<Opening> {
        self.openings.table.lock().calls.get(&self.key)?.get(&self.at)?.opening
    }

    fn take(&self) -> Option<Opening> {
        self.openings.table.lock().calls.get_mut(&self.key)?.get_mut(&self.at)?.opening.take()
    }
}

/// A call that leaves before it has asked offers its opening to the next one.
impl Drop for MovablePlace<'_> {
    fn drop(&mut self) {
        let opening = {
            let mut table = self.openings.table.lock();
            let Some(calls) = table.calls.get_mut(&self.key) else { return };
            let opening = calls.remove(&self.at).and_then(|call| call.opening);
            if calls.is_empty() {
                table.calls.remove(&self.key);
            }
            opening
        };
        if let Some(opening) = opening {
            self.openings.opened(&self.key, opening);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "paceway:{a}:T:a";

    fn enter<'o>(openings: &'o Openings, start: Instant, slots: &[u64]) -> Vec<MovablePlace<'o>> {
        let at = |ms: &u64| openings.enter(&KEY.into(), start + Duration::from_millis(*ms));
        slots.iter().map(at).collect()
    }

    fn offered(places: &[MovablePlace<'_>], start: Instant) -> Vec<Option<u128>> {
        let since = |opening: Opening| (opening.at - start).as_millis();
        places.iter().map(|place| place.opening().map(since)).collect()
    }

    fn open(openings: &Openings, start: Instant, ms: u64) {
        openings.opened(KEY, Opening::new(start + Duration::from_millis(ms)));
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_call_after_an_opening_wakes_shortly_before_it() {
        let (openings, start) = (Openings::default(), Instant::now());
        let mut places = enter(&openings, start, &[100, 300, 500]);
        open(&openings, start, 200);
        open(&openings, start, 220);
        assert_eq!(offered(&places, start), [None, Some(200), None], "once for both");
        let opening = places[1].near_opening(Duration::from_millis(50)).await;
        assert_eq!((opening.at - start).as_millis(), 200);
        assert_eq!(start.elapsed().as_millis(), 150);
        open(&openings, start, 210);
        drop(places.remove(1));
        assert_eq!(offered(&places, start), [None, Some(210)], "who leaves offers it to the next");
        open(&openings, start, 496);
        drop(places);
        assert!(openings.table.lock().calls.is_empty());
    }

    /// The message about an opening can come before the answer by which a call of this process waits.
    #[tokio::test(start_paused = true)]
    async fn an_opening_waits_for_a_call_that_is_about_to_enter() {
        let (openings, start) = (Openings::default(), Instant::now());
        open(&openings, start, 10);
        let places = enter(&openings, start, &[5_000, 6_000]);
        assert_eq!(offered(&places, start), [Some(10), None], "once");
        let places = places.into_iter().rev().collect::<Vec<_>>();
        drop(places);
        tokio::time::sleep(UNCLAIMED_FOR).await;
        assert_eq!(offered(&enter(&openings, start, &[9_000]), start), [None], "not for long");
    }

    #[tokio::test(start_paused = true)]
    async fn an_earlier_opening_replaces_a_later_one() {
        let (openings, start) = (Openings::default(), Instant::now());
        let places = enter(&openings, start, &[1_000, 2_000]);
        open(&openings, start, 900);
        open(&openings, start, 400);
        assert_eq!(offered(&places, start), [Some(400), None]);
        openings.offer(KEY, Opening::new(start), start, 2);
        assert_eq!(offered(&places, start), [Some(0), Some(0)]);
        let passed = Opening::new(start + Duration::from_millis(1_500));
        openings.offer(KEY, passed, start + Duration::from_millis(2_001), 1);
        assert_eq!(offered(&places, start), [Some(0), Some(0)], "no call is later");
        assert_eq!(
            passed
                .refused()
                .and_then(Opening::refused)
                .and_then(Opening::refused)
                .and_then(Opening::refused),
            None
        );
    }
}
