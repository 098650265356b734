//! One metric: its declaration, and the series that have a handle. A metric whose labels are closed sets keeps its series for
//! ever. With a label from the configuration a series ends with its last handle: a reload may remove a route and add another
//! one, and after 1,000 reloads there would be the series of 1,000 routes.

use super::times::TimeHistogram;
use metrics::{Counter, Gauge, Histogram};
use parking_lot::Mutex;
use std::{
    collections::BTreeMap,
    fmt::{Display, Write},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

/// A metric, with a series for each set of values of its labels.
pub(crate) struct Metric {
    pub(super) name: &'static str,
    kind: MetricKind,
    labels: &'static [Label],
    help: &'static str,
    /// The series with a handle, by the text of their labels.
    series: Mutex<BTreeMap<String, Series>>,
}

/// A label of a metric, and what bounds its values.
pub(super) struct Label {
    name: &'static str,
    /// How many values it can have; `None` if they are names of the configuration.
    values: Option<usize>,
}

#[derive(Clone, Copy)]
pub(super) enum MetricKind {
    Counter,
    Gauge,
    Histogram,
}

#[derive(Clone)]
enum Series {
    /// A count, or the bits of an `f64` for a gauge.
    Number(Arc<AtomicU64>),
    Times(Arc<TimeHistogram>),
}

/// A label with as many values as a closed set has.
pub(super) const fn closed(name: &'static str, values: usize) -> Label {
    Label { name, values: Some(values) }
}

/// A label whose values are names of the configuration.
pub(super) const fn configured(name: &'static str) -> Label {
    Label { name, values: None }
}

// === impl Label ===

impl Label {
    /// The label as the text contains it, such as `route="search"`.
    pub(super) fn text(&self, value: &str) -> String {
        if !value.contains(['\\', '"', '\n']) {
            return format!("{}=\"{value}\"", self.name);
        }
        // Two backslashes count as one that is escaped already, and a single one is escaped here.
        let escaped = value.replace("\\\\", "\\").replace('\\', "\\\\");
        let escaped = escaped.replace('"', "\\\"").replace('\n', "\\n");
        format!("{}=\"{escaped}\"", self.name)
    }
}

// === impl Metric ===

impl Metric {
    /// A metric without a series. Its help begins with a space, as comments do.
    pub(super) const fn new(
        name: &'static str,
        kind: MetricKind,
        labels: &'static [Label],
        help: &'static str,
    ) -> Self {
        Self { name, kind, labels, help, series: Mutex::new(BTreeMap::new()) }
    }

    /// The counter with these values of the labels, in the order of their declaration.
    pub(crate) fn count(&self, values: &[&str]) -> Counter {
        match self.series(values) {
            Series::Number(value) => Counter::from_arc(value),
            Series::Times(_) => Counter::noop(),
        }
    }

    /// The gauge with these values of the labels.
    pub(crate) fn level(&self, values: &[&str]) -> Gauge {
        match self.series(values) {
            Series::Number(value) => Gauge::from_arc(value),
            Series::Times(_) => Gauge::noop(),
        }
    }

    /// The histogram with these values of the labels.
    pub(crate) fn times(&self, values: &[&str]) -> Histogram {
        match self.series(values) {
            Series::Times(times) => Histogram::from_arc(times),
            Series::Number(_) => Histogram::noop(),
        }
    }

    /// The value of the counter with these values of the labels; 0 if it has no handle.
    pub(crate) fn value(&self, values: &[&str]) -> u64 {
        match self.series.lock().get(&self.labels("", values)) {
            Some(Series::Number(value)) => value.load(Relaxed),
            _ => 0,
        }
    }

    /// The series with these labels, the same one for as long as a handle of it exists.
    fn series(&self, values: &[&str]) -> Series {
        let labels = self.labels("", values);
        let mut all = self.series.lock();
        if let Some(known) = all.get(&labels) {
            return known.clone();
        }
        let new = Series::new(self.kind);
        match self.most_series() {
            // No more than the declaration allows: further values are counted nowhere.
            Some(most) if all.len() >= most => return new,
            Some(_) => {}
            // Often enough to bound the map, and rarely enough to cost nothing.
            None if all.len().is_power_of_two() => all.retain(|_, series| series.has_handle()),
            None => {}
        }
        all.insert(labels, new.clone());
        new
    }

    /// How many series there can be; `None` if names of the configuration bound them.
    fn most_series(&self) -> Option<usize> {
        self.labels.iter().try_fold(1, |most, label| Some(most * label.values?))
    }

    /// Writes the help, the type and the series that have a handle. A metric without such a series is left out, unless it
    /// has `given` lines of others.
    pub(super) fn write(&self, text: &mut String, given: Option<&str>) {
        let mut series = self.series.lock();
        if self.most_series().is_none() {
            series.retain(|_, series| series.has_handle());
        }
        if series.is_empty() && given.is_none() {
            return;
        }
        let Self { name, kind, help, .. } = self;
        // Writing to a string cannot fail.
        let _ = writeln!(text, "# HELP {name}{help}\n# TYPE {name} {}", kind.name());
        for (labels, series) in series.iter() {
            match series {
                Series::Number(value) if matches!(kind, MetricKind::Gauge) => {
                    let value = f64::from_bits(value.load(Relaxed));
                    if value == f64::INFINITY {
                        self.write_value(text, labels, "+Inf");
                    } else {
                        self.write_value(text, labels, value);
                    }
                }
                Series::Number(value) => self.write_value(text, labels, value.load(Relaxed)),
                Series::Times(times) => {
                    times.write(text, name, labels, TimeHistogram::bounds().len());
                }
            }
        }
        text.push_str(given.unwrap_or_default());
    }

    /// Writes the line of one value with these labels.
    pub(super) fn write_value(&self, text: &mut String, labels: &str, value: impl Display) {
        let braced = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{}{braced} {value}", self.name);
    }

    /// The text of all labels: `first` is that of the first ones, and `last` has the values of those after them.
    pub(super) fn labels(&self, first: &str, last: &[&str]) -> String {
        let names = &self.labels[self.labels.len().saturating_sub(last.len())..];
        let last = names.iter().zip(last).map(|(label, value)| label.text(value));
        let all = (!first.is_empty()).then(|| first.to_owned()).into_iter().chain(last);
        all.collect::<Vec<_>>().join(",")
    }
}

// === impl MetricKind ===

impl MetricKind {
    fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

// === impl Series ===

impl Series {
    fn new(kind: MetricKind) -> Self {
        match kind {
            MetricKind::Counter | MetricKind::Gauge => Self::Number(Arc::default()),
            MetricKind::Histogram => Self::Times(Arc::default()),
        }
    }

    fn has_handle(&self) -> bool {
        match self {
            Self::Number(value) => Arc::strong_count(value) > 1,
            Self::Times(times) => Arc::strong_count(times) > 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUTE: Label = configured("route");

    #[test]
    fn a_series_ends_with_its_last_handle() {
        static WAITS: Metric = Metric::new("waits", MetricKind::Gauge, &[ROUTE], " Requests.");
        let (one, same) = (WAITS.level(&["a"]), WAITS.level(&["a"]));
        one.increment(2.0);
        same.decrement(0.5);
        let mut text = String::new();
        WAITS.write(&mut text, None);
        assert!(text.ends_with("waits{route=\"a\"} 1.5\n"), "{text}");
        drop((one, same));
        text.clear();
        WAITS.write(&mut text, None);
        assert_eq!(text, "");
    }

    #[test]
    fn series_without_handles_are_dropped_without_a_scrape() {
        static CALLS: Metric = Metric::new("calls", MetricKind::Counter, &[ROUTE], " Calls.");
        for i in 0..10_000 {
            CALLS.count(&[&i.to_string()]).increment(1);
        }
        assert!(CALLS.series.lock().len() <= 2);
    }

    #[test]
    fn closed_labels_keep_their_series_and_get_no_others() {
        const RESULT: Label = closed("result", 2);
        static ENDS: Metric = Metric::new("ends", MetricKind::Counter, &[RESULT], " Ends.");
        for result in ["ok", "error", "third", "ok"] {
            ENDS.count(&[result]).increment(1);
        }
        assert_eq!(["ok", "error", "third"].map(|result| ENDS.value(&[result])), [2, 1, 0]);
    }

    #[test]
    fn labels_are_escaped() {
        let text = [r"a\b", r"a\\b", "\"\n"].map(|value| ROUTE.text(value));
        assert_eq!(text, [r#"route="a\\b""#, r#"route="a\\b""#, r#"route="\"\n""#]);
    }
}
