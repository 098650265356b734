//! Shares keep the whole rule together, begin as full as it was, and owe what they took.

use super::*;
use crate::{
    algorithm::{FixedWindow, LeakyBucket, MAX_BUDGET, SlidingWindow, TokenBucket, WarmUp},
    store::{Check, Entry, Reply, memory::MemoryStore},
};
use proptest::prelude::*;
use rstest::rstest;

const SECOND: Micros = 1_000_000;
const NOW: Micros = 1_700_000_000_000_000;

fn token(count: i64, period: Micros, burst: i64) -> Algorithm {
    Algorithm::TokenBucket(TokenBucket::new(count, period, burst).expect("a rule"))
}

fn leaky(count: i64, period: Micros, margin: Micros, capacity: Option<i64>) -> Algorithm {
    let rule = LeakyBucket::new(count, period, margin, capacity);
    Algorithm::LeakyBucket(rule.expect("a rule"))
}

fn sliding(count: i64, period: Micros) -> Algorithm {
    Algorithm::SlidingWindow(SlidingWindow::new(count, period, 0).expect("a rule"))
}

fn fixed(count: i64, period: Micros) -> Algorithm {
    Algorithm::FixedWindow(FixedWindow::new(count, period).expect("a rule"))
}

fn warm_up(count: i64, period: Micros) -> Algorithm {
    Algorithm::WarmUp(WarmUp::new(count, period, SECOND, 3.0).expect("a rule"))
}

#[rstest]
#[case::rate_and_burst(token(40, SECOND, 40), 2, token(20, SECOND, 20))]
#[case::a_fraction_of_a_permit(token(5, SECOND, 5), 2, token(5, 2 * SECOND, 2))]
#[case::one_a_period_at_least(token(5, SECOND, 2), 10, token(1, SECOND, 1))]
#[case::one_of_one_a_day(token(1, 86_400 * SECOND, 1), 3, token(1, 86_400 * SECOND, 1))]
#[case::spacing(leaky(10, SECOND, 0, None), 4, leaky(10, 4 * SECOND, 0, None))]
#[case::windows(sliding(100, 60 * SECOND), 3, sliding(33, 60 * SECOND))]
#[case::a_window_of_one(sliding(2, SECOND), 3, sliding(1, SECOND))]
#[case::fixed_windows(fixed(500, 60 * SECOND), 2, fixed(250, 60 * SECOND))]
#[case::warming_up(warm_up(10, SECOND), 2, warm_up(10, 2 * SECOND))]
fn a_share_is_the_rule_divided_by_the_number_of_gateways(
    #[case] whole: Algorithm,
    #[case] gateways: i64,
    #[case] share: Algorithm,
) {
    let period = match whole {
        Algorithm::TokenBucket(_) if whole.capacity() == 1 => 86_400 * SECOND,
        _ => SECOND,
    };
    assert_eq!(whole.share(gateways, period, 1), share);
}

#[test]
fn a_share_keeps_the_margin_and_the_longest_queue_time() {
    let whole = leaky(10, SECOND, 20_000, Some(5));
    let share = whole.share(4, SECOND, 1);
    let [share_facts, facts] = [share.facts(), whole.facts()];
    assert_eq!((share_facts.margin, share_facts.longest_wait), (20_000, facts.longest_wait));
    // 400 ms and the margin between two.
    let store = MemoryStore::default();
    let waits: Vec<_> = (0..2).map(|_| take(&store, share.facts().endless, 1, NOW)).collect();
    assert_eq!(waits, [0, 420_000]);
}

#[test]
fn a_share_is_never_too_small_for_a_request() {
    for whole in [token(10, SECOND, 10), sliding(10, SECOND), fixed(10, SECOND)] {
        assert_eq!(whole.share(5, SECOND, 7).capacity(), 7, "{whole:?}");
    }
}

fn rules() -> impl Strategy<Value = (Algorithm, Micros)> {
    let counted = (1..2000i64, prop_oneof![Just(SECOND), Just(60 * SECOND), 1000..SECOND]);
    (counted, 1..300i64, 0..5u8).prop_filter_map("a rule", |((count, period), burst, kind)| {
        let rule = match kind {
            0 => Algorithm::TokenBucket(TokenBucket::new(count, period, burst)?),
            1 => Algorithm::LeakyBucket(LeakyBucket::new(count, period, burst, None)?),
            2 => Algorithm::SlidingWindow(SlidingWindow::new(count, period, burst)?),
            3 => Algorithm::FixedWindow(FixedWindow::new(count, period)?),
            _ => Algorithm::WarmUp(WarmUp::new(count, period, SECOND, 3.0)?),
        };
        Some((rule, period))
    })
}

fn check(algorithm: Algorithm, cost: i64, enforce: bool) -> Check {
    Check { enforce, ..Check::new("k", algorithm).with_cost(cost) }
}

/// The instant of a grant of `cost` permits to a request that comes at `now` and has no bound on its wait.
fn take(store: &MemoryStore, rule: Algorithm, cost: i64, now: Micros) -> Micros {
    let checks = [check(rule, cost, true)].into();
    let entry = Entry::Reserve { checks, budget: MAX_BUDGET, ticket: None };
    match &store.run_at(now, &[entry])[..] {
        [Reply::Decision(decision)] if decision.admitted => decision.wait,
        said => panic!("{said:?}"),
    }
}

fn level(store: &MemoryStore, rule: Algorithm, now: Micros) -> Level {
    match &store.run_at(now, &[Entry::Look { check: check(rule, 1, true) }])[..] {
        [Reply::Level(level)] => *level,
        said => panic!("{said:?}"),
    }
}

/// A charge of 3 permits to a window that has room for 1 is counted in this window and not in the next one.
#[test]
fn a_charge_to_a_full_window_counts_in_that_window() {
    let (store, rule) = (MemoryStore::default(), fixed(5, SECOND));
    take(&store, rule, 4, NOW);
    assert_eq!(take(&store, rule.facts().spent, 3, NOW), 0);
    assert_eq!(level(&store, rule, NOW).remaining, 0);
    assert_eq!(level(&store, rule, NOW + SECOND).remaining, 5);
}

/// Beside 10/s and 60/3s the laxer is 60 in 3 s. A charge to the longer window leaves it so: it is no rule that allows more.
#[test]
fn a_charge_to_one_period_allows_no_more_in_another() {
    let (store, short, long) = (MemoryStore::default(), fixed(10, SECOND), fixed(60, 3 * SECOND));
    let start = NOW - NOW % (3 * SECOND);
    take(&store, short, 1, start);
    take(&store, long, 57, start);
    assert_eq!(take(&store, long.facts().spent, 2, start), 0);
    assert_eq!(take(&store, short, 1, start + SECOND), 2 * SECOND);
}

/// The last reply of the store was about a charge: the gateway that then decides alone begins with that
/// window.
#[test]
fn a_share_begins_at_the_level_of_the_charged_rule() {
    let (store, rule) = (MemoryStore::default(), fixed(30, SECOND));
    take(&store, rule, 10, NOW);
    take(&store, rule.facts().spent, 5, NOW);
    let share = rule.share(3, SECOND, 1);
    let said = [rule, rule.facts().spent]
        .map(|rule| share.begin(&fixed(30, SECOND), level(&store, rule, NOW)));
    assert_eq!(said, [vec![5], vec![5]]);
}

proptest! {
    #[test]
    fn a_lone_gateway_has_the_whole_rule((rule, period) in rules()) {
        prop_assert_eq!(rule.share(1, period, 1), rule);
    }

    /// All shares together grant no more permits by any instant than the whole rule. (A warm-up begins cold
    /// at each gateway, which is slower.)
    #[test]
    fn all_shares_together_are_no_more_than_the_whole(
        (rule, period) in rules(), gateways in 1..20i64, asked in 1..60i64,
    ) {
        // Below that each has one permit a period, and one at once.
        let one_each = token(gateways, period.max(gateways), 1);
        let interval = |rule: &Algorithm| match rule {
            Algorithm::TokenBucket(_) | Algorithm::LeakyBucket(_) => {
                let store = MemoryStore::default();
                take(&store, rule.facts().endless, rule.capacity(), NOW);
                let before = take(&store, rule.facts().endless, 1, NOW);
                take(&store, rule.facts().endless, 1, NOW) - before
            }
            _ => 0,
        };
        let is_limit = !matches!(rule, Algorithm::WarmUp(_));
        prop_assume!(is_limit && rule.capacity() >= gateways && interval(&rule) <= interval(&one_each));
        let (share, store) = (rule.share(gateways, period, 1), MemoryStore::default());
        let last = (0..asked).map(|_| take(&store, share.facts().endless, 1, NOW)).max().unwrap_or(0);
        let whole = MemoryStore::default();
        let all = (0..asked * gateways).map(|_| take(&whole, rule.facts().endless, 1, NOW));
        let end = all.max().unwrap_or(0);
        let margin = rule.facts().margin * (gateways - 1) * asked;
        // One at a time, but one of each gateway.
        let at_once = match rule {
            Algorithm::LeakyBucket(_) => interval(&rule) * (gateways - 1) + gateways,
            _ => 0,
        };
        prop_assert!(last + margin + at_once + 2 >= end, "{last} {end}");
    }

    /// The permits that were taken are owed, however many were taken before.
    #[test]
    fn every_taken_permit_is_owed(
        (rule, _) in rules(), before in 0..50i64, taken in 0..50i64, pause in 0..SECOND,
    ) {
        let flows = |rule: &Algorithm| {
            matches!(
                rule,
                Algorithm::TokenBucket(_) | Algorithm::LeakyBucket(_) | Algorithm::WarmUp(_)
            )
        };
        prop_assume!(flows(&rule));
        let store = MemoryStore::default();
        let rule = rule.facts().endless;
        (0..before).for_each(|_| _ = take(&store, rule, 1, NOW));
        let known = level(&store, rule, NOW);
        let later = NOW + pause;
        for _ in 0..taken {
            // 62 permits of 1/min reach further ahead than a request may wait.
            prop_assume!(level(&store, rule, later).next <= MAX_BUDGET);
            take(&store, rule, 1, later);
        }
        let owed = rule.owed(level(&store, rule, later), known.after(pause));
        match rule {
            Algorithm::WarmUp(_) => prop_assert!(owed + 1 >= taken, "{} of {}", owed, taken),
            _ => prop_assert!((taken..=taken + 1).contains(&(owed.max(taken))), "{} of {}", owed, taken),
        }
    }

    #[test]
    fn a_charge_within_a_window_counts_until_the_window_ends(
        (rule, period) in rules(), at in 0..10 * SECOND,
    ) {
        let (slot, end) = (rule.slot(NOW + at), rule.slot(NOW + at) + rule.counts_for());
        match rule {
            Algorithm::FixedWindow(_) => {
                prop_assert_eq!(slot / period, (NOW + at) / period);
                prop_assert_eq!(end, ((NOW + at) / period + 1) * period);
            }
            Algorithm::SlidingWindow(_) => prop_assert!(slot == NOW + at && end >= slot + period),
            _ => prop_assert_eq!((slot, end), (NOW + at, NOW + at)),
        }
    }

    /// A share that begins from a level is full again when the whole is.
    #[test]
    fn a_share_begins_at_the_level_of_the_whole_rule(
        (rule, period) in rules(), gateways in 1..8i64, used in 1..60i64,
    ) {
        let whole = MemoryStore::default();
        (0..used).for_each(|_| _ = take(&whole, rule.facts().endless, 1, NOW));
        let was = level(&whole, rule, NOW);
        let share = rule.share(gateways, period, 1);
        let own = MemoryStore::default();
        let since = NOW - share.since(was.reset_after);
        for permits in share.begin(&rule, was) {
            take(&own, share.facts().endless, permits, since);
        }
        let is = level(&own, share, NOW);
        match rule {
            // It is cold again, or nearly.
            Algorithm::WarmUp(_) => prop_assert!(is.next >= was.next - 2, "{:?} {:?}", is, was),
            _ => prop_assert!(is.reset_after + 4 >= was.reset_after, "{:?} {:?}", is, was),
        }
    }
}
