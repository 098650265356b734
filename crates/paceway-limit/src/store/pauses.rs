//! The pauses of limiters that this process knows, with the instant at which each ends on the local clock. The store decides
//! by its own states; the table stops calls whose permits the store granted before the pause.

mod covering;
mod events;
mod holds;
mod marks;
mod table;
#[cfg(any(test, feature = "redis"))]
mod unheard;
mod waiting;

pub use covering::{Covering, Doubt, GrantedSlot};
pub use events::{PauseEvent, PauseEvents};
pub use holds::LimiterHold;
pub use marks::PauseVersion;
pub use table::KnownPause;
pub use waiting::WaitingCount;

use super::{Check, Openings, Pause};
use crate::algorithm::Micros;
use events::Events;
use marks::Marks;
use parking_lot::{Mutex, RwLock, RwLockWriteGuard};
use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};
use table::{PauseTable, left_until, span};
use tokio::{
    sync::{Notify, Semaphore, SemaphorePermit},
    time::Instant,
};
use waiting::WaitingCalls;

/// No pause is longer than a year, so that its end is an instant that the clock can count.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);
/// The calls of a process that ask again at one time because of a pause. 10,000 at once would take the time of all others, and with
/// more than fit into one call of the store beside newcomers some would have their answers after the time-out.
const AT_ONCE: usize = 64;

/// The pauses that a process knows. All of its workers share them.
#[derive(Debug)]
pub struct Pauses {
    /// How many there are; every call reads it.
    count: AtomicUsize,
    marks: Marks,
    table: RwLock<PauseTable>,
    waiting: WaitingCalls,
    events: Events,
    turns: Semaphore,
    /// Notified when the holds of operators change.
    released: Notify,
    openings: Openings,
    /// The holders of permits that a pause takes from them.
    keepers: Mutex<Vec<Weak<dyn KeepsPermits>>>,
    /// Whether the store's messages about pauses arrive.
    hears: AtomicBool,
}

/// A holder of permits that the store has granted for requests that come later.
pub(super) trait KeepsPermits: Send + Sync {
    /// Drops the permits of the state `key`; `None`: all.
    fn drop_permits(&self, key: Option<&str>);
}

/// How a pause is learned.
#[derive(Debug, Clone, Copy)]
struct Telling {
    /// The store says so.
    tells: bool,
    /// When it was asked, if it is no message.
    asked: Option<Instant>,
    /// The pause lowers the rate of the limiter.
    falls: bool,
}

/// The consequences of a pause that is new.
struct Learned {
    event: Option<PauseEvent>,
    /// It has lowered the rate of its limiter.
    falls: bool,
}

// === impl Pauses ===

impl Default for Pauses {
    fn default() -> Self {
        Self {
            count: AtomicUsize::new(0),
            marks: Marks::default(),
            table: RwLock::default(),
            waiting: WaitingCalls::default(),
            events: Events::default(),
            turns: Semaphore::new(AT_ONCE),
            released: Notify::new(),
            openings: Openings::default(),
            keepers: Mutex::default(),
            hears: AtomicBool::new(true),
        }
    }
}

impl Pauses {
    /// Whether no pause is known.
    pub fn is_empty(&self) -> bool {
        self.count.load(SeqCst) == 0
    }

    /// The pauses that are known now. A call reads it before it asks the store.
    pub fn version(&self) -> PauseVersion {
        self.marks.version()
    }

    /// Records that the store has paused the state `key` for `left` µs from now on because of an answer with `status` (0: not
    /// known). A pause is never shortened. The calls that wait for an instant within it are woken, the earliest first.
    pub fn learn(&self, key: &str, left: Micros, status: u16) {
        self.learn_until(key, Instant::now() + span(left), status, Telling::STORE);
    }

    /// The same for a pause that lowers the rate: all calls that wait are woken, once.
    pub fn learn_fall(&self, key: &str, left: Micros, status: u16) {
        let telling = Telling { falls: true, ..Telling::STORE };
        self.learn_until(key, Instant::now() + span(left), status, telling);
    }

    /// The same for a pause of which the store does not know yet: this process has received the answer that causes it.
    pub fn learn_first(&self, check: &Check, pause: Pause) {
        let telling = Telling { tells: false, asked: None, falls: pause.unit(check) > 0 };
        let until = Instant::now() + span(pause.span);
        self.learn_until(&check.key, until, pause.status, telling);
    }

    /// The same for a pause of which `left` µs were left at some instant since `asked`: when a call of the store was sent,
    /// say. The end that is learned is never later than the true one.
    pub fn learn_since(&self, key: &str, asked: Instant, left: Micros, status: u16) {
        let telling = Telling { asked: Some(asked), ..Telling::STORE };
        self.learn_until(key, asked + span(left), status, telling);
    }

    fn learn_until(&self, key: &str, until: Instant, status: u16, telling: Telling) {
        let is_old = |known| telling.is_in(known, until, status);
        // Every reply of a paused limiter says so.
        if until <= Instant::now() || self.get(key).is_some_and(is_old) {
            return;
        }
        let Some(learned) = self.enter(key, until, status, telling) else { return };
        if learned.falls {
            self.recall(key);
        } else {
            self.waiting.wake(key, until);
        }
        if let Some(event) = learned.event {
            self.events.say(event);
        }
    }

    /// Enters a pause into the table; `None` if that says nothing new.
    fn enter(&self, key: &str, until: Instant, status: u16, telling: Telling) -> Option<Learned> {
        let Telling { tells, asked, falls } = telling;
        let now = Instant::now();
        let mut table = self.table.write();
        if asked.is_some_and(|asked| table.outdated.is_some_and(|since| asked <= since)) {
            return None;
        }
        let before = table.all.get_key_value(key).map(|(key, known)| (key.clone(), *known));
        let (key, before) = match before {
            Some((_, known)) if telling.is_in(known, until, status) => return None,
            Some((key, known)) => (key, Some(known).filter(|known| known.until > now)),
            None => (key.into(), None),
        };
        let known = before.map_or(0, |known| known.status);
        let status = if status == 0 { known } else { status };
        let grows = before.is_none_or(|known| known.until < until);
        let is_told = match before {
            Some(known) if !grows => known.is_told || tells && known.ends_by(until),
            _ => tells,
        };
        let whole = before.map_or(0, |known| known.whole).max(left_until(until));
        let fell = before.is_some_and(|known| known.fell);
        // A call that was asked before the store knew of the pause may have been decided without it.
        let is_news = grows || before.is_some_and(|known| known.is_told != is_told);
        let (until, version) = match before {
            Some(known) if !is_news => (known.until, known.version),
            before => {
                // Before a request can know of the pause: none that does is served from these permits.
                self.drop_permits(Some(&key));
                let until = before.map_or(until, |known| known.until.max(until));
                (until, self.marks.next())
            }
        };
        let (fallen, doubted) = (fell || falls, None);
        let known = KnownPause { until, status, whole, version, fell: fallen, is_told, doubted };
        table.put(&key, known);
        self.count.store(table.count(), SeqCst);
        let event = match before {
            None => Some(PauseEvent::Began { key, until, status }),
            Some(_) if grows => Some(PauseEvent::Grew { key, until, status }),
            Some(_) => None,
        };
        Some(Learned { event, falls: falls && !fell })
    }

    /// Takes back the slots of `key` that were granted before now: the calls that wait for them ask again.
    fn recall(&self, key: &str) {
        self.marks.recall(key);
        self.drop_permits(Some(key));
        self.waiting.wake(key, Instant::now() + LONGEST);
    }

    /// Records that a count of permits has begun for `key` which ends in `span` µs. Calls that wait for slots within that time ask
    /// again.
    pub fn learn_count(&self, key: &str, span: Micros) {
        self.drop_permits(Some(key));
        if self.permits_awaited(key, span) > 0 {
            self.recall(key);
        } else {
            // Calls that have no answer yet wait for no slot yet.
            self.marks.recall_within(key, self::span(span));
        }
    }

    /// The permits of `key` whose slots in the next `span` µs calls wait for.
    pub(crate) fn permits_awaited(&self, key: &str, span: Micros) -> i64 {
        self.waiting.permits(key, Instant::now() + self::span(span))
    }

    /// From now on `keeper` drops permits when a pause is learned, or a limiter is reset.
    pub(super) fn tell(&self, keeper: Weak<dyn KeepsPermits>) {
        let mut keepers = self.keepers.lock();
        keepers.retain(|keeper| keeper.strong_count() > 0);
        keepers.push(keeper);
    }

    /// Drops the permits that workers of this process keep for `key`, or for all keys.
    pub(super) fn drop_permits(&self, key: Option<&str>) {
        let keepers = self.keepers.lock();
        keepers.iter().filter_map(Weak::upgrade).for_each(|keeper| keeper.drop_permits(key));
    }

    /// Whether the store's messages about pauses arrive, as far as this process knows.
    pub(super) fn hears(&self) -> bool {
        self.hears.load(SeqCst)
    }

    /// Forgets the pause of `key`, because an operator has ended it or has reset the limiter. The calls that wait for it are
    /// woken, the earliest first: newcomers would come before them.
    pub fn end(&self, key: &str) {
        self.end_in(self.table.write(), key);
    }

    fn end_in(&self, mut table: RwLockWriteGuard<'_, PauseTable>, key: &str) {
        table.outdated = Some(Instant::now());
        let gone = table.remove(key);
        self.count.store(table.count(), SeqCst);
        drop(table);
        if let Some((key, known)) = gone {
            self.events.say(PauseEvent::Ended { key, is_over: known.until <= Instant::now() });
        }
        self.marks.free(key);
        self.waiting.wake(key, Instant::now() + LONGEST);
    }

    /// Whether a limiter of `checks` that enforces was freed since the pauses of `asked` were known: its pause has ended before
    /// its time, or its state is as if it were unused.
    pub(crate) fn freed_since(&self, checks: &[Check], asked: PauseVersion) -> bool {
        checks.iter().any(|check| check.enforce && self.marks.is_freed_since(&check.key, asked))
    }

    /// The pause of the state `key`, if there is one.
    pub fn get(&self, key: &str) -> Option<KnownPause> {
        if self.is_empty() {
            return None;
        }
        self.forget_ended();
        self.table.read().all.get(key).copied()
    }

    /// The end of the pauses of those limiters of a request that enforce; the last one of several.
    pub fn of(&self, checks: &[Check]) -> Option<Instant> {
        let pauses = checks.iter().filter(|check| check.enforce).map(|check| self.get(&check.key));
        pauses.flatten().map(|known| known.until).max()
    }

    /// All pauses, with the keys of their states, in the order of their ends.
    pub fn all(&self) -> Vec<(Arc<str>, KnownPause)> {
        self.forget_ended();
        let table = self.table.read();
        let known = |key: &Arc<str>| table.all.get(key).map(|known| (key.clone(), *known));
        table.ends.iter().filter_map(|(_, key)| known(key)).collect()
    }

    /// The states for whose grants calls of this process wait, with the number of these calls. Calls that wait for a
    /// concurrency permit alone are not among them.
    pub fn waiting(&self) -> Vec<WaitingCount> {
        self.waiting.counts()
    }

    /// The slots that have become free before those of waiting calls. The messages that tell of pauses also tell of them.
    pub fn openings(&self) -> &Openings {
        &self.openings
    }

    /// The begins and the ends of pauses from now on.
    pub fn events(self: &Arc<Self>) -> PauseEvents {
        PauseEvents::new(self)
    }

    /// Resolves when a call may ask again because of a pause. Calls do so in the order in which they came.
    pub async fn turn(&self) -> Option<SemaphorePermit<'_>> {
        // Nothing closes it.
        self.turns.acquire().await.ok()
    }

    /// When the first pause ends.
    fn first_end(&self) -> Option<Instant> {
        self.table.read().ends.first().map(|(until, _)| *until)
    }

    /// Removes the pauses that are over.
    fn forget_ended(&self) {
        let now = Instant::now();
        if self.first_end().is_none_or(|end| end > now) {
            return;
        }
        let mut ended = Vec::new();
        {
            let mut table = self.table.write();
            while let Some((until, key)) = table.ends.first()
                && *until <= now
            {
                let key = key.clone();
                ended.extend(table.remove(&key));
            }
            self.count.store(table.count(), SeqCst);
        }
        for (key, _) in ended {
            self.events.say(PauseEvent::Ended { key, is_over: true });
        }
    }
}

// === impl Telling ===

impl Telling {
    /// By a message of the store.
    const STORE: Self = Self { tells: true, asked: None, falls: false };

    /// Whether `known` says all that a pause until then says.
    fn is_in(self, known: KnownPause, until: Instant, status: u16) -> bool {
        known.covers(until, status)
            && (known.is_told || !(self.tells && known.ends_by(until)))
            && (!self.falls || known.fell)
    }
}

#[cfg(test)]
mod tests;
