//! Counters that requests update. Each worker has its own, because two workers that count in one cache line wait for each
//! other; `/metrics` adds them up.

use super::{Metric, Outcome, Scrape, Verdict};
use crate::store::Source;
use http::StatusCode;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The lowest status that HTTP defines (RFC 9110 section 15); the highest is 599.
const FIRST: u16 = 100;
pub(super) const STATUSES: usize = 500;

/// Numbers of requests, one for each [`Outcome`].
#[derive(Debug, Default)]
pub struct Outcomes {
    counts: [AtomicU64; Outcome::ALL.len()],
}

/// Numbers of decisions, one for each [`Verdict`] and each [`Source`] that decided.
#[derive(Debug, Default)]
pub struct Decisions {
    counts: [[AtomicU64; Verdict::ALL.len()]; Source::ALL.len()],
}

/// Numbers of responses, one for each status from 100 to 599.
#[derive(Debug)]
pub struct Statuses {
    counts: Box<[AtomicU64]>,
}

pub(super) fn add(to: &AtomicU64, other: &AtomicU64) {
    to.fetch_add(other.load(Relaxed), Relaxed);
}

// === impl Outcomes ===

impl Outcomes {
    /// Counts a request with this outcome.
    pub fn count(&self, outcome: Outcome) {
        self.count_many(outcome, 1);
    }

    /// Counts several requests that have the same outcome.
    pub fn count_many(&self, outcome: Outcome, requests: u64) {
        self.counts[outcome as usize].fetch_add(requests, Relaxed);
    }

    /// Adds the counts of another worker to these.
    pub fn add(&self, other: &Self) {
        self.counts.iter().zip(&other.counts).for_each(|(to, other)| add(to, other));
    }

    /// The number of requests with this outcome.
    pub fn get(&self, outcome: Outcome) -> u64 {
        self.counts[outcome as usize].load(Relaxed)
    }

    /// Gives a value of `metric` for each outcome. `labels` are those of the route, such as `route="search"`.
    pub(crate) fn give(&self, scrape: &mut Scrape, metric: &Metric, labels: &str) {
        for outcome in Outcome::ALL {
            scrape.value(metric, labels, &[outcome.name()], self.get(outcome));
        }
    }
}

// === impl Decisions ===

impl Decisions {
    /// Counts a decision of this source.
    pub fn count(&self, verdict: Verdict, source: Source) {
        self.counts[source as usize][verdict as usize].fetch_add(1, Relaxed);
    }

    /// Adds the counts of another worker to these.
    pub fn add(&self, other: &Self) {
        let own = self.counts.iter().flatten();
        own.zip(other.counts.iter().flatten()).for_each(|(to, other)| add(to, other));
    }

    /// Gives a value of `metric` for each source and decision. `labels` are those of the limiter, such as `limiter="search"`.
    pub(crate) fn give(&self, scrape: &mut Scrape, metric: &Metric, labels: &str) {
        for (counts, source) in self.counts.iter().zip(Source::ALL) {
            for (count, verdict) in counts.iter().zip(Verdict::ALL) {
                let last = [verdict.name(), source.name()];
                scrape.value(metric, labels, &last, count.load(Relaxed));
            }
        }
    }
}

// === impl Statuses ===

impl Default for Statuses {
    fn default() -> Self {
        Self { counts: (0..STATUSES).map(|_| AtomicU64::new(0)).collect() }
    }
}

impl Statuses {
    /// Counts a response. A status from 600 to 999, which HTTP does not define, counts as 599.
    pub fn count(&self, status: StatusCode) {
        let place = usize::from(status.as_u16().saturating_sub(FIRST)).min(STATUSES - 1);
        self.counts[place].fetch_add(1, Relaxed);
    }

    /// Adds the counts of another worker to these.
    pub fn add(&self, other: &Self) {
        self.counts.iter().zip(&other.counts).for_each(|(to, other)| add(to, other));
    }

    /// The number of responses with each status that occurred.
    pub fn all(&self) -> impl Iterator<Item = (u16, u64)> {
        let all = (FIRST..).zip(&self.counts).map(|(status, count)| (status, count.load(Relaxed)));
        all.filter(|(_, count)| *count > 0)
    }

    /// Gives a value of `metric` for each status that occurred. `labels` are those of the upstream.
    pub(crate) fn give(&self, scrape: &mut Scrape, metric: &Metric, labels: &str) {
        for (status, count) in self.all() {
            scrape.value(metric, labels, &[&status.to_string()], count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{DECISIONS, REQUESTS, UPSTREAM_REQUESTS};
    use std::time::Duration;

    /// The lines that `give` gives of `metric`.
    fn lines(metric: &Metric, give: impl FnOnce(&mut Scrape)) -> String {
        let mut scrape = Scrape::new(Duration::ZERO);
        give(&mut scrape);
        scrape.lines(metric).clone()
    }

    #[test]
    fn counts_of_workers_are_summed() {
        let (all, others) = (Outcomes::default(), [Outcomes::default(), Outcomes::default()]);
        others[0].count(Outcome::Passed);
        others.iter().for_each(|own| own.count(Outcome::Cancelled));
        others.iter().for_each(|own| all.add(own));
        let text = lines(&REQUESTS, |scrape| all.give(scrape, &REQUESTS, "route=\"a\""));
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), Outcome::ALL.len());
        let seen: Vec<_> = lines.into_iter().filter(|line| !line.ends_with(" 0")).collect();
        let of = |outcome, count| {
            format!("paceway_requests_total{{route=\"a\",outcome=\"{outcome}\"}} {count}")
        };
        assert_eq!(seen, [of("passed", 1), of("cancelled", 2)]);
    }

    #[test]
    fn decisions_are_counted_by_verdict_and_source() {
        let (all, own) = (Decisions::default(), Decisions::default());
        own.count(Verdict::WouldRefuse, Source::Local);
        all.add(&own);
        all.add(&own);
        let text = lines(&DECISIONS, |scrape| all.give(scrape, &DECISIONS, "limiter=\"a\""));
        let seen: Vec<_> = text.lines().filter(|line| !line.ends_with(" 0")).collect();
        let name = "paceway_decisions_total";
        assert_eq!(
            seen,
            [format!("{name}{{limiter=\"a\",decision=\"would_refuse\",source=\"local\"}} 2")]
        );
        assert_eq!(text.lines().count(), 18);
    }

    #[test]
    fn only_statuses_that_occurred_are_written() {
        let (all, own) = (Statuses::default(), Statuses::default());
        for status in [200, 204, 599, 600, 999, 100] {
            own.count(StatusCode::from_u16(status).expect("a status"));
        }
        all.add(&own);
        let metric = &UPSTREAM_REQUESTS;
        let text = lines(metric, |scrape| all.give(scrape, metric, "upstream=\"a\""));
        let lines = ["100\"} 1", "200\"} 1", "204\"} 1", "599\"} 3"];
        let lines = lines
            .map(|end| format!("paceway_upstream_requests_total{{upstream=\"a\",status=\"{end}\n"));
        assert_eq!(text, lines.concat());
    }
}
