use super::*;
use crate::algorithm::{
    OpenRule, Rule,
    reserve::{self, Part, Reserved, Want},
};
use proptest::prelude::*;

const T0: Micros = 1_700_000_000_000_000;
const SECOND: Micros = 1_000_000;

fn ticket(number: i64) -> Ticket {
    Ticket { gateway: 7, number, deadline: 0 }
}

/// Permits with their own clock.
struct Permits {
    rule: Concurrency,
    state: Option<State>,
    now: Micros,
    notified: Vec<i64>,
}

impl Permits {
    fn new(max: i64, lease: Micros) -> Self {
        let rule = Concurrency::new(max, lease).expect("a rule");
        Self { rule, state: None, now: T0, notified: Vec::new() }
    }

    fn with<T>(&mut self, work: impl FnOnce(&mut OpenRule) -> T) -> T {
        let mut open =
            OpenRule::Permits(Open::held_until(0, self.state.as_mut(), self.now, self.rule));
        let done = work(&mut open);
        let OpenRule::Permits(mut open) = open else { panic!("no permits") };
        self.notified.extend(open.notified().into_iter().map(|ticket| ticket.number));
        self.state = open.close().map(|(state, _)| state);
        done
    }

    fn ask(&mut self, ticket: Ticket, budget: Micros) -> Reserved {
        self.with(|open| {
            reserve::decide(
                &mut [Want { open, cost: 1, enforce: true, gate: None, kept: 0 }],
                budget,
                Some(ticket),
            )
        })
    }

    fn release(&mut self, grant: Grant) -> bool {
        self.with(|open| open.refund(grant, 1))
    }

    fn renew(&mut self, grant: Grant) -> bool {
        self.with(|open| open.leases().expect("leases").renew(grant))
    }

    fn held(&mut self) -> i64 {
        self.with(|open| open.leases().expect("leases").held())
    }
}

fn grant(reserved: &Reserved) -> Grant {
    reserved.parts.as_ref().expect("admitted")[0].grant
}

#[test]
fn a_release_notifies_only_the_first_waiter() {
    let mut permits = Permits::new(2, 60 * SECOND);
    let first = permits.ask(ticket(1), SECOND);
    permits.ask(ticket(2), SECOND);
    for number in 3..6 {
        let reserved = permits.ask(ticket(number), SECOND);
        assert_eq!(reserved.queued.map(|queued| queued.deadline), Some(T0 + SECOND));
    }
    assert!(permits.release(grant(&first)));
    assert_eq!(permits.notified, [3]);
    // The permit is held for the notified waiter: a newcomer queues.
    assert!(permits.ask(ticket(9), SECOND).queued.is_some());
    let deadline = T0 + SECOND;
    let third = permits.ask(Ticket { deadline, ..ticket(3) }, SECOND);
    assert!(third.parts.is_some());
    assert_eq!(permits.notified, [3]);
}

#[test]
fn a_refused_request_changes_no_state() {
    let mut permits = Permits::new(1, 60 * SECOND);
    permits.ask(ticket(1), 0);
    let before = permits.state.clone();
    let refused = permits.ask(ticket(2), 0);
    assert_eq!((refused.parts, refused.queued, refused.retry_after), (None, None, RETRY));
    assert_eq!(permits.state, before);
}

/// However long it says that it may wait: in a queue it would only be in the way.
#[test]
fn a_request_past_its_deadline_does_not_join_the_queue() {
    let mut permits = Permits::new(1, SECOND);
    permits.ask(ticket(1), 0);
    let queued = permits.ask(ticket(2), SECOND / 2).queued.expect("a queue");
    let again = Ticket { deadline: queued.deadline, ..ticket(2) };
    permits.now += SECOND / 2 - 1;
    assert!(permits.ask(again, SECOND).queued.is_some(), "it still waits");
    permits.now += 1;
    let asked = permits.ask(again, SECOND);
    assert!(asked.parts.is_none() && asked.queued.is_none());
}

#[test]
fn an_expired_lease_frees_its_permit_and_cannot_be_renewed() {
    let mut permits = Permits::new(1, 60 * SECOND);
    let zombie = grant(&permits.ask(ticket(1), 0));
    permits.now += 59 * SECOND;
    assert!(permits.renew(zombie));
    permits.now += 59 * SECOND;
    assert!(permits.ask(ticket(2), SECOND).queued.is_some());
    permits.now += SECOND;
    // Any call on the state hands the permit to the queue; the waiter has left meanwhile.
    let heir = grant(&permits.ask(ticket(3), 0));
    assert!(!permits.renew(zombie), "re-added after expiry");
    assert!(!permits.release(zombie), "released twice");
    assert_eq!(permits.held(), 1);
    assert!(permits.release(heir));
    assert_eq!(permits.state, None);
}

#[test]
fn a_notified_waiter_that_does_not_claim_loses_its_permit() {
    let mut permits = Permits::new(1, 60 * SECOND);
    let first = grant(&permits.ask(ticket(1), 0));
    permits.ask(ticket(2), 30 * SECOND);
    permits.ask(ticket(3), 30 * SECOND);
    permits.release(first);
    assert_eq!(permits.notified, [2]);
    permits.now += CLAIM;
    permits.held();
    assert_eq!(permits.notified, [2, 3]);
}

#[test]
fn a_waiter_that_left_the_queue_is_not_notified() {
    let mut permits = Permits::new(1, 60 * SECOND);
    let first = grant(&permits.ask(ticket(1), 0));
    let queued = permits.ask(ticket(2), SECOND).queued.expect("queued");
    permits.ask(ticket(3), SECOND);
    assert!(permits.release(Ticket { deadline: queued.deadline, ..ticket(2) }.grant()));
    assert!(!permits.release(Ticket { deadline: queued.deadline, ..ticket(2) }.grant()));
    permits.release(first);
    assert_eq!(permits.notified, [3]);
}

#[test]
fn a_larger_limit_notifies_as_many_waiters_as_fit() {
    let mut permits = Permits::new(1, 60 * SECOND);
    (1..5).for_each(|number| drop(permits.ask(ticket(number), SECOND)));
    permits.rule = Concurrency::new(3, 60 * SECOND).expect("a rule");
    assert_eq!(permits.held(), 3);
    assert_eq!(permits.notified, [2, 3]);
}

#[test]
fn two_kinds_of_permits_are_taken_together_or_not_at_all() {
    let (mut a, mut b) = (Permits::new(1, 60 * SECOND), Permits::new(1, 60 * SECOND));
    let both = |a: &mut Permits, b: &mut Permits, ticket| {
        a.with(|a| {
            b.with(|b| {
                let wants =
                    [a, b].map(|open| Want { open, cost: 1, enforce: true, gate: None, kept: 0 });
                let mut wants = wants;
                reserve::decide(&mut wants, SECOND, Some(ticket))
            })
        })
    };
    let holder = grant(&b.ask(ticket(1), 0));
    let reserved = both(&mut a, &mut b, ticket(2));
    assert_eq!((reserved.bound_by, reserved.queued.is_some()), (1, true));
    assert_eq!((a.held(), b.held()), (0, 1));
    // Called to one, it does not hold it while it waits for the other.
    a.ask(ticket(3), 0);
    b.release(holder);
    assert_eq!((b.notified.clone(), b.held()), (vec![2], 1));
    let deadline = reserved.queued.expect("queued").deadline;
    let reserved = both(&mut a, &mut b, Ticket { deadline, ..ticket(2) });
    assert_eq!((reserved.bound_by, reserved.queued.is_some()), (0, true));
    assert_eq!((a.held(), b.held()), (1, 0));
}

#[test]
fn a_request_that_waits_for_concurrency_takes_no_rate_permit_yet() {
    let mut permits = Permits::new(1, 60 * SECOND);
    let rule = crate::algorithm::TokenBucket::new(1, SECOND, 1).expect("a rule");
    let mut bucket = Rule::from(rule).open(None, None, T0);
    let mut ask = |permits: &mut Permits, ticket| {
        let bucket = &mut bucket;
        permits.with(|open| {
            let wants = [bucket, open].map(|open| Want {
                open,
                cost: 1,
                enforce: true,
                gate: None,
                kept: 0,
            });
            let mut wants = wants;
            reserve::decide(&mut wants, 5 * SECOND, Some(ticket))
        })
    };
    let first = ask(&mut permits, ticket(1));
    permits.release(first.parts.expect("admitted")[1].grant);
    let second = ask(&mut permits, ticket(2));
    assert_eq!((second.at, second.parts.map(|parts| parts[1])), (SECOND, Some(Part::NOT_YET)));
    assert_eq!(permits.held(), 0);
}

#[derive(Debug, Clone)]
enum Step {
    Wait(Micros),
    Ask(bool),
    Release(usize),
    Renew(usize),
    Leave(usize),
    Late(usize),
    /// Another rule is asked with, as by a gateway before or after an edit: one with turns or without.
    Edit(i64, bool),
}

/// A gateway without turns removes the last of two requests, whose number the next one gets.
#[test]
fn a_number_has_one_turn() {
    let (mut waiters, turn) = (waiters::Waiters::default(), Turn::of_nobody());
    let all = [1, 2, 3, 4].map(|number| Ticket { deadline: 9 * SECOND, ..ticket(number) });
    waiters.add(5, all[0], false, Some(&turn));
    waiters.add(5, all[1], false, Some(&turn));
    assert!(waiters.remove(all[1], false));
    waiters.add(5, all[2], false, Some(&turn));
    waiters.add(5, all[3], false, Some(&turn));
    let mut served = Vec::new();
    while let Some(number) = waiters.next() {
        served.push(waiters.ticket(number).expect("it waits"));
        waiters.serve(number, true);
    }
    assert_eq!(served, [all[0], all[2], all[3]]);
    assert_eq!(waiters.turns().len(), 0);
}

proptest! {
    #![proptest_config(crate::algorithm::tests::cases(512))]

    /// Compared with a list of holders and their expiries, and a list of waiters. Requests of one tenant take turns in the
    /// order in which they came.
    #[test]
    fn permits_are_never_exceeded_nor_idle_and_waiters_are_served_in_order(
        mut max in 1..4i64,
        takes_turns in any::<bool>(),
        steps in prop::collection::vec(prop_oneof![
            1 => (0..3 * SECOND).prop_map(Step::Wait),
            3 => any::<bool>().prop_map(Step::Ask),
            2 => (0..4usize).prop_map(Step::Release),
            1 => (0..4usize).prop_map(Step::Renew),
            1 => (0..4usize).prop_map(Step::Leave),
            1 => (0..4usize).prop_map(Step::Late),
            1 => (1..4i64, any::<bool>()).prop_map(|(max, turns)| Step::Edit(max, turns)),
        ], 1..80),
    ) {
        const LEASE: Micros = 5 * SECOND;
        const BUDGET: Micros = 4 * SECOND;
        let mut permits = Permits::new(max, LEASE);
        permits.rule = permits.rule.with_turns(takes_turns);
        let (mut holding, mut waiting, mut gone) = (Vec::<(i64, Micros)>::new(), Vec::<(i64, Micros)>::new(), Vec::new());
        let mut expected_calls = Vec::new();
        for (number, step) in steps.into_iter().enumerate() {
            let number = i64::try_from(number).expect("few");
            if let Step::Wait(span) = step {
                permits.now += span;
            }
            if let Step::Edit(edited, takes_turns) = step {
                max = edited;
                let rule = Concurrency::new(max, LEASE).expect("a rule");
                permits.rule = rule.with_turns(takes_turns);
            }
            let held = holding.len() as i64;
            let now = permits.now;
            macro_rules! settle { () => {
                let (expired, held): (Vec<_>, Vec<_>) = holding.into_iter().partition(|(_, until)| *until <= now);
                gone.extend(expired.into_iter().map(|(number, _)| number));
                holding = held;
                while (holding.len() as i64) < max && !waiting.is_empty() {
                    let (number, deadline) = waiting.remove(0);
                    if deadline > now {
                        holding.push((number, now + CLAIM));
                        expected_calls.push(number);
                    }
                }
            } }
            settle!();
            match step {
                Step::Wait(_) | Step::Edit(..) => {}
                Step::Ask(waits) => {
                    let reserved = permits.ask(ticket(number), if waits { BUDGET } else { 0 });
                    let free = (holding.len() as i64) < max;
                    prop_assert_eq!(reserved.parts.is_some(), free);
                    prop_assert_eq!(reserved.queued.is_some(), !free && waits);
                    if free {
                        holding.push((number, now + LEASE));
                    } else if waits {
                        waiting.push((number, now + BUDGET));
                    }
                }
                Step::Release(i) if i < holding.len() => {
                    let (number, _) = holding.remove(i);
                    prop_assert!(permits.release(ticket(number).grant()));
                    settle!();
                }
                Step::Renew(i) if i < holding.len() => {
                    prop_assert!(permits.renew(ticket(holding[i].0).grant()));
                    holding[i].1 = now + LEASE;
                }
                Step::Leave(i) if i < waiting.len() => {
                    let (number, deadline) = waiting.remove(i);
                    let left = Ticket { deadline, ..ticket(number) };
                    prop_assert!(permits.release(left.grant()));
                }
                Step::Late(i) if i < gone.len() => {
                    prop_assert!(!permits.renew(ticket(gone[i]).grant()));
                    prop_assert!(!permits.release(ticket(gone[i]).grant()));
                }
                _ => {}
            }
            prop_assert_eq!(permits.held(), holding.len() as i64);
            // The holders keep their permits under a smaller limit, and no other request gets one.
            prop_assert!(permits.held() <= max.max(held));
            prop_assert_eq!(&permits.notified, &expected_calls);
        }
    }
}

/// A thousand requests wait for the end of a pause: the first asks then, and the others within the second after it. Its question hands
/// over all permits.
#[test]
fn only_the_first_of_a_queue_asks_at_the_end_of_a_pause() {
    let mut permits = Permits::new(3, 10 * SECOND);
    permits.with(|open| {
        open.leases().expect("leases").pause(Gate::new(T0, SECOND, 429));
    });
    let waits = |permits: &mut Permits, number| {
        permits.ask(ticket(number), 5 * SECOND).queued.expect("a place").ask_after
    };
    assert_eq!(waits(&mut permits, 1), SECOND);
    let later: Vec<_> = (2..1000).map(|number| waits(&mut permits, number)).collect();
    assert!(later.iter().all(|after| (SECOND + 1..=SECOND + 1_024_000).contains(after)));
    permits.now += SECOND;
    permits.held();
    assert_eq!(permits.notified, [1, 2, 3]);
}
