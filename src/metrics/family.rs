//! Counters and gauges of the things that a configuration names. The exporter keeps each series for ever, while a reload may
//! remove a route and add another one: after 1,000 reloads it would write the series of 1,000 routes. These series end with
//! their last handle.

use super::lines::{family, label};
use metrics::{Counter, Gauge};
use parking_lot::Mutex;
use std::{
    collections::BTreeMap,
    fmt::Write,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

/// A metric with a series for each name of the configuration.
pub(super) struct SeriesFamily {
    name: &'static str,
    kind: FamilyKind,
    help: &'static str,
    /// The value of each series, by the text of its labels.
    series: Mutex<BTreeMap<String, Weak<AtomicU64>>>,
}

#[derive(Clone, Copy)]
enum FamilyKind {
    Counter,
    /// The value has the bits of an `f64`.
    Gauge,
}

// === impl SeriesFamily ===

impl SeriesFamily {
    pub(super) const fn counter(name: &'static str, help: &'static str) -> Self {
        Self { name, kind: FamilyKind::Counter, help, series: Mutex::new(BTreeMap::new()) }
    }

    pub(super) const fn gauge(name: &'static str, help: &'static str) -> Self {
        Self { name, kind: FamilyKind::Gauge, help, series: Mutex::new(BTreeMap::new()) }
    }

    /// The counter with these labels, the same one for as long as a handle of it exists.
    pub(super) fn count(&self, labels: &[(&str, &str)]) -> Counter {
        Counter::from_arc(self.value(labels))
    }

    /// The gauge with these labels, the same one for as long as a handle of it exists.
    pub(super) fn level(&self, labels: &[(&str, &str)]) -> Gauge {
        Gauge::from_arc(self.value(labels))
    }

    /// The value of the counter with these labels; 0 if it has no handle.
    pub(super) fn counted(&self, labels: &[(&str, &str)]) -> u64 {
        let value = self.series.lock().get(&text_of(labels)).and_then(Weak::upgrade);
        value.map_or(0, |value| value.load(Relaxed))
    }

    fn value(&self, labels: &[(&str, &str)]) -> Arc<AtomicU64> {
        let labels = text_of(labels);
        let mut series = self.series.lock();
        if let Some(value) = series.get(&labels).and_then(Weak::upgrade) {
            return value;
        }
        // Often enough to bound the map, and rarely enough to cost nothing.
        if series.len().is_power_of_two() {
            series.retain(|_, value| value.strong_count() > 0);
        }
        let value = Arc::new(AtomicU64::new(0));
        series.insert(labels, Arc::downgrade(&value));
        value
    }

    /// Writes a line for each series that has a handle.
    pub(super) fn write(&self, text: &mut String) {
        let mut series = self.series.lock();
        series.retain(|_, value| value.strong_count() > 0);
        if series.is_empty() {
            return;
        }
        let kind = match self.kind {
            FamilyKind::Counter => "counter",
            FamilyKind::Gauge => "gauge",
        };
        family(text, self.name, kind, self.help);
        for (labels, value) in series.iter() {
            let value = value.upgrade().map_or(0, |value| value.load(Relaxed));
            // Writing to a string cannot fail.
            let _ = match self.kind {
                FamilyKind::Counter => writeln!(text, "{}{{{labels}}} {value}", self.name),
                FamilyKind::Gauge => {
                    writeln!(text, "{}{{{labels}}} {}", self.name, f64::from_bits(value))
                }
            };
        }
    }
}

/// The labels as the text of `/metrics` contains them.
fn text_of(labels: &[(&str, &str)]) -> String {
    let labels: Vec<_> = labels.iter().map(|(name, value)| label(name, value)).collect();
    labels.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_series_ends_with_its_last_handle() {
        static WAITS: SeriesFamily = SeriesFamily::gauge("waits", "Requests that wait.");
        let (one, same) = (WAITS.level(&[("route", "a")]), WAITS.level(&[("route", "a")]));
        one.increment(2.0);
        same.decrement(0.5);
        let mut text = String::new();
        WAITS.write(&mut text);
        assert!(text.ends_with("waits{route=\"a\"} 1.5\n"), "{text}");
        drop((one, same));
        text.clear();
        WAITS.write(&mut text);
        assert_eq!(text, "");
    }

    #[test]
    fn series_without_handles_are_dropped_without_a_scrape() {
        static CALLS: SeriesFamily = SeriesFamily::counter("calls", "Calls.");
        for i in 0..10_000 {
            CALLS.count(&[("route", &i.to_string())]).increment(1);
        }
        assert!(CALLS.series.lock().len() <= 2);
    }
}
