//! A forecast is compared with the calls that are then made, for every algorithm, with several rates, costs, requests that
//! wait, pauses, working rates and remainders.

use super::*;
use crate::{
    algorithm::{
        Algorithm, CalendarWindow, FixedWindow, LeakyBucket, MAX_BUDGET, Rule, SlidingWindow,
        TokenBucket, WarmUp,
        concurrency::Ticket,
        fair::{Place, Priority},
        gate::{Bounds, Remainder},
    },
    store::{Checks, Decision, Entry, Forecast, ForecastAsk, Pause, Reply, TenantLevel, Turn},
};
use proptest::{collection::vec, prelude::*};

const T0: Micros = 1_000_000_000_000;
const HOUR: Micros = 3_600_000_000;
const AHEAD: Micros = crate::algorithm::fair::queue::AHEAD;

fn decide(store: &MemoryStore, now: Micros, checks: &Checks, budget: Micros) -> Decision {
    let entry = Entry::Reserve { checks: checks.clone(), budget, ticket: None };
    match store.run_at(now, &[entry]).pop() {
        Some(Reply::Decision(decision)) => decision,
        other => panic!("{other:?}"),
    }
}

/// The instants of the first and the last of `count` calls of a caller that may wait for `budget`, and comes back when a
/// refusal says.
fn happens(
    store: &MemoryStore,
    now: Micros,
    checks: &Checks,
    count: u32,
    budget: Micros,
) -> Forecast {
    let (mut at, mut first, mut last) = (now, None, now);
    for _ in 0..count {
        last = loop {
            let decision = decide(store, at, checks, budget);
            if decision.admitted {
                break at + decision.wait;
            }
            assert!(decision.retry_after > 0, "{decision:?}");
            at += decision.retry_after;
        };
        first = first.or(Some(last));
    }
    Forecast { first: first.expect("a call") - now, last: last - now }
}

fn rules() -> impl Strategy<Value = Rule> {
    let resets = [T0 - 10_000_000, T0 + 50_000_000, T0 + 110_000_000];
    let month = [T0 - HOUR, T0 + 9 * HOUR, T0 + 19 * HOUR];
    let calendar = |count, resets| CalendarWindow::new(count, resets).expect("a rule");
    let all: Vec<Rule> = vec![
        TokenBucket::new(40, 1_000_000, 5).expect("a rule").into(),
        TokenBucket::new(7, HOUR, 7).expect("a rule").into(),
        LeakyBucket::new(30, 1_000_000, 0, None).expect("a rule").into(),
        LeakyBucket::new(30, 1_000_000, 2_000, Some(5)).expect("a rule").into(),
        SlidingWindow::new(20, 500_000, 10_000).expect("a rule").into(),
        SlidingWindow::new(30, HOUR, 0).expect("a rule").into(),
        FixedWindow::new(20, 500_000).expect("a rule").into(),
        FixedWindow::new(25, 24 * HOUR).expect("a rule").into(),
        calendar(15, resets).into(),
        calendar(15, resets).even().into(),
        calendar(40, month).into(),
        calendar(40, month).even().into(),
        WarmUp::new(50, 1_000_000, 2_000_000, 3.0).expect("a rule").into(),
    ];
    proptest::sample::select(all)
}

#[derive(Debug, Clone)]
enum Before {
    Ask(i64, Micros),
    Leave(usize),
    Time(Micros),
    Pause(Micros, Micros),
    Remain(i64, Micros),
}

fn before() -> impl Strategy<Value = Before> {
    let budget = prop_oneof![Just(0), 0..9_000_000_i64, Just(MAX_BUDGET)];
    prop_oneof![
        8 => (1..4_i64, budget).prop_map(|(cost, budget)| Before::Ask(cost, budget)),
        2 => (0..8_usize).prop_map(Before::Leave),
        3 => (0..900_000_i64).prop_map(Before::Time),
        1 => (0..9_000_000_i64, 0..3_000_000_i64).prop_map(|(span, ago)| Before::Pause(span, ago)),
        1 => (0..9_i64, 0..9_000_000_i64).prop_map(|(left, span)| Before::Remain(left, span)),
    ]
}

proptest! {
    #![proptest_config(crate::algorithm::tests::cases(600))]
    #[test]
    fn a_forecast_equals_the_later_decisions(
        rules in vec(rules(), 1..3),
        cost in 1..4_i64,
        count in 1..60_u32,
        budget in prop_oneof![Just(0), Just(300_000), Just(MAX_BUDGET)],
        before in vec(before(), 0..40),
    ) {
        let store = MemoryStore::default();
        let check = |cost| -> Checks {
            let checks = rules.iter().enumerate();
            checks.map(|(i, rule)| Check::new(i.to_string(), *rule).with_cost(cost)).collect()
        };
        let is_paused = before.iter().any(|step| matches!(step, Before::Pause(..)));
        let is_calendar = |rate: &Algorithm| matches!(rate, Algorithm::CalendarWindow(_));
        let (mut now, mut granted) = (T0, Vec::new());
        for step in before {
            match step {
                Before::Ask(cost, budget) => {
                    let checks = check(cost);
                    let decision = decide(&store, now, &checks, budget);
                    granted.extend(checks.iter().cloned().zip(decision.parts));
                }
                Before::Leave(i) if i < granted.len() => {
                    let (check, part) = granted.swap_remove(i);
                    store.run_at(now, &[Entry::Refund { check, grant: part.grant }]);
                }
                Before::Leave(_) => {}
                Before::Time(span) => now += span,
                Before::Pause(span, ago) => {
                    let pause = Pause { ago, ..Pause::for_micros(span, 429) };
                    store.run_at(now, &[Entry::Pause { check: check(1)[0].clone(), pause }]);
                }
                Before::Remain(permits, span) => {
                    let told = Remainder { permits, waiting: 0, span };
                    store.run_at(now, &[Entry::Lower { check: check(1)[0].clone(), told }]);
                }
            }
        }
        let checks = check(cost);
        let levels = || checks.iter().map(|check| store.look_at(now, check)).collect::<Vec<_>>();
        let level = levels();
        let ask = ForecastAsk { count, closed: 0, tenants: &[] };
        let told = store.copy_at(now, &checks).forecast(ask, |_| checks.clone());
        prop_assert_eq!(levels(), level, "the states have changed");
        // At a working rate, callers that do not wait lose the permits that flow until they ask again.
        let budget = if is_paused { MAX_BUDGET } else { budget };
        let then = happens(&store, now, &checks, count, budget);
        // The slots of an even window and of a working rate follow from the instant at which they are asked for.
        let is_even = |rule: &Rule| rule.as_rate().is_some_and(is_calendar);
        let slot = |rule: &Rule| rule.as_rate().map_or(0, |rate| cost * rate.refill_time() / rate.capacity());
        let is_exact = !is_paused && !rules.iter().any(is_even);
        // Working rates divide a microsecond: each call may be rounded to the next one, so five calls gave 4 µs more than a slot.
        let slot = if is_exact { 0 } else { rules.iter().map(slot).max().unwrap_or(0) + i64::from(count) };
        prop_assert!((told.first - then.first).abs() <= slot, "{:?} {:?}", told, then);
        prop_assert!((told.last - then.last).abs() <= slot, "{:?} {:?}", told, then);
    }
}

proptest! {
    #![proptest_config(crate::algorithm::tests::cases(8))]
    /// Many calls are not decided one by one.
    #[test]
    fn a_forecast_of_many_calls_equals_the_later_decisions(
        rules in vec(rules(), 1..3),
        cost in 1..4_i64,
        count in 1_000..6_000_u32,
        others in vec((1..4_i64, 0..900_000_i64), 0..20),
    ) {
        let store = MemoryStore::default();
        let check = |cost| -> Checks {
            let checks = rules.iter().enumerate();
            checks.map(|(i, rule)| Check::new(i.to_string(), *rule).with_cost(cost)).collect()
        };
        let mut now = T0;
        for (cost, span) in others {
            decide(&store, now, &check(cost), MAX_BUDGET);
            now += span;
        }
        let checks = check(cost);
        let ask = ForecastAsk { count, closed: 0, tenants: &[] };
        let told = store.copy_at(now, &checks).forecast(ask, |_| checks.clone());
        let then = happens(&store, now, &checks, count, MAX_BUDGET);
        // The slots of an even window follow from the instant at which they are asked for.
        let is_even = |rule: &Rule| rule.as_rate().is_some_and(|rate| matches!(rate, Algorithm::CalendarWindow(_)));
        if !rules.iter().any(is_even) {
            prop_assert_eq!(told, then);
        }
    }
}

/// A thousand times as many calls take no longer.
#[test]
fn a_forecast_of_a_million_calls_decides_few_of_them() {
    let store = MemoryStore::default();
    let list = [(5, 1_000_000), (100, 60_000_000), (1_000, HOUR)];
    let rule = |(count, period)| TokenBucket::new(count, period, count).expect("a rule");
    let list = list.into_iter().enumerate();
    let checks: Checks = list.map(|(i, rate)| Check::new(i.to_string(), rule(rate))).collect();
    let decided = std::cell::Cell::new(0);
    let ask = ForecastAsk { count: 1_000_000, closed: 0, tenants: &[] };
    let told = store.copy_at(T0, &checks).forecast(ask, |_| {
        decided.set(decided.get() + 1);
        checks.clone()
    });
    // A million calls less the burst, at 1,000 an hour.
    assert_eq!(told, Forecast { first: 0, last: 999_000 * 3_600_000 });
    // Each hour of calls that are decided has new checks.
    assert!(decided.get() < 20, "{}", decided.get());
}

/// A rate that is found rises while it is used.
#[test]
fn a_forecast_follows_a_rate_that_is_found() {
    let store = MemoryStore::default();
    let rule = TokenBucket::new(1_000, 1_000_000, 1).expect("a rule");
    let per_second = 1_000_000_000_000_000;
    let bounds = Bounds { start: 5 * per_second, min: per_second, unit: 1_000_000 };
    let checks: Checks = [Check::new("a", rule).with_bounds(bounds)].into();
    let ask = ForecastAsk { count: 2_000, closed: 0, tenants: &[] };
    let told = store.copy_at(T0, &checks).forecast(ask, |_| checks.clone());
    assert_eq!(told, happens(&store, T0, &checks, 2_000, 0));
}

#[test]
fn nothing_is_sent_before_the_pause_of_an_operator_ends() {
    let store = MemoryStore::default();
    let rule = TokenBucket::new(10, 1_000_000, 5).expect("a rule");
    let checks: Checks = [Check::new("a", rule)].into();
    let ask = ForecastAsk { count: 15, closed: 60_000_000, tenants: &[] };
    let told = store.copy_at(T0, &checks).forecast(ask, |_| checks.clone());
    assert_eq!(told, Forecast { first: 60_000_000, last: 61_000_000 });
}

/// A request that waits for its turn.
struct Waiting {
    checks: Checks,
    number: u64,
    is_own: bool,
}

/// Requests that take turns at one limiter, on virtual time.
struct World {
    store: MemoryStore,
    now: Micros,
    waiting: Vec<Waiting>,
    /// The instants of the own requests that were sent.
    sent: Vec<Micros>,
    tickets: i64,
}

// === impl World ===

impl World {
    fn checks(tenant: &str, weight: i64) -> Checks {
        let rule = LeakyBucket::new(10, 1_000_000, 0, None).expect("a rule");
        [Check::new("a", rule).with_turn(Turn::new(tenant, weight, Priority::Normal))].into()
    }

    fn ask(&mut self, checks: &Checks, is_own: bool) {
        self.tickets += 1;
        let ticket = Some(Ticket { gateway: 1, number: self.tickets, deadline: 0 });
        let entry = Entry::Reserve { checks: checks.clone(), budget: MAX_BUDGET, ticket };
        let Some(Reply::Decision(decision)) = self.store.run_at(self.now, &[entry]).pop() else {
            panic!("no decision")
        };
        assert!(decision.admitted, "{decision:?}");
        match Place::of(decision.parts[0].grant) {
            Some(Place(number)) => {
                self.waiting.push(Waiting { checks: checks.clone(), number, is_own });
            }
            None if is_own => self.sent.push(self.now + decision.wait),
            None => {}
        }
    }

    fn at(&self, Waiting { checks, number, .. }: &Waiting) -> Micros {
        self.store.in_queue(&checks[0], |queue| queue.at(*number)).flatten().expect("waits")
    }

    /// Lets time pass. Each request confirms shortly before its slot.
    fn until(&mut self, until: Micros) {
        while let Some(next) = (0..self.waiting.len()).min_by_key(|i| self.at(&self.waiting[*i]))
            && self.at(&self.waiting[next]) - AHEAD <= until
        {
            self.now = self.now.max(self.at(&self.waiting[next]) - AHEAD);
            let Waiting { checks, number, is_own } = &self.waiting[next];
            let decision = self.store.confirm_at(self.now, checks, Place(*number));
            assert!(decision.admitted, "{decision:?}");
            if Place::of(decision.parts[0].grant).is_none() {
                if *is_own {
                    self.sent.push(self.now + decision.wait);
                }
                self.waiting.swap_remove(next);
            }
        }
        self.now = self.now.max(until.min(self.now + HOUR));
    }

    /// Closes the limiter. The requests whose slots are within the pause ask again.
    fn pause(&mut self, span: Micros) {
        let checks = Self::checks("own", 1);
        let pause = Pause::keeping_rate(span, 429);
        self.store.run_at(self.now, &[Entry::Pause { check: checks[0].clone(), pause }]);
        let all = std::mem::take(&mut self.waiting).into_iter();
        let (closed, open): (Vec<_>, Vec<_>) = all.partition(|it| self.at(it) < self.now + span);
        self.waiting = open;
        for it in &closed {
            self.store.leave_at(self.now, &it.checks, Place(it.number));
        }
        closed.iter().for_each(|it| self.ask(&it.checks, false));
    }
}

proptest! {
    #![proptest_config(crate::algorithm::tests::cases(150))]
    #[test]
    fn a_forecast_among_tenants_is_true_to_one_slot(
        count in 1..40_u32,
        weight in 1..5_i64,
        others in vec(0..3_u8, 0..60),
        pause in prop_oneof![Just(0), 1..2_000_000_i64],
        later in 0..900_000_i64,
    ) {
        let (waiting, sent) = (Vec::new(), Vec::new());
        let store = MemoryStore::calling(Arc::default());
        let mut world = World { store, now: T0, waiting, sent, tickets: 0 };
        for tenant in others {
            world.ask(&World::checks(&tenant.to_string(), 1 + i64::from(tenant)), false);
        }
        // Not all of them have had the same share by now.
        world.until(T0 + later);
        if pause > 0 {
            world.pause(pause);
        }
        let (now, own) = (world.now, World::checks("own", weight));
        let tenants: Vec<TenantLevel> = world.store.tenants_of(&own[0]);
        let ask = ForecastAsk { count, closed: 0, tenants: &tenants };
        let told = world.store.copy_at(now, &own).forecast(ask, |_| own.clone());
        (0..count).for_each(|_| world.ask(&own, true));
        world.until(Micros::MAX);
        let [first, last] = [world.sent.iter().min(), world.sent.iter().max()];
        let most = 100_000;
        let [first, last] = [first, last].map(|at| at.expect("a call") - now);
        prop_assert!((told.first - first).abs() <= most, "{:?}, then {} {}", told, first, last);
        prop_assert!((told.last - last).abs() <= most, "{:?}, then {} {}", told, first, last);
    }
}
