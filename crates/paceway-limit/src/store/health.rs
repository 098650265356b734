//! The health of a store, as all workers of this process together know it: a breaker, the gateways that are alive, and the
//! levels that were reported last. It never asks the store; the callers of the store report here.

mod absent;
mod activity;
mod breaker;
mod gateway_count;
mod known_permits;
mod last_known;
mod losses;
mod member;
mod pace;
mod incidents;
#[cfg(feature = "redis")]
mod scripted;
mod store_clock;

pub(super) use incidents::IncidentLog;
pub use last_known::LastKnown;
pub use losses::StateLosses;
pub use member::Member;
pub use pace::{Pace, PaceMetrics, SLOWEST};
#[cfg(feature = "redis")]
pub(super) use scripted::ScriptedConnection;
#[cfg(feature = "redis")]
pub use scripted::ScriptedServers;
pub(super) use store_clock::StoreClock;

use super::{ABSENT, Beat, Check, GONE, Pauses, StoreError, calls::Calls};
use crate::{
    algorithm::Micros,
    log::{Permit, Throttle},
};
use absent::Absent;
use activity::Activity;
use breaker::{Answers, Probation, Recent};
use gateway_count::GatewayCount;
use metrics::Gauge;
use parking_lot::Mutex;
use std::{
    hash::{BuildHasher, RandomState},
    sync::{
        Arc, Weak,
        atomic::{AtomicI64, AtomicU8, Ordering::SeqCst},
    },
    time::Duration,
};
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};

/// A store whose answers take about as long as its time-out is away and back every few seconds.
static AWAY: Throttle = Throttle::new();

/// Whether the store is asked, or each gateway decides alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Breaker {
    /// The store is asked.
    Closed,
    /// The store is not asked yet: some worker has had an answer, but not all have had answers for long enough.
    HalfOpen,
    /// The store is not asked.
    Open,
}

/// The metrics of a store's health.
#[derive(Clone)]
pub struct HealthMetrics {
    /// [`Breaker`] as a number.
    pub breaker: Gauge,
    /// How many gateways live.
    pub gateways: Gauge,
    /// 1 while the store gives decisions.
    pub up: Gauge,
}

/// All that this process knows about its store.
pub struct Health {
    /// The name of this life of the gateway in the store's set of gateways. From `@` on, it is the name of the gateway.
    pub id: Arc<str>,
    /// A [`Breaker`]; every decision reads it.
    breaker: AtomicU8,
    states: watch::Sender<Breaker>,
    /// When the store went away, and why.
    away: Mutex<Option<(Instant, StoreError)>>,
    probation: Mutex<Probation>,
    /// Why the store gives no decisions though it is asked.
    incidents: Arc<IncidentLog>,
    gateways: AtomicI64,
    /// The least number of gateways that share each rule (`store.gateways`).
    expected: AtomicI64,
    gateway_count: Mutex<GatewayCount>,
    /// When the last heartbeat was answered.
    last_beat: Mutex<Option<Instant>>,
    absent: Absent,
    activity: Activity,
    clock: Mutex<StoreClock>,
    /// When the store last answered while it counted as away, or when it began to.
    answered: Mutex<Instant>,
    members: Mutex<Vec<Weak<Member>>>,
    /// Wakes the recovery of the process: a worker has an answer again, or a request was
    /// decided without the store.
    pub(super) wake: Notify,
    /// The levels and concurrency permits that the store reported last.
    pub known: LastKnown,
    /// The pauses of limiters that this process knows.
    pub pauses: Arc<Pauses>,
    /// The losses of states that this process knows.
    pub losses: Arc<StateLosses>,
    /// The servers that are sent the decision script, because they keep no functions.
    #[cfg(feature = "redis")]
    pub scripted: Arc<ScriptedServers>,
    /// How long calls of the store may take.
    pub pace: Pace,
    metrics: HealthMetrics,
}

// === impl HealthMetrics ===

impl HealthMetrics {
    /// Metrics that no exporter shows.
    pub fn noop() -> Self {
        Self { breaker: Gauge::noop(), gateways: Gauge::noop(), up: Gauge::noop() }
    }
}

// === impl Health ===

impl Health {
    /// The health of a store that counts as well, and whose calls may take as long as `pace` says.
    pub fn new(metrics: HealthMetrics, pace: Pace) -> Arc<Self> {
        let id = format!("{:016x}", RandomState::new().hash_one(std::process::id()));
        metrics.breaker.set(0.0);
        metrics.gateways.set(1.0);
        metrics.up.set(1.0);
        Arc::new(Self {
            id: id.into(),
            breaker: AtomicU8::new(Breaker::Closed as u8),
            states: watch::Sender::new(Breaker::Closed),
            away: Mutex::default(),
            probation: Mutex::default(),
            incidents: Arc::default(),
            gateways: AtomicI64::new(1),
            expected: AtomicI64::new(1),
            gateway_count: Mutex::new(GatewayCount::new()),
            last_beat: Mutex::default(),
            absent: Absent::new(),
            activity: Activity::default(),
            clock: Mutex::new(StoreClock::first()),
            answered: Mutex::new(Instant::now()),
            members: Mutex::default(),
            wake: Notify::new(),
            known: LastKnown::default(),
            pauses: Arc::default(),
            losses: Arc::default(),
            #[cfg(feature = "redis")]
            scripted: Arc::default(),
            pace,
            metrics,
        })
    }

    /// Adds the connection of a worker, or its connections to several servers. The tickets of its requests come from `calls`.
    pub(super) fn join(self: &Arc<Self>, calls: Arc<Calls>, is_one_of_many: bool) -> Arc<Member> {
        let (health, recent) = (self.clone(), Recent::default());
        let (answers, renewed) = (Mutex::default(), Mutex::default());
        let member = Arc::new(Member { health, calls, recent, is_one_of_many, answers, renewed });
        let mut members = self.members.lock();
        members.retain(|member| member.strong_count() > 0);
        members.push(Arc::downgrade(&member));
        member
    }

    /// Whether the store is asked.
    pub fn is_closed(&self) -> bool {
        self.breaker.load(SeqCst) == Breaker::Closed as u8
    }

    /// Whether the store is asked, is about to be, or is not.
    pub fn breaker(&self) -> Breaker {
        *self.states.borrow()
    }

    /// How long the store has been away, if it is, and why.
    pub fn away(&self) -> Option<(Duration, StoreError)> {
        self.away.lock().as_ref().map(|(since, why)| (since.elapsed(), why.clone()))
    }

    /// Whether the store has answered a heartbeat of this process.
    pub fn was_reached(&self) -> bool {
        self.last_beat.lock().is_some()
    }

    /// Why limiters have no decisions though the store is asked, by the hash tags of their keys (nothing: all), and since
    /// when: it refuses, or one server of several is silent.
    pub fn failures(&self) -> Vec<(Box<str>, Duration, StoreError)> {
        self.incidents.failures()
    }

    /// Why limiters with `key` have had no decision in the last 10 s.
    pub fn failure(&self, key: &str) -> Option<StoreError> {
        self.incidents.failing(key)
    }

    /// How many gateways share each rule, this one among them: the number that the store last confirmed, or the expected
    /// one if that is larger.
    pub fn gateways(&self) -> i64 {
        self.gateways.load(SeqCst).max(self.expected.load(SeqCst))
    }

    /// At least so many gateways share each rule, whatever the store reports (`store.gateways`).
    pub fn expect(&self, gateways: i64) {
        self.expected.store(gateways, SeqCst);
    }

    /// Whether other gateways decide alone while this one uses the store.
    pub(super) fn misses_others(&self) -> bool {
        self.absent.is_any()
    }

    /// The store answers a heartbeat that was sent at `sent`: how many gateways there are, how many of the others decide
    /// alone, and perhaps the time.
    pub(super) fn counted(&self, beat: &Beat, sent: Instant) {
        let now = beat.now;
        let gateways = {
            let (mut count, now) = (self.gateway_count.lock(), Instant::now());
            let last = self.last_beat.lock().replace(now);
            // A gateway that was removed for its silence is not in the set either: an idle one after `ABSENT`.
            let kept = if self.activity.was_idle() { ABSENT / 2 } else { GONE - ABSENT };
            let was_in_it = last.is_some_and(|last| now - last < kept);
            if beat.entered && was_in_it {
                count.lost(now);
            }
            count.absent(beat.absent, beat.gateways, now);
            let gateways = count.counted(beat.gateways, now);
            let missing = count.missing(beat.gateways, now);
            let missed = self.absent.is_any();
            self.absent.set(beat.absent + missing, beat.gateways + missing);
            match (missed, self.absent.is_any()) {
                (false, true) => tracing::warn!(
                    absent = beat.absent + missing,
                    gateways = beat.gateways,
                    "other gateways are cut off from the store, or dead: this one leaves them their share"
                ),
                (true, false) => tracing::info!("no other gateway is cut off from the store"),
                _ => {}
            }
            self.gateways.store(gateways, SeqCst);
            gateways
        };
        self.metrics.gateways.set(gateways as f64);
        if let Some(said) = now {
            // The store read its clock at some instant of the round trip: taken for the middle of it, the error is half
            // of the round trip at most.
            *self.clock.lock() = StoreClock { said, at: sent + sent.elapsed() / 2 };
        }
    }

    /// The store's clock is about `said`.
    #[cfg(feature = "redis")]
    pub(crate) fn note_clock(&self, said: Micros) {
        *self.clock.lock() = StoreClock { said, at: Instant::now() };
    }

    /// Something is granted to a request of this process, by the store or without it.
    pub(super) fn note_grant(&self) {
        if self.activity.note_grant() {
            self.wake.notify_one();
        }
    }

    /// Whether nothing was granted for [`GONE`]. The heartbeat that is sent now says so.
    pub(super) fn is_idle(&self) -> bool {
        self.activity.is_idle(Instant::now())
    }

    /// The store has answered, in time or late: other gateways may use it.
    pub(super) fn answered(&self) {
        if !self.is_closed() {
            *self.answered.lock() = Instant::now();
        }
    }

    /// For how long the store has answered nothing about `key`, as far as this process knows. One server of a Cluster
    /// may be away alone, while the breaker is closed.
    pub(super) fn silent_for(&self, key: &str) -> Duration {
        if self.is_closed() {
            self.incidents.failing_for(key).unwrap_or_default()
        } else {
            self.answered.lock().elapsed()
        }
    }

    /// The time in µs for which the limiter of `check` stays closed because the store has lost its states.
    pub(super) fn closed_for(&self, check: &Check) -> Option<Micros> {
        self.losses.closes(check, self.clock().now())
    }

    /// By how much the store's clock is ahead of that of its server, µs; 0 unless that was set back.
    pub fn clock_ahead(&self) -> Micros {
        self.losses.clock_ahead(self.clock().now())
    }

    pub(super) fn clock(&self) -> StoreClock {
        *self.clock.lock()
    }

    /// Resolves when the breaker is not closed.
    pub(super) async fn opened(&self) {
        // The sender lives as long as this health, so the wait does not fail.
        drop(self.states.subscribe().wait_for(|state| *state != Breaker::Closed).await);
    }

    /// The store is away: from now on it is not asked.
    pub fn open(&self, why: &StoreError) {
        {
            let mut away = self.away.lock();
            if let Some((_, last)) = &mut *away {
                // A failed attempt to connect says more than the call that failed first.
                if let StoreError::Away(_) = why {
                    last.clone_from(why);
                }
                return;
            }
            *away = Some((Instant::now(), why.clone()));
            *self.answered.lock() = Instant::now();
            for member in self.members() {
                *member.answers.lock() = None;
            }
            let slow = matches!(why, StoreError::Timeout | StoreError::Protocol);
            self.probation.lock().opened(Instant::now(), slow);
            self.set(Breaker::Open);
        }
        self.show();
        if let Some(Permit { suppressed }) = AWAY.permit() {
            tracing::warn!(
                error = %why,
                gateways = self.gateways(),
                suppressed,
                "the store is away: limiters decide by their `on_failure`"
            );
        }
        // Requests that wait for a concurrency permit of the store would wait in vain.
        self.notify_all();
    }

    /// The store is asked again. Returns for how long it was not.
    pub(super) fn close(&self) -> Option<Duration> {
        let mut away = self.away.lock();
        let (since, _) = away.take()?;
        for member in self.members() {
            member.recent.forget();
        }
        self.probation.lock().closed(Instant::now());
        self.set(Breaker::Closed);
        self.show();
        Some(since.elapsed())
    }

    /// Whether every worker has had answers for long enough since the breaker opened.
    pub(super) fn is_believed(&self) -> bool {
        let (probation, now) = (self.probation.lock(), Instant::now());
        let suffices = |answers: Answers| probation.suffices(&answers, now);
        self.members().iter().all(|member| member.answers.lock().is_some_and(suffices))
    }

    /// The store executed a heartbeat, which is a write: it refuses writes no longer.
    pub(super) fn wrote(&self) {
        if self.incidents.worked("") {
            self.show();
        }
    }

    /// Wakes all requests that wait for a concurrency permit.
    pub(super) fn notify_all(&self) {
        self.members().iter().for_each(|member| member.calls.call_all());
    }

    fn members(&self) -> Vec<Arc<Member>> {
        self.members.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// Whether the store gives decisions.
    fn show(&self) {
        let is_up = self.is_closed() && self.failures().is_empty();
        self.metrics.up.set(f64::from(u8::from(is_up)));
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
