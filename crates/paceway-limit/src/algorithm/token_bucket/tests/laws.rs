//! The laws of a token bucket as properties, compared with models that search by brute force.

use super::*;
use proptest::prelude::*;

#[derive(Debug, Clone)]
struct Step {
    after: Micros,
    cost: i64,
    budget: Micros,
    gives_back: Option<usize>,
}

fn steps(longest: Micros) -> impl Strategy<Value = Vec<Step>> {
    let budget = prop_oneof![Just(0), 0..4 * longest];
    let step = (0..longest, 1..4i64, budget, prop::option::weighted(0.3, 0..6usize));
    let step = step.prop_map(move |(after, cost, budget, gives_back)| Step {
        after: after * after / longest,
        cost,
        budget,
        gives_back,
    });
    prop::collection::vec(step, 1..60)
}

/// A rule with whole µs a permit, small enough to search by brute force.
fn small() -> impl Strategy<Value = TokenBucket> {
    (1..30i64, 1..6i64).prop_map(|(per, burst)| rule(1, per, burst.max(3)))
}

fn any() -> impl Strategy<Value = TokenBucket> {
    (1..40i64, 40..900i64, 3..8i64).prop_map(|(count, period, burst)| rule(count, period, burst))
}

/// The law itself: in no half-open interval `[a, a + t)` of whole µs more than `burst + t·den/per`.
pub(super) fn obeys(rule: TokenBucket, grants: &mut [(Micros, i64)]) -> bool {
    grants.sort_unstable();
    (0..grants.len()).all(|first| {
        let mut permits = 0;
        grants[first..].iter().all(|(at, cost)| {
            permits += cost;
            let t = at - grants[first].0 + 1;
            (permits - rule.burst) * rule.per <= t * rule.den
        })
    })
}

/// The first µs at which a grant breaks no closed interval of what was granted before: obviously the rule,
/// and obviously slow. For whole µs a permit.
fn brute_force(rule: TokenBucket, grants: &[(Micros, i64)], now: Micros, cost: i64) -> Micros {
    let fits = |at: Micros| {
        grants.iter().map(|grant| grant.0).chain([at]).all(|from| {
            let inside = grants.iter().filter(|grant| (from..=at).contains(&grant.0));
            let permits: i64 = inside.map(|grant| grant.1).sum::<i64>() + cost;
            from > at || (permits - rule.burst) * rule.per <= at - from
        })
    };
    let last = grants.iter().map(|grant| grant.0).max().unwrap_or(now);
    (now.max(last)..).find(|at| fits(*at)).expect("some instant")
}

proptest! {
    #![proptest_config(crate::algorithm::tests::cases(512))]

    #[test]
    fn without_gifts_it_is_the_rule_itself(rule in small(), steps in steps(60)) {
        let (mut bucket, mut grants, mut now) = (Bucket { rule, state: None }, Vec::new(), T0);
        for Step { after, cost, budget, .. } in steps {
            now += after;
            let expected = brute_force(rule, &grants, now, cost);
            match bucket.ask(now, cost, budget) {
                Ok((at, _)) => {
                    prop_assert_eq!(at, expected);
                    grants.push((at, cost));
                }
                Err(wait) => {
                    prop_assert_eq!(now + wait, expected);
                    prop_assert!(wait > budget);
                }
            }
        }
    }

    #[test]
    fn never_too_many_whatever_is_given_back(rule in any(), steps in steps(900)) {
        let mut bucket = Bucket { rule, state: None };
        let (mut grants, mut now) = (Vec::new(), T0);
        for Step { after, cost, budget, gives_back } in steps {
            now += after;
            if let Ok((at, grant)) = bucket.ask(now, cost, budget) {
                grants.push((at, cost, grant));
            }
            // Only who still waits can leave.
            let waiting: Vec<_> = (0..grants.len()).filter(|i| grants[*i].0 > now).collect();
            if let Some(i) = gives_back.and_then(|i| waiting.get(i)) {
                let (_, cost, grant) = grants.remove(*i);
                prop_assert!(bucket.refund(now, grant, cost));
            }
        }
        let mut grants: Vec<_> = grants.into_iter().map(|(at, cost, _)| (at, cost)).collect();
        prop_assert!(obeys(rule, &mut grants), "{:?}", grants);
    }

    #[test]
    fn what_was_never_used_may_be_given_back_at_any_time(rule in any(), steps in steps(900)) {
        let mut bucket = Bucket { rule, state: None };
        let (mut grants, mut now) = (Vec::new(), T0);
        for Step { after, cost, budget, gives_back } in steps {
            now += after;
            if let Some(i) = gives_back.filter(|i| *i < grants.len()) {
                let (_, cost, grant) = grants.remove(grants.len() - 1 - i);
                bucket.refund(now, grant, cost);
            }
            if let Ok((at, grant)) = bucket.ask(now, cost, budget) {
                grants.push((at, cost, grant));
            }
        }
        let mut grants: Vec<_> = grants.into_iter().map(|(at, cost, _)| (at, cost)).collect();
        prop_assert!(obeys(rule, &mut grants), "{:?}", grants);
    }

    #[test]
    fn what_was_given_back_is_there_for_the_next(rule in any(), waiters in 2..20usize, leaves in 0..20usize) {
        let mut bucket = Bucket { rule, state: None };
        let grants: Vec<_> = (0..rule.burst as usize + waiters)
            .map(|_| bucket.ask(T0, 1, MAX_BUDGET).expect("granted"))
            .collect();
        let (at, grant) = grants[rule.burst as usize + leaves % waiters];
        let last = grants.last().expect("some").0;
        prop_assert!(bucket.refund(T0, grant, 1));
        prop_assert_eq!(bucket.ask(T0, 1, MAX_BUDGET).expect("granted").0, at);
        prop_assert!(bucket.ask(T0, 1, MAX_BUDGET).expect("granted").0 >= last);
    }

    #[test]
    fn retry_after_is_true_and_not_a_microsecond_too_late(rule in any(), steps in steps(900)) {
        let mut bucket = Bucket { rule, state: None };
        let mut now = T0;
        for Step { after, cost, budget, gives_back } in steps {
            now += after;
            let before = bucket.state.clone();
            match bucket.ask(now, cost, budget) {
                Err(wait) => {
                    prop_assert_eq!(&bucket.state, &before, "a refusal leaves no trace");
                    let retry = wait - budget;
                    let ask = |bucket: &Bucket, now| {
                        Bucket { rule, state: bucket.state.clone() }.ask(now, cost, budget).is_ok()
                    };
                    prop_assert!(ask(&bucket, now + retry), "too early");
                    prop_assert!(!ask(&bucket, now + retry - 1), "too late");
                }
                Ok((at, grant)) if gives_back.is_some() && at > now => {
                    prop_assert!(bucket.refund(now, grant, cost));
                }
                Ok(_) => {}
            }
        }
    }

    #[test]
    fn forgetting_equals_full(rule in any(), steps in steps(900), late in 0..1000i64, cost in 1..4i64) {
        let mut bucket = Bucket { rule, state: None };
        let mut now = T0;
        for Step { after, cost, budget, .. } in steps {
            now += after;
            let _ = bucket.ask(now, cost, budget);
        }
        if let Some((_, ttl)) = Open::new(bucket.state.as_mut(), now, rule).close() {
            let then = now + ttl + late;
            let kept = Open::new(bucket.state.as_mut(), then, rule);
            let gone = Open::new(None, then, rule);
            prop_assert_eq!(kept.earliest(0, cost), gone.earliest(0, cost));
            prop_assert_eq!(kept.level(), gone.level());
            let just_before = Open::new(bucket.state.as_mut(), now + ttl - 1, rule);
            prop_assert!(just_before.close().is_some());
        }
    }

    #[test]
    fn remaining_permits_are_there_and_no_more(rule in any(), steps in steps(900)) {
        let mut bucket = Bucket { rule, state: None };
        let mut now = T0;
        for Step { after, budget, .. } in steps {
            now += after;
            let _ = bucket.ask(now, 1, budget);
            let level = Open::new(bucket.state.as_mut(), now, rule).level();
            let mut copy = Bucket { rule, state: bucket.state.clone() };
            let taken = (0..).take_while(|_| copy.ask(now, 1, 0).is_ok()).count();
            prop_assert_eq!(level.remaining, taken as i64);
            prop_assert_eq!(level.next == 0, taken > 0);
        }
    }

    #[test]
    fn two_limiters_pass_all_or_nothing_and_both_obey(
        rules in (any(), any()),
        steps in steps(900),
    ) {
        let rules = [rules.0, rules.1];
        let mut states: [Option<AnyState>; 2] = [None, None];
        let (mut grants, mut now) = ([Vec::new(), Vec::new()], T0);
        for Step { after, cost, budget, gives_back } in steps {
            now += after;
            // Some requests need only one of them.
            let used = match gives_back { Some(0 | 1) => 0..1, Some(2 | 3) => 1..2, _ => 0..2 };
            let mut open: Vec<_> = used.clone()
                .map(|i| Algorithm::TokenBucket(rules[i]).open(states[i].as_mut(), now))
                .collect();
            let mut wants: Vec<_> =
                open.iter_mut().map(|open| Want { open, cost, enforce: true, gate: None }).collect();
            let reserved = reserve::decide(&mut wants, budget, None);
            if reserved.parts.is_some() {
                for (i, open) in used.zip(open) {
                    states[i] = open.close().map(|(state, _)| state);
                    grants[i].push((now + reserved.at, cost));
                }
            } else {
                prop_assert!(reserved.at > budget);
            }
        }
        for (rule, grants) in rules.into_iter().zip(&mut grants) {
            prop_assert!(obeys(rule, grants), "{:?} {:?}", rule, grants);
        }
    }
}
