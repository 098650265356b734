mod laws;

use super::*;
use crate::algorithm::{MAX_BUDGET, MAX_HOLES};
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
        let (at, start) = open.earliest(from, cost, 0);
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

#[rstest]
#[case::no_permits(0, SECOND)]
#[case::negative(-1, SECOND)]
#[case::no_period(1, 0)]
#[case::too_short(1, 999)]
#[case::too_long(1, 367 * DAY)]
#[case::too_many(1_000_000_001, SECOND)]
fn refuses_numbers_that_make_no_fixed_window(#[case] count: i64, #[case] period: Micros) {
    assert_eq!(FixedWindow::new(count, period), None);
}

#[rstest]
#[case::at_the_start((2, SECOND), 0, &[1, 1, 1, 1, 1], &[0, 0, 1_000_000, 1_000_000, 2_000_000])]
#[case::in_the_middle((2, SECOND), 400_000, &[1, 1, 1, 1, 1], &[0, 0, 600_000, 600_000, 1_600_000])]
#[case::at_the_last_microsecond((1, SECOND), 999_999, &[1, 1, 1], &[0, 1, 1_000_001])]
#[case::small_ones_pass_a_large_one((3, SECOND), 0, &[2, 3, 1, 2, 1], &[0, 1_000_000, 0, 2_000_000, 2_000_000])]
#[case::a_day((1, DAY), DAY - 1_700_000_000 * SECOND % DAY, &[1, 1], &[0, DAY])]
fn a_request_gets_the_first_window_with_room(
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

#[test]
fn a_million_reservations_ahead_are_two_runs_and_end_at_the_exact_microsecond() {
    let mut open = Open::new(None, T0, rule(7, 1_000));
    let mut last = 0;
    for _ in 0..1_000_000 {
        let (at, start) = open.earliest(0, 1, 0);
        open.take(start, 1);
        last = at;
    }
    assert_eq!(last, 999_999 / 7 * 1_000);
    assert_eq!(open.own.runs.len(), 2);
}

#[test]
fn a_refund_of_the_last_permit_removes_the_state() {
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
fn a_refund_counts_once_in_time_and_in_its_own_state() {
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
// The new window ends sooner, but in the second that is full neither rule allows more than five.
#[case::odd_period((5, 1_234_567), SECOND)]
fn a_change_of_the_rule_keeps_the_level(#[case] to: (i64, Micros), #[case] wait: Micros) {
    let mut limiter = Limiter::new(5, SECOND);
    limiter.ask(T0, 5, 0).expect("granted");
    limiter.rule = rule(to.0, to.1);
    assert_eq!(limiter.ask(T0, 1, DAY).expect("granted").0, T0 + wait);
}

#[test]
fn a_full_day_does_not_block_a_rule_per_second() {
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
    assert!(limiter.ask(now, 1, 0).is_err(), "the day counts the permits of the second");
}

#[test]
fn two_rules_in_turn_grant_no_free_burst() {
    let mut limiter = Limiter::new(5, SECOND);
    let mut granted = 0;
    for i in 0..40 {
        limiter.rule = if i % 2 == 0 { rule(5, SECOND) } else { rule(8, 60 * SECOND) };
        granted += i32::from(limiter.ask(T0 + i, 1, 0).is_ok());
    }
    // The second is full with the grants of both rules, and the minute counts up to eight.
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
fn refunds_after_a_change_make_room_under_the_new_rule() {
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
fn a_refund_frees_no_permit_that_a_waiting_request_holds() {
    let mut limiter = Limiter::new(2, 10 * SECOND);
    // The grant is not at the start of its window, so the new rule cannot know where it is.
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
fn a_very_long_queue_is_never_counted_too_low(#[case] from: Micros, #[case] to: Micros) {
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
fn sections_are_bounded_and_removed_when_unused() {
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
fn a_clock_that_is_set_back_grants_no_permit_twice() {
    let mut limiter = Limiter::new(2, SECOND);
    limiter.ask(T0 + 10 * SECOND + 500, 1, 0).expect("granted");
    // Within the window nothing is unknown.
    assert_eq!(
        limiter.ask(T0 + 10 * SECOND + 200, 1, 0).expect("granted").0,
        T0 + 10 * SECOND + 200
    );
    assert_eq!(limiter.ask(T0 + 10 * SECOND + 300, 1, 0), Err(SECOND - 300));
    // For earlier instants the number of grants is unknown.
    assert_eq!(limiter.ask(T0 + 9 * SECOND, 1, 0), Err(2 * SECOND));
    assert_eq!(limiter.open(T0 + 9 * SECOND).level().remaining, 0);
    assert_eq!(limiter.open(T0 + 9 * SECOND).level().reset_after, 2 * SECOND);
}

#[test]
fn runs_are_bounded_and_never_counted_too_low() {
    let (period, mut open) = (1_000, Open::new(None, T0, rule(9, 1_000)));
    let mut counts = HashMap::new();
    for i in 0..3 * MAX_HOLES as i64 {
        // Each leaves a gap before it, as a request does that waits for another limiter.
        let (_, start) = open.earliest(period * (2 * i + i % 3), 1 + i % 4, 0);
        open.take(start, 1 + i % 4);
        *counts.entry(start / period).or_insert(0) += 1 + i % 4;
        assert!(open.own.runs.len() <= MAX_HOLES);
    }
    assert_eq!(open.own.runs.len(), MAX_HOLES);
    assert!(
        counts.into_iter().all(|(window, count)| (count..=9).contains(&open.own.count(window)))
    );
}
