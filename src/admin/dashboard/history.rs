//! The counts of routes and upstreams over the last 15 minutes, as differences of the counters that requests update anyway.
//! Every 5 s a tick reads them; a request does nothing for it.

use crate::{
    live::Live,
    plan::{ExchangeTotals, Plan, ROUTE_KINDS, UPSTREAM_KINDS},
};
use serde_json::{Map, Value, json};
use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};
use tokio::time::Instant;

/// The time between two points.
pub(super) const TICK: Duration = Duration::from_secs(5);
/// The number of points: 15 minutes.
const POINTS: u64 = 180;
/// The most routes or upstreams that get a point in one tick; a thousand of them take 5 MB in 15 minutes.
const MOST_POINTS: usize = 1000;
/// The most routes or upstreams that a page lists, those with the most requests.
pub(super) const MOST_LISTED: usize = 50;

/// The history of all routes and upstreams.
pub(super) struct History {
    /// The number of the last tick.
    pub(super) number: u64,
    at: Instant,
    /// The time that the last tick covers, in seconds.
    span: f64,
    routes: CountSeries,
    upstreams: CountSeries,
}

/// The history of things with names.
struct CountSeries {
    /// The names of their counts, in order.
    kinds: [&'static str; 4],
    /// The counts at the last tick.
    before: HashMap<String, ExchangeTotals>,
    /// Points of ticks in which something was counted, the oldest first.
    points: HashMap<String, VecDeque<HistoryPoint>>,
}

/// The counts of one tick.
#[derive(Debug, Clone, Copy, PartialEq)]
struct HistoryPoint {
    tick: u64,
    counts: [u32; 4],
    /// Percentiles of the times, in ms.
    p50: Option<f32>,
    p99: Option<f32>,
}

// === impl History ===

impl Default for History {
    fn default() -> Self {
        let (routes, upstreams) = (CountSeries::new(ROUTE_KINDS), CountSeries::new(UPSTREAM_KINDS));
        Self { number: 0, at: Instant::now(), span: 0.0, routes, upstreams }
    }
}

impl History {
    /// Adds a point for everything that was counted since the last tick.
    pub(super) fn tick(&mut self, live: &Live) {
        let plan = live.plan();
        let (routes, upstreams) = live.totals(&plan);
        let now = Instant::now();
        self.span = (now - self.at).as_secs_f64();
        self.at = now;
        self.number += 1;
        let names = plan.config.routes.iter().map(|route| route.name.as_str());
        self.routes.tick(self.number, names.zip(&routes));
        let names = plan.config.upstreams.iter().map(|upstream| upstream.name.as_str());
        self.upstreams.tick(self.number, names.zip(&upstreams));
    }

    /// The routes with the most requests, with all of their points.
    pub(super) fn routes(&self, plan: &Plan) -> Value {
        let names = plan.config.routes.iter().map(|route| route.name.as_str());
        self.page("routes", &self.routes, names)
    }

    /// The upstreams with the most answers, with all of their points.
    pub(super) fn upstreams(&self, plan: &Plan) -> Value {
        let names = plan.config.upstreams.iter().map(|upstream| upstream.name.as_str());
        self.page("upstreams", &self.upstreams, names)
    }

    fn page<'n>(
        &self,
        name: &str,
        series: &CountSeries,
        names: impl ExactSizeIterator<Item = &'n str>,
    ) -> Value {
        let total = names.len();
        let all = series.busiest(names).into_iter().map(|(name, sums)| {
            let mut said = self.shown(series, name, sums);
            said["points"] = series.points(name, self.number);
            said
        });
        let all: Vec<_> = all.collect();
        json!({ "tick": self.number, "tick_s": TICK.as_secs(), "total": total, name: all })
    }

    /// The routes with the most requests, each with its sums and its last point.
    pub(super) fn routes_now(&self, plan: &Plan) -> Vec<Value> {
        let names = plan.config.routes.iter().map(|route| route.name.as_str());
        let busiest = self.routes.busiest(names).into_iter();
        busiest.map(|(name, sums)| self.shown(&self.routes, name, sums)).collect()
    }

    /// The upstreams with the most answers, each with its sums and its last point.
    pub(super) fn upstreams_now(&self, plan: &Plan) -> Vec<Value> {
        let names = plan.config.upstreams.iter().map(|upstream| upstream.name.as_str());
        let busiest = self.upstreams.busiest(names).into_iter();
        busiest.map(|(name, sums)| self.shown(&self.upstreams, name, sums)).collect()
    }

    fn shown(&self, series: &CountSeries, name: &str, sums: [u64; 4]) -> Value {
        let last = series.points.get(name).and_then(|points| points.back());
        let last = last.filter(|point| point.tick == self.number);
        let counts = last.map_or([0; 4], |point| point.counts);
        let rate = |count: u32| if self.span > 0.0 { f64::from(count) / self.span } else { 0.0 };
        json!({
            "name": name,
            "per_second": series.named(counts.map(rate)),
            "last_tick": series.named(counts),
            "last_15_min": series.named(sums),
            "p50_ms": last.and_then(|point| in_micros(point.p50)),
            "p99_ms": last.and_then(|point| in_micros(point.p99)),
        })
    }
}

// === impl CountSeries ===

impl CountSeries {
    fn new(kinds: [&'static str; 4]) -> Self {
        Self { kinds, before: HashMap::new(), points: HashMap::new() }
    }

    fn tick<'a>(
        &mut self,
        tick: u64,
        all: impl Iterator<Item = (&'a str, &'a ExchangeTotals)> + Clone,
    ) {
        let mut added = 0;
        for (name, totals) in all.clone() {
            let before = self.before.get(name).copied().unwrap_or_default();
            if *totals == before {
                continue;
            }
            let new = totals.since(&before);
            match self.before.get_mut(name) {
                Some(before) => *before = *totals,
                None => drop(self.before.insert(name.to_owned(), *totals)),
            }
            if added == MOST_POINTS {
                continue;
            }
            added += 1;
            let counts = new.counts.map(|count| u32::try_from(count).unwrap_or(u32::MAX));
            let [p50, p99] = [0.5, 0.99].map(|q| new.times.quantile(q).map(|ms| ms as f32));
            let point = HistoryPoint { tick, counts, p50, p99 };
            match self.points.get_mut(name) {
                Some(points) => points.push_back(point),
                None => drop(self.points.insert(name.to_owned(), [point].into())),
            }
        }
        // A reload may have removed some.
        if self.before.len() > all.clone().count() {
            let names: std::collections::HashSet<_> = all.map(|(name, _)| name).collect();
            self.before.retain(|name, _| names.contains(name.as_str()));
        }
        let first = (tick + 1).saturating_sub(POINTS);
        self.points.retain(|name, points| {
            while points.front().is_some_and(|point| point.tick < first) {
                points.pop_front();
            }
            !points.is_empty() && self.before.contains_key(name)
        });
    }

    /// The names with the most requests over the whole history, in the order of the configuration, each with its sums.
    fn busiest<'n>(&self, names: impl Iterator<Item = &'n str>) -> Vec<(&'n str, [u64; 4])> {
        let sums = |name: &str| {
            let points = self.points.get(name).into_iter().flatten();
            points.fold([0; 4], |mut sums: [u64; 4], point| {
                sums.iter_mut().zip(point.counts).for_each(|(sum, count)| *sum += u64::from(count));
                sums
            })
        };
        let mut all: Vec<_> = names.map(|name| (name, sums(name))).enumerate().collect();
        if all.len() > MOST_LISTED {
            all.sort_by_key(|(i, (_, sums))| (std::cmp::Reverse(sums[0]), *i));
            all.truncate(MOST_LISTED);
            all.sort_by_key(|(i, _)| *i);
        }
        all.into_iter().map(|(_, named)| named).collect()
    }

    fn named<T: Into<Value>>(&self, counts: [T; 4]) -> Value {
        let all = self.kinds.iter().zip(counts);
        Value::Object(all.map(|(kind, count)| ((*kind).to_owned(), count.into())).collect())
    }

    /// The counts of each of the last [`POINTS`] ticks up to `last`, the oldest first.
    fn points(&self, name: &str, last: u64) -> Value {
        let none = HistoryPoint { tick: 0, counts: [0; 4], p50: None, p99: None };
        let mut own = self.points.get(name).into_iter().flatten().peekable();
        let first = (last + 1).saturating_sub(POINTS).max(1);
        let all: Vec<_> = (first..=last)
            .map(|tick| own.next_if(|point| point.tick == tick).copied().unwrap_or(none))
            .collect();
        let column =
            |of: &dyn Fn(&HistoryPoint) -> Value| -> Value { all.iter().map(of).collect() };
        let mut said: Map<_, _> = (self.kinds.iter().enumerate())
            .map(|(i, kind)| ((*kind).to_owned(), column(&|point| point.counts[i].into())))
            .collect();
        said.insert("p50_ms".into(), column(&|point| in_micros(point.p50).into()));
        said.insert("p99_ms".into(), column(&|point| in_micros(point.p99).into()));
        Value::Object(said)
    }
}

/// Rounds a time in ms to whole µs, so that 912.4 is not shown as 912.4000244140625.
fn in_micros(ms: Option<f32>) -> Option<f64> {
    ms.map(|ms| (f64::from(ms) * 1e3).round() / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn totals(requests: u64) -> ExchangeTotals {
        ExchangeTotals { counts: [requests, requests / 2, 0, 0], ..ExchangeTotals::default() }
    }

    #[test]
    fn points_are_differences_and_end_after_a_quarter_of_an_hour() {
        let mut series = CountSeries::new(ROUTE_KINDS);
        for tick in 1..=POINTS + 10 {
            // Route `a` counts in each tick, and `b` in the first one alone.
            let both = [totals(tick * 2), totals(7)];
            series.tick(tick, ["a", "b"].into_iter().zip(&both));
            let sums = series.busiest(["a", "b"].into_iter());
            let expected = tick.min(POINTS) * 2;
            assert_eq!(sums[0], ("a", [expected, expected / 2, 0, 0]), "{tick}");
            assert_eq!(sums[1].1[0], if tick <= POINTS { 7 } else { 0 }, "{tick}");
        }
        let said = series.points("a", POINTS + 10);
        assert_eq!(said["requests"], json!(vec![2; 180]));
        assert_eq!(said["p99_ms"], json!(vec![Value::Null; 180]));
        assert_eq!(series.points("b", POINTS + 10)["requests"], json!(vec![0; 180]));
        assert_eq!(series.points.len(), 1);
    }

    #[test]
    fn a_series_that_a_reload_removes_is_forgotten() {
        let mut series = CountSeries::new(ROUTE_KINDS);
        let both = [totals(2), totals(4)];
        series.tick(1, ["a", "b"].into_iter().zip(&both));
        series.tick(2, ["b"].into_iter().zip(&both[1..]));
        assert_eq!((series.before.len(), series.points.len()), (1, 1));
        assert_eq!(series.busiest(["b"].into_iter()), [("b", [4, 2, 0, 0])]);
    }

    #[test]
    fn the_busiest_series_are_listed_in_order() {
        let names: Vec<_> = (0..200).map(|i| format!("r{i:03}")).collect();
        let all: Vec<_> = (0..200).map(totals).collect();
        let mut series = CountSeries::new(ROUTE_KINDS);
        series.tick(1, names.iter().map(String::as_str).zip(&all));
        let busiest = series.busiest(names.iter().map(String::as_str));
        assert_eq!(busiest.len(), MOST_LISTED);
        assert_eq!((busiest[0].0, busiest[49].0), ("r150", "r199"));
    }
}
