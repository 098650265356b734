//! The laws of a token bucket as properties, compared with models that search by brute force.

use super::*;
use crate::algorithm::tests::{Step, cases, steps};
use proptest::prelude::*;

/// A rule with whole µs a permit, small enough to search by brute force.
fn small() -> impl Strategy<Value = TokenBucket> {
    (1..30i64, 1..6i64).prop_map(|(per, burst)| rule(1, per, burst.max(3)))
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
    fn without_refunds_a_bucket_equals_its_definition(rule in small(), steps in steps(60)) {
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
}
