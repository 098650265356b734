use super::*;
use crate::algorithm::{
    Open as AnyOpen, State as AnyState,
    reserve::{self, Reserved, Want},
};
use proptest::prelude::*;
use rstest::rstest;

mod laws;

const T0: Micros = 1_700_000_000_000_000;
const SECOND: Micros = 1_000_000;

fn rule(count: i64, period: Micros, margin: Micros, capacity: Option<i64>) -> LeakyBucket {
    LeakyBucket::new(count, period, margin, capacity).expect("a rule")
}

/// A bucket with its own clock.
struct Bucket {
    rule: LeakyBucket,
    state: Option<State>,
}

impl Bucket {
    /// Decides as a store does: a refusal changes nothing.
    fn decide(&mut self, now: Micros, cost: i64, budget: Micros) -> Reserved {
        let mut open = AnyOpen::LeakyBucket(Open::new(self.state.as_mut(), now, self.rule));
        let reserved = reserve::decide(
            &mut [Want { open: &mut open, cost, enforce: true, gate: None }],
            budget,
            None,
        );
        if reserved.parts.is_some() {
            let Some((AnyState::LeakyBucket(state), _)) = open.close() else { panic!("no state") };
            self.state = Some(state);
        }
        reserved
    }

    /// The instant of the grant, or by how much it is refused.
    fn ask(&mut self, now: Micros, cost: i64, budget: Micros) -> Result<(Micros, Grant), Micros> {
        let reserved = self.decide(now, cost, budget);
        let parts = reserved.parts.ok_or(reserved.retry_after)?;
        Ok((now + reserved.at, parts[0].grant))
    }

    /// A grant at `from` or later, as another limiter of the request makes it.
    fn take_from(&mut self, now: Micros, from: Micros, cost: i64) -> (Micros, Grant) {
        let mut open = Open::new(self.state.as_mut(), now, self.rule);
        let (at, start) = open.earliest(from, cost);
        let grant = open.take(start, cost);
        self.state = open.close().map(|(state, _)| state);
        (now + at, grant)
    }

    fn refund(&mut self, now: Micros, grant: Grant, cost: i64) -> bool {
        let mut open = Open::new(self.state.as_mut(), now, self.rule);
        let given = open.refund(grant, cost);
        self.state = open.close().map(|(state, _)| state);
        given
    }

    fn copy(&self) -> Self {
        Self { rule: self.rule, state: self.state.clone() }
    }
}

#[rstest]
#[case::no_permits(0, SECOND, 0, None)]
#[case::negative_margin(1, SECOND, -1, None)]
#[case::negative_capacity(1, SECOND, 0, Some(-1))]
#[case::more_than_one_a_microsecond(1001, 1000, 0, None)]
#[case::endless_margin(2, SECOND, i64::MAX, None)]
#[case::takes_centuries(1, 150 * 366 * 86_400 * SECOND, 0, None)]
fn what_is_no_rule(
    #[case] count: i64,
    #[case] period: Micros,
    #[case] margin: Micros,
    #[case] capacity: Option<i64>,
) {
    assert_eq!(LeakyBucket::new(count, period, margin, capacity), None);
}

#[rstest]
#[case::unbounded(rule(7, SECOND, 0, None), MAX_BUDGET)]
#[case::no_queue(rule(7, SECOND, 0, Some(0)), 0)]
#[case::whole(rule(10, SECOND, 0, Some(5)), 500_000)]
#[case::the_instants_are_rounded_up(rule(7, SECOND, 0, Some(1)), 142_858)]
#[case::with_margin(rule(10, SECOND, 1_000, Some(5)), 505_000)]
#[case::more_than_the_longest_budget(rule(1, SECOND, 0, Some(i64::MAX)), MAX_BUDGET)]
fn a_queue_of_permits_is_a_longest_wait(#[case] rule: LeakyBucket, #[case] longest: Micros) {
    assert_eq!(rule.longest_wait(), longest);
}

#[test]
fn permits_flow_out_one_by_one_and_a_cost_is_paid_behind() {
    let mut bucket = Bucket { rule: rule(5, SECOND, 50_000, None), state: None };
    let at = [1, 1, 3, 1].map(|cost| bucket.ask(T0, cost, SECOND * 10).expect("granted").0 - T0);
    assert_eq!(at, [0, 250_000, 500_000, 1_250_000]);
}

#[rstest]
#[case::seven_a_second(7, SECOND, 0)]
#[case::eighty_thousand_a_second(80_000, SECOND, 0)]
#[case::one_a_day(1, 86_400 * SECOND, 0)]
#[case::a_prime_a_minute_with_margin(997, 60 * SECOND, 1234)]
fn a_million_saturated_grants_end_at_the_exact_microsecond(
    #[case] count: i64,
    #[case] period: Micros,
    #[case] margin: Micros,
) {
    const GRANTS: i64 = 1_000_000;
    let (rule, mut state, mut now) = (rule(count, period, margin, None), None, T0);
    for _ in 0..GRANTS {
        let mut open = Open::new(state.as_mut(), now, rule);
        let (at, start) = open.earliest(0, 1);
        // A request that came too early comes back at the very instant that the refusal named.
        if at > 0 {
            now += at;
            open = Open::new(state.as_mut(), now, rule);
            assert_eq!(open.earliest(0, 1).0, 0);
        }
        let start = if at > 0 { open.earliest(0, 1).1 } else { start };
        open.take(start, 1);
        state = open.close().map(|(state, _)| state);
    }
    let exact = i128::from(GRANTS - 1) * i128::from(period + margin * count);
    let exact = (exact + i128::from(count) - 1).div_euclid(i128::from(count));
    assert_eq!(i128::from(now - T0), exact);
}

#[rstest]
#[case::same(5, 5, 800_000)]
#[case::faster(8, 5, 725_000)]
#[case::much_faster(50, 5, 620_000)]
#[case::slower(1, 5, 1_600_000)]
#[case::with_another_queue(5, 2, 800_000)]
fn a_change_of_the_rule_keeps_the_instants_of_waiters(
    #[case] count: i64,
    #[case] queue: i64,
    #[case] next: Micros,
) {
    let mut bucket = Bucket { rule: rule(5, SECOND, 0, Some(5)), state: None };
    for _ in 0..4 {
        bucket.ask(T0, 1, MAX_BUDGET).expect("granted");
    }
    bucket.rule = rule(count, SECOND, 0, Some(queue));
    assert_eq!(bucket.decide(T0, 1, 0).at, next);
}

#[test]
fn a_change_there_and_back_gives_no_free_permits() {
    let mut bucket = Bucket { rule: rule(5, SECOND, 0, None), state: None };
    let mut granted = 0;
    for i in 0..1000 {
        bucket.rule = rule(5, SECOND, i % 2, Some(i % 3));
        granted += i32::from(bucket.ask(T0 + i * 1000, 1, 0).is_ok());
    }
    // Neither more than 5 a second nor, of course, fewer by more than the margins.
    assert_eq!(granted, 5);
}
