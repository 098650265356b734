use super::*;
use crate::algorithm::{
    Algorithm, MAX_BUDGET, MAX_HOLES, Open as AnyOpen, State as AnyState,
    reserve::{self, Want},
};
use proptest::prelude::*;
use rstest::rstest;
use std::collections::HashMap;

/// A multiple of 1000 s.
const T0: Micros = 1_700_000_000_000_000;
const SECOND: Micros = 1_000_000;
const DAY: Micros = 86_400 * SECOND;

fn rule(count: i64, period: Micros) -> FixedWindow {
    FixedWindow::new(count, period).expect("a rule")
}

/// A limiter whose rule may change, with its state.
#[derive(Debug, Clone)]
struct Limiter {
    rule: FixedWindow,
    state: Option<State>,
}

impl Limiter {
    fn new(count: i64, period: Micros) -> Self {
        Self { rule: rule(count, period), state: None }
    }

    fn open(&mut self, now: Micros) -> Open {
        Open::new(self.state.as_mut(), now, self.rule)
    }

    /// The instant of the grant, or what `earliest` says when it is beyond `budget`.
    fn ask(&mut self, now: Micros, cost: i64, budget: Micros) -> Result<(Micros, Grant), Micros> {
        self.ask_from(0, now, cost, budget)
    }

    fn ask_from(
        &mut self,
        from: Micros,
        now: Micros,
        cost: i64,
        budget: Micros,
    ) -> Result<(Micros, Grant), Micros> {
        let mut open = self.open(now);
        let (at, start) = open.earliest(from, cost);
        if at > budget {
            return Err(at);
        }
        let grant = open.take(start, cost);
        self.state = open.close().map(|(state, _)| state);
        Ok((now + at, grant))
    }

    fn refund(&mut self, now: Micros, grant: Grant, cost: i64) -> bool {
        let mut open = self.open(now);
        let given = open.refund(grant, cost);
        if given {
            self.state = open.close().map(|(state, _)| state);
        }
        given
    }

    fn periods(&self) -> Vec<Micros> {
        self.state.iter().flat_map(|state| &state.sections).map(|section| section.period).collect()
    }
}

/// What was granted and not given back: obviously the rule, and obviously slow.
#[derive(Debug, Clone, Copy)]
struct Granted {
    at: Micros,
    cost: i64,
    grant: Grant,
    rule: FixedWindow,
    step: usize,
}

fn same_window(period: Micros, a: Micros, b: Micros) -> bool {
    a.div_euclid(period) == b.div_euclid(period)
}

fn taken(period: Micros, grants: &[Granted], at: Micros) -> i64 {
    grants.iter().filter(|grant| same_window(period, grant.at, at)).map(|grant| grant.cost).sum()
}

/// The first µs whose window has room.
fn brute_force(rule: FixedWindow, grants: &[Granted], from: Micros, cost: i64) -> Micros {
    let fits = |at: &Micros| taken(rule.period, grants, *at) + cost <= rule.count;
    (from..).find(fits).expect("some instant")
}

/// The same beside other rules: in none of their windows are more than the laxer of both allows.
fn brute_force_beside(
    rule: FixedWindow,
    others: &HashMap<Micros, i64>,
    grants: &[Granted],
    from: Micros,
    cost: i64,
) -> Micros {
    let laws = others.iter().filter(|(period, _)| **period != rule.period);
    let laws = laws.map(|(period, count)| {
        (*period, (*count).max(rule.count * crate::algorithm::ceil_div(*period, rule.period)))
    });
    let laws: Vec<_> = laws.chain([(rule.period, rule.count)]).collect();
    let fits =
        |at: &Micros| laws.iter().all(|(period, most)| taken(*period, grants, *at) + cost <= *most);
    (from..).find(fits).expect("some instant")
}

#[rstest]
#[case::no_permits(0, SECOND)]
#[case::negative(-1, SECOND)]
#[case::no_period(1, 0)]
#[case::too_short(1, 999)]
#[case::too_long(1, 367 * DAY)]
#[case::too_many(1_000_000_001, SECOND)]
fn what_is_no_rule(#[case] count: i64, #[case] period: Micros) {
    assert_eq!(FixedWindow::new(count, period), None);
}

#[rstest]
#[case::at_the_start((2, SECOND), 0, &[1, 1, 1, 1, 1], &[0, 0, 1_000_000, 1_000_000, 2_000_000])]
#[case::in_the_middle((2, SECOND), 400_000, &[1, 1, 1, 1, 1], &[0, 0, 600_000, 600_000, 1_600_000])]
#[case::at_the_last_microsecond((1, SECOND), 999_999, &[1, 1, 1], &[0, 1, 1_000_001])]
#[case::small_ones_pass_a_large_one((3, SECOND), 0, &[2, 3, 1, 2, 1], &[0, 1_000_000, 0, 2_000_000, 2_000_000])]
#[case::a_day((1, DAY), DAY - 1_700_000_000 * SECOND % DAY, &[1, 1], &[0, DAY])]
fn the_first_window_with_room(
    #[case] (count, period): (i64, Micros),
    #[case] after: Micros,
    #[case] costs: &[i64],
    #[case] waits: &[Micros],
) {
    let mut limiter = Limiter::new(count, period);
    let now = T0 + after;
    let asks = costs.iter().map(|cost| limiter.ask(now, *cost, 2 * DAY).expect("granted").0 - now);
    assert_eq!(asks.collect::<Vec<_>>(), waits);
}

#[rstest]
#[case::seven_a_second(7, SECOND)]
#[case::eighty_thousand_a_second(80_000, SECOND)]
#[case::one_an_hour(1, 3_600 * SECOND)]
#[case::a_prime_a_minute(997, 60 * SECOND)]
fn a_million_saturated_grants_end_at_the_exact_microsecond(
    #[case] count: i64,
    #[case] period: Micros,
) {
    const GRANTS: i64 = 1_000_000;
    let mut limiter = Limiter::new(count, period);
    let start = (T0 / period + 1) * period;
    let mut now = start;
    // Whoever is refused comes back at the very instant that was said.
    for _ in 0..GRANTS {
        while let Err(at) = limiter.ask(now, 1, 0) {
            now += at;
        }
    }
    assert_eq!(now - start, (GRANTS - 1) / count * period);
}

#[test]
fn a_million_reservations_ahead_are_two_runs_and_end_at_the_exact_microsecond() {
    let mut open = Open::new(None, T0, rule(7, 1_000));
    let mut last = 0;
    for _ in 0..1_000_000 {
        let (at, start) = open.earliest(0, 1);
        open.take(start, 1);
        last = at;
    }
    assert_eq!(last, 999_999 / 7 * 1_000);
    assert_eq!(open.own.runs.len(), 2);
}

#[test]
fn the_last_permit_given_back_leaves_nothing_behind() {
    let mut limiter = Limiter::new(1, SECOND);
    let (_, first) = limiter.ask(T0, 1, 0).expect("granted");
    let before = limiter.state.clone();
    let (_, second) = limiter.ask(T0, 1, SECOND).expect("granted");
    assert!(limiter.refund(T0, second, 1));
    assert_eq!(limiter.state, before);
    assert!(limiter.refund(T0 + SECOND - 1, first, 1), "its instant is past, its window is not");
    assert_eq!(limiter.state, None);
}

#[test]
fn nothing_is_given_back_twice_or_late_or_to_another_state() {
    let mut limiter = Limiter::new(2, SECOND);
    let grants: Vec<_> = (0..4).map(|_| limiter.ask(T0, 1, SECOND).expect("granted").1).collect();
    assert!(!limiter.refund(T0, grants[0], 3), "more than there is");
    assert!(limiter.refund(T0, grants[0], 1));
    assert!(limiter.refund(T0, grants[1], 1));
    assert!(!limiter.refund(T0, grants[1], 1), "twice");
    assert!(limiter.refund(T0 + 2 * SECOND - 1, grants[2], 1));
    assert!(!limiter.refund(T0 + 2 * SECOND, grants[3], 1), "late");
    limiter.state = None;
    limiter.ask(T0 + 2 * SECOND, 2, 0).expect("granted");
    let wrong = Grant { whole: T0 + 2 * SECOND, ..grants[3] };
    assert!(!limiter.refund(T0 + 2 * SECOND, wrong, 1), "another state");
}

#[test]
fn a_request_with_a_slow_limiter_leaves_the_fast_one_to_others() {
    let mut slow = AnyOpen::FixedWindow(Open::new(None, T0, rule(1, 10 * SECOND)));
    let mut fast = AnyOpen::FixedWindow(Open::new(None, T0, rule(5, SECOND)));
    let mut both = |budget| {
        let mut wants = [
            Want { open: &mut slow, cost: 1, enforce: true },
            Want { open: &mut fast, cost: 1, enforce: true },
        ];
        reserve::decide(&mut wants, budget, None)
    };
    assert_eq!(both(0).at, 0);
    assert_eq!(both(60 * SECOND).at, 10 * SECOND);
    assert_eq!(both(60 * SECOND).at, 20 * SECOND);
    assert_eq!(both(0).parts, None);
    let mut grants = || {
        let (at, start) = fast.earliest(0, 1);
        fast.take(start, 1);
        at
    };
    let now: Vec<_> = (0..6).map(|_| grants()).collect();
    assert_eq!(now, [0, 0, 0, 0, SECOND, SECOND]);
}

#[test]
fn an_instant_beyond_the_longest_budget_is_still_exact() {
    let mut limiter = Limiter::new(1, DAY);
    let (at, _) = limiter.ask(T0, 1, 0).expect("granted");
    let next = (at / DAY + 1) * DAY - T0;
    assert!(next > MAX_BUDGET);
    assert_eq!(limiter.ask(T0, 1, MAX_BUDGET), Err(next));
}

#[rstest]
#[case::same((5, SECOND), SECOND)]
#[case::greater_count((9, SECOND), 0)]
#[case::smaller_count((3, SECOND), SECOND)]
#[case::longer_period((5, 10 * SECOND), 10 * SECOND)]
#[case::shorter_period((5, 100_000), 100_000)]
// Its own window ends sooner, but in the second that is full neither rule allows more than five.
#[case::odd_period((5, 1_234_567), SECOND)]
fn a_change_of_the_rule_keeps_the_level(#[case] to: (i64, Micros), #[case] wait: Micros) {
    let mut limiter = Limiter::new(5, SECOND);
    limiter.ask(T0, 5, 0).expect("granted");
    limiter.rule = rule(to.0, to.1);
    assert_eq!(limiter.ask(T0, 1, DAY).expect("granted").0, T0 + wait);
}

#[test]
fn a_day_that_is_full_locks_nobody_out_of_a_second() {
    let mut limiter = Limiter::new(1_000, DAY);
    limiter.ask(T0, 1_000, 0).expect("granted");
    limiter.rule = rule(10, SECOND);
    let mut now = T0 + 300;
    // Refusals leave no trace, and yet the level that was kept passes.
    let wait = limiter.ask(now, 1, 0).expect_err("refused");
    assert_eq!(wait, SECOND - 300);
    now += wait;
    assert!((0..10).all(|_| limiter.ask(now, 1, 0).is_ok()));
    assert_eq!(limiter.ask(now, 1, 0), Err(SECOND));
    limiter.rule = rule(1_010, DAY);
    assert!(limiter.ask(now, 1, 0).is_err(), "the day goes on, and what the second gave is in it");
}

#[test]
fn a_change_there_and_back_gives_no_free_burst() {
    let mut limiter = Limiter::new(5, SECOND);
    let mut granted = 0;
    for i in 0..40 {
        limiter.rule = if i % 2 == 0 { rule(5, SECOND) } else { rule(8, 60 * SECOND) };
        granted += i32::from(limiter.ask(T0 + i, 1, 0).is_ok());
    }
    // The second is full with what both of them granted, the minute goes on to eight.
    assert_eq!(granted, 8);
}

#[test]
fn a_queue_stays_promised_under_a_longer_period() {
    let mut limiter = Limiter::new(2, SECOND);
    for _ in 0..60 {
        limiter.ask(T0, 1, MAX_BUDGET).expect("granted");
    }
    // T0 lies 20 s into its minute, so 30 s of queue end before the next.
    assert_eq!(T0 % (60 * SECOND), 20 * SECOND);
    limiter.rule = rule(61, 60 * SECOND);
    assert_eq!(limiter.ask(T0, 1, 0).expect("granted").0, T0);
    assert_eq!(limiter.ask(T0, 1, 0), Err(40 * SECOND));
}

#[test]
fn waiters_who_leave_after_a_change_make_room_under_the_new_rule() {
    let mut limiter = Limiter::new(2, SECOND);
    let grants: Vec<_> = (0..6).map(|_| limiter.ask(T0, 1, DAY).expect("granted").1).collect();
    let (old, new) = (limiter.rule, rule(7, 60 * SECOND));
    limiter.rule = new;
    limiter.ask(T0 + 1, 1, 0).expect("granted");
    assert_eq!(limiter.ask(T0 + 1, 1, 0), Err(40 * SECOND - 1));
    limiter.rule = old;
    assert!(limiter.refund(T0 + 1, grants[5], 1));
    limiter.rule = new;
    assert_eq!(limiter.ask(T0 + 1, 1, 0).expect("granted").0, T0 + 1);
}

#[test]
fn a_gift_takes_nothing_from_a_window_where_others_stand() {
    let mut limiter = Limiter::new(2, 10 * SECOND);
    // Not at the start of its window, so the new rule cannot know where it stands.
    let (_, grant) = limiter.ask_from(15 * SECOND, T0, 1, DAY).expect("granted");
    let (old, new) = (limiter.rule, rule(2, 5 * SECOND));
    limiter.rule = new;
    limiter.ask_from(15 * SECOND, T0, 2, DAY).expect("granted");
    limiter.rule = old;
    assert!(limiter.refund(T0, grant, 1));
    limiter.rule = new;
    assert_eq!(limiter.ask_from(15 * SECOND, T0, 1, 0), Err(20 * SECOND));
}

#[rstest]
#[case::shorter(1_000, 300)]
#[case::a_little_longer(1_000, 1_300)]
#[case::much_longer(1_000, 70_000)]
fn a_very_long_queue_is_never_put_too_low(#[case] from: Micros, #[case] to: Micros) {
    let mut limiter = Limiter { rule: FixedWindow { count: 3, period: from }, state: None };
    let (now, windows) = (T0 + 777, 3 * MAX_HOLES as i64);
    let grants: Vec<_> =
        (0..3 * windows).map(|_| limiter.ask(now, 1, MAX_BUDGET).expect("granted").0).collect();
    limiter.rule = FixedWindow { count: 3, period: to };
    let open = limiter.open(now);
    let mut exact = HashMap::new();
    grants.iter().for_each(|at| *exact.entry(at.div_euclid(to)).or_insert(0) += 1);
    for (window, count) in exact {
        let kept = open.own.count(window);
        assert!(kept >= count, "{kept} of {count} in {window}");
        assert!(kept <= 3 * (to / from + 2), "{kept} where {count} are: far too many");
    }
}

#[test]
fn sections_are_few_and_go_when_nobody_uses_them() {
    let mut limiter = Limiter::new(5, 3_600 * SECOND);
    for seconds in [3_600, 1, 2, 3, 4, 5] {
        limiter.rule = rule(50, seconds * SECOND);
        limiter.ask(T0, 1, 0).expect("granted");
    }
    assert_eq!(limiter.periods(), [5, 4, 3, 2].map(|seconds| seconds * SECOND));
    limiter.rule = rule(50, 3 * SECOND);
    limiter.ask(T0 + 1, 1, 0).expect("granted");
    assert_eq!(limiter.periods(), [3, 5, 4, 2].map(|seconds| seconds * SECOND));
    // An hour that is in use keeps the state, and each of the others for its period and a minute.
    let mut limiter = Limiter::new(500, 3_600 * SECOND);
    limiter.ask(T0, 1, 0).expect("granted");
    limiter.rule = rule(500, 10 * SECOND);
    limiter.ask(T0, 1, 0).expect("granted");
    limiter.rule = rule(500, 3_600 * SECOND);
    limiter.ask(T0 + 70 * SECOND, 1, 0).expect("granted");
    assert_eq!(limiter.periods().len(), 2);
    limiter.ask(T0 + 70 * SECOND + 1, 1, 0).expect("granted");
    assert_eq!(limiter.periods(), [3_600 * SECOND]);
}

#[test]
fn a_clock_that_goes_back_grants_nothing_anew() {
    let mut limiter = Limiter::new(2, SECOND);
    limiter.ask(T0 + 10 * SECOND + 500, 1, 0).expect("granted");
    // Within the window nothing is unknown.
    assert_eq!(
        limiter.ask(T0 + 10 * SECOND + 200, 1, 0).expect("granted").0,
        T0 + 10 * SECOND + 200
    );
    assert_eq!(limiter.ask(T0 + 10 * SECOND + 300, 1, 0), Err(SECOND - 300));
    // Before it nobody knows what was granted.
    assert_eq!(limiter.ask(T0 + 9 * SECOND, 1, 0), Err(2 * SECOND));
    assert_eq!(limiter.open(T0 + 9 * SECOND).level().remaining, 0);
    assert_eq!(limiter.open(T0 + 9 * SECOND).level().reset_after, 2 * SECOND);
}

#[test]
fn runs_are_bounded_and_only_ever_put_too_high() {
    let (period, mut open) = (1_000, Open::new(None, T0, rule(9, 1_000)));
    let mut counts = HashMap::new();
    for i in 0..3 * MAX_HOLES as i64 {
        // Each leaves a gap before it, as a request does that waits for another limiter.
        let (_, start) = open.earliest(period * (2 * i + i % 3), 1 + i % 4);
        open.take(start, 1 + i % 4);
        *counts.entry(start / period).or_insert(0) += 1 + i % 4;
        assert!(open.own.runs.len() <= MAX_HOLES);
    }
    assert_eq!(open.own.runs.len(), MAX_HOLES);
    assert!(
        counts.into_iter().all(|(window, count)| (count..=9).contains(&open.own.count(window)))
    );
}

#[derive(Debug, Clone)]
struct Step {
    after: Micros,
    cost: i64,
    budget: Micros,
    /// Waits for another limiter that long.
    from: Micros,
    /// Which rule it uses, in tests with several.
    rule: usize,
    gives_back: Option<usize>,
}

fn steps(longest: Micros) -> impl Strategy<Value = Vec<Step>> {
    let budget = prop_oneof![Just(0), 0..4 * longest];
    let from = prop_oneof![2 => Just(0), 1 => 0..3 * longest];
    let gives_back = prop::option::weighted(0.4, 0..6usize);
    let step = (0..longest, 1..4i64, budget, from, 0..3usize, gives_back);
    let step = step.prop_map(move |(after, cost, budget, from, rule, gives_back)| Step {
        after: after * after / longest,
        cost,
        budget,
        from,
        rule,
        gives_back,
    });
    prop::collection::vec(step, 1..60)
}

/// A rule whose windows are short enough to search by brute force.
fn small() -> impl Strategy<Value = FixedWindow> {
    (4..9i64, 1..40i64).prop_map(|(count, period)| FixedWindow { count, period })
}

proptest! {
    #![proptest_config(crate::algorithm::tests::cases(512))]

    #[test]
    fn first_fit_is_what_brute_force_finds(rule in small(), steps in steps(60)) {
        let (mut limiter, mut now) = (Limiter { rule, state: None }, T0);
        let mut grants = Vec::<Granted>::new();
        for (step, Step { after, cost, budget, from, gives_back, .. }) in steps.into_iter().enumerate() {
            now += after;
            if let Some(i) = gives_back.filter(|i| *i < grants.len()) {
                let gift = grants[grants.len() - 1 - i];
                let current = gift.at >= now || same_window(rule.period, gift.at, now);
                prop_assert_eq!(limiter.refund(now, gift.grant, gift.cost), current);
                if current {
                    grants.retain(|grant| grant.step != gift.step);
                }
            }
            let expected = brute_force(rule, &grants, now + from, cost);
            match limiter.ask_from(from, now, cost, from + budget) {
                Ok((at, grant)) => {
                    prop_assert_eq!(at, expected);
                    grants.push(Granted { at, cost, grant, rule, step });
                }
                Err(wait) => {
                    prop_assert_eq!(now + wait, expected);
                    prop_assert!(wait > from + budget);
                }
            }
            prop_assert!(grants.iter().all(|grant| taken(rule.period, &grants, grant.at) <= rule.count));
        }
    }

    /// Three rules that all know each other from the beginning count each other's grants exactly, and keep the laxer.
    #[test]
    fn side_by_side_each_rule_is_first_fit_over_the_grants_of_all(
        rules in [small(), small(), small()],
        steps in steps(60),
    ) {
        let mut limiter = Limiter::new(1_000, 1_000 * SECOND);
        let (mut grants, mut now) = (Vec::<Granted>::new(), T0 + 1);
        // By period the count that was used last.
        let mut known = HashMap::new();
        for (step, rule) in [limiter.rule].into_iter().chain(rules).enumerate() {
            limiter.rule = rule;
            known.insert(rule.period, rule.count);
            let (at, grant) = limiter.ask(T0, 1, 0).expect("granted");
            grants.push(Granted { at, cost: 1, grant, rule, step: 1_000 + step });
        }
        for (step, Step { after, cost, budget, from, rule, gives_back }) in steps.into_iter().enumerate() {
            now += after;
            if let Some(i) = gives_back.filter(|i| i + 4 < grants.len()) {
                let gift = grants[grants.len() - 1 - i];
                let current = gift.at >= now || same_window(gift.rule.period, gift.at, now);
                limiter.rule = gift.rule;
                prop_assert_eq!(limiter.refund(now, gift.grant, gift.cost), current);
                if current {
                    known.insert(gift.rule.period, gift.rule.count);
                    grants.retain(|grant| grant.step != gift.step);
                }
            }
            limiter.rule = rules[rule];
            let rule = limiter.rule;
            let expected = brute_force_beside(rule, &known, &grants, now + from, cost);
            match limiter.ask_from(from, now, cost, from + budget) {
                Ok((at, grant)) => {
                    known.insert(rule.period, rule.count);
                    prop_assert_eq!(at, expected);
                    prop_assert!(taken(rule.period, &grants, at) + cost <= rule.count);
                    grants.push(Granted { at, cost, grant, rule, step });
                }
                Err(wait) => prop_assert_eq!(now + wait, expected),
            }
        }
    }

    /// A rule that comes into force at any time is kept from then on, whatever the others do.
    #[test]
    fn a_new_rule_is_never_broken_once_it_is_in_force(
        rules in [small(), small(), small()],
        steps in steps(60),
    ) {
        let mut limiter = Limiter::new(1_000, 1_000 * SECOND);
        limiter.ask(T0, 1, 0).expect("granted");
        let (mut grants, mut now, mut since) = (Vec::<Granted>::new(), T0, HashMap::new());
        for (step, Step { after, cost, budget, from, rule, gives_back }) in steps.into_iter().enumerate() {
            now += after;
            if let Some(i) = gives_back.filter(|i| *i < grants.len()) {
                let gift = grants[grants.len() - 1 - i];
                limiter.rule = gift.rule;
                if limiter.refund(now, gift.grant, gift.cost) {
                    grants.retain(|grant| grant.step != gift.step);
                }
            }
            limiter.rule = rules[rule];
            let rule = limiter.rule;
            if let Ok((at, grant)) = limiter.ask_from(from, now, cost, from + budget) {
                let since = *since.entry(rule.period).or_insert(step);
                grants.push(Granted { at, cost, grant, rule, step });
                let own: Vec<_> = grants.iter().filter(|grant| grant.step >= since).copied().collect();
                prop_assert!(taken(rule.period, &own, at) <= rule.count);
            }
        }
    }

    /// What one rule promised before stands under the next.
    #[test]
    fn promises_are_kept_under_another_rule(
        rules in [small(), small()],
        waiters in prop::collection::vec(1..4i64, 1..60),
        after in 0..50i64,
        cost in 1..4i64,
    ) {
        let mut limiter = Limiter { rule: rules[0], state: None };
        let mut grants = Vec::<Granted>::new();
        for (step, cost) in waiters.into_iter().enumerate() {
            let (at, grant) = limiter.ask(T0, cost, MAX_BUDGET).expect("granted");
            grants.push(Granted { at, cost, grant, rule: rules[0], step });
        }
        limiter.rule = rules[1];
        let now = T0 + after;
        // Where the old rule had something promised, the new one has it too.
        if limiter.open(now).reset_after() > 0 {
            let known = HashMap::from([(rules[0].period, rules[0].count)]);
            let expected = brute_force_beside(rules[1], &known, &grants, now, cost);
            prop_assert_eq!(now + limiter.open(now).earliest(0, cost).0, expected);
        }
    }

    #[test]
    fn a_clock_that_jumps_breaks_no_window(
        rule in small(),
        steps in steps(60),
        jumps in prop::collection::vec(-40..60i64, 60),
    ) {
        let (mut limiter, mut now, mut grants) = (Limiter { rule, state: None }, T0, Vec::new());
        for (step, Step { after, cost, budget, from, .. }) in steps.into_iter().enumerate() {
            now += if jumps[step] < 0 { jumps[step] } else { after };
            match limiter.ask_from(from, now, cost, from + budget) {
                Ok((at, grant)) => {
                    prop_assert!(at >= now + from);
                    grants.push(Granted { at, cost, grant, rule, step });
                }
                Err(wait) => prop_assert!(limiter.clone().ask_from(from, now + wait - from, cost, from).is_ok()),
            }
            let (level, mut copy) = (limiter.open(now).level(), limiter.clone());
            let taken = (0..99).take_while(|_| copy.ask(now, 1, 0).is_ok()).count();
            prop_assert_eq!(level.remaining, taken as i64);
        }
        prop_assert!(grants.iter().all(|grant| taken(rule.period, &grants, grant.at) <= rule.count));
    }

    #[test]
    fn what_was_given_back_is_there_for_the_next(rule in small(), waiters in 2..60usize, leaves in 0..60usize) {
        let mut limiter = Limiter { rule, state: None };
        let grants: Vec<_> =
            (0..waiters).map(|_| limiter.ask(T0, 1, MAX_BUDGET).expect("granted")).collect();
        let (at, grant) = grants[leaves % waiters];
        let end = limiter.open(T0).earliest(0, 1).0;
        prop_assert!(limiter.refund(T0, grant, 1));
        prop_assert_eq!(limiter.ask(T0, 1, MAX_BUDGET).expect("granted").0, at);
        prop_assert_eq!(limiter.ask(T0, 1, MAX_BUDGET).expect("granted").0, T0 + end);
    }

    #[test]
    fn no_more_is_given_back_than_was_taken(rule in small(), waiters in 1..20usize) {
        let mut limiter = Limiter { rule, state: None };
        let grants: Vec<_> =
            (0..waiters).map(|_| limiter.ask(T0, 1, MAX_BUDGET).expect("granted").1).collect();
        let all = grants.iter().chain(&grants);
        let given = all.filter(|grant| limiter.refund(T0, **grant, 1)).count();
        prop_assert_eq!(given, waiters);
        prop_assert_eq!(limiter.state, None);
    }

    #[test]
    fn retry_after_is_true_and_not_a_microsecond_too_late(
        rules in [small(), small(), small()],
        steps in steps(60),
    ) {
        let (mut limiter, mut now) = (Limiter { rule: rules[0], state: None }, T0);
        for Step { after, cost, budget, rule, gives_back, .. } in steps {
            now += after;
            // Rules that differ in the count only, so that no section is made anew.
            limiter.rule.count = rules[rule].count;
            let before = limiter.state.clone();
            match limiter.ask(now, cost, budget) {
                Err(wait) => {
                    prop_assert_eq!(&limiter.state, &before, "a refusal leaves no trace");
                    let retry = wait - budget;
                    prop_assert!(limiter.clone().ask(now + retry, cost, budget).is_ok(), "too early");
                    prop_assert!(limiter.clone().ask(now + retry - 1, cost, budget).is_err(), "too late");
                }
                Ok((at, grant)) if gives_back.is_some() && at > now => {
                    prop_assert!(limiter.refund(now, grant, cost));
                }
                Ok(_) => {}
            }
        }
    }

    /// Also around a change of the period, where it may be late, because a state is forgotten whole.
    #[test]
    fn a_lone_caller_who_comes_back_in_time_passes(
        rules in [small(), small(), small()],
        steps in steps(60),
    ) {
        let (mut limiter, mut now) = (Limiter { rule: rules[0], state: None }, T0);
        for Step { after, cost, budget, rule, .. } in steps {
            now += after;
            limiter.rule = rules[rule];
            if let Err(wait) = limiter.ask(now, cost, budget) {
                prop_assert!(limiter.clone().ask(now + wait - budget, cost, budget).is_ok());
            }
        }
    }

    #[test]
    fn forgetting_equals_full(
        rules in [small(), small(), small()],
        steps in steps(60),
        late in 0..100i64,
        cost in 1..4i64,
    ) {
        let (mut limiter, mut now) = (Limiter { rule: rules[0], state: None }, T0);
        for Step { after, cost, budget, from, rule, .. } in steps {
            now += after;
            limiter.rule = rules[rule];
            let _ = limiter.ask_from(from, now, cost, budget);
        }
        // As written: the last rule that was admitted.
        let Some(written) = limiter.state.clone() else { return Ok(()) };
        limiter.rule.period = written.sections[0].period;
        if let Some((_, ttl)) = limiter.open(now).close() {
            let then = now + ttl + late;
            let gone = Open::new(None, then, limiter.rule);
            prop_assert_eq!(limiter.open(then).earliest(0, cost), gone.earliest(0, cost));
            prop_assert_eq!(limiter.open(then).level(), gone.level());
            prop_assert!(limiter.open(now + ttl - 1).close().is_some());
        }
    }

    #[test]
    fn remaining_permits_are_there_and_no_more(
        rules in [small(), small(), small()],
        steps in steps(60),
    ) {
        let (mut limiter, mut now) = (Limiter { rule: rules[0], state: None }, T0);
        for Step { after, budget, rule, .. } in steps {
            now += after;
            limiter.rule = rules[rule];
            let _ = limiter.ask(now, 1, budget);
            let level = limiter.open(now).level();
            let mut copy = limiter.clone();
            let taken = (0..99).take_while(|_| copy.ask(now, 1, 0).is_ok()).count();
            prop_assert_eq!(level.remaining, taken as i64);
            prop_assert_eq!(level.next == 0, taken > 0);
            prop_assert_eq!(limiter.clone().ask(now, 1, level.next).map(|grant| grant.0), Ok(now + level.next));
        }
    }

    #[test]
    fn two_limiters_pass_all_or_nothing_and_both_obey(rules in [small(), small()], steps in steps(60)) {
        let mut states: [Option<AnyState>; 2] = [None, None];
        let (mut grants, mut now) = ([Vec::new(), Vec::new()], T0);
        for (step, Step { after, cost, budget, rule, gives_back, .. }) in steps.into_iter().enumerate() {
            now += after;
            // Some requests need only one of them.
            let used = match rule { 0 => 0..1, 1 => 1..2, _ => 0..2 };
            if let Some(i) = gives_back.filter(|i| *i < grants[0].len()) {
                let gift: Granted = grants[0].remove(i);
                let mut open = Algorithm::FixedWindow(rules[0]).open(states[0].as_mut(), now);
                if open.refund(gift.grant, gift.cost) {
                    states[0] = open.close().map(|(state, _)| state);
                } else {
                    grants[0].push(gift);
                }
            }
            let mut open: Vec<_> = used.clone()
                .map(|i| Algorithm::FixedWindow(rules[i]).open(states[i].as_mut(), now))
                .collect();
            let mut wants: Vec<_> =
                open.iter_mut().map(|open| Want { open, cost, enforce: true }).collect();
            let reserved = reserve::decide(&mut wants, budget, None);
            let fits = |at: &Micros| {
                used.clone().all(|i| taken(rules[i].period, &grants[i], *at) + cost <= rules[i].count)
            };
            prop_assert_eq!(now + reserved.at, (now..).find(fits).expect("some instant"));
            prop_assert_eq!(reserved.parts.is_some(), reserved.at <= budget);
            for (part, (i, open)) in reserved.parts.into_iter().flatten().zip(used.zip(open)) {
                states[i] = open.close().map(|(state, _)| state);
                let (at, grant) = (now + part.at, part.grant);
                grants[i].push(Granted { at, cost, grant, rule: rules[i], step });
            }
        }
    }
}
