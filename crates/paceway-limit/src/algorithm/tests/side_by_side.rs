//! Gateways with two configurations on one state, as during a rolling deployment:
//! `docs/operation.md`, "Changes of the configuration".

use super::*;
use rstest::rstest;

const SECOND: Micros = 1_000_000;

/// At most as many as the laxer of both rules allows in a window of either.
fn keeps_the_laxer(laws: [Law; 2], grants: &[(Micros, i64)]) -> bool {
    let parts = |law| match law {
        Law::Sliding { count, span } => (count, span),
        Law::Fixed { count, period } => (count, period),
        law => panic!("{law:?} has no windows"),
    };
    let [a, b] = laws.map(parts);
    let most = |own: (i64, i64), other: (i64, i64)| {
        let is_odd = own.1 % other.1 != 0 && other.1 % own.1 != 0;
        // Fixed windows of one period may lie across those of another.
        let across = i64::from(is_odd && matches!(laws[0], Law::Fixed { .. }));
        own.0.max(other.0 * (ceil_div(own.1, other.1) + across))
    };
    [(a, b), (b, a)].into_iter().all(|(own, other)| {
        let (count, span) = (most(own, other), own.1);
        match laws[0] {
            Law::Fixed { .. } => Law::Fixed { count, period: span }.holds(grants),
            _ => Law::Sliding { count, span }.holds(grants),
        }
    })
}

/// The first of the two gateways asks from the beginning, the second from `joins` on; both take all that they can, at
/// each of their turns.
fn greedy([first, second]: [Limiter; 2], joins: Micros, turns: [Micros; 2]) -> Vec<(Micros, i64)> {
    let (mut limiter, mut grants) = (first.clone(), Vec::new());
    for now in (0..12 * SECOND).step_by(10_000) {
        for (rule, turn, from) in [(first.rule, turns[0], 0), (second.rule, turns[1], joins)] {
            limiter.rule = rule;
            while now >= from && now % turn == 0 && limiter.ask(T0 + now, 1, 0).is_ok() {
                grants.push((T0 + now, 1));
            }
        }
    }
    grants
}

#[rstest]
#[case::at_once(0, [10_000, 10_000])]
#[case::later(2_100_000, [10_000, 10_000])]
#[case::late_in_a_window(2_990_000, [10_000, 10_000])]
#[case::now_and_then(1_500_000, [10_000, 2_500_000])]
#[case::after_gaps(4_100_000, [2_000_000, 10_000])]
fn gateways_with_20_a_second_and_60_in_3_seconds_keep_60_in_3_seconds(
    #[case] joins: Micros,
    #[case] turns: [Micros; 2],
    #[values(false, true)] is_fixed: bool,
    #[values(false, true)] is_swapped: bool,
) {
    let make = |count, period| match is_fixed {
        true => Limiter::fixed_window(count, period),
        false => Limiter::sliding_window(count, period, 0),
    };
    let mut pair = [make(20, SECOND), make(60, 3 * SECOND)];
    if is_swapped {
        pair.reverse();
    }
    let grants = greedy(pair.clone(), joins, turns);
    let laws = pair.each_ref().map(|limiter| limiter.law);
    assert!(keeps_the_laxer(laws, &grants), "{grants:?}");
    // And no less than half of it: neither locks the other out.
    assert!(grants.len() >= 100, "{}", grants.len());
}

/// A new rule begins as full as the old one allows, and not with the rest of a day.
#[rstest]
#[case::sliding(Limiter::sliding_window(10, SECOND, 0), Limiter::sliding_window(20_000, 86_400 * SECOND, 0))]
#[case::fixed(Limiter::fixed_window(10, SECOND), Limiter::fixed_window(20_000, 86_400 * SECOND))]
fn an_edit_from_10_a_second_to_20_000_a_day_refuses_no_request(
    #[case] mut limiter: Limiter,
    #[case] edited: Limiter,
) {
    for second in 0..3_000 {
        while limiter.ask(T0 + second * SECOND, 1, 0).is_ok() {}
    }
    limiter.rule = edited.rule;
    limiter.ask(T0 + 3_001 * SECOND, 1, 0).expect("granted");
}

fn two_of_a_kind() -> impl Strategy<Value = [Limiter; 2]> {
    prop_oneof![
        [sliding_window(), sliding_window()],
        [fixed_window(), fixed_window()],
        // The same rate over periods that are multiples.
        (3..6i64, 20..200i64, 2..5i64).prop_map(|(count, period, times)| {
            [(count, period), (count * times, period * times)]
                .map(|(count, period)| Limiter::sliding_window(count, period, 0))
        }),
        (3..6i64, 1_000..1_200i64, 2..5i64).prop_map(|(count, period, times)| {
            [(count, period), (count * times, period * times)]
                .map(|(count, period)| Limiter::fixed_window(count, period))
        }),
    ]
}

proptest! {
    #![proptest_config(crate::algorithm::tests::cases(512))]

    /// Law 14: whichever asks first, and however seldom.
    #[test]
    fn two_rules_in_use_keep_the_laxer_one(
        pair in two_of_a_kind(),
        steps in prop::collection::vec((
            prop_oneof![Just(0), 0..100i64, 0..2_000i64], 0..2usize, 1..4i64,
            prop_oneof![2 => Just(0), 1 => 0..3_000i64],
        ), 1..80),
    ) {
        let (mut limiter, mut now, mut grants) = (pair[0].clone(), T0, Vec::new());
        let longest = pair.each_ref().map(|limiter| match limiter.law {
            Law::Sliding { span, .. } => span,
            Law::Fixed { period, .. } => period,
            _ => 0,
        });
        let longest = longest.into_iter().fold(0, Micros::max);
        for (after, rule, cost, budget) in steps {
            now += after;
            limiter.rule = pair[rule].rule;
            let last = grants.iter().map(|(at, _)| *at).fold(now, Micros::max);
            match limiter.ask(now, cost, budget) {
                Ok((at, _)) => grants.push((at, cost)),
                Err(retry_after) => {
                    prop_assert!(now + budget + retry_after <= last + longest, "locked out");
                }
            }
            let laws = pair.each_ref().map(|limiter| limiter.law);
            prop_assert!(keeps_the_laxer(laws, &grants), "{:?}", grants);
        }
    }

    /// Law 6 across an edit: a request that waits under the old rule and leaves makes room, even after a
    /// gateway with the new rule has decided. The slots of a slower rule do not fit into that room exactly: less than two
    /// of its permits are lost.
    #[test]
    fn slots_of_old_waiters_are_given_back_after_a_change_of_the_rate(
        kind in 0..3usize,
        rates in (1..9i64, 1..9i64),
        waiters in 1..9usize,
    ) {
        let make = |count: i64| match kind {
            0 => Limiter::token_bucket(count, SECOND, 1),
            1 => Limiter::leaky_bucket(count, SECOND, 0, None),
            _ => Limiter::warm_up(count, SECOND, 1, 2.0),
        };
        let (old, new) = (make(rates.0), make(rates.1));
        let mut limiter = old.clone();
        limiter.ask(T0, 1, 0).expect("granted");
        let granted: Vec<_> =
            (0..waiters).map(|_| limiter.ask(T0, 1, MAX_BUDGET).expect("granted").1).collect();
        limiter.rule = new.rule;
        let (_, own) = limiter.ask(T0, 1, MAX_BUDGET).expect("granted");
        // The room that the waiters left, whichever rule decided in between.
        let mut empty = old.clone();
        empty.ask(T0, 1, 0).expect("granted");
        empty.rule = new.rule;
        let expected = empty.ask(T0, 1, MAX_BUDGET).expect("granted").0;
        for grant in granted {
            limiter.rule = old.rule;
            prop_assert!(limiter.refund(T0, grant, 1), "not given back");
            limiter.rule = new.rule;
            limiter.open(T0);
        }
        prop_assert!(limiter.refund(T0, own, 1), "its own is not given back");
        let at = limiter.ask(T0, 1, MAX_BUDGET).expect("granted").0;
        let lost = if kind < 2 && rates.1 < rates.0 { 2 * SECOND / rates.1 } else { 0 };
        let room = expected - 20..=expected + lost + 20;
        prop_assert!(room.contains(&at), "{} {}", at - T0, expected - T0);
    }
}
