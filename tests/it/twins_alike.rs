//! The one closed step of the library: requests that ask one bucket for the same cost are one entry of a call. It gives the replies
//! that the requests get one by one, from the library and from the memory store, and leaves the same states.

use crate::{
    support::{Redis, Said},
    twins::{T0, connect, sliding_window, token_bucket},
};
use paceway::{
    algorithm::{
        Concurrency, Grant, Rule, TokenBucket, concurrency::Ticket, token_bucket::BlockAsk,
    },
    store::{
        Check, Checks, Entry, Pause, Reply, Store, StoreError,
        batch::{Batched, StoreMetrics},
        memory::MemoryStore,
        redis::RedisStore,
    },
};
use proptest::{prelude::*, test_runner::TestRunner};
use rstest::rstest;
use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

const HOUR: i64 = 3_600_000_000;

#[derive(Debug, Clone)]
struct Call {
    after: i64,
    asks: Vec<Ask>,
}

#[derive(Debug, Clone)]
enum Ask {
    /// This many for one key, all for one cost, each with a budget of its own or all with one.
    Same {
        key: usize,
        cost: i64,
        budgets: Vec<i64>,
    },
    /// One that asks for a block for itself and the next requests.
    Block {
        key: usize,
        cost: i64,
        budget: i64,
        ask: BlockAsk,
    },
    /// One for two keys: none of the two has a group then.
    Both(i64),
    Observe(usize),
    GiveBack(usize),
    Pause(usize, i64),
}

/// With `is_simple` nothing leaves a hole, and the clock runs back, too.
fn calls(is_simple: bool, most: usize) -> impl Strategy<Value = Vec<Call>> {
    let budget = || prop_oneof![3 => Just(0), 2 => 0..3_000_000i64, 1 => 0..2 * HOUR];
    let budgets = prop_oneof![
        3 => budget().prop_map(|budget| vec![budget]),
        1 => (budget(), 1..20usize).prop_map(|(budget, count)| vec![budget; count]),
        1 => prop::collection::vec(budget(), 1..20),
    ];
    let cost = prop_oneof![4 => Just(1), 1 => 1..4i64];
    let same = (0..3usize, cost, budgets)
        .prop_map(|(key, cost, budgets)| Ask::Same { key, cost, budgets })
        .boxed();
    let spans = || prop_oneof![3 => 0..3_000i64, 1 => 0..2_000_000i64];
    let block = (0..3usize, 1..3i64, budget(), (1..6i64, spans(), spans()))
        .prop_map(|(key, cost, budget, (requests, reach, more))| {
            let ask = BlockAsk { requests, reach, jump: reach + more };
            Ask::Block { key, cost, budget, ask }
        })
        .boxed();
    let ask = match is_simple {
        true => prop_oneof![3 => same, 1 => block].boxed(),
        false => prop_oneof![
            8 => same,
            4 => block,
            1 => budget().prop_map(Ask::Both),
            1 => (0..3usize).prop_map(Ask::Observe),
            2 => (0..9usize).prop_map(Ask::GiveBack),
            1 => (0..3usize, 0..5_000_000i64).prop_map(|(key, span)| Ask::Pause(key, span)),
        ]
        .boxed(),
    };
    let back = if is_simple { -2_000_000 } else { 0 };
    let after = prop_oneof![Just(0), 0..1_000i64, 0..3_000_000i64, 0..3 * HOUR, back..1i64];
    let call = (after, prop::collection::vec(ask, 1..4));
    prop::collection::vec(call.prop_map(|(after, asks)| Call { after, asks }), 1..most)
}

/// A bucket with room for several holes.
fn wide_bucket() -> impl Strategy<Value = Rule> {
    let rule = (5..200i64, 50..1_000i64);
    rule.prop_map(|(count, burst)| {
        Rule::from(TokenBucket::new(count, 1_000_000, burst).expect("a rule"))
    })
}

#[rstest]
#[case::token_bucket(prop_oneof![token_bucket(), wide_bucket()].boxed(), 20)]
#[case::sliding_window(sliding_window(), 60)]
#[case::both(prop_oneof![token_bucket(), sliding_window()].boxed(), 20)]
fn requests_of_one_entry_are_decided_as_single_requests(
    #[case] rule: BoxedStrategy<Rule>,
    #[case] most: usize,
    #[values(true, false)] is_simple: bool,
) {
    let servers = [Redis::that_is_heard(), Redis::that_is_heard()];
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let stores = servers.each_ref().map(|redis| runtime.block_on(connect(redis)));
    let case = AtomicU64::new(0);
    let mut runner = TestRunner::new(ProptestConfig::with_cases(256));
    let rules = [rule.clone(), rule.clone(), rule];
    let result = runner.run(&(rules, calls(is_simple, most)), |(rules, calls)| {
        let case = case.fetch_add(1, Relaxed);
        let key = |i: usize| format!("{{{case}}}:{i}");
        let check = |i: usize, cost: i64| {
            Check::new(key(i), rules[i]).with_cost(cost.min(rules[i].capacity()))
        };
        let (memory, mut now, mut granted) = (MemoryStore::default(), T0, Vec::new());
        for Call { after, asks } in calls {
            now += after;
            let entries: Vec<_> =
                asks.into_iter().flat_map(|ask| entries(ask, &check, &mut granted)).collect();
            let said = runtime.block_on(compare(&stores, &memory, now, &entries))?.into_iter();
            for (entry, reply) in entries.into_iter().zip(said) {
                let (checks, decision) = match (entry, reply) {
                    (Entry::Reserve { checks, .. }, Reply::Decision(decision))
                    | (
                        Entry::Block { checks, .. },
                        Reply::Decision(decision) | Reply::Block { decision, .. },
                    ) => (checks, decision),
                    _ => continue,
                };
                let given = checks.iter().zip(decision.parts).filter(|(_, part)| part.at >= 0);
                granted.extend(given.map(|(check, part)| (check.clone(), part.grant)));
            }
            for i in 0..3 {
                let [together, alone] = servers.each_ref().map(|redis| state(redis, &key(i)));
                prop_assert_eq!(together, alone);
            }
        }
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}

fn entries(
    ask: Ask,
    check: &impl Fn(usize, i64) -> Check,
    granted: &mut Vec<(Check, Grant)>,
) -> Vec<Entry> {
    let decide = |checks: &[Check], budget| Entry::Reserve {
        checks: Checks::from(checks),
        budget,
        ticket: None,
    };
    match ask {
        Ask::Same { key, cost, budgets } => {
            let check = check(key, cost);
            budgets.into_iter().map(|budget| decide(std::slice::from_ref(&check), budget)).collect()
        }
        Ask::Block { key, cost, budget, ask } => {
            vec![Entry::Block { checks: [check(key, cost)].into(), budget, ask }]
        }
        Ask::Both(budget) => vec![decide(&[check(0, 1), check(1, 1)], budget)],
        Ask::Observe(key) => vec![decide(&[Check { enforce: false, ..check(key, 1) }], 0)],
        Ask::GiveBack(i) if i < granted.len() => {
            let last = granted.len() - 1;
            let (check, grant) = granted.swap_remove(last - i);
            vec![Entry::Refund { check, grant }]
        }
        Ask::GiveBack(_) => Vec::new(),
        Ask::Pause(key, span) => {
            vec![Entry::Pause { check: check(key, 1), pause: Pause::for_micros(span, 429) }]
        }
    }
}

/// The stored state of a key, but not until when a window lives, which is extended seldom.
fn state(redis: &Redis, key: &str) -> Said {
    let mut said = redis.command(&["GET", key]);
    if let Said::Bytes(Some(bytes)) = &mut said {
        let gate = match bytes.first() {
            // Two bytes say how many holes follow.
            Some(b'V') => 126 + 16 * usize::from(bytes[124]) + 4_096 * usize::from(bytes[125]),
            _ => 0,
        };
        let is_window = bytes.get(gate + 1) == Some(&b'S');
        let lives = bytes.get_mut(gate + 74..gate + 82).filter(|_| is_window);
        lives.into_iter().for_each(|lives| lives.fill(0));
    }
    said
}

/// On the second server each key is looked at after all requests, so that these are written one by one.
async fn compare(
    [together, alone]: &[RedisStore; 2],
    memory: &MemoryStore,
    now: i64,
    entries: &[Entry],
) -> Result<Vec<Reply>, TestCaseError> {
    if entries.is_empty() {
        return Ok(Vec::new());
    }
    let expected = memory.run_at(now, entries);
    let said = together.run_at(Some(now), entries).await;
    prop_assert_eq!(said.as_ref(), Ok(&expected));
    let mut seen = HashSet::new();
    let checks = entries.iter().flat_map(|entry| entry.checks().iter());
    let looks = checks
        .filter(|check| seen.insert(check.key.clone()))
        .map(|check| Entry::Look { check: check.clone() });
    let looked_at: Vec<_> = entries.iter().cloned().chain(looks).collect();
    let mut said = alone
        .run_at(Some(now), &looked_at)
        .await
        .map_err(|error| TestCaseError::fail(error.to_string()))?;
    said.truncate(entries.len());
    prop_assert_eq!(&said, &expected);
    Ok(expected)
}

fn bucket(key: &str, burst: i64) -> Check {
    let rule = TokenBucket::new(1, HOUR, burst).expect("a rule");
    Check::new(key, Rule::from(rule))
}

fn ask(check: &Check) -> Entry {
    Entry::Reserve { checks: Arc::new([check.clone()]), budget: 0, ticket: None }
}

/// A call that says how many of its requests were admitted.
async fn admitted(store: &RedisStore, entries: &[Entry]) -> Vec<Result<bool, StoreError>> {
    let replies = store.run_at(None, entries).await.expect("replies");
    let said = replies.into_iter().map(|reply| match reply {
        Reply::Decision(decision) => Ok(decision.admitted),
        Reply::Failed(error) => Err(error),
        reply => panic!("{reply:?}"),
    });
    said.collect()
}

/// Foreign values cost no other group anything, one group or many, absent or not.
#[rstest]
#[case::alone(&["{k}:list"])]
#[case::of_many(&["{k}:list", "{k}:good", "{k}:text", "{k}:other"])]
#[tokio::test]
async fn a_foreign_value_is_an_error_of_its_group_only(#[case] keys: &[&str]) {
    let redis = Redis::that_is_heard();
    let store = connect(&redis).await;
    redis.command(&["LPUSH", "{k}:list", "a"]);
    redis.command(&["SET", "{k}:text", "not ours"]);
    for burst in [3, 3, 3] {
        let entries: Vec<_> = keys.iter().map(|key| ask(&bucket(key, burst))).collect();
        let said = admitted(&store, &entries).await;
        for (key, said) in keys.iter().zip(said) {
            match key.ends_with("list") || key.ends_with("text") {
                true => assert_eq!(said, Err(StoreError::Foreign((*key).into()))),
                false => assert_eq!(said, Ok(true)),
            }
        }
    }
    if keys.len() > 1 {
        assert_eq!(admitted(&store, &[ask(&bucket("{k}:good", 3))]).await, [Ok(false)]);
        assert_eq!(redis.bytes("{k}:text"), b"not ours");
    }
}

/// More keys than a call of a gateway has, some of them twice.
#[tokio::test]
async fn one_call_takes_any_number_of_keys() {
    let redis = Redis::that_is_heard();
    let store = connect(&redis).await;
    let mut entries: Vec<_> = (0..1200).map(|i| ask(&bucket(&format!("{{k}}:{i}"), 2))).collect();
    entries.extend([0, 0, 1100, 1100].map(|i| ask(&bucket(&format!("{{k}}:{i}"), 2))));
    let said = admitted(&store, &entries).await;
    assert!(said[..1200].iter().all(|said| *said == Ok(true)));
    assert_eq!(said[1200..], [Ok(true), Ok(false), Ok(true), Ok(false)]);
    // The same with two holes in each of three hundred states: their decisions are more numbers than Lua passes at once.
    let checks: Vec<_> = (0..300).map(|i| bucket(&format!("{{h}}:{i}"), 5)).collect();
    let five_times: Vec<_> = (0..5).flat_map(|_| checks.iter().map(ask)).collect();
    let taken = store.run_at(None, &five_times).await.expect("replies");
    let returned = (0..).zip(taken).filter(|(i, _)| i / 300 % 2 == 1).map(|(i, reply)| {
        let Reply::Decision(decision) = reply else { panic!("{reply:?}") };
        Entry::Refund { check: checks[i % 300].clone(), grant: decision.parts[0].grant }
    });
    let returned: Vec<_> = returned.collect();
    for some in returned.chunks(200) {
        store.run_at(None, some).await.expect("replies");
    }
    assert_eq!(redis.bytes("{h}:0").len(), 58 + 2 * 16);
    let said = admitted(&store, &five_times).await;
    let said = said.chunks(300).map(|said| said.iter().all(|said| *said == Ok(true)));
    assert_eq!(said.collect::<Vec<_>>(), [true, true, false, false, false]);
}

/// Limiters share calls, and still what is refused to one of them is not refused to the others.
#[tokio::test]
async fn a_refused_limiter_does_not_block_other_limiters_for_long() {
    let redis = Redis::that_is_heard();
    redis.command(&["ACL", "SETUSER", "default", "-zadd"]);
    let script = Arc::new(connect(&redis).await);
    let store = Batched::new(script, Duration::from_secs(20), StoreMetrics::noop());
    let rule = Concurrency::new(100, HOUR).expect("a rule");
    let refused = Check { algorithm: Rule::from(rule), ..bucket("{a}:C", 1) };
    let checks = [refused, bucket("{b}:T", 100)].map(|check| Checks::from([check]));
    for round in 0..3 {
        let asks = (0..20).map(|i| {
            let (store, checks) = (store.clone(), checks[i % 2].clone());
            let number = i64::try_from(i).expect("few") + 1;
            let ticket = Some(Ticket { gateway: 1, number, deadline: 0 });
            let ticket = ticket.filter(|_| checks[0].is_lease());
            tokio::spawn(async move { (i % 2, store.reserve(&checks, 0, ticket).get().await) })
        });
        let mut worked = [0; 2];
        for ask in asks.collect::<Vec<_>>() {
            let (i, said) = ask.await.expect("a task");
            worked[i] += usize::from(said.is_ok());
        }
        if round > 0 {
            assert_eq!(worked, [0, 10], "in round {round}");
        }
    }
}
