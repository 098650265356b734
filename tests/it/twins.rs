//! One specification, two executions: the rules in this process and the script on a real Redis, step by step
//! on random sequences, on one virtual clock.

use crate::support::{Redis, Said};
use paceway::{
    algorithm::{Algorithm, Grant, TokenBucket},
    store::{
        Check, Checks, Entry, Reply,
        memory::MemoryStore,
        redis::{RedisStore, RedisUrl},
    },
};
use proptest::{prelude::*, test_runner::TestRunner};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

const T0: i64 = 1_700_000_000_000_000;
const LIMIT: Duration = Duration::from_secs(20);

#[derive(Debug, Clone)]
struct Step {
    after: i64,
    what: What,
}

#[derive(Debug, Clone)]
enum What {
    /// Keys used (at least one of three), which of them observe, costs, budget.
    Decide {
        used: [bool; 3],
        observe: [bool; 3],
        cost: i64,
        budget: i64,
    },
    GiveBack(usize),
    Look(usize),
    /// The limiter of a key gets another rule, as after an edit of the configuration.
    Change(usize, TokenBucket),
}

fn rule() -> impl Strategy<Value = TokenBucket> {
    let small = (1..50i64, 50..3_000_000i64, 3..9i64);
    let odd = prop_oneof![
        Just((7, 1_000_000, 7)),
        Just((80_000, 1_000_000, 80_000)),
        Just((1, 86_400_000_000, 3)),
        Just((123_457, 86_400_000_000, 123_457)),
        Just((999_983, 1_000_000, 10)),
    ];
    let any = prop_oneof![3 => small, 1 => odd];
    any.prop_map(|(count, period, burst)| TokenBucket::new(count, period, burst).expect("a rule"))
}

fn step() -> impl Strategy<Value = Step> {
    let spans = || prop_oneof![Just(0), 0..1_000i64, 0..2_000_000i64, 0..90_000_000_000i64];
    let budgets = prop_oneof![Just(0), 0..5_000_000i64, 0..90_000_000_000i64];
    let decide = (any::<[bool; 3]>(), any::<[bool; 3]>(), 1..4i64, budgets);
    let what = prop_oneof![
        8 => decide.prop_map(|(used, observe, cost, budget)| What::Decide { used, observe, cost, budget }),
        3 => (0..5usize).prop_map(What::GiveBack),
        1 => (0..3usize).prop_map(What::Look),
        1 => (0..3usize, rule()).prop_map(|(key, rule)| What::Change(key, rule)),
    ];
    (spans(), what).prop_map(|(after, what)| Step { after, what })
}

#[test]
fn memory_and_redis_say_the_same_step_by_step() {
    let redis = Redis::start();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let store = runtime.block_on(connect(&redis));
    let case = AtomicU64::new(0);
    let mut runner = TestRunner::new(ProptestConfig::default());
    let strategy = ([rule(), rule(), rule()], prop::collection::vec(step(), 1..60));
    let result = runner.run(&strategy, |(rules, steps)| {
        let case = case.fetch_add(1, Relaxed);
        runtime.block_on(compare(&store, case, rules, steps))
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}

async fn connect(redis: &Redis) -> RedisStore {
    let url = RedisUrl::parse(&redis.url()).expect("a URL");
    let store = RedisStore::open(&url).expect("a store");
    store.connected(LIMIT).await.expect("a connection");
    store
}

async fn compare(
    redis: &RedisStore,
    case: u64,
    mut rules: [TokenBucket; 3],
    steps: Vec<Step>,
) -> Result<(), TestCaseError> {
    let memory = MemoryStore::default();
    let keys: [Arc<str>; 3] = [0, 1, 2].map(|i| format!("twins:{{{case}}}:{i}").into());
    let check = |rules: &[TokenBucket; 3], i: usize, cost: i64, enforce: bool| Check {
        key: keys[i].clone(),
        algorithm: Algorithm::TokenBucket(rules[i]),
        cost,
        enforce,
    };
    let (mut now, mut granted) = (T0, Vec::<(Check, Grant)>::new());
    let mut batch = Vec::new();
    for Step { after, what } in steps {
        let entry = match what {
            What::Decide { used, observe, cost, budget } => {
                let used = (0..3).filter(|i| used[*i] || used == [false; 3]);
                let checks: Checks = used.map(|i| check(&rules, i, cost, !observe[i])).collect();
                Entry::Decide { checks, budget }
            }
            What::GiveBack(i) if i < granted.len() => {
                let (check, grant) = granted.swap_remove(granted.len() - 1 - i);
                Entry::GiveBack { check, grant }
            }
            What::GiveBack(_) => continue,
            What::Look(i) => Entry::Look { check: check(&rules, i, 1, true) },
            What::Change(i, rule) => {
                rules[i] = rule;
                continue;
            }
        };
        // Steps without time between them go in one call, as group commit sends them.
        if after > 0 || batch.len() >= 4 {
            run(redis, &memory, now, &mut batch, &mut granted).await?;
        }
        now += after;
        batch.push(entry);
    }
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
        let (Entry::Decide { checks, .. }, Reply::Decision(decision)) = (entry, reply) else {
            continue;
        };
        let given = checks.iter().zip(decision.parts).filter(|(_, part)| part.at >= 0);
        granted.extend(given.map(|(check, part)| (check.clone(), part.grant)));
    }
    Ok(())
}

fn single(key: &str, rule: TokenBucket) -> Checks {
    let algorithm = Algorithm::TokenBucket(rule);
    Arc::new([Check { key: key.into(), algorithm, cost: 1, enforce: true }])
}

#[tokio::test]
async fn a_refused_call_leaves_the_key_byte_for_byte_and_its_ttl_alone() {
    let redis = Redis::start();
    let store = connect(&redis).await;
    let checks = single("{k}", TokenBucket::new(1, 3_600_000_000, 1).expect("a rule"));
    let ask = [Entry::Decide { checks, budget: 0 }];
    store.run_at(None, &ask).await.expect("admitted");
    let before = redis.bytes("{k}");
    let expires = redis.command(&["PEXPIRETIME", "{k}"]);
    for _ in 0..3 {
        let replies = store.run_at(None, &ask).await.expect("a reply");
        assert!(matches!(&replies[..], [Reply::Decision(decision)] if !decision.admitted));
    }
    assert_eq!(redis.bytes("{k}"), before);
    assert_eq!(redis.command(&["PEXPIRETIME", "{k}"]), expires);
}

#[tokio::test]
async fn every_key_lives_until_its_state_equals_an_absent_one() {
    let redis = Redis::start();
    let store = connect(&redis).await;
    for (i, (count, period, burst)) in
        [(1, 3_600_000_000, 5), (7, 1_000_000, 7), (100, 60_000_000, 3)].into_iter().enumerate()
    {
        let key = format!("{{{i}}}");
        let checks = single(&key, TokenBucket::new(count, period, burst).expect("a rule"));
        let look = Entry::Look { check: checks[0].clone() };
        let ask = Entry::Decide { checks, budget: 60_000_000 };
        let replies = store.run_at(None, &[ask.clone(), ask, look]).await.expect("replies");
        let Some(Reply::Level(level)) = replies.last() else { panic!("no level: {replies:?}") };
        // In absolute terms, because some time passes until it is read.
        let Said::Number(expires) = redis.command(&["PEXPIRETIME", &key]) else { panic!("no TTL") };
        let Reply::Decision(first) = &replies[0] else { panic!("no decision: {replies:?}") };
        let full = first.parts[0].grant.born + level.reset_after;
        assert!((full..full + 10_000_000).contains(&(expires * 1_000)), "{expires} ms, {full} µs");
    }
}
