//! Permits that are synced by what changed, against permits that are synced by everything.

use super::*;
use proptest::prelude::*;

const LEASE: Micros = 1000;
const MAX: i64 = 6;

#[derive(Debug, Clone)]
enum Step {
    /// The store reports a permit of this process, and how long its lease lasts yet; below 0, how long ago it ended.
    Report(i64, Micros),
    /// The store has a permit no more.
    Refund(i64),
    /// A request of this gateway takes a permit.
    Take(i64),
    /// The call of a permit ends; `closing` as in [`Permits::leave`].
    Leave(i64, bool),
    Renew(i64),
    /// The permits are charged to the store.
    Charge,
    Pass(Micros),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let number = 0..5i64;
    let step = prop_oneof![
        (number.clone(), -200..LEASE).prop_map(|(number, left)| Step::Report(number, left)),
        number.clone().prop_map(Step::Refund),
        (10..14i64).prop_map(Step::Take),
        (number.clone(), any::<bool>()).prop_map(|(number, closing)| Step::Leave(number, closing)),
        (10..14i64, any::<bool>()).prop_map(|(number, closing)| Step::Leave(number, closing)),
        number.prop_map(Step::Renew),
        Just(Step::Charge),
        (0..LEASE).prop_map(Step::Pass),
    ];
    proptest::collection::vec(step, 0..60)
}

fn holder(number: i64) -> Holder {
    // Tickets from 10 on asked this gateway and not the store.
    match number {
        ..10 => holder_of(number),
        _ => crate::store::calls::here(Ticket { gateway: 1, number, deadline: 0 }).holder(),
    }
}

proptest! {
    #![proptest_config(crate::algorithm::tests::cases(512))]

    #[test]
    fn only_changed_permits_matter(steps in steps()) {
        let rule = Concurrency::new(MAX, LEASE).expect("a rule");
        let (mut now, mut reported) = (1_000_000, BTreeMap::<Holder, Micros>::new());
        let mut both = [Permits::default(), Permits::default()];
        let mut changed = BTreeSet::new();
        for step in steps {
            for permits in &mut both {
                match step {
                    Step::Take(number) if !permits.held.contains_key(&holder(number)) => {
                        permits.take(&rule, Ticket::of_holder(holder(number)), now);
                    }
                    Step::Leave(number, closing) => {
                        permits.leave(Ticket::of_holder(holder(number)), closing, now);
                    }
                    Step::Renew(number) => drop(permits.renew(Ticket::of_holder(holder(number)), LEASE, now)),
                    Step::Charge => drop(permits.due(now + LEASE)),
                    _ => {}
                }
            }
            match step {
                Step::Report(number, left) => {
                    reported.insert(holder(number), now + left);
                    changed.insert(holder(number));
                }
                Step::Refund(number) => {
                    reported.remove(&holder(number));
                    changed.insert(holder(number));
                }
                Step::Pass(span) => now += span,
                _ => {}
            }
            let report = |id: Holder| (id, reported.get(&id).map(|until| until - now));
            let [by_all, by_changes] = &mut both;
            let all = reported.keys().chain(by_all.held.keys()).chain(by_all.idle.keys());
            let all: BTreeSet<Holder> = all.copied().collect();
            let expected = by_all.sync(all.into_iter().map(report), 0, now);
            changed.extend(by_changes.to_recheck(now));
            let synced = by_changes.sync(std::mem::take(&mut changed).into_iter().map(report), 0, now);
            prop_assert_eq!(synced, expected);
            let rules = both.each_ref().map(|permits| permits.rule(&rule, 2, now - 1));
            prop_assert_eq!(rules[0], rules[1]);
            for permits in &both {
                let lengths = (permits.held.len() + permits.idle.len(), permits.ends.len());
                prop_assert_eq!(lengths.0, lengths.1);
                prop_assert!(permits.usable.len() <= permits.idle.len());
            }
        }
    }
}

/// With 10,000 calls under way, each decision during an outage looked at all of them.
#[test]
fn only_few_permits_are_examined_again() {
    let mut permits = Permits::default();
    let reports = (0..10_000).map(|number| (holder_of(number), Some(LEASE + number)));
    permits.sync(reports, 0, 0);
    assert_eq!(permits.to_recheck(LEASE - 1).count(), 0);
    assert_eq!(permits.to_recheck(LEASE + 2).count(), 3);
    permits.leave(Ticket::of_holder(holder_of(9_000)), false, 0);
    assert_eq!(permits.to_recheck(0).collect::<Vec<_>>(), [holder_of(9_000)]);
}

fn holder_of(number: i64) -> Holder {
    Holder { gateway: 1, number }
}
