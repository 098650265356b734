use super::*;
use crate::{
    plan::Plan,
    store::{Store, memory::MemoryStore},
};
use std::path::Path;

/// A plan with the accounts `a`, `b` and `c` of one upstream.
fn plan() -> Plan {
    let text = "upstreams: { api: { url: http://api, accounts: [{ name: a, after: 2s }, { name: b }, { name: c }] } }\n\
                limiters: { own: { rate: 1/s, key: '{account}' } }\nroutes: [{ suffix: '*', limiters: [own] }]";
    let config = Config::parse(text, "test", Path::new("."), &|_| None).expect("a config");
    Plan::new(config, false)
}

fn accounts(plan: &Plan) -> &RouteAccounts {
    plan.policies[0].accounts.as_ref().expect("accounts")
}

/// Learns that an account is parked, as from a message of the store.
fn learn(store: &dyn Store, plan: &Plan, account: usize, seconds: i64) {
    let park = &accounts(plan).plan.all[account].parks[0];
    store.pauses().learn(&park.key, seconds * 1_000_000, 401);
}

fn is_closed(open: &OpenAccounts) -> [bool; 3] {
    [0, 1, 2].map(|account| open.closed.has(account))
}

/// No event has told of it, or the plan is newer than the event.
#[tokio::test]
async fn a_pause_closes_an_account_that_no_event_has_closed() {
    let (plan, store) = (plan(), Arc::new(MemoryStore::default()) as Arc<dyn Store>);
    let own = accounts(&plan);
    for account in [1, 2] {
        store.pauses().learn("another state", 60_000_000, 429);
        own.closed(&store, AccountSet::default()).await.expect("an open account");
        learn(&*store, &plan, account, 60);
        let open = own.closed(&store, AccountSet::default()).await.expect("an open account");
        assert!(open.closed.has(account), "{open:?}");
        assert_eq!(own.first(open.closed), Some(if account == 1 { 2 } else { 0 }));
    }
    let newer = self::plan();
    let open =
        accounts(&newer).closed(&store, AccountSet::default()).await.expect("an open account");
    assert_eq!(is_closed(&open), [false, true, true]);
}

#[tokio::test]
async fn the_first_end_counts_when_all_are_parked() {
    let (plan, store) = (plan(), Arc::new(MemoryStore::default()) as Arc<dyn Store>);
    for (account, seconds) in [(0, 90), (1, 30)] {
        learn(&*store, &plan, account, seconds);
    }
    let all = accounts(&plan).plan.all_parked(&*store);
    assert!(all.is_tried, "one is open");
    learn(&*store, &plan, 2, 60);
    let all =
        accounts(&plan).closed(&store, AccountSet::default()).await.expect_err("all are parked");
    assert!(!all.is_tried && (29..=30).contains(&all.left.as_secs()), "{all:?}");
}

#[tokio::test]
async fn an_unreachable_account_is_used_when_it_is_the_last_one() {
    let (plan, store) = (plan(), Arc::new(MemoryStore::default()) as Arc<dyn Store>);
    let own = accounts(&plan);
    own.plan.lose(1);
    let open = own.closed(&store, AccountSet::default()).await.expect("an open account");
    assert_eq!(is_closed(&open), [false, true, false]);
    learn(&*store, &plan, 0, 60);
    learn(&*store, &plan, 2, 60);
    let open = own.closed(&store, AccountSet::default()).await.expect("an open account");
    assert_eq!(is_closed(&open), [true, false, true]);
}
