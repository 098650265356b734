//! A histogram for the times that every request records: counters that lie together in memory. With the histograms of
//! `metrics-exporter-prometheus`, which keep each sample, a request with 5,000 routes costs 2 µs more
//! (docs/decisions/016-one-metrics-system.md).

use super::counts::add;
use metrics::HistogramFn;
use std::{
    fmt::Write,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// Upper bounds that every histogram has, in ns: from the overhead of a request (50 µs) to a long wait (30 s).
const BOUNDS: [u64; 18] = [
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    500_000_000,
    1_000_000_000,
    2_500_000_000,
    5_000_000_000,
    10_000_000_000,
    30_000_000_000,
];

/// Further upper bounds for waits alone, in ns, up to the longest wait that a route can allow (1 h).
const LONG: [u64; 6] = [
    60_000_000_000,
    120_000_000_000,
    300_000_000_000,
    600_000_000_000,
    1_800_000_000_000,
    3_600_000_000_000,
];
const ALL: usize = BOUNDS.len() + LONG.len();

/// The numbers of times in the buckets of a histogram at one moment, or those that were recorded between two moments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeCounts([u64; ALL + 1]);

/// A histogram of times, with a fixed set of buckets.
#[derive(Debug, Default)]
pub struct TimeHistogram {
    /// The sum of all recorded times, in ns. It lasts for 584 years of them.
    sum: AtomicU64,
    /// The number of times in each bucket; the last bucket is for those above every bound.
    counts: [AtomicU64; ALL + 1],
}

// === impl TimeHistogram ===

impl TimeHistogram {
    /// Returns the upper bounds that every histogram has, in seconds.
    pub fn bounds() -> [f64; BOUNDS.len()] {
        BOUNDS.map(|nanos| nanos as f64 / 1e9)
    }

    /// Returns how many upper bounds a histogram needs if its values are at most `longest`: the 18 common ones, and of the
    /// longer ones all up to the first that is not below `longest`.
    pub(super) fn bounds_for(longest: Duration) -> usize {
        let nanos = u64::try_from(longest.as_nanos()).unwrap_or(u64::MAX);
        let below = LONG.iter().filter(|bound| **bound < nanos).count();
        let is_common = BOUNDS.last().is_some_and(|bound| nanos <= *bound);
        if is_common { BOUNDS.len() } else { (BOUNDS.len() + below + 1).min(ALL) }
    }

    /// Records the time of one request.
    pub fn record(&self, span: Duration) {
        self.record_many(span, 1);
    }

    /// Records the times of several requests that took equally long.
    pub fn record_many(&self, span: Duration, times: u64) {
        let nanos = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        let bucket = match BOUNDS.iter().position(|bound| nanos <= *bound) {
            Some(bucket) => bucket,
            None => {
                let longer = LONG.iter().position(|bound| nanos <= *bound);
                BOUNDS.len() + longer.unwrap_or(LONG.len())
            }
        };
        self.counts[bucket].fetch_add(times, Relaxed);
        if nanos > 0 {
            self.sum.fetch_add(nanos.saturating_mul(times), Relaxed);
        }
    }

    /// Whether no time was recorded so far.
    pub fn is_empty(&self) -> bool {
        self.counts.iter().all(|count| count.load(Relaxed) == 0)
    }

    /// The numbers of times that were recorded so far.
    pub fn counts(&self) -> TimeCounts {
        TimeCounts(self.counts.each_ref().map(|count| count.load(Relaxed)))
    }

    /// Adds the times that another worker recorded to these.
    pub fn add(&self, other: &Self) {
        let own = self.counts.iter().chain([&self.sum]);
        own.zip(other.counts.iter().chain([&other.sum])).for_each(|(to, other)| add(to, other));
    }

    /// Writes the lines of the histogram `name`, with `labels` (such as `route="search"`, or nothing) and the first `bounds`
    /// upper bounds.
    pub(super) fn write(&self, text: &mut String, name: &str, labels: &str, bounds: usize) {
        let comma = if labels.is_empty() { "" } else { "," };
        let mut count = 0;
        let all = BOUNDS.iter().chain(&LONG).take(bounds);
        for (own, bound) in self.counts.iter().zip(all) {
            count += own.load(Relaxed);
            let bound = *bound as f64 / 1e9;
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{name}_bucket{{{labels}{comma}le=\"{bound}\"}} {count}");
        }
        count += self.counts.iter().skip(bounds).map(|own| own.load(Relaxed)).sum::<u64>();
        let _ = writeln!(text, "{name}_bucket{{{labels}{comma}le=\"+Inf\"}} {count}");
        let braced = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
        let sum = self.sum.load(Relaxed) as f64 / 1e9;
        let _ = writeln!(text, "{name}_sum{braced} {sum}\n{name}_count{braced} {count}");
    }
}

impl HistogramFn for TimeHistogram {
    fn record(&self, seconds: f64) {
        // Only a time that no span can have is none.
        let span = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
        self.record_many(span, 1);
    }
}

// === impl TimeCounts ===

impl Default for TimeCounts {
    fn default() -> Self {
        Self([0; ALL + 1])
    }
}

impl TimeCounts {
    /// The times that were recorded after `before`.
    pub fn since(&self, before: &Self) -> Self {
        let mut all = *self;
        let both = all.0.iter_mut().zip(before.0);
        both.for_each(|(count, before)| *count = count.saturating_sub(before));
        all
    }

    /// The time in ms that the part `q` of all times does not exceed, such as 0.99 for the 99th percentile: a place within its
    /// bucket, by linear interpolation. Times of the first bucket count as 0, those above every bound as the last bound. `None`
    /// if no time was recorded.
    pub fn quantile(&self, q: f64) -> Option<f64> {
        let all: u64 = self.0.iter().sum();
        let rank = (all as f64 * q).max(1.0);
        let (mut below, mut lower) = (0, 0);
        for (count, bound) in self.0.iter().zip(BOUNDS.iter().chain(&LONG)) {
            if *count > 0 && (below + count) as f64 >= rank {
                let part = (rank - below as f64) / *count as f64;
                let nanos = lower as f64 + (bound - lower) as f64 * part;
                return Some(if lower == 0 { 0.0 } else { nanos / 1e6 });
            }
            (below, lower) = (below + count, *bound);
        }
        (all > 0).then_some(lower as f64 / 1e6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_counts_up_to_the_bounds_that_it_does_not_exceed() {
        let times = TimeHistogram::default();
        for micros in [0, 50, 51, 100, 30_000_000, 30_000_001] {
            times.record(Duration::from_micros(micros));
        }
        let mut text = String::new();
        times.write(&mut text, "t_seconds", "route=\"a\"", BOUNDS.len());
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "t_seconds_bucket{route=\"a\",le=\"0.00005\"} 2");
        assert_eq!(lines[1], "t_seconds_bucket{route=\"a\",le=\"0.0001\"} 4");
        assert_eq!(lines[17], "t_seconds_bucket{route=\"a\",le=\"30\"} 5");
        assert_eq!(lines[18], "t_seconds_bucket{route=\"a\",le=\"+Inf\"} 6");
        assert_eq!(lines[19], "t_seconds_sum{route=\"a\"} 60.000202");
        assert_eq!(lines[20], "t_seconds_count{route=\"a\"} 6");
        assert_eq!(lines.len(), 21);
    }

    #[test]
    fn without_labels_there_are_no_braces() {
        let mut text = String::new();
        TimeHistogram::default().write(&mut text, "t", "", BOUNDS.len());
        assert!(text.starts_with("t_bucket{le=\"0.00005\"} 0\n"), "{text}");
        assert!(text.ends_with("t_sum 0\nt_count 0\n"), "{text}");
    }

    #[test]
    fn quantiles_are_interpolated_within_buckets() {
        let times = TimeHistogram::default();
        assert_eq!(times.counts().quantile(0.5), None);
        times.record_many(Duration::ZERO, 90);
        let before = times.counts();
        // Ten of them are between 1 and 2.5 ms.
        times.record_many(Duration::from_micros(1500), 10);
        let all = times.counts();
        assert_eq!((all.quantile(0.5), all.quantile(0.9)), (Some(0.0), Some(0.0)));
        assert_eq!(all.quantile(1.0), Some(2.5));
        assert_eq!(all.since(&before).quantile(0.5), Some(1.75));
        times.record(Duration::from_secs(7200));
        assert_eq!(times.counts().since(&all).quantile(0.01), Some(3_600_000.0));
    }

    /// One span of the greatest possible length neither panics nor is lost.
    #[test]
    fn the_longest_span_counts() {
        let times = TimeHistogram::default();
        times.record(Duration::MAX);
        assert_eq!(times.counts[ALL].load(Relaxed), 1);
    }

    #[test]
    fn bounds_reach_as_far_as_the_longest_wait() {
        for (longest, last) in [(0, 30), (30, 30), (31, 60), (60, 60), (90, 120), (3600, 3600)] {
            let times = TimeHistogram::default();
            for secs in [longest, longest + 1] {
                times.record(Duration::from_secs(secs));
            }
            let mut text = String::new();
            let bounds = TimeHistogram::bounds_for(Duration::from_secs(longest));
            times.write(&mut text, "t", "", bounds);
            let buckets: Vec<_> =
                text.lines().filter(|line| line.starts_with("t_bucket")).collect();
            let [.., last_one, all] = &buckets[..] else { panic!("{text}") };
            let within = if longest < last { 2 } else { 1 };
            assert_eq!(*last_one, format!("t_bucket{{le=\"{last}\"}} {within}"));
            assert_eq!(*all, "t_bucket{le=\"+Inf\"} 2");
        }
    }
}
