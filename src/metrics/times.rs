//! A histogram for what is measured at each request: counters that lie together and are never collected. Those of the
//! exporter keep each sample, with the time at which it came, in blocks of their own until somebody does.

use super::counts::add;
use std::{
    fmt::Write,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// Upper bounds in ns, from the overhead of a request to the longest common wait. Every histogram has them.
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

/// Upper bounds in ns for waits alone, up to the longest that a route can have (1 h).
const LONG: [u64; 6] = [
    60_000_000_000,
    120_000_000_000,
    300_000_000_000,
    600_000_000_000,
    1_800_000_000_000,
    3_600_000_000_000,
];
const ALL: usize = BOUNDS.len() + LONG.len();

/// How long something took, how often.
#[derive(Debug, Default)]
pub struct Times {
    /// In ns.
    sum: AtomicU64,
    /// Up to each bound, and beyond the last.
    counts: [AtomicU64; ALL + 1],
}

// === impl Times ===

impl Times {
    /// Upper bounds in seconds.
    pub fn bounds() -> [f64; BOUNDS.len()] {
        BOUNDS.map(|nanos| nanos as f64 / 1e9)
    }

    /// How many upper bounds a histogram needs whose values are at most `longest`: those of every histogram, and of the
    /// longer ones all up to the first that is not below `longest`.
    pub(super) fn bounds_for(longest: Duration) -> usize {
        let nanos = u64::try_from(longest.as_nanos()).unwrap_or(u64::MAX);
        let below = LONG.iter().filter(|bound| **bound < nanos).count();
        let is_common = BOUNDS.last().is_some_and(|bound| nanos <= *bound);
        if is_common { BOUNDS.len() } else { (BOUNDS.len() + below + 1).min(ALL) }
    }

    /// Counts one.
    pub fn record(&self, span: Duration) {
        self.record_many(span, 1);
    }

    /// Counts some that took the same.
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

    /// Adds what another worker measured.
    pub fn add(&self, other: &Self) {
        let own = self.counts.iter().chain([&self.sum]);
        own.zip(other.counts.iter().chain([&other.sum])).for_each(|(to, other)| add(to, other));
    }

    /// Writes it as the histogram `name` with `labels` (`route="search"`, or nothing) and its first `bounds` upper
    /// bounds.
    pub(super) fn write(&self, text: &mut String, name: &str, labels: &str, bounds: usize) {
        let comma = if labels.is_empty() { "" } else { "," };
        let mut count = 0;
        let all = BOUNDS.iter().chain(&LONG).take(bounds);
        for (own, bound) in self.counts.iter().zip(all) {
            count += own.load(Relaxed);
            let bound = *bound as f64 / 1e9;
            // A string takes whatever is written.
            let _ = writeln!(text, "{name}_bucket{{{labels}{comma}le=\"{bound}\"}} {count}");
        }
        count += self.counts.iter().skip(bounds).map(|own| own.load(Relaxed)).sum::<u64>();
        let _ = writeln!(text, "{name}_bucket{{{labels}{comma}le=\"+Inf\"}} {count}");
        let braced = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
        let sum = self.sum.load(Relaxed) as f64 / 1e9;
        let _ = writeln!(text, "{name}_sum{braced} {sum}\n{name}_count{braced} {count}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_counts_up_to_the_bounds_that_it_does_not_exceed() {
        let times = Times::default();
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
        Times::default().write(&mut text, "t", "", BOUNDS.len());
        assert!(text.starts_with("t_bucket{le=\"0.00005\"} 0\n"), "{text}");
        assert!(text.ends_with("t_sum 0\nt_count 0\n"), "{text}");
    }

    /// A sum of ns in 64 bits lasts for centuries of spans; one alone cannot break it.
    #[test]
    fn the_longest_span_counts() {
        let times = Times::default();
        times.record(Duration::MAX);
        assert_eq!(times.counts[ALL].load(Relaxed), 1);
    }

    #[test]
    fn bounds_reach_as_far_as_the_longest_wait() {
        for (longest, last) in [(0, 30), (30, 30), (31, 60), (60, 60), (90, 120), (3600, 3600)] {
            let times = Times::default();
            for secs in [longest, longest + 1] {
                times.record(Duration::from_secs(secs));
            }
            let mut text = String::new();
            let bounds = Times::bounds_for(Duration::from_secs(longest));
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
