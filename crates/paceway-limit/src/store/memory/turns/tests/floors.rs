//! Floors: permits that requests of lower priorities leave to those of higher ones.

use super::*;
use crate::{
    algorithm::fair::{Floor, Floors},
    store::Pause,
};
use rstest::rstest;

const SECOND: Micros = 1_000_000;

/// A batch of normal priority that always waits, and users of high priority that cannot wait, on virtual time.
struct Busy {
    world: World,
    floors: Floors,
    batch: usize,
    /// A further limiter of each request, without a floor.
    tighter: Option<Algorithm>,
    /// Each second request of the batch has a low priority.
    is_mixed: bool,
    /// How much later than it may each second request confirms.
    lag: Micros,
}

// === impl Busy ===

impl Busy {
    fn new(rule: impl Into<Algorithm>, floor: Floor, batch: usize) -> Self {
        let floors = Floors { high: Some(floor), normal: None };
        let world = World::new(rule.into());
        Self { world, floors, batch, tighter: None, is_mixed: false, lag: 0 }
    }

    fn checks(&self, priority: Priority) -> Checks {
        let turn = || Turn::new("-", 1, priority);
        let tighter = self.tighter.map(|rule| Check::new("b", rule).with_turn(turn()));
        let own = Check::new("a", self.world.rule).with_turn(turn()).with_floors(self.floors);
        tighter.into_iter().chain([own]).collect()
    }

    /// Lets time pass. A request of the batch that was sent asks again.
    fn until(&mut self, until: Micros, budget: Micros) {
        while self.world.now < until {
            while self.world.waiting.len() < self.batch {
                let sent = self.world.sent.len();
                let is_low = self.is_mixed && self.world.tickets % 2 == 0;
                let priority = if is_low { Priority::Low } else { Priority::Normal };
                let decision = self.world.ask(self.checks(priority), budget);
                if !decision.admitted || self.world.sent.len() > sent + 1_000 {
                    break;
                }
            }
            self.pass((self.world.now + 20_000).min(until));
        }
    }

    fn pass(&mut self, until: Micros) {
        let world = &mut self.world;
        let (mut last, mut again) = (world.now, 0);
        loop {
            again = if world.now == last { again + 1 } else { 0 };
            last = world.now;
            assert!(again < 1_000, "requests hand their slots around without an end");
            let lag = |number: &u64| if number.is_multiple_of(2) { self.lag } else { 0 };
            let confirms = |number: &u64| world.at(*number) - AHEAD + lag(number);
            let next = world.waiting.keys().map(|number| (confirms(number), *number)).min();
            let Some((at, number)) = next.filter(|(at, _)| *at <= until) else { break };
            world.now = world.now.max(at);
            let (checks, cost, deadline) = world.waiting[&number].clone();
            let decision = world.store.confirm_at(world.now, &checks, Place(number));
            if !decision.admitted {
                world.waiting.remove(&number);
            } else if Place::of(decision.parts[0].grant).is_none() {
                let at = world.now + decision.wait;
                let late = at - deadline - self.lag;
                assert!(late <= 0, "a promise was broken by {late}");
                world.sent.push((at, cost));
                world.waiting.remove(&number);
            }
        }
        world.now = world.now.max(until);
    }

    /// A user each second for `seconds`; returns how many were served at once.
    fn run(&mut self, seconds: i64, budget: Micros) -> usize {
        self.until(T0 + 5 * SECOND, budget);
        let mut served = 0;
        for second in 5..5 + seconds {
            // Not always at the same distance from the slots of the batch.
            self.until(T0 + second * SECOND + second * 37_000 % 200_000, budget);
            let decision = self.world.ask(self.checks(Priority::High), 0);
            served += usize::from(decision.admitted && decision.wait == 0);
        }
        self.until(T0 + (5 + seconds) * SECOND, budget);
        served
    }
}

fn bucket(count: i64, burst: i64) -> Algorithm {
    TokenBucket::new(count, SECOND, burst).expect("a rule").into()
}

/// A bucket gives the batch all that flows in and no user takes; a window keeps what it keeps back.
#[rstest]
#[case::bucket(bucket(5, 5), 3_600 * SECOND, 5.0)]
#[case::small_bucket(bucket(5, 4), 3_600 * SECOND, 5.0)]
#[case::great_bucket(bucket(50, 50), 3_600 * SECOND, 50.0)]
#[case::bucket_whose_queue_is_full(bucket(5, 5), 2 * SECOND, 5.0)]
#[case::sliding(SlidingWindow::new(5, SECOND, 0).expect("a rule").into(), 3_600 * SECOND, 4.0)]
#[case::fixed(FixedWindow::new(5, SECOND).expect("a rule").into(), 3_600 * SECOND, 4.0)]
fn users_that_cannot_wait_find_their_permit_during_a_batch(
    #[case] rule: Algorithm,
    #[case] budget: Micros,
    #[case] rate: f64,
) {
    let mut busy = Busy::new(rule, Floor::Permits(1), 40);
    let served = busy.run(100, budget);
    assert!(served >= 98, "{served} users of 100 were served");
    let all = busy.world.sent.len();
    assert!(all as f64 >= rate * 105.0 * 0.97, "{all} calls in 105 s");
    busy.world.assert_lawful();
}

/// A request that learns late of an earlier slot confirms after that. It was given permits of the present instant in place of its own, and
/// then the slots of the next window came too early for it.
#[rstest]
#[case::bucket(bucket(8, 12), 8.0)]
#[case::sliding(SlidingWindow::new(9, SECOND, 0).expect("a rule").into(), 8.0)]
#[case::fixed(FixedWindow::new(9, SECOND).expect("a rule").into(), 8.0)]
fn requests_that_confirm_after_their_slots_use_all_of_them(
    #[case] rule: Algorithm,
    #[case] rate: f64,
) {
    let mut busy = Busy::new(rule, Floor::Permits(1), 40);
    busy.lag = AHEAD + 5_000;
    busy.run(100, 3_600 * SECOND);
    let all = busy.world.sent.len();
    assert!(all as f64 >= rate * 105.0 * 0.99, "{all} calls in 105 s");
    busy.world.assert_lawful();
}

/// The permits of a request that is confirmed are taken 50 ms before its slot: a bucket of few permits has no others then.
#[rstest]
#[case(2, 1)]
#[case(3, 1)]
#[case(3, 2)]
fn a_small_bucket_has_a_permit_most_of_the_time(#[case] burst: i64, #[case] floor: i64) {
    let mut busy = Busy::new(bucket(5, burst), Floor::Permits(floor), 40);
    let served = busy.run(100, 3_600 * SECOND);
    assert!(served >= 70, "{served} users of 100 were served");
    let all = busy.world.sent.len();
    assert!(all as f64 >= 5.0 * 105.0 * 0.97, "{all} calls in 105 s");
    busy.world.assert_lawful();
}

/// The permits of a bucket that does not bind are reserved ahead for the requests that wait for another limiter: they are no
/// reason to move any of these. 40 of them stalled for ever.
#[test]
fn a_bucket_that_does_not_bind_delays_no_request() {
    let mut busy = Busy::new(bucket(30, 30), Floor::Permits(5), 40);
    busy.tighter = Some(bucket(20, 20));
    busy.run(20, 60 * SECOND);
    let all = busy.world.sent.len();
    assert!(all as f64 >= 20.0 * 25.0 * 0.97, "{all} calls in 25 s");
    busy.world.assert_lawful();
}

/// A slot of a low request is exchanged for a normal one, which has to leave the floor as well.
#[test]
fn two_priorities_that_wait_leave_the_floor() {
    let mut busy = Busy::new(bucket(20, 20), Floor::Percent(20), 40);
    busy.is_mixed = true;
    let served = busy.run(100, 3_600 * SECOND);
    assert!(served >= 98, "{served} users of 100 were served");
    let all = busy.world.sent.len();
    assert!(all as f64 >= 20.0 * 105.0 * 0.97, "{all} calls in 105 s");
}

/// A request whose turn had come lost its slot to a user, and got the one after the whole batch, which no client exchanged with it.
#[test]
fn a_request_that_a_user_delays_keeps_its_turn() {
    let mut busy = Busy::new(bucket(16, 9), Floor::Permits(2), 0);
    let patient = 3_600 * SECOND;
    for _ in 0..60 {
        busy.world.ask(busy.checks(Priority::Low), patient);
    }
    busy.pass(T0 + SECOND);
    let own = busy.world.ask(busy.checks(Priority::Normal), patient).parts[0];
    let own = Place::of(own.grant).expect("it waits").0;
    let firsts = busy.world.waiting.keys().map(|number| (busy.world.at(*number), *number));
    let (at, first) = firsts.min().expect("the batch waits");
    busy.world.now = at - AHEAD;
    let confirm = |world: &World, number: u64| {
        let (checks, ..) = &world.waiting[&number];
        world.store.confirm_at(world.now, checks, Place(number))
    };
    confirm(&busy.world, first);
    assert_eq!(busy.world.at(own), at, "the slot is its turn");
    while busy.world.ask(busy.checks(Priority::High), 0).admitted {}
    let decision = confirm(&busy.world, own);
    assert!(decision.wait > AHEAD, "it is not sent below the floor");
    assert!(decision.wait < SECOND / 4, "it waits {} µs", decision.wait);
}

#[derive(Debug, Clone)]
enum Event {
    /// A request of a priority comes, with a cost and a budget.
    Ask(usize, i64, Micros),
    Leave(usize),
    Pause(Micros),
    Time(Micros),
}

fn event() -> impl Strategy<Value = Event> {
    let cost = prop_oneof![4 => Just(1_i64), 1 => 1..4_i64];
    let budget = prop_oneof![2 => Just(0_i64), 2 => 0..500_000_i64, 4 => 0..3_000_000_i64, 2 => Just(3_600 * SECOND)];
    prop_oneof![
        10 => (0..3_usize, cost, budget).prop_map(|(priority, cost, budget)| Event::Ask(priority, cost, budget)),
        2 => (0..40_usize).prop_map(Event::Leave),
        1 => (0..800_000_i64).prop_map(Event::Pause),
        10 => (0..250_000_i64).prop_map(Event::Time),
    ]
}

/// The permits of the buckets come in whole µs: after a pause the slots of others lie between two.
fn rule() -> impl Strategy<Value = Algorithm> {
    let count = prop::sample::select(vec![1_i64, 2, 4, 5, 8, 10, 20, 25, 40]);
    prop_oneof![
        3 => (count, 2..12_i64).prop_map(|(count, burst)| bucket(count, burst)),
        1 => (3..30_i64).prop_map(|count| SlidingWindow::new(count, SECOND, 0).expect("a rule").into()),
        1 => (3..30_i64).prop_map(|count| FixedWindow::new(count, SECOND).expect("a rule").into()),
    ]
}

proptest! {
    /// Permits that are kept back, and requests that move because of them, never exceed a rule: also with pauses, requests that
    /// leave or confirm after their slots, and costs above what a floor lets through.
    #[test]
    fn floors_keep_the_rule(
        rule in rule(),
        floor in 1..6_i64,
        normal in prop::option::of(1..8_i64),
        lag in prop_oneof![Just(0), 0..150_000_i64],
        events in vec(event(), 1..150),
    ) {
        let mut busy = Busy::new(rule, Floor::Permits(floor), 0);
        busy.lag = lag;
        busy.floors.normal = normal.map(Floor::Permits);
        for event in events {
            match event {
                Event::Ask(priority, cost, budget) => {
                    let check = busy.checks(Priority::ALL[priority])[0].clone();
                    let cost = cost.min(rule.capacity());
                    busy.world.ask([check.with_cost(cost)].into(), budget);
                }
                Event::Leave(i) => {
                    if let Some(number) = busy.world.waiting.keys().nth(i).copied()
                        && let Some((checks, ..)) = busy.world.waiting.remove(&number)
                    {
                        prop_assert!(busy.world.store.leave_at(busy.world.now, &checks, Place(number)));
                    }
                }
                Event::Pause(span) => {
                    let check = busy.checks(Priority::Normal)[0].clone();
                    let entry = Entry::Pause { check, pause: Pause::for_micros(span, 429) };
                    busy.world.store.run_at(busy.world.now, &[entry]);
                }
                Event::Time(span) => busy.pass(busy.world.now + span),
            }
        }
        busy.pass(busy.world.now + 20 * SECOND);
        busy.world.assert_lawful();
    }
}

/// Without a floor no user finds a permit.
#[test]
fn without_a_floor_users_that_cannot_wait_find_none() {
    let mut busy = Busy::new(bucket(5, 2), Floor::Permits(0), 40);
    let served = busy.run(50, 3_600 * SECOND);
    assert!(served <= 2, "{served} users of 50 were served");
}
