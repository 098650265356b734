//! Accounts together with another feature: reloads within a trial, reads that share one call or are confirmed, costs that come back, and
//! keys with a rate of their own.

use super::{REJECTED, THREE, Verdicts, by_credential, gateway, vendor};
use crate::support::{
    Answer, Call, Conn, Gateway, Reply, Upstream, closed, eventually, reply, request, store,
};
use parking_lot::Mutex;
use rstest::rstest;
use serde_json::{Value, json};
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::SeqCst},
};
use tokio::task::JoinSet;

/// Two accounts that take the calls which failed with the other one.
const TWO: &str = "accounts:\n      - { name: one, on: [5xx], headers: { authorization: one } }\n      \
                   - { name: two, on: [5xx], headers: { authorization: two } }";

/// The calls with a credential so far.
fn count_of(upstream: &Upstream, credential: &str) -> usize {
    by_credential(upstream).get(credential).copied().unwrap_or(0)
}

/// The credential of a call.
fn credential(call: &Call) -> &str {
    call.head.get("authorization").unwrap_or("none")
}

async fn ask(gateway: &Gateway, target: &str) -> Conn {
    gateway.ask(target, &[]).await
}

async fn change(gateway: &Gateway, method: &str, path: &str, body: &Value) -> Answer {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let length = body.len().to_string();
    let head = request(method, path, &[("Content-Length", &length)]);
    gateway.admin_request(head + &body).await
}

/// Waits until an account has so many permits left of a limiter.
async fn until_left(gateway: &Gateway, account: &str, permits: i64) {
    eventually(&format!("{account} has {permits} permits"), async || {
        let page = gateway.page(&format!("/limiters/tokens/keys/{account}")).await.json();
        (page["level"] == permits).then_some(())
    })
    .await;
}

#[rstest]
#[case::answered(true)]
#[case::left_by_its_client(false)]
#[tokio::test(flavor = "multi_thread")]
async fn a_trial_outlives_a_reload(
    #[case] is_answered: bool,
    #[values(false, true)] is_redis: bool,
) {
    let (gate, rejects, (_redis, store)) =
        (closed(), Arc::new(AtomicBool::new(true)), store(is_redis));
    let (behind, is_rejected) = (gate.clone(), rejects.clone());
    let upstream = Upstream::start(move |call: &Call| match credential(call) {
        "Bearer secret-1" if is_rejected.load(SeqCst) => reply("401 Unauthorized", &[], REJECTED),
        "Bearer secret-1" => Reply::ok().behind(&behind),
        _ if call.target == "/slow" => Reply::ok().behind(&behind),
        _ => Reply::ok(),
    })
    .await;
    let limiter = "algorithm: sliding_window, rate: 10000/day";
    let gateway = gateway(&upstream, &store, THREE, limiter, "park_for: 4s").await;
    assert_eq!(gateway.get("/a").await.status, 200);
    rejects.store(false, SeqCst);
    // The third account has most permits left.
    let held = ask(&gateway, "/slow").await;
    eventually("a call with the third account", async || {
        (count_of(&upstream, "secret-3") == 1).then_some(())
    })
    .await;
    let mut tries = Vec::new();
    // The next one would be 4 s later.
    eventually("a trial", async || {
        tries.push(ask(&gateway, "/try").await);
        (count_of(&upstream, "secret-1") == 2).then_some(())
    })
    .await;
    let text = std::fs::read_to_string(gateway.file()).expect("the file");
    let gone = text.lines().filter(|line| !line.contains("name: three"));
    gateway.rewrite(&gone.collect::<Vec<_>>().join("\n"));
    assert_eq!(gateway.reload().await.status, 200);
    for _ in 0..5 {
        let answer = gateway.get("/a").await;
        assert_eq!(
            (answer.status, answer.field("paceway-account")),
            (200, Some("two")),
            "{answer:?}"
        );
    }
    assert_eq!(count_of(&upstream, "secret-1"), 2, "the trial continues");
    if !is_answered {
        tries.clear();
        gateway.until_counted("all", "cancelled", 1).await;
    }
    gate.add_permits(1000);
    let mut answered = Vec::new();
    for mut conn in [held].into_iter().chain(tries) {
        let answer = conn.answer().await.expect("an answer");
        assert_eq!(answer.status, 200, "{answer:?}");
        answered.push(answer.field("paceway-account").expect("an account").to_owned());
    }
    assert_eq!(answered[0], "three", "the call with an account that is gone");
    assert_eq!(answered.iter().any(|account| account == "one"), is_answered, "{answered:?}");
    eventually("its use", async || {
        assert_eq!(gateway.get("/a").await.status, 200);
        (count_of(&upstream, "secret-1") >= 5).then_some(())
    })
    .await;
    let parked = [("upstream", "api"), ("account", "one")];
    assert_eq!(gateway.metric("paceway_account_parked", &parked).await, 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn new_credentials_are_not_counted_as_parked() {
    let verdicts = Verdicts::default();
    verdicts.lock().insert("Bearer secret-1", ("401 Unauthorized", "{}"));
    let upstream = vendor(&verdicts).await;
    let gateway = gateway(&upstream, "", THREE, "rate: 1000/s, burst: 100", "").await;
    assert_eq!(gateway.get("/a").await.status, 200);
    let parked = [("upstream", "api"), ("account", "one")];
    assert_eq!(gateway.metric("paceway_account_parked", &parked).await, 1.0);
    let text = std::fs::read_to_string(gateway.file()).expect("the file");
    gateway.rewrite(&text.replace("20s", "21s"));
    assert_eq!(gateway.reload().await.status, 200);
    assert_eq!(
        gateway.metric("paceway_account_parked", &parked).await,
        1.0,
        "it is the same account"
    );
    gateway.rewrite(&text.replace("secret-1", "secret-4"));
    assert_eq!(gateway.reload().await.status, 200);
    assert_eq!(gateway.metric("paceway_account_parked", &parked).await, 0.0);
}

/// The call with them has left before the reload.
#[tokio::test(flavor = "multi_thread")]
async fn a_rejection_of_former_credentials_parks_no_new_ones() {
    let gate = closed();
    let behind = gate.clone();
    let upstream = Upstream::start(move |call: &Call| match credential(call) {
        "Bearer secret-1" => reply("401 Unauthorized", &[], REJECTED).behind(&behind),
        _ => Reply::ok(),
    })
    .await;
    let gateway = gateway(&upstream, "", THREE, "rate: 1000/s, burst: 100", "").await;
    let mut held = ask(&gateway, "/a").await;
    eventually("the call", async || (count_of(&upstream, "secret-1") == 1).then_some(())).await;
    let text = std::fs::read_to_string(gateway.file()).expect("the file");
    gateway.rewrite(&text.replace("secret-1", "secret-4"));
    assert_eq!(gateway.reload().await.status, 200);
    gate.add_permits(1);
    assert_eq!(held.answer().await.expect("an answer").status, 200);
    for _ in 0..3 {
        assert_eq!(gateway.get("/a").await.status, 200);
    }
    let calls = by_credential(&upstream);
    assert!(calls["secret-1"] == 1 && calls["secret-4"] > 0, "{calls:?}");
    let parked = [("upstream", "api"), ("account", "one")];
    assert_eq!(gateway.metric("paceway_account_parked", &parked).await, 0.0);
}

/// Two accounts with one call at a time each, and reads that share their calls.
async fn sharing(upstream: &Upstream, store: &str) -> Gateway {
    Gateway::start(&format!(
        "{store}\nworkers: 2\nupstreams:\n  api:\n    url: {}\n    {TWO}\n\
         limiters: {{ one: {{ algorithm: concurrency, max: 1, key: '{{account}}' }} }}\n\
         routes: [{{ name: all, suffix: '*', max_wait: 120s, share: on, limiters: [one] }}]",
        upstream.url()
    ))
    .await
}

/// All of them have one answer, also when the account of their call is rejected.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn identical_reads_share_the_call_with_any_account(
    #[values(false, true)] is_rejected: bool,
    #[values(false, true)] is_redis: bool,
) {
    let (gate, rejects, (_redis, store)) =
        (closed(), Arc::new(AtomicBool::new(is_rejected)), store(is_redis));
    let behind = gate.clone();
    let upstream = Upstream::start(move |call: &Call| match call.target.as_str() {
        "/first" | "/second" => Reply::ok().behind(&behind),
        _ if rejects.swap(false, SeqCst) => reply("401 Unauthorized", &[], REJECTED),
        _ => reply("200 OK", &[], "same"),
    })
    .await;
    let gateway = sharing(&upstream, &store).await;
    let mut held = [ask(&gateway, "/first").await, ask(&gateway, "/second").await];
    eventually("both accounts are used", async || {
        (by_credential(&upstream).len() == 2).then_some(())
    })
    .await;
    let mut same = Vec::new();
    for waiting in 1..=5 {
        same.push(ask(&gateway, "/same").await);
        gateway.until_waiting("all", waiting).await;
    }
    gate.add_permits(2);
    for conn in held.iter_mut().chain(&mut same) {
        assert_eq!(conn.answer().await.expect("an answer").status, 200);
    }
    let calls = upstream.calls();
    let mut made: Vec<_> =
        calls.iter().filter(|call| call.target == "/same").map(credential).collect();
    assert_eq!(made.len(), 1 + usize::from(is_rejected), "{made:?}");
    made.dedup();
    assert_eq!(made.len(), 1 + usize::from(is_rejected), "the second call has another account");
    let saved = [("route", "all"), ("by", "share")];
    assert_eq!(gateway.metric("paceway_saved_permits_total", &saved).await, 4.0);
}

/// A vendor with a version of each URL, and with another document for each credential.
#[derive(Default)]
struct Documents {
    version: usize,
    /// The next call with this credential fails.
    fails: Option<&'static str>,
}

/// The answer of the vendor.
fn document(documents: &Mutex<Documents>, call: &Call) -> Reply {
    let mut documents = documents.lock();
    let own = credential(call);
    if documents.fails.take_if(|fails| *fails == own).is_some() {
        return reply("500 Internal Server Error", &[], "");
    }
    let tag = format!("\"{}\"", documents.version);
    let fields = [("ETag", tag.as_str()), ("Cache-Control", "private"), ("Vary", "Authorization")];
    if call.head.get("if-none-match") == Some(&tag) {
        return reply("304 Not Modified", &fields, "");
    }
    reply("200 OK", &fields, &format!("{own} {}", documents.version))
}

/// All accounts of both routes may read the same URLs, each with another result.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_confirmed_answer_is_that_of_its_account(#[values(false, true)] is_redis: bool) {
    let (documents, (_redis, store)) = (Arc::<Mutex<Documents>>::default(), store(is_redis));
    let shown = documents.clone();
    let upstream = Upstream::start(move |call: &Call| document(&shown, call)).await;
    let gateway = Gateway::start(&format!(
        "{store}\nupstreams:\n  api:\n    url: {0}\n    revalidate: on\n    {TWO}\n\
         \x20 others:\n    url: {0}\n    revalidate: on\n    {1}\n\
         limiters: {{ quota: {{ rate: 1000/s, burst: 100, key: '{{account}}' }} }}\n\
         routes:\n- {{ name: api, host: api.example, suffix: '*', upstream: api, max_wait: 20s, limiters: [quota] }}\n\
         - {{ name: others, host: others.example, suffix: '*', upstream: others, max_wait: 20s, limiters: [quota] }}\n",
        upstream.url(),
        TWO.replace("one", "three").replace("two", "four"),
    ))
    .await;
    let read = async |host: &str| {
        let mut conn = gateway.connect().await;
        conn.send(format!("GET /a HTTP/1.1\r\nHost: {host}\r\n\r\n")).await.expect("send");
        let answer = conn.answer().await.expect("an answer");
        let account = answer.field("paceway-account").expect("an account").to_owned();
        let version = documents.lock().version;
        assert_eq!((answer.status, answer.text()), (200, format!("{account} {version}")));
        account
    };
    for version in 0..3 {
        documents.lock().version = version;
        // The answer of another account is none of the call that moves.
        for fails in [None, Some("one"), Some("three")] {
            documents.lock().fails = fails;
            for _ in 0..4 {
                let own = read("api.example").await;
                assert!(["one", "two"].contains(&own.as_str()), "{own}");
                let own = read("others.example").await;
                assert!(["three", "four"].contains(&own.as_str()), "{own}");
            }
        }
    }
    let calls = upstream.calls();
    let asked = calls.iter().filter(|call| call.head.get("if-none-match").is_some());
    assert!(asked.count() > calls.len() / 2, "most calls ask to confirm what is kept");
}

#[rstest]
#[case::free("1", "304 Not Modified", 99, 100)]
#[case::settled("{ reserve: 10, settle: '{response.header.x-cost}' }", "200 OK", 90, 97)]
#[tokio::test(flavor = "multi_thread")]
async fn a_refund_is_for_the_account_that_was_charged(
    #[case] cost: &str,
    #[case] status: &'static str,
    #[case] failed: i64,
    #[case] answered: i64,
    #[values(false, true)] is_redis: bool,
) {
    let (fails, (_redis, store)) = (Arc::new(AtomicBool::new(true)), store(is_redis));
    let is_failing = fails.clone();
    let upstream = Upstream::start(move |call: &Call| {
        if credential(call) == "one" && is_failing.swap(false, SeqCst) {
            return reply("500 Internal Server Error", &[], "");
        }
        reply(status, &[("X-Cost", "3")], "")
    })
    .await;
    let gateway = Gateway::start(&format!(
        "{store}\nupstreams:\n  api:\n    url: {}\n    throttle: {{ free: [304] }}\n    {TWO}\n\
         limiters: {{ tokens: {{ algorithm: sliding_window, rate: 100/day, key: '{{account}}' }} }}\n\
         routes: [{{ name: all, suffix: '*', max_wait: 20s, limiters: [{{ limiter: tokens, cost: {cost} }}] }}]",
        upstream.url()
    ))
    .await;
    let answer = ask(&gateway, "/a").await.answer().await.expect("an answer");
    assert_eq!(answer.field("paceway-account"), Some("two"), "{answer:?}");
    until_left(&gateway, "one", failed).await;
    until_left(&gateway, "two", answered).await;
    // The next one takes the account with most left, which pays for it alone.
    let answer = ask(&gateway, "/a").await.answer().await.expect("an answer");
    assert_eq!(answer.field("paceway-account"), Some("two"), "{answer:?}");
    until_left(&gateway, "one", failed).await;
    until_left(&gateway, "two", 2 * answered - 100).await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn an_override_of_a_key_holds_for_its_account_alone(#[values(false, true)] is_redis: bool) {
    let (_redis, store) = store(is_redis);
    let upstream = Upstream::ok().await;
    let gateway = Arc::new(
        Gateway::start(&format!(
            "{store}\nupstreams:\n  api:\n    url: {}\n    {TWO}\n\
             limiters: {{ tokens: {{ algorithm: sliding_window, rate: 10/day, key: '{{account}}' }} }}\n\
             routes: [{{ name: all, suffix: '*', limiters: [tokens] }}]",
            upstream.url()
        ))
        .await,
    );
    let path = "/limiters/tokens/keys/one/override";
    let rate = json!({ "rate": "2/day", "for": "1h", "reason": "vendor asked" });
    let said = change(&gateway, "PUT", path, &rate).await;
    assert_eq!(said.status, 200, "{}", said.text());
    let mut calls = JoinSet::new();
    for _ in 0..14 {
        let gateway = gateway.clone();
        calls.spawn(async move { gateway.get("/a").await.status });
    }
    let mut statuses = calls.join_all().await;
    statuses.sort_unstable();
    assert_eq!(statuses, [[200; 12].as_slice(), &[429; 2]].concat());
    assert_eq!((count_of(&upstream, "one"), count_of(&upstream, "two")), (2, 10));
    let said = change(&gateway, "DELETE", path, &Value::Null).await;
    assert_eq!(said.status, 200, "{}", said.text());
    let answer = gateway.get("/a").await;
    assert_eq!((answer.status, answer.field("paceway-account")), (200, Some("one")), "{answer:?}");
}
