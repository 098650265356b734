//! The first law across a loss of states: the forgotten grants of before it and the grants after it obey the rule together.
//! On the memory store; `twins` shows that the script decides the same.

use paceway::{
    algorithm::{
        Algorithm, CalendarWindow, Concurrency, FixedWindow, Grant, LeakyBucket, Rule,
        SlidingWindow, TokenBucket, WarmUp, concurrency::Ticket,
    },
    store::{Check, Entry, Reply, memory::MemoryStore},
};
use proptest::prelude::*;
use rstest::rstest;
use std::sync::Arc;

const T0: i64 = 1_700_000_000_000_000;
/// The longest wait of a request, µs. No limiter promises a permit further ahead.
const WAIT: i64 = 800_000;
const COST: i64 = 3;
const HOUR: i64 = 3_600_000_000;

#[derive(Debug, Clone)]
enum What {
    Ask { cost: i64, budget: i64 },
    GiveBack(usize),
}

#[derive(Debug, Clone)]
struct Step {
    after: i64,
    what: What,
}

/// A grant whose permits count, because it was not refunded.
#[derive(Debug, Clone, Copy)]
struct Granted {
    at: i64,
    cost: i64,
    grant: Grant,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let after = prop_oneof![3 => Just(0), 3 => 0..20_000i64, 1 => 0..700_000i64];
    let what = prop_oneof![
        6 => (1..=COST, prop_oneof![Just(0), Just(WAIT), 0..WAIT])
            .prop_map(|(cost, budget)| What::Ask { cost, budget }),
        1 => (0..6usize).prop_map(What::GiveBack),
    ];
    prop::collection::vec((after, what).prop_map(|(after, what)| Step { after, what }), 1..80)
}

/// Runs two histories with a loss between them; what was granted and not given back, by instant.
fn granted(algorithm: Algorithm, before: Vec<Step>, behind: Vec<Step>, gap: i64) -> Vec<Granted> {
    let store = MemoryStore::default();
    let horizon = algorithm.horizon(WAIT, COST);
    let check = |cost: i64| {
        let cost = cost.min(algorithm.capacity());
        Check::new("{k}", algorithm).with_cost(cost).with_horizon(horizon)
    };
    let (mut now, mut all) = (T0, Vec::<Granted>::new());
    let mut run = |now: &mut i64, steps: Vec<Step>| {
        for Step { after, what } in steps {
            *now += after;
            match what {
                What::Ask { cost, budget } => {
                    let check = check(cost);
                    let cost = check.cost;
                    let ask = Entry::Reserve { checks: Arc::new([check]), budget, ticket: None };
                    let replies = store.run_at(*now, &[ask]);
                    let [Reply::Decision(decision)] = &replies[..] else { panic!("{replies:?}") };
                    if decision.admitted {
                        let at = *now + decision.wait;
                        all.push(Granted { at, cost, grant: decision.parts[0].grant });
                    }
                }
                What::GiveBack(i) if i < all.len() => {
                    let i = all.len() - 1 - i;
                    // A call that was sent is not refunded.
                    if all[i].at <= *now {
                        continue;
                    }
                    let Granted { cost, grant, .. } = all[i];
                    let gift = Entry::Refund { check: check(cost), grant };
                    if store.run_at(*now, &[gift]) == [Reply::Done(true)] {
                        all.remove(i);
                    }
                }
                What::GiveBack(_) => {}
            }
        }
    };
    run(&mut now, before);
    now += gap;
    store.lose(now);
    run(&mut now, behind);
    all.sort_by_key(|granted| granted.at);
    all
}

fn in_any(
    all: &[Granted],
    mut holds: impl FnMut(i64, i64, i64) -> bool,
) -> Result<(), TestCaseError> {
    for (i, first) in all.iter().enumerate() {
        let mut permits = 0;
        for last in &all[i..] {
            permits += last.cost;
            prop_assert!(
                holds(permits, last.at - first.at, last.cost),
                "{first:?} to {last:?} in {all:?}"
            );
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn a_token_bucket_grants_no_second_burst(
        (count, period, burst) in (1..40i64, 1_000..3_000_000i64, 3..9i64),
        before in steps(), behind in steps(), gap in 1..2_000_000i64,
    ) {
        let rule = TokenBucket::new(count, period.max(count), burst).expect("a rule");
        let period = period.max(count);
        let all = granted(Algorithm::TokenBucket(rule), before, behind, gap);
        // In each half-open interval of whole µs.
        in_any(&all, |permits, span, _| (permits - burst) * period <= (span + 1) * count)?;
    }

    #[test]
    fn a_sliding_window_stays_full_for_its_period(
        (count, period) in (3..9i64, 1_000..3_000_000i64),
        before in steps(), behind in steps(), gap in 1..2_000_000i64,
    ) {
        let rule = SlidingWindow::new(count, period, 0).expect("a rule");
        let all = granted(Algorithm::SlidingWindow(rule), before, behind, gap);
        in_any(&all, |permits, span, _| span >= period || permits <= count)?;
    }

    #[test]
    fn a_fixed_window_that_has_begun_stays_full(
        (count, period) in (3..9i64, 1_000..3_000_000i64),
        before in steps(), behind in steps(), gap in 1..2_000_000i64,
    ) {
        let rule = FixedWindow::new(count, period).expect("a rule");
        let mut windows = std::collections::BTreeMap::<i64, i64>::new();
        for Granted { at, cost, .. } in granted(Algorithm::FixedWindow(rule), before, behind, gap) {
            *windows.entry(at / period).or_default() += cost;
        }
        prop_assert!(windows.values().all(|permits| *permits <= count), "{windows:?}");
    }

    #[test]
    fn a_window_of_a_calendar_that_has_begun_stays_full(
        (count, period, is_even) in (3..9i64, 100_000..3_000_000i64, any::<bool>()),
        before in steps(), behind in steps(), gap in 1..2_000_000i64,
    ) {
        let rule = CalendarWindow::new(count, [period, 2 * period, 3 * period]).expect("a rule");
        let rule = if is_even { rule.even() } else { rule };
        let mut windows = std::collections::BTreeMap::<i64, i64>::new();
        for Granted { at, cost, .. } in granted(rule.into(), before, behind, gap) {
            *windows.entry(at / period).or_default() += cost;
        }
        prop_assert!(windows.values().all(|permits| *permits <= count), "{windows:?}");
    }

    #[test]
    fn a_leaky_bucket_keeps_its_pace_after_a_loss(
        (count, period, margin) in (3..40i64, 1_000..3_000_000i64, 0..20_000i64),
        before in steps(), behind in steps(), gap in 1..2_000_000i64,
    ) {
        let rule = LeakyBucket::new(count, period, margin, None).expect("a rule");
        let all = granted(Algorithm::LeakyBucket(rule), before, behind, gap);
        // The last one is paid after it.
        let apart = |permits, span, cost| (permits - cost) * (period + count * margin) <= (span + 1) * count;
        in_any(&all, apart)?;
    }

    #[test]
    fn a_warm_up_is_never_faster_than_its_rate_after_a_loss(
        (count, period, warm_up) in (3..40i64, 1_000..3_000_000i64, 1_000..2_000_000i64),
        before in steps(), behind in steps(), gap in 1..2_000_000i64,
    ) {
        let rule = WarmUp::new(count, period, warm_up, 3.0).expect("a rule");
        let all = granted(Algorithm::WarmUp(rule), before, behind, gap);
        in_any(&all, |permits, span, cost| (permits - cost) * period <= (span + 1) * count)?;
    }
}

#[rstest]
#[case::token_bucket(Algorithm::TokenBucket(TokenBucket::new(3, HOUR, 3).expect("a rule")))]
#[case::leaky_bucket(Algorithm::LeakyBucket(LeakyBucket::new(3, HOUR, 0, None).expect("a rule")))]
#[case::sliding_window(Algorithm::SlidingWindow(SlidingWindow::new(3, HOUR, 0).expect("a rule")))]
#[case::fixed_window(Algorithm::FixedWindow(FixedWindow::new(3, HOUR).expect("a rule")))]
#[case::calendar_window(CalendarWindow::new(3, [T0, T0 + HOUR, T0 + 2 * HOUR]).expect("a rule").into())]
#[case::warm_up(Algorithm::WarmUp(WarmUp::new(3, HOUR, 1_000, 3.0).expect("a rule")))]
fn a_limiter_reset_after_a_loss_is_open_at_once(#[case] algorithm: Algorithm) {
    let store = MemoryStore::default();
    let horizon = algorithm.horizon(WAIT, COST);
    let check = Check::new("{k}", algorithm).with_horizon(horizon);
    let ask = |now| {
        let ask = Entry::Reserve { checks: Arc::new([check.clone()]), budget: 0, ticket: None };
        let replies = store.run_at(now, &[ask]);
        matches!(&replies[..], [Reply::Decision(decision)] if decision.admitted)
    };
    assert!(ask(T0));
    store.lose(T0 + 1);
    assert!(!ask(T0 + 2));
    let reset = Entry::Forget { check: check.clone() };
    assert_eq!(store.run_at(T0 + 3, &[reset]), [Reply::Done(true)]);
    assert!(ask(T0 + 4));
}

const LEASE: i64 = 60_000_000;

fn permit() -> Check {
    let algorithm = Rule::from(Concurrency::new(2, LEASE).expect("a rule"));
    let horizon = algorithm.horizon(WAIT, 1);
    Check::new("{k}", algorithm).with_horizon(horizon)
}

fn take(store: &MemoryStore, now: i64, number: i64) -> Option<Grant> {
    let ticket = Some(Ticket { gateway: 1, number, deadline: 0 });
    let ask = Entry::Reserve { checks: Arc::new([permit()]), budget: 0, ticket };
    let replies = store.run_at(now, &[ask]);
    let [Reply::Decision(decision)] = &replies[..] else { panic!("{replies:?}") };
    decision.parts.first().map(|part| part.grant)
}

#[test]
fn permits_are_granted_again_after_all_forgotten_leases_end() {
    let store = MemoryStore::default();
    let held = take(&store, T0, 1).expect("a permit");
    take(&store, T0, 2).expect("a permit");
    store.run_at(T0, &[Entry::Forget { check: permit() }]);
    store.lose(T0 + 1);
    // The state is gone, and one of the two lives on.
    let renew = Entry::Renew { check: permit(), grant: held };
    assert_eq!(store.run_at(T0 + LEASE / 3, std::slice::from_ref(&renew)), [Reply::Done(true)]);
    assert_eq!(take(&store, T0 + LEASE, 3), None, "the other may, too");
    let look = Entry::Look { check: permit() };
    let Reply::Level(level) = &store.run_at(T0 + LEASE, &[look])[0] else { panic!("no level") };
    assert_eq!((level.remaining, level.next), (0, 1));
    assert!(take(&store, T0 + LEASE + 1, 4).is_some());
    assert_eq!(take(&store, T0 + LEASE + 1, 5), None, "one is held by the first");
    // As always, what has expired is not held again.
    let late = T0 + 4 * LEASE;
    assert_eq!(store.run_at(late, &[renew]), [Reply::Done(false)]);
}
