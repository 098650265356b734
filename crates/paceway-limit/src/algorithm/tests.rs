//! The laws of `docs/limiting.md` for all algorithms, also for several of them in one request, compared with
//! models that know nothing of how the rules work. A law that only one algorithm promises is tested in that
//! algorithm's own file.

mod changes;
mod exact;
mod laws;
mod side_by_side;
mod together;
mod upstream;

use super::{
    reserve::{self, Reserved, Want},
    *,
};
use proptest::prelude::*;

pub(crate) const T0: Micros = 1_700_000_000_000_000;

/// Runs a property with `default` cases, or with as many as the environment variable `PROPTEST_CASES` says. A longer run
/// (20,000, say) needs no change of the code.
pub(crate) fn cases(default: u32) -> ProptestConfig {
    match std::env::var_os("PROPTEST_CASES") {
        Some(_) => ProptestConfig::default(),
        None => ProptestConfig::with_cases(default),
    }
}

/// A request of the tests of one algorithm, which waits for another limiter for the time `from`.
#[derive(Debug, Clone)]
pub(crate) struct Step {
    pub(crate) after: Micros,
    pub(crate) from: Micros,
    pub(crate) cost: i64,
    pub(crate) budget: Micros,
    /// Which of the last grants is given back.
    pub(crate) gives_back: Option<usize>,
    /// Which of three rules the request uses, in tests with several.
    pub(crate) rule: usize,
}

/// Requests at most `longest` µs apart.
pub(crate) fn steps(longest: Micros) -> impl Strategy<Value = Vec<Step>> {
    let budget = prop_oneof![Just(0), 0..4 * longest];
    let from = prop_oneof![2 => Just(0), 1 => 0..3 * longest];
    let gives_back = prop::option::weighted(0.3, 0..6usize);
    let step = (0..longest, from, 1..4i64, budget, gives_back, 0..3usize);
    let step = step.prop_map(move |(after, from, cost, budget, gives_back, rule)| Step {
        after: after * after / longest,
        from,
        cost,
        budget,
        gives_back,
        rule,
    });
    prop::collection::vec(step, 1..60)
}

/// A limiter: its rule, what that allows in the words of a user, and its state.
#[derive(Debug, Clone)]
pub(crate) struct Limiter {
    pub(crate) rule: Algorithm,
    pub(crate) law: Law,
    pub(crate) state: Option<State>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Law {
    /// In any `t` µs at most `burst + t·count/period` permits.
    Bucket { count: i64, period: Micros, burst: i64 },
    /// After a grant, the time that its permits take is free of grants.
    Paced { count: i64, period: Micros },
    /// In any half-open window of `span` µs at most `count`.
    Sliding { count: i64, span: Micros },
    /// In each window since the epoch at most `count`.
    Fixed { count: i64, period: Micros },
}

// === impl Limiter ===

impl Limiter {
    pub(crate) fn new(rule: Algorithm, law: Law) -> Self {
        Self { rule, law, state: None }
    }

    pub(crate) fn token_bucket(count: i64, period: Micros, burst: i64) -> Self {
        let rule = TokenBucket::new(count, period, burst).expect("a rule");
        Self::new(Algorithm::TokenBucket(rule), Law::Bucket { count, period, burst })
    }

    pub(crate) fn leaky_bucket(
        count: i64,
        period: Micros,
        margin: Micros,
        capacity: Option<i64>,
    ) -> Self {
        let rule = LeakyBucket::new(count, period, margin, capacity).expect("a rule");
        let law = Law::Paced { count, period: period + count * margin };
        Self::new(Algorithm::LeakyBucket(rule), law)
    }

    pub(crate) fn warm_up(count: i64, period: Micros, warm_up: Micros, cold_factor: f64) -> Self {
        let rule = WarmUp::new(count, period, warm_up, cold_factor).expect("a rule");
        Self::new(Algorithm::WarmUp(rule), Law::Paced { count, period })
    }

    pub(crate) fn sliding_window(count: i64, period: Micros, margin: Micros) -> Self {
        let rule = SlidingWindow::new(count, period, margin).expect("a rule");
        Self::new(Algorithm::SlidingWindow(rule), Law::Sliding { count, span: period + margin })
    }

    pub(crate) fn fixed_window(count: i64, period: Micros) -> Self {
        let rule = FixedWindow::new(count, period).expect("a rule");
        Self::new(Algorithm::FixedWindow(rule), Law::Fixed { count, period })
    }

    /// Windows of a calendar at the instants of fixed ones.
    pub(crate) fn calendar_window(count: i64, period: Micros, is_even: bool) -> Self {
        let first = T0 / period * period;
        let rule =
            CalendarWindow::new(count, [0, 1, 2].map(|i| first + i * period)).expect("a rule");
        let rule = if is_even { rule.even() } else { rule };
        Self::new(rule.into(), Law::Fixed { count, period })
    }

    pub(crate) fn open(&self, now: Micros) -> Open {
        self.rule.open(self.state.clone().as_mut(), now)
    }

    pub(crate) fn keep(&mut self, open: Open) {
        self.state = open.close().map(|(state, _)| state);
    }

    pub(crate) fn refund(&mut self, now: Micros, grant: Grant, cost: i64) -> bool {
        let mut open = self.open(now);
        let given = open.refund(grant, cost);
        self.keep(open);
        given
    }

    /// A grant at `from` or later, as another limiter of the request makes it.
    pub(crate) fn take_from(&mut self, now: Micros, from: Micros, cost: i64) -> (Micros, Grant) {
        let mut open = self.open(now);
        let (at, start) = open.earliest(from, cost, 0);
        let grant = open.take(start, cost);
        self.keep(open);
        (now + at, grant)
    }

    /// A request for this one alone.
    pub(crate) fn ask(
        &mut self,
        now: Micros,
        cost: i64,
        budget: Micros,
    ) -> Result<(Micros, Grant), Micros> {
        let reserved = decide(&mut [self], now, cost, budget);
        let parts = reserved.parts.ok_or(reserved.retry_after)?;
        Ok((now + reserved.at, parts[0].grant))
    }
}

// === impl Law ===

impl Law {
    /// Whether grants (instant and permits) obey it: every two of them, and what lies between.
    pub(crate) fn holds(self, grants: &[(Micros, i64)]) -> bool {
        let mut grants: Vec<_> = grants.iter().filter(|(_, cost)| *cost > 0).copied().collect();
        grants.sort_unstable();
        let permits = |grants: &[(Micros, i64)]| grants.iter().map(|(_, cost)| cost).sum::<i64>();
        (0..grants.len()).all(|i| {
            (i..grants.len()).all(|j| {
                let (first, last) = (grants[i].0, grants[j].0);
                let through = permits(&grants[i..=j]);
                // Instants are whole µs: the rule's own lie up to one before them.
                let span = last - first + 1;
                match self {
                    Self::Bucket { count, period, burst } => {
                        (through - burst) * period <= span * count
                    }
                    Self::Paced { count, period } => {
                        i == j || permits(&grants[i..j]) * period < span * count
                    }
                    Self::Sliding { count, span } => last - first >= span || through <= count,
                    Self::Fixed { count, period } => {
                        last / period > first / period || through <= count
                    }
                }
            })
        })
    }
}

/// Decides one request as a store does: a refusal keeps nothing.
pub(crate) fn decide(
    limiters: &mut [&mut Limiter],
    now: Micros,
    cost: i64,
    budget: Micros,
) -> Reserved {
    let open = limiters.iter().map(|limiter| OpenRule::Rate(limiter.open(now)));
    let mut open: Vec<_> = open.collect();
    let mut wants: Vec<_> = open
        .iter_mut()
        .map(|open| Want { open, cost, enforce: true, gate: None, kept: 0 })
        .collect();
    let reserved = reserve::decide(&mut wants, budget, None);
    if reserved.parts.is_some() {
        for (limiter, open) in limiters.iter_mut().zip(open) {
            let OpenRule::Rate(open) = open else { panic!("no rate") };
            limiter.keep(open);
        }
    }
    reserved
}

fn token_bucket() -> BoxedStrategy<Limiter> {
    let any = (3..30i64, 100..2_000i64, 3..8i64);
    any.prop_map(|(count, period, burst)| Limiter::token_bucket(count, period, burst)).boxed()
}

fn leaky_bucket() -> BoxedStrategy<Limiter> {
    let any = (3..30i64, 100..2_000i64, 0..20i64, prop::option::of(0..6i64));
    let rule = |(count, period, margin, queue)| Limiter::leaky_bucket(count, period, margin, queue);
    any.prop_map(rule).boxed()
}

fn warm_up() -> BoxedStrategy<Limiter> {
    let any = (3..40i64, 40..2_000i64, 1..6_000i64, 1.001..20.0f64);
    let rule = |(count, period, window, factor)| Limiter::warm_up(count, period, window, factor);
    any.prop_map(rule).boxed()
}

fn sliding_window() -> BoxedStrategy<Limiter> {
    let any = (3..9i64, 1..600i64, 0..50i64);
    any.prop_map(|(count, period, margin)| Limiter::sliding_window(count, period, margin)).boxed()
}

fn fixed_window() -> BoxedStrategy<Limiter> {
    let any = (3..9i64, 1_000..1_500i64);
    any.prop_map(|(count, period)| Limiter::fixed_window(count, period)).boxed()
}

fn calendar_window() -> BoxedStrategy<Limiter> {
    let any = (3..9i64, 1_000..1_500i64, any::<bool>());
    any.prop_map(|(count, period, is_even)| Limiter::calendar_window(count, period, is_even))
        .boxed()
}

/// Takes at least three permits at once; one takes some ten to some hundred µs.
fn any_limiter() -> BoxedStrategy<Limiter> {
    let buckets = prop_oneof![token_bucket(), leaky_bucket(), warm_up()];
    prop_oneof![buckets, sliding_window(), fixed_window(), calendar_window()].boxed()
}

#[test]
fn the_keys_of_another_version_have_other_names() {
    let names = [STATE_VERSION, STATE_VERSION + 1, STATE_VERSION + 2].map(in_names);
    assert_eq!(names, ["", "2", "3"]);
}
