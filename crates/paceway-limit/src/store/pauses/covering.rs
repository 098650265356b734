//! Whether a pause covers the instant of a grant, so that the call must not be made then: the store granted it before the
//! pause, or has lost the pause. Asks no store.

use super::{KnownPause, PauseVersion, Pauses, left_until, waiting::WaitingPlace};
use crate::{
    algorithm::Micros,
    store::{Check, Pause},
};
use std::time::Duration;
use tokio::time::Instant;

/// A pause is known within 100 ms, and its end to 100 ms: messages and replies take time.
pub(super) const KNOWN_WITHIN: Duration = Duration::from_millis(100);

/// The pause of a limiter that covers the instant of a grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Covering {
    /// Index of the limiter's check.
    pub index: usize,
    /// The end of the pause.
    pub until: Instant,
    /// See [`KnownPause::status`].
    pub status: u16,
    /// How long it takes as a whole.
    whole: Micros,
    /// The store was asked after the pause was learned, so it has lost the pause, or an operator has ended it.
    pub is_lost: bool,
    /// An operator holds the limiter, of which the store does not know.
    pub is_held: bool,
}

/// The slot of a grant, which a pause may cover.
#[derive(Debug, Clone, Copy)]
pub struct GrantedSlot {
    /// The instant at which the call may be made.
    pub at: Instant,
    /// The pauses that were known when the store was asked.
    pub asked: PauseVersion,
    /// The instant of the decision.
    pub decided: Instant,
    /// The decision said that a limiter is paused, so it grants nothing within pauses that were known when the store was asked.
    pub is_behind: bool,
}

/// The next step of a call whose store does not know of a pause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doubt {
    /// It waits until this instant: the pause may be on its way to the store.
    Wait(Instant),
    /// It writes the pause to the store again; no other call does that within the next 100 ms.
    Restore,
    /// It asks again: there is another pause by now, or none. One that the store knew, and does not know although it has lost
    /// no states, was ended by an operator; the message may come later, or never.
    Ask,
}

// === impl Covering ===

impl Covering {
    /// The hold of an operator, which no answer has caused.
    pub(super) fn of_hold(index: usize, until: Instant) -> Self {
        Self { index, until, status: 0, whole: 0, is_lost: false, is_held: true }
    }

    /// How much of it is left, in µs.
    pub fn left(&self) -> Micros {
        left_until(self.until)
    }

    /// The same pause for a store.
    pub fn pause(&self) -> Pause {
        Pause { span: self.left(), whole: self.whole, status: self.status, ago: 0 }
    }
}

// === impl Pauses ===

impl Pauses {
    /// Whether no pause is known, and no slot was taken back since the pauses of `asked` were known. Each call looks.
    #[inline]
    pub fn is_quiet_since(&self, asked: PauseVersion) -> bool {
        self.is_empty() && self.marks.is_quiet_since(asked)
    }

    /// The pause of one of `checks` that covers the slot of a grant; `None` if the call may be made then.
    pub fn covering(&self, checks: &[Check], slot: GrantedSlot) -> Option<Covering> {
        let GrantedSlot { at, asked, decided, is_behind } = slot;
        if self.is_quiet_since(asked) {
            return None;
        }
        let covers = |(index, check): (usize, &Check)| {
            let known = self.get(&check.key).filter(|known| check.enforce && at < known.until)?;
            let (KnownPause { until, status, version, is_told, .. }, Pause { whole, .. }) =
                (known, known.pause());
            let is_lost = version <= asked.0;
            // The store's clock decides on the last 100 ms, which is how well the end is known here, once it knows of the
            // pause. A decision that is older would have said that the limiter is paused.
            let is_last = || until.saturating_duration_since(decided) <= KNOWN_WITHIN;
            let is_true = is_lost && (is_behind || is_told && is_last());
            (!is_true).then_some(Covering { index, until, status, whole, is_lost, is_held: false })
        };
        let held = self.held(checks).filter(|held| at < held.until);
        let paused = checks.iter().enumerate().filter_map(covers);
        let recalled = |(index, check): (usize, &Check)| {
            let is_recalled = check.enforce && self.marks.is_recalled(check, slot);
            let hold = Covering::of_hold(index, Instant::now());
            is_recalled.then_some(Covering { is_held: false, ..hold })
        };
        let recalled = checks.iter().enumerate().filter_map(recalled);
        paused.chain(recalled).chain(held).max_by_key(|covering| covering.until)
    }

    /// Counts a call among those that wait until `at`, for as long as it keeps the place: while it asks for an earlier instant, say.
    pub(crate) fn count_waiting(&self, checks: &[Check], at: Instant) -> WaitingPlace<'_> {
        self.waiting.enter(checks, at)
    }

    /// Resolves when a pause is learned that covers the slot, see [`covering`](Self::covering); with `None` when a limiter
    /// was freed that may be so since the pauses of `seen` were known, if there are any.
    pub async fn covered(
        &self,
        checks: &[Check],
        slot: GrantedSlot,
        seen: Option<PauseVersion>,
    ) -> Option<Covering> {
        let place = self.waiting.enter(checks, slot.at);
        loop {
            let covering = self.covering(checks, slot);
            if covering.is_some() || seen.is_some_and(|seen| self.freed_since(checks, seen)) {
                return covering;
            }
            place.woken().await;
        }
    }

    /// Notes that the store decided as if `key` were not paused, although it was asked when the pauses of `asked` were known, and
    /// says what the call does next.
    pub fn doubt(&self, key: &str, asked: PauseVersion) -> Doubt {
        let now = Instant::now();
        let mut table = self.table.write();
        let known = table.all.get_mut(key).filter(|known| known.version <= asked.0);
        let Some(known) = known else { return Doubt::Ask };
        if known.is_told {
            self.end_in(table, key);
            return Doubt::Ask;
        }
        let since = *known.doubted.get_or_insert(now);
        if now.duration_since(since) < KNOWN_WITHIN {
            return Doubt::Wait(since + KNOWN_WITHIN);
        }
        known.doubted = Some(now);
        Doubt::Restore
    }
}
