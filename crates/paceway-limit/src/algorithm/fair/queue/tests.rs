//! The queue alone: promises, exchanges, requests that leave, gateways that die. The rule here has a slot each 100 ms.

use super::*;
use crate::algorithm::fair::Priority;
use proptest::{collection::vec, prelude::*};

const SLOT: Micros = 100_000;
const T0: Micros = 1_000_000_000_000;

/// A queue whose rule has one slot each 100 ms, and all that it has promised.
#[derive(Default)]
struct World {
    queue: Queue,
    /// The instants of free slots.
    free: BTreeSet<Micros>,
    deadlines: BTreeMap<u64, Micros>,
    sent: Vec<(Micros, u64)>,
}

fn gateway(heard: Micros) -> WaitingGateway {
    WaitingGateway { heard, waiting: 50 }
}

impl World {
    fn new() -> Self {
        let free = (1..2_000).map(|i| T0 + i * SLOT).collect();
        Self { free, ..Self::default() }
    }

    fn ask(
        &mut self,
        now: Micros,
        tenant: &str,
        priority: Priority,
        budget: Micros,
    ) -> Option<u64> {
        let (deadline, goal) = (now + budget, *self.free.range(now..).next()?);
        let chain = self.queue.chain(now, deadline, "1", goal, &[])?;
        self.free.remove(&goal);
        let slot = Slot {
            at: goal,
            grants: Grants::from_elem(Grant { whole: goal, ..Grant::default() }, 1),
        };
        let (turn, like) = (&Turn::new(tenant, 1, priority), "1".into());
        let newcomer =
            Newcomer { turn, cost: 1, ticket: Holder { gateway: 1, number: now }, deadline, like };
        let (number, at) = self.queue.join(now, newcomer, &chain, slot, &mut Effects::default());
        assert!(at <= deadline);
        self.deadlines.insert(number, deadline);
        Some(number)
    }

    /// Confirms all requests whose slots are near.
    fn confirm(&mut self, now: Micros) {
        let mut effects = Effects::default();
        while let Some((at, number)) =
            self.queue.slots.first().copied().filter(|(at, _)| *at <= now + AHEAD)
        {
            match self.queue.confirm(now, number, &mut effects) {
                Confirmed::Sent(slot) => {
                    assert_eq!(slot.grants[0].whole, slot.at, "the permits of another slot");
                    self.sent.push((slot.at, number));
                }
                Confirmed::Waits(later) => assert!(later > at),
                Confirmed::Gone => assert!(at < now - OVERDUE, "gone"),
            }
        }
        self.free.extend(effects.refunds.iter().map(|slot| slot.at));
        self.check();
    }

    fn leave(&mut self, now: Micros, number: u64) {
        let mut effects = Effects::default();
        if self.queue.leave(now, number, &mut effects) {
            self.deadlines.remove(&number);
        }
        self.free.extend(effects.refunds.iter().map(|slot| slot.at));
        self.check();
    }

    /// No promise is broken, and no slot has two requests.
    fn check(&self) {
        let mut slots = BTreeSet::new();
        for (at, number) in &self.queue.slots {
            assert!(slots.insert(*at) && !self.free.contains(at), "one slot, one request");
            assert!(*at <= self.deadlines[number], "{number} has a slot after its deadline");
        }
        assert_eq!(self.queue.slots.len(), self.queue.waiting.len());
    }
}

/// A batch of 100 fills ten seconds. A caller with a budget of 1 s is admitted, because the batch can wait longer, and is
/// served with the next slot.
#[test]
fn a_caller_is_served_before_a_waiting_batch() {
    let mut world = World::new();
    for _ in 0..100 {
        world.ask(T0, "batch", Priority::Normal, 60_000_000).expect("has time");
    }
    let user = world.ask(T0, "user", Priority::Normal, 1_000_000).expect("the batch makes room");
    world.confirm(T0 + SLOT - AHEAD);
    world.confirm(T0 + 2 * SLOT - AHEAD);
    assert!(world.sent.iter().any(|(_, number)| *number == user), "{:?}", world.sent);
    assert!(
        world.ask(T0 + 2 * SLOT, "third", Priority::Normal, 100).is_none(),
        "no order has a slot so early"
    );
}

#[test]
fn weights_share_the_slots() {
    let mut world = World::new();
    let mut of = BTreeMap::new();
    for _ in 0..60 {
        for tenant in ["a", "b", "c"] {
            of.insert(
                world.ask(T0, tenant, Priority::Normal, 900_000_000).expect("has time"),
                tenant,
            );
        }
    }
    for i in 1..=60 {
        world.confirm(T0 + i * SLOT - AHEAD);
    }
    for tenant in ["a", "b", "c"] {
        let served = world.sent.iter().filter(|(_, number)| of[number] == tenant).count();
        assert!((19..=21).contains(&served), "{tenant}: {served}");
    }
}

/// The gateway of 50 requests dies. Their turns come, and the requests of the other gateway have all slots.
#[test]
fn turns_of_a_dead_gateway_go_to_other_requests() {
    let mut world = World::new();
    for i in 0..100 {
        let number =
            world.ask(T0, if i % 2 == 0 { "a" } else { "b" }, Priority::Normal, 900_000_000);
        let number = number.expect("has time");
        if i % 2 == 0 {
            let waiting = world.queue.waiting.get_mut(&number).expect("waits");
            waiting.ticket.gateway = 2;
        }
    }
    world.queue.gateways = [(1, gateway(T0)), (2, gateway(T0 - LEASE - 1))].into();
    for i in 1..=100 {
        let now = T0 + i * SLOT - AHEAD;
        let Some((at, number)) = world.queue.slots.first().copied() else { break };
        if world.queue.waiting[&number].ticket.gateway == 2 || at > now + AHEAD {
            world.queue.forget_overdue(now);
            continue;
        }
        world.confirm(now);
    }
    let alive =
        world.sent.iter().filter(|(_, number)| world.deadlines.contains_key(number)).count();
    assert!(alive >= 49, "{alive}");
}

#[derive(Debug, Clone)]
enum Step {
    Ask(u8, u8, i64),
    Leave(usize),
    Time(i64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..4_u8, 0..3_u8, 0..3_000_000_i64).prop_map(|(t, p, b)| Step::Ask(t, p, b)),
        1 => (0..64_usize).prop_map(Step::Leave),
        3 => (1..200_000_i64).prop_map(Step::Time),
    ]
}

proptest! {
    /// Whatever comes and leaves: every request that was admitted is sent before its deadline, each in a slot of its own,
    /// and no slot is unused while a request waits.
    #[test]
    fn every_admitted_request_is_sent_before_its_deadline(steps in vec(step(), 1..300)) {
        let (mut world, mut now) = (World::new(), T0);
        for step in steps {
            match step {
                Step::Ask(tenant, priority, budget) => {
                    let priority = Priority::ALL[usize::from(priority)];
                    world.ask(now, &tenant.to_string(), priority, budget);
                    world.check();
                }
                Step::Leave(i) => {
                    let number = world.queue.waiting.keys().nth(i).copied();
                    if let Some(number) = number {
                        world.leave(now, number);
                    }
                }
                Step::Time(span) => {
                    // Each request wakes before its slot.
                    let until = now + span;
                    while let Some((at, _)) = world.queue.slots.first().copied().filter(|(at, _)| at - AHEAD <= until) {
                        now = now.max(at - AHEAD);
                        world.confirm(now);
                    }
                    now = until;
                }
            }
        }
        for (at, number) in &world.sent {
            prop_assert!(*at <= world.deadlines[number]);
        }
    }
}
