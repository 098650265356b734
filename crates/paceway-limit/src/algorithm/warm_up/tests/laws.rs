//! The laws of `docs/limiting.md` on random sequences.

use super::*;
use crate::algorithm::tests::{Step, cases, steps};

/// Permits of 1 to 300 µs, and up to a few hundred of them in a warm-up.
fn odd() -> impl Strategy<Value = WarmUp> {
    (3..40i64, 40..900i64, 1..6_000i64, 1.001..20.0f64)
        .prop_map(|(count, period, warm_up, factor)| rule(count, period, warm_up, factor))
}

/// After a grant, the stable time of its permits is free of other grants, except for less than a µs in all.
fn obeys(rule: WarmUp, grants: &mut [(Micros, i64)]) -> bool {
    grants.sort_unstable();
    (0..grants.len()).all(|first| {
        let mut permits = 0;
        grants[first..].windows(2).all(|pair| {
            permits += pair[0].1;
            permits * rule.pace.per < (pair[1].0 - grants[first].0 + 1) * rule.pace.den
        })
    })
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

    #[test]
    fn refunds_never_let_the_rule_be_exceeded(
        rule in odd(),
        steps in steps(900),
        waits in prop::bool::ANY,
        later in prop::collection::vec(prop_oneof![Just(0), 0..3000i64], 60),
    ) {
        let mut limiter = Limiter::new(rule);
        let (mut grants, mut now) = (Vec::new(), T0);
        for (Step { after, cost, budget, gives_back, .. }, from) in steps.into_iter().zip(later) {
            now += after;
            if from > 0 {
                let (at, grant) = limiter.take_from(now, from, cost);
                prop_assert!(at >= now + from);
                grants.push((at, cost, grant));
            } else if let Ok((at, grant)) = limiter.ask(now, cost, budget) {
                grants.push((at, cost, grant));
            }
            let leaves: Vec<_> = (0..grants.len()).filter(|i| !waits || grants[*i].0 > now).collect();
            if let Some(i) = gives_back.and_then(|i| leaves.get(i)) {
                let (_, cost, grant) = grants.remove(*i);
                let given = limiter.refund(now, grant, cost);
                prop_assert!(given || !waits);
            }
            let open = limiter.open(now);
            prop_assert!((0..=rule.window).contains(&open.cold));
            prop_assert!(open.holes.iter().all(|hole| (0..=rule.window).contains(&hole.cold)));
        }
        let mut grants: Vec<_> = grants.into_iter().map(|(at, cost, _)| (at, cost)).collect();
        prop_assert!(obeys(rule, &mut grants), "{:?}", grants);
    }

    #[test]
    fn a_refunded_slot_goes_to_the_next_request(rule in odd(), waiters in 2..20usize, leaves in 0..20usize) {
        let mut limiter = Limiter::new(rule);
        let grants: Vec<_> =
            (0..=waiters).map(|_| limiter.ask(T0, 1, MAX_BUDGET).expect("granted")).collect();
        let (at, grant) = grants[1 + leaves % waiters];
        let before = limiter.open(T0);
        prop_assert!(limiter.refund(T0, grant, 1));
        prop_assert!(!limiter.refund(T0, grant, 1), "twice");
        prop_assert_eq!(limiter.ask(T0, 1, MAX_BUDGET).expect("granted").0, at);
        let open = limiter.open(T0);
        prop_assert_eq!((open.tail, &open.holes), (before.tail, &before.holes));
        prop_assert!((open.cold - before.cold).abs() <= 2, "{} {}", open.cold, before.cold);
        prop_assert!(limiter.ask(T0, 1, MAX_BUDGET).expect("granted").0 > grants[waiters].0);
    }

    #[test]
    fn an_expired_state_equals_a_cold_limiter(rule in odd(), steps in steps(900), late in 0..1000i64, cost in 1..4i64) {
        let (mut limiter, mut now) = (Limiter::new(rule), T0);
        for Step { after, cost, budget, .. } in steps {
            now += after;
            let _ = limiter.ask(now, cost, budget);
        }
        if let Some((_, ttl)) = limiter.open(now).close() {
            let then = now + ttl + late;
            let (mut kept, mut gone) = (limiter.open(then), Open::new(None, then, rule));
            let start = kept.earliest(0, cost);
            prop_assert_eq!(start, gone.earliest(0, cost));
            prop_assert_eq!(kept.level(), gone.level());
            kept.take(start.1, cost);
            gone.take(start.1, cost);
            prop_assert_eq!((kept.tail, kept.cold), (gone.tail, gone.cold));
            prop_assert!(limiter.open(now + ttl - 1).close().is_some());
        }
    }
}
