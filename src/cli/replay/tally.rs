//! Counts how requests end in a replay, beside how they ended in the log, for each route and each limiter.

use super::log_line::LoggedEnding;
use crate::{
    algorithm::Micros,
    cli::table::{millis, table},
    config::Config,
};
use serde_json::{Value, json};

/// The counts of all routes and limiters.
pub(super) struct Tally {
    routes: Vec<Pair>,
    /// Requests that no route matches, and those that are no valid requests.
    none: Pair,
    limiters: Vec<Pair>,
}

/// The endings in the replay and in the log.
#[derive(Debug, Default)]
struct Pair {
    name: String,
    mode: &'static str,
    replay: Endings,
    recorded: Endings,
}

/// How many requests ended in which way.
#[derive(Debug, Default)]
struct Endings {
    passed: u64,
    waited: u64,
    refused: u64,
    other: u64,
    waits: Waits,
}

/// A histogram of waits, each within 1.6 % of its true value: 64 parts for each power of two, in µs.
#[derive(Debug)]
struct Waits(Box<[u64]>);

const PARTS: u32 = 6;

// === impl Tally ===

impl Tally {
    pub(super) fn new(config: &Config) -> Self {
        let route = |name: &String| Pair { name: name.clone(), ..Pair::default() };
        let limiters = config.limiters.iter();
        Self {
            routes: config.routes.iter().map(|of| route(&of.name)).collect(),
            none: route(&"-".to_owned()),
            limiters: limiters.map(|of| Pair { mode: of.mode.name(), ..route(&of.name) }).collect(),
        }
    }

    /// Counts the end of a request in the log, for the route that the replay found.
    pub(super) fn recorded(
        &mut self,
        route: Option<usize>,
        limiter: Option<&str>,
        ending: LoggedEnding,
        waited: Option<Micros>,
    ) {
        let waited = waited.unwrap_or_default();
        self.route(route).recorded.count(ending, waited);
        if let Some(own) = self.limiters.iter_mut().find(|own| Some(&*own.name) == limiter) {
            own.recorded.count(ending, waited);
        }
    }

    /// Counts the end of a request in the replay.
    pub(super) fn count(&mut self, route: Option<usize>, ending: LoggedEnding, waited: Micros) {
        self.route(route).replay.count(ending, waited);
    }

    /// Counts the verdict of a limiter in the replay.
    pub(super) fn limiter(&mut self, limiter: usize, ending: LoggedEnding, waited: Micros) {
        self.limiters[limiter].replay.count(ending, waited);
    }

    fn route(&mut self, route: Option<usize>) -> &mut Pair {
        match route {
            Some(route) => &mut self.routes[route],
            None => &mut self.none,
        }
    }

    fn all_routes(&self) -> impl Iterator<Item = &Pair> {
        let none = Some(&self.none).filter(|none| none.replay.all() > 0);
        self.routes.iter().chain(none)
    }

    /// Adds the counts to a page, as `routes` and `limiters`.
    pub(super) fn add_to(&self, page: &mut Value) {
        let routes = self.all_routes().map(|pair| {
            json!({ "route": pair.name, "replay": pair.replay.json(), "recorded": pair.recorded.json() })
        });
        let limiters = self.limiters.iter().map(|pair| {
            json!({
                "limiter": pair.name,
                "mode": pair.mode,
                "replay": pair.replay.json(),
                "recorded": pair.recorded.json(),
            })
        });
        page["routes"] = routes.collect();
        page["limiters"] = limiters.collect();
    }

    /// Two tables. Each route and limiter has a line for the replay, and below it one for the log.
    pub(super) fn text(&self) -> String {
        let lines = |pair: &Pair| {
            let name = match pair.mode {
                "" | "enforce" => pair.name.clone(),
                mode => format!("{} ({mode})", pair.name),
            };
            [pair.replay.row(name), pair.recorded.row("  in the log".into())]
        };
        let head = |first| [first, "REQUESTS", "PASS", "WAIT", "P50", "P99", "REFUSE", "OTHER"];
        let routes: Vec<_> = self.all_routes().flat_map(lines).collect();
        let limiters: Vec<_> = self.limiters.iter().flat_map(lines).collect();
        let routes = table(head("ROUTE"), &routes);
        if limiters.is_empty() {
            routes
        } else {
            format!("{routes}\n{}", table(head("LIMITER"), &limiters))
        }
    }
}

// === impl Endings ===

impl Endings {
    fn count(&mut self, ending: LoggedEnding, waited: Micros) {
        match ending {
            LoggedEnding::Passed => self.passed += 1,
            LoggedEnding::Waited => {
                self.waited += 1;
                self.waits.add(waited);
            }
            LoggedEnding::Refused => self.refused += 1,
            LoggedEnding::Other => self.other += 1,
        }
    }

    fn all(&self) -> u64 {
        self.passed + self.waited + self.refused + self.other
    }

    fn json(&self) -> Value {
        let quantile = |part| self.waits.quantile(part).map(|micros| micros as f64 / 1e3);
        json!({
            "requests": self.all(),
            "passed": self.passed,
            "waited": self.waited,
            "refused": self.refused,
            "other": self.other,
            "wait_ms": { "p50": quantile(0.5), "p99": quantile(0.99) },
        })
    }

    fn row(&self, name: String) -> [String; 8] {
        let quantile = |part| {
            let wait = self.waits.quantile(part);
            wait.map_or_else(|| "-".to_owned(), |wait| millis(wait as f64 / 1e3))
        };
        [
            name,
            self.all().to_string(),
            self.passed.to_string(),
            self.waited.to_string(),
            quantile(0.5),
            quantile(0.99),
            self.refused.to_string(),
            self.other.to_string(),
        ]
    }
}

// === impl Waits ===

impl Default for Waits {
    fn default() -> Self {
        Self(vec![0; (64 << PARTS) as usize].into())
    }
}

impl Waits {
    fn add(&mut self, wait: Micros) {
        let wait = u64::try_from(wait).unwrap_or_default();
        let shift = (u64::BITS - wait.leading_zeros()).saturating_sub(PARTS + 1);
        let place = (u64::from(shift) << PARTS) + (wait >> shift);
        self.0[place as usize] += 1;
    }

    /// The wait that this part of all waits does not exceed; `None` without any.
    fn quantile(&self, part: f64) -> Option<Micros> {
        let all: u64 = self.0.iter().sum();
        let rank = ((all as f64 * part).ceil() as u64).max(1);
        let mut seen = 0;
        let place = self.0.iter().position(|count| {
            seen += count;
            seen >= rank
        })? as u64;
        let shift = (place >> PARTS).saturating_sub(1);
        let wait = (place - (shift << PARTS)) << shift;
        Micros::try_from(wait + (1 << shift >> 1)).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_within_a_sixtieth() {
        let mut waits = Waits::default();
        assert_eq!(waits.quantile(0.5), None);
        for wait in 1..=100_000 {
            waits.add(wait * 100);
        }
        for (part, expected) in [(0.5, 5_000_000.0), (0.99, 9_900_000.0), (1.0, 10_000_000.0)] {
            let found = waits.quantile(part).expect("a wait") as f64;
            assert!((found / expected - 1.0).abs() < 1.0 / 60.0, "{part}: {found}");
        }
        let mut one = Waits::default();
        one.add(37);
        assert_eq!([0.01, 0.5, 1.0].map(|part| one.quantile(part)), [Some(37); 3]);
        one.add(Micros::MAX);
    }
}
