//! Limiters of all kinds, alone and several in one request.

use super::*;
use rstest::rstest;
use std::ops::RangeInclusive;

const SECOND: Micros = 1_000_000;

#[derive(Debug, Clone)]
struct Step {
    after: Micros,
    used: [bool; 3],
    cost: i64,
    budget: Micros,
    leaves: Option<usize>,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let after = prop_oneof![Just(0), 0..100i64, 0..1_000i64];
    let budget = prop_oneof![Just(0), 0..1_000i64, 0..4_000i64];
    let leaves = prop::option::weighted(0.3, 0..6usize);
    let step = (after, any::<[bool; 3]>(), 1..4i64, budget, leaves);
    let step = step.prop_map(|(after, used, cost, budget, leaves)| Step {
        after,
        used,
        cost,
        budget,
        leaves,
    });
    prop::collection::vec(step, 1..40)
}

/// A request that was let in.
#[derive(Debug)]
struct Held {
    at: Micros,
    cost: i64,
    grants: Vec<(usize, Grant)>,
}

fn used(limiters: &mut [Limiter; 3], used: [bool; 3]) -> (Vec<usize>, Vec<&mut Limiter>) {
    let all = used == [false; 3];
    limiters.iter_mut().enumerate().filter(|(i, _)| all || used[*i]).unzip()
}

/// The first instant from now on at which each of them, asked alone, says "now".
fn first_common(limiters: &[&mut Limiter], now: Micros, cost: i64) -> Micros {
    let open: Vec<_> = limiters.iter().map(|limiter| limiter.open(now)).collect();
    let fits = |at: &Micros| open.iter().all(|open| open.earliest(*at, cost, 0).0 == *at);
    (0..).find(fits).expect("some instant")
}

/// The last permit of a hole may start less than a µs before the instant that was named.
#[test]
fn a_caller_finds_the_end_of_a_hole_at_the_announced_instant() {
    let mut holed = Limiter::token_bucket(27, 460, 3);
    let mut open = holed.open(T0);
    let (_, start) = open.earliest(165, 3, 0);
    open.take(start, 3);
    holed.keep(open);
    // From 147.96 µs on.
    let (at, last) = (148, 3995);
    assert_eq!(holed.open(T0).earliest(at, 1, 0), (at, last));
    let open = holed.open(T0 + at);
    assert_eq!(open.earliest(0, 1, 0).0, 0);
    assert_eq!(open.level().remaining, 1);
    assert_ne!(holed.open(T0 + at + 1).earliest(0, 1, 0).0, 0);
}

/// A hole that began more than a µs ago is used from now on: what is left over at its end is no permit.
#[test]
fn the_remaining_permits_can_be_taken_one_by_one() {
    let mut holed = Limiter::token_bucket(80_000, 1_000_000, 8);
    let mut open = holed.open(T0);
    let mut grants = Vec::new();
    for _ in 0..16 {
        let (_, start) = open.earliest(0, 1, 0);
        grants.push(open.take(start, 1));
    }
    assert!(grants[8..11].iter().all(|grant| open.refund(*grant, 1)));
    holed.keep(open);
    let mut open = holed.open(T0 + 113);
    let (remaining, mut taken) = (open.level().remaining, 0);
    while let (0, start) = open.earliest(0, 1, 0) {
        open.take(start, 1);
        taken += 1;
    }
    assert_eq!((remaining, taken), (2, 2));
}

proptest! {
    #![proptest_config(crate::algorithm::tests::cases(512))]

    /// Laws 1, 3, 4, 5 and 6 for requests with any limiters, whose callers come and leave.
    #[test]
    fn requests_take_all_or_nothing_at_the_first_instant_that_suits_all(
        mut limiters in [any_limiter(), any_limiter(), any_limiter()],
        steps in steps(),
    ) {
        let (mut held, mut now) = (Vec::<Held>::new(), T0);
        for step in steps {
            now += step.after;
            let waiting: Vec<_> = (0..held.len()).filter(|i| held[*i].at > now).collect();
            if let Some(i) = step.leaves.and_then(|i| waiting.get(i)) {
                let Held { at, cost, grants } = held.remove(*i);
                for (i, grant) in &grants {
                    prop_assert!(limiters[*i].refund(now, *grant, cost));
                }
                // The request could have its own room again, with two exceptions: the queue of a leaky bucket
                // is too long, or a bucket that warms up has by now another place for it in the room of
                // several requests that left.
                let warms = grants.iter().any(|(i, _)| matches!(limiters[*i].rule, Algorithm::WarmUp(_)));
                let mut copies: Vec<_> = grants.iter().map(|(i, _)| limiters[*i].clone()).collect();
                let again = decide(&mut copies.iter_mut().collect::<Vec<_>>(), now, cost, at - now);
                prop_assert!(warms || now + again.at <= at);
                let bounded = limiters.iter().any(|limiter| limiter.rule.facts().longest_wait < MAX_BUDGET);
                prop_assert!(warms || bounded || again.parts.is_some());
            }
            let before = limiters.clone().map(|limiter| limiter.state);
            let (indices, mut using) = used(&mut limiters, step.used);
            let expected = first_common(&using, now, step.cost);
            let reserved = decide(&mut using, now, step.cost, step.budget);
            prop_assert_eq!(reserved.at, expected);
            let Some(parts) = reserved.parts else {
                let ask = |after: Micros| {
                    let mut copies: Vec<_> = using.iter().map(|limiter| (*limiter).clone()).collect();
                    let mut copies: Vec<_> = copies.iter_mut().collect();
                    decide(&mut copies, now + after, step.cost, step.budget).parts.is_some()
                };
                prop_assert!(ask(reserved.retry_after), "too early");
                prop_assert!(!ask(reserved.retry_after - 1), "too late");
                prop_assert_eq!(limiters.clone().map(|limiter| limiter.state), before);
                continue;
            };
            prop_assert!(reserved.at <= step.budget);
            prop_assert_eq!(parts.len(), indices.len());
            let grants = indices.into_iter().zip(parts.iter().map(|part| part.grant)).collect();
            held.push(Held { at: now + reserved.at, cost: step.cost, grants });
        }
        for (i, limiter) in limiters.iter().enumerate() {
            let uses = |held: &&Held| held.grants.iter().any(|(used, _)| *used == i);
            let grants: Vec<_> = held.iter().filter(uses).map(|held| (held.at, held.cost)).collect();
            prop_assert!(limiter.law.holds(&grants), "{:?} {:?}", limiter, grants);
        }
    }

    /// Law 7: only refunded permits are granted before the requests that already wait.
    #[test]
    fn requests_are_served_in_their_order(mut limiter in any_limiter(), steps in steps()) {
        let (mut waiting, mut free, mut now) = (Vec::new(), Vec::new(), T0);
        for Step { after, leaves, .. } in steps {
            now += after;
            waiting.retain(|(at, _)| *at > now);
            if let Some(i) = leaves.filter(|i| *i < waiting.len()) {
                let (at, grant) = waiting.remove(i);
                prop_assert!(limiter.refund(now, grant, 1));
                free.push(at);
            }
            let Ok((at, grant)) = limiter.ask(now, 1, MAX_BUDGET) else { continue };
            let last = waiting.iter().map(|(at, _)| *at).max().unwrap_or(now);
            let given = free.iter().position(|free| *free <= at);
            prop_assert!(at >= last || given.is_some(), "{} before {}", at, last);
            if at < last {
                given.map(|i| free.swap_remove(i));
            }
            waiting.push((at, grant));
        }
    }
}

#[rstest]
#[case::token_bucket(
    Limiter::token_bucket(1, 10 * SECOND, 1),
    Limiter::token_bucket(5, SECOND, 5),
    [0, 0, 0, 0, 200_000, 400_000]
)]
#[case::fixed_window(
    Limiter::fixed_window(1, 10 * SECOND),
    Limiter::fixed_window(5, SECOND),
    [0, 0, 0, 0, SECOND, SECOND]
)]
fn a_request_that_waits_for_a_slow_limiter_does_not_block_the_fast_one(
    #[case] mut slow: Limiter,
    #[case] mut fast: Limiter,
    #[case] waits: [Micros; 6],
) {
    let mut both = |budget| decide(&mut [&mut slow, &mut fast], T0, 1, budget);
    assert_eq!(both(0).at, 0);
    assert_eq!(both(60 * SECOND).at, 10 * SECOND);
    assert_eq!(both(60 * SECOND).at, 20 * SECOND);
    assert_eq!(both(0).parts, None);
    // One of five went at once; what is reserved for later takes nothing away from now.
    let asked = [(); 6].map(|()| fast.ask(T0, 1, MAX_BUDGET).expect("granted").0 - T0);
    assert_eq!(asked, waits);
}

/// Requests that wait for a slow limiter for 100 s leave the rest of the fast one to those that need only that.
#[rstest]
#[case::token_bucket(
    Limiter::token_bucket(10, SECOND, 1),
    Limiter::token_bucket(100, SECOND, 10),
    1_000,
    8_100..=8_120
)]
// 9000 without the 500 of the warm-up, and without two or three a second that were granted when the limiter was cold.
#[case::warm_up(
    Limiter::leaky_bucket(1, SECOND, 0, None),
    Limiter::warm_up(100, SECOND, 10 * SECOND, 3.0),
    100,
    8_150..=8_499
)]
fn many_requests_that_wait_for_a_slow_limiter_do_not_block_the_fast_one(
    #[case] mut slow: Limiter,
    #[case] mut fast: Limiter,
    #[case] waiting: i64,
    #[case] expected: RangeInclusive<usize>,
) {
    for i in 0..waiting {
        let reserved = decide(&mut [&mut slow, &mut fast], T0, 1, MAX_BUDGET);
        assert_eq!(reserved.at, i * 100 * SECOND / waiting);
    }
    let granted = (0..).take_while(|_| fast.ask(T0, 1, 90 * SECOND).is_ok()).count();
    assert!(expected.contains(&granted), "{granted}");
}

/// The steps of one limiter, whose permits take some ten to some hundred µs.
fn alone() -> impl Strategy<Value = Vec<super::Step>> {
    super::steps(900)
}

proptest! {
    #![proptest_config(crate::algorithm::tests::cases(2_560))]

    /// A state is kept until it says nothing more, and then forgetting it changes nothing.
    #[test]
    fn a_state_expires_when_it_no_longer_matters(
        mut limiter in any_limiter(),
        steps in alone(),
        late in 0..1_000i64,
        cost in 1..4i64,
    ) {
        let mut now = T0;
        for super::Step { after, cost, budget, .. } in steps {
            now += after;
            let _ = limiter.ask(now, cost, budget);
        }
        if let Some((_, ttl)) = limiter.open(now).close() {
            let (mut kept, mut gone) =
                (limiter.open(now + ttl + late), limiter.rule.open(None, now + ttl + late));
            let start = kept.earliest(0, cost, 0);
            prop_assert_eq!(start, gone.earliest(0, cost, 0));
            prop_assert_eq!(kept.level(), gone.level());
            kept.take(start.1, cost);
            gone.take(start.1, cost);
            prop_assert_eq!(kept.earliest(0, cost, 0), gone.earliest(0, cost, 0));
            if let (Open::WarmUp(kept), Open::WarmUp(gone)) = (kept, gone) {
                prop_assert_eq!(kept.colder_by(&gone), Some(0));
            }
            prop_assert!(limiter.open(now + ttl - 1).close().is_some());
        }
    }

    /// As many permits as the level says are there, and the next one at the instant that it says.
    #[test]
    fn takes_as_many_permits_as_the_level_counts(mut limiter in any_limiter(), steps in alone()) {
        let mut now = T0;
        for super::Step { after, budget, .. } in steps {
            now += after;
            let _ = limiter.ask(now, 1, budget);
            let (level, mut copy) = (limiter.open(now).level(), limiter.clone());
            let taken = (0..).take_while(|_| copy.ask(now, 1, 0).is_ok()).count();
            prop_assert_eq!(level.remaining, taken as i64);
            prop_assert!(limiter.clone().ask(now + level.next, 1, 0).is_ok());
            prop_assert!(level.next == 0 || limiter.clone().ask(now + level.next - 1, 1, 0).is_err());
        }
    }

    /// A permit that is given back at once leaves a limiter as if it had never been taken.
    #[test]
    fn a_refund_at_once_leaves_no_trace(
        mut limiter in prop_oneof![leaky_bucket(), warm_up()],
        steps in alone(),
    ) {
        let mut now = T0;
        for super::Step { after, cost, budget, gives_back, .. } in steps {
            now += after;
            let before = limiter.clone();
            if let Ok((at, grant)) = limiter.ask(now, cost, budget) && gives_back.is_some() && at > now {
                prop_assert!(limiter.refund(now, grant, cost));
                prop_assert_eq!(limiter.open(now), before.open(now));
            }
        }
    }
}

/// The limiter that is reported is the one that a caller meets next.
#[test]
fn the_remaining_permits_of_a_list_are_those_of_its_tightest_rate() {
    let mut second = Limiter::sliding_window(10, 1_000_000, 0);
    let mut minute = Limiter::sliding_window(20, 60_000_000, 0);
    for i in 0..16 {
        decide(&mut [&mut second, &mut minute], T0 + i * 1_000_000, 1, 0);
    }
    let reserved = decide(&mut [&mut second, &mut minute], T0 + 20 * 1_000_000, 1, 0);
    assert_eq!((reserved.at, reserved.bound_by, reserved.level.remaining), (0, 1, 3));
    // A request that waits is bound by the limiter that it waits for.
    for _ in 0..3 {
        decide(&mut [&mut second, &mut minute], T0 + 20 * 1_000_000, 1, 0);
    }
    let refused = decide(&mut [&mut second, &mut minute], T0 + 20 * 1_000_000, 1, 0);
    assert_eq!((refused.parts, refused.bound_by, refused.level.remaining), (None, 1, 0));
}
