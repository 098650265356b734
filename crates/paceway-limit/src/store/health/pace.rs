//! How long a call of the store may take: `store.timeout`, or longer when the store is measured to be slower. Never asks
//! the store, and has no clock of its own.

use metrics::Gauge;
use parking_lot::Mutex;
use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};
use tokio::time::Instant;

/// The time-out never grows beyond this one, or beyond `store.timeout` where that is longer. A store with longer round
/// trips is away.
pub const SLOWEST: Duration = Duration::from_millis(500);
/// The time-out is so many round trips. A request waits for the end of the call under way and for its own call, which
/// are two; the third is for round trips that grow.
const ROUND_TRIPS: u32 = 3;
/// Round trips are remembered for one to two of these.
const EPOCH: Duration = Duration::from_secs(5);

/// The metrics of the pace of a store.
#[derive(Debug, Clone)]
pub struct PaceMetrics {
    /// The round trip that the time-out follows, s.
    pub round_trip: Gauge,
    /// The time-out, s.
    pub timeout: Gauge,
}

/// The time-out of calls of one process, as its round trips make it.
#[derive(Debug)]
pub struct Pace {
    /// `store.timeout`.
    least: Duration,
    most: Duration,
    /// The time-out now, µs; read for each call.
    limit: AtomicU64,
    slowest: Mutex<Slowest>,
    metrics: PaceMetrics,
}

/// The slowest round trips of the last seconds.
#[derive(Debug)]
struct Slowest {
    /// When the epoch began.
    since: Instant,
    /// The two longest of this epoch, and of the one before, the longer one first.
    now: [Duration; 2],
    before: [Duration; 2],
    /// The log says that round trips are near `store.timeout`.
    is_logged: bool,
}

// === impl Pace ===

impl Pace {
    /// Calls may take `timeout`, and up to [`SLOWEST`] when the store is measured to be slow.
    pub fn new(timeout: Duration, metrics: PaceMetrics) -> Self {
        Self::between(timeout, timeout.max(SLOWEST), metrics)
    }

    /// The time-out begins at `least`, and is never longer than `most`.
    pub(in crate::store) fn between(least: Duration, most: Duration, metrics: PaceMetrics) -> Self {
        let [now, before] = [[Duration::ZERO; 2]; 2];
        let slowest = Slowest { since: Instant::now(), now, before, is_logged: false };
        let pace = Self { least, most, limit: AtomicU64::new(0), slowest: slowest.into(), metrics };
        pace.set(least);
        pace
    }

    /// How long a call may take now.
    pub fn limit(&self) -> Duration {
        Duration::from_micros(self.limit.load(Relaxed))
    }

    /// The longest that [`Self::limit`] can be.
    pub fn most(&self) -> Duration {
        self.most
    }

    /// The round trip that the time-out follows: the second longest of the last 5 to 10 s. A single one that was longer,
    /// such as that of a server that wrote a file for a moment, says nothing of the others.
    pub fn round_trip(&self) -> Duration {
        self.slowest.lock().second()
    }

    /// A call was answered that took so long. Calls that are far from the time-out are not looked at: they are most.
    pub(in crate::store) fn answered(&self, took: Duration) {
        if took.saturating_mul(4) > self.least {
            self.measured(took);
        }
    }

    /// A call was answered that took so long, and counts even if it is short.
    pub(in crate::store) fn measured(&self, took: Duration) {
        // The store had stalled, which says nothing about its round trips otherwise.
        if took > self.most {
            return;
        }
        let mut slowest = self.slowest.lock();
        slowest.hear(took, Instant::now());
        let round_trip = slowest.second();
        let limit = (ROUND_TRIPS * round_trip).clamp(self.least, self.most);
        if limit != self.limit() {
            self.set(limit);
        }
        self.metrics.round_trip.set(round_trip.as_secs_f64());
        let is_near = 2 * round_trip > self.least;
        if is_near && !slowest.is_logged {
            slowest.is_logged = true;
            tracing::warn!(
                round_trip_ms = millis(round_trip),
                timeout_ms = millis(self.least),
                waits_up_to_ms = millis(limit),
                "the store is slow: its round trip is near `store.timeout`"
            );
        } else if slowest.is_logged && 4 * round_trip < self.least {
            slowest.is_logged = false;
            tracing::info!(round_trip_ms = millis(round_trip), "the store is fast again");
        }
    }

    fn set(&self, limit: Duration) {
        self.limit.store(u64::try_from(limit.as_micros()).unwrap_or(u64::MAX), Relaxed);
        self.metrics.timeout.set(limit.as_secs_f64());
    }
}

// === impl PaceMetrics ===

impl PaceMetrics {
    /// Metrics that no exporter shows.
    pub fn noop() -> Self {
        Self { round_trip: Gauge::noop(), timeout: Gauge::noop() }
    }
}

// === impl Slowest ===

impl Slowest {
    fn hear(&mut self, took: Duration, now: Instant) {
        let age = now.saturating_duration_since(self.since);
        if age >= EPOCH {
            self.before = if age < 2 * EPOCH { self.now } else { [Duration::ZERO; 2] };
            (self.now, self.since) = ([Duration::ZERO; 2], now);
        }
        let [first, second] = self.now;
        self.now = [first.max(took), second.max(first.min(took))];
    }

    fn second(&self) -> Duration {
        let ([first, second], [older, last]) = (self.now, self.before);
        first.min(older).max(second).max(last)
    }
}

fn millis(span: Duration) -> f64 {
    span.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use tokio::time::advance;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// Round trips, each so many ms after the one before, and the time-out then, where `store.timeout` is 50 ms.
    #[rstest]
    #[case::fast(&[(1, 2, 50), (100, 3, 50), (100, 16, 50)])]
    #[case::constant(&[(60, 60, 50), (60, 60, 180), (5000, 60, 180), (5000, 60, 180)])]
    #[case::one_that_was_slow(&[(1, 2, 50), (200, 200, 50), (1000, 2, 50)])]
    #[case::stood_still(&[(501, 501, 50), (1200, 1200, 50), (1, 501, 50)])]
    #[case::slower_than_half_of_the_bound(&[(300, 300, 50), (300, 300, 500), (500, 500, 500)])]
    #[case::jitters(&[(30, 30, 50), (70, 70, 90), (35, 35, 105), (65, 65, 195), (30, 30, 195), (4900, 30, 195), (4000, 30, 195)])]
    #[case::fast_again(&[(60, 60, 50), (60, 60, 180), (5000, 2, 180), (2500, 2, 180), (2500, 2, 50)])]
    #[case::silent_for_long(&[(60, 60, 50), (60, 60, 180), (10_000, 2, 50)])]
    #[tokio::test(start_paused = true)]
    async fn the_pace_follows_the_round_trip(#[case] calls: &[(u64, u64, u64)]) {
        let pace = Pace::new(ms(50), PaceMetrics::noop());
        for (i, (later, took, expected)) in calls.iter().enumerate() {
            advance(ms(*later)).await;
            pace.measured(ms(*took));
            assert_eq!(pace.limit(), ms(*expected), "call {i} of {calls:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_long_timeout_is_never_longer() {
        let pace = Pace::new(ms(800), PaceMetrics::noop());
        for _ in 0..9 {
            pace.answered(ms(799));
        }
        assert_eq!((pace.limit(), pace.most()), (ms(800), ms(800)));
    }
}
