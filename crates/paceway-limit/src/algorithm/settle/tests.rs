//! The law of each rule for the true costs, whatever was reserved for them.

use crate::algorithm::{
    Grant, MAX_BUDGET, Micros, Open, OpenRate,
    tests::{Limiter, T0, cases},
};
use proptest::prelude::*;

const SECOND: Micros = 1_000_000;
/// The longest waits of the requests here: those of two configurations.
const WAITS: [Micros; 2] = [1_500, 15_000];
const WAIT: Micros = WAITS[0];

impl Limiter {
    fn with<T>(&mut self, now: Micros, change: impl FnOnce(&mut Open) -> T) -> T {
        let mut open = self.rule.open(self.state.as_mut(), now);
        let changed = change(&mut open);
        self.state = open.close().map(|(state, _)| state);
        changed
    }

    /// The instant and the grant; `None` when `at` is beyond the shorter wait of the requests.
    fn take(&mut self, now: Micros, cost: i64, from: Micros) -> Option<(Micros, Grant)> {
        self.take_within(WAIT, now, cost, from)
    }

    fn take_within(
        &mut self,
        wait: Micros,
        now: Micros,
        cost: i64,
        from: Micros,
    ) -> Option<(Micros, Grant)> {
        let mut open = self.rule.open(self.state.clone().as_mut(), now);
        let (at, start) = open.earliest(from, cost, 0);
        if at > wait || at - from > open.facts().longest_wait {
            return None;
        }
        let grant = open.take(start, cost);
        if at > 0 {
            open.promise(at, start, 0);
        }
        self.state = open.close().map(|(state, _)| state);
        Some((now + at, grant))
    }

    /// Asks for an earlier instant in place of a grant, which stays if there is none.
    fn move_up(&mut self, now: Micros, at: Micros, grant: Grant, cost: i64) -> (Micros, Grant) {
        let before = self.state.clone();
        let is_given = self.give_back(now, grant, cost);
        let earlier = is_given.then(|| self.take_within(at - now - 1, now, cost, 0)).flatten();
        earlier.unwrap_or_else(|| {
            self.state = before;
            (at, grant)
        })
    }

    fn give_back(&mut self, now: Micros, grant: Grant, cost: i64) -> bool {
        self.with(now, |open| open.refund(grant, cost))
    }

    fn settle(&mut self, now: Micros, grant: Grant, cost: i64, used: i64) -> bool {
        let unused = self.rule.unused_part(grant, cost, used);
        unused.is_none_or(|(unused, permits)| self.give_back(now, unused, permits))
    }

    fn remaining(&mut self, now: Micros) -> i64 {
        self.rule.open(self.state.clone().as_mut(), now).level().remaining
    }
}

#[derive(Debug, Clone)]
struct Step {
    after: Micros,
    what: What,
}

#[derive(Debug, Clone)]
enum What {
    /// A request of this cost, which another limiter delays by so much, in one of two configurations.
    Ask(i64, Micros, usize),
    /// A request that was sent (the first of those of which this is known, or a later one) used so many hundredths.
    Settle(usize, i64),
    /// A request that waits leaves.
    Leave(usize),
    /// A request that waits asks for an earlier instant.
    MoveUp(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let after = prop_oneof![3 => Just(0), 3 => 0..60i64, 1 => 0..3_000i64];
    let from = prop_oneof![4 => Just(0), 1 => 0..WAIT];
    let what = prop_oneof![
        4 => (1..9i64, from, 0..2usize).prop_map(|(cost, from, which)| What::Ask(cost, from, which)),
        3 => (0..6usize, 0..=100i64).prop_map(|(i, used)| What::Settle(i, used)),
        1 => (0..6usize).prop_map(What::Leave),
        3 => (0..6usize).prop_map(What::MoveUp),
    ];
    prop::collection::vec((after, what).prop_map(|(after, what)| Step { after, what }), 1..120)
}

fn bucket() -> BoxedStrategy<Limiter> {
    let any = (3..30i64, 100..2_000i64, 3..40i64);
    any.prop_map(|(count, period, most)| Limiter::token_bucket(count, period, most)).boxed()
}

fn any_limiter() -> BoxedStrategy<Limiter> {
    let rate = || (3..30i64, 100..2_000i64);
    let leaky = rate().prop_map(|(count, period)| Limiter::leaky_bucket(count, period, 0, None));
    let warm_up =
        (rate(), 1..4_000i64, 1.001..9.0f64).prop_map(|((count, period), window, factor)| {
            Limiter::warm_up(count, period, window, factor)
        });
    let sliding = (3..30i64, 1..2_000i64);
    let sliding = sliding.prop_map(|(count, span)| Limiter::sliding_window(count, span, 0));
    let fixed = (3..30i64, 1_000..2_000i64);
    let fixed = fixed.prop_map(|(count, period)| Limiter::fixed_window(count, period));
    prop_oneof![3 => bucket(), 1 => leaky, 1 => warm_up, 1 => sliding, 1 => fixed].boxed()
}

proptest! {
    #![proptest_config(cases(2_048))]

    /// Requests that were sent use fewer permits than they reserved, in any order, while others wait or leave.
    #[test]
    fn the_true_costs_obey_the_law(mut limiter in any_limiter(), steps in steps()) {
        let (mut now, mut open) = (T0, Vec::<(Micros, Grant, i64)>::new());
        let mut used = Vec::new();
        for Step { after, what } in steps {
            now += after;
            match what {
                What::Ask(cost, from, which) => {
                    let cost = cost.min(limiter.rule.capacity());
                    if let Some((at, grant)) = limiter.take_within(WAITS[which], now, cost, from) {
                        open.push((at, grant, cost));
                    }
                }
                What::Settle(i, hundredths) => {
                    let sent = (0..open.len()).filter(|i| open[*i].0 <= now).nth(i);
                    if let Some((at, grant, cost)) = sent.map(|i| open.remove(i)) {
                        let true_cost = cost * hundredths / 100;
                        limiter.settle(now, grant, cost, true_cost);
                        used.push((at, true_cost));
                    }
                }
                What::MoveUp(i) => {
                    let waiting = (0..open.len()).filter(|i| open[*i].0 > now).nth(i);
                    if let Some(i) = waiting {
                        let (at, grant, cost) = open[i];
                        let (at, grant) = limiter.move_up(now, at, grant, cost);
                        open[i] = (at, grant, cost);
                    }
                }
                What::Leave(i) => {
                    let waiting = (0..open.len()).filter(|i| open[*i].0 > now).nth(i);
                    if let Some((_, grant, cost)) = waiting.map(|i| open.remove(i)) {
                        limiter.give_back(now, grant, cost);
                    }
                }
            }
        }
        used.extend(open.iter().map(|(at, _, cost)| (*at, *cost)));
        prop_assert!(limiter.law.holds(&used), "{used:?}");
    }

    /// A shortfall that is charged at once delays the requests after it, so that the law holds for all permits.
    #[test]
    fn a_debt_moves_later_slots(mut limiter in any_limiter(), steps in steps()) {
        let (mut now, mut used) = (T0, Vec::new());
        for Step { after, what } in steps {
            now += after;
            match what {
                What::Ask(cost, ..) => {
                    let cost = cost.min(limiter.rule.capacity());
                    used.extend(limiter.take(now, cost, 0).map(|(at, _)| (at, cost)));
                }
                What::Settle(_, debt) => {
                    let debt = (debt % 20).clamp(1, limiter.rule.capacity());
                    let rule = limiter.rule.facts().endless;
                    let mut open = rule.open(limiter.state.as_mut(), now);
                    let (at, start) = open.earliest(0, debt, 0);
                    prop_assert!(at <= MAX_BUDGET);
                    open.take(start, debt);
                    limiter.state = open.close().map(|(state, _)| state);
                    used.push((now + at, debt));
                }
                What::Leave(_) | What::MoveUp(_) => {}
            }
        }
        prop_assert!(limiter.law.holds(&used), "{used:?}");
    }

    /// A grant is settled once: a second time returns nothing that could be taken again.
    #[test]
    fn a_second_settlement_returns_no_permits(
        mut limiter in bucket(),
        costs in prop::collection::vec((1..9i64, 0..9i64), 1..20),
    ) {
        let most = limiter.rule.capacity();
        let mut open = Vec::new();
        for (cost, used) in costs {
            let cost = cost.min(most);
            open.extend(limiter.take(T0, cost, 0).filter(|(at, _)| *at == T0).map(|(_, grant)| (grant, cost, used.min(cost))));
        }
        let true_costs: i64 = open.iter().map(|(_, _, used)| used).sum();
        for (grant, cost, used) in open {
            limiter.settle(T0, grant, cost, used);
        }
        prop_assert!(limiter.remaining(T0) <= most - true_costs);
    }
}

/// All permits that were not used come back at once where no request waits and no time has passed.
#[test]
fn a_bucket_gets_unused_permits_back() {
    // 90,000 tokens a minute, 1.5 in a ms.
    let mut limiter = Limiter::token_bucket(90_000, 60 * SECOND, 90_000);
    let grants: Vec<_> = (0..5).map(|_| limiter.take(T0, 10_000, 0).expect("a grant")).collect();
    assert_eq!(limiter.remaining(T0), 40_000);
    for (_, grant) in grants {
        assert!(limiter.settle(T0, grant, 10_000, 200));
    }
    assert_eq!(limiter.remaining(T0), 89_000);
}

/// The case that holes alone cannot serve: each request reserves 1000 and uses 200, and five times as many must fit.
#[test]
fn requests_that_use_a_fifth_get_five_times_as_many_slots() {
    let mut limiter = Limiter::token_bucket(90_000, 60 * SECOND, 90_000);
    let (mut granted, mut running) = (0, std::collections::VecDeque::new());
    let length = 300 * SECOND;
    let mut now = T0;
    while now < T0 + length {
        // Each call takes 2 s.
        while let Some((grant, _)) = running.pop_front_if(|(_, until)| *until <= now) {
            limiter.settle(now, grant, 1_000, 200);
        }
        while let Some((_, grant)) = limiter.take(now, 1_000, 0).filter(|(at, _)| *at <= now + WAIT)
        {
            granted += 1;
            running.push_back((grant, now + 2 * SECOND));
        }
        now += 10_000;
    }
    // 300 s at 1,500 tokens a second, and the burst.
    let most = (300 * 1_500 + 90_000) / 200;
    assert!(granted <= most + 90, "{granted} of {most}");
    assert!(granted * 100 >= most * 95, "{granted} of {most}");
}

/// A sliding window forgets the instants of the permits that were not used, also when they are past.
#[test]
fn a_sliding_window_gets_unused_permits_back() {
    for mut limiter in [Limiter::sliding_window(100, SECOND, 0), Limiter::fixed_window(100, SECOND)]
    {
        let (_, grant) = limiter.take(T0, 60, 0).expect("a grant");
        limiter.take(T0 + 1_000, 40, 0).expect("a grant");
        assert_eq!(limiter.remaining(T0 + 500_000), 0);
        assert!(limiter.settle(T0 + 500_000, grant, 60, 10));
        assert_eq!(limiter.remaining(T0 + 500_000), 50);
        // Nothing is left of it when its window is past.
        let (_, late) = limiter.take(T0 + 500_000, 50, 0).expect("a grant");
        assert!(!limiter.settle(T0 + 2 * SECOND, late, 50, 0));
    }
}

/// Two configurations share a bucket of 10/s: one lets requests wait for 20 s, the other for none. A refund through the
/// second does not move the line under the slots of the first: their vendor would see up to ten calls more at one instant.
#[test]
fn a_refund_respects_promises_of_configurations_with_longer_waits() {
    let mut limiter = Limiter::token_bucket(10, SECOND, 10);
    let (_, first) = limiter.take_within(0, T0, 10, 0).expect("a full bucket");
    let mut used = vec![(T0, 0)];
    let wait = 20 * SECOND;
    let waiting = (0..35).map(|_| limiter.take_within(wait, T0, 1, 0).expect("a slot").0);
    used.extend(waiting.collect::<Vec<_>>().into_iter().map(|at| (at, 1)));
    assert!(limiter.settle(T0 + 100_000, first, 10, 0));
    for now in (T0 + 100_000..T0 + 10 * SECOND).step_by(50_000) {
        while limiter.take_within(0, now, 1, 0).is_some() {
            used.push((now, 1));
        }
    }
    assert!(limiter.law.holds(&used), "{used:?}");
    assert!(used.len() > 60, "what came back is used: {}", used.len());
}
