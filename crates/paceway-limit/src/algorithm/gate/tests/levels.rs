//! Pauses that are short beside the period of their limiter, which keeps its level and its rate.

use super::*;

const HOUR: Micros = 3_600_000_000;

fn hourly() -> [Algorithm; 3] {
    [
        bucket(1_000, HOUR, 1_000),
        Algorithm::SlidingWindow(SlidingWindow::new(1_000, HOUR, 0).expect("a rule")),
        Algorithm::FixedWindow(FixedWindow::new(1_000, HOUR).expect("a rule")),
    ]
}

/// 400 of 1000 an hour are taken when a vendor answers `Retry-After: 1`: that limiter was empty for an hour.
#[test]
fn a_pause_of_a_second_leaves_an_hourly_limiter_its_level() {
    for rule in hourly() {
        let mut limiter = Limiter::new(rule);
        assert!(limiter.ask(T0, 400, 0).parts.is_some());
        limiter.pause_shortly(T0, SECOND);
        assert_eq!(limiter.level(T0 + 999_999).remaining, 0, "{rule:?}");
        let grant = limiter.ask(T0, 100, 2_000_000);
        assert_eq!((grant.parts.is_some(), grant.at), (true, SECOND), "{rule:?}");
        // It grows: the grant keeps its slot.
        limiter.pause_shortly(T0 + 500_000, SECOND);
        let level = limiter.level(T0 + 1_500_000);
        assert!((500..=501).contains(&level.remaining) && level.rate == 0, "{rule:?}");
        assert_eq!(
            limiter.gate.clone().map(|gate| limiter.open(gate.until).1),
            Some(None),
            "{rule:?}"
        );
    }
}

/// A short pause after a long one closes the limiter, and the working rate continues.
#[test]
fn a_short_pause_after_a_long_one_leaves_the_rate_as_it_is() {
    for rule in hourly() {
        let mut limiter = Limiter::new(rule);
        limiter.refuse(T0, HOUR / 6, HOUR, 0);
        let now = T0 + HOUR / 2;
        let rate = limiter.level(now).rate;
        assert!(rate > 0);
        limiter.pause_shortly(now, 3_600_000);
        assert_eq!(limiter.level(now).remaining, 0, "{rule:?}");
        assert_eq!(limiter.ask(now, 1, MAX_BUDGET).at, 3_600_000, "{rule:?}");
        assert!((3..=4).contains(&(limiter.ask(now, 1, MAX_BUDGET).at / SECOND)), "{rule:?}");
        assert!(limiter.level(now + 3_600_000).rate >= rate, "{rule:?}");
    }
}
