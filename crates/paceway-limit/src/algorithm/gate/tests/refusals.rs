//! Refusals: what is left of the rate, and for how long.

use super::*;

/// Each row is when the next call that is refused was sent, in s after the end of the pause before; and then the knee.
#[test]
fn refusals_lower_the_knee() {
    type Refused = (f64, f64);
    let rows: [&[Refused]; 6] = [
        // Hiccups far apart are each the first one.
        &[(31.0, 1.0), (40.0, 1.0)],
        // Past the knee, which is the written rate here.
        &[(25.0, 0.992), (27.0, 0.986)],
        // Beside the knee, and then again: within a quarter of the way back the curve gets deeper.
        &[(10.0, 0.998), (2.0, 0.986), (2.0, 0.964)],
        // Soon after the pause seven tenths of the rate are left at least.
        &[(0.9, 0.887), (0.1, 0.603)],
        // A tenth of the quota: never below a permit in a unit.
        &[(0.1, 0.690), (0.1, 0.4685), (0.1, 0.3085), (0.1, 0.190), (0.1, 0.1175), (0.1, 0.1)],
        // One refusal after the other.
        &[(2.0, 0.989), (2.0, 0.966), (2.0, 0.923), (2.0, 0.840), (2.0, 0.764), (2.0, 0.695)],
    ];
    for row in rows {
        let mut limiter = Limiter::new(bucket(10, SECOND, 10));
        let mut now = T0;
        assert!(limiter.refuse(now, SECOND, SECOND, 10_000));
        assert_eq!(limiter.knee(), 1.0);
        for (after, knee) in row {
            now += SECOND + (after * 1e6) as Micros + 40_000;
            assert!(limiter.refuse(now, SECOND, SECOND, 40_000), "{row:?}");
            assert!((limiter.knee() - knee).abs() < 2e-3, "{} and not {knee}", limiter.knee());
        }
    }
}

/// Three more calls that were sent before the pause are refused later: one of them prolongs the pause, none lowers the rate.
#[test]
fn refusals_of_calls_from_before_the_pause_count_once() {
    let mut limiter = Limiter::new(bucket(10, SECOND, 10));
    limiter.pause(T0, SECOND);
    let slots: Vec<_> = (0..10).map(|_| T0 + limiter.ask(T0, 1, MAX_BUDGET).at).collect();
    let before = limiter.gate.clone();
    assert!(!limiter.refuse(T0 + 10_000, SECOND / 2, SECOND, 30_000));
    assert_eq!(limiter.gate, before);
    assert!(!limiter.refuse(T0 + 500_000, SECOND, SECOND, 550_000));
    let gate = limiter.gate.clone().expect("a gate");
    assert_eq!((gate.until, gate.from, limiter.knee()), (T0 + 1_500_000, T0 + 1_500_000, 1.0));
    // The calls with slots after the longer pause keep these; the next one comes after them.
    let next = T0 + 500_000 + limiter.ask(T0 + 500_000, 1, MAX_BUDGET).at;
    assert!(next > slots[9], "{} and {}", next - T0, slots[9] - T0);
    assert!(!limiter.refuse(T0 + 1_600_000, SECOND, SECOND, 1_200_000));
    assert!(limiter.refuse(T0 + 4_000_000, SECOND, SECOND, 10_000));
}

/// Sixty requests come together each ten seconds, and wait up to 2 s. The upstream allows 30 in any second, which a bucket of 30/s with
/// its burst exceeds. An hour costs a few refusals, and not one each half minute.
#[test]
fn a_burst_that_is_refused_is_tried_again_less_and_less_often() {
    let mut limiter = Limiter::new(bucket(30, SECOND, 30));
    let (mut log, mut refused) = (Vec::<Micros>::new(), Vec::new());
    for now in (0..360).map(|tens| T0 + tens * 10 * SECOND) {
        let calls = (0..60)
            .filter_map(|_| limiter.ask(now, 1, 2 * SECOND).parts.map(|parts| now + parts[0].at));
        let calls: Vec<_> = calls.collect();
        for at in calls {
            log.retain(|before| *before > at - SECOND);
            if log.len() < 30 {
                log.push(at);
            } else if refused.last().is_none_or(|last| at > last + 2 * SECOND) {
                refused.push(at);
                limiter.pause(at + 20_000, SECOND);
            }
        }
    }
    let after = refused.iter().map(|at| (at - T0) / SECOND).collect::<Vec<_>>();
    assert!((5..=9).contains(&after.len()), "{after:?}");
}

/// 10/s with its burst before a vendor of 10 in any second, of which another program takes some, and which says to the ms when the
/// next call is free. After the burst its second is full: a call that is refused by then shows nothing about the rate, and the limiter
/// pauses until the burst counts no longer. A later refusal lowers the rate.
#[test]
fn refusals_with_calls_of_before_lower_no_rate() {
    let mut limiter = Limiter::new(bucket(10, SECOND, 10));
    assert!(limiter.refuse(T0, SECOND / 10, SECOND, 1_000));
    assert!(!limiter.refuse(T0 + 250_000, SECOND / 10, SECOND, 1_000));
    let gate = limiter.gate.clone().expect("a gate");
    assert_eq!((gate.until, limiter.knee()), (T0 + SECOND, 1.0));
    assert_eq!(limiter.ask(T0 + 250_000, 1, MAX_BUDGET).at, 750_000);
    assert!(limiter.refuse(T0 + 1_250_000, SECOND / 10, SECOND, 1_000));
    assert!((0.68..0.71).contains(&limiter.knee()), "{}", limiter.knee());
}
