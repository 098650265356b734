//! The order of waiting requests: shares, newcomers, priorities, bounds, and no starvation.

use super::{
    class::{LATEST, PERMIT},
    *,
};
use proptest::{collection::vec, prelude::*};
use std::collections::BTreeMap;

const HIGH: Priority = Priority::High;
const NORMAL: Priority = Priority::Normal;
const LOW: Priority = Priority::Low;

fn claim(number: u64, tenant: &str, weight: i64) -> Claim {
    Claim { number, tenant: tenant.into(), weight, priority: NORMAL, cost: 1 }
}

/// Requests of tenants that have something waiting all the time.
struct Backlog {
    turns: Turns,
    claims: Vec<Claim>,
    next: u64,
    /// The index of the claim of each request.
    owners: BTreeMap<u64, usize>,
}

impl Backlog {
    fn new(claims: Vec<Claim>) -> Self {
        let (turns, owners) = (Turns::default(), BTreeMap::new());
        let mut new = Self { turns, claims, next: 0, owners };
        for i in 0..new.claims.len() {
            new.add(i);
            new.add(i);
        }
        new
    }

    fn add(&mut self, i: usize) {
        self.next += 1;
        self.turns.add(&Claim { number: self.next, ..self.claims[i].clone() });
        self.owners.insert(self.next, i);
    }

    /// Serves the next request; returns the index of its claim.
    fn serve(&mut self) -> usize {
        let number = self.turns.first().expect("all wait");
        assert!(self.turns.serve(number) && !self.turns.serve(number));
        let i = self.owners.remove(&number).expect("its claim");
        self.add(i);
        i
    }
}

/// The greatest difference between the permits that a tenant got in a stretch of slots and its share of them.
fn greatest_error(served: &[usize], tenant: usize, share: f64) -> f64 {
    let mut ahead = 0.0;
    let (mut least, mut most) = (0.0_f64, 0.0_f64);
    for winner in served {
        ahead += f64::from(u8::from(*winner == tenant)) - share;
        (least, most) = (least.min(ahead), most.max(ahead));
    }
    most - least
}

#[test]
fn weights_are_kept_within_a_slot_in_any_stretch() {
    for weights in [&[4, 1, 1][..], &[1, 1], &[1, 1, 1, 1, 1], &[3, 2], &[10, 1], &[5, 3, 1]] {
        let claims = weights.iter().enumerate();
        let claims = claims.map(|(i, weight)| claim(0, &i.to_string(), *weight)).collect();
        let mut backlog = Backlog::new(claims);
        let served: Vec<_> = (0..1_000).map(|_| backlog.serve()).collect();
        let all: i64 = weights.iter().sum();
        for (i, weight) in weights.iter().enumerate() {
            let error = greatest_error(&served, i, *weight as f64 / all as f64);
            assert!(error < 1.0 + 1e-3, "{weights:?}, tenant {i}: {error}");
        }
    }
}

/// 900 requests of one tenant wait when another one comes. It is served with the next slot but one at the latest.
#[test]
fn a_newcomer_does_not_wait_for_a_backlog() {
    let mut turns = Turns::default();
    for number in 0..900 {
        turns.add(&claim(number, "batch", 1));
    }
    for served in 0..100 {
        assert_eq!(turns.first(), Some(served));
        turns.serve(served);
    }
    turns.add(&claim(1_000, "user", 1));
    assert_eq!(turns.order().take(2).filter(|number| *number == 1_000).count(), 1);
}

/// A tenant that has had more than its share gains nothing by leaving the queue for a moment.
#[test]
fn a_tenant_that_rejoins_the_queue_gains_no_turn() {
    let mut turns = Turns::default();
    for number in 0..10 {
        turns.add(&claim(number, "patient", 1));
    }
    let mut served = 0;
    for number in 10..20 {
        turns.add(&claim(number, "impatient", 1));
        let first = turns.first().expect("both wait");
        turns.serve(first);
        served += i32::from(first == number);
        turns.remove(number);
    }
    assert_eq!(served, 5, "of ten slots");
}

/// While low requests wait they get a twentieth of the permits, whatever they cost, and so do normal ones.
#[test]
fn lower_priorities_keep_a_twentieth() {
    for (cost, priorities) in
        [(1, &[HIGH, LOW][..]), (5, &[NORMAL, LOW]), (1, &[HIGH, NORMAL, LOW])]
    {
        let claims = priorities.iter().enumerate().map(|(i, priority)| {
            let cost = if i == 0 { 1 } else { cost };
            Claim { priority: *priority, cost, ..claim(0, "a", 1) }
        });
        let mut backlog = Backlog::new(claims.collect());
        let mut permits = vec![0; priorities.len()];
        for _ in 0..2_000 {
            let i = backlog.serve();
            permits[i] += if i == 0 { 1 } else { cost };
        }
        let all: i64 = permits.iter().sum();
        for lower in &permits[1..] {
            assert!((lower * 20 - all).abs() <= 20 * cost, "{permits:?}");
        }
    }
    let mut turns = Turns::default();
    for (number, priority) in [(1, LOW), (2, NORMAL), (3, HIGH), (4, NORMAL)] {
        turns.add(&Claim { priority, ..claim(number, "a", 1) });
    }
    assert_eq!(turns.order().collect::<Vec<_>>(), [3, 2, 4, 1]);
}

/// A normal request that was alone for long waits no longer for its twentieth than any other.
#[test]
fn a_priority_without_a_higher_one_collects_no_debt() {
    let normal = claim(0, "a", 1);
    let mut backlog = Backlog::new(vec![normal.clone()]);
    for _ in 0..100 {
        backlog.serve();
    }
    backlog.claims.push(Claim { priority: HIGH, ..normal });
    (0..2).for_each(|_| backlog.add(1));
    let normal = (0..40).filter(|_| backlog.serve() == 0).count();
    assert_eq!(normal, 2);
}

#[test]
fn tenants_are_bounded_and_forgotten() {
    let mut turns = Turns::default();
    for number in 0..3_000 {
        turns.add(&claim(number, &format!("tenant {number}"), 1));
    }
    assert_eq!(turns.tenants(), MAX_TENANTS + 1);
    assert_eq!(turns.order().count(), 3_000);
    (0..3_000).for_each(|number| assert!(turns.remove(number)));
    assert_eq!((turns.tenants(), turns.first()), (0, None));
}

/// Virtual time begins again before it leaves the exact integers, and the shares stay.
#[test]
fn virtual_time_begins_again() {
    let mut backlog = Backlog::new(vec![claim(0, "a", 2), claim(0, "b", 1)]);
    let normal = &mut backlog.turns.classes[NORMAL as usize];
    normal.now = LATEST - 3 * PERMIT;
    for name in normal.tenants.keys().cloned().collect::<Vec<_>>() {
        normal.leave(&name);
        let tenant = normal.tenants.get_mut(&name).expect("it waits");
        tenant.start = normal.now;
        normal.enter(&name);
    }
    let served: Vec<_> = (0..300).map(|_| backlog.serve()).collect();
    assert!(backlog.turns.classes[NORMAL as usize].now < LATEST / 2);
    assert!(greatest_error(&served, 0, 2.0 / 3.0) < 2.0);
}

/// One step of a random history.
#[derive(Debug, Clone)]
enum Step {
    Add { tenant: u8, weight: i64, priority: u8, cost: i64 },
    Serve,
    ServeOutOfTurn(prop::sample::Index),
    Remove(prop::sample::Index),
}

fn step() -> impl Strategy<Value = Step> {
    let add = (0..5_u8, 1..8_i64, 0..3_u8, 1..6_i64);
    prop_oneof![
        4 => add.prop_map(|(tenant, weight, priority, cost)| Step::Add { tenant, weight, priority, cost }),
        3 => Just(Step::Serve),
        1 => any::<prop::sample::Index>().prop_map(Step::ServeOutOfTurn),
        1 => any::<prop::sample::Index>().prop_map(Step::Remove),
    ]
}

proptest! {
    /// Whatever comes and leaves: someone is first as long as anyone waits, the first is the oldest of its tenant, all that
    /// wait are in the order once, and nothing is left of those that do not.
    #[test]
    fn the_order_has_each_waiting_request_once(steps in vec(step(), 1..200)) {
        let (mut turns, mut waiting) = (Turns::default(), Vec::<Claim>::new());
        for (number, step) in (0..).zip(steps) {
            match step {
                Step::Add { tenant, weight, priority, cost } => {
                    let priority = [HIGH, NORMAL, LOW][usize::from(priority)];
                    let claim = Claim { priority, cost, ..claim(number, &tenant.to_string(), weight) };
                    turns.add(&claim);
                    waiting.push(claim);
                }
                Step::Serve => {
                    if let Some(first) = turns.first() {
                        prop_assert!(turns.serve(first));
                        waiting.retain(|claim| claim.number != first);
                    }
                }
                Step::ServeOutOfTurn(at) | Step::Remove(at) if !waiting.is_empty() => {
                    let gone = waiting.remove(at.index(waiting.len())).number;
                    let done = if matches!(step, Step::Remove(_)) { turns.remove(gone) } else { turns.serve(gone) };
                    prop_assert!(done);
                }
                _ => {}
            }
            let first = turns.first();
            prop_assert_eq!(first.is_none(), waiting.is_empty());
            if let Some(first) = waiting.iter().find(|claim| Some(claim.number) == first) {
                let own = |claim: &&Claim| (claim.priority, &claim.tenant) == (first.priority, &first.tenant);
                prop_assert_eq!(waiting.iter().find(own), Some(first));
            }
        }
        let mut order: Vec<_> = turns.order().collect();
        order.sort_unstable();
        prop_assert_eq!(order, waiting.iter().map(|claim| claim.number).collect::<Vec<_>>());
        waiting.iter().for_each(|claim| assert!(turns.remove(claim.number)));
        prop_assert_eq!(turns.tenants(), 0);
    }

    /// No tenant starves: with any weights, each gets its share to within two requests from the first slot on.
    #[test]
    fn shares_are_kept_with_any_weights(weights in vec(1..20_i64, 1..8)) {
        let claims = weights.iter().enumerate();
        let claims = claims.map(|(i, weight)| claim(0, &i.to_string(), *weight)).collect();
        let mut backlog = Backlog::new(claims);
        let served: Vec<_> = (0..500).map(|_| backlog.serve()).collect();
        let all: i64 = weights.iter().sum();
        for (i, weight) in weights.iter().enumerate() {
            let error = greatest_error(&served, i, *weight as f64 / all as f64);
            prop_assert!(error < 2.0, "tenant {}: {}", i, error);
        }
    }
}
