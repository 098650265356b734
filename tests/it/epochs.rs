//! The epoch beside the states of a server: which gateway finds that states were lost, which ones
//! believe it, and how a foreign value in its place is handled.

use crate::{
    support::{Chaos, PATIENCE, Redis, Said, eventually},
    twins::{T0, connect_as},
};
use metrics::Counter;
use paceway::{
    algorithm::{Algorithm, TokenBucket},
    store::{
        Check, Entry, OnLoss, Reply,
        redis::{Epochs, RedisStore, RedisUrl},
    },
};
use rstest::rstest;
use std::sync::Arc;

const HOUR: i64 = 3_600_000_000;
const EPOCH: &str = "p:marker";
const KEY: &str = "p:{k}:T:k";

/// Three permits, one more each hour.
fn bucket() -> Check {
    let algorithm = Algorithm::TokenBucket(TokenBucket::new(1, HOUR, 3).expect("a rule"));
    let horizon = algorithm.horizon(0, 1);
    Check::new(KEY, algorithm).with_horizon(horizon)
}

/// The permits that are left at `now`, as a store sees them that has its own idea of the epoch.
async fn left(store: &RedisStore, now: i64) -> i64 {
    let replies = store.run_at(Some(now), &[Entry::Look { check: bucket() }]).await;
    let Ok([Reply::Level(level)]) = replies.as_deref() else { panic!("{replies:?}") };
    level.remaining
}

async fn gateway(redis: &Redis) -> RedisStore {
    connect_as(redis, "p").await
}

fn epoch(redis: &Redis) -> String {
    String::from_utf8(redis.bytes(EPOCH)).expect("text")
}

#[tokio::test]
async fn an_unused_server_has_lost_nothing() {
    let redis = Redis::start();
    let (one, other) = (gateway(&redis).await, gateway(&redis).await);
    assert_eq!((left(&one, T0).await, left(&other, T0 + 1).await), (3, 3));
    assert_eq!(epoch(&redis), format!("N{T0}"));
    let Said::Number(millis) = redis.command(&["PTTL", EPOCH]) else { panic!("no TTL") };
    assert!(millis > 366 * 24 * 3_600_000, "longer than any limiter remembers: {millis} ms");
}

#[tokio::test]
async fn the_gateway_that_finds_a_loss_announces_it_and_lost_states_count_as_full() {
    let redis = Redis::start();
    let (one, other) = (gateway(&redis).await, gateway(&redis).await);
    assert_eq!((left(&one, T0).await, left(&other, T0).await), (3, 3));
    redis.command(&["FLUSHALL"]);
    redis.command(&["FUNCTION", "FLUSH"]);
    let lost = T0 + 1_000;
    assert_eq!(left(&one, lost).await, 0);
    assert_eq!(left(&other, lost + HOUR - 1).await, 0);
    assert_eq!(left(&other, lost + HOUR).await, 1);
    assert_eq!(epoch(&redis), format!("L{lost}"), "it was lost once");
    assert_eq!(left(&gateway(&redis).await, lost + 2 * HOUR).await, 2, "who is new learns of it");
    assert_eq!(left(&one, lost + 3 * HOUR).await, 3, "and then it is over");
}

#[tokio::test]
async fn a_new_gateway_after_a_loss_does_not_hide_the_loss() {
    let redis = Redis::start();
    let old = gateway(&redis).await;
    assert_eq!(left(&old, T0).await, 3);
    redis.command(&["FLUSHALL"]);
    let new = gateway(&redis).await;
    assert_eq!(left(&new, T0 + 10).await, 3, "nothing tells it of a loss");
    assert_eq!(left(&old, T0 + 20).await, 0);
    assert_eq!(left(&new, T0 + 30).await, 0);
    assert_eq!(epoch(&redis), format!("L{}", T0 + 20));
}

/// A replica that lags behind has an older epoch, and older states.
#[rstest]
#[case::of_the_first_use(format!("N{}", T0 - 5))]
#[case::of_a_loss_before(format!("L{}", T0 - 5))]
#[tokio::test]
async fn an_older_epoch_is_a_loss(#[case] older: String) {
    let redis = Redis::start();
    let store = gateway(&redis).await;
    let take = Entry::Reserve { checks: Arc::new([bucket()]), budget: 0, ticket: None };
    store.run_at(Some(T0), &[take]).await.expect("a permit");
    redis.command(&["SET", EPOCH, &older]);
    assert_eq!(left(&store, T0 + 9).await, 0, "the state is there, and too old to be believed");
    assert_eq!(epoch(&redis), format!("L{}", T0 + 9));
}

#[rstest]
#[case::text(&["SET", EPOCH, "x"])]
#[case::empty(&["SET", EPOCH, ""])]
#[case::binary(&["SET", EPOCH, "L\u{0}\u{1}"])]
#[case::of_the_far_future(&["SET", EPOCH, "L9999999999999999"])]
#[case::with_a_sign(&["SET", EPOCH, "L1700000000000000?"])]
#[case::list(&["RPUSH", EPOCH, "L1700000000000000"])]
#[tokio::test]
async fn an_invalid_epoch_is_a_loss_for_every_gateway(
    #[case] command: &[&str],
    #[values(false, true)] is_known: bool,
    #[values(false, true)] in_a_group: bool,
) {
    let redis = Redis::start();
    let store = gateway(&redis).await;
    if is_known {
        assert_eq!(left(&store, T0).await, 3);
    }
    redis.command(&["DEL", EPOCH]);
    redis.command(command);
    let lost = T0 + 7;
    if in_a_group {
        let ask = Entry::Reserve { checks: Arc::new([bucket()]), budget: 0, ticket: None };
        let replies = store.run_at(Some(lost), &[ask]).await;
        let Ok([Reply::Decision(decision)]) = replies.as_deref() else { panic!("{replies:?}") };
        assert!(!decision.admitted);
    }
    assert_eq!(left(&store, lost).await, 0);
    assert_eq!(left(&store, lost + HOUR).await, 1);
    assert_eq!(epoch(&redis), format!("L{lost}"));
}

#[tokio::test]
async fn without_the_right_to_info_a_loss_is_found_by_the_epoch() {
    let redis = Redis::start();
    redis.command(&["ACL", "SETUSER", "default", "-info"]);
    let store = gateway(&redis).await;
    assert_eq!(left(&store, T0).await, 3);
    redis.command(&["FLUSHALL"]);
    assert_eq!(left(&store, T0 + 1).await, 0);
}

#[tokio::test]
async fn a_limiter_reset_after_a_loss_is_open_at_once() {
    let redis = Redis::start();
    let store = gateway(&redis).await;
    assert_eq!(left(&store, T0).await, 3);
    redis.command(&["FLUSHALL"]);
    assert_eq!(left(&store, T0 + 1).await, 0);
    let reset = store.run_at(Some(T0 + 2), &[Entry::Forget { check: bucket() }]).await;
    assert_eq!(reset, Ok(vec![Reply::Done(true)]));
    assert_eq!(left(&store, T0 + 3).await, 3);
    let Said::Number(millis) = redis.command(&["PTTL", KEY]) else { panic!("no TTL") };
    assert!((1..=4 * 3_600_000).contains(&millis), "as long as the loss matters: {millis} ms");
}

#[tokio::test]
async fn grants_missed_by_a_promoted_replica_are_not_repeated() {
    let mut master = Redis::start();
    let port = master.port().to_string();
    let replica = Redis::with(&["--replicaof", "127.0.0.1", &port]);
    let proxy = Chaos::before(&master).await;
    let url = RedisUrl::parse(&proxy.url()).expect("a URL");
    let store = RedisStore::open(&url, &Epochs::new("p", Counter::noop())).expect("a store");
    store.connected(PATIENCE).await.expect("a connection");
    let take = [Entry::Reserve { checks: Arc::new([bucket()]), budget: 0, ticket: None }];
    store.run_at(None, &take).await.expect("a permit");
    eventually("the replica has it", async || (replica.keys() == [KEY]).then_some(())).await;
    // From here on it misses what the master does.
    replica.command(&["REPLICAOF", "NO", "ONE"]);
    for _ in 0..2 {
        store.run_at(None, &take).await.expect("a permit");
    }
    let before = epoch(&replica);
    proxy.lead_to(&replica);
    master.kill();
    let look = [Entry::Look { check: bucket() }];
    let replies =
        eventually("it is connected again", async || store.run_at(None, &look).await.ok()).await;
    let [Reply::Level(level)] = &replies[..] else { panic!("{replies:?}") };
    assert_eq!(level.remaining, 0);
    assert_ne!(epoch(&replica), before);
}

/// One that has names and values of its own, with the same prefix.
#[tokio::test]
async fn two_versions_share_a_server_undisturbed() {
    let redis = Redis::start();
    let store = gateway(&redis).await;
    let theirs = ["p:marker2", "p:{k}:T2:k", "p:{k}:marker2"];
    for key in theirs {
        redis.command(&["SET", key, "of version 2"]);
    }
    let take = Entry::Reserve { checks: Arc::new([bucket()]), budget: 0, ticket: None };
    for now in [T0, T0 + 1] {
        store.run_at(Some(now), std::slice::from_ref(&take)).await.expect("a permit");
    }
    redis.command(&["DEL", "p:marker2"]);
    assert_eq!(left(&store, T0 + 2).await, 1);
    for key in &theirs[1..] {
        assert_eq!(redis.bytes(key), b"of version 2");
    }
}

/// A limiter that trusts the store continues with the states that are left, beside one that does not.
#[rstest]
#[tokio::test]
async fn a_limiter_that_trusts_the_store_keeps_its_surviving_state(
    #[values(false, true)] in_a_group: bool,
) {
    let redis = Redis::start();
    let store = gateway(&redis).await;
    let trusting = bucket().with_on_loss(OnLoss::Trust);
    let take = async |check: &Check, now| {
        let mut asks =
            vec![Entry::Reserve { checks: [check.clone()].into(), budget: 0, ticket: None }];
        if !in_a_group {
            // Another step on the same key takes the request out of its group.
            asks.push(Entry::Look { check: check.clone() });
        }
        let replies = store.run_at(Some(now), &asks).await.expect("replies");
        let Reply::Decision(decision) = &replies[0] else { panic!("{replies:?}") };
        decision.admitted
    };
    assert!(take(&trusting, T0).await);
    redis.command(&["DEL", EPOCH]);
    assert_eq!(left(&store, T0 + 1).await, 0, "the limiter that closes");
    assert_eq!(epoch(&redis), format!("L{}", T0 + 1));
    let taken = [take(&trusting, T0 + 2).await, take(&trusting, T0 + 3).await];
    assert_eq!(
        (taken, take(&trusting, T0 + 4).await),
        ([true; 2], false),
        "two of three were left"
    );
    redis.command(&["DEL", KEY]);
    assert!(take(&trusting, T0 + 5).await, "a state that is gone counts as unused");
}
