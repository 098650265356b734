//! The gate of a paused limiter in both twins, where a random sequence seldom comes: at the end of the gate.

use crate::{
    support::Redis,
    twins::{T0, connect},
};
use paceway::{
    algorithm::{Algorithm, FixedWindow, SlidingWindow, TokenBucket},
    store::{Check, Entry, Pause, Reply, memory::MemoryStore},
};
use rstest::rstest;
use std::sync::Arc;

fn token_bucket(period: i64) -> Algorithm {
    Algorithm::TokenBucket(TokenBucket::new(5, period, 5).expect("a rule"))
}

fn sliding_window(period: i64) -> Algorithm {
    Algorithm::SlidingWindow(SlidingWindow::new(5, period, 0).expect("a rule"))
}

fn fixed_window(period: i64) -> Algorithm {
    Algorithm::FixedWindow(FixedWindow::new(5, period).expect("a rule"))
}

/// A vendor that answers one 429 with `Retry-After: 1` says nothing about an hour. A list of rates has a state for each rate.
#[rstest]
fn a_pause_of_a_second_leaves_an_hourly_limiter_its_level(
    #[values(token_bucket, sliding_window, fixed_window)] rule: fn(i64) -> Algorithm,
    #[values(false, true)] hourly_first: bool,
) {
    let redis = Redis::start();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let (store, memory) = (connect(&redis).await, MemoryStore::default());
        let checks = [("{k}h", 3_600_000_000), ("{k}s", 1_000_000)];
        let mut checks = checks.map(|(key, period)| Check::new(key, rule(period)));
        if !hourly_first {
            checks.reverse();
        }
        let both = async |after: i64, entries: &[Entry]| {
            let expected = memory.run_at(T0 + after, entries);
            let replies = store.run_at(Some(T0 + after), entries).await;
            assert_eq!(replies.as_ref(), Ok(&expected), "{after}: {entries:?}");
            expected
        };
        let ask = Entry::Reserve { checks: Arc::new(checks.clone()), budget: 0, ticket: None };
        let granted = |replies: &[Reply]| {
            matches!(replies, [Reply::Decision(decision)] if decision.wait == 0 && !decision.parts.is_empty())
        };
        let pause = Pause::of(std::time::Duration::from_secs(1), 429);
        assert!(granted(&both(0, std::slice::from_ref(&ask)).await));
        both(0, &pause.entries(&checks).collect::<Vec<_>>()).await;
        assert!(!granted(&both(999_999, std::slice::from_ref(&ask)).await));
        // The limiter of a second begins with one permit, that of an hour has four.
        for after in [1_000_000, 1_300_000, 1_600_000, 1_900_000] {
            assert!(granted(&both(after, std::slice::from_ref(&ask)).await), "{after}");
        }
        assert!(!granted(&both(3_000_000, std::slice::from_ref(&ask)).await));
    });
}

/// A refund can end a gate. The next grant of the same call does not name it, and a slower rule does not find it again.
#[rstest]
fn a_gate_ended_by_a_refund_is_removed_at_once(
    #[values(token_bucket, sliding_window, fixed_window)] rule: fn(i64) -> Algorithm,
    // The gate with one grant ends at 1_001_000 µs, without it at 801_000 µs. The window ends at 1_000_000 µs.
    #[values(901_000, 1_000_500)] at: i64,
    #[values(false, true)] asks_again: bool,
) {
    let redis = Redis::start();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let (store, memory) = (connect(&redis).await, MemoryStore::default());
        let both = async |after: i64, entries: &[Entry]| {
            let expected = memory.run_at(T0 + after, entries);
            let replies = store.run_at(Some(T0 + after), entries).await;
            assert_eq!(replies.as_ref(), Ok(&expected), "{after}: {entries:?}");
            expected
        };
        let check = Check::new("{k}", rule(1_000_000));
        let slower = Check::new("{k}", rule(3_000_000));
        let ask =
            Entry::Reserve { checks: Arc::new([check.clone()]), budget: 5_000_000, ticket: None };
        let pause = Pause::for_micros(1_000, 429);
        both(0, &[Entry::Pause { check: check.clone(), pause }]).await;
        let replies = both(1_000, std::slice::from_ref(&ask)).await;
        let [Reply::Decision(decision)] = &replies[..] else { panic!("{replies:?}") };
        let grant = decision.parts[0].grant;
        let mut entries = vec![Entry::Refund { check: check.clone(), grant }];
        entries.extend(asks_again.then_some(ask));
        entries.push(Entry::Look { check: check.clone() });
        both(at, &entries).await;
        both(at + 1, &[Entry::Look { check: slower }]).await;
        both(at + 2, &[Entry::Look { check }]).await;
    });
}
