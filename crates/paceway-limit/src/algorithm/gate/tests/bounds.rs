//! Tests of a rate that has only bounds: 5/s at first, between 1/s and 100/s.

use super::*;
use crate::algorithm::nanohertz::nanohertz;
use rstest::rstest;

fn per_second(count: i64) -> Nanohertz {
    nanohertz(count, SECOND)
}

fn found() -> Limiter {
    let bounds = Bounds { start: per_second(5), min: per_second(1), unit: SECOND };
    Limiter { bounds: Some(bounds), ..Limiter::new(bucket(100, SECOND, 1)) }
}

/// The working rate, permits a second.
fn rate(limiter: &mut Limiter, now: Micros) -> f64 {
    limiter.level(now).rate as f64 / per_second(1) as f64
}

/// Requests ask every `gap` for a permit now, and the rest of them is refused. Returns how many are granted.
fn ask_often(limiter: &mut Limiter, [from, until]: [Micros; 2], gap: Micros) -> usize {
    let instants = (from..until).step_by(gap as usize);
    instants.filter(|now| limiter.ask(*now, 1, 0).parts.is_some()).count()
}

fn assert_near(rate: f64, expected: f64) {
    assert!((rate - expected).abs() < 0.02 * expected, "{rate} and not {expected}");
}

#[test]
fn a_rate_begins_with_the_first_one_and_doubles_in_six_units() {
    let mut limiter = found();
    assert_near(rate(&mut limiter, T0), 5.0);
    ask_often(&mut limiter, [T0, T0 + 6 * SECOND], 10_000);
    assert_near(rate(&mut limiter, T0 + 6 * SECOND), 10.0);
    let granted = ask_often(&mut limiter, [T0 + 6 * SECOND, T0 + 12 * SECOND], 10_000);
    // 10/s at first, and 20/s in the end: a third of the way is the mean of a square.
    assert!((72..=80).contains(&granted), "{granted}");
    assert_near(rate(&mut limiter, T0 + 12 * SECOND), 20.0);
    ask_often(&mut limiter, [T0 + 12 * SECOND, T0 + 60 * SECOND], 5_000);
    assert_near(rate(&mut limiter, T0 + 60 * SECOND), 100.0);
}

/// Requests that wait for their slots use a rate as well as those that are refused.
#[test]
fn a_rate_grows_while_requests_wait() {
    let mut limiter = found();
    let mut now = T0;
    while now < T0 + 20 * SECOND {
        limiter.ask(now, 1, 2 * SECOND);
        now += 20_000;
    }
    assert!(rate(&mut limiter, now) > 20.0, "{}", rate(&mut limiter, now));
}

#[test]
fn a_rate_of_which_less_than_half_is_used_does_not_grow() {
    let mut limiter = found();
    ask_often(&mut limiter, [T0, T0 + 60 * SECOND], SECOND / 2);
    // 2/s of 5/s: each guess begins again when two of its permits are not used.
    assert!(rate(&mut limiter, T0 + 60 * SECOND) < 5.5);
    // There is no request, and then many come.
    assert_near(rate(&mut limiter, T0 + 3_600 * SECOND), 5.0);
    assert!(ask_often(&mut limiter, [T0 + 3_600 * SECOND, T0 + 3_601 * SECOND], 1_000) <= 6);
}

#[test]
fn a_refusal_puts_the_knee_below_the_flow() {
    let mut limiter = found();
    ask_often(&mut limiter, [T0, T0 + 17 * SECOND], 10_000);
    let now = T0 + 17 * SECOND;
    assert_near(rate(&mut limiter, now), 33.9);
    assert!(limiter.refuse(now, SECOND, SECOND, 40_000));
    let knee = limiter.gate.clone().expect("a gate").knee as f64 / per_second(1) as f64;
    // 20/s were doubling for 4.9 s, since each guess begins some ms late: 30.9 flowed in the last one.
    assert!((knee - 0.98 * 30.9).abs() < 0.1, "{knee}");
    // It is used for 22 s.
    for second in [2, 12, 22] {
        let rate = rate(&mut limiter, now + second * SECOND);
        assert!((0.98 * knee..=knee).contains(&rate), "{rate} and {knee}");
    }
}

/// A call that was promised by a guess before is refused: that says nothing about the time when nothing was sent.
#[test]
fn a_late_refusal_lowers_a_guess_by_little() {
    let mut limiter = found();
    ask_often(&mut limiter, [T0, T0 + 13 * SECOND], 10_000);
    assert!(limiter.refuse(T0 + 13 * SECOND, SECOND, SECOND, 3 * SECOND));
    let knee = limiter.gate.clone().expect("a gate").knee;
    assert!(knee > per_second(18), "{knee}");
}

/// A reload replaces the bounds by a written rate, or by bounds with another unit.
#[test]
fn a_guess_says_nothing_about_another_rule() {
    const DAY: Micros = 86_400 * SECOND;
    let mut limiter = found();
    limiter.bounds = Some(Bounds { start: nanohertz(100, DAY), min: nanohertz(1, DAY), unit: DAY });
    assert!(limiter.ask(T0, 1, 0).parts.is_some());
    assert!(limiter.ask(T0 + SECOND, 1, 0).parts.is_none());
    let gate = limiter.gate.clone();
    limiter.bounds = None;
    assert!(limiter.ask(T0 + SECOND, 1, 0).parts.is_some());
    limiter.gate = gate;
    limiter.bounds = found().bounds;
    assert_eq!(limiter.gate.as_ref().map(|gate| gate.unit), Some(DAY));
    limiter.ask(T0 + SECOND, 1, MAX_BUDGET);
    assert_eq!(limiter.gate.as_ref().map(|gate| gate.unit), Some(SECOND));
    // And the other way round: a working rate below a written one is no guess.
    let mut written = Limiter::new(bucket(100, SECOND, 1));
    written.pause(T0, SECOND);
    written.bounds = found().bounds;
    assert_near(rate(&mut written, T0 + 2 * SECOND), 5.0);
}

/// An upstream that refuses everything and names no time, or a very short one: each refusal is followed by the time of a permit.
#[rstest]
#[case::none(0)]
#[case::a_millisecond(1_000)]
fn refusals_without_a_pause_keep_the_rate(#[case] span: Micros) {
    let (mut limiter, mut sent) = (found(), 0);
    for now in (T0..T0 + 60 * SECOND).step_by(10_000) {
        if limiter.ask(now, 1, 0).parts.is_some() {
            sent += 1;
            limiter.refuse(now + 2_000, span, SECOND, 2_000);
        }
    }
    // At 1/s in the end.
    assert!((55..=75).contains(&sent), "{sent}");
}

/// A guess counts from its own beginning: 22 days of 500,000,000 a day are more permits than a record counts.
#[test]
fn a_great_count_in_a_long_period_is_exact() {
    let mut limiter = Limiter::new(bucket(1_000_000, SECOND, 1_000_000));
    let (start, unit) = (nanohertz(500_000_000, 86_400 * SECOND), 86_400 * SECOND);
    limiter.bounds = Some(Bounds { start, min: start / 100, unit });
    assert!(limiter.ask(T0, 1_000_000, 0).parts.is_some());
    let next = limiter.ask(T0, 1_000_000, 0).at / SECOND;
    assert!((170..=175).contains(&next), "{next} s: 5,787 permits flow in a second");
}

/// Requests that use one of twenty permits are no reason to grow.
#[test]
fn permits_that_came_back_are_not_used() {
    let mut limiter = Limiter { rule: bucket(100, SECOND, 20), ..found() };
    for now in (T0..T0 + 60 * SECOND).step_by(SECOND as usize) {
        let parts = limiter.ask(now, 20, MAX_BUDGET).parts.expect("granted");
        limiter.refund(now, parts[0].grant, 19);
    }
    assert!(rate(&mut limiter, T0 + 60 * SECOND) < 6.0);
}

/// A rate that was found is kept for a day, also without requests; a guess that no request used is the same as none.
#[test]
fn a_rate_that_was_found_is_remembered() {
    let mut limiter = found();
    ask_often(&mut limiter, [T0, T0 + 13 * SECOND], 10_000);
    limiter.refuse(T0 + 13 * SECOND, SECOND, SECOND, 0);
    let found_rate = limiter.gate.clone().expect("a gate").knee as f64 / per_second(1) as f64;
    // From the end of the pause on, the 28 s of the curve and a day.
    assert_near(rate(&mut limiter, T0 + 86_441 * SECOND), found_rate);
    assert_near(rate(&mut limiter, T0 + 86_443 * SECOND), 5.0);
    let (_, unused) = found().open(T0);
    assert_eq!(unused.map(|gate| gate.ends() <= T0), Some(true));
}

proptest! {
    #![proptest_config(cases(256))]

    /// Whatever is asked, given back and refused, the rate stays within its bounds, grants follow each other at it, and the
    /// `retry_after` of a refusal is true.
    #[test]
    fn a_rate_stays_within_its_bounds(
        [start, min] in [1..200i64, 1..200],
        steps in prop::collection::vec((0..2_000_000i64, 0..10u32, 0..9_000_000i64, 0..9_000_000i64), 1..80),
    ) {
        let mut limiter = found();
        let [start, min] = [start.max(min), min.min(start)].map(per_second);
        limiter.bounds = Some(Bounds { start, min, unit: SECOND });
        let (mut now, mut last) = (T0, 0);
        let mut grants = Vec::new();
        for (after, what, amount, ago) in steps {
            now += after;
            match what {
                0 => {
                    limiter.refuse(now, amount, SECOND.max(amount), ago);
                    last = 0;
                }
                1 | 2 if !grants.is_empty() => {
                    // The last one leaves: another request may have its instant.
                    limiter.refund(now, grants.pop().expect("one"), 1);
                    last = 0;
                }
                _ => {
                    let reserved = limiter.ask(now, 1, amount);
                    grants.extend(reserved.parts.iter().map(|parts| parts[0].grant));
                    if reserved.parts.is_none() {
                        let later = limiter.ask(now + reserved.retry_after, 1, amount);
                        prop_assert!(later.parts.is_some(), "{later:?}");
                        now += reserved.retry_after;
                        last = now + later.at;
                    } else {
                        prop_assert!(now + reserved.at >= last + 9_999, "at most 100/s");
                        last = now + reserved.at;
                    }
                }
            }
            let rate = limiter.level(now).rate;
            // One part in 10^15 is lost by rounding; the rule is that of 100/s.
            prop_assert!(rate >= min.min(per_second(88)) - 2, "{rate} of {min}");
            prop_assert!(rate <= per_second(100), "{rate}");
        }
    }
}
