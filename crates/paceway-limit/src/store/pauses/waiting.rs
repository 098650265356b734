//! The calls that wait for the instants of their grants, by the keys of their states, so that a pause wakes those calls
//! alone that it concerns. A pause of one key wakes no call of another one, and none whose instant comes after the pause.

use crate::store::Check;
use ahash::RandomState;
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};
use tokio::{sync::Notify, time::Instant};

type Number = u64;
type Waiting = HashMap<Arc<str>, BTreeMap<(Instant, Number), WaitingCall>, RandomState>;

#[derive(Debug)]
struct WaitingCall {
    notify: Arc<Notify>,
    permits: i64,
}

/// As many as wait in this process, which the `max_waiting` of the routes bounds.
#[derive(Debug, Default)]
pub(super) struct WaitingCalls {
    all: Mutex<Waiting>,
    next: AtomicU64,
}

/// The calls that wait for the instants of their grants at one state, such as 3 calls for the key `acme`, the last of which is
/// due in 2 s.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitingCount {
    /// The name of the state.
    pub state: Arc<str>,
    /// The number of calls.
    pub calls: usize,
    /// The instant of the last of these calls.
    pub last: Instant,
}

/// The place of one call, until it is dropped.
#[derive(Debug)]
pub(crate) struct WaitingPlace<'a> {
    calls: &'a WaitingCalls,
    keys: SmallVec<[Arc<str>; 2]>,
    at: (Instant, Number),
    notify: Arc<Notify>,
}

// === impl WaitingCalls ===

impl WaitingCalls {
    /// Enters a call that waits until `at` for the limiters of `checks` that enforce.
    pub(super) fn enter(&self, checks: &[Check], at: Instant) -> WaitingPlace<'_> {
        let enforce = checks.iter().filter(|check| check.enforce);
        let at = (at, self.next.fetch_add(1, Relaxed));
        let notify = Arc::new(Notify::new());
        let mut all = self.all.lock();
        let mut keys: SmallVec<[Arc<str>; 2]> = SmallVec::new();
        for check in enforce {
            let call = WaitingCall { notify: notify.clone(), permits: check.cost };
            all.entry(check.key.clone()).or_default().insert(at, call);
            keys.push(check.key.clone());
        }
        drop(all);
        WaitingPlace { calls: self, keys, at, notify }
    }

    /// How many calls wait for each state, and until when.
    pub(super) fn counts(&self) -> Vec<WaitingCount> {
        let all = self.all.lock();
        let count = |(state, calls): (&Arc<str>, &BTreeMap<(Instant, Number), _>)| {
            let (last, _) = *calls.last_key_value()?.0;
            Some(WaitingCount { state: state.clone(), calls: calls.len(), last })
        };
        all.iter().filter_map(count).collect()
    }

    /// The permits of `key` for whose instants before `until` calls wait.
    pub(super) fn permits(&self, key: &str, until: Instant) -> i64 {
        let all = self.all.lock();
        let calls = all.get(key).into_iter().flat_map(|calls| calls.range(..(until, 0)));
        calls.fold(0, |sum, (_, call)| sum.saturating_add(call.permits))
    }

    /// Wakes the calls of `key` whose instants come before `until`, in the order of these instants.
    pub(super) fn wake(&self, key: &str, until: Instant) {
        if let Some(calls) = self.all.lock().get(key) {
            calls.range(..(until, 0)).for_each(|(_, call)| call.notify.notify_one());
        }
    }
}

#[cfg(test)]
impl WaitingCalls {
    pub(super) fn is_empty(&self) -> bool {
        self.all.lock().is_empty()
    }
}

// === impl WaitingPlace ===

impl WaitingPlace<'_> {
    /// Resolves when a pause of one of its limiters was learned that covers its instant.
    pub(super) async fn woken(&self) {
        self.notify.notified().await;
    }
}

impl Drop for WaitingPlace<'_> {
    fn drop(&mut self) {
        let mut all = self.calls.all.lock();
        for key in &self.keys {
            if let Some(calls) = all.get_mut(key) {
                calls.remove(&self.at);
                if calls.is_empty() {
                    all.remove(key);
                }
            }
        }
    }
}
