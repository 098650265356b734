//! Requests that leave while they wait: their slots are used by those who wait for later ones, over all gateways.

use crate::{
    support::{Cluster, Gateway, PATIENCE, Redis, Upstream, assert_lawful},
    twins::{T0, connect},
};
use paceway::{
    algorithm::{
        Algorithm, CalendarWindow, FixedWindow, LeakyBucket, SlidingWindow, TokenBucket, WarmUp,
        reserve,
    },
    store::{Check, Decision, Entry, Reply},
};
use rstest::rstest;
use std::{
    io::{BufRead, BufReader, Write},
    net::TcpStream,
    sync::Arc,
    time::Duration,
};
use tokio::{task::JoinHandle, time::Instant};

/// Permits a second.
const RATE: u64 = 4;
/// Requests that leave, all in one gateway, and those that stay in each of the two others.
const LEAVE: usize = 48;
const STAY: usize = 6;
const SECOND: i64 = 1_000_000;

fn requests(gateway: &Arc<Gateway>, count: usize) -> Vec<JoinHandle<Instant>> {
    let one = |_| {
        let gateway = gateway.clone();
        tokio::spawn(async move {
            assert_eq!(gateway.get("/x").await.status, 200);
            Instant::now()
        })
    };
    (0..count).map(one).collect()
}

/// 48 requests wait in one gateway, 12 s at 4/s; then six in each of two others. When the 48 leave, the others need not
/// wait for the twelve seconds to pass.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn slots_of_cancelled_requests_are_used_by_other_gateways(
    #[values(false, true)] is_cluster: bool,
) {
    let (redis, cluster) = match is_cluster {
        true => (None, Some(Cluster::start(3, 0).await)),
        false => (Some(Redis::start()), None),
    };
    let urls = (redis.as_ref().map(Redis::url), cluster.as_ref().map(Cluster::url));
    let (upstream, url) = (Upstream::ok().await, urls.0.or(urls.1).expect("a store"));
    let yaml = format!(
        "store: {{ url: \"{url}\", timeout: 500ms }}
upstream: {}
limiters: {{ vendor: {{ rate: {RATE}/s, burst: 1 }} }}
routes: [{{ name: x, suffix: /x, limiters: [vendor], max_wait: 60s }}]
",
        upstream.url()
    );
    let mut gateways = Vec::new();
    for _ in 0..3 {
        gateways.push(Arc::new(Gateway::start(&yaml).await));
    }
    let start = Instant::now();
    let leave = requests(&gateways[0], LEAVE);
    gateways[0].until_waiting("x", LEAVE - 4).await;
    let stay: Vec<_> = gateways[1..].iter().flat_map(|gateway| requests(gateway, STAY)).collect();
    for gateway in &gateways[1..] {
        gateway.until_waiting("x", STAY).await;
    }
    // The slot of the first of those that stay.
    let promised = start + Duration::from_secs((LEAVE as u64 - 1) / RATE);
    leave.iter().for_each(JoinHandle::abort);
    let mut last = start;
    for request in stay {
        last = last.max(request.await.expect("an answer"));
    }
    assert!(last < promised, "{:?} before the first was promised its slot", last - promised);
    assert_lawful(start, &upstream.arrivals(), 1.0, RATE as f64);
}

/// Three requests take slots of a limiter that has one slot at a time. A slot that is refunded before others is published
/// with the time until the next free one; the last slot is not, nor is one for which no request can wait.
#[rstest]
#[case::token_bucket('T', TokenBucket::new(1, SECOND, 1).map(Algorithm::TokenBucket))]
#[case::leaky_bucket('L', LeakyBucket::new(1, SECOND, 0, None).map(Algorithm::LeakyBucket))]
#[case::sliding_window('S', SlidingWindow::new(1, SECOND, 0).map(Algorithm::SlidingWindow))]
#[case::fixed_window('F', FixedWindow::new(1, SECOND).map(Algorithm::FixedWindow))]
#[case::calendar_window('D', CalendarWindow::new(1, [1, 2, 3].map(|second| second * SECOND)).map(Algorithm::from))]
#[case::warm_up('W', WarmUp::new(1, SECOND, 1_000, 1.1).map(Algorithm::WarmUp))]
#[tokio::test]
async fn a_slot_freed_before_taken_ones_is_published(
    #[case] letter: char,
    #[case] algorithm: Option<Algorithm>,
) {
    let redis = Redis::start();
    let store = connect(&redis).await;
    let mut messages = TcpStream::connect(("127.0.0.1", redis.port())).expect("a connection");
    messages.set_read_timeout(Some(PATIENCE)).expect("a limit");
    messages.write_all(b"SUBSCRIBE paceway:call:pauses\r\n").expect("a subscription");
    let mut messages = BufReader::new(messages).lines().map(|line| line.expect("a line"));
    assert!(messages.any(|line| line == ":1"));

    let check = Check::new(format!("{{k}}:{letter}"), algorithm.expect("a rule"));
    let ask = Entry::Reserve { checks: [check.clone()].into(), budget: 60 * SECOND, ticket: None };
    let replies = store.run_at(Some(T0), &[ask.clone(), ask.clone(), ask.clone(), ask]).await;
    let replies = replies.expect("replies");
    let part = |i: usize| match &replies[i] {
        Reply::Decision(Decision { parts, .. }) => parts[0],
        reply => panic!("{reply:?}"),
    };
    let refund = |reserve::Part { grant, .. }| Entry::Refund { check: check.clone(), grant };
    // The fourth is the last of the line, and after it the third. Then the second leaves the first alone.
    store.run_at(Some(T0), &[refund(part(3))]).await.expect("a reply");
    store.run_at(Some(T0), &[refund(part(1))]).await.expect("a reply");
    store.run_at(Some(T0), &[refund(part(2))]).await.expect("a reply");
    redis.command(&["PUBLISH", "paceway:call:pauses", "{k} end"]);
    let told: Vec<_> = messages
        .filter(|line| line.starts_with("{k}"))
        .take_while(|line| line != "{k} end")
        .collect();
    // In a window a request that waits may take the place of its own permits at any instant.
    let at = if letter == 'S' { 0 } else { part(1).at };
    assert_eq!(told, [format!("{} {at} free", check.key)]);
}
