//! States that are put, found, packed and swept.

use super::*;
use crate::algorithm::{OpenRate, SlidingWindow, TokenBucket};

const RULE: Rule = Rule::Rate(Algorithm::TokenBucket(TokenBucket::ONE_A_SECOND));

fn state(now: Micros) -> (RuleState, Micros) {
    let mut open = RULE.open(None, None, now);
    let rate = open.rate_mut().expect("a rate");
    let (_, start) = rate.earliest(0, 1, 0);
    rate.take(start, 1);
    open.close().expect("a state")
}

fn put(shard: &mut Shard, number: u64, now: Micros) {
    let (print, (state, ttl)) = (print(number), state(now));
    shard.put(print, shard.find(print), state, now + ttl);
    shard.sweep(now);
}

fn print(number: u64) -> Print {
    Print([number, number.wrapping_mul(0x9e37_79b9_7f4a_7c15)])
}

#[test]
fn a_state_and_its_lookup_data_fill_one_cache_line_each() {
    assert_eq!(size_of::<StoredState>(), 64);
    // A lock takes the first eight bytes.
    assert!(8 + std::mem::offset_of!(Shard, sweep) <= 64);
}

#[test]
fn two_keys_with_one_hash_are_two_states() {
    let (mut shard, one, other) = (Shard::default(), Print([1, 7]), Print([2, 7]));
    let (state, ttl) = state(0);
    shard.put(one, None, state.clone(), ttl);
    assert!(shard.find(other).is_none() && !shard.remove(other));
    shard.put(other, shard.find(one), state, ttl);
    assert!(shard.len() == 2 && shard.remove(one) && shard.find(other).is_some());
}

fn window() -> (Rule, RuleState, Micros) {
    let rule = SlidingWindow::new(3, 1_000_000, 0).expect("a rule");
    let rule = Rule::from(rule);
    let mut open = rule.open(None, None, 0);
    let rate = open.rate_mut().expect("a rate");
    let (_, start) = rate.earliest(0, 2, 0);
    rate.take(start, 2);
    let (state, ttl) = open.close().expect("a state");
    (rule, state, ttl)
}

/// The instants of a window are outside the table while it is open, and its request may open other states meanwhile.
#[test]
fn an_open_window_finds_its_moved_state_again() {
    let ((rule, state, ttl), mut shard) = (window(), Shard::default());
    shard.put(print(0), None, state, ttl);
    let place = shard.find(print(0)).expect("a state");
    let first = shard.open(place, &rule, None, 0).expect("a state");
    let level = first.level();
    shard.put_back(print(0), place, first);
    for number in 1..100 {
        let place = shard.find(print(0)).expect("a state");
        let open = shard.open(place, &rule, None, 0).expect("a state");
        put(&mut shard, number, 0);
        shard.put_back(print(0), place, open);
        let place = shard.find(print(0)).expect("a state");
        let open = shard.open(place, &rule, None, 0).expect("a state");
        assert_eq!(open.level(), level);
        shard.put_back(print(0), place, open);
    }
}

#[test]
fn an_aside_is_removed_with_its_state() {
    let ((_, state, ttl), mut shard) = (window(), Shard::default());
    for _ in 0..2 {
        (0..10).for_each(|number| shard.put(print(number), None, state.clone(), ttl));
        assert_eq!((shard.len(), shard.asides.len()), (10, 10));
    }
    assert!(shard.remove(print(0)) && !shard.remove(print(0)));
    put(&mut shard, 1, 0);
    assert_eq!((shard.len(), shard.asides.len()), (9, 8));
    (0..1_000).for_each(|_| shard.make_room(GRACE + 2_000_000));
    assert_eq!((shard.len(), shard.asides.len()), (0, 0));
}

/// 40,000 states are on huge pages.
#[test]
fn finds_a_state_among_many() {
    const MANY: u64 = 40_000;
    let mut shard = Shard::default();
    (0..MANY).for_each(|number| put(&mut shard, number, 0));
    assert_eq!(shard.len(), MANY as usize);
    assert!((0..MANY).all(|number| shard.find(print(number)).is_some()));
    assert!((0..MANY).all(|number| shard.remove(print(number))));
    assert!(shard.len() == 0 && shard.find(print(0)).is_none());
}

/// A token bucket with holes survives packing, whatever its pace.
#[test]
fn packing_preserves_a_token_bucket() {
    let mut shard = Shard::default();
    for count in 1..=MOST_PACES as i64 + 10 {
        let rule = TokenBucket::new(count, 10_000_000, 20).expect("a rule");
        let rule = Rule::from(rule);
        let mut open = rule.open(None, None, 5);
        let rate = open.rate_mut().expect("a rate");
        let mut grants = Vec::new();
        for _ in 0..40 {
            let (_, start) = rate.earliest(0, 1, 0);
            grants.push(rate.take(start, 1));
        }
        assert!(rate.refund(grants[30], 1), "a hole");
        let (mut state, ttl) = open.close().expect("a state");
        let expected = rule.open(None, Some(&mut state), 1000);
        shard.put(print(count as u64), None, state, 5 + ttl);
        for _ in 0..2 {
            let place = shard.find(print(count as u64)).expect("a state");
            assert_eq!(shard.open(place, &rule, None, 1000), Some(expected.clone()));
        }
    }
    assert_eq!(shard.paces.len(), MOST_PACES);
}

/// 20,000 clients come once each. New states make outdated ones leave.
#[test]
fn new_states_replace_outdated_ones() {
    let (mut shard, mut most) = (Shard::default(), 0);
    for number in 0..20_000 {
        put(&mut shard, number, number as Micros * 100_000);
        most = most.max(shard.len());
    }
    assert!((60..1_000).contains(&most), "{most}");
}

/// The table is full, and no new key gets a state.
#[test]
fn outdated_states_are_removed_while_there_is_no_room() {
    let mut shard = Shard::default();
    (0..1_000).for_each(|number| put(&mut shard, number, 0));
    let later = GRACE + 2_000_000;
    (0..16).for_each(|_| shard.make_room(later));
    assert!(shard.len() < 1_000, "sixteen newcomers look at 64 places");
    (0..1_000).for_each(|_| shard.make_room(later));
    assert_eq!(shard.len(), 0);
}

/// No new key comes, but one state changes often.
#[test]
fn outdated_states_are_removed_while_one_is_changed() {
    let mut shard = Shard::default();
    (0..1_000).for_each(|number| put(&mut shard, number, 0));
    assert_eq!(shard.len(), 1_000);
    (0..200_000).for_each(|step| put(&mut shard, 0, GRACE + 2_000_000 + step));
    assert_eq!(shard.len(), 1);
}
