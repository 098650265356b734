//! Stores of every kind: over TLS, through a socket, behind Sentinels, as a Cluster. Two gateways share each limit, and
//! continue when servers change their places.

mod cluster;

use crate::support::{
    Authority, Gateway, Redis, Reply, Said, Sentinels, Upstream, eventually, free_port, rights,
    self_signed,
};
use rstest::rstest;
use std::{fs, sync::Arc};
use tokio::sync::Semaphore;

/// `{TAG}` of the keys of each limiter's group is its name: no route uses two together. Tests count the calls of the store,
/// so each rate is below 1000/s, from which on a call takes permits for further requests as well.
const LIMITERS: &str =
    "{ pair: 999/s, pear: 999/s, five: 5/day, many: 999/s, more: 999/s, fifty: 50/day,
  keyed: { rate: 999/s, key: \"{query.k}\" },
  place: { algorithm: concurrency, max: 1, lease: 60s } }";

/// Starts two gateways. Most waits are short, because after a failover nothing is granted for as long. Without the store
/// nothing is granted at all, so that a test sees the store's decisions only.
///
/// `store` is a URL, followed by more keys of `store`.
async fn two(store: &str, upstream: &Upstream) -> [Arc<Gateway>; 2] {
    let routes = ["five", "many", "more", "fifty", "keyed", "place"]
        .map(|name| format!("{{ suffix: /{name}, limiters: [{name}], max_wait: WAIT }}"));
    // A group with two keys.
    let both = "{ suffix: /both, limiters: [pair, pear], max_wait: 100ms }";
    let (url, more) = store.split_once(", ").expect("a time-out");
    let yaml = format!(
        "store: {{ url: \"{url}\", {more}, on_failure: reject }}
workers: 2
upstream: {}
limiters: {LIMITERS}
routes: [{both}, {}]
",
        upstream.url(),
        routes
            .join(", ")
            .replace("five], max_wait: WAIT", "five], max_wait: 0")
            .replace("fifty], max_wait: WAIT", "fifty], max_wait: 0")
            .replace("place], max_wait: WAIT", "place], max_wait: 30s")
            .replace("WAIT", "100ms"),
    );
    [Arc::new(Gateway::start(&yaml).await), Arc::new(Gateway::start(&yaml).await)]
}

/// Five of ten requests pass, whichever gateway is asked.
async fn assert_shared(gateways: &[Arc<Gateway>; 2]) {
    let mut passed = 0;
    for gateway in gateways.iter().cycle().take(10) {
        let answer = gateway.get("/five").await;
        assert!(matches!(answer.status, 200 | 429), "{answer:?}");
        passed += usize::from(answer.status == 200);
    }
    assert_eq!(passed, 5);
}

/// A request that waits for a place is called when one is free, whichever gateway frees it.
async fn assert_called(gateways: &[Arc<Gateway>; 2], gate: &Semaphore) {
    let mut first = gateways[0].ask("/place", &[]).await;
    eventually("the place is taken", async || {
        (gateways[1].limiter("place").await["level"] == 0).then_some(())
    })
    .await;
    let mut second = gateways[1].ask("/place", &[]).await;
    gateways[1].until_waiting("/place", 1).await;
    gate.add_permits(2);
    assert_eq!(first.answer().await.expect("an answer").status, 200);
    // Far sooner than the lease ends.
    assert_eq!(second.answer().await.expect("an answer").status, 200);
}

/// Answers calls for the place when its gate has permits, all others at once.
async fn upstream() -> (Upstream, Arc<Semaphore>) {
    let gate = Arc::new(Semaphore::new(0));
    let behind = gate.clone();
    let upstream = Upstream::start(move |call| match call.head.start.contains("/place") {
        true => Reply::ok().behind(&behind),
        false => Reply::ok(),
    });
    (upstream.await, gate)
}

/// Two gateways on a store share a limit and call each other, and have nothing to complain of.
async fn assert_works(store: &str) -> ([Arc<Gateway>; 2], Upstream) {
    let (upstream, gate) = upstream().await;
    let gateways = two(store, &upstream).await;
    assert_shared(&gateways).await;
    assert_called(&gateways, &gate).await;
    for gateway in &gateways {
        let complaints: Vec<_> =
            gateway.events().into_iter().filter(|event| event["level"] == "WARN").collect();
        assert!(complaints.is_empty(), "{complaints:?}");
    }
    (gateways, upstream)
}

/// Twenty requests in a row pass: each worker gets some of them.
async fn until_steady(gateway: &Gateway, path: &str) {
    eventually(&format!("{path} works"), async || {
        for _ in 0..20 {
            if gateway.get(path).await.status != 200 {
                return None;
            }
        }
        Some(())
    })
    .await;
}

// ------------------------------------------------------------------------------------------- one server

#[rstest]
#[case::tls_1_3("no", "TLSv1.3")]
#[case::tls_1_2_with_certificates_of_ours("yes", "TLSv1.2")]
#[tokio::test(flavor = "multi_thread")]
async fn a_store_works_over_tls(#[case] who: &str, #[case] version: &str) {
    let authority = Authority::new();
    let (words, port) = authority.arguments("redis.internal", who);
    let mut words: Vec<&str> = words.iter().map(String::as_str).collect();
    words.extend(["--tls-protocols", version]);
    let _redis = Redis::with(&words);
    let (ca, (cert, key)) = (authority.file(), authority.files("paceway"));
    let ours = if who == "yes" { format!(", cert: {cert}, key: {key}") } else { String::new() };
    let tls = format!("tls: {{ ca: {ca}, server_name: redis.internal{ours} }}");
    assert_works(&format!("rediss://127.0.0.1:{port}, timeout: 2s, {tls}")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_with_a_certificate_that_is_its_own_authority_is_used_over_tls() {
    let (dir, own) =
        (tempfile::tempdir().expect("a directory"), self_signed("redis.internal", |_| {}));
    let path = |name: &str| dir.path().join(name).display().to_string();
    let (cert, key, port) = (path("cert.pem"), path("key.pem"), free_port());
    fs::write(&cert, &own.0).expect("a file");
    fs::write(&key, &own.1).expect("a file");
    let port_text = port.to_string();
    let _redis = Redis::with(&[
        "--tls-port",
        &port_text,
        "--tls-cert-file",
        &cert,
        "--tls-key-file",
        &key,
        "--tls-ca-cert-file",
        &cert,
        "--tls-auth-clients",
        "no",
    ]);
    let tls = format!("tls: {{ ca: {cert}, server_name: redis.internal }}");
    assert_works(&format!("rediss://127.0.0.1:{port}, timeout: 2s, {tls}")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_works_through_a_unix_socket() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("redis.sock");
    let path = path.to_str().expect("a readable path");
    let _redis = Redis::with(&["--unixsocket", path, "--requirepass", "a/b"]);
    assert_works(&format!("unix://:a%2Fb@{path}?database=3, timeout: 2s")).await;
}

fn set_user(redis: &Redis, rights: &[&str]) {
    let words = ["ACL", "SETUSER", "paceway", "reset", "on", ">secret"];
    let said = redis.command(&[&words, rights].concat());
    assert_eq!(said, Said::Line("OK".into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_works_with_the_documented_rights() {
    let redis = Redis::start();
    set_user(&redis, &rights());
    redis.command(&["CONFIG", "SET", "requirepass", "another"]);
    assert_works(&format!("redis://paceway:secret@127.0.0.1:{}/0, timeout: 2s", redis.port()))
        .await;
}

// -------------------------------------------------------------------------------------------- Sentinels

#[tokio::test(flavor = "multi_thread")]
async fn a_store_works_with_sentinels() {
    let mut sentinels = Sentinels::start().await;
    for server in &sentinels.servers {
        set_user(server, &[&rights()[..], &["+role"]].concat());
    }
    let asks = "+sentinel|get-master-addr-by-name";
    sentinels.all(&["ACL", "SETUSER", "ann", "on", ">hidden", "-@all", asks]);
    let url = sentinels.url().replace("//", "//paceway:secret@");
    let url = format!("{url}?sentinel_user=ann&sentinel_password=hidden");
    // The first one that is asked need not live.
    sentinels.kill_one();
    assert_works(&format!("{url}, timeout: 2s")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_demoted_master_is_replaced_by_the_new_one() {
    let sentinels = Sentinels::start().await;
    let (upstream, _gate) = upstream().await;
    let gateways = two(&format!("{}, timeout: 200ms", sentinels.url()), &upstream).await;
    assert_shared(&gateways).await;
    // It still answers, READONLY, on the connections that it has.
    let new = sentinels.servers[1].port().to_string();
    assert_eq!(sentinels.servers[1].command(&["REPLICAOF", "NO", "ONE"]), Said::Line("OK".into()));
    let said = sentinels.servers[0].command(&["REPLICAOF", "127.0.0.1", &new]);
    assert_eq!(said, Said::Line("OK".into()));
    // By themselves they believe it for half a minute.
    sentinels.name(1);
    for gateway in &gateways {
        gateway.until_answered("/many", 200).await;
    }
}

/// It lives and answers, as on the wrong side of a split network; what the Sentinels say counts.
#[tokio::test(flavor = "multi_thread")]
async fn a_master_unknown_to_the_sentinels_is_disconnected() {
    let sentinels = Sentinels::start().await;
    let (upstream, _gate) = upstream().await;
    let gateways = two(&format!("{}, timeout: 2s", sentinels.url()), &upstream).await;
    for gateway in &gateways {
        until_steady(gateway, "/many").await;
    }
    assert_eq!(sentinels.servers[1].command(&["REPLICAOF", "NO", "ONE"]), Said::Line("OK".into()));
    sentinels.name(1);
    let calls = |server: usize| sentinels.servers[server].calls_of("fcall");
    eventually("no gateway asks the old one", async || {
        let before = [calls(0), calls(1)];
        for gateway in &gateways {
            for _ in 0..20 {
                gateway.get("/many").await;
            }
        }
        (calls(0) == before[0] && calls(1) >= before[1] + 40).then_some(())
    })
    .await;
}

// -------------------------------------------------------------------------------------------- a Cluster

fn key(limiter: &str) -> String {
    format!("paceway:{{{limiter}}}")
}
