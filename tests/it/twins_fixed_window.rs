//! The twins of `fixed_window`, step by step on random sequences, on one virtual clock that also runs back.

use crate::support::{Redis, Said, connected_store};
use paceway::{
    algorithm::{FixedWindow, Grant, MAX_HOLES, Rule},
    store::{
        Check, Checks, Entry, Reply, StoreError,
        memory::MemoryStore,
        redis::{RedisStore, RedisUrl},
    },
};
use proptest::{prelude::*, test_runner::TestRunner};
use rstest::rstest;
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

const T0: i64 = 1_700_000_000_000_000;
const HOUR: i64 = 3_600_000_000;

#[derive(Debug, Clone)]
struct Step {
    after: i64,
    /// Which rule it was configured with: gateways before and after an edit take turns.
    rule: usize,
    what: What,
}

#[derive(Debug, Clone)]
enum What {
    /// Keys used (at least one of three), which of them observe, cost, budget.
    Decide {
        used: [bool; 3],
        observe: [bool; 3],
        cost: i64,
        budget: i64,
    },
    /// Which of the last grants is refunded, and whether by the gateway that got it or by one with the step's rule.
    GiveBack(usize, bool),
    Look(usize),
}

fn rule() -> impl Strategy<Value = Rule> {
    let periods = prop_oneof![
        Just(1_000),
        Just(250_000),
        Just(1_000_000),
        Just(1_234_567),
        Just(60_000_000),
        Just(86_400_000_000),
        Just(31_622_400_000_000),
        1_000..5_000_000i64,
    ];
    let counts = prop_oneof![4 => 3..9i64, 1 => 9..1_000i64, 1 => Just(1_000_000_000)];
    (counts, periods).prop_map(|(count, period)| fixed_window(count, period))
}

fn fixed_window(count: i64, period: i64) -> Rule {
    Rule::from(FixedWindow::new(count, period).expect("a rule"))
}

fn step() -> impl Strategy<Value = Step> {
    let spans = prop_oneof![
        3 => Just(0),
        2 => 0..1_000i64,
        4 => 0..2_000_000i64,
        1 => 0..90_000_000i64,
        1 => 0..90_000_000_000i64,
        1 => -3_000_000..0i64,
    ];
    let budgets = prop_oneof![Just(0), 0..5_000_000i64, 0..90_000_000_000i64];
    let decide = (any::<[bool; 3]>(), any::<[bool; 3]>(), 1..4i64, budgets);
    let what = prop_oneof![
        8 => decide.prop_map(|(used, observe, cost, budget)| What::Decide { used, observe, cost, budget }),
        3 => (0..5usize, any::<bool>()).prop_map(|(i, own)| What::GiveBack(i, own)),
        1 => (0..3usize).prop_map(What::Look),
    ];
    // Mostly one rule, sometimes another.
    let rules = prop_oneof![4 => Just(0), 2 => Just(1), 1 => 2..6usize];
    (spans, rules, what).prop_map(|(after, rule, what)| Step { after, rule, what })
}

#[test]
fn memory_and_redis_agree_step_by_step() {
    let redis = Redis::start();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let store = runtime.block_on(connect(&redis));
    let case = AtomicU64::new(0);
    let mut runner = TestRunner::new(ProptestConfig::default());
    let strategy = (prop::collection::vec(rule(), 6), prop::collection::vec(step(), 1..80));
    let result = runner.run(&strategy, |(rules, steps)| {
        let case = case.fetch_add(1, Relaxed);
        runtime.block_on(compare(&store, case, &rules, steps))
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}

async fn connect(redis: &Redis) -> RedisStore {
    let url = RedisUrl::parse(&redis.url()).expect("a URL");
    connected_store(&url).await
}

async fn compare(
    redis: &RedisStore,
    case: u64,
    rules: &[Rule],
    steps: Vec<Step>,
) -> Result<(), TestCaseError> {
    let memory = MemoryStore::default();
    let keys: [Arc<str>; 3] = [0, 1, 2].map(|i| format!("windows:{{{case}}}:{i}").into());
    let check = |i: usize, rule: usize, cost: i64, enforce: bool| {
        let algorithm = rules[(i + rule) % rules.len()];
        Check { enforce, ..Check::new(keys[i].clone(), algorithm).with_cost(cost) }
    };
    let (mut now, mut granted) = (T0, Vec::<(Check, Grant)>::new());
    let mut batch = Vec::new();
    for Step { after, rule, what } in steps {
        let entry = match what {
            What::Decide { used, observe, cost, budget } => {
                let used = (0..3).filter(|i| used[*i] || used == [false; 3]);
                let checks: Checks = used.map(|i| check(i, rule, cost, !observe[i])).collect();
                Entry::Reserve { checks, budget, ticket: None }
            }
            What::GiveBack(i, own) if i < granted.len() => {
                let (mut check, grant) = granted.swap_remove(granted.len() - 1 - i);
                if !own {
                    check.algorithm = rules[rule];
                }
                Entry::Refund { check, grant }
            }
            What::GiveBack(..) => continue,
            What::Look(i) => Entry::Look { check: check(i, rule, 1, true) },
        };
        // Steps without time between them go in one call, as group commit sends them.
        if after != 0 || batch.len() >= 4 {
            run(redis, &memory, now, &mut batch, &mut granted).await?;
        }
        now += after;
        batch.push(entry);
    }
    run(redis, &memory, now, &mut batch, &mut granted).await?;
    let looks = (0..3).flat_map(|i| (0..6).map(move |rule| (i, rule)));
    batch.extend(looks.map(|(i, rule)| Entry::Look { check: check(i, rule, 1, true) }));
    run(redis, &memory, now, &mut batch, &mut granted).await
}

async fn run(
    redis: &RedisStore,
    memory: &MemoryStore,
    now: i64,
    batch: &mut Vec<Entry>,
    granted: &mut Vec<(Check, Grant)>,
) -> Result<(), TestCaseError> {
    if batch.is_empty() {
        return Ok(());
    }
    let expected = memory.run_at(now, batch);
    let replies = redis.run_at(Some(now), batch).await;
    prop_assert_eq!(replies.as_ref(), Ok(&expected), "{:?}", batch);
    for (entry, reply) in batch.drain(..).zip(expected) {
        let (Entry::Reserve { checks, .. }, Reply::Decision(decision)) = (entry, reply) else {
            continue;
        };
        let given = checks.iter().zip(decision.parts).filter(|(_, part)| part.at >= 0);
        granted.extend(given.map(|(check, part)| (check.clone(), part.grant)));
    }
    Ok(())
}

fn single(key: &str, algorithm: Rule, cost: i64) -> Check {
    Check::new(key, algorithm).with_cost(cost)
}

/// Longer than any state of the random steps: runs up to their bound and above it, then other periods.
#[tokio::test]
async fn memory_and_redis_agree_on_a_state_at_its_bound() {
    let redis = Redis::start();
    let (store, memory) = (connect(&redis).await, MemoryStore::default());
    let (slow, fast) = ("{bound}:slow", "{bound}:fast");
    let mut entries = Vec::new();
    for i in 0..MAX_HOLES as i64 + 300 {
        // The slow one makes the fast one wait, which leaves gaps of differing lengths.
        let slow = single(slow, fixed_window(1, 2_000 + i % 3 * 500), 1);
        let fast = single(fast, fixed_window(9, 1_000), 1 + i % 4);
        entries.push(Entry::Reserve { checks: Arc::new([slow, fast]), budget: HOUR, ticket: None });
    }
    for period in [1_001, 1_700, 90_000, 86_400_000] {
        let check = single(fast, fixed_window(9, period), 1);
        entries.push(Entry::Look { check: check.clone() });
        entries.push(Entry::Reserve { checks: Arc::new([check]), budget: HOUR, ticket: None });
    }
    let mut grants = Vec::new();
    for batch in entries.chunks(32) {
        run(&store, &memory, T0, &mut batch.to_vec(), &mut grants).await.expect("the same");
    }
    assert!(redis.bytes(fast).len() > RUN * MAX_HOLES, "not at its bound");
    grants.retain(|(check, _)| &*check.key == fast);
    let gifts: Vec<_> =
        grants.drain(..).step_by(7).map(|(check, grant)| Entry::Refund { check, grant }).collect();
    for batch in gifts.chunks(32) {
        run(&store, &memory, T0 + 1, &mut batch.to_vec(), &mut grants).await.expect("the same");
    }
}

/// A queue of more windows than are converted one by one.
#[tokio::test]
async fn memory_and_redis_agree_on_a_very_long_queue_under_another_period() {
    let redis = Redis::start();
    let (store, memory) = (connect(&redis).await, MemoryStore::default());
    let mut entries = vec![];
    for i in 0..2 * MAX_HOLES as i64 {
        let check = single("{queue}", fixed_window(3, 1_000), 2 + i % 2);
        entries.push(Entry::Reserve { checks: Arc::new([check]), budget: HOUR, ticket: None });
    }
    for period in [1_500, 2_000, 70_000, 5_000_000] {
        let check = single("{queue}", fixed_window(50, period), 3);
        entries.push(Entry::Look { check: check.clone() });
        entries.push(Entry::Reserve { checks: Arc::new([check]), budget: HOUR, ticket: None });
    }
    let mut grants = Vec::new();
    for (i, batch) in entries.chunks(32).enumerate() {
        let now = T0 + 100 * i as i64;
        run(&store, &memory, now, &mut batch.to_vec(), &mut grants).await.expect("the same");
    }
}

#[tokio::test]
async fn a_refused_call_changes_neither_value_nor_ttl() {
    let redis = Redis::start();
    let store = connect(&redis).await;
    // The last one asks under another period.
    let asks = [(1, 366 * 24 * HOUR), (1, 366 * 24 * HOUR), (1, 365 * 24 * HOUR)];
    let asks = asks.map(|(count, period)| {
        let checks: Checks = Arc::new([single("{k}", fixed_window(count, period), 1)]);
        Entry::Reserve { checks, budget: 0, ticket: None }
    });
    store.run_at(None, &asks[..1]).await.expect("admitted");
    let before = redis.bytes("{k}");
    let expires = redis.command(&["PEXPIRETIME", "{k}"]);
    for ask in asks {
        let replies = store.run_at(None, &[ask]).await.expect("a reply");
        assert!(matches!(&replies[..], [Reply::Decision(decision)] if !decision.admitted));
    }
    assert_eq!(redis.bytes("{k}"), before);
    assert_eq!(redis.command(&["PEXPIRETIME", "{k}"]), expires);
}

#[tokio::test]
async fn every_key_expires_when_its_state_equals_an_absent_one() {
    let redis = Redis::start();
    let store = connect(&redis).await;
    for (i, rules) in [&[(5, HOUR)][..], &[(3, 60_000_000)], &[(5, 24 * HOUR), (7, 60_000_000)]]
        .into_iter()
        .enumerate()
    {
        let key = format!("{{{i}}}");
        let mut entries = Vec::new();
        for (count, period) in rules {
            let check = single(&key, fixed_window(*count, *period), 1);
            let ask = Entry::Reserve { checks: Arc::new([check.clone()]), budget: 0, ticket: None };
            entries.extend([ask.clone(), ask, Entry::Look { check }]);
        }
        let replies = store.run_at(None, &entries).await.expect("replies");
        let Some(Reply::Level(level)) = replies.last() else { panic!("no level: {replies:?}") };
        // In absolute terms, because some time passes until it is read.
        let Said::Number(expires) = redis.command(&["PEXPIRETIME", &key]) else { panic!("no TTL") };
        let Reply::Decision(first) = &replies[0] else { panic!("no decision: {replies:?}") };
        let full = first.parts[0].grant.born + level.reset_after;
        assert!((full..full + 10_000_000).contains(&(expires * 1_000)), "{expires} ms, {full} µs");
    }
}

const RUN: usize = 24;

/// A value that no gateway wrote is an error of that key: never a crash, never a pass.
#[rstest]
#[case::nothing(|_: Vec<u8>| vec![])]
#[case::text(|_: Vec<u8>| b"1".to_vec())]
#[case::a_byte_less(|v: Vec<u8>| v[..v.len() - 1].to_vec())]
#[case::a_byte_more(|v: Vec<u8>| [&v[..], &[0]].concat())]
#[case::a_run_less(|v: Vec<u8>| v[..v.len() - RUN].to_vec())]
#[case::a_run_more(|v: Vec<u8>| [&v[..], &v[v.len() - RUN..]].concat())]
#[case::another_version(|v: Vec<u8>| with(v, 0, &[2]))]
#[case::another_kind(|v: Vec<u8>| with(v, 1, b"T"))]
#[case::no_section(|v: Vec<u8>| with(v, 2, &[0]))]
#[case::many_sections(|v: Vec<u8>| with(v, 2, &[255]))]
#[case::a_clock_before_its_birth(|v: Vec<u8>| with(v, 11, &[0; 8]))]
#[case::a_clock_out_of_range(|v: Vec<u8>| with(v, 11, &[0, 0, 0, 0, 0, 0, 0x20, 0]))]
#[case::no_period(|v: Vec<u8>| with(v, 19, &[0; 8]))]
#[case::a_negative_period(|v: Vec<u8>| with(v, 19, &[255; 8]))]
#[case::a_negative_limit(|v: Vec<u8>| with(v, 35, &[255; 8]))]
#[case::a_negative_number_of_runs(|v: Vec<u8>| with(v, 59, &[255; 4]))]
#[case::a_past_run(|v: Vec<u8>| with(v, 63, &[0; 8]))]
#[case::a_run_that_ends_before_it_starts(|v: Vec<u8>| with(v, 71, &[0; 8]))]
#[case::a_run_without_end(|v: Vec<u8>| with(v, 71, &[255, 255, 255, 255, 255, 255, 255, 127]))]
#[case::an_empty_run(|v: Vec<u8>| with(v, 79, &[0; 8]))]
#[case::a_run_too_full(|v: Vec<u8>| with(v, 79, &[255, 255, 255, 255, 255, 255, 255, 127]))]
#[tokio::test]
async fn a_foreign_value_is_an_error_of_its_key(#[case] damage: fn(Vec<u8>) -> Vec<u8>) {
    let redis = Redis::start();
    let store = connect(&redis).await;
    let [good, bad] = ["{k}:good", "{k}:bad"].map(|key| single(key, fixed_window(5, HOUR), 1));
    let ask = |check: &Check| Entry::Reserve {
        checks: Arc::new([check.clone()]),
        budget: 0,
        ticket: None,
    };
    store.run_at(Some(T0), &[ask(&good)]).await.expect("admitted");
    let value = redis.bytes("{k}:good");
    assert_eq!(value.len(), 63 + RUN);
    let damaged = damage(value);
    let escaped: String = damaged.iter().map(|byte| format!("\\{byte:03}")).collect();
    let set = format!("return redis.call('SET', KEYS[1], '{escaped}')");
    redis.command(&["EVAL", &set, "1", "{k}:bad"]);
    assert_eq!(redis.bytes("{k}:bad"), damaged);
    let gift = Entry::Refund { check: bad.clone(), grant: Grant { born: T0, ..Grant::default() } };
    let look = Entry::Look { check: bad.clone() };
    let replies =
        store.run_at(Some(T0), &[ask(&bad), gift, look, ask(&good)]).await.expect("replies");
    let foreign = |reply: &Reply| matches!(reply, Reply::Failed(StoreError::Foreign { .. }));
    assert!(replies[..3].iter().all(foreign), "{replies:?}");
    assert!(matches!(&replies[3], Reply::Decision(decision) if decision.admitted));
    assert_eq!(redis.bytes("{k}:bad"), damaged);
}

fn with(mut value: Vec<u8>, at: usize, bytes: &[u8]) -> Vec<u8> {
    value[at..at + bytes.len()].copy_from_slice(bytes);
    value
}
