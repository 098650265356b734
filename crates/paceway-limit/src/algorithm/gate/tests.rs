use super::*;
use crate::algorithm::{
    Concurrency, FixedWindow, LeakyBucket, OpenRule, Rule, RuleState, SlidingWindow, State,
    TokenBucket, WarmUp,
    concurrency::Ticket,
    reserve::{self, Reserved, Want},
    tests::cases,
};
use proptest::prelude::*;

const T0: Micros = 1_700_000_000_000_000;
/// The time of a permit of 10/s, ns.
const PERMIT: i64 = 100_000_000;

fn rate(state: RuleState) -> Option<State> {
    match state {
        RuleState::Rate(state) => Some(state),
        RuleState::Permits(_) => None,
    }
}

/// A limiter with its state and its gate, as a store keeps them.
struct Limiter {
    rule: Algorithm,
    state: Option<State>,
    gate: Option<Gate>,
}

impl Limiter {
    fn new(rule: Algorithm) -> Self {
        Self { rule, state: None, gate: None }
    }

    fn pause(&mut self, now: Micros, span: Micros) {
        let (open, old) = self.open(now);
        let gate = Gate::new(now, span, 429).beside(&open, &self.rule);
        self.gate = Some(old.map_or(gate, |old| old.or_later(gate)));
    }

    /// A pause that is short beside the period of the rule.
    fn pause_shortly(&mut self, now: Micros, span: Micros) {
        let gate = Gate::new(now, span, 429).keeping_level();
        let (_, old) = self.open(now);
        self.gate = Some(old.map_or(gate, |old| old.or_later(gate)));
    }

    fn remaining(&mut self, now: Micros) -> i64 {
        let (open, gate) = self.open(now);
        gate.map_or_else(|| open.level(), |gate| gate.level(&open)).remaining
    }

    fn open(&mut self, now: Micros) -> (Open, Option<OpenGate>) {
        let gate = self.gate.and_then(|gate| OpenGate::new(gate, now, &self.rule));
        (self.rule.open(self.state.clone().as_mut(), now), gate)
    }

    fn ask(&mut self, now: Micros, cost: i64, budget: Micros) -> Reserved {
        let (open, mut gate) = self.open(now);
        let mut open = OpenRule::Rate(open);
        let want = Want { open: &mut open, cost, enforce: true, gate: gate.as_mut() };
        let reserved = reserve::decide(&mut [want], budget, None);
        if reserved.parts.is_some() {
            self.state = open.close().and_then(|(state, _)| rate(state));
            self.gate = gate.map(|gate| gate.gate());
        }
        reserved
    }

    fn refund(&mut self, now: Micros, grant: Grant, cost: i64) {
        let (mut open, mut gate) = self.open(now);
        if let Some(gate) = &mut gate {
            gate.refund(&open, grant, cost);
        }
        self.gate = gate.map(|gate| gate.gate());
        if open.refund(grant, cost) {
            self.state = open.close().map(|(state, _)| state);
        }
    }
}

/// 30 requests ask 10/s at once, and the upstream refuses the first of them: the pause covers some slots, and the others are
/// kept. Those that ask again come after these, and not between them.
#[test]
fn requests_with_new_slots_come_after_requests_with_kept_slots() {
    for rule in [
        Algorithm::TokenBucket(TokenBucket::new(10, 1_000_000, 10).expect("a rule")),
        Algorithm::SlidingWindow(SlidingWindow::new(10, 1_000_000, 0).expect("a rule")),
    ] {
        let mut limiter = Limiter::new(rule);
        let ask = |limiter: &mut Limiter, now| {
            let reserved = limiter.ask(now, 1, 10_000_000);
            (now + reserved.at, reserved.parts.expect("granted")[0].grant)
        };
        let first: Vec<_> = (0..30).map(|_| ask(&mut limiter, T0)).collect();
        let (now, until) = (T0 + 50_000, T0 + 450_000);
        limiter.pause(now, until - now);
        let waits = first.into_iter().filter(|(at, _)| *at > now);
        let (covered, kept): (Vec<_>, Vec<_>) = waits.partition(|(at, _)| *at < until);
        for (_, grant) in &covered {
            limiter.refund(now, *grant, 1);
        }
        let last = kept.iter().map(|(at, _)| *at).max().expect("some are kept");
        let mut granted: Vec<_> = kept.iter().map(|(at, _)| *at).collect();
        for _ in &covered {
            let (at, _) = ask(&mut limiter, now);
            assert!(at > last, "{rule:?}: {} is before {}", at - T0, last - T0);
            granted.push(at);
        }
        assert!(granted.len() >= 20, "{rule:?}");
    }
}

/// A rule, and the time of a permit as count and period.
fn rule() -> impl Strategy<Value = (Algorithm, i64, Micros)> {
    let numbers = (3..30i64, 1_000..2_000_000i64, 0..5usize);
    numbers.prop_map(|(count, period, which)| {
        let rule = match which {
            0 => Algorithm::TokenBucket(TokenBucket::new(count, period, count).expect("a rule")),
            1 => Algorithm::SlidingWindow(SlidingWindow::new(count, period, 0).expect("a rule")),
            2 => Algorithm::FixedWindow(FixedWindow::new(count, period).expect("a rule")),
            3 => Algorithm::LeakyBucket(LeakyBucket::new(count, period, 0, None).expect("a rule")),
            _ => Algorithm::WarmUp(WarmUp::new(count, period, 50_000, 3.0).expect("a rule")),
        };
        (rule, count, period)
    })
}

proptest! {
    #![proptest_config(cases(256))]

    /// Nothing is granted within a pause; in the first `t` µs after it at most `1 + t·count/period` permits are; and the
    /// `retry_after` of a refusal is true. Fixed windows grant up to `2·count` at one instant between two windows. They may do
    /// so when the gate has ended, and that is when `count` permits are left of the bound, so that the bound is then higher
    /// by `count`.
    #[test]
    fn after_a_pause_a_limiter_begins_empty(
        (rule, count, period) in rule(),
        steps in prop::collection::vec((0..900_000i64, 0..40u32, 0..9_000_000i64), 1..40),
        first in 1..5_000_000i64,
    ) {
        let mut limiter = Limiter::new(rule);
        let mut now = T0;
        limiter.pause(now, first);
        let mut until = now + first;
        let mut granted = Vec::new();
        let mut open_from = None;
        for (after, what, amount) in steps {
            now += after;
            if what == 0 {
                limiter.pause(now, amount);
                if now + amount > until {
                    (until, open_from) = (now + amount, None);
                    // The others ask again.
                    granted.retain(|at| *at >= until);
                }
                continue;
            }
            if open_from.is_none() && limiter.open(now).1.is_none() {
                open_from = Some(now);
            }
            let reserved = limiter.ask(now, 1, amount);
            if now < until {
                prop_assert_eq!(reserved.level.paused, until - now);
            }
            match reserved.parts {
                Some(_) => granted.push(now + reserved.at),
                None => {
                    let later = limiter.ask(now + reserved.retry_after, 1, amount);
                    prop_assert!(later.parts.is_some(), "{:?}", later);
                    now += reserved.retry_after;
                    granted.push(now + later.at);
                }
            }
        }
        granted.sort_unstable();
        for (i, at) in granted.iter().enumerate() {
            let t = i128::from(at - until);
            prop_assert!(t >= 0, "{} µs before the end", -t);
            let is_open = open_from.is_some_and(|from| *at >= from);
            let more = match rule {
                Algorithm::FixedWindow(_) if is_open => count,
                _ => 0,
            };
            let most = t * i128::from(count) + i128::from(more) * i128::from(period);
            prop_assert!(i as i128 * i128::from(period) <= most, "{i} within {t} µs");
        }
    }

    /// Waiters that come within a pause get slots from its end on, with the time of a permit between them, and use the whole
    /// rate.
    #[test]
    fn waiters_leave_a_pause_at_the_pace_of_the_limiter((rule, count, period) in rule(), span in 1..5_000_000i64) {
        let mut limiter = Limiter::new(rule);
        limiter.pause(T0, span);
        let mut last = None;
        for i in 0..60 {
            let reserved = limiter.ask(T0 + 1, 1, MAX_BUDGET);
            let at = T0 + 1 + reserved.at;
            prop_assert!(reserved.parts.is_some());
            let slot = T0 + span + (i * period + count - 1) / count;
            match rule {
                Algorithm::TokenBucket(_) => prop_assert!((slot..=slot + 60).contains(&at)),
                _ => prop_assert!(at >= slot),
            }
            prop_assert!(last.is_none_or(|last| at - last >= period / count - 1));
            last = Some(at);
        }
    }

    /// Requests that leave return their permits: afterwards the limiter grants as if they had not come.
    #[test]
    fn refunds_restore_the_state((rule, ..) in rule(), span in 1..5_000_000i64, waiting in 1..30usize) {
        let (mut limiter, mut unused) = (Limiter::new(rule), Limiter::new(rule));
        limiter.pause(T0, span);
        unused.pause(T0, span);
        let grants: Vec<_> = (0..waiting)
            .filter_map(|_| limiter.ask(T0, 1, MAX_BUDGET).parts.map(|parts| parts[0].grant))
            .collect();
        grants.into_iter().rev().for_each(|grant| limiter.refund(T0, grant, 1));
        for _ in 0..5 {
            let (a, b) = (limiter.ask(T0, 1, MAX_BUDGET), unused.ask(T0, 1, MAX_BUDGET));
            prop_assert_eq!(a.at, b.at);
        }
    }
}

/// A grant from before the pause is no grant of the gate: its refund lets nothing through the gate.
#[test]
fn a_refund_from_before_the_pause_does_not_count() {
    let rule = TokenBucket::new(10, 1_000_000, 10).expect("a rule");
    let mut limiter = Limiter::new(Algorithm::TokenBucket(rule));
    let before = limiter.ask(T0, 5, 0).parts.expect("granted")[0].grant;
    limiter.pause(T0, 1_000_000);
    assert_eq!(limiter.ask(T0, 1, MAX_BUDGET).at, 1_000_000);
    limiter.refund(T0, before, 5);
    assert_eq!(limiter.gate.map(|gate| gate.spent), Some(PERMIT));
    assert_eq!(limiter.ask(T0, 1, MAX_BUDGET).at, 1_100_000);
}

/// Permits that are returned late are none for a bucket that is full again, and still count for its gate: requests that use
/// a fifth of their permits are not slowed to a fifth of the rate.
#[test]
fn a_late_refund_counts_for_the_gate() {
    let rule = TokenBucket::new(10, 1_000_000, 10).expect("a rule");
    let mut limiter = Limiter::new(Algorithm::TokenBucket(rule));
    limiter.pause(T0, 1_000_000);
    let grant = limiter.ask(T0, 10, MAX_BUDGET).parts.expect("granted")[0].grant;
    // The grant was at 1.9 s, and 1 s later the bucket is full.
    let now = T0 + 2_900_000;
    let level = |limiter: &mut Limiter| match limiter.open(now) {
        (open, Some(gate)) => gate.level(&open).remaining,
        (open, None) => open.level().remaining,
    };
    assert_eq!(level(&mut limiter), 10);
    assert_eq!(limiter.gate.map(|gate| gate.spent), Some(10 * PERMIT));
    limiter.refund(now, grant, 10);
    assert!(limiter.gate.is_none_or(|gate| gate.spent == 0));
}

/// Requests that use the whole rate for a minute keep the gate alive. A rate that falls then slows only the permits that come
/// later, also when another pause begins: the minute is not counted again at the lower rate.
#[test]
fn a_rate_that_falls_slows_no_permit_of_the_past() {
    let bucket = |period| TokenBucket::new(10, period, 1).expect("a rule");
    let window = |period| SlidingWindow::new(10, period, 0).expect("a rule");
    for rules in [
        [1_000_000, 1_500_000].map(|period| Algorithm::TokenBucket(bucket(period))),
        [1_000_000, 1_500_000].map(|period| Algorithm::SlidingWindow(window(period))),
    ] {
        let mut limiter = Limiter::new(rules[0]);
        limiter.pause(T0, 1_000_000);
        let mut now = T0;
        for _ in 0..600 {
            now += limiter.ask(now, 1, MAX_BUDGET).at;
        }
        limiter.rule = rules[1];
        let at = limiter.ask(now, 1, MAX_BUDGET).at;
        assert!((100_000..=600_000).contains(&at), "{at}");
        limiter.pause(now, 2_000_000);
        assert_eq!(limiter.ask(now, 1, MAX_BUDGET).at, 2_000_000, "{:?}", rules[1]);
    }
}

/// The gate ends when its bucket is full: then the limiter has its whole burst again.
#[test]
fn a_full_gate_ends() {
    let rule = Algorithm::TokenBucket(TokenBucket::new(10, 1_000_000, 5).expect("a rule"));
    let mut limiter = Limiter::new(rule);
    limiter.pause(T0, 1_000_000);
    limiter.pause(T0, 500_000);
    for (after, remaining, is_there) in
        [(999_999, 0, true), (1_000_000, 1, true), (1_399_999, 4, true), (1_400_000, 5, false)]
    {
        let (open, gate) = limiter.open(T0 + after);
        let level = gate.as_ref().map_or_else(|| open.level(), |gate| gate.level(&open));
        assert_eq!((level.remaining, gate.is_some()), (remaining, is_there), "after {after}");
        assert_eq!(level.paused, (1_000_000 - after).max(0));
    }
}

/// A pause that is longer than any budget delays no exact arithmetic: the wait that is advised is true.
#[test]
fn a_pause_of_a_day_is_exact() {
    const DAY: Micros = 86_400_000_000;
    let rule = Algorithm::SlidingWindow(SlidingWindow::new(5, 1_000_000, 0).expect("a rule"));
    let mut limiter = Limiter::new(rule);
    limiter.pause(T0, DAY);
    let reserved = limiter.ask(T0, 1, MAX_BUDGET);
    assert_eq!((reserved.at, reserved.retry_after), (DAY, DAY - MAX_BUDGET));
    assert!(limiter.ask(T0 + DAY - MAX_BUDGET - 1, 1, MAX_BUDGET).parts.is_none());
    assert_eq!(limiter.ask(T0 + DAY - MAX_BUDGET, 1, MAX_BUDGET).at, MAX_BUDGET);
}

/// The queue of a leaky bucket bounds the requests after the pause; the pause itself is no queue.
#[test]
fn a_short_queue_waits_for_the_end_of_a_pause() {
    let rule = LeakyBucket::new(10, 1_000_000, 0, Some(2)).expect("a rule");
    let mut limiter = Limiter::new(Algorithm::LeakyBucket(rule));
    limiter.pause(T0, 5_000_000);
    for at in [5_000_000, 5_100_000, 5_200_000] {
        let reserved = limiter.ask(T0, 1, 20_000_000);
        assert_eq!((reserved.parts.is_some(), reserved.at), (true, at));
    }
    let refused = limiter.ask(T0, 1, 20_000_000);
    assert_eq!((refused.parts, refused.retry_after), (None, 5_100_000));
    assert!(limiter.ask(T0 + 5_100_000, 1, 20_000_000).parts.is_some());
}

/// A paused limiter of concurrency grants nothing, also to a request that was notified just before; a request whose budget
/// ends within the pause is refused.
#[test]
fn concurrency_grants_nothing_within_a_pause() {
    let rule = Rule::from(Concurrency::new(2, 60_000_000).expect("a rule"));
    let mut state = None::<RuleState>;
    let mut ask = |now, number, deadline, budget, pause: Option<Micros>| {
        let mut open = rule.open(None, state.as_mut(), now);
        if let Some(span) = pause {
            open.leases().expect("leases").pause(Gate::new(now, span, 429));
        }
        let ticket = Ticket { gateway: 1, number, deadline };
        let want = Want { open: &mut open, cost: 1, enforce: true, gate: None };
        let reserved = reserve::decide(&mut [want], budget, Some(ticket));
        let called = open.leases().expect("leases").notified();
        state = open.close().map(|(state, _)| state);
        (reserved, called)
    };
    assert!(ask(T0, 1, 0, 0, None).0.parts.is_some());
    let (refused, _) = ask(T0, 2, 0, 500_000, Some(1_000_000));
    assert_eq!((refused.parts, refused.queued, refused.retry_after), (None, None, 1_000_000));
    let (waits, _) = ask(T0, 3, 0, 3_000_000, None);
    let queued = waits.queued.expect("queued");
    assert_eq!((queued.ask_after, waits.level.paused), (1_000_000, 1_000_000));
    assert!(ask(T0 + 10, 4, 0, 2_000_000, None).0.queued.is_some());
    // The first one asks again too early, and keeps its place.
    let (waits, called) = ask(T0 + 999_999, 3, queued.deadline, 2_000_000, None);
    assert_eq!((waits.queued.map(|queued| queued.ask_after), called.len()), (Some(1), 0));
    let (granted, called) = ask(T0 + 1_000_000, 3, queued.deadline, 2_000_000, None);
    assert_eq!((granted.parts.is_some(), called[0].number, called.len()), (true, 3, 1));
}

/// A request that was notified just before a pause began, and asks within it, is the first one after it.
#[test]
fn a_notified_request_keeps_its_turn() {
    let rule = Rule::from(Concurrency::new(1, 60_000_000).expect("a rule"));
    let mut state = None::<RuleState>;
    let mut with = |now, pause: Option<Micros>, ask: Option<Ticket>, leaves: Option<Grant>| {
        let mut open = rule.open(None, state.as_mut(), now);
        let leases = open.leases().expect("leases");
        if let Some(span) = pause {
            leases.pause(Gate::new(now, span, 429));
        }
        if let Some(grant) = leaves {
            assert!(leases.refund(grant));
        }
        let queued = ask.and_then(|ticket| {
            let want = Want { open: &mut open, cost: 1, enforce: true, gate: None };
            let reserved = reserve::decide(&mut [want], 5_000_000, Some(ticket));
            reserved.queued.map(|queued| Ticket { deadline: queued.deadline, ..ticket })
        });
        let called = open.leases().expect("leases").notified();
        state = open.close().map(|(state, _)| state);
        (queued, called.into_iter().map(|ticket| ticket.number).collect::<Vec<_>>())
    };
    let ticket = |number| Ticket { gateway: 1, number, deadline: 0 };
    with(T0, None, Some(ticket(1)), None);
    let (second, _) = with(T0, None, Some(ticket(2)), None);
    with(T0, None, Some(ticket(3)), None);
    assert_eq!(with(T0, None, None, Some(ticket(1).grant())).1, [2]);
    let (again, called) = with(T0 + 1_000, Some(500_000), second, None);
    assert_eq!((again, called), (second, vec![]));
    assert_eq!(with(T0 + 501_000, None, None, None).1, [2]);
}

mod levels;
