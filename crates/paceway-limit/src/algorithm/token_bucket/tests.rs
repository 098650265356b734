mod blocks;
mod laws;

use super::*;
use crate::algorithm::{
    Algorithm, MAX_HOLES, Open as AnyOpen, Rule,
    reserve::{self, Want},
    tests::{Law, Limiter, T0},
};
use rstest::rstest;

const SECOND: Micros = 1_000_000;

fn rule(count: i64, period: Micros, burst: i64) -> TokenBucket {
    TokenBucket::new(count, period, burst).expect("a rule")
}

/// A limiter with its own clock.
fn limiter(rule: TokenBucket) -> Limiter {
    let law = Law::Bucket { count: rule.den, period: rule.per, burst: rule.burst };
    Limiter::new(Algorithm::TokenBucket(rule), law)
}

#[rstest]
#[case::no_permits(0, SECOND, 1)]
#[case::no_burst(1, SECOND, 0)]
#[case::negative(-1, SECOND, 1)]
#[case::more_than_one_a_microsecond(1001, 1000, 1)]
#[case::takes_centuries(1, 366 * 86_400 * SECOND, 1_000_000)]
fn refuses_numbers_that_make_no_token_bucket(
    #[case] count: i64,
    #[case] period: Micros,
    #[case] burst: i64,
) {
    assert_eq!(TokenBucket::new(count, period, burst), None);
}

#[rstest]
#[case::reduced(300, 60 * SECOND, 300, (200_000, 1))]
#[case::fraction(7, SECOND, 7, (1_000_000, 7))]
#[case::high(80_000, SECOND, 80_000, (25, 2))]
fn rates_are_reduced(
    #[case] count: i64,
    #[case] period: Micros,
    #[case] burst: i64,
    #[case] (per, den): (i64, i64),
) {
    assert_eq!(rule(count, period, burst), TokenBucket { per, den, burst });
}

#[test]
fn a_full_bucket_gives_its_burst_at_once_then_one_a_period() {
    let mut bucket = limiter(rule(5, SECOND, 5));
    let asks = (0..8).map(|_| bucket.ask(T0, 1, 10 * SECOND).expect("granted").0 - T0);
    let expected = [0, 0, 0, 0, 0, 200_000, 400_000, 600_000];
    assert_eq!(asks.collect::<Vec<_>>(), expected);
}

#[test]
fn a_million_reservations_ahead_end_at_the_exact_microsecond() {
    // 250,000 a second, so that all of them fit into the longest budget.
    let mut open = Open::new(None, T0, rule(3_000_000, 7 * SECOND, 1));
    let mut last = 0;
    for _ in 0..1_000_000 {
        let (at, start) = open.earliest(0, 1, 0);
        open.take(start, 1);
        last = at;
    }
    assert_eq!(last, (999_999 * 7 + 2) / 3);
}

#[rstest]
#[case::a_prime_a_day(123_457, 86_400 * SECOND)]
#[case::a_prime_a_second(999_983, SECOND)]
#[case::a_large_prime_a_minute(10_000_019, 60 * SECOND)]
fn a_rate_beyond_exact_arithmetic_becomes_a_hair_slower(
    #[case] count: i64,
    #[case] period: Micros,
) {
    let TokenBucket { per, den, .. } = rule(count, period, count);
    let excess = i128::from(per) * i128::from(count) - i128::from(period) * i128::from(den);
    assert!(excess >= 0, "faster than asked for");
    let parts_per_million = excess * 1_000_000 / (i128::from(period) * i128::from(den));
    assert!(parts_per_million <= 2, "{parts_per_million} parts in a million slower");
}

#[test]
fn the_next_request_gets_a_refunded_slot() {
    let mut bucket = limiter(rule(1, SECOND, 1));
    let grants: Vec<_> = (0..4).map(|_| bucket.ask(T0, 1, 10 * SECOND).expect("granted")).collect();
    assert!(bucket.refund(T0 + 10, grants[2].1, 1));
    assert_eq!(bucket.ask(T0 + 20, 1, 10 * SECOND).expect("granted").0, T0 + 2 * SECOND);
    assert_eq!(bucket.ask(T0 + 20, 1, 10 * SECOND).expect("granted").0, T0 + 4 * SECOND);
}

#[test]
fn a_refund_of_the_last_slot_restores_the_state() {
    let mut bucket = limiter(rule(1, SECOND, 1));
    bucket.ask(T0, 1, 0).expect("granted");
    let before = bucket.state.clone();
    let (_, grant) = bucket.ask(T0, 1, SECOND).expect("granted");
    assert!(bucket.refund(T0, grant, 1));
    assert_eq!(bucket.state, before);
}

#[test]
fn a_refund_counts_once_in_time_and_in_its_own_state() {
    let mut bucket = limiter(rule(1, SECOND, 1));
    let grants: Vec<_> =
        (0..3).map(|_| bucket.ask(T0, 1, 10 * SECOND).expect("granted").1).collect();
    assert!(bucket.refund(T0, grants[1], 1));
    assert!(!bucket.refund(T0, grants[1], 1), "twice");
    assert!(!bucket.refund(T0 + SECOND + 1, grants[0], 1), "late");
    bucket.state = None;
    bucket.ask(T0 + 7, 1, 0).expect("granted");
    assert!(!bucket.refund(T0 + 8, grants[2], 1), "another state");
}

#[test]
fn an_observing_limiter_does_not_affect_other_limiters() {
    let mut strict = Rule::from(rule(1, SECOND, 1)).open(None, None, T0);
    let mut loose = Rule::from(rule(100, SECOND, 100)).open(None, None, T0);
    let mut decide = || {
        let mut wants = [
            Want { open: &mut strict, cost: 1, enforce: false, gate: None, kept: 0 },
            Want { open: &mut loose, cost: 1, enforce: true, gate: None, kept: 0 },
        ];
        reserve::decide(&mut wants, 0, None)
    };
    let first = decide().parts.expect("admitted");
    let second = decide().parts.expect("admitted");
    assert_eq!((first[0].at, second[0].at), (0, -1));
    assert_eq!((first[1].at, second[1].at), (0, 0));
}

#[rstest]
#[case::same((5, SECOND, 5), 5)]
#[case::faster((50, SECOND, 5), 5)]
#[case::slower((1, SECOND, 5), 5)]
#[case::greater_burst((5, SECOND, 9), 5)]
#[case::smaller_burst((5, SECOND, 3), 5)]
fn a_change_of_the_rule_keeps_an_empty_bucket_empty(
    #[case] (count, period, burst): (i64, Micros, i64),
    #[case] taken: i64,
) {
    let mut bucket = limiter(rule(5, SECOND, 5));
    for _ in 0..taken {
        bucket.ask(T0, 1, 0).expect("granted");
    }
    let next = rule(count, period, burst);
    bucket.rule = Algorithm::TokenBucket(next);
    assert_eq!(bucket.ask(T0, 1, 0), Err(ceil_div(next.per, next.den)));
}

/// The state does not know when the rule changed: a time without grants counts at the faster one. More than a burst never
/// passes at once, and the next change finds the state of the first grant after this one.
#[rstest]
#[case::faster(1, 10)]
#[case::slower(10, 1)]
fn a_change_of_the_rate_of_an_idle_bucket_grants_at_most_a_burst(
    #[case] before: i64,
    #[case] after: i64,
) {
    let mut bucket = limiter(rule(before, SECOND, 10));
    for _ in 0..10 {
        bucket.ask(T0, 1, 0).expect("granted");
    }
    let now = T0 + SECOND;
    let mut granted = 0;
    for rate in [after, before, after] {
        bucket.rule = Algorithm::TokenBucket(rule(rate, SECOND, 10));
        granted += (0..20).filter(|_| bucket.ask(now, 1, 0).is_ok()).count();
    }
    assert_eq!(granted, 10);
}

#[test]
fn two_rules_in_turn_grant_no_free_burst() {
    let mut bucket = limiter(rule(5, SECOND, 5));
    let mut granted = 0;
    for i in 0..40 {
        bucket.rule = Algorithm::TokenBucket(rule(5, SECOND, if i % 2 == 0 { 5 } else { 8 }));
        granted += i32::from(bucket.ask(T0 + i, 1, 0).is_ok());
    }
    assert_eq!(granted, 5);
}

#[test]
fn holes_are_bounded() {
    let mut open = Open::new(None, T0, rule(1, 1000, 1));
    for i in 0..2 * MAX_HOLES as i64 {
        // Each leaves a gap before it, as a request does that waits for another limiter.
        let (_, start) = open.earliest(5000 * (i + 1), 1, 0);
        open.take(start, 1);
    }
    assert_eq!(open.line.holes.len(), MAX_HOLES);
}

/// Two permits are free at the instant that a refusal named, one of them a hole. A caller that comes a moment later, when the hole is
/// past in part, has the rest of it beside the others.
#[test]
fn a_hole_that_is_past_in_part_counts_for_a_floor() {
    let mut bucket = limiter(rule(40, SECOND, 12));
    let grants: Vec<_> =
        (0..38).map(|_| bucket.ask(T0, 1, 2 * SECOND).expect("granted").1).collect();
    // A request that leaves permits to others waits.
    let mut open = bucket.open(T0);
    open.promise(650_000, 925_000, 1);
    bucket.keep(open);
    assert!(bucket.refund(T0, grants[27], 1));
    assert_eq!(bucket.open(T0).earliest(0, 1, 1).0, 675_000);
    for later in [0, 1, 13_000, 24_999, 25_000] {
        assert_eq!(bucket.open(T0 + 675_000 + later).earliest(0, 1, 1).0, 0, "{later} µs later");
    }
}
