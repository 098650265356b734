use super::*;
use crate::algorithm::{
    Algorithm,
    tests::{Law, Limiter, T0, decide},
};
use proptest::prelude::*;
use rstest::rstest;

mod laws;

const SECOND: Micros = 1_000_000;

fn rule(count: i64, period: Micros, margin: Micros, capacity: Option<i64>) -> LeakyBucket {
    LeakyBucket::new(count, period, margin, capacity).expect("a rule")
}

fn limiter(rule: LeakyBucket) -> Limiter {
    let law = Law::Paced { count: rule.pace.den, period: rule.pace.per };
    Limiter::new(Algorithm::LeakyBucket(rule), law)
}

#[rstest]
#[case::no_permits(0, SECOND, 0, None)]
#[case::negative_margin(1, SECOND, -1, None)]
#[case::negative_capacity(1, SECOND, 0, Some(-1))]
#[case::more_than_one_a_microsecond(1001, 1000, 0, None)]
#[case::endless_margin(2, SECOND, i64::MAX, None)]
#[case::takes_centuries(1, 150 * 366 * 86_400 * SECOND, 0, None)]
fn refuses_numbers_that_make_no_leaky_bucket(
    #[case] count: i64,
    #[case] period: Micros,
    #[case] margin: Micros,
    #[case] capacity: Option<i64>,
) {
    assert_eq!(LeakyBucket::new(count, period, margin, capacity), None);
}

#[rstest]
#[case::unbounded(rule(7, SECOND, 0, None), MAX_BUDGET)]
#[case::no_queue(rule(7, SECOND, 0, Some(0)), 0)]
#[case::whole(rule(10, SECOND, 0, Some(5)), 500_000)]
#[case::the_instants_are_rounded_up(rule(7, SECOND, 0, Some(1)), 142_858)]
#[case::with_margin(rule(10, SECOND, 1_000, Some(5)), 505_000)]
#[case::more_than_the_longest_budget(rule(1, SECOND, 0, Some(i64::MAX)), MAX_BUDGET)]
fn a_queue_of_permits_is_a_longest_wait(#[case] rule: LeakyBucket, #[case] longest: Micros) {
    assert_eq!(rule.facts().longest_wait, longest);
}

#[test]
fn permits_leave_one_by_one_and_a_cost_delays_the_next_request() {
    let mut bucket = limiter(rule(5, SECOND, 50_000, None));
    let at = [1, 1, 3, 1].map(|cost| bucket.ask(T0, cost, SECOND * 10).expect("granted").0 - T0);
    assert_eq!(at, [0, 250_000, 500_000, 1_250_000]);
}

#[rstest]
#[case::same(5, 5, 800_000)]
#[case::faster(8, 5, 725_000)]
#[case::much_faster(50, 5, 620_000)]
#[case::slower(1, 5, 1_600_000)]
#[case::with_another_queue(5, 2, 800_000)]
fn a_change_of_the_rule_keeps_the_instants_of_waiters(
    #[case] count: i64,
    #[case] queue: i64,
    #[case] next: Micros,
) {
    let mut bucket = limiter(rule(5, SECOND, 0, Some(5)));
    for _ in 0..4 {
        bucket.ask(T0, 1, MAX_BUDGET).expect("granted");
    }
    bucket.rule = Algorithm::LeakyBucket(rule(count, SECOND, 0, Some(queue)));
    assert_eq!(decide(&mut [&mut bucket], T0, 1, 0).at, next);
}

#[test]
fn two_rules_in_turn_grant_no_free_permits() {
    let mut bucket = limiter(rule(5, SECOND, 0, None));
    let mut granted = 0;
    for i in 0..1000 {
        bucket.rule = Algorithm::LeakyBucket(rule(5, SECOND, i % 2, Some(i % 3)));
        granted += i32::from(bucket.ask(T0 + i * 1000, 1, 0).is_ok());
    }
    // Neither more than 5 a second nor, of course, fewer by more than the margins.
    assert_eq!(granted, 5);
}
