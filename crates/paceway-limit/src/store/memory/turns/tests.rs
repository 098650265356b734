//! Requests of any cost that take turns, with those that are refused and come back: laws of the rule, promises, and free
//! permits, whatever comes and leaves.

mod even;
mod floors;

use super::*;
use crate::{
    algorithm::{Algorithm, FixedWindow, OpenRate, SlidingWindow, TokenBucket, fair::Priority},
    store::{Entry, Reply, Turn},
};
use proptest::{collection::vec, prelude::*};
use std::collections::BTreeMap;

const T0: Micros = 1_000_000_000_000;
const AHEAD: Micros = crate::algorithm::fair::queue::AHEAD;

/// Requests at one limiter, on virtual time.
struct World {
    store: MemoryStore,
    rule: Algorithm,
    now: Micros,
    /// Those that wait: cost and deadline.
    waiting: BTreeMap<u64, (Checks, i64, Micros)>,
    /// The instants and costs of those that were sent.
    sent: Vec<(Micros, i64)>,
    /// The last one that was refused: its checks, its budget, and when it is to come back.
    refused: Option<(Checks, Micros, Micros)>,
    tickets: i64,
}

// === impl World ===

impl World {
    fn new(rule: Algorithm) -> Self {
        let (waiting, sent) = (BTreeMap::new(), Vec::new());
        let store = MemoryStore::calling(Arc::default());
        Self { store, rule, now: T0, waiting, sent, refused: None, tickets: 0 }
    }

    fn checks(&self, tenant: u8, cost: i64) -> Checks {
        let turn = Turn::new(tenant.to_string(), 1, Priority::Normal);
        [Check::new("a", self.rule).with_cost(cost).with_turn(turn)].into()
    }

    fn ask(&mut self, checks: Checks, budget: Micros) -> Decision {
        self.tickets += 1;
        let ticket = Some(Ticket { gateway: 1, number: self.tickets, deadline: 0 });
        let entry = Entry::Reserve { checks: checks.clone(), budget, ticket };
        let Some(Reply::Decision(decision)) = self.store.run_at(self.now, &[entry]).pop() else {
            panic!("no decision")
        };
        let cost = checks[0].cost;
        match decision.parts.first().and_then(|part| Place::of(part.grant)) {
            Some(place) => drop(self.waiting.insert(place.0, (checks, cost, self.now + budget))),
            None if decision.admitted => self.sent.push((self.now, cost)),
            None => self.refused = Some((checks, budget, self.now + decision.retry_after)),
        }
        decision
    }

    fn at(&self, number: u64) -> Micros {
        let check = &self.waiting[&number].0[0];
        self.store.in_queue(check, |queue| queue.at(number)).flatten().expect("waits")
    }

    /// Lets time pass. Each request confirms shortly before its slot.
    fn until(&mut self, until: Micros) {
        loop {
            let next = self.waiting.keys().map(|number| (self.at(*number), *number)).min();
            let Some((at, number)) = next.filter(|(at, _)| at - AHEAD <= until) else { break };
            self.now = self.now.max(at - AHEAD);
            let (checks, cost, deadline) = self.waiting[&number].clone();
            let decision = self.store.confirm_at(self.now, &checks, Place(number));
            assert!(decision.admitted, "a request that was admitted was refused later");
            if Place::of(decision.parts[0].grant).is_none() {
                let at = self.now + decision.wait;
                assert!(at <= deadline, "a promise was broken by {}", at - deadline);
                self.sent.push((at, cost));
                self.waiting.remove(&number);
            }
            self.assert_no_room();
        }
        self.now = self.now.max(until);
    }

    /// No permit is free before the last slot, unless the next step gives it away.
    fn assert_no_room(&self) {
        let last =
            self.waiting.iter().map(|(number, it)| (self.at(*number), it)).max_by_key(|it| it.0);
        let Some((at, (checks, 1, _))) = last else { return };
        let has_room = self.store.in_queue(&checks[0], |queue| queue.has_room()) == Some(true);
        let is_about_to_be_sent = at - AHEAD <= self.now;
        let next = self.now + self.store.look_at(self.now, &checks[0]).next;
        assert!(
            has_room || is_about_to_be_sent || next >= at,
            "{} µs before the last slot",
            at - next
        );
    }

    fn assert_lawful(&mut self) {
        self.sent.sort_unstable();
        let mut open = self.rule.open(None, T0);
        for (at, cost) in &self.sent {
            let (earliest, start) = open.earliest(at - T0, *cost, 0);
            assert!(earliest <= at - T0, "{} µs too early", earliest + T0 - at);
            open.take(start, *cost);
        }
    }
}

#[derive(Debug, Clone)]
enum What {
    Ask(u8, i64, Micros),
    Back,
    Leave(usize),
    Time(Micros),
}

fn step() -> impl Strategy<Value = What> {
    let cost = prop_oneof![3 => Just(1_i64), 1 => 1..6_i64];
    let budget = prop_oneof![2 => Just(500_000_i64), 1 => 0..3_000_000_i64];
    prop_oneof![
        8 => (0..3_u8, cost, budget).prop_map(|(tenant, cost, budget)| What::Ask(tenant, cost, budget)),
        1 => Just(What::Back),
        1 => (0..64_usize).prop_map(What::Leave),
        6 => (1..60_000_i64).prop_map(What::Time),
    ]
}

fn rule() -> impl Strategy<Value = Algorithm> {
    let rules = [
        TokenBucket::new(40, 1_000_000, 5).map(Algorithm::TokenBucket),
        SlidingWindow::new(20, 500_000, 0).map(Algorithm::SlidingWindow),
        FixedWindow::new(20, 500_000).map(Algorithm::FixedWindow),
    ];
    proptest::sample::select(rules.map(|rule| rule.expect("a rule")).to_vec())
}

proptest! {
    #[test]
    fn turns_keep_the_laws_and_promised_slots(rule in rule(), steps in vec(step(), 1..400)) {
        let mut world = World::new(rule);
        for step in steps {
            match step {
                What::Ask(tenant, cost, budget) => {
                    world.ask(world.checks(tenant, cost), budget);
                }
                What::Back => {
                    if let Some((checks, budget, back)) = world.refused.take() {
                        world.until(back);
                        world.ask(checks, budget);
                    }
                }
                What::Leave(i) => {
                    if let Some(number) = world.waiting.keys().nth(i).copied() {
                        let (checks, ..) = world.waiting.remove(&number).expect("waits");
                        prop_assert!(world.store.leave_at(world.now, &checks, Place(number)));
                    }
                }
                What::Time(span) => world.until(world.now + span),
            }
            world.assert_no_room();
        }
        world.until(world.now + 4_000_000);
        prop_assert!(world.waiting.is_empty());
        world.assert_lawful();
    }
}

/// Requests of one permit take each slot. Requests of five of several tenants are refused, and told to come back: each is
/// admitted then, and those of one permit keep at least half of the permits.
#[test]
fn booked_turns_are_kept_and_small_requests_keep_half() {
    let rule = TokenBucket::new(40, 1_000_000, 5).map(Algorithm::TokenBucket).expect("a rule");
    let mut world = World::new(rule);
    let mut coming: Vec<(Micros, u8)> = Vec::new();
    let (mut booked, mut kept) = (0, 0);
    for i in 0..2_400_i64 {
        world.until(T0 + i * 12_500);
        world.ask(world.checks(0, 1), 500_000);
        let due: Vec<_> = coming.extract_if(.., |(back, _)| *back <= world.now).collect();
        for (_, tenant) in due {
            kept += 1;
            let decision = world.ask(world.checks(tenant, 5), 500_000);
            assert!(decision.admitted, "{tenant} came back in vain after {} s", i / 80);
        }
        let tenant = 1 + u8::try_from((i % 320).min(100)).expect("small");
        if i >= 320 && tenant <= 8 && coming.iter().all(|(_, own)| *own != tenant) {
            let decision = world.ask(world.checks(tenant, 5), 500_000);
            if !decision.admitted {
                assert_eq!(decision.retry_after % 1_000_000, 0, "whole seconds");
                booked += 1;
                coming.push((world.now + decision.retry_after, tenant));
            }
        }
    }
    assert!(booked >= 16 && kept + 8 >= booked, "{kept} of {booked}");
    world.until(world.now + 1_000_000);
    let sum = |is: fn(i64) -> bool| {
        let own = world.sent.iter().filter(|(at, cost)| *at >= T0 + 2_000_000 && is(*cost));
        own.map(|(_, cost)| cost).sum::<i64>()
    };
    let (light, heavy) = (sum(|cost| cost == 1), sum(|cost| cost == 5));
    assert!(heavy >= 5 * 16 && light >= heavy, "{light} : {heavy}");
    world.assert_lawful();
}

/// All calls of a window have their slots at one instant. One tenant sends three of four requests and another the fourth: each
/// gets half of a window.
#[test]
fn slots_of_one_instant_are_shared() {
    let rule = FixedWindow::new(20, 1_000_000).map(Algorithm::FixedWindow).expect("a rule");
    let mut world = World::new(rule);
    for i in 0..160 {
        assert!(world.ask(world.checks(u8::from(i % 4 == 3), 1), 60_000_000).admitted);
    }
    let waiting = |world: &World, tenant: &str| {
        let own = |(checks, ..): &&(Checks, _, _)| {
            checks[0].turn.as_ref().is_some_and(|turn| &*turn.tenant == tenant)
        };
        world.waiting.values().filter(own).count()
    };
    let before = ["0", "1"].map(|tenant| waiting(&world, tenant));
    assert_eq!(before, [105, 35]);
    world.until(T0 + 3_500_000);
    assert_eq!(["0", "1"].map(|tenant| waiting(&world, tenant)), [75, 5]);
    world.assert_lawful();
}

/// The permits of a request of two that leaves 10 ms before its slot were given to a request of one for those 10 ms later. With a
/// margin of 20 ms that was too late for it, by the message and the way of its answer.
#[test]
fn a_request_that_moves_up_has_the_time_to_confirm() {
    let rule = SlidingWindow::new(2, 1_000_000, 0).map(Algorithm::SlidingWindow).expect("a rule");
    let mut world = World::new(rule);
    world.ask(world.checks(0, 2), 0);
    let [two, one] = [2, 1].map(|cost| {
        let decision = world.ask(world.checks(0, cost), 60_000_000);
        Place::of(decision.parts[0].grant).expect("it waits").0
    });
    assert_eq!([two, one].map(|it| world.at(it) - T0), [1_000_000, 2_000_000]);
    world.now = T0 + 990_000;
    assert!(world.store.leave_at(world.now, &world.checks(0, 2), Place(two)));
    assert_eq!(world.at(one), world.now + AHEAD);
}
