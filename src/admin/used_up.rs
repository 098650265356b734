//! When the quotas of windows will be used up, at the pace of the last hour as their levels showed it to this gateway. Asks no
//! store: others read the levels.

use crate::{
    algorithm::{Level, Micros, Returns},
    store::Check,
};
use jiff::Timestamp;
use parking_lot::Mutex;
use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};
use tokio::time::Instant;

/// The time whose use makes the pace.
const SPAN: Duration = Duration::from_secs(3600);
/// The time between two points. A shorter time is no pace: it counts as so long.
const STEP: Duration = Duration::from_secs(60);
/// The most states whose pace is kept; more than a configuration has limiters with windows.
const MOST: usize = 100_000;

/// The paces at which the quotas of windows are used, by their states.
#[derive(Debug, Default)]
pub struct QuotaPaces(Mutex<HashMap<Arc<str>, QuotaPace>>);

/// The quota of one window, which is not used evenly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WindowEnd {
    /// The time until its reset, µs.
    pub(super) reset: Micros,
    /// The time until it is used up, µs, if that is earlier.
    pub(super) used_up: Option<Micros>,
}

/// The permits of one state that were used lately.
#[derive(Debug)]
struct QuotaPace {
    /// The permits that were free at the last look.
    free: i64,
    used: i64,
    /// One point a minute, the oldest first, and one that is older than the hour.
    points: VecDeque<PacePoint>,
}

#[derive(Debug, Clone, Copy)]
struct PacePoint {
    at: Instant,
    used: i64,
}

// === impl QuotaPaces ===

impl QuotaPaces {
    /// Notes the levels of a limiter without a key, and tells which of its windows ends first: by its use, or else by its
    /// reset. `None` without windows, and while refusals of the upstream say more than the level.
    pub(super) fn note(&self, checks: &[Check], levels: &[Level]) -> Option<WindowEnd> {
        let ends = checks.iter().zip(levels).filter_map(|(check, level)| {
            let reset = until_reset(check, Timestamp::now().as_microsecond())?;
            let is_plain = level.paused == 0 && level.rate == 0;
            let left = is_plain.then(|| self.time_left(check, level.remaining)).flatten();
            Some(WindowEnd { reset, used_up: left.filter(|left| *left < reset) })
        });
        ends.min_by_key(|end| (end.used_up.unwrap_or(Micros::MAX), end.reset))
    }

    /// The time in which the free permits of a state are used, µs; `None` if nothing is known of its use.
    fn time_left(&self, check: &Check, free: i64) -> Option<Micros> {
        let mut paces = self.0.lock();
        if paces.len() >= MOST && !paces.contains_key(&check.key) {
            return None;
        }
        let now = Instant::now();
        let pace = paces.entry(check.key.clone()).or_insert_with(|| QuotaPace::new(now, free));
        pace.note(now, free);
        pace.time_left(now)
    }
}

/// The time until the window of a check ends, µs, at the instant `now`; `None` for a rule whose permits do not come back all at
/// once, or flow evenly.
fn until_reset(check: &Check, now: Micros) -> Option<Micros> {
    match check.algorithm.as_rate()?.facts().returns {
        Returns::AtWindowEnd { since, period } if check.algorithm.has_reset() => {
            Some(period - (now - since).rem_euclid(period))
        }
        _ => None,
    }
}

// === impl QuotaPace ===

impl QuotaPace {
    fn new(at: Instant, free: i64) -> Self {
        Self { free, used: 0, points: [PacePoint { at, used: 0 }].into() }
    }

    /// Notes how many permits are free. When they are more than before, the window has ended, or some came back.
    fn note(&mut self, at: Instant, free: i64) {
        self.used += (self.free - free).max(0);
        self.free = free;
        if self.points.back().is_none_or(|last| at - last.at >= STEP) {
            self.points.push_back(PacePoint { at, used: self.used });
        }
        while self.points.get(1).is_some_and(|next| at - next.at >= SPAN) {
            self.points.pop_front();
        }
    }

    fn time_left(&self, now: Instant) -> Option<Micros> {
        if self.free <= 0 {
            return Some(0);
        }
        let first = self.points.front()?;
        let (used, span) = (self.used - first.used, (now - first.at).max(STEP));
        let left = self.free as f64 * span.as_secs_f64() * 1e6 / used as f64;
        (used > 0).then_some(left as Micros)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{Algorithm, CalendarWindow, FixedWindow, TokenBucket};

    const HOUR: Micros = 3_600_000_000;

    #[test]
    fn the_pace_is_that_of_the_last_hour() {
        let start = Instant::now();
        let minute = |minutes: u64| start + Duration::from_secs(60 * minutes);
        let mut pace = QuotaPace::new(start, 10_000);
        assert_eq!(pace.time_left(start), None, "nothing is used yet");
        // A burst after the start counts as the use of a minute.
        pace.note(start, 9_900);
        assert_eq!(pace.time_left(start), Some(99 * 60_000_000));
        // 100 in the first minute, then 10 a minute, and after an hour 5.
        for minutes in 1..=90 {
            let used = if minutes <= 60 { 10 } else { 5 };
            pace.note(minute(minutes), pace.free - used);
            assert!(pace.points.len() <= 62, "{}", pace.points.len());
        }
        let free = 9_900 - 60 * 10 - 30 * 5;
        assert_eq!(pace.free, free);
        // 30 minutes at 10, and 30 at 5.
        assert_eq!(pace.time_left(minute(90)), Some(free * HOUR / 450));
        // A reset is no use, and an empty window has ended.
        pace.note(minute(91), 10_000);
        assert!(pace.time_left(minute(91)) > pace.time_left(minute(90)));
        pace.note(minute(91), 0);
        assert_eq!(pace.time_left(minute(91)), Some(0));
    }

    #[test]
    fn the_window_that_ends_first_is_shown() {
        let day = 24 * HOUR;
        let check = |key: &str, rule: Algorithm| Check::new(key, rule);
        let fixed = |count, period| FixedWindow::new(count, period).expect("a rule").into();
        let hour = check("hour", fixed(100, HOUR));
        assert_eq!(until_reset(&hour, 10 * HOUR + 1), Some(HOUR - 1));
        let month = CalendarWindow::new(100, [0, day, 3 * day]).expect("a rule");
        assert_eq!(until_reset(&check("month", month.into()), HOUR), Some(23 * HOUR));
        assert_eq!(until_reset(&check("even", month.even().into()), HOUR), None);
        let bucket = TokenBucket::new(1, 1, 1).expect("a rule");
        assert_eq!(until_reset(&check("bucket", bucket.into()), HOUR), None);
        let paces = QuotaPaces::default();
        let checks = [check("long", fixed(1_000_000, 366 * day)), check("bucket", bucket.into())];
        let level = |remaining| [Level { remaining, ..Level::default() }; 2];
        assert_eq!(paces.note(&checks, &level(1_000_000)).expect("a window").used_up, None);
        let end = paces.note(&checks, &level(1_000)).expect("a window");
        assert!(end.used_up.is_some_and(|left| left < 100_000), "{end:?}");
        let paused = [Level { remaining: 0, paused: 9, ..Level::default() }; 2];
        assert_eq!(paces.note(&checks, &paused).expect("a window").used_up, None);
        assert_eq!(paces.note(&checks[1..], &level(1)), None);
    }
}
