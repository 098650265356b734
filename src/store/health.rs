//! How a store is, as all workers of this process together know it: a breaker, the gateways that live, and what was
//! last heard of levels. Never asks the store; who does tells it here.

mod known;

pub(super) use known::Holder;
pub use known::Known;

use super::{Check, Entry, Reply, StoreError, calls::Calls};
use crate::algorithm::{Grant, Micros, concurrency::Ticket};
use metrics::Gauge;
use parking_lot::Mutex;
use std::{
    hash::{BuildHasher, RandomState},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU32, Ordering::SeqCst},
    },
    time::Duration,
};
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};

/// So many calls of one worker in a row without an answer open the breaker.
const MISSES: u32 = 3;
/// The clock of decisions here when no store has ever said its own, µs since 1970: about the year 2001, as that of the
/// memory store.
const EPOCH: Micros = 1_000_000_000_000_000;

/// Whether the store is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Breaker {
    /// It is.
    Closed,
    /// It is not yet: some worker has had an answer, not all.
    HalfOpen,
    /// It is not.
    Open,
}

/// The metrics of a store's health.
#[derive(Clone)]
pub struct HealthMetrics {
    /// [`Breaker`] as a number.
    pub breaker: Gauge,
    /// How many gateways live.
    pub gateways: Gauge,
    /// 1 while the store answers.
    pub up: Gauge,
}

/// What is known of a store.
pub struct Health {
    /// Of this gateway on the store; another one for each start.
    pub id: Arc<str>,
    /// Read for each decision.
    breaker: AtomicU8,
    states: watch::Sender<Breaker>,
    /// Since when the store is away, and why.
    away: Mutex<Option<(Instant, StoreError)>>,
    gateways: AtomicI64,
    clock: Mutex<Clock>,
    members: Mutex<Vec<Weak<Member>>>,
    /// Told when there is something to do for who keeps the process: a member has an answer again, or a request was
    /// decided without the store.
    pub(super) wake: Notify,
    /// Levels and places.
    pub known: Known,
    metrics: HealthMetrics,
}

/// One worker's connection to the store.
pub struct Member {
    health: Arc<Health>,
    calls: Arc<Calls>,
    misses: AtomicU32,
    /// Calls without an answer are those of one server of several: each limiter that meets one is decided here, and the
    /// breaker stays as it is.
    is_one_of_many: bool,
    /// Since the breaker opened.
    answered: AtomicBool,
}

/// The store's clock, as far as it was heard.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clock {
    said: Micros,
    at: Instant,
}

// === impl Clock ===

impl Clock {
    pub(super) fn now(&self) -> Micros {
        self.said.saturating_add(i64::try_from(self.at.elapsed().as_micros()).unwrap_or(i64::MAX))
    }
}

// === impl Health ===

impl Health {
    /// Of a store that is taken for well.
    pub fn new(metrics: HealthMetrics) -> Arc<Self> {
        let id = format!("{:016x}", RandomState::new().hash_one(std::process::id()));
        metrics.breaker.set(0.0);
        metrics.gateways.set(1.0);
        Arc::new(Self {
            id: id.into(),
            breaker: AtomicU8::new(Breaker::Closed as u8),
            states: watch::Sender::new(Breaker::Closed),
            away: Mutex::default(),
            gateways: AtomicI64::new(1),
            clock: Mutex::new(Clock { said: EPOCH, at: Instant::now() }),
            members: Mutex::default(),
            wake: Notify::new(),
            known: Known::default(),
            metrics,
        })
    }

    /// A further connection, or those to several servers, whose waiters have tickets of `calls`.
    pub(super) fn join(self: &Arc<Self>, calls: Arc<Calls>, is_one_of_many: bool) -> Arc<Member> {
        let (health, misses, answered) = (self.clone(), AtomicU32::new(0), AtomicBool::new(false));
        let member = Arc::new(Member { health, calls, misses, is_one_of_many, answered });
        let mut members = self.members.lock();
        members.retain(|member| member.strong_count() > 0);
        members.push(Arc::downgrade(&member));
        member
    }

    /// Whether the store is asked.
    pub fn is_closed(&self) -> bool {
        self.breaker.load(SeqCst) == Breaker::Closed as u8
    }

    /// Whether the store is asked, about to be, or not.
    pub fn breaker(&self) -> Breaker {
        *self.states.borrow()
    }

    /// How long the store has been away, if it is, and why.
    pub fn away(&self) -> Option<(Duration, StoreError)> {
        self.away.lock().as_ref().map(|(since, why)| (since.elapsed(), why.clone()))
    }

    /// Gateways that lived when the store last said so, at least this one.
    pub fn gateways(&self) -> i64 {
        self.gateways.load(SeqCst)
    }

    /// The store has said how many gateways live, and perhaps the time.
    pub(super) fn counted(&self, gateways: i64, now: Option<Micros>) {
        let gateways = gateways.max(1);
        self.gateways.store(gateways, SeqCst);
        self.metrics.gateways.set(gateways as f64);
        if let Some(said) = now {
            *self.clock.lock() = Clock { said, at: Instant::now() };
        }
    }

    pub(super) fn clock(&self) -> Clock {
        *self.clock.lock()
    }

    /// Resolves when the breaker is not closed.
    pub(super) async fn opened(&self) {
        // Its sender is here: it does not end.
        drop(self.states.subscribe().wait_for(|state| *state != Breaker::Closed).await);
    }

    /// The store is away: from now on it is not asked.
    pub fn open(&self, why: &StoreError) {
        {
            let mut away = self.away.lock();
            if let Some((_, last)) = &mut *away {
                // Why it is still away can be more than why it went.
                if let StoreError::Away(_) = why {
                    last.clone_from(why);
                }
                return;
            }
            *away = Some((Instant::now(), why.clone()));
            for member in self.members() {
                member.answered.store(false, SeqCst);
            }
            self.set(Breaker::Open);
        }
        self.metrics.up.set(0.0);
        tracing::warn!(
            error = %why,
            gateways = self.gateways(),
            "the store is away: limiters decide by their `on_failure`"
        );
        // Who waits for a place there waits in vain.
        self.call_all();
    }

    /// The store is asked again; returns for how long it was not, if so.
    pub(super) fn close(&self) -> Option<Duration> {
        let mut away = self.away.lock();
        let (since, _) = away.take()?;
        for member in self.members() {
            member.misses.store(0, SeqCst);
        }
        self.set(Breaker::Closed);
        self.metrics.up.set(1.0);
        Some(since.elapsed())
    }

    /// Whether every worker has had an answer since the breaker opened.
    pub(super) fn all_answered(&self) -> bool {
        self.members().iter().all(|member| member.answered.load(SeqCst))
    }

    /// Wakes all who wait for a place.
    pub(super) fn call_all(&self) {
        self.members().iter().for_each(|member| member.calls.call_all());
    }

    fn members(&self) -> Vec<Arc<Member>> {
        self.members.lock().iter().filter_map(Weak::upgrade).collect()
    }

    fn set(&self, breaker: Breaker) {
        self.breaker.store(breaker as u8, SeqCst);
        self.metrics.breaker.set(f64::from(breaker as u8));
        self.states.send_replace(breaker);
    }
}

impl std::fmt::Debug for Health {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Health").field("breaker", &self.breaker()).finish_non_exhaustive()
    }
}

// === impl Member ===

impl Member {
    /// What became of a call; `late`: after it was taken for unanswered.
    pub(super) fn heard(
        &self,
        entries: &[Entry],
        answer: &Result<Vec<Reply>, StoreError>,
        late: bool,
    ) {
        match answer {
            Ok(replies) => {
                if !late {
                    self.misses.store(0, SeqCst);
                }
                self.health.known.hear(entries, replies);
            }
            Err(error) => self.missed(error),
        }
    }

    /// Whether the breaker tells of calls without an answer.
    pub(super) fn tells(&self) -> bool {
        !self.is_one_of_many
    }

    /// A call had no answer. One that was refused had: who refuses is there, and fast.
    pub(super) fn missed(&self, error: &StoreError) {
        match error {
            StoreError::Refused(_) | StoreError::Foreign(_) => {}
            _ if self.is_one_of_many => {}
            StoreError::NotConnected | StoreError::Away(_) | StoreError::Unreachable(_) => {
                self.health.open(error);
            }
            StoreError::Timeout | StoreError::Protocol => {
                if self.misses.fetch_add(1, SeqCst) + 1 >= MISSES {
                    self.health.open(error);
                }
            }
        }
    }

    /// A place is on its way back.
    pub(super) fn given_back(&self, check: &Check, grant: Grant) {
        if check.is_lease() {
            self.health.known.given_back(&check.key, Ticket::of(grant));
        }
    }

    /// A sign of life was answered.
    pub(super) fn is_well(&self) {
        self.misses.store(0, SeqCst);
    }

    /// Whether the last probe was answered.
    pub(super) fn probed(&self, answered: bool) {
        let away = self.health.away.lock();
        if away.is_none() {
            return;
        }
        self.answered.store(answered, SeqCst);
        let some = self.health.members().iter().any(|member| member.answered.load(SeqCst));
        self.health.set(if some { Breaker::HalfOpen } else { Breaker::Open });
    }
}

impl std::fmt::Debug for Member {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Member").finish_non_exhaustive()
    }
}
