mod bounds;
mod count;
mod laws;
mod levels;
mod refusals;
mod remainders;

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
const SECOND: Micros = 1_000_000;

fn rate(state: RuleState) -> Option<State> {
    match state {
        RuleState::Rate(state) => Some(state),
        RuleState::Permits(_) => None,
    }
}

fn bucket(count: i64, period: Micros, burst: i64) -> Algorithm {
    Algorithm::TokenBucket(TokenBucket::new(count, period, burst).expect("a rule"))
}

fn window(count: i64, period: Micros) -> Algorithm {
    Algorithm::SlidingWindow(SlidingWindow::new(count, period, 0).expect("a rule"))
}

/// A limiter with its state and its gate, as a store keeps them.
struct Limiter {
    rule: Algorithm,
    state: Option<State>,
    gate: Option<Gate>,
    bounds: Option<Bounds>,
}

impl Limiter {
    fn new(rule: Algorithm) -> Self {
        Self { rule, state: None, gate: None, bounds: None }
    }

    /// A call that was sent `ago` is refused. Returns whether the rate falls.
    fn refuse(&mut self, now: Micros, span: Micros, unit: Micros, ago: Micros) -> bool {
        let (_, old) = self.open(now);
        let refusal = Refusal { span, status: 429, unit, ago };
        let after = Gate::refused(old.as_ref(), now, refusal, &self.rule);
        self.gate = Some(after.gate);
        after.recalls
    }

    fn pause(&mut self, now: Micros, span: Micros) {
        self.refuse(now, span, SECOND.max(span), 0);
    }

    /// A pause that is short beside the period of the rule.
    fn pause_shortly(&mut self, now: Micros, span: Micros) {
        self.refuse(now, span, 0, 0);
    }

    /// An answer says what remains, while requests wait for so many permits.
    fn tell(&mut self, now: Micros, permits: i64, waiting: i64, span: Micros) {
        let (open, old) = self.open(now);
        let told = Remainder { permits, waiting, span };
        if let Some(change) = Gate::remaining(old.as_ref(), &open, now, told) {
            self.gate = Some(change.gate);
        }
    }

    fn level(&mut self, now: Micros) -> Level {
        let (open, gate) = self.open(now);
        gate.map_or_else(|| open.level(), |gate| gate.level(&open))
    }

    fn open(&mut self, now: Micros) -> (Open, Option<OpenGate>) {
        let gate = OpenGate::new(self.gate.clone(), now, &self.rule, self.bounds);
        (self.rule.open(self.state.clone().as_mut(), now), gate)
    }

    fn ask(&mut self, now: Micros, cost: i64, budget: Micros) -> Reserved {
        let (open, mut gate) = self.open(now);
        let mut open = OpenRule::Rate(open);
        let want = Want { open: &mut open, cost, enforce: true, gate: gate.as_mut(), kept: 0 };
        let reserved = reserve::decide(&mut [want], budget, None);
        if reserved.parts.is_some() {
            self.state = open.close().and_then(|(state, _)| rate(state));
            self.gate = gate.map(|gate| gate.gate().clone());
        }
        reserved
    }

    /// The instant at which the gate alone grants a permit.
    fn flows_at(&mut self, now: Micros) -> Micros {
        let (_, gate) = self.open(now);
        gate.map_or(now, |gate| now.max(gate.gate.until).max(now + gate.flows_at(1)))
    }

    fn refund(&mut self, now: Micros, grant: Grant, cost: i64) {
        let (mut open, mut gate) = self.open(now);
        if let Some(gate) = &mut gate {
            gate.refund(&open, grant, cost);
        }
        self.gate = gate.map(|gate| gate.gate().clone());
        if open.refund(grant, cost) {
            self.state = open.close().map(|(state, _)| state);
        }
    }

    /// The knee as a part of the written rate.
    fn knee(&self) -> f64 {
        let knee = self.gate.as_ref().map_or(0, |gate| gate.knee);
        knee as f64 / Curve::stored(Curve::written(&self.rule)) as f64
    }
}

/// 10/s, refused for a second: the permits flow at 9.85/s from then on, beginning with one; and a request that takes ten is followed by
/// the gap of ten.
#[test]
fn waiters_leave_a_pause_one_by_one() {
    let mut limiter = Limiter::new(bucket(10, SECOND, 10));
    limiter.pause(T0, SECOND);
    let ats: Vec<_> = (0..4).map(|_| limiter.ask(T0 + 1, 1, MAX_BUDGET).at / 1_000).collect();
    assert_eq!(ats, [999, 1_101, 1_203, 1_304]);
    assert_eq!(limiter.ask(T0, 10, MAX_BUDGET).at / 1_000, 1_405);
    assert_eq!(limiter.ask(T0, 1, MAX_BUDGET).at / 1_000, 2_419);
    assert_eq!(limiter.level(T0 + 3 * SECOND).rate / 10_000_000, 988);
}

/// A grant from before the pause is no grant of the gate: its refund lets nothing through the gate.
#[test]
fn a_refund_from_before_the_pause_does_not_count() {
    let mut limiter = Limiter::new(bucket(10, SECOND, 10));
    let before = limiter.ask(T0, 5, 0).parts.expect("granted")[0].grant;
    limiter.pause(T0, SECOND);
    assert_eq!(limiter.ask(T0, 1, MAX_BUDGET).at, SECOND);
    limiter.refund(T0, before, 5);
    assert_eq!(limiter.gate.as_ref().map(|gate| gate.spent - gate.origin), Some(PART));
    assert_eq!(limiter.ask(T0, 1, MAX_BUDGET).at / 1_000, 1_101);
}

/// Permits that are returned late are none for a bucket that is full again, and still count for its gate: requests that use
/// a fifth of their permits are not slowed to a fifth of the rate.
#[test]
fn a_late_refund_counts_for_the_gate() {
    let mut limiter = Limiter::new(bucket(10, SECOND, 10));
    limiter.pause(T0, SECOND);
    let grant = limiter.ask(T0, 10, MAX_BUDGET).parts.expect("granted")[0].grant;
    assert_eq!(limiter.ask(T0 + SECOND, 1, MAX_BUDGET).at / 1_000, 1_014);
    limiter.refund(T0 + SECOND, grant, 8);
    assert!(limiter.ask(T0 + SECOND, 1, MAX_BUDGET).at < 320_000);
}

/// A reload makes the written rate lower, or higher, while a working rate is in force.
#[test]
fn a_gate_bears_another_rule() {
    let mut limiter = Limiter::new(bucket(10, SECOND, 10));
    limiter.pause(T0, SECOND);
    limiter.rule = bucket(1, SECOND, 1);
    let level = limiter.level(T0 + 2 * SECOND);
    assert!((985..=990).contains(&(level.rate / 1_000_000)), "{level:?}");
    limiter.rule = bucket(100, SECOND, 100);
    let level = limiter.level(T0 + 2 * SECOND);
    assert!((9_850..=9_900).contains(&(level.rate / 1_000_000)), "{level:?}");
    assert_eq!(limiter.level(T0 + 31 * SECOND).rate, 0);
}

/// After a change of the rule, only the permits that were promised are ahead, and not those that have flown: 270 permits that
/// have flown by 10/s in 27 s would close a limiter of 10/min for half an hour.
#[test]
fn permits_of_a_former_rule_close_no_limiter() {
    let mut limiter = Limiter::new(bucket(10, SECOND, 10));
    limiter.pause(T0, SECOND);
    let now = T0 + 27 * SECOND;
    for wait in [0, 100, 200] {
        let at = limiter.ask(now, 1, MAX_BUDGET).at / 1_000;
        assert!((wait - 20..=wait).contains(&at), "{at} and {wait} ms");
    }
    // One permit in 6 s, from when the third of those has flown on.
    limiter.rule = bucket(10, 60 * SECOND, 10);
    let at = limiter.ask(now + SECOND / 10, 1, MAX_BUDGET).at;
    assert!((6 * SECOND..14 * SECOND).contains(&at), "{at}");
}

/// The permits of a huge request flow for years by the least rate. The time is bounded, so that it stays exact.
#[test]
fn the_longest_time_is_bounded() {
    let mut limiter = Limiter::new(bucket(1_000_000_000, MAX_BUDGET, 1_000_000_000));
    for second in 1..200 {
        limiter.pause(T0 + second * SECOND, MAX_PAUSE);
    }
    let now = T0 + 200 * SECOND + MAX_PAUSE;
    assert!(limiter.ask(now, 1_000_000_000, MAX_BUDGET).parts.is_some());
    let next = limiter.ask(now, 1, MAX_BUDGET);
    assert!(next.parts.is_none() && next.at < EXACT / 2, "{next:?}");
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
    let rule = LeakyBucket::new(10, SECOND, 0, Some(2)).expect("a rule");
    let mut limiter = Limiter::new(Algorithm::LeakyBucket(rule));
    limiter.pause(T0, 5_000_000);
    // The third one would wait for more than 200 ms after the pause.
    for at in [5_000, 5_101] {
        let reserved = limiter.ask(T0, 1, 20_000_000);
        assert_eq!((reserved.parts.is_some(), reserved.at / 1_000), (true, at));
    }
    let refused = limiter.ask(T0, 1, 20_000_000);
    assert!(refused.parts.is_none());
    assert!(limiter.ask(T0 + refused.retry_after, 1, 20_000_000).parts.is_some());
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
        let want = Want { open: &mut open, cost: 1, enforce: true, gate: None, kept: 0 };
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
            let want = Want { open: &mut open, cost: 1, enforce: true, gate: None, kept: 0 };
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
