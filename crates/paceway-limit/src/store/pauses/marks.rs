//! Numbers by which a call sees whether slots of a state have become free since it asked for its own, or its own was taken back. By a hash of the state: two states may share a number, and then calls ask once in vain.

use super::GrantedSlot;
use crate::store::Check;
use ahash::RandomState;
use std::{
    sync::atomic::{AtomicU64, Ordering::SeqCst},
    time::Duration,
};
use tokio::time::Instant;

/// The numbers of each kind.
const NUMBERS: usize = 256;

/// The pauses that a process knew at some moment, such as the moment at which a call asked the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct PauseVersion(pub(super) u64);

/// The numbers of the last events of each kind, by a hash of the state. Events are counted together with the pauses that are learned.
#[derive(Debug)]
pub(super) struct Marks {
    last: AtomicU64,
    /// The pause of the state has ended before its time, or it was reset.
    freed: [AtomicU64; NUMBERS],
    /// Slots of calls that asked before are none any more. And the last event of this kind or the next.
    recalled: [AtomicU64; NUMBERS],
    last_recall: AtomicU64,
    /// The same for slots that come before the end of a count, which is the second number, in µs since `began`.
    counted: [[AtomicU64; 2]; NUMBERS],
    began: Instant,
    hasher: RandomState,
}

// === impl Marks ===

impl Default for Marks {
    fn default() -> Self {
        Self {
            last: AtomicU64::new(0),
            freed: [const { AtomicU64::new(0) }; NUMBERS],
            recalled: [const { AtomicU64::new(0) }; NUMBERS],
            last_recall: AtomicU64::new(0),
            counted: [const { [const { AtomicU64::new(0) }; 2] }; NUMBERS],
            began: Instant::now(),
            hasher: RandomState::new(),
        }
    }
}

impl Marks {
    /// The events until now.
    pub(super) fn version(&self) -> PauseVersion {
        PauseVersion(self.last.load(SeqCst))
    }

    /// The number of a further event.
    pub(super) fn next(&self) -> u64 {
        self.last.fetch_add(1, SeqCst) + 1
    }

    fn of<'a, T>(&self, numbers: &'a [T; NUMBERS], key: &str) -> &'a T {
        &numbers[self.hasher.hash_one(key) as usize % NUMBERS]
    }

    /// Notes that earlier slots of a state may be free.
    pub(super) fn free(&self, key: &str) {
        self.of(&self.freed, key).store(self.next(), SeqCst);
    }

    /// Whether earlier slots of a state may have become free since.
    pub(super) fn is_freed_since(&self, key: &str, asked: PauseVersion) -> bool {
        self.of(&self.freed, key).load(SeqCst) > asked.0
    }

    /// Takes back the slots of a state that were asked for before now.
    pub(super) fn recall(&self, key: &str) {
        let version = self.next();
        self.of(&self.recalled, key).store(version, SeqCst);
        self.last_recall.store(version, SeqCst);
    }

    /// The same for the slots within `span` from now.
    pub(super) fn recall_within(&self, key: &str, span: Duration) {
        let version = self.next();
        let [last, ends] = self.of(&self.counted, key);
        ends.store((self.began.elapsed() + span).as_micros() as u64, SeqCst);
        last.store(version, SeqCst);
        self.last_recall.store(version, SeqCst);
    }

    /// Whether no slot at all was taken back since.
    #[inline]
    pub(super) fn is_quiet_since(&self, asked: PauseVersion) -> bool {
        self.last_recall.load(SeqCst) <= asked.0
    }

    /// Whether a slot of a limiter was taken back since it was asked for. A call that waits for its turn has asked long before its
    /// slot is decided.
    pub(super) fn is_recalled(&self, check: &Check, slot: GrantedSlot) -> bool {
        let GrantedSlot { at, asked, .. } = slot;
        let [last, ends] = self.of(&self.counted, &check.key);
        let is_counted = || {
            let ends = Duration::from_micros(ends.load(SeqCst));
            check.turn.is_none() && last.load(SeqCst) > asked.0 && at < self.began + ends
        };
        self.of(&self.recalled, &check.key).load(SeqCst) > asked.0 || is_counted()
    }
}
