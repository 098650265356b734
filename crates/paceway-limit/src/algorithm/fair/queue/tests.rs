//! The queue over real rules, on virtual time: the figures that fair sharing has to reach, and its laws on random histories.

use super::*;
use crate::algorithm::{
    Algorithm, FixedWindow, LeakyBucket, SlidingWindow, State, TokenBucket, fair::Priority,
    tests::cases,
};
use proptest::{collection::vec, prelude::*};

const SECOND: Micros = 1_000_000;
const START: Micros = 1_700_000_000 * SECOND;

/// A request of a history.
#[derive(Debug, Clone)]
struct Arrival {
    /// When it comes, µs after the start.
    at: Micros,
    claim: Claim,
    budget: Micros,
    /// When its caller leaves if it still waits, µs after the start.
    leaves: Option<Micros>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Sent(Micros),
    Refused(Micros),
    Left,
}

/// A limiter with its queue.
struct World {
    rule: Algorithm,
    state: Option<State>,
    queue: Queue,
    now: Micros,
    ends: BTreeMap<u64, End>,
    deadlines: BTreeMap<u64, Micros>,
}

fn arrival(at: Micros, tenant: &str, budget: Micros) -> Arrival {
    let (number, weight, priority, cost) = (0, 1, Priority::Normal, 1);
    let claim = Claim { number, tenant: tenant.into(), weight, priority, cost };
    Arrival { at, claim, budget, leaves: None }
}

fn leaky(rate: i64) -> Algorithm {
    LeakyBucket::new(rate, SECOND, 0, None).map(Algorithm::LeakyBucket).expect("a rule")
}

// === impl World ===

impl World {
    fn new(rule: Algorithm) -> Self {
        let (ends, deadlines) = (BTreeMap::new(), BTreeMap::new());
        Self { rule, state: None, queue: Queue::default(), now: START, ends, deadlines }
    }

    /// Executes one step of the queue with the state of the limiter, as one call of a store does.
    fn step<T>(&mut self, step: impl FnOnce(&mut Queue, &mut Open, Micros) -> T) -> T {
        let mut open = self.rule.open(self.state.as_mut(), self.now);
        let done = step(&mut self.queue, &mut open, self.now);
        self.state = open.close().map(|(state, _)| state);
        for (number, slot) in self.queue.slots() {
            assert!(slot.at <= slot.deadline, "a promise is broken: {number} {slot:?}");
            assert_eq!(slot.deadline, self.deadlines[&number]);
        }
        done
    }

    fn comes(&mut self, number: u64, Arrival { claim, budget, .. }: &Arrival) {
        self.deadlines.insert(number, self.now + budget);
        let claim = Claim { number, ..claim.clone() };
        match self.step(|queue, open, now| queue.ask(open, now, &claim, *budget)) {
            Asked::Granted(_) => drop(self.ends.insert(number, End::Sent(self.now))),
            Asked::Waits(_) => {}
            Asked::Refused(retry) => drop(self.ends.insert(number, End::Refused(retry))),
        }
    }

    fn slot_comes(&mut self, number: u64) {
        let before = self.queue.len();
        match self.step(|queue, open, now| queue.confirm(open, now, number)) {
            Confirmed::Sent(slot) => drop(self.ends.insert(number, End::Sent(slot.at))),
            Confirmed::Yields { to, slot, .. } => {
                assert!(slot.at <= self.deadlines[&to]);
                self.ends.insert(to, End::Sent(slot.at));
            }
            Confirmed::Gone => panic!("{number} waits"),
        }
        assert_eq!(self.queue.len() + 1, before, "one request is sent");
    }

    /// Lives through a history until no request waits.
    fn live(mut self, arrivals: &[Arrival]) -> Self {
        let mut comes: Vec<_> =
            arrivals.iter().enumerate().map(|(i, it)| (it.at, false, i)).collect();
        let leaves = arrivals.iter().enumerate().filter_map(|(i, it)| Some((it.leaves?, true, i)));
        comes.extend(leaves);
        comes.sort_unstable();
        let mut comes = comes.into_iter().peekable();
        loop {
            let slot = self.queue.slots().next().map(|(number, slot)| (slot.at, number));
            match (comes.peek().copied(), slot) {
                (Some((at, is_end, i)), slot)
                    if slot.is_none_or(|(slot, _)| START + at <= slot) =>
                {
                    comes.next();
                    self.now = self.now.max(START + at);
                    let number = i as u64;
                    match is_end {
                        false => self.comes(number, &arrivals[i]),
                        true if self.queue.slot(number).is_some() => {
                            self.step(|queue, open, now| queue.leave(open, now, number));
                            self.ends.insert(number, End::Left);
                        }
                        true => {}
                    }
                }
                (_, Some((at, number))) => {
                    self.now = at;
                    self.slot_comes(number);
                }
                (None, None) => return self,
                _ => unreachable!("an arrival or a slot is next"),
            }
        }
    }

    /// The requests that were sent, in that order: the instant after the start, and the number.
    fn sent(&self) -> Vec<(Micros, usize)> {
        let sent = self.ends.iter().filter_map(|(number, end)| match end {
            End::Sent(at) => Some((at - START, *number as usize)),
            _ => None,
        });
        let mut sent: Vec<_> = sent.collect();
        sent.sort_unstable();
        sent
    }
}

/// 200 batch requests wait at 20/s when four users a second come, with budgets of a second.
#[test]
fn users_are_served_beside_a_batch() {
    let mut arrivals: Vec<_> = (0..200).map(|_| arrival(0, "batch", 30 * SECOND)).collect();
    let users = (1..=40).map(|i| arrival(i * SECOND / 4 + 1_234 * i, "users", SECOND));
    arrivals.extend(users);
    let world = World::new(leaky(20)).live(&arrivals);
    let sent = world.sent();
    assert_eq!(sent.len(), arrivals.len(), "all are served");
    let mut waits: Vec<_> =
        sent.iter().filter(|(_, i)| *i >= 200).map(|(at, i)| at - arrivals[*i].at).collect();
    waits.sort_unstable();
    assert!(waits[waits.len() * 95 / 100] <= 3 * 50_000, "{waits:?}");
    let slots: Vec<_> = sent.iter().map(|(at, _)| *at).collect();
    assert!(slots.windows(2).all(|pair| pair[1] - pair[0] == 50_000), "each slot is used once");
    let batch: Vec<_> = sent.iter().map(|(_, i)| *i).filter(|i| *i < 200).collect();
    assert!(batch.is_sorted(), "first come, first served within a tenant");
}

/// Three tenants have 300 requests each, and weights 4 : 1 : 1. Then another one comes.
#[test]
fn shares_follow_the_weights_and_a_newcomer_is_served_at_once() {
    let mut arrivals = Vec::new();
    for i in 0..900 {
        let (tenant, weight) = [("a", 4), ("b", 1), ("c", 1)][i / 300];
        let mut arrival = arrival(0, tenant, 60 * SECOND);
        arrival.claim.weight = weight;
        arrivals.push(arrival);
    }
    arrivals.push(arrival(5 * SECOND + 7, "new", 60 * SECOND));
    let world = World::new(leaky(40)).live(&arrivals);
    let sent = world.sent();
    assert_eq!(sent.len(), 901);
    let share = |tenant: usize| {
        let own = sent[1..=400].iter().filter(|(_, i)| i / 300 == tenant && *i < 900);
        own.count() as f64 / 4.0
    };
    let (a, b, c) = (share(0), share(1), share(2));
    assert!(
        (a - 66.7).abs() < 2.0 && (b - 16.7).abs() < 2.0 && (c - 16.7).abs() < 2.0,
        "{a} {b} {c}"
    );
    let World { ends, .. } = world;
    let End::Sent(at) = ends[&900] else { panic!("{:?}", ends[&900]) };
    assert!(at - START - 5 * SECOND <= 300_000, "{} µs", at - START - 5 * SECOND);
}

/// Requests of one permit saturate a bucket of 40/s, with budgets of 10 s. Each request of five permits is served in its
/// turn: at equal weights after five of the others.
#[test]
fn an_expensive_request_is_served_in_its_turn() {
    let rule = TokenBucket::new(40, SECOND, 5).map(Algorithm::TokenBucket).expect("a rule");
    let mut arrivals: Vec<_> = (0..400).map(|i| arrival(i * 12_500, "many", 10 * SECOND)).collect();
    for i in 1..=8 {
        let mut expensive = arrival(i * SECOND / 2 + 11, "expensive", SECOND);
        expensive.claim.cost = 5;
        arrivals.push(expensive);
    }
    let world = World::new(rule).live(&arrivals);
    for i in 400..408 {
        let End::Sent(at) = world.ends[&i] else { panic!("{i}: {:?}", world.ends[&i]) };
        let wait = at - START - arrivals[i as usize].at;
        assert!(wait <= 15 * 25_000, "{wait} µs");
    }
    assert_lawful(&world, &arrivals);
}

/// Law 1 for token buckets, leaky buckets and windows, on the calls that were sent.
fn assert_lawful(world: &World, arrivals: &[Arrival]) {
    let sent = world.sent();
    for (i, (from, _)) in sent.iter().enumerate() {
        let mut permits = 0;
        for (to, number) in &sent[i..] {
            let cost = arrivals[*number].claim.cost;
            permits += cost;
            let span = to - from;
            let most = match world.rule {
                Algorithm::TokenBucket(_) => world.rule.capacity() + span * 40 / SECOND,
                Algorithm::LeakyBucket(_) => cost + span * 40 / SECOND,
                Algorithm::SlidingWindow(_) => 40 * (span / SECOND + 1),
                _ => 40 * ((to + START) / SECOND - (from + START) / SECOND + 1),
            };
            assert!(permits <= most, "{permits} permits within {span} µs, where {most} may be");
        }
    }
}

/// A run of 20,000 found it: a request of three permits takes the turn of others, which need the earlier slots. It got a
/// slot 25 ms after its deadline.
#[test]
fn a_turn_does_not_outlast_a_deadline() {
    let mut winner = arrival(0, "b", 50_000);
    (winner.claim.priority, winner.claim.cost) = (Priority::High, 3);
    let others = [0, 25_000, 125_000, SECOND].map(|budget| arrival(0, "a", budget));
    let [first, second, third, last] = others;
    let world = World::new(leaky(40)).live(&[first, second, winner, third, last]);
    for (number, end) in &world.ends {
        assert!(matches!(end, End::Sent(at) if *at <= world.deadlines[number]), "{number} {end:?}");
    }
}

fn rules() -> impl Strategy<Value = Algorithm> {
    let rule = |algorithm: Option<Algorithm>| Just(algorithm.expect("a rule"));
    prop_oneof![
        rule(LeakyBucket::new(40, SECOND, 0, None).map(Algorithm::LeakyBucket)),
        rule(TokenBucket::new(40, SECOND, 5).map(Algorithm::TokenBucket)),
        rule(SlidingWindow::new(40, SECOND, 0).map(Algorithm::SlidingWindow)),
        rule(FixedWindow::new(40, SECOND).map(Algorithm::FixedWindow)),
    ]
}

fn arrivals(most_cost: i64) -> impl Strategy<Value = Vec<Arrival>> {
    let leaves = prop::option::weighted(0.2, 0..2 * SECOND);
    let one = (0..SECOND, 0..5_u8, 1..5_i64, 0..3_u8, 1..=most_cost, 0..3 * SECOND, leaves);
    let one = one.prop_map(|(at, tenant, weight, priority, cost, budget, leaves)| {
        let priority = [Priority::High, Priority::Normal, Priority::Low][usize::from(priority)];
        let claim = Claim { number: 0, tenant: tenant.to_string().into(), weight, priority, cost };
        Arrival { at, claim, budget, leaves: leaves.map(|after| at + after) }
    });
    vec(one, 1..150).prop_map(|mut arrivals: Vec<Arrival>| {
        arrivals.sort_by_key(|arrival| arrival.at);
        arrivals
    })
}

proptest! {
    #![proptest_config(cases(96))]

    /// With any rule, costs, weights and priorities: no limit is exceeded, each admitted request is sent by its deadline, and
    /// at the end nothing is left of any.
    #[test]
    fn no_promise_is_broken_and_no_limit_exceeded(rule in rules(), arrivals in arrivals(5)) {
        let world = World::new(rule).live(&arrivals);
        prop_assert_eq!(world.ends.len(), arrivals.len());
        for (number, end) in &world.ends {
            if let End::Sent(at) = end {
                prop_assert!(*at <= world.deadlines[number], "{} {:?}", number, end);
            }
        }
        assert_lawful(&world, &arrivals);
        let left = rule.open(world.state.clone().as_mut(), world.now + 10 * SECOND).level();
        prop_assert_eq!(left.remaining, rule.open(None, world.now).level().remaining);
    }

    /// No slot stays unused while a request waits that has come before it.
    #[test]
    fn each_slot_is_used(arrivals in arrivals(1)) {
        let world = World::new(leaky(40)).live(&arrivals);
        let sent = world.sent();
        for (i, pair) in sent.windows(2).enumerate() {
            let (slot, next) = (pair[0].0 + 25_000, pair[1].0);
            let waited = sent[i + 1..].iter().any(|(_, number)| arrivals[*number].at <= slot);
            prop_assert!(next <= slot || !waited, "{} is unused, {} is the next", slot, next);
        }
    }

    /// A request of one permit is refused only if no order of those that wait leaves a slot for it.
    #[test]
    fn a_request_is_admitted_if_any_order_serves_all(
        budgets in vec(0..12_i64, 1..14), last in 0..12_i64,
    ) {
        let mut world = World::new(leaky(40));
        for (number, budget) in (0..).zip(budgets.iter().chain([&last])) {
            let asks = arrival(0, &number.to_string(), budget * 25_000);
            let mut slots: Vec<_> = world.queue.slots().map(|(_, slot)| slot.at).collect();
            let mut deadlines: Vec<_> = world.queue.slots().map(|(_, slot)| slot.deadline).collect();
            let (free, _) = world.rule.open(world.state.clone().as_mut(), world.now).earliest(0, 1);
            slots.push(START + free);
            deadlines.push(START + asks.budget);
            slots.sort_unstable();
            deadlines.sort_unstable();
            let fits = slots.iter().zip(&deadlines).all(|(slot, deadline)| slot <= deadline);
            world.comes(number, &asks);
            let is_refused = matches!(world.ends.get(&number), Some(End::Refused(_)));
            prop_assert_eq!(fits, !is_refused, "{:?} {:?}", slots, deadlines);
        }
    }
}
