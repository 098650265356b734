//! The laws of a token bucket as properties, compared with models that search by brute force.

use super::*;
use crate::algorithm::tests::{Step, cases, steps};
use proptest::prelude::*;

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
    #![proptest_config(cases(512))]

    #[test]
    fn without_gifts_it_is_the_rule_itself(rule in small(), steps in steps(60)) {
        let (mut bucket, mut grants, mut now) = (limiter(rule), Vec::new(), T0);
        for Step { after, cost, budget, .. } in steps {
            now += after;
            let expected = brute_force(rule, &grants, now, cost);
            match bucket.ask(now, cost, budget) {
                Ok((at, _)) => {
                    prop_assert_eq!(at, expected);
                    grants.push((at, cost));
                }
                Err(retry_after) => {
                    prop_assert_eq!(now + budget + retry_after, expected);
                    prop_assert!(retry_after > 0);
                }
            }
        }
    }

    #[test]
    fn what_was_never_used_may_be_given_back_at_any_time(rule in any(), steps in steps(900)) {
        let mut bucket = limiter(rule);
        let (mut grants, mut now) = (Vec::new(), T0);
        for Step { after, cost, budget, gives_back, .. } in steps {
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
        let mut bucket = limiter(rule);
        let grants: Vec<_> = (0..rule.burst as usize + waiters)
            .map(|_| bucket.ask(T0, 1, MAX_BUDGET).expect("granted"))
            .collect();
        let (at, grant) = grants[rule.burst as usize + leaves % waiters];
        let last = grants.last().expect("some").0;
        prop_assert!(bucket.refund(T0, grant, 1));
        prop_assert_eq!(bucket.ask(T0, 1, MAX_BUDGET).expect("granted").0, at);
        prop_assert!(bucket.ask(T0, 1, MAX_BUDGET).expect("granted").0 >= last);
    }
}
