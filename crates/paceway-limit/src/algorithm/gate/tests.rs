mod bounds;
mod count;
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
        if let Some(change) = Gate::remaining(old.as_ref(), &open, now, told, 1) {
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

/// A rule with its count and its period.
fn rule() -> impl Strategy<Value = (Algorithm, i64, Micros)> {
    let numbers = (3..30i64, 1_000..2_000_000i64, 0..5usize);
    numbers.prop_map(|(count, period, which)| {
        let rule = match which {
            0 => bucket(count, period, count),
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

    /// Nothing is granted within a pause; in the first `t` µs after it at most as many permits as flow at the working rate, and
    /// one, also where requests leave, and in any `t` µs where the rule delays nothing; and the `retry_after` of a refusal is true.
    #[test]
    fn after_a_pause_permits_flow_at_the_working_rate(
        (rule, ..) in rule(),
        steps in prop::collection::vec((0..900_000i64, 0..40u32, 0..9_000_000i64, 0..9_000_000i64), 1..40),
        first in 1..5_000_000i64,
    ) {
        let mut limiter = Limiter::new(rule);
        let mut now = T0;
        limiter.pause(now, first);
        let mut curve = limiter.gate.clone().expect("a gate");
        let mut granted = Vec::new();
        for (after, what, amount, ago) in steps {
            now += after;
            let gate = limiter.open(now).1;
            if what == 0 {
                limiter.refuse(now, amount, SECOND.max(amount), ago);
                let new = limiter.gate.clone().expect("a gate");
                if new.from != curve.from {
                    // Calls with slots within the pause ask again; after a fall all do.
                    granted.clear();
                    curve = new;
                }
                continue;
            }
            if what < 10 && !granted.is_empty() {
                let call = granted.swap_remove(amount as usize % granted.len());
                let (at, grant, _) = call;
                if at > now {
                    limiter.refund(now, grant, 1);
                } else {
                    granted.push(call);
                }
                continue;
            }
            let mut flows = limiter.flows_at(now);
            let reserved = limiter.ask(now, 1, amount);
            if now < curve.until {
                prop_assert_eq!(reserved.level.paused, curve.until - now);
            }
            let (at, parts) = match reserved.parts {
                Some(parts) => (now + reserved.at, parts),
                None => {
                    now += reserved.retry_after;
                    flows = limiter.flows_at(now);
                    let later = limiter.ask(now, 1, amount);
                    prop_assert!(later.parts.is_some(), "{:?}", later);
                    (now + later.at, later.parts.expect("granted"))
                }
            };
            if gate.is_some() {
                granted.push((at, parts[0].grant, at > flows));
            }
        }
        let mut instants: Vec<_> =
            granted.iter().map(|(at, _, is_delayed)| (*at, *is_delayed)).collect();
        instants.sort_unstable();
        let shape = Curve::new(&curve, Curve::written(&rule));
        instants.retain(|(at, _)| *at < curve.from + Curve::length(curve.unit));
        for (i, (at, _)) in instants.iter().enumerate() {
            prop_assert!(*at >= curve.until, "{} µs before the end", curve.until - at);
            // A thousandth of a permit, and the whole µs of the instants.
            let most = shape.permits(at - curve.from) + 2e-3 + 2.0 * Curve::written(&rule);
            prop_assert!(i as f64 <= most, "{i} and not {most}");
            if matches!(rule, Algorithm::LeakyBucket(_)) {
                // A call that the rule delays keeps its place, so that the next one follows it sooner.
                let flowing = instants[..i].iter().enumerate().filter(|(_, (_, is_delayed))| !is_delayed);
                for (j, (earlier, _)) in flowing {
                    let most = most - shape.permits(earlier - curve.from);
                    prop_assert!((i - j) as f64 <= most, "{} and not {most}", i - j);
                }
            }
        }
    }

    /// Requests that leave return their permits: afterwards the limiter grants as if they had not come.
    #[test]
    fn refunds_restore_the_state((rule, ..) in rule(), span in 1..5_000_000i64, waiting in 1..30usize) {
        if rule.facts().gate_field.is_none() {
            return Ok(());
        }
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

    /// The knee lies between its least value and the written rate, whatever is refused and when.
    #[test]
    fn a_working_rate_is_never_above_the_written_one(
        (rule, ..) in rule(),
        refusals in prop::collection::vec((0..60_000_000i64, 0..3_000_000i64, 0..90_000_000i64), 1..30),
    ) {
        let mut limiter = Limiter::new(rule);
        let mut now = T0;
        for (after, span, ago) in refusals {
            now += after;
            limiter.refuse(now, span, SECOND.max(span), ago);
            prop_assert!((0.0099..=1.0).contains(&limiter.knee()), "{}", limiter.knee());
        }
    }

    /// The law of 20,000 small steps is that of the closed form; the rate never falls, and is the written one at the end. The
    /// time of some permits is the first whole µs by which so many have flown.
    #[test]
    fn the_closed_form_equals_step_by_step(
        (rule, ..) in rule(), part in 0.01..1.0f64, unit in 1_000..10_000_000i64, early in 0..5u8, wanted in 0.0..500.0f64,
    ) {
        let written = Curve::written(&rule);
        let gate = Gate { knee: Curve::stored(written * part).max(1), unit, early, ..Gate::default() };
        let curve = Curve::new(&gate, Curve::written(&rule));
        let (mut sum, mut last) = (0.0, 0.0);
        let step = Curve::length(unit) / 20_000 + 2;
        for i in 0..20_000 {
            let rate = curve.rate(i * step);
            prop_assert!(rate >= last && rate <= written * (1.0 + 1e-12), "{rate} after {last} of {written}");
            sum += (rate + curve.rate((i + 1) * step)) / 2.0 * step as f64;
            last = rate;
        }
        prop_assert!((last - written).abs() <= written * 1e-9);
        let closed = curve.permits(20_000 * step);
        prop_assert!((sum - closed).abs() <= closed * 1e-4 + 1e-9, "{sum} and {closed}");
        let time = curve.time(wanted);
        prop_assert!(curve.permits(time) >= wanted - 1e-6 && curve.permits(time - 2) <= wanted + 1e-6);
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
