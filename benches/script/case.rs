//! A saturated limiter on virtual time, and the calls that it grants.

use paceway::{
    algorithm::{
        Algorithm, Concurrency, FixedWindow, LeakyBucket, Rule, SlidingWindow, TokenBucket, WarmUp,
        concurrency::Ticket,
    },
    key::StateNames,
    store::{Check, Checks, Entry, Reply},
};
use std::sync::Arc;

pub(crate) const T0: i64 = 1_700_000_000_000_000;
/// The period of all rules, µs. The keys of a real server expire in real time, so each case is asked again before its
/// period has passed.
const PERIOD: i64 = 100_000_000;
const SIZES: [i64; 3] = [5, 100, 10_000];
const HOUR: i64 = 3_600_000_000;

/// One call of a store: its instant and its entries.
pub(crate) type Call = (i64, Vec<Entry>);

fn rules(n: i64) -> [Rule; 6] {
    [
        Rule::from(TokenBucket::new(n, PERIOD, n).expect("a rule")),
        Rule::from(SlidingWindow::new(n, PERIOD, 0).expect("a rule")),
        Rule::from(FixedWindow::new(n, PERIOD).expect("a rule")),
        Rule::from(LeakyBucket::new(n, PERIOD, 0, None).expect("a rule")),
        Rule::from(WarmUp::new(n, PERIOD, PERIOD / 10, 3.0).expect("a rule")),
        Rule::from(Concurrency::new(n, HOUR).expect("a rule")),
    ]
}

/// A limiter that grants as many permits as its rule allows, `step` of them at one instant.
pub(crate) struct Case {
    pub(crate) checks: Checks,
    pub(crate) n: i64,
    pub(crate) step: i64,
    pub(crate) now: i64,
    /// The numbers of the concurrency permits that are held, oldest first.
    held: std::ops::Range<i64>,
}

// === impl Case ===

impl Case {
    pub(crate) fn all(step: i64) -> Vec<Self> {
        let cases = SIZES.into_iter().flat_map(|n| rules(n).map(|rule| Self::new(rule, n, step)));
        cases.collect()
    }

    fn new(algorithm: Rule, n: i64, step: i64) -> Self {
        let name = format!("{n}:{step}");
        let key = StateNames::new("bench", &name, algorithm.letter(), &name).of(None);
        let check = Check::new(key, algorithm);
        Self { checks: Arc::new([check]), n, step: step.min(n), now: T0, held: 0..0 }
    }

    pub(crate) fn algorithm(&self) -> &Rule {
        &self.checks[0].algorithm
    }

    pub(crate) fn is_lease(&self) -> bool {
        self.checks[0].is_lease()
    }

    /// Makes the calls that fill the state until it no longer grows.
    pub(crate) fn fill(&mut self) -> Vec<Call> {
        let burst =
            matches!(self.algorithm(), Rule::Rate(Algorithm::TokenBucket(_))) || self.is_lease();
        if burst {
            let all = (0..self.n).map(|_| self.decision()).collect();
            return vec![(self.now, all)];
        }
        // The ring drops the slots that are past when they are as many as the others, hence three rounds.
        (0..3 * self.n / self.step).map(|_| self.next()).collect()
    }

    /// Makes the next call, at an instant at which all of it is admitted.
    pub(crate) fn next(&mut self) -> Call {
        // Rounded up: at an instant too early, the call would be refused.
        let permits = self.n / self.step * self.step;
        self.now += (PERIOD * self.step + permits - 1) / permits;
        (self.now, (0..self.step).map(|_| self.decision()).collect())
    }

    fn decision(&mut self) -> Entry {
        let budget = match self.algorithm() {
            // A queue of waiting requests makes their states large.
            Rule::Rate(Algorithm::LeakyBucket(_) | Algorithm::WarmUp(_)) => HOUR,
            _ => 0,
        };
        self.held.end += 1;
        let ticket = self.is_lease().then(|| ticket(self.held.end));
        Entry::Reserve { checks: self.checks.clone(), budget, ticket }
    }

    /// Makes the next calls and, for a concurrency limiter, the releases that have to precede them.
    pub(crate) fn chunk(&mut self, calls: i64) -> (Vec<Call>, Vec<Call>) {
        let calls = if self.is_lease() { calls.min(self.n / self.step) } else { calls };
        let back = (0..if self.is_lease() { calls } else { 0 }).map(|_| self.back()).collect();
        (back, (0..calls).map(|_| self.next()).collect())
    }

    fn back(&mut self) -> Call {
        let entries = (0..self.step).map(|_| {
            self.held.start += 1;
            let grant = Ticket { deadline: 0, ..ticket(self.held.start) }.grant();
            Entry::Refund { check: self.checks[0].clone(), grant }
        });
        (self.now, entries.collect())
    }

    /// Makes a decision that comes too early.
    pub(crate) fn refused(&self) -> Entry {
        let ticket = self.is_lease().then(|| ticket(i64::MAX >> 12));
        Entry::Reserve { checks: self.checks.clone(), budget: 0, ticket }
    }
}

pub(crate) fn ticket(number: i64) -> Ticket {
    Ticket { gateway: 4_503_599_627_370_495, number, deadline: 0 }
}

pub(crate) fn is_given(reply: &Reply) -> bool {
    match reply {
        Reply::Decision(decision) => decision.admitted,
        Reply::Done(done) => *done,
        Reply::HandedOver => true,
        _ => false,
    }
}
