//! Saturated limiters of all kinds, which never drift.

use super::*;
use rstest::rstest;

const SECOND: Micros = 1_000_000;
const DAY: Micros = 86_400 * SECOND;

/// A request that comes too early comes back at the very instant that the refusal named.
#[rstest]
#[case::seven_a_second(7, SECOND, 7)]
#[case::eighty_thousand_a_second(80_000, SECOND, 80_000)]
#[case::one_an_hour(1, 3_600 * SECOND, 1)]
#[case::one_a_day(1, DAY, 1)]
#[case::a_prime_a_minute(997, 60 * SECOND, 3)]
fn a_million_saturated_grants_end_at_the_exact_microsecond(
    #[case] count: i64,
    #[case] period: Micros,
    #[case] burst: i64,
) {
    for limiter in [
        Limiter::token_bucket(count, period, burst),
        Limiter::leaky_bucket(count, period, 0, None),
        Limiter::leaky_bucket(count, period, 1234, None),
        Limiter::fixed_window(count, period),
    ] {
        check_a_million(limiter);
    }
}

#[rstest]
#[case::seven_a_second(7, SECOND)]
#[case::one_a_day(1, DAY)]
#[case::a_prime_a_minute(997, 60 * SECOND)]
#[case::ten_thousand(10_000, SECOND)]
fn a_million_grants_of_a_sliding_window_end_at_the_exact_microsecond(
    #[case] count: i64,
    #[case] period: Micros,
) {
    check_a_million(Limiter::sliding_window(count, period, 0));
}

fn check_a_million(mut limiter: Limiter) {
    const GRANTS: i64 = 1_000_000;
    // Windows of all these periods begin at midnight.
    let midnight = (T0 / DAY + 1) * DAY;
    let (mut now, mut granted) = (midnight, 0);
    while granted < GRANTS {
        let mut open = limiter.rule.open(limiter.state.as_mut(), now);
        let (at, start) = open.earliest(0, 1, 0);
        if at == 0 {
            open.take(start, 1);
            granted += 1;
        }
        now += at;
        limiter.keep(open);
    }
    let flow = |permits: i64, count: i64, period: Micros| {
        (i128::from(permits) * i128::from(period) + i128::from(count) - 1) / i128::from(count)
    };
    let exact = match limiter.law {
        Law::Bucket { count, period, burst } => flow(GRANTS - burst, count, period),
        Law::Paced { count, period } => flow(GRANTS - 1, count, period),
        Law::Sliding { count, span } => i128::from((GRANTS - 1) / count * span),
        Law::Fixed { count, period } => i128::from((GRANTS - 1) / count * period),
    };
    assert_eq!(i128::from(now - midnight), exact, "{:?}", limiter.rule);
}
