//! Permits that come back to the count of a working rate.

use super::*;

/// The slot of a caller that leaves is that of the next one that asks, and each slot has one call.
#[test]
fn a_slot_that_is_left_is_free_again() {
    let mut limiter = Limiter::new(bucket(10, SECOND, 10));
    limiter.pause(T0, SECOND);
    let ask = |limiter: &mut Limiter| {
        let reserved = limiter.ask(T0, 1, MAX_BUDGET);
        (reserved.at, reserved.parts.expect("granted")[0].grant)
    };
    let slots: Vec<_> = (0..6).map(|_| ask(&mut limiter)).collect();
    for i in [1, 3] {
        limiter.refund(T0, slots[i].1, 1);
        // It is given back once.
        limiter.refund(T0, slots[i].1, 1);
    }
    assert_eq!((ask(&mut limiter).0, ask(&mut limiter).0), (slots[1].0, slots[3].0));
    assert_eq!(ask(&mut limiter).0 / 1_000, 1_608);
    // The last one leaves no hole.
    let last = ask(&mut limiter);
    limiter.refund(T0, last.1, 1);
    assert_eq!(limiter.gate.as_ref().map(|gate| gate.holes.len()), Some(0));
    assert_eq!(ask(&mut limiter).0, last.0);
}

/// A call that was sent has used three of its ten permits: the next one comes as if it had cost three.
#[test]
fn permits_of_a_call_that_was_sent_let_others_come_earlier() {
    let mut limiter = Limiter::new(bucket(10, SECOND, 100));
    limiter.pause(T0, SECOND);
    let now = T0 + SECOND;
    let sent = limiter.ask(now, 10, 0).parts.expect("granted")[0].grant;
    let waits = limiter.ask(now, 10, MAX_BUDGET);
    assert_eq!(waits.at / 1_000, 1_014);
    let (unused, permits) = limiter.rule.unused_part(sent, 10, 3).expect("seven");
    limiter.refund(now + 100_000, unused, permits);
    assert_eq!(limiter.level(now + 100_000).next / 1_000, 204);
    limiter.refund(now + 100_000, waits.parts.expect("granted")[0].grant, 10);
    // Three permits after the first call.
    assert_eq!(limiter.ask(now + 100_000, 10, MAX_BUDGET).at / 1_000, 204);
}

/// At a working rate no request moves up while a quota has a remainder: that may or may not have counted its permit.
#[test]
fn no_request_moves_up_before_the_reset() {
    let mut limiter = Limiter::new(bucket(10, SECOND, 10));
    limiter.pause(T0, SECOND);
    let now = T0 + 2 * SECOND;
    let takes_back = |limiter: &mut Limiter, now| {
        let (open, gate) = limiter.open(now);
        gate.map(|gate| gate.takes_back(&open))
    };
    assert_eq!(takes_back(&mut limiter, now), Some(true));
    limiter.tell(now, 2, 0, 3 * SECOND);
    assert_eq!(takes_back(&mut limiter, now), Some(false));
    assert_eq!(takes_back(&mut limiter, now + 3 * SECOND), Some(true));
}

/// The answers come when the permits of their calls have flown: nine of ten of each. Then another call of ten is made at once.
#[test]
fn permits_that_have_flown_are_those_of_any_request_that_waits() {
    let mut limiter = Limiter::new(bucket(10, SECOND, 100));
    limiter.pause(T0, SECOND);
    let (now, rule) = (T0 + 4 * SECOND, limiter.rule);
    let grants: Vec<_> =
        (0..4).map(|_| limiter.ask(T0, 10, MAX_BUDGET).parts.expect("granted")[0].grant).collect();
    for (grant, next) in grants.iter().zip([1_045, 1_045, 0]) {
        assert_eq!(limiter.ask(now, 10, 0).at / 1_000, next);
        let (unused, permits) = rule.unused_part(*grant, 10, 5).expect("five");
        limiter.refund(now, unused, permits);
    }
    assert!(limiter.ask(now, 10, 0).parts.is_none());
}
