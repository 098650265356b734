//! Pauses that are short beside the period of their limiter, which keeps its level.

use super::*;

fn hourly() -> [Algorithm; 3] {
    const HOUR: Micros = 3_600_000_000;
    [
        Algorithm::TokenBucket(TokenBucket::new(1_000, HOUR, 1_000).expect("a rule")),
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
        limiter.pause_shortly(T0, 1_000_000);
        assert_eq!(limiter.remaining(T0 + 999_999), 0, "{rule:?}");
        let grant = limiter.ask(T0, 100, 2_000_000);
        assert_eq!((grant.parts.is_some(), grant.at), (true, 1_000_000), "{rule:?}");
        // It grows: the grant keeps its slot.
        limiter.pause_shortly(T0 + 500_000, 1_000_000);
        assert!((500..=501).contains(&limiter.remaining(T0 + 1_500_000)), "{rule:?}");
        assert_eq!(limiter.gate.map(|gate| limiter.open(gate.until).1), Some(None), "{rule:?}");
        // A pause of ten minutes says that nothing is left.
        limiter.pause(T0 + 2_000_000, 600_000_000);
        assert_eq!(limiter.remaining(T0 + 602_000_000), 1, "{rule:?}");
    }
}

/// Half an hour after a long pause 501 of 1000 an hour may be granted. A short pause changes only when.
#[test]
fn a_short_pause_after_a_long_one_leaves_the_level_as_it_is() {
    for rule in hourly() {
        let mut limiter = Limiter::new(rule);
        limiter.pause(T0, 600_000_000);
        let now = T0 + 600_000_000 + 1_800_000_000;
        limiter.pause_shortly(now, 3_600_000);
        assert_eq!(limiter.remaining(now), 0, "{rule:?}");
        assert_eq!(limiter.remaining(now + 3_600_000), 502, "{rule:?}");
        let reserved = limiter.ask(now, 502, 10_000_000);
        assert_eq!((reserved.parts.is_some(), reserved.at), (true, 3_600_000), "{rule:?}");
        let grant = reserved.parts.expect("granted")[0].grant;
        assert_eq!(limiter.remaining(now + 3_600_000), 0, "{rule:?}");
        limiter.refund(now, grant, 502);
        assert!(limiter.remaining(now + 3_600_000) <= 502, "{rule:?}");
    }
}
