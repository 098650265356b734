use super::*;
use crate::algorithm::{
    MAX_HOLES, Open as AnyOpen, OpenRule, RuleState, State as AnyState,
    reserve::{self, Reserved, Want},
};
use proptest::prelude::*;
use rstest::rstest;

mod laws;

const T0: Micros = 1_700_000_000_000_000;
const SECOND: Micros = 1_000_000;
const DAY: Micros = 86_400 * SECOND;

fn rule(count: i64, period: Micros, warm_up: Micros, cold_factor: f64) -> WarmUp {
    WarmUp::new(count, period, warm_up, cold_factor).expect("a rule")
}

/// A limiter with its own clock.
struct Limiter {
    rule: WarmUp,
    state: Option<State>,
}

impl Limiter {
    fn new(rule: WarmUp) -> Self {
        Self { rule, state: None }
    }

    fn open(&mut self, now: Micros) -> Open {
        Open::new(self.state.as_mut(), now, self.rule)
    }

    /// Decides as a store does: a refusal changes nothing.
    fn decide(&mut self, now: Micros, cost: i64, budget: Micros) -> Reserved {
        let mut open = OpenRule::Rate(AnyOpen::WarmUp(self.open(now)));
        let reserved = reserve::decide(
            &mut [Want { open: &mut open, cost, enforce: true, gate: None, kept: 0 }],
            budget,
            None,
        );
        if reserved.parts.is_some() {
            let Some((RuleState::Rate(AnyState::WarmUp(state)), _)) = open.close() else {
                panic!("no state")
            };
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
        let mut open = self.open(now);
        let (at, start) = open.earliest(from, cost, 0);
        let grant = open.take(start, cost);
        self.state = open.close().map(|(state, _)| state);
        (now + at, grant)
    }

    fn refund(&mut self, now: Micros, grant: Grant, cost: i64) -> bool {
        let mut open = self.open(now);
        let given = open.refund(grant, cost);
        self.state = open.close().map(|(state, _)| state);
        given
    }

    fn copy(&self) -> Self {
        Self { rule: self.rule, state: self.state.clone() }
    }
}

/// Guava's `SmoothRateLimiter.SmoothWarmingUp` as published, except that it does not round to whole µs.
#[derive(Clone)]
struct Guava {
    stable: f64,
    cool_down: f64,
    max: f64,
    threshold: f64,
    slope: f64,
    stored: f64,
    next_free: f64,
}

impl Guava {
    fn new(stable: f64, warm_up: f64, cold_factor: f64) -> Self {
        let cold = stable * cold_factor;
        let threshold = 0.5 * warm_up / stable;
        let max = threshold + 2.0 * warm_up / (stable + cold);
        let slope = (cold - stable) / (max - threshold);
        let cool_down = warm_up / max;
        Self { stable, cool_down, max, threshold, slope, stored: max, next_free: 0.0 }
    }

    fn reserve(&mut self, now: f64, permits: f64) -> f64 {
        if now > self.next_free {
            self.stored = self.max.min(self.stored + (now - self.next_free) / self.cool_down);
            self.next_free = now;
        }
        let at = self.next_free;
        let spent = permits.min(self.stored);
        self.next_free += self.wait_time(spent) + (permits - spent) * self.stable;
        self.stored -= spent;
        at
    }

    /// Edited: as many permits are owed, which flow at the faster rate since the last one was `written`, and
    /// as great a part is stored.
    fn edited(&self, new: Self, now: f64, written: f64) -> Self {
        let idle = (now - self.next_free).max(0.0) / self.cool_down;
        let stored = (self.stored + idle).min(self.max) / self.max * new.max;
        let after = |instant: f64| instant + (self.next_free - instant) / self.stable * new.stable;
        let next_free = if idle > 0.0 { now } else { after(now).min(after(written)) };
        Self { stored, next_free, ..new }
    }

    fn wait_time(&self, permits: f64) -> f64 {
        let above = self.stored - self.threshold;
        if above <= 0.0 {
            return self.stable * permits;
        }
        let taken = above.min(permits);
        let length = self.permits_to_time(above) + self.permits_to_time(above - taken);
        taken * length / 2.0 + self.stable * (permits - taken)
    }

    fn permits_to_time(&self, permits: f64) -> f64 {
        self.stable + permits * self.slope
    }
}

#[rstest]
#[case::no_permits(0, SECOND, SECOND, 3.0)]
#[case::more_than_one_a_microsecond(1001, 1000, SECOND, 3.0)]
#[case::no_warm_up(1, SECOND, 0, 3.0)]
#[case::too_long_a_warm_up(1, SECOND, MAX_BUDGET + 1, 3.0)]
#[case::not_colder(1, SECOND, SECOND, 1.0)]
#[case::too_cold(1, SECOND, SECOND, 100.1)]
#[case::no_number(1, SECOND, SECOND, f64::NAN)]
#[case::takes_centuries(1, 150 * 366 * DAY, SECOND, 3.0)]
fn refuses_numbers_that_make_no_warm_up(
    #[case] count: i64,
    #[case] period: Micros,
    #[case] warm_up: Micros,
    #[case] cold_factor: f64,
) {
    assert_eq!(WarmUp::new(count, period, warm_up, cold_factor), None);
}

#[rstest]
#[case::a_day(7, DAY, MAX_BUDGET)]
#[case::one_a_microsecond(1_000_000, SECOND, MAX_BUDGET)]
#[case::a_prime_a_day(123_457, DAY, MAX_BUDGET)]
#[case::a_prime_a_second(999_983, SECOND, MAX_BUDGET)]
fn the_arithmetic_is_exact_and_at_most_a_hair_slower(
    #[case] count: i64,
    #[case] period: Micros,
    #[case] warm_up: Micros,
) {
    let WarmUp { pace, window, .. } = rule(count, period, warm_up, 100.0);
    let greatest = pace.full() + window + 2 * MAX_BUDGET * pace.den;
    assert!(greatest < EXACT, "{greatest}");
    let excess = i128::from(pace.per) * i128::from(count) - i128::from(period * pace.den);
    assert!(excess >= 0, "faster than asked for");
    assert!(excess * 1_000_000 / i128::from(period * pace.den) <= 2, "{excess}");
}

#[rstest]
#[case::three(3.0, 40)]
#[case::two(2.0, 54)]
#[case::seven(7.0, 20)]
fn from_cold_to_the_threshold_takes_exactly_the_warm_up(
    #[case] cold_factor: f64,
    #[case] permits: i64,
) {
    // As many permits as are stored above the threshold: 2W / (s + f·s).
    let warm_up = permits * (1 + (cold_factor as i64)) * 50_000;
    let mut limiter = Limiter::new(rule(10, SECOND, warm_up, cold_factor));
    let mut ask = || limiter.ask(T0, 1, MAX_BUDGET).expect("granted").0 - T0;
    let at: Vec<_> = (0..permits + 3).map(|_| ask()).collect();
    let permits = permits as usize;
    assert!((warm_up..=warm_up + 1).contains(&at[permits]), "{at:?}");
    assert_eq!((at[permits + 1] - at[permits], at[permits + 2] - at[permits]), (100_000, 200_000));
    let first = (at[1] as f64) / 100_000.0;
    assert!(first < cold_factor && first > cold_factor * 0.95, "{first}");
}

#[rstest]
#[case::seven_a_second(7, SECOND)]
#[case::eighty_thousand_a_second(80_000, SECOND)]
#[case::one_a_microsecond(1_000_000, SECOND)]
#[case::one_a_day(1, DAY)]
fn a_million_saturated_grants_end_at_the_exact_microsecond_after_the_warm_up(
    #[case] count: i64,
    #[case] period: Micros,
) {
    const GRANTS: i64 = 1_000_000;
    let (mut limiter, mut now) = (Limiter::new(rule(count, period, 2 * SECOND, 3.0)), T0);
    let mut come_back_in_time = || {
        let mut open = limiter.open(now);
        let (at, mut start) = open.earliest(0, 1, 0);
        if at > 0 {
            now += at;
            open = limiter.open(now);
            start = open.earliest(0, 1, 0).1;
        }
        let grant = open.take(start, 1);
        limiter.state = open.close().map(|(state, _)| state);
        (now, grant)
    };
    let first = loop {
        let (_, grant) = come_back_in_time();
        if grant.aux == 0 {
            break grant;
        }
    };
    let last = (0..GRANTS).map(|_| come_back_in_time().0).last().expect("many");
    let den = i128::from(limiter.rule.pace.den);
    let ticks = (i128::from(first.whole) * den + i128::from(first.ticks)) * i128::from(count)
        + i128::from(GRANTS) * i128::from(period) * den;
    let unit = den * i128::from(count);
    assert_eq!(i128::from(last), (ticks + unit - 1) / unit);
}

#[test]
fn only_idle_time_cools_a_limiter() {
    let mut limiter = Limiter::new(rule(10, SECOND, 4 * SECOND, 3.0));
    let last = (0..100).map(|_| limiter.ask(T0, 1, MAX_BUDGET).expect("granted").0).last();
    let tail = last.expect("many") + 100_000;
    assert_eq!(limiter.open(tail - SECOND).cold, 0);
    for (idle, next) in [(0, 100_000), (2 * SECOND, 100_000), (4 * SECOND, 295_000), (DAY, 295_000)]
    {
        let mut copy = limiter.copy();
        copy.ask(tail + idle, 1, 0).expect("granted");
        assert_eq!(copy.open(tail + idle).level().next, next, "{idle}");
    }
}

#[test]
fn refunds_of_waiters_cool_a_warming_limiter() {
    let rule = rule(10, SECOND, 4 * SECOND, 3.0);
    let mut limiter = Limiter::new(rule);
    let ask = |_| limiter.ask(T0, 1, MAX_BUDGET).expect("granted");
    let grants: Vec<_> = (0..20).map(ask).collect();
    for (_, grant) in &grants[..19] {
        assert!(limiter.refund(T0, *grant, 1));
    }
    // As if the last one had been alone: a permit's time below the coldness of the beginning.
    assert_eq!(limiter.open(T0).cold, rule.window - rule.pace.per);
}

#[test]
fn refunds_leave_a_warm_limiter_warm() {
    let mut limiter = Limiter::new(rule(10, SECOND, 4 * SECOND, 3.0));
    let ask = |_| limiter.ask(T0, 1, MAX_BUDGET).expect("granted");
    let grants: Vec<_> = (0..1000).map(ask).collect();
    for (_, grant) in grants[200..].iter().step_by(2) {
        assert!(limiter.refund(T0, *grant, 1));
    }
    assert_eq!(limiter.open(T0).cold, 0);
}

#[test]
fn holes_are_bounded() {
    let mut open = Open::new(None, T0, rule(1, 1000, SECOND, 2.0));
    for i in 0..2 * MAX_HOLES as i64 {
        let (_, start) = open.earliest(5000 * (i + 1), 1, 0);
        open.take(start, 1);
    }
    assert_eq!(open.holes.len(), MAX_HOLES);
}

#[rstest]
#[case::same(10, 4, 3.0)]
#[case::faster(50, 4, 3.0)]
#[case::slower(1, 4, 3.0)]
#[case::longer_warm_up(10, 40, 3.0)]
#[case::colder(10, 4, 9.0)]
fn a_change_of_the_rule_keeps_the_permits_owed_and_the_warmth(
    #[case] count: i64,
    #[case] warm_up: i64,
    #[case] cold_factor: f64,
) {
    let mut limiter = Limiter::new(rule(10, SECOND, 4 * SECOND, 3.0));
    for _ in 0..10 {
        limiter.ask(T0, 1, MAX_BUDGET).expect("granted");
    }
    // Coldness 3 s of 4 s; owed are those 10 permits, in stable intervals.
    let owed = limiter.open(T0).tail as f64 / limiter.rule.pace.per as f64;
    limiter.rule = rule(count, SECOND, warm_up * SECOND, cold_factor);
    let open = limiter.open(T0);
    assert_eq!(open.cold, limiter.rule.window / 4 * 3);
    let now_owed = open.tail as f64 / limiter.rule.pace.per as f64;
    assert!((now_owed - owed).abs() < 0.001, "{now_owed} {owed}");
}

#[test]
fn two_rules_in_turn_grant_no_free_permits() {
    let alone = |edited: f64| {
        let (mut limiter, mut granted) = (Limiter::new(rule(10, SECOND, 4 * SECOND, 3.0)), 0);
        for i in 0..2000 {
            let cold_factor = if i % 2 == 0 { 3.0 } else { edited };
            limiter.rule = rule(10, SECOND, 4 * SECOND, cold_factor);
            granted += i32::from(limiter.ask(T0 + i * 5_000, 1, 0).is_ok());
        }
        granted
    };
    let expected = alone(3.0);
    assert!((expected - 1..=expected).contains(&alone(3.001)), "{expected}");
}

/// The permits of an hour at a million a second are an age at one in an hour.
#[test]
fn a_hole_that_is_an_age_before_the_tail_of_a_slower_rule_is_dropped() {
    let mut limiter = Limiter::new(rule(1_000_000, SECOND, 1, 3.0));
    let (_, early) = limiter.take_from(T0, SECOND, 1_000);
    limiter.take_from(T0, MAX_BUDGET - SECOND, 1_000);
    assert!(limiter.refund(T0, early, 1_000));
    assert!(!limiter.open(T0).holes.is_empty());
    limiter.rule = rule(3, 3 * MAX_BUDGET, MAX_BUDGET, 3.0);
    assert_eq!(limiter.open(T0).holes, []);
}
