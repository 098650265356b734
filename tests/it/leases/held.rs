//! How long a permit is held: until the body has ended, and while its gateway lives.

use super::{ONE, ONE_SHORT, assert_passed, config, gated, two_gateways, until_asked};
use crate::support::{Redis, Reply, Upstream, eventually};
use parking_lot::Mutex;
use rstest::rstest;
use std::{sync::Arc, time::Duration};
use tokio::{sync::Semaphore, time::Instant};

/// The events that an upstream and its clients have seen, in their order.
type Events = Arc<Mutex<Vec<&'static str>>>;

/// Sends the second part of each response when the gate lets it.
async fn halting(start: &'static str, end: &'static str) -> (Upstream, Arc<Semaphore>, Events) {
    let (gate, events) = (Arc::new(Semaphore::new(0)), Events::default());
    let (behind, happened) = (gate.clone(), events.clone());
    let upstream = Upstream::raw(move |mut conn| {
        let (gate, events) = (behind.clone(), happened.clone());
        async move {
            let Ok(Some(_)) = conn.head().await else { return };
            events.lock().push("asked");
            let head = format!("HTTP/1.1 200 OK\r\nConnection: close\r\n{start}");
            conn.send(head).await.expect("send");
            gate.acquire().await.expect("an open gate").forget();
            events.lock().push("ended");
            conn.send(end).await.expect("send");
        }
    })
    .await;
    (upstream, gate, events)
}

const CHUNKED: &str = "Transfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n";

#[rstest]
#[case::in_chunks(CHUNKED, "6\r\nsecond\r\n0\r\n\r\n")]
#[case::of_known_length("Content-Length: 11\r\n\r\nfirst", "second")]
#[case::until_the_end("\r\nfirst", "second")]
#[tokio::test(flavor = "multi_thread")]
async fn a_permit_is_held_until_the_body_has_ended(
    #[case] start: &'static str,
    #[case] end: &'static str,
) {
    let redis = Redis::start();
    let (upstream, gate, events) = halting(start, end).await;
    let [gateway, other] = two_gateways(&config(&redis, &upstream, ONE)).await;
    let mut first = gateway.ask("/search", &[]).await;
    first.until("first").await.expect("the first piece");
    let mut second = other.ask("/search", &[]).await;
    other.until_waiting("search", 1).await;
    gate.add_permits(2);
    first.until("second").await.expect("the second piece");
    assert_eq!(second.answer().await.expect("a whole answer").text(), "firstsecond");
    assert_eq!(*events.lock(), ["asked", "ended", "asked", "ended"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_during_the_body_releases_its_permit() {
    let redis = Redis::start();
    let (upstream, _gate, events) = halting(CHUNKED, "0\r\n\r\n").await;
    let [gateway, other] = two_gateways(&config(&redis, &upstream, ONE)).await;
    let mut first = gateway.ask("/search", &[]).await;
    first.until("first").await.expect("the first piece");
    let mut second = other.ask("/search", &[]).await;
    other.until_waiting("search", 1).await;
    assert_eq!(*events.lock(), ["asked"]);
    drop(first);
    second.until("first").await.expect("the first piece of its own answer");
    assert_eq!(*events.lock(), ["asked", "asked"]);
}

// ------------------------------------------------------------------------------- gateways that die or sleep

#[tokio::test(flavor = "multi_thread")]
async fn permits_of_a_gateway_that_was_killed_are_free_when_their_leases_end() {
    let (redis, (upstream, gate)) = (Redis::start(), gated().await);
    let [mut doomed, other] = two_gateways(&config(&redis, &upstream, "max: 2, lease: 3s")).await;
    let _lost = [doomed.ask("/search", &[]).await, doomed.ask("/search", &[]).await];
    until_asked(&upstream, 2).await;
    let mut waiting = Vec::new();
    for _ in 0..4 {
        waiting.push(other.ask("/search", &[]).await);
    }
    other.until_waiting("search", 4).await;
    let looked = Instant::now();
    // Renewals that come after this look can only make it later.
    let held = other.limiter("places").await["next_slot_ms"].as_f64().expect("ms");
    doomed.signal("KILL");
    doomed.end().await;
    gate.add_permits(6);
    for conn in &mut waiting {
        assert_passed(conn).await;
    }
    let arrivals = upstream.arrivals();
    assert_eq!(arrivals.len(), 6);
    let after = arrivals[2] - looked;
    assert!(held > 0.0 && after >= Duration::from_secs_f64(held / 1000.0), "{after:?}, {held} ms");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_frozen_beyond_its_lease_changes_no_permit() {
    let redis = Redis::start();
    let gates = [(); 2].map(|()| Arc::new(Semaphore::new(0)));
    let behind = gates.clone();
    let upstream = Upstream::start(move |call| match call.target.as_str() {
        "/sleeper/search" => Reply::ok().behind(&behind[0]),
        "/heir/search" => Reply::ok().behind(&behind[1]),
        _ => Reply::ok(),
    })
    .await;
    let [mut sleeper, other] = two_gateways(&config(&redis, &upstream, ONE_SHORT)).await;
    let mut slept = sleeper.ask("/sleeper/search", &[]).await;
    until_asked(&upstream, 1).await;
    sleeper.signal("STOP");
    let mut heir = other.ask("/heir/search", &[]).await;
    until_asked(&upstream, 2).await;
    let mut third = other.ask("/search", &[]).await;
    other.until_waiting("search", 1).await;

    sleeper.signal("CONT");
    eventually("it learns that its lease is gone", async || {
        let expired = "a lease expired while it was held";
        sleeper.events().iter().any(|event| event["message"] == expired).then_some(())
    })
    .await;
    gates[0].add_permits(1);
    assert_passed(&mut slept).await;
    // When it has ended, all that it had to give back has arrived.
    sleeper.signal("TERM");
    assert!(sleeper.end().await.success());

    let ended = Instant::now();
    gates[1].add_permits(1);
    assert_passed(&mut heir).await;
    assert_passed(&mut third).await;
    let arrivals = upstream.arrivals();
    assert_eq!(arrivals.len(), 3);
    assert!(arrivals[2] >= ended, "the third came while the heir's call was running");
}
