//! Every metric. `metrics/declared` names them, each once, and `metrics/metric` keeps and writes their series.
//!
//! Handles are resolved once, when a configuration is loaded, so that recording costs a few ns. Labels come from the
//! configuration or from closed sets, never from a request. The counters and histograms that every request updates are those
//! of its worker and lie together in memory; a scrape adds them up.

mod counts;
mod declared;
mod handles;
mod labels;
mod metric;
mod process;
mod times;

pub use counts::{Decisions, Outcomes, Statuses};
pub(crate) use declared::*;
pub(crate) use handles::QuotaMetrics;
pub use handles::{
    AccountMetrics, ConnectionMetrics, LimiterMetrics, RouteMetrics, SettledPermits,
    UpstreamMetrics, addresses, begin, config_reloads, service_label, store, store_health,
    store_pace,
};
pub use labels::{MoveReason, Outcome, Protocol, Refusal, RetryResult, Verdict};
pub(crate) use metric::Metric;
pub use times::{TimeCounts, TimeHistogram};

use std::{collections::BTreeMap, fmt::Display, time::Duration};

/// The text of `/metrics` while it is put together: values that no handle keeps are given to it, such as the sums of the
/// workers' counters.
pub struct Scrape {
    /// The lines that were given of each metric, by its name. The format wants all lines of a metric together.
    given: BTreeMap<&'static str, String>,
    /// How many buckets the histograms of waits have.
    wait_bounds: usize,
}

// === impl Scrape ===

impl Scrape {
    /// Begins a text. `longest_wait` is the longest time that any route may hold a request, to which the buckets of waits
    /// reach.
    pub fn new(longest_wait: Duration) -> Self {
        Self { given: BTreeMap::new(), wait_bounds: TimeHistogram::bounds_for(longest_wait) }
    }

    /// The lines of `metric` so far. From now on the text has its help, also without a line.
    pub(crate) fn lines(&mut self, metric: &Metric) -> &mut String {
        self.given.entry(metric.name).or_default()
    }

    /// Adds a value. `first` is the text of the first labels, and `last` has the values of those after them.
    pub(crate) fn value(
        &mut self,
        metric: &Metric,
        first: &str,
        last: &[&str],
        value: impl Display,
    ) {
        metric.write_value(self.lines(metric), &metric.labels(first, last), value);
    }

    /// Adds a histogram of times.
    pub(crate) fn times(&mut self, metric: &Metric, labels: &str, times: &TimeHistogram) {
        times.write(self.lines(metric), metric.name, labels, TimeHistogram::bounds().len());
    }

    /// Adds a histogram of waits, which may be longer. The labels are those of a [value](Self::value).
    pub(crate) fn waits(
        &mut self,
        metric: &Metric,
        first: &str,
        last: &[&str],
        waits: &TimeHistogram,
    ) {
        let bounds = self.wait_bounds;
        waits.write(self.lines(metric), metric.name, &metric.labels(first, last), bounds);
    }

    /// Ends the text: the given values, and all series with a handle.
    pub fn into_text(self) -> String {
        let mut text = String::new();
        for metric in declared::ALL {
            metric.write(&mut text, self.given.get(metric.name).map(String::as_str));
        }
        text
    }
}
