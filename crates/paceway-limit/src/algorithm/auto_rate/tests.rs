use super::*;
use crate::algorithm::{Algorithm, LeakyBucket, SlidingWindow, TokenBucket};
use proptest::prelude::*;
use std::collections::VecDeque;

const SECOND: Micros = 1_000_000;

fn per_second(count: i64) -> Nanohertz {
    nanohertz(count, SECOND)
}

fn rule(start: i64) -> AutoRate {
    let [start, min, max] = [start, 1, 100].map(per_second);
    AutoRate { start, min, max, period: SECOND }
}

fn used() -> RateReport {
    RateReport { used: true, refused: None }
}

fn refused(sent: Micros, rate: Nanohertz) -> RateReport {
    RateReport { used: false, refused: Some(RefusedCall { sent, rate }) }
}

#[test]
fn a_used_rate_grows_by_a_tenth_each_period() {
    let rule = rule(10);
    let mut learned = rule.first(0);
    learned = rule.next(learned, used(), SECOND - 1);
    assert_eq!(learned.rate, per_second(10), "before the end of the period");
    learned = rule.next(learned, RateReport::default(), SECOND);
    assert_eq!(learned.rate, per_second(10), "without use");
    learned = rule.next(learned, used(), SECOND);
    assert_eq!(learned.rate, per_second(11));
    // Another gateway that reports the same period changes nothing.
    assert_eq!(rule.next(learned, used(), SECOND + 1), learned);
    learned = rule.next(learned, used(), 2 * SECOND);
    assert_eq!(learned.rate, nanohertz(121, 10 * SECOND));
}

#[test]
fn a_refused_rate_falls_to_seven_tenths_once_for_each_wave() {
    let rule = rule(10);
    let first = rule.first(0);
    let fallen = rule.next(first, refused(900_000, first.rate), SECOND);
    assert_eq!(fallen.rate, per_second(7));
    // Calls that were sent before the decrease, or before all gateways knew it.
    for sent in [0, 990_000, SECOND, SECOND + WAVE] {
        assert_eq!(rule.next(fallen, refused(sent, first.rate), SECOND + 200_000), fallen);
    }
    let again = rule.next(fallen, refused(SECOND + WAVE + 1, fallen.rate), 2 * SECOND);
    assert_eq!(again.rate, nanohertz(49, 10 * SECOND));
    // The clock is set back.
    let later = LearnedRate { changed: 3600 * SECOND, fell: 3600 * SECOND, ..fallen };
    let later = rule.next(later, RateReport::default(), SECOND);
    assert_eq!(rule.next(later, refused(SECOND + WAVE + 1, fallen.rate), 2 * SECOND), again);
}

#[test]
fn a_refused_rate_is_exceeded_slowly() {
    let rule = rule(10);
    let mut learned = rule.next(rule.first(0), refused(1, per_second(10)), 2);
    let (mut rates, mut now) = (Vec::new(), 2);
    for _ in 0..80 {
        now += SECOND;
        learned = rule.next(learned, used(), now);
        rates.push(learned.rate as f64 / 1e9);
    }
    // 7/s grows to 9.8/s, 2 % below the refused rate, and stays there for 32 s.
    assert_eq!(rates[..4].iter().map(|rate| rate.round()).collect::<Vec<_>>(), [8., 8., 9., 10.]);
    assert_eq!(rates.iter().filter(|rate| (**rate - 9.8).abs() < 1e-6).count(), 32);
    // Steps of a hundredth, and then ever greater ones: the quota has grown.
    assert!(rates[46] < 10.2 && rates[79] > 15.0, "{rates:?}");
}

#[test]
fn the_distance_of_an_accepted_and_a_refused_rate_is_halved() {
    let rule = rule(20);
    let (mut learned, mut now) = (rule.first(0), 0);
    let mut steps = Vec::new();
    // The upstream accepts 29/s. Each of its refusals is known at once.
    for _ in 0..44 {
        now += SECOND;
        let before = learned.rate;
        let report = match before > per_second(29) {
            true => refused(now, before),
            false => used(),
        };
        learned = rule.next(learned, report, now);
        if learned.rate != before {
            steps.push((learned.rate as f64 / 1e8).round() / 10.0);
        }
    }
    // 29.3 is refused, 26.6 was accepted; 28 is, 28.6 is, and 29.3 is not tried again for 32 s.
    let expected = [22.0, 24.2, 26.6, 29.3, 20.5, 22.5, 24.8, 27.3, 28.0, 28.6];
    assert_eq!(steps, expected);
}

/// A run of 20,000 found it: refusals of calls that were promised at a lower rate leave the accepted rate at half of the
/// refused one. The rate grew by a sixth from there.
#[test]
fn a_step_halfway_to_a_distant_rate_is_a_tenth() {
    let rule = rule(5);
    let [rate, refused, accepted] = [287, 382, 191].map(per_second);
    let learned = LearnedRate { rate, changed: 0, fell: 1, refused, accepted, hold: FIRST_HOLD };
    let rule = AutoRate { max: per_second(1000), ..rule };
    let report = RateReport { used: true, refused: None };
    let next = rule.next(learned, report, NEAR * rule.period);
    assert!(next.rate > rate && next.rate <= rate + rate / 10, "{next:?}");
}

#[test]
fn the_text_of_a_record_is_read_again() {
    let learned = rule(5).next(rule(5).first(7), refused(8, per_second(5)), 9);
    assert_eq!(LearnedRate::parse(&learned.text()), Some(learned));
    for wrong in [
        "",
        "2 5 1 1 1 1 16",
        "1 5 1 1 1 1",
        "1 5 1 1 1 1 16 1",
        "1 -5 1 1 1 1 16",
        "1 5 1 1 1 1 129",
    ] {
        assert_eq!(LearnedRate::parse(wrong), None, "{wrong}");
    }
}

#[test]
fn a_rule_at_another_rate_keeps_its_burst_or_its_period() {
    let bucket = Algorithm::TokenBucket(TokenBucket::new(5, SECOND, 5).unwrap());
    let expected = Algorithm::TokenBucket(TokenBucket::new(10, SECOND, 5).unwrap());
    assert_eq!(bucket.at_rate(per_second(10), 1), Some(expected));
    let window = Algorithm::SlidingWindow(SlidingWindow::new(5, SECOND, 30_000).unwrap());
    let expected = Algorithm::SlidingWindow(SlidingWindow::new(10, SECOND, 30_000).unwrap());
    assert_eq!(window.at_rate(per_second(10), 1), Some(expected));
    // A request of 3 permits needs a window of 3.
    let slow = SlidingWindow::new(3, 3 * SECOND, 30_000).unwrap();
    assert_eq!(window.at_rate(per_second(1), 3), Some(Algorithm::SlidingWindow(slow)));
    let leaky = Algorithm::LeakyBucket(LeakyBucket::new(5, SECOND, 10, Some(3)).unwrap());
    let expected = LeakyBucket::new(5, SECOND / 2, 10, Some(3)).unwrap();
    assert_eq!(leaky.at_rate(per_second(10), 1), Some(Algorithm::LeakyBucket(expected)));
    for rule in [bucket, window, leaky] {
        assert_eq!(rule.rate(), per_second(5), "{rule:?}");
        assert_eq!(rule.at_rate(per_second(20), 1).unwrap().rate(), per_second(20), "{rule:?}");
    }
}

proptest! {
    /// Whatever is reported, the rate stays within its bounds, and one step is never more than a tenth up or three down.
    #[test]
    fn a_rate_stays_within_its_bounds(
        start in 1_000..MAX_RATE,
        [a, b] in [1_000..MAX_RATE, 1_000..MAX_RATE],
        period in 1_000..3_600_000_000i64,
        reports in prop::collection::vec((0..5_000_000_000i64, any::<bool>(), any::<Option<u32>>(), 0..MAX_RATE), 1..60),
    ) {
        let rule = AutoRate { start, min: a.min(b), max: a.max(b), period };
        let (mut learned, mut now) = (rule.first(0), 0);
        for (span, used, ago, rate) in reports {
            now += span;
            let refused = ago.map(|ago| RefusedCall { sent: now - i64::from(ago), rate });
            let next = rule.next(learned, RateReport { used, refused }, now);
            prop_assert!((rule.min..=rule.max).contains(&next.rate));
            prop_assert!(next.rate <= learned.rate + learned.rate / 10 + 1);
            prop_assert!(next.rate >= learned.rate / 10 * 7);
            let is_same = LearnedRate { accepted: learned.accepted, ..next } == learned;
            prop_assert!(is_same || next.rate != learned.rate || next.fell == now);
            prop_assert_eq!(LearnedRate::parse(&next.text()), Some(next));
            for algorithm in [
                TokenBucket::new(5, SECOND, 5).map(Algorithm::TokenBucket),
                SlidingWindow::new(5, SECOND, 0).map(Algorithm::SlidingWindow),
            ] {
                prop_assert!(algorithm.unwrap().at_rate(next.rate, 1).is_some());
            }
            learned = next;
        }
    }

    /// An upstream that accepts `quota` calls in any second, and a second's pause after each refusal: the rate comes to it
    /// from below, and from then on oscillates by less than 30 % and uses at least nine tenths of it.
    #[test]
    fn a_rate_converges_on_an_unknown_quota(quota in 6..90i64, start in 1..6i64) {
        let rule = rule(start);
        let mut learned = rule.first(0);
        let (mut log, mut now) = (VecDeque::new(), 0);
        let (mut least, mut most, mut accepted, mut falls) = (i64::MAX, 0, 0, 0);
        let (from, end) = (100 * SECOND, 400 * SECOND);
        while now < end {
            let sent_at = learned.rate;
            now += nanohertz(1, 1) / sent_at;
            while log.front().is_some_and(|first| first + SECOND <= now) {
                log.pop_front();
            }
            let ok = (log.len() as i64) < quota;
            let report = if ok { used() } else { refused(now, sent_at) };
            if ok {
                log.push_back(now);
            }
            let next = rule.next(learned, report, now);
            if now >= from {
                (least, most) = (least.min(next.rate), most.max(next.rate));
                accepted += i64::from(ok);
                falls += i64::from(next.fell > learned.fell);
            }
            learned = next;
            if !ok {
                now += SECOND;
            }
        }
        prop_assert!(most < per_second(quota) * 11 / 10, "{} at {quota}/s", most as f64 / 1e9);
        // Each fall is one of 30 %; the peaks differ a little.
        prop_assert!((most - least) * 100 < most * 34, "{least} {most}");
        let share = accepted as f64 / (quota * 300) as f64;
        prop_assert!(share > 0.9 && falls < 12, "{share} with {falls} falls at {quota}/s");
    }
}
