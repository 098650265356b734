//! A warm-up compared with Guava's, and what the laws of all algorithms look at in a warm-up.

use super::*;
use crate::algorithm::tests::{Step, cases, steps};

impl Open {
    /// Whether each coldness is within the warm-up.
    pub(in crate::algorithm) fn is_sound(&self) -> bool {
        let mut colds = self.holes.iter().map(|hole| hole.cold).chain([self.cold]);
        colds.all(|cold| (0..=self.rule.window).contains(&cold))
    }

    /// How much two states differ in their coldness, ticks; none if they differ in their instants.
    pub(in crate::algorithm) fn colder_by(&self, other: &Self) -> Option<i64> {
        let is_alike = self.tail == other.tail && self.holes == other.holes;
        is_alike.then_some((self.cold - other.cold).abs())
    }
}

proptest! {
    #![proptest_config(cases(512))]

    /// Rounding in all: up to the whole µs of the instant, and a tick a grant in its length and in its
    /// coldness, which later costs as much again. Ticks are very fine here, so it is never a second µs.
    #[test]
    fn saturated_grants_equal_guavas_within_two_microseconds(
        (count, period) in (3..40i64, 40..900_000i64),
        warm_up in 1..20_000_000i64,
        factor in 1001..20_000i64,
        costs in prop::collection::vec(1..4i64, 1..300),
    ) {
        let cold_factor = factor as f64 / 1000.0;
        let mut limiter = Limiter::new(rule(count, period, warm_up, cold_factor));
        let mut guava = Guava::new(period as f64 / count as f64, warm_up as f64, cold_factor);
        for cost in costs {
            let at = limiter.ask(T0, cost, MAX_BUDGET).expect("granted").0 - T0;
            let expected = guava.reserve(0.0, cost as f64);
            prop_assert!(at as f64 >= expected - 0.01, "{} before {}", at, expected);
            prop_assert!(at as f64 <= expected + 2.0, "{} after {}", at, expected);
        }
    }

    /// A request that comes less than a µs after the end of an interval starts at that end, so the limiter
    /// cools down for that much less: a µs a grant, and the time that a µs of coldness can cost.
    #[test]
    fn grants_with_pauses_equal_guavas_within_a_microsecond_each(
        (count, period) in (3..40i64, 4_000..900_000i64),
        warm_up in 1..20_000_000i64,
        factor in 1001..20_000i64,
        steps in steps(2_000_000),
    ) {
        let cold_factor = factor as f64 / 1000.0;
        let rule = rule(count, period, warm_up, cold_factor);
        let mut guava = Guava::new(period as f64 / count as f64, warm_up as f64, cold_factor);
        let (mut limiter, mut now, mut bound) = (Limiter::new(rule), T0, 2.0);
        for Step { after, cost, .. } in steps {
            now += after;
            let at = limiter.ask(now, cost, MAX_BUDGET).expect("granted").0 - T0;
            let expected = guava.reserve((now - T0) as f64, cost as f64);
            prop_assert!((at as f64 - expected).abs() <= bound, "{} {}", at, expected);
            bound += 1.0 + (cold_factor - 1.0) / rule.fall();
        }
    }

    /// Permits of 0.1 to 1 s, so that 6 ms for what is rounded tell a lost permit from none.
    #[test]
    fn grants_with_edits_equal_guavas_with_edits(
        rules in prop::collection::vec((3..10i64, 5_000_000..20_000_000i64, 1_100..9_000i64), 3),
        steps in steps(3_000_000),
        used in prop::collection::vec(0..3usize, 60),
    ) {
        let factor = |i: usize| rules[i].2 as f64 / 1000.0;
        let ours = |i: usize| rule(rules[i].0, 3_000_000, rules[i].1, factor(i));
        let guavas = |i: usize| Guava::new(3_000_000.0 / rules[i].0 as f64, rules[i].1 as f64, factor(i));
        let (mut limiter, mut guava) = (Limiter::new(ours(0)), guavas(0));
        let (mut now, mut written, mut last) = (0, 0, 0);
        for (Step { after, cost, budget, .. }, used) in steps.into_iter().zip(used) {
            now += after;
            limiter.rule = ours(used);
            let mut edited = match used == last {
                true => guava.clone(),
                false => guava.edited(guavas(used), now as f64, written as f64),
            };
            let expected = edited.reserve(now as f64, cost as f64);
            let at = match limiter.ask(T0 + now, cost, budget) {
                Ok((at, _)) => {
                    (guava, written, last) = (edited, now, used);
                    at - T0
                }
                Err(retry_after) => now + budget + retry_after,
            };
            prop_assert!((at as f64 - expected).abs() <= 6_000.0, "{} {}", at, expected);
        }
    }
}
