//! Requests that can be made in several ways: the one with the earliest slot is taken, and charged alone.

use crate::{
    algorithm::{
        Algorithm, Concurrency, FixedWindow, Micros, Rule, SlidingWindow, TokenBucket,
        concurrency::Ticket,
    },
    store::{
        Alternative, Alternatives, Check, Checks, Decision, Entry, Reply, memory::MemoryStore,
    },
};
use proptest::prelude::*;
use std::sync::Arc;

const T0: Micros = 1_700_000_000_000_000;

fn rate(key: &str, kind: usize, count: i64) -> Check {
    let second = 1_000_000;
    let rule = match kind {
        0 => Algorithm::TokenBucket(TokenBucket::new(count, second, count).expect("a rule")),
        1 => Algorithm::SlidingWindow(SlidingWindow::new(count, second, 30_000).expect("a rule")),
        _ => Algorithm::FixedWindow(FixedWindow::new(count, second).expect("a rule")),
    };
    Check::new(key, rule)
}

fn permit(key: &str) -> Check {
    Check::new(key, Rule::Permits(Concurrency::new(1, 60_000_000).expect("a rule")))
}

/// One way for each check, after these times.
fn ways(checks: impl IntoIterator<Item = Check>, afters: &[Micros]) -> Vec<Alternative> {
    let ways = (0..).zip(checks).map(|(id, check)| Alternative {
        id,
        checks: [check].into(),
        after: afters.get(usize::from(id)).copied().unwrap_or_default(),
    });
    ways.collect()
}

fn choose(ways: Vec<Alternative>, budget: Micros, ticket: Option<Ticket>) -> Entry {
    let among = Arc::new(Alternatives::new(ways).expect("ways"));
    Entry::Choose { among, budget, ticket }
}

fn decide(store: &MemoryStore, now: Micros, entry: Entry) -> Decision {
    match store.run_at(now, &[entry]).pop() {
        Some(Reply::Decision(decision)) => decision,
        other => panic!("{other:?}"),
    }
}

proptest! {
    #[test]
    fn the_way_with_the_earliest_slot_is_taken_and_charged_alone(
        kinds in prop::collection::vec((0..3_usize, 1..6_i64), 2..6),
        shared in prop::option::of(1..4_i64),
        steps in prop::collection::vec((0..300_000_i64, prop::option::of(0..6_usize)), 1..40),
        budget in prop_oneof![Just(0_i64), 0..3_000_000_i64, Just(60_000_000)],
    ) {
        let own = |i: usize| rate(&format!("k{i}"), kinds[i].0, kinds[i].1);
        let checks = |i: usize| -> Checks {
            shared.map(|count| rate("shared", 0, count)).into_iter().chain([own(i)]).collect()
        };
        let all = || -> Vec<_> {
            (0..kinds.len()).map(|i| Alternative { id: i as u8, checks: checks(i), after: 0 }).collect()
        };
        // Each step takes one way, or the best one.
        let begun = || {
            let (store, mut now) = (MemoryStore::default(), T0);
            for (after, way) in &steps {
                now += after;
                let entry = match way.filter(|way| *way < kinds.len()) {
                    Some(way) => Entry::Reserve { checks: checks(way), budget: 60_000_000, ticket: None },
                    None => choose(all(), 60_000_000, None),
                };
                store.run_at(now, &[entry]);
            }
            (store, now)
        };
        let alone = |i: usize| {
            let (store, now) = begun();
            decide(&store, now, Entry::Reserve { checks: checks(i), budget, ticket: None })
        };
        let alone: Vec<_> = (0..kinds.len()).map(alone).collect();
        let (store, now) = begun();
        let levels = || -> Vec<_> {
            (0..kinds.len()).map(|i| store.run_at(now, &[Entry::Look { check: own(i) }])).collect()
        };
        let before = levels();
        let decision = decide(&store, now, choose(all(), budget, None));
        let chosen = usize::from(decision.chosen.expect("a way"));
        let earliest = alone.iter().map(|decision| (!decision.admitted, decision.wait)).min();
        prop_assert_eq!(earliest, Some((!decision.admitted, decision.wait)));
        prop_assert_eq!(&Decision { chosen: None, ..decision.clone() }, &alone[chosen]);
        let after = levels();
        for i in (0..kinds.len()).filter(|i| *i != chosen || !decision.admitted) {
            prop_assert_eq!(&before[i], &after[i]);
        }
    }
}

#[test]
fn among_equal_slots_the_way_with_most_left_is_taken() {
    let store = MemoryStore::default();
    let all = || ways([("a", 3), ("b", 5), ("c", 5)].map(|(key, count)| rate(key, 0, count)), &[]);
    let chosen = (0..6).map(|_| decide(&store, T0, choose(all(), 0, None)).chosen);
    assert_eq!(chosen.collect::<Vec<_>>(), [1, 2, 1, 2, 0, 1].map(Some));
}

#[test]
fn a_way_after_others_is_taken_only_where_their_slots_come_later() {
    let store = MemoryStore::default();
    let all = || ways(["main", "spare"].map(|key| rate(key, 0, 1)), &[0, 2_000_000]);
    let decided = (0..5).map(|_| {
        let decision = decide(&store, T0, choose(all(), 60_000_000, None));
        (decision.chosen, decision.wait / 1_000_000)
    });
    // The slots of the first at 0, 1 and 2 s; then the spare one has earlier ones.
    let expected = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)];
    assert_eq!(decided.collect::<Vec<_>>(), expected.map(|(way, at)| (Some(way), at)));
    // A caller that waits for no slot learns when the first one comes.
    let refused = decide(&store, T0, choose(all(), 0, None));
    assert_eq!((refused.admitted, refused.retry_after), (false, 2_000_000));
}

#[test]
fn a_way_with_a_free_permit_comes_before_one_with_a_queue() {
    let store = MemoryStore::default();
    let asked = |number| {
        let ticket = Some(Ticket { gateway: 1, number, deadline: 0 });
        decide(&store, T0, choose(ways(["a", "b"].map(permit), &[]), 5_000_000, ticket))
    };
    assert_eq!([1, 2].map(|number| asked(number).chosen), [0, 1].map(Some));
    // Now they wait, where fewer wait.
    let waiting = [3, 4, 5, 6].map(asked);
    assert!(waiting.iter().all(|decision| decision.queued.is_some()), "{waiting:?}");
    assert_eq!(waiting.map(|decision| decision.chosen), [0, 1, 0, 1].map(Some));
}
