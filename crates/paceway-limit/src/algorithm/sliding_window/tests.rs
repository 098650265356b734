use super::*;
use crate::algorithm::{
    MAX_BUDGET,
    tests::{Step, cases, steps},
};
use proptest::prelude::*;
use rstest::rstest;

const T0: Micros = 1_700_000_000_000_000;
const SECOND: Micros = 1_000_000;

fn rule(count: i64, period: Micros, margin: Micros) -> SlidingWindow {
    SlidingWindow::new(count, period, margin).expect("a rule")
}

/// A window with its state, for tests that only ask.
#[derive(Clone)]
struct Window {
    rule: SlidingWindow,
    state: Option<State>,
}

impl Window {
    fn new(count: i64, period: Micros, margin: Micros) -> Self {
        Self { rule: rule(count, period, margin), state: None }
    }

    fn open(&mut self, now: Micros) -> Open {
        Open::new(self.state.as_mut(), now, self.rule)
    }

    fn keep(&mut self, open: Open) {
        self.state = open.close().map(|(state, _)| state);
    }

    /// The instant of the grant, not before `from`, or the wait when it is beyond `budget`.
    fn ask_from(
        &mut self,
        now: Micros,
        from: Micros,
        cost: i64,
        budget: Micros,
    ) -> Result<(Micros, Grant), Micros> {
        let mut open = self.open(now);
        let (at, start) = open.earliest(from, cost, 0);
        if at > budget {
            if let Some(state) = &mut self.state {
                open.put_back(state);
            }
            return Err(at);
        }
        let grant = open.take(start, cost);
        self.keep(open);
        Ok((now + at, grant))
    }

    fn ask(&mut self, now: Micros, cost: i64, budget: Micros) -> Result<(Micros, Grant), Micros> {
        self.ask_from(now, 0, cost, budget)
    }

    fn refund(&mut self, now: Micros, grant: Grant, cost: i64) -> bool {
        let mut open = self.open(now);
        let given = open.refund(grant, cost);
        self.keep(open);
        given
    }

    fn level(&self, now: Micros) -> Level {
        self.clone().open(now).level()
    }
}

#[rstest]
#[case::no_permits(0, SECOND, 0)]
#[case::no_period(1, 0, 0)]
#[case::negative(-1, SECOND, 0)]
#[case::negative_margin(1, SECOND, -1)]
#[case::centuries(1, 1 << 60, 0)]
#[case::overflow(1, i64::MAX, i64::MAX)]
fn refuses_numbers_that_make_no_sliding_window(
    #[case] count: i64,
    #[case] period: Micros,
    #[case] margin: Micros,
) {
    assert_eq!(SlidingWindow::new(count, period, margin), None);
}

#[test]
fn a_window_gives_its_count_at_once_then_again_a_span_later() {
    let mut window = Window::new(3, SECOND, 30_000);
    let at: Vec<_> =
        (0..7).map(|_| window.ask(T0, 1, MAX_BUDGET).expect("granted").0 - T0).collect();
    let (one, two) = (SECOND + 30_000, 2 * (SECOND + 30_000));
    assert_eq!(at, [0, 0, 0, one, one, one, two]);
}

#[rstest]
#[case(20_000, SECOND)]
#[case(1_000_000, 86_400 * SECOND)]
fn a_large_window_is_kept_in_grains_and_loses_little(#[case] count: i64, #[case] period: Micros) {
    let mut window = Window::new(count, period, 0);
    let (mut now, mut grants) = (T0 + 7, Vec::new());
    // Bursts of a hundredth, so that grains are shared and not.
    while grants.len() < 5 * usize::try_from(count).expect("small") {
        match window.ask(now, count / 100, 0) {
            Ok((at, _)) => {
                grants
                    .extend(std::iter::repeat_n(at, usize::try_from(count / 100).expect("small")));
                now += period / 1000;
            }
            Err(at) => now += at,
        }
    }
    let n = usize::try_from(count).expect("small");
    assert!((n..grants.len()).all(|k| grants[k] - grants[k - n] >= period));
    let ideal = (grants.len() as i64 / count - 1) * period;
    assert!(now - T0 <= ideal + ideal / 100 + period / 10, "{} of {ideal}", now - T0);
    assert!(window.state.is_some_and(|state| state.ring.len() <= 10_010));
}

#[test]
fn a_later_request_leaves_earlier_room_to_other_requests() {
    let mut window = Window::new(2, SECOND, 0);
    window.ask_from(T0, 5 * SECOND, 1, MAX_BUDGET).expect("granted");
    let at: Vec<_> =
        (0..11).map(|_| window.ask(T0, 1, MAX_BUDGET).expect("granted").0 - T0).collect();
    let s = SECOND;
    assert_eq!(at, [0, 0, s, s, 2 * s, 2 * s, 3 * s, 3 * s, 4 * s, 4 * s, 5 * s]);
}

#[test]
fn a_refund_frees_the_room_that_its_request_kept_closed() {
    let mut window = Window::new(5, 48, 0);
    let (_, second) = window.ask_from(T0, 54, 2, MAX_BUDGET).expect("granted");
    window.ask(T0, 3, 0).expect("granted");
    assert_eq!(window.ask(T0, 3, 48).expect("granted").0, T0 + 48);
    let (at, last) = window.ask(T0 + 24, 1, 72).expect("granted");
    assert_eq!(at, T0 + 96, "all later room is taken");
    assert!(window.refund(T0 + 24, last, 1) && window.refund(T0 + 24, second, 2));
    assert_eq!(window.level(T0 + 24).next, 0);
}

/// As on Redis, where who takes nothing writes nothing.
#[test]
fn a_refusal_under_another_rule_changes_no_closed_room() {
    let kept = rule(3, 1_000_000, 0);
    let mut open = Open::new(None, T0, kept);
    for _ in 0..4 {
        let (_, start) = open.earliest(0, 3, 0);
        open.take(start, 3);
    }
    let mut state = open.close().map(|(state, _)| state);
    let before = state.clone();
    let other = Open::new(state.as_mut(), T0, rule(5, 2_000_000, 0));
    other.put_back(state.as_mut().expect("a state"));
    assert_eq!(state, before);
}

#[test]
fn a_refund_counts_once_and_in_its_own_state() {
    let mut window = Window::new(2, SECOND, 0);
    let grants: Vec<_> =
        (0..6).map(|_| window.ask(T0, 1, MAX_BUDGET).expect("granted").1).collect();
    assert!(window.refund(T0, grants[2], 1));
    assert!(window.refund(T0, grants[3], 1));
    assert!(!window.refund(T0, grants[3], 1), "twice");
    window.state = None;
    window.ask(T0 + 7, 1, 0).expect("granted");
    assert!(!window.refund(T0 + 8, grants[4], 1), "another state");
}

#[test]
fn future_grants_are_bounded() {
    let mut window = Window::new(1, 10, 0);
    for i in 0..2 * MAX_HOLES as i64 {
        window.ask_from(T0, 1000 * (i + 1), 1, MAX_BUDGET).expect("granted");
    }
    assert_eq!(window.state.as_ref().map(|state| state.ahead.len()), Some(MAX_HOLES));
    // The room that was closed is lost, the law is not.
    assert_eq!(
        window.ask(T0, 1, MAX_BUDGET).expect("granted").0,
        T0 + 1000 * MAX_HOLES as i64 + 10
    );
}

fn small() -> impl Strategy<Value = SlidingWindow> {
    (3..9i64, 1..60i64, 0..5i64).prop_map(|(count, period, margin)| rule(count, period, margin))
}

/// The law itself: in no half-open window of `span` µs more than `count`.
fn obeys(rule: SlidingWindow, grants: &[(Micros, i64)]) -> bool {
    grants.iter().all(|(from, _)| {
        let inside = grants.iter().filter(|(at, _)| (*from..from + rule.span).contains(at));
        inside.map(|(_, cost)| cost).sum::<i64>() <= rule.count
    })
}

/// The first µs from which on one more grant breaks no law: obviously right, and obviously slow.
fn brute_force(rule: SlidingWindow, grants: &[(Micros, i64)], from: Micros, cost: i64) -> Micros {
    let fits = |at: Micros| {
        let near = |other: &&(Micros, i64)| (other.0 - at).abs() < rule.span;
        let mut all: Vec<_> = grants.iter().filter(near).copied().collect();
        all.push((at, cost));
        obeys(rule, &all)
    };
    (from..).find(|at| fits(*at)).expect("some instant")
}

proptest! {
    #![proptest_config(cases(512))]

    #[test]
    fn every_grant_is_the_first_instant_that_the_law_allows(rule in small(), steps in steps(80)) {
        let mut window = Window { rule, state: None };
        let (mut grants, mut now) = (Vec::new(), T0);
        for Step { after, from, cost, budget, gives_back, .. } in steps {
            now += after;
            let plain: Vec<_> = grants.iter().map(|(at, cost, _)| (*at, *cost)).collect();
            let expected = brute_force(rule, &plain, now + from, cost);
            match window.ask_from(now, from, cost, budget) {
                Ok((at, grant)) => {
                    prop_assert_eq!(at, expected);
                    grants.push((at, cost, grant));
                }
                Err(wait) => {
                    prop_assert_eq!(now + wait, expected);
                    prop_assert!(wait > budget);
                }
            }
            // A request that was not sent may leave, also a little late.
            let late = now - rule.span / 2;
            let unsent: Vec<_> = (0..grants.len()).filter(|i| grants[*i].0 > late).collect();
            if let Some(i) = gives_back.and_then(|i| unsent.get(i)) {
                let (_, cost, grant) = grants.remove(*i);
                prop_assert!(window.refund(now, grant, cost));
            }
            let plain: Vec<_> = grants.iter().map(|(at, cost, _)| (*at, *cost)).collect();
            prop_assert!(obeys(rule, &plain));
            let level = window.level(now);
            let mut copy = window.clone();
            let taken = (0..).take_while(|_| copy.ask(now, 1, 0).is_ok()).count();
            prop_assert_eq!(level.remaining, taken as i64);
            prop_assert_eq!(level.next, brute_force(rule, &plain, now, 1) - now);
        }
    }

    #[test]
    fn a_rolling_change_keeps_both_rules(rules in (small(), small()), steps in steps(80)) {
        let rules = [rules.0, rules.1];
        let mut window = Window { rule: rules[0], state: None };
        let (mut grants, mut now) = ([Vec::new(), Vec::new()], T0);
        for Step { after, from, cost, budget, rule, .. } in steps {
            now += after;
            window.rule = rules[rule % 2];
            if let Ok((at, _)) = window.ask_from(now, from, cost, budget) {
                grants[rule % 2].push((at, cost));
            }
        }
        // The grants of gateways with one configuration obey its rule, whatever the grants of the others
        // were.
        prop_assert!(obeys(rules[0], &grants[0]) && obeys(rules[1], &grants[1]));
    }
}
