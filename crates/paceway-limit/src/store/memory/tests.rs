//! A limiter has one state in this store, whatever others the list of a request has.

mod ways;

use super::*;
use crate::{
    algorithm::{
        Algorithm, Concurrency, FixedWindow, LeakyBucket, Rule, SlidingWindow, TokenBucket, WarmUp,
        fair::Priority, gate::Remainder,
    },
    store::{Pause, Turn},
};
use std::{collections::HashSet, thread};

const NOW: Micros = 2 * EPOCH;
const MINUTE: Micros = 60_000_000;
/// Enough companions that some of them are in each part of the store.
const COMPANIONS: usize = 100;

/// Rules that grant five permits in this minute and no more.
fn rules() -> [Rule; 6] {
    [
        Rule::from(TokenBucket::new(1, MINUTE, 5).expect("a rule")),
        Rule::from(SlidingWindow::new(5, MINUTE, 0).expect("a rule")),
        Rule::from(FixedWindow::new(5, MINUTE).expect("a rule")),
        Rule::from(LeakyBucket::new(1, MINUTE, 0, None).expect("a rule")),
        Rule::from(WarmUp::new(1, MINUTE, MINUTE, 3.0).expect("a rule")),
        Rule::from(Concurrency::new(5, MINUTE).expect("a rule")),
    ]
}

fn companion(i: usize) -> Check {
    let rule = TokenBucket::new(1_000, 1_000_000, 1_000).expect("a rule");
    Check::new(format!("p:{{other{i}}}:T:other{i}"), Rule::from(rule))
}

/// Asks at `NOW` for a limiter alone, or with this companion before or after it.
fn ask(store: &MemoryStore, own: &Check, i: usize) -> Decision {
    let other = companion(i);
    let checks: Checks = match i % 3 {
        0 => [own.clone()].into(),
        1 => [own.clone(), other].into(),
        _ => [other, own.clone()].into(),
    };
    let ticket = Some(store.shared.calls.ticket().ticket);
    store.decide_at(NOW, &checks, 0, ticket)
}

fn granted(store: &MemoryStore, own: &Check) -> usize {
    (0..COMPANIONS).filter(|i| ask(store, own, *i).admitted).count()
}

#[test]
fn a_limiter_has_one_state_in_any_list_of_limiters() {
    for rule in rules() {
        let most = match rule {
            Rule::Rate(Algorithm::LeakyBucket(_) | Algorithm::WarmUp(_)) => 1,
            _ => 5,
        };
        for key in ["p:{a}:T:a", "p:{a}:T:a:acme", "no tag"] {
            for turn in [None, Some(Turn::new("tenant", 1, Priority::Normal))] {
                let store = MemoryStore::default();
                let own = Check { turn, ..Check::new(key, rule) };
                assert_eq!(granted(&store, &own), most, "{key} {rule:?}");
            }
        }
    }
}

#[test]
fn single_and_joint_calls_change_one_state() {
    let (store, own) = (MemoryStore::default(), Check::new("p:{a}:T:a", rules()[1]));
    assert_eq!(granted(&store, &own), 5);
    assert_eq!(store.look_at(NOW, &own).remaining, 0);
    assert!(store.forget_at(NOW, &own));
    assert_eq!(granted(&store, &own), 5);
    store.forget_at(NOW, &own);
    store.lower_at(NOW, &own, Remainder { permits: 2, ..Remainder::default() });
    let asked = (0..COMPANIONS).map(|i| ask(&store, &own, i));
    let admitted: Vec<_> = asked.filter(|said| said.admitted).collect();
    assert_eq!(store.look_at(NOW, &own).remaining, 0);
    let last = admitted.last().expect("two permits");
    let at = last.parts.iter().map(|part| part.grant).collect::<Vec<_>>();
    assert!(at.iter().any(|grant| store.refund_at(NOW, &own, *grant) == Reply::Done(true)));
    assert_eq!(granted(&store, &own), 1);
    store.forget_at(NOW, &own);
    store.pause_at(NOW, &own, Pause::for_micros(MINUTE, 429));
    assert_eq!(granted(&store, &own), 0);
}

/// The first limiters of the two lists differ, so that the waiter was in the queue of another state.
#[tokio::test]
async fn a_release_wakes_a_waiter_whose_list_begins_with_another_limiter() {
    let permit = Concurrency::new(1, MINUTE).expect("a rule");
    let own = Check::new("p:{a}:C:a", Rule::from(permit));
    for i in 0..COMPANIONS {
        let store = MemoryStore::default();
        let holds: Checks = [own.clone()].into();
        let held = store.shared.calls.ticket();
        assert!(store.decide_at(NOW, &holds, 0, Some(held.ticket)).admitted);
        let waits: Checks = [companion(i), own.clone()].into();
        let waiting = store.shared.calls.ticket();
        let ticket = Ticket { deadline: NOW + MINUTE, ..waiting.ticket };
        let decision = store.decide_at(NOW, &waits, MINUTE, Some(ticket));
        assert!(decision.queued.is_some(), "{decision:?}");
        assert_eq!(store.refund_at(NOW, &own, held.ticket.grant()), Reply::HandedOver);
    }
}

/// Each of two threads locks the parts of the other's list in the other order.
#[test]
fn decisions_about_the_same_limiters_in_any_order_end() {
    let store = MemoryStore::default();
    let lists: Vec<Checks> = (0..8)
        .map(|i| (0..6).map(|j| companion((i * (j + 1)) % 7 + 7 * j)).collect::<Vec<_>>().into())
        .collect();
    thread::scope(|scope| {
        for turn in 0..2 {
            let (store, lists) = (&store, &lists);
            scope.spawn(move || {
                for i in 0..20_000 {
                    let list = &lists[i % lists.len()];
                    let list =
                        if turn == 0 { list.clone() } else { list.iter().rev().cloned().collect() };
                    store.decide_at(NOW, &list, 0, None);
                }
            });
        }
    });
}

/// If the keys of a limiter were in one part, all workers would wait for one lock, and for one table that grows.
#[test]
fn keys_of_one_limiter_are_in_many_parts() {
    let store = MemoryStore::default();
    let parts = (0..64).map(|key| store.shard_of(store.print(&format!("p:{{a}}:T:a:{key}"))));
    let used = parts.collect::<HashSet<_>>().len();
    assert!(used >= SHARDS / 3, "{used} of {SHARDS}");
}
