//! The promises of the script on a real Redis: for every algorithm, and for calls that are made together.

use crate::{
    support::{Redis, Said},
    twins::{T0, connect, connect_by_script},
};
use paceway::{
    algorithm::{
        Concurrency, FixedWindow, LeakyBucket, Rule, SlidingWindow, TokenBucket, WarmUp,
        concurrency::Ticket,
    },
    store::{
        Backend, BoxFuture, Check, Checks, Decision, Entry, Reply, Source, Store, StoreAdmin,
        StoreError,
        batch::{Batched, StoreMetrics},
        calls::Calls,
        memory::MemoryStore,
        redis::RedisStore,
    },
};
use parking_lot::Mutex;
use proptest::{prelude::*, test_runner::TestRunner};
use rstest::rstest;
use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

const HOUR: i64 = 3_600_000_000;
const LIMIT: Duration = Duration::from_secs(20);

/// A limiter of each algorithm whose third request waits for two seconds or longer, before and after an `edit`.
fn examples(edit: i64) -> [Rule; 6] {
    let (count, period) = (2 + edit, 2_000_000 + 500_000 * edit);
    [
        Rule::from(TokenBucket::new(1, period, count).expect("a rule")),
        Rule::from(LeakyBucket::new(1, period, edit, None).expect("a rule")),
        Rule::from(SlidingWindow::new(count, 2 * period, 10_000).expect("a rule")),
        Rule::from(FixedWindow::new(count, HOUR / (1 + edit)).expect("a rule")),
        Rule::from(WarmUp::new(1, period, period / 2, 3.0).expect("a rule")),
        Rule::from(Concurrency::new(count, 5_000_000).expect("a rule")),
    ]
}

fn check(key: &str, algorithm: Rule) -> Check {
    Check::new(key, algorithm)
}

fn ask(check: &Check, budget: i64, number: i64) -> Entry {
    let ticket = check.is_lease().then_some(Ticket { gateway: 7, number, deadline: 0 });
    Entry::Reserve { checks: Arc::new([check.clone()]), budget, ticket }
}

/// Laws 3 and 10, on the server's own clock.
#[tokio::test]
async fn a_refusal_changes_no_byte_and_a_key_lives_as_long_as_it_matters() {
    let redis = Redis::that_is_heard();
    let store = connect(&redis).await;
    for rule in examples(0) {
        let key = format!("{{{}}}", rule.name());
        let check = check(&key, rule);
        let dump = || redis.command(&["DUMP", &key]);
        let mut admitted = true;
        for number in 1.. {
            let before = (dump(), redis.command(&["PEXPIRETIME", &key]));
            let replies = store.run_at(None, &[ask(&check, 0, number)]).await.expect("a reply");
            let Reply::Decision(decision) = &replies[0] else { panic!("{replies:?}") };
            let after = (dump(), redis.command(&["PEXPIRETIME", &key]));
            assert_eq!(before == after, !decision.admitted, "{key}");
            // Twice refused, of which the second is refused on what the first has left.
            if !admitted && !decision.admitted {
                break;
            }
            admitted = decision.admitted;
        }
        let now = || match redis.command(&["TIME"]) {
            Said::List(time) => match &time[0] {
                Said::Bytes(Some(seconds)) => String::from_utf8_lossy(seconds).parse::<i64>(),
                said => panic!("{said:?} is no number"),
            },
            said => panic!("{said:?} is no time"),
        };
        let before = now().expect("seconds") * 1_000;
        let look = Entry::Look { check: check.clone() };
        let replies = store.run_at(None, &[look]).await.expect("a reply");
        let Reply::Level(level) = &replies[0] else { panic!("{replies:?}") };
        let Said::Number(expires) = redis.command(&["PEXPIRETIME", &key]) else { panic!("no TTL") };
        let full = before + level.reset_after / 1_000;
        assert!((full..full + 12_000).contains(&expires), "{key}: {expires} ms, {full} ms");
    }
}

#[derive(Debug, Clone)]
enum Ask {
    Decide { used: [bool; 3], budget: i64 },
    GiveBack(usize),
    Look(usize),
    Renew(usize),
}

/// Requests, each with whether a batch ends after it, and by how much the rule of its gateway is edited.
fn asks() -> impl Strategy<Value = Vec<(bool, i64, Ask)>> {
    let budget = prop_oneof![Just(0), 0..HOUR];
    let ask = prop_oneof![
        5 => (any::<[bool; 3]>(), budget).prop_map(|(used, budget)| Ask::Decide { used, budget }),
        3 => (0..8usize).prop_map(Ask::GiveBack),
        1 => (0..3usize).prop_map(Ask::Look),
        1 => (0..8usize).prop_map(Ask::Renew),
    ];
    let edit = prop_oneof![4 => Just(0), 1 => Just(1)];
    prop::collection::vec((prop::bool::weighted(0.1), edit, ask), 1..60)
}

/// One by one or in batches, on either store, at the same instant: the same replies, and the same bytes afterwards.
#[rstest]
#[case::token_bucket([0, 0, 0])]
#[case::leaky_bucket([1, 1, 1])]
#[case::sliding_window([2, 2, 2])]
#[case::fixed_window([3, 3, 3])]
#[case::warm_up([4, 4, 4])]
#[case::concurrency([5, 5, 5])]
#[case::three_kinds([1, 2, 5])]
fn a_batch_equals_its_entries_one_by_one(#[case] kinds: [usize; 3]) {
    let servers = [Redis::that_is_heard(), Redis::that_is_heard()];
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    // The second server is sent the script.
    let stores = [
        runtime.block_on(connect(&servers[0])),
        runtime.block_on(connect_by_script(&servers[1], "paceway")),
    ];
    let case = AtomicU64::new(0);
    let mut runner = TestRunner::new(ProptestConfig::with_cases(64));
    let result = runner.run(&asks(), |asks| {
        let case = case.fetch_add(1, Relaxed);
        let key = |i: usize| format!("{{{case}}}:{i}");
        let limiters =
            [0, 1].map(|edit| [0, 1, 2].map(|i| check(&key(i), examples(edit)[kinds[i]])));
        runtime.block_on(compare(&stores, &limiters, asks))?;
        for i in 0..3 {
            let [alone, together] =
                servers.each_ref().map(|redis| redis.command(&["DUMP", &key(i)]));
            prop_assert_eq!(alone, together);
        }
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}

async fn compare(
    [alone, together]: &[RedisStore; 2],
    limiters: &[[Check; 3]; 2],
    asks: Vec<(bool, i64, Ask)>,
) -> Result<(), TestCaseError> {
    let memory = MemoryStore::default();
    let (mut granted, mut batch, mut expected) = (Vec::new(), Vec::new(), Vec::new());
    for (number, (ends, edit, ask)) in asks.into_iter().enumerate() {
        let limiters = &limiters[usize::from(edit > 0)];
        let entry = match ask {
            Ask::Decide { used, budget } => {
                let used = (0..3).filter(|i| used[*i] || used == [false; 3]);
                let checks: Checks = used.map(|i| limiters[i].clone()).collect();
                let number = i64::try_from(number).expect("few");
                let ticket = Ticket { gateway: 7, number, deadline: 0 };
                let ticket = checks.iter().any(Check::is_lease).then_some(ticket);
                Entry::Reserve { checks, budget, ticket }
            }
            Ask::Look(i) => Entry::Look { check: limiters[i].clone() },
            Ask::GiveBack(i) => match granted.get(i).cloned() {
                Some((check, grant)) => Entry::Refund { check, grant },
                None => continue,
            },
            Ask::Renew(i) => match granted.get(i).cloned() {
                Some((check, grant)) if Check::is_lease(&check) => Entry::Renew { check, grant },
                _ => continue,
            },
        };
        let replies = alone.run_at(Some(T0), std::slice::from_ref(&entry)).await;
        prop_assert_eq!(replies.as_ref(), Ok(&memory.run_at(T0, std::slice::from_ref(&entry))));
        let reply = replies.expect("a reply").remove(0);
        if let (Entry::Reserve { checks, ticket, .. }, Reply::Decision(decision)) = (&entry, &reply)
        {
            let given = checks.iter().zip(&decision.parts).filter(|(_, part)| part.at >= 0);
            granted.extend(given.map(|(check, part)| (check.clone(), part.grant)));
            if let (Some(queued), Some(ticket)) = (decision.queued, ticket) {
                let ticket = Ticket { deadline: queued.deadline, ..*ticket };
                granted.push((checks[decision.bound_by].clone(), ticket.grant()));
            }
        }
        batch.push(entry);
        expected.push(reply);
        if ends {
            let replies = together.run_at(Some(T0), &std::mem::take(&mut batch)).await;
            prop_assert_eq!(replies, Ok(std::mem::take(&mut expected)));
        }
    }
    prop_assert_eq!(together.run_at(Some(T0), &batch).await, Ok(expected));
    Ok(())
}

/// A Redis on a clock of its own that writes down what it is asked and what it says.
#[derive(Debug)]
struct Noted {
    redis: RedisStore,
    clock: Arc<AtomicI64>,
    notes: Arc<Mutex<Vec<(i64, Entry, Reply)>>>,
}

impl Backend for Noted {
    fn calls(&self) -> &Arc<Calls> {
        Backend::calls(&self.redis)
    }

    fn run(&self, entries: Arc<Vec<Entry>>) -> BoxFuture<Result<Vec<Reply>, StoreError>> {
        let (redis, notes) = (self.redis.clone(), self.notes.clone());
        let now = self.clock.fetch_add(1_000, Relaxed);
        Box::pin(async move {
            let replies = redis.run_at(Some(now), &entries).await?;
            let mut notes = notes.lock();
            let said = entries.iter().cloned().zip(&replies);
            notes.extend(said.map(|(entry, reply)| (now, entry, reply.clone())));
            Ok(replies)
        })
    }
}

/// Many callers at once, some of which leave: each got the reply that it would have got in some serial order.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn concurrent_requests_get_the_replies_of_some_order(
    #[values(0, 1, 2, 3, 4, 5)] kind: usize,
) {
    let redis = Redis::that_is_heard();
    let notes = Arc::<Mutex<Vec<_>>>::default();
    let (clock, inner) = (Arc::new(AtomicI64::new(T0)), connect(&redis).await);
    let script = Noted { redis: inner, clock, notes: notes.clone() };
    let store = Batched::new(Arc::new(script), LIMIT, StoreMetrics::noop());
    let limiter = check("{together}", examples(0)[kind]);
    let asks = (0..300).map(|i| {
        let (store, checks) = (store.clone(), Checks::from([limiter.clone()]));
        tokio::spawn(async move {
            let callable = checks[0].is_lease().then(|| store.calls().ticket());
            let ticket = callable.as_ref().map(|callable| callable.ticket);
            let answer = store.reserve(&checks, if i % 2 == 0 { 0 } else { HOUR }, ticket).get();
            if i % 5 == 4 {
                drop(answer);
                return None;
            }
            let decision = answer.await.expect("a decision");
            // Some of those who wait leave.
            if i % 3 == 0 {
                store.refund(Source::Shared, &checks, &decision.parts);
            }
            Some(decision)
        })
    });
    let mut told = Vec::<Decision>::new();
    for ask in asks.collect::<Vec<_>>() {
        told.extend(ask.await.expect("task"));
    }
    store.flush().await;
    let notes = notes.lock();
    let memory = MemoryStore::default();
    for (now, entry, reply) in notes.iter() {
        assert_eq!(memory.run_at(*now, std::slice::from_ref(entry))[0], *reply, "{entry:?}");
    }
    let mut said: Vec<_> = notes.iter().map(|(_, _, reply)| reply).collect();
    for decision in told {
        let own = said.iter().position(|reply| **reply == Reply::Decision(decision.clone()));
        said.swap_remove(own.unwrap_or_else(|| panic!("nobody said {decision:?}")));
    }
    // All but those who left before they were asked for.
    assert!(notes.len() >= 240);
}
