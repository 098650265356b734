//! The permits that are charged to the shared state, and their instants.

use super::*;
use crate::{
    algorithm::{FixedWindow, Grant, TokenBucket},
    store::{Entry, OnFailure, Reply, memory::MemoryStore},
};
use rstest::rstest;

const NOW: Micros = 1_700_000_000_000_000;
const SECOND: Micros = 1_000_000;

fn window() -> Algorithm {
    Algorithm::SlidingWindow(SlidingWindow::new(10, SECOND, 0).expect("a rule"))
}

fn fixed() -> Algorithm {
    Algorithm::FixedWindow(FixedWindow::new(10, SECOND).expect("a rule"))
}

fn bucket() -> Algorithm {
    Algorithm::TokenBucket(TokenBucket::new(10, SECOND, 10).expect("a rule"))
}

fn check(algorithm: Algorithm) -> Check {
    Check::new("{t}:a", algorithm).with_on_failure(OnFailure::Whole)
}

fn due_of([delay, permits]: [Micros; 2]) -> DuePermits {
    DuePermits { delay, permits }
}

fn add(
    grants: &mut Grants,
    rule: &Algorithm,
    now: Micros,
    whole: Micros,
    at: Micros,
    permits: i64,
) {
    let grant = Grant { whole, ..Grant::default() };
    grants.add(rule, now, Part { at: at - now, grant }, permits);
}

/// The delays and the numbers of all permits.
fn take(
    grants: &mut Grants,
    rule: &Algorithm,
    now: Micros,
    owed: impl FnOnce(i64) -> i64,
) -> Vec<(Micros, i64)> {
    pairs(&grants.take(rule, now, owed).due)
}

fn pairs(due: &[DuePermits]) -> Vec<(Micros, i64)> {
    due.iter().map(|due| (due.delay, due.permits)).collect()
}

/// When each of the permits that are `due` is taken, and how many at once.
fn taken(store: &MemoryStore, algorithm: Algorithm, due: &[(Micros, i64)]) -> Vec<(Micros, i64)> {
    let due: Vec<_> = due.iter().map(|(delay, permits)| due_of([*delay, *permits])).collect();
    let asks = charges(&check(algorithm), &due);
    let mut all = Vec::new();
    for checks in asks {
        let cost = checks[checks.len() - 1].cost;
        let is_own = *checks[checks.len() - 1].key == *"{t}:a";
        let ask = Entry::Reserve { checks, budget: MAX_BUDGET, ticket: None };
        match &store.run_at(NOW, &[ask])[..] {
            [Reply::Decision(decision)] if decision.admitted => {
                let at = decision.parts[decision.parts.len() - 1].at;
                all.extend(Some((at, cost)).filter(|_| is_own));
            }
            said => panic!("{said:?}"),
        }
    }
    all
}

#[rstest]
#[case::window(window())]
#[case::fixed(fixed())]
#[case::bucket(bucket())]
fn each_permit_is_taken_at_its_instant(#[case] rule: Algorithm) {
    let ahead = [(250_000, 1), (1_250_000, 2), (1_250_001, 1)];
    let all = taken(&MemoryStore::default(), rule, &ahead);
    assert_eq!(all, [(250_000, 1), (1_250_000, 1), (1_250_000, 1), (1_250_001, 1)]);
}

#[test]
fn past_permits_take_all_room_that_is_left() {
    let store = MemoryStore::default();
    let all = taken(&store, window(), &[(100_000, 4), (999_999, 4), (0, 4)]);
    assert_eq!(all[8..], [(0, 1), (0, 1), (SECOND, 1), (SECOND, 1)]);
}

#[test]
fn many_permits_are_charged_in_pieces() {
    let rule = Algorithm::SlidingWindow(SlidingWindow::new(5000, SECOND, 0).expect("a rule"));
    let due: Vec<_> = (1..=600).map(|i| (i * 1000, 1)).chain([(0, 400)]).collect();
    let all = taken(&MemoryStore::default(), rule, &due);
    assert!(all.len() <= 260, "{}", all.len());
    assert_eq!(all.iter().map(|(_, permits)| permits).sum::<i64>(), 1000);
    assert_eq!((all[0], all[1]), ((1000, 4), (5000, 4)));
    assert!(all[150..].iter().all(|(at, _)| *at == 0), "what is past is not taken later");
}

#[test]
fn past_refunded_or_charged_permits_are_not_charged() {
    let (rule, mut grants) = (window(), Grants::default());
    add(&mut grants, &rule, NOW, NOW, NOW, 3);
    add(&mut grants, &rule, NOW + SECOND / 2, NOW + SECOND, NOW + SECOND, 2);
    grants.refund(&rule, NOW + SECOND, 1);
    let now = NOW + SECOND - 1;
    let taken = grants.take(&rule, now, |_| 0);
    assert_eq!(pairs(&taken.due), [(1, 1), (0, 3)]);
    assert_eq!(take(&mut grants, &rule, now, |_| 0), []);
    grants.put_back(&taken.grants);
    assert_eq!(take(&mut grants, &rule, now + 1, |_| 0), [(0, 1)], "three are past");
}

/// A bucket is charged the permits that it owes, but not more than were granted.
#[rstest]
#[case::all(9, &[(SECOND, 1), (0, 3)])]
#[case::some_flowed_back(3, &[(SECOND, 1), (0, 2)])]
#[case::all_flowed_back(0, &[(SECOND, 1)])]
fn a_bucket_owes_permits_that_have_not_flowed_back(
    #[case] owed: i64,
    #[case] expected: &[(Micros, i64)],
) {
    let (rule, mut grants) = (bucket(), Grants::default());
    add(&mut grants, &rule, NOW, NOW, NOW, 3);
    add(&mut grants, &rule, NOW, NOW + SECOND + 5, NOW + SECOND, 1);
    assert_eq!(take(&mut grants, &rule, NOW, |ahead| owed - ahead), expected);
}

#[test]
fn kept_instants_are_bounded() {
    let (rule, mut grants) = (bucket(), Grants::default());
    for i in 1..=2 * MAX_INSTANTS as i64 {
        add(&mut grants, &rule, NOW, NOW + i, NOW + i, 1);
    }
    assert_eq!(grants.all.len(), MAX_INSTANTS);
    let due = take(&mut grants, &rule, NOW, |_| 0);
    assert_eq!(due.iter().map(|(_, permits)| permits).sum::<i64>(), 2 * MAX_INSTANTS as i64);
}
