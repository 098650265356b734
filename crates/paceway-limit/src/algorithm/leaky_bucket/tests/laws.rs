//! The laws of `docs/limiting.md` on random sequences.

use super::*;
use crate::algorithm::tests::{Step, cases, steps};

/// A rule with whole µs a permit, small enough to search by brute force.
fn small() -> impl Strategy<Value = LeakyBucket> {
    (3..9i64, 1..30i64, 0..3i64)
        .prop_map(|(count, per, margin)| rule(count, count * per, margin, None))
}

/// From when on another limiter of the request can grant, in permits' times: mostly there is none.
fn later() -> impl Strategy<Value = Vec<i64>> {
    let some = prop::collection::vec(prop_oneof![3 => Just(0), 1 => 1..9i64], 60);
    prop_oneof![Just(vec![0; 60]), some]
}

/// The first µs from `from` on at which `cost` permits overlap no other's: obviously the rule.
fn brute_force(per: i64, grants: &[(Micros, i64, Grant)], from: Micros, cost: i64) -> Micros {
    let overlaps = |at: Micros| {
        grants.iter().any(|(start, n, _)| *start < at + cost * per && at < start + n * per)
    };
    (from..).find(|at| !overlaps(*at)).expect("some instant")
}

proptest! {
    #![proptest_config(cases(512))]

    #[test]
    fn a_grant_is_the_first_free_interval(rule in small(), steps in steps(60), later in later()) {
        let per = rule.pace.per;
        // Gaps shorter than a permit are forgotten; where there may be gaps, all is on a grid of permits.
        let gaps = later.iter().any(|later| *later > 0)
            || steps.iter().any(|step| step.gives_back.is_some());
        let grid = if gaps { per } else { 1 };
        let mut bucket = limiter(rule);
        let (mut grants, mut now) = (Vec::<(Micros, i64, Grant)>::new(), T0);
        for (Step { after, cost, budget, gives_back, .. }, later) in steps.into_iter().zip(later) {
            now += after / grid * grid;
            let from = later * per;
            let waiting: Vec<_> = (0..grants.len()).filter(|i| grants[*i].0 >= now).collect();
            if let Some(i) = gives_back.and_then(|i| waiting.get(i)) {
                let (_, cost, grant) = grants.remove(*i);
                prop_assert!(bucket.refund(now, grant, cost));
            }
            let expected = brute_force(per, &grants, now + from, cost);
            if from > 0 {
                let (at, grant) = bucket.take_from(now, from, cost);
                prop_assert_eq!(at, expected);
                grants.push((at, cost, grant));
                continue;
            }
            match bucket.ask(now, cost, budget) {
                Ok((at, grant)) => {
                    prop_assert_eq!(at, expected);
                    grants.push((at, cost, grant));
                }
                Err(retry_after) => prop_assert_eq!(now + budget + retry_after, expected),
            }
        }
    }

    #[test]
    fn exactly_its_capacity_may_wait(
        (count, period, capacity) in (1..40i64, 40..900i64, 0..30i64),
        steps in prop::collection::vec(0..200i64, 1..100),
    ) {
        let rule = rule(count, period, 0, Some(capacity));
        let mut bucket = limiter(rule);
        bucket.ask(T0, 1, 0).expect("granted");
        for i in 1..=capacity {
            let at = bucket.ask(T0, 1, MAX_BUDGET).expect("there is room").0 - T0;
            prop_assert_eq!(at, ceil_div(i * period, count));
        }
        let retry = bucket.ask(T0, 1, MAX_BUDGET).expect_err("the queue is full");
        prop_assert!(bucket.clone().ask(T0 + retry, 1, MAX_BUDGET).is_ok());
        // In the µs in which one leaves the queue another one may enter.
        let (mut now, mut waiting) = (T0, Vec::new());
        for after in steps {
            now += after;
            waiting.retain(|at| *at > now + 1);
            if let Ok((at, _)) = bucket.ask(now, 1, MAX_BUDGET) && at > now + 1 {
                waiting.push(at);
            }
            prop_assert!(waiting.len() as i64 <= capacity);
        }
    }
}
