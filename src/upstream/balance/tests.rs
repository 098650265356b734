use super::*;
use rstest::rstest;
use std::collections::HashMap;

const SECOND: Duration = Duration::from_secs(1);

fn address(n: u16) -> Arc<Address> {
    Arc::new(Address::new(0, [SocketAddr::from(([127, 0, 0, 1], n))]))
}

fn group(count: u16) -> AddressSet {
    AddressSet::new((1..=count).map(address).collect())
}

fn port(picked: &PickedAddress) -> u16 {
    picked.address.sockets[0].port()
}

/// The port of the address that is picked for a request which ends at once.
fn next(group: &AddressSet, now: Instant) -> u16 {
    port(&group.pick(now, &[]).expect("an address"))
}

/// The ports of the addresses that the next requests are sent to.
fn ports(group: &AddressSet, now: Instant, count: usize) -> HashMap<u16, usize> {
    (0..count).fold(HashMap::new(), |mut seen, _| {
        *seen.entry(next(group, now)).or_default() += 1;
        seen
    })
}

/// A request to `port` that fails.
fn fail(
    group: &AddressSet,
    port: u16,
    fault: AddressFailure,
    now: Instant,
) -> Option<AddressChange> {
    let address = group.addresses.iter().find(|own| own.sockets[0].port() == port);
    let mut picked = PickedAddress::new(address.expect("an address"), false);
    group.failed(&mut picked, fault, now)
}

#[test]
fn equally_loaded_addresses_take_turns() {
    let (group, now) = (group(3), Instant::now());
    assert_eq!(ports(&group, now, 9), HashMap::from([(1, 3), (2, 3), (3, 3)]));
}

#[test]
fn the_least_loaded_address_is_chosen() {
    let (group, now) = (group(3), Instant::now());
    let mut held: Vec<_> = (0..3).filter_map(|_| group.pick(now, &[])).collect();
    let free = port(&held.remove(1));
    for _ in 0..5 {
        assert_eq!(next(&group, now), free);
    }
}

#[test]
fn no_address_is_tried_twice_for_a_request() {
    let (group, now) = (group(3), Instant::now());
    let mut tried = Vec::new();
    while let Some(picked) = group.pick(now, &tried) {
        tried.push(picked.address.clone());
    }
    let mut ports: Vec<_> = tried.iter().map(|address| address.sockets[0].port()).collect();
    ports.sort();
    assert_eq!(ports, [1, 2, 3]);
}

#[test]
fn a_failed_connect_ejects_an_address_at_once() {
    let (group, now) = (group(3), Instant::now());
    assert_eq!(
        fail(&group, 2, AddressFailure::Unreachable, now),
        Some(AddressChange::Ejected(SECOND))
    );
    assert_eq!(ports(&group, now, 10).get(&2), None);
}

#[test]
fn only_three_failures_in_a_row_eject_an_address() {
    let (group, now) = (group(2), Instant::now());
    let failed = || fail(&group, 1, AddressFailure::NoAnswer, now);
    assert_eq!((failed(), failed()), (None, None));
    let mut answered = PickedAddress::new(&group.addresses[0], false);
    assert_eq!(answered.succeeded(), None);
    assert_eq!((failed(), failed()), (None, None));
    assert_eq!(failed(), Some(AddressChange::Ejected(SECOND)));
}

#[test]
fn calls_sent_before_the_ejection_do_not_extend_it() {
    let (group, now) = (group(2), Instant::now());
    fail(&group, 1, AddressFailure::Unreachable, now);
    for _ in 0..5 {
        assert_eq!(fail(&group, 1, AddressFailure::Unreachable, now), None);
    }
    let mut trial = None;
    for _ in 0..2 {
        let picked = group.pick(now + SECOND, &[]).expect("an address");
        trial = if port(&picked) == 1 { Some(picked) } else { trial };
    }
    assert!(trial.is_some(), "it was out for one second");
}

#[test]
fn one_request_tries_an_ejected_address_again() {
    let (group, now) = (group(2), Instant::now());
    fail(&group, 1, AddressFailure::Unreachable, now);
    let early = now + SECOND - Duration::from_micros(1);
    assert_eq!(ports(&group, early, 5), HashMap::from([(2, 5)]));
    let later = now + SECOND;
    let mut trial = group.pick(later, &[]).expect("an address");
    if port(&trial) != 1 {
        trial = group.pick(later, &[]).expect("an address");
    }
    assert_eq!(port(&trial), 1);
    assert_eq!(ports(&group, later, 5), HashMap::from([(2, 5)]));
    assert_eq!(trial.succeeded(), Some(AddressChange::Returned));
    drop(trial);
    assert_eq!(ports(&group, later, 4), HashMap::from([(1, 2), (2, 2)]));
}

#[test]
fn a_dropped_trial_leaves_the_address_to_the_next_request() {
    let (group, now) = (group(2), Instant::now());
    fail(&group, 1, AddressFailure::Unreachable, now);
    let later = now + SECOND;
    for _ in 0..3 {
        let seen = ports(&group, later, 2);
        assert!(seen.contains_key(&1), "each is dropped at once: {seen:?}");
    }
}

#[test]
fn each_failed_trial_doubles_the_ejection_up_to_30_seconds() {
    let group = group(2);
    let mut now = Instant::now();
    fail(&group, 1, AddressFailure::Unreachable, now);
    let mut last = SECOND;
    for expected in [2, 4, 8, 16, 30, 30] {
        now += last;
        let mut trial = group.pick(now, &[]).expect("an address");
        while port(&trial) != 1 {
            trial = group.pick(now, &[]).expect("an address");
        }
        last = Duration::from_secs(expected);
        // A single failure of any kind is enough.
        assert_eq!(
            group.failed(&mut trial, AddressFailure::NoAnswer, now),
            Some(AddressChange::Ejected(last))
        );
    }
    now += last;
    let mut trial = group.pick(now, &[]).expect("an address");
    while port(&trial) != 1 {
        trial = group.pick(now, &[]).expect("an address");
    }
    assert_eq!(trial.succeeded(), Some(AddressChange::Returned));
    drop(trial);
    let again = fail(&group, 1, AddressFailure::Unreachable, now);
    assert_eq!(again, Some(AddressChange::Ejected(SECOND)), "the count begins again");
}

#[rstest]
#[case::unreachable(AddressFailure::Unreachable)]
#[case::no_answer(AddressFailure::NoAnswer)]
fn the_last_address_is_never_ejected(#[case] fault: AddressFailure) {
    let (group, now) = (group(2), Instant::now());
    fail(&group, 1, AddressFailure::Unreachable, now);
    for _ in 0..10 {
        assert_eq!(fail(&group, 2, fault, now), None);
    }
    assert_eq!(ports(&group, now, 5), HashMap::from([(2, 5)]));
}

#[test]
fn with_all_addresses_ejected_the_next_to_return_is_used() {
    let (all, now) = (group(3), Instant::now());
    fail(&all, 2, AddressFailure::Unreachable, now);
    fail(&all, 1, AddressFailure::Unreachable, now + SECOND / 2);
    // The one that worked is named no longer.
    let rest = AddressSet::new(all.addresses[..2].to_vec());
    assert_eq!(ports(&rest, now + SECOND / 2, 5), HashMap::from([(2, 5)]));
    let mut used = rest.pick(now + SECOND / 2, &[]).expect("an address");
    assert_eq!(used.succeeded(), Some(AddressChange::Returned), "an answer is an answer");
}

#[test]
fn a_request_tries_ejected_addresses_after_all_working_ones() {
    let (group, now) = (group(2), Instant::now());
    fail(&group, 1, AddressFailure::Unreachable, now);
    let first = group.pick(now, &[]).expect("an address");
    assert_eq!(port(&first), 2);
    let second = group.pick(now, std::slice::from_ref(&first.address)).expect("another");
    assert_eq!(port(&second), 1);
}

#[test]
fn an_address_is_dead_after_a_whole_connect_timeout() {
    let (address, start) = (address(1), Instant::now());
    let (limit, second) = (2 * SECOND, SECOND);
    address.note_unreached(start, start);
    assert!(!address.is_dead(start + second, limit), "it may restart");
    address.note_unreached(start + limit, start + limit);
    assert!(address.is_dead(start + limit, limit));
    assert!(!address.is_dead(start + limit + 31 * second, limit), "long without an attempt");
    address.note_connected(start + 3 * second);
    assert!(!address.is_dead(start + 3 * second, limit));
    // The attempt began before the one that succeeded.
    address.note_unreached(start + second, start + 4 * second);
    assert!(!address.is_dead(start + 4 * second, limit));
}

#[test]
fn one_connect_to_a_dead_address_outlasts_its_request() {
    let address = address(1);
    let probe = address.probe();
    assert!(probe.is_some() && address.probe().is_none());
    drop(probe);
    assert!(address.probe().is_some());
}
