//! The laws of a fixed window as properties, compared with models that search by brute force.

use super::*;
use crate::algorithm::tests::{Step, cases, steps};
use proptest::prelude::*;

/// A model that keeps every grant that was not refunded: obviously the rule, and obviously slow.
#[derive(Debug, Clone, Copy)]
struct Granted {
    at: Micros,
    cost: i64,
    grant: Grant,
    rule: FixedWindow,
    step: usize,
}

fn same_window(period: Micros, a: Micros, b: Micros) -> bool {
    a.div_euclid(period) == b.div_euclid(period)
}

fn taken(period: Micros, grants: &[Granted], at: Micros) -> i64 {
    grants.iter().filter(|grant| same_window(period, grant.at, at)).map(|grant| grant.cost).sum()
}

/// The first µs whose window has room.
fn brute_force(rule: FixedWindow, grants: &[Granted], from: Micros, cost: i64) -> Micros {
    let fits = |at: &Micros| taken(rule.period, grants, *at) + cost <= rule.count;
    (from..).find(fits).expect("some instant")
}

/// The same beside other rules: in none of their windows are more than the laxer of both allows.
fn brute_force_beside(
    rule: FixedWindow,
    others: &HashMap<Micros, i64>,
    grants: &[Granted],
    from: Micros,
    cost: i64,
) -> Micros {
    let laws = others.iter().filter(|(period, _)| **period != rule.period);
    let laws = laws.map(|(period, count)| {
        (*period, (*count).max(rule.count * crate::algorithm::ceil_div(*period, rule.period)))
    });
    let laws: Vec<_> = laws.chain([(rule.period, rule.count)]).collect();
    let fits =
        |at: &Micros| laws.iter().all(|(period, most)| taken(*period, grants, *at) + cost <= *most);
    (from..).find(fits).expect("some instant")
}

/// A rule whose windows are short enough to search by brute force.
fn small() -> impl Strategy<Value = FixedWindow> {
    (4..9i64, 1..40i64).prop_map(|(count, period)| FixedWindow { count, period })
}

proptest! {
    #![proptest_config(cases(512))]

    #[test]
    fn first_fit_is_what_brute_force_finds(rule in small(), steps in steps(60)) {
        let (mut limiter, mut now) = (Limiter { rule, state: None }, T0);
        let mut grants = Vec::<Granted>::new();
        for (step, Step { after, cost, budget, from, gives_back, .. }) in steps.into_iter().enumerate() {
            now += after;
            if let Some(i) = gives_back.filter(|i| *i < grants.len()) {
                let gift = grants[grants.len() - 1 - i];
                let current = gift.at >= now || same_window(rule.period, gift.at, now);
                prop_assert_eq!(limiter.refund(now, gift.grant, gift.cost), current);
                if current {
                    grants.retain(|grant| grant.step != gift.step);
                }
            }
            let expected = brute_force(rule, &grants, now + from, cost);
            match limiter.ask_from(from, now, cost, from + budget) {
                Ok((at, grant)) => {
                    prop_assert_eq!(at, expected);
                    grants.push(Granted { at, cost, grant, rule, step });
                }
                Err(wait) => {
                    prop_assert_eq!(now + wait, expected);
                    prop_assert!(wait > from + budget);
                }
            }
            prop_assert!(grants.iter().all(|grant| taken(rule.period, &grants, grant.at) <= rule.count));
        }
    }

    /// Three rules that all know each other from the beginning count each other's grants exactly, and keep the laxer.
    #[test]
    fn two_rules_in_use_are_each_first_fit_over_all_grants(
        rules in [small(), small(), small()],
        steps in steps(60),
    ) {
        let mut limiter = Limiter::new(1_000, 1_000 * SECOND);
        let (mut grants, mut now) = (Vec::<Granted>::new(), T0 + 1);
        // By period the count that was used last.
        let mut known = HashMap::new();
        for (step, rule) in [limiter.rule].into_iter().chain(rules).enumerate() {
            limiter.rule = rule;
            known.insert(rule.period, rule.count);
            let (at, grant) = limiter.ask(T0, 1, 0).expect("granted");
            grants.push(Granted { at, cost: 1, grant, rule, step: 1_000 + step });
        }
        for (step, Step { after, from, cost, budget, gives_back, rule }) in steps.into_iter().enumerate() {
            now += after;
            if let Some(i) = gives_back.filter(|i| i + 4 < grants.len()) {
                let gift = grants[grants.len() - 1 - i];
                let current = gift.at >= now || same_window(gift.rule.period, gift.at, now);
                limiter.rule = gift.rule;
                prop_assert_eq!(limiter.refund(now, gift.grant, gift.cost), current);
                if current {
                    known.insert(gift.rule.period, gift.rule.count);
                    grants.retain(|grant| grant.step != gift.step);
                }
            }
            limiter.rule = rules[rule];
            let rule = limiter.rule;
            let expected = brute_force_beside(rule, &known, &grants, now + from, cost);
            match limiter.ask_from(from, now, cost, from + budget) {
                Ok((at, grant)) => {
                    known.insert(rule.period, rule.count);
                    prop_assert_eq!(at, expected);
                    prop_assert!(taken(rule.period, &grants, at) + cost <= rule.count);
                    grants.push(Granted { at, cost, grant, rule, step });
                }
                Err(wait) => prop_assert_eq!(now + wait, expected),
            }
        }
    }

    /// A rule that comes into force at any time is kept from then on, whatever the others do.
    #[test]
    fn a_new_rule_is_never_broken_once_it_is_in_force(
        rules in [small(), small(), small()],
        steps in steps(60),
    ) {
        let mut limiter = Limiter::new(1_000, 1_000 * SECOND);
        limiter.ask(T0, 1, 0).expect("granted");
        let (mut grants, mut now, mut since) = (Vec::<Granted>::new(), T0, HashMap::new());
        for (step, Step { after, from, cost, budget, gives_back, rule }) in steps.into_iter().enumerate() {
            now += after;
            if let Some(i) = gives_back.filter(|i| *i < grants.len()) {
                let gift = grants[grants.len() - 1 - i];
                limiter.rule = gift.rule;
                if limiter.refund(now, gift.grant, gift.cost) {
                    grants.retain(|grant| grant.step != gift.step);
                }
            }
            limiter.rule = rules[rule];
            let rule = limiter.rule;
            if let Ok((at, grant)) = limiter.ask_from(from, now, cost, from + budget) {
                let since = *since.entry(rule.period).or_insert(step);
                grants.push(Granted { at, cost, grant, rule, step });
                let own: Vec<_> = grants.iter().filter(|grant| grant.step >= since).copied().collect();
                prop_assert!(taken(rule.period, &own, at) <= rule.count);
            }
        }
    }

    /// The permits that one rule has promised stay promised under the next.
    #[test]
    fn promised_slots_are_kept_under_another_rule(
        rules in [small(), small()],
        waiters in prop::collection::vec(1..4i64, 1..60),
        after in 0..50i64,
        cost in 1..4i64,
    ) {
        let mut limiter = Limiter { rule: rules[0], state: None };
        let mut grants = Vec::<Granted>::new();
        for (step, cost) in waiters.into_iter().enumerate() {
            let (at, grant) = limiter.ask(T0, cost, MAX_BUDGET).expect("granted");
            grants.push(Granted { at, cost, grant, rule: rules[0], step });
        }
        limiter.rule = rules[1];
        let now = T0 + after;
        // Where the old rule had something promised, the new one has it too.
        if limiter.open(now).reset_after() > 0 {
            let known = HashMap::from([(rules[0].period, rules[0].count)]);
            let expected = brute_force_beside(rules[1], &known, &grants, now, cost);
            prop_assert_eq!(now + limiter.open(now).earliest(0, cost, 0).0, expected);
        }
    }

    #[test]
    fn a_clock_that_jumps_breaks_no_window(
        rule in small(),
        steps in steps(60),
        jumps in prop::collection::vec(-40..60i64, 60),
    ) {
        let (mut limiter, mut now, mut grants) = (Limiter { rule, state: None }, T0, Vec::new());
        for (step, Step { after, cost, budget, from, .. }) in steps.into_iter().enumerate() {
            now += if jumps[step] < 0 { jumps[step] } else { after };
            match limiter.ask_from(from, now, cost, from + budget) {
                Ok((at, grant)) => {
                    prop_assert!(at >= now + from);
                    grants.push(Granted { at, cost, grant, rule, step });
                }
                Err(wait) => prop_assert!(limiter.clone().ask_from(from, now + wait - from, cost, from).is_ok()),
            }
            let (level, mut copy) = (limiter.open(now).level(), limiter.clone());
            let taken = (0..99).take_while(|_| copy.ask(now, 1, 0).is_ok()).count();
            prop_assert_eq!(level.remaining, taken as i64);
        }
        prop_assert!(grants.iter().all(|grant| taken(rule.period, &grants, grant.at) <= rule.count));
    }

    #[test]
    fn no_more_is_given_back_than_was_taken(rule in small(), waiters in 1..20usize) {
        let mut limiter = Limiter { rule, state: None };
        let grants: Vec<_> =
            (0..waiters).map(|_| limiter.ask(T0, 1, MAX_BUDGET).expect("granted").1).collect();
        let all = grants.iter().chain(&grants);
        let given = all.filter(|grant| limiter.refund(T0, **grant, 1)).count();
        prop_assert_eq!(given, waiters);
        prop_assert_eq!(limiter.state, None);
    }

    #[test]
    fn retry_after_is_exact_to_the_microsecond(
        rules in [small(), small(), small()],
        steps in steps(60),
    ) {
        let (mut limiter, mut now) = (Limiter { rule: rules[0], state: None }, T0);
        for Step { after, cost, budget, rule, gives_back, .. } in steps {
            now += after;
            // The rules differ in the count only, so that no section is converted.
            limiter.rule.count = rules[rule].count;
            let before = limiter.state.clone();
            match limiter.ask(now, cost, budget) {
                Err(wait) => {
                    prop_assert_eq!(&limiter.state, &before, "a refusal leaves no trace");
                    let retry = wait - budget;
                    prop_assert!(limiter.clone().ask(now + retry, cost, budget).is_ok(), "too early");
                    prop_assert!(limiter.clone().ask(now + retry - 1, cost, budget).is_err(), "too late");
                }
                Ok((at, grant)) if gives_back.is_some() && at > now => {
                    prop_assert!(limiter.refund(now, grant, cost));
                }
                Ok(_) => {}
            }
        }
    }

    /// Also around a change of the period, where it may be late, because a state is forgotten whole.
    #[test]
    fn a_lone_caller_passes_at_the_announced_instant(
        rules in [small(), small(), small()],
        steps in steps(60),
    ) {
        let (mut limiter, mut now) = (Limiter { rule: rules[0], state: None }, T0);
        for Step { after, cost, budget, rule, .. } in steps {
            now += after;
            limiter.rule = rules[rule];
            if let Err(wait) = limiter.ask(now, cost, budget) {
                prop_assert!(limiter.clone().ask(now + wait - budget, cost, budget).is_ok());
            }
        }
    }

    #[test]
    fn an_expired_state_equals_a_full_limiter(
        rules in [small(), small(), small()],
        steps in steps(60),
        late in 0..100i64,
        cost in 1..4i64,
    ) {
        let (mut limiter, mut now) = (Limiter { rule: rules[0], state: None }, T0);
        for Step { after, cost, budget, from, rule, .. } in steps {
            now += after;
            limiter.rule = rules[rule];
            let _ = limiter.ask_from(from, now, cost, budget);
        }
        // As written: the last rule that was admitted.
        let Some(written) = limiter.state.clone() else { return Ok(()) };
        limiter.rule.period = written.sections[0].period;
        if let Some((_, ttl)) = limiter.open(now).close() {
            let then = now + ttl + late;
            let gone = Open::new(None, then, limiter.rule);
            prop_assert_eq!(limiter.open(then).earliest(0, cost, 0), gone.earliest(0, cost, 0));
            prop_assert_eq!(limiter.open(then).level(), gone.level());
            prop_assert!(limiter.open(now + ttl - 1).close().is_some());
        }
    }

    #[test]
    fn exactly_the_reported_permits_are_left(
        rules in [small(), small(), small()],
        steps in steps(60),
    ) {
        let (mut limiter, mut now) = (Limiter { rule: rules[0], state: None }, T0);
        for Step { after, budget, rule, .. } in steps {
            now += after;
            limiter.rule = rules[rule];
            let _ = limiter.ask(now, 1, budget);
            let level = limiter.open(now).level();
            let mut copy = limiter.clone();
            let taken = (0..99).take_while(|_| copy.ask(now, 1, 0).is_ok()).count();
            prop_assert_eq!(level.remaining, taken as i64);
            prop_assert_eq!(level.next == 0, taken > 0);
            prop_assert_eq!(limiter.clone().ask(now, 1, level.next).map(|grant| grant.0), Ok(now + level.next));
        }
    }
}
