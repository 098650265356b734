//! Several accounts of one upstream: the earliest slot, rejected credentials, refusals, spill-over, and what is never shown.

mod pairs;

use crate::support::{
    Call, Conn, Gateway, Reply, Upstream, closed, eventually, reply, request, service_address,
    store,
};
use parking_lot::Mutex;
use rstest::rstest;
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use tokio::{task::JoinSet, time::Instant};

const REJECTED: &str = r#"{"message": "Bad credentials"}"#;
const THREE: &str = "accounts:\n      - { name: one, headers: { authorization: 'Bearer secret-1' } }\n      \
                     - { name: two, headers: { authorization: 'Bearer secret-2' } }\n      \
                     - { name: three, headers: { authorization: 'Bearer secret-3' } }";

/// The answers of a vendor to the calls with each credential; 200 without one.
type Verdicts = Arc<Mutex<BTreeMap<&'static str, (&'static str, &'static str)>>>;

/// A vendor that answers the calls with a credential as `verdicts` says.
async fn vendor(verdicts: &Verdicts) -> Upstream {
    let verdicts = verdicts.clone();
    Upstream::start(move |call: &Call| {
        let own = call.head.get("authorization").unwrap_or("none").to_owned();
        match verdicts.lock().get(own.as_str()) {
            Some((status, body)) => {
                reply(status, &[("Content-Type", "application/json"), ("Retry-After", "30")], body)
            }
            None => Reply::ok(),
        }
    })
    .await
}

/// A gateway before `upstream` with these accounts, and one limiter for each quota.
async fn gateway(
    upstream: &Upstream,
    store: &str,
    accounts: &str,
    limiter: &str,
    more: &str,
) -> Gateway {
    let yaml = format!(
        "{store}\naccess_log: json\n\
         upstreams:\n  api:\n    url: {}\n    {accounts}\n    {more}\n\
         limiters: {{ quota: {{ {limiter}, key: '{{account.quota}}' }} }}\n\
         routes: [{{ name: all, suffix: '*', max_wait: 20s, limiters: [quota] }}]",
        upstream.url()
    );
    Gateway::start_with(&yaml, &[("PACEWAY_LOG".into(), "debug".into())]).await
}

/// The calls with each credential so far.
fn by_credential(upstream: &Upstream) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for call in upstream.calls() {
        let own = call.head.get("authorization").unwrap_or("none");
        *counts.entry(own.trim_start_matches("Bearer ").to_owned()).or_default() += 1;
    }
    counts
}

#[rstest]
#[case::bucket("rate: 2/s, burst: 1")]
#[case::leaky("algorithm: leaky_bucket, rate: 2/s")]
#[case::fair("rate: 2/s, burst: 1, fair: { by: '{header.x-team}' }")]
#[tokio::test(flavor = "multi_thread")]
async fn each_call_takes_the_account_with_the_earliest_slot(
    #[case] limiter: &str,
    #[values(false, true)] is_redis: bool,
) {
    let (_redis, store) = store(is_redis);
    let upstream = vendor(&Verdicts::default()).await;
    let gateway = Arc::new(gateway(&upstream, &store, THREE, limiter, "").await);
    let mut calls = JoinSet::new();
    for _ in 0..12 {
        let gateway = gateway.clone();
        calls.spawn(async move { gateway.get("/a").await.status });
    }
    let statuses = calls.join_all().await;
    assert!(statuses.iter().all(|status| *status == 200), "{statuses:?}");
    // Four slots of each, half a second apart.
    let counts = by_credential(&upstream);
    assert_eq!(
        counts,
        [("secret-1", 4), ("secret-2", 4), ("secret-3", 4)].map(|(k, n)| (k.to_owned(), n)).into()
    );
    let arrivals = upstream.arrivals();
    let span = *arrivals.last().expect("one") - arrivals[0];
    assert!(span >= Duration::from_millis(1400), "{span:?}");
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_call_takes_an_account_with_a_free_permit(#[values(false, true)] is_redis: bool) {
    let (gate, (_redis, store)) = (closed(), store(is_redis));
    let behind = gate.clone();
    let upstream = Upstream::start(move |_: &Call| Reply::ok().behind(&behind)).await;
    let limiter = "algorithm: concurrency, max: 1";
    let gateway = Arc::new(gateway(&upstream, &store, THREE, limiter, "").await);
    let mut calls = JoinSet::new();
    for _ in 0..6 {
        let gateway = gateway.clone();
        calls.spawn(async move { gateway.get("/a").await.status });
    }
    gateway.until_waiting("all", 3).await;
    eventually("a call with each account", async || {
        let held = by_credential(&upstream);
        (held.len() == 3 && held.values().all(|calls| *calls == 1)).then_some(())
    })
    .await;
    gate.add_permits(6);
    let statuses = calls.join_all().await;
    assert!(statuses.iter().all(|status| *status == 200), "{statuses:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn accounts_are_chosen_by_shares_while_the_store_is_away() {
    let (redis, store) = store(true);
    let upstream = vendor(&Verdicts::default()).await;
    let gateway = gateway(&upstream, &store, THREE, "rate: 2/h, burst: 2", "").await;
    assert_eq!(gateway.get("/a").await.status, 200);
    drop(redis);
    let mut statuses = Vec::new();
    for _ in 0..8 {
        statuses.push(gateway.get("/a").await.status);
    }
    // Six permits in all, one of which was used before.
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 5, "{statuses:?}");
    assert!(by_credential(&upstream).values().all(|calls| *calls == 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn another_proxy_gets_the_headers_of_the_account() {
    let upstream = Upstream::ok().await;
    let yaml = format!(
        "services: {{ forward_auth: 127.0.0.1:0 }}\nupstreams: {{ api: {{ url: {}, \
         accounts: [{{ name: one, headers: {{ authorization: 'Bearer secret-1' }} }}] }} }}\n\
         limiters: {{ quota: {{ rate: 5/s, key: '{{account}}' }} }}\n\
         routes: [{{ suffix: '*', limiters: [quota] }}]",
        upstream.url()
    );
    let gateway = Gateway::start(&yaml).await;
    let service = service_address(&gateway, "forward_auth");
    let mut conn = Conn::to(service).await.expect("a connection");
    conn.send(request("GET", "/", &[("X-Original-URI", "/a")])).await.expect("send");
    let answer = conn.answer_to("GET").await.expect("an answer");
    assert_eq!((answer.status, answer.field("paceway-account")), (200, Some("one")));
    assert_eq!(answer.field("authorization"), Some("Bearer secret-1"));
}

#[tokio::test(flavor = "multi_thread")]
async fn accounts_of_one_quota_share_it() {
    let upstream = vendor(&Verdicts::default()).await;
    let accounts = "accounts:\n      - { name: a, quota: org, headers: { authorization: 'Bearer a' } }\n      \
                    - { name: b, quota: org, headers: { authorization: 'Bearer b' } }";
    let gateway = gateway(&upstream, "", accounts, "rate: 1/h, burst: 3", "").await;
    for _ in 0..3 {
        assert_eq!(gateway.get("/a").await.status, 200);
    }
    let refused = gateway.get("/a").await;
    assert_eq!(
        (refused.status, refused.problem().as_str()),
        (429, "quota-exceeded"),
        "{refused:?}"
    );
}

#[rstest]
#[case::by_status("401 Unauthorized", "{}")]
#[case::by_message("403 Forbidden", REJECTED)]
#[tokio::test(flavor = "multi_thread")]
async fn a_rejected_account_is_parked_on_all_gateways(
    #[case] status: &'static str,
    #[case] body: &'static str,
) {
    let (_redis, store) = store(true);
    let verdicts = Verdicts::default();
    let upstream = vendor(&verdicts).await;
    let gateways =
        [(); 2].map(|()| gateway(&upstream, &store, THREE, "rate: 1000/s, burst: 100", ""));
    let [a, b] = gateways;
    let (a, b) = (a.await, b.await);
    verdicts.lock().insert("Bearer secret-1", (status, body));
    let labels = [("upstream", "api"), ("account", "one")];
    for _ in 0..20 {
        let answer = a.get("/a").await;
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    assert_eq!(by_credential(&upstream)["secret-1"], 1);
    b.until_metric("paceway_account_parked", &labels, 1).await;
    for _ in 0..20 {
        let answer = b.get("/a").await;
        assert_eq!(answer.status, 200, "{answer:?}");
        assert_ne!(answer.head.get("paceway-account"), Some("one"));
    }
    assert_eq!(by_credential(&upstream)["secret-1"], 1);
    let moves = a
        .metric("paceway_account_moves_total", &[labels[0], labels[1], ("reason", "parked")])
        .await;
    assert_eq!(moves, 1.0);
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn one_call_tries_an_account_that_was_parked(#[values(false, true)] is_redis: bool) {
    let (_redis, store) = store(is_redis);
    let verdicts = Verdicts::default();
    let upstream = vendor(&verdicts).await;
    verdicts.lock().insert("Bearer secret-1", ("401 Unauthorized", "{}"));
    let gateway =
        gateway(&upstream, &store, THREE, "rate: 1000/s, burst: 100", "park_for: 1s").await;
    assert_eq!(gateway.get("/a").await.status, 200);
    let tried = |upstream: &Upstream| by_credential(upstream).get("secret-1").copied().unwrap_or(0);
    assert_eq!(tried(&upstream), 1);
    // It is still rejected, and still rejected by one call alone.
    let parked = [("upstream", "api"), ("account", "one")];
    eventually("a second try", async || {
        assert_eq!(gateway.get("/a").await.status, 200);
        (tried(&upstream) == 2).then_some(())
    })
    .await;
    assert_eq!(gateway.metric("paceway_account_parked", &parked).await, 1.0);
    verdicts.lock().clear();
    eventually("its use", async || {
        assert_eq!(gateway.get("/a").await.status, 200);
        (tried(&upstream) >= 5).then_some(())
    })
    .await;
    assert_eq!(gateway.metric("paceway_account_parked", &parked).await, 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn all_accounts_parked_is_503_with_the_reason() {
    let verdicts = Verdicts::default();
    let upstream = vendor(&verdicts).await;
    for own in ["Bearer secret-1", "Bearer secret-2", "Bearer secret-3"] {
        verdicts.lock().insert(own, ("401 Unauthorized", "{}"));
    }
    let gateway = gateway(&upstream, "", THREE, "rate: 1000/s, burst: 100", "").await;
    for _ in 0..3 {
        let answer = gateway.get("/a").await;
        assert_eq!(
            (answer.status, answer.problem().as_str()),
            (503, "accounts-parked"),
            "{answer:?}"
        );
        let after: u64 = answer.head.get("retry-after").expect("a time").parse().expect("s");
        assert!((590..=600).contains(&after), "{after}");
    }
    assert_eq!(by_credential(&upstream).values().sum::<usize>(), 3);
}

/// The call that tries the first of them does not answer for the others.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_rejected_trial_moves_to_an_account_that_waits_for_one(
    #[values(false, true)] is_redis: bool,
) {
    let (_redis, store) = store(is_redis);
    let verdicts = Verdicts::default();
    let upstream = vendor(&verdicts).await;
    for own in ["Bearer secret-1", "Bearer secret-2", "Bearer secret-3"] {
        verdicts.lock().insert(own, ("401 Unauthorized", "{}"));
    }
    let gateway =
        gateway(&upstream, &store, THREE, "rate: 1000/s, burst: 100", "park_for: 2s").await;
    assert_eq!(gateway.get("/a").await.status, 503);
    verdicts.lock().remove("Bearer secret-3");
    eventually("the ends of all parks", async || {
        let page = gateway.page("/upstreams/api/accounts").await.json();
        let all = page["accounts"].as_array().expect("accounts").clone();
        all.iter().all(|own| own["state"] == "tried").then_some(())
    })
    .await;
    assert_eq!(gateway.get("/a").await.status, 200);
    let calls = BTreeMap::from([("secret-1", 2), ("secret-2", 2), ("secret-3", 2)]);
    let calls: BTreeMap<_, _> = calls.into_iter().map(|(own, n)| (own.to_owned(), n)).collect();
    assert_eq!(by_credential(&upstream), calls);
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_call_moves_to_another_account(#[values(false, true)] is_redis: bool) {
    let (_redis, store) = store(is_redis);
    let verdicts = Verdicts::default();
    let upstream = vendor(&verdicts).await;
    verdicts.lock().insert("Bearer secret-1", ("429 Too Many Requests", "{}"));
    let gateway = gateway(&upstream, &store, THREE, "rate: 1000/s, burst: 100", "").await;
    let begun = Instant::now();
    for _ in 0..10 {
        let answer = gateway.get("/a").await;
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    // The refusal names 30 s, which no caller has waited.
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    assert_eq!(by_credential(&upstream)["secret-1"], 1);
    let answers = gateway.access();
    let moved = answers.iter().find(|line| line["attempts"] == 2).expect("a moved call");
    assert_ne!(moved["account"], "one");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_pauses_no_limiter_of_other_accounts() {
    let verdicts = Verdicts::default();
    let upstream = vendor(&verdicts).await;
    verdicts.lock().insert("Bearer secret-1", ("429 Too Many Requests", "{}"));
    let gateway = Gateway::start(&format!(
        "upstreams:\n  api:\n    url: {}\n    {THREE}\n\
         limiters: {{ own: {{ rate: 1000/s, key: '{{account}}' }}, all: 1000/s }}\n\
         routes: [{{ name: all, suffix: '*', max_wait: 5s, limiters: [own, all] }}]",
        upstream.url()
    ))
    .await;
    for _ in 0..5 {
        let answer = gateway.get("/a").await;
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    assert_eq!(by_credential(&upstream)["secret-1"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn other_credentials_are_not_parked() {
    let verdicts = Verdicts::default();
    let upstream = vendor(&verdicts).await;
    verdicts.lock().insert("Bearer old", ("401 Unauthorized", "{}"));
    let yaml = |own: &str| {
        format!(
            "upstreams: {{ api: {{ url: {}, \
             accounts: [{{ name: one, headers: {{ authorization: 'Bearer {own}' }} }}] }} }}\n\
             limiters: {{ quota: {{ rate: 5/s, burst: 5, key: '{{account}}' }} }}\n\
             routes: [{{ suffix: '*', limiters: [quota] }}]",
            upstream.url()
        )
    };
    let gateway = Gateway::start(&yaml("old")).await;
    for _ in 0..2 {
        assert_eq!(gateway.get("/a").await.status, 503);
    }
    gateway.rewrite(&yaml("new"));
    assert_eq!(gateway.reload().await.status, 200);
    assert_eq!(gateway.get("/a").await.status, 200);
    assert_eq!(
        by_credential(&upstream),
        [("new", 1), ("old", 1)].map(|(k, n)| (k.to_owned(), n)).into()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_leave_the_queue_of_a_paused_account() {
    let (gate, slow) = (closed(), closed());
    let (behind, is_refused) = (gate.clone(), slow.clone());
    let upstream = Upstream::start(move |call: &Call| {
        if call.target == "/refused" && is_refused.try_acquire().is_ok() {
            return reply("429 Too Many Requests", &[("Retry-After", "60")], "");
        }
        Reply::ok().behind(&behind)
    })
    .await;
    let limiter = "algorithm: concurrency, max: 1";
    let gateway = Arc::new(
        gateway(&upstream, "", THREE, limiter, "throttle: { retry: { attempts: 1 } }").await,
    );
    let mut calls = JoinSet::new();
    for _ in 0..6 {
        let gateway = gateway.clone();
        calls.spawn(async move { gateway.get("/a").await.status });
    }
    gateway.until_waiting("all", 3).await;
    // One call ends, and the next one of its account is refused: that account is paused for a minute.
    slow.add_permits(1);
    let refused = gateway.clone();
    let refused = tokio::spawn(async move { refused.get("/refused").await.status });
    gateway.until_waiting("all", 4).await;
    gate.add_permits(1);
    let first = calls.join_next().await.expect("one").expect("a status");
    assert_eq!(first, 200);
    gate.add_permits(20);
    let statuses = calls.join_all().await;
    assert!(statuses.iter().all(|status| *status == 200), "{statuses:?}");
    assert!([200, 429].contains(&refused.await.expect("a status")));
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_wait_while_another_one_tries_the_last_account() {
    let verdicts = Verdicts::default();
    let upstream = vendor(&verdicts).await;
    verdicts.lock().insert("Bearer secret-1", ("401 Unauthorized", "{}"));
    let accounts = "accounts: [{ name: one, headers: { authorization: 'Bearer secret-1' } }]";
    let gateway =
        gateway(&upstream, "", accounts, "rate: 1000/s, burst: 100", "park_for: 500ms").await;
    assert_eq!(gateway.get("/a").await.status, 503);
    verdicts.lock().clear();
    eventually("the end", async || (gateway.get("/a").await.status == 200).then_some(())).await;
    // The callers that came while it was tried have waited.
    let gateway = Arc::new(gateway);
    let mut calls = JoinSet::new();
    for _ in 0..10 {
        let gateway = gateway.clone();
        calls.spawn(async move { gateway.get("/a").await.status });
    }
    assert!(calls.join_all().await.iter().all(|status| *status == 200));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_moves_with_its_call() {
    let verdicts = Verdicts::default();
    let upstream = vendor(&verdicts).await;
    verdicts.lock().insert("Bearer secret-1", ("401 Unauthorized", "{}"));
    let gateway = gateway(&upstream, "", THREE, "rate: 1000/s, burst: 100", "").await;
    let mut conn = gateway.connect().await;
    let body = "x".repeat(1000);
    let head = request("POST", "/a?b=1", &[("Content-Length", "1000")]);
    conn.send(format!("{head}{body}")).await.expect("send");
    assert_eq!(conn.answer_to("POST").await.expect("an answer").status, 200);
    let calls = upstream.calls();
    assert_eq!(calls.len(), 2);
    assert!(calls.iter().all(|call| call.body == body.as_bytes() && call.target == "/a?b=1"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_is_not_kept_stays_where_it_was() {
    let verdicts = Verdicts::default();
    let upstream = vendor(&verdicts).await;
    verdicts.lock().insert("Bearer secret-1", ("401 Unauthorized", "{}"));
    let gateway = gateway(&upstream, "", THREE, "rate: 1000/s, burst: 100", "").await;
    let mut conn = gateway.connect().await;
    let body = "x".repeat(100_000);
    let head = request("POST", "/a", &[("Content-Length", "100000")]);
    conn.send(format!("{head}{body}")).await.expect("send");
    let answer = conn.answer_to("POST").await.expect("an answer");
    assert_eq!((answer.status, answer.head.get("paceway-account")), (401, Some("one")));
    assert_eq!(gateway.get("/a").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_account_of_another_address_takes_calls_that_others_cannot() {
    let (main, spare) = (vendor(&Verdicts::default()).await, vendor(&Verdicts::default()).await);
    let accounts = format!(
        "accounts:\n      - {{ name: main, headers: {{ authorization: 'Bearer m' }} }}\n      \
         - {{ name: spare, url: '{}/eu', after: 2s, headers: {{ x-api-key: s }} }}",
        spare.url()
    );
    let gateway = gateway(&main, "", &accounts, "rate: 1/s, burst: 1", "").await;
    let mut accounts = Vec::new();
    let mut calls = JoinSet::new();
    // The slots of the first account are 0, 1, 2 s; the one at 3 s would come later than 2 s.
    let gateway = Arc::new(gateway);
    for i in 0..4 {
        let own = gateway.clone();
        calls.spawn(async move {
            let mut conn = own.connect().await;
            conn.send(request("GET", "/a", &[("Authorization", "Bearer of-the-caller")]))
                .await
                .expect("send");
            conn.answer_to("GET").await.expect("an answer")
        });
        if i < 3 {
            gateway.until_waiting("all", i).await;
        }
    }
    for answer in calls.join_all().await {
        assert_eq!(answer.status, 200, "{answer:?}");
        accounts.push(answer.head.get("paceway-account").expect("an account").to_owned());
    }
    accounts.sort();
    assert_eq!(accounts, ["main", "main", "main", "spare"]);
    let call = &spare.calls()[0];
    assert_eq!(call.target, "/eu/a");
    assert_eq!(call.head.get("x-api-key"), Some("s"));
    assert_eq!((call.head.get("authorization"), call.head.get("x_api_key")), (None, None));
    assert_eq!(call.head.get("host"), Some(spare.address().to_string().as_str()));
    assert!(main.calls().iter().all(|call| call.head.get("authorization") == Some("Bearer m")));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_account_that_cannot_be_reached_is_left() {
    let upstream = vendor(&Verdicts::default()).await;
    let gone = vendor(&Verdicts::default()).await.url();
    let accounts = format!(
        "accounts:\n      - {{ name: gone, url: '{gone}', headers: {{ authorization: g }} }}\n      \
         - {{ name: here, headers: {{ authorization: h }} }}"
    );
    // A lone address would be tried again for as long.
    let gateway =
        gateway(&upstream, "", &accounts, "rate: 1000/s, burst: 100", "connect_timeout: 1h").await;
    for _ in 0..4 {
        let answer = gateway.get("/a").await;
        assert_eq!(
            (answer.status, answer.head.get("paceway-account")),
            (200, Some("here")),
            "{answer:?}"
        );
    }
}

/// The one whose address refuses does not keep the right to try from the other.
#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_account_leaves_the_trial_to_another_one() {
    let verdicts = Verdicts::default();
    let upstream = vendor(&verdicts).await;
    let gone = vendor(&Verdicts::default()).await.url();
    verdicts.lock().insert("h", ("401 Unauthorized", "{}"));
    let accounts = format!(
        "accounts:\n      - {{ name: gone, url: '{gone}', headers: {{ authorization: g }} }}\n      \
         - {{ name: here, headers: {{ authorization: h }} }}"
    );
    let gateway = gateway(
        &upstream,
        "",
        &accounts,
        "rate: 1000/s, burst: 100",
        "connect_timeout: 100ms\n    park_for: 1s",
    )
    .await;
    for name in ["gone", "here"] {
        let path = format!("/upstreams/api/accounts/{name}/park");
        let body = r#"{"for": "1s"}"#;
        let length = body.len().to_string();
        let head = request("PUT", &path, &[("Content-Length", &length)]);
        assert_eq!(gateway.admin_request(head + body).await.status, 200);
    }
    verdicts.lock().clear();
    eventually("the end of both parks", async || {
        (gateway.get("/a").await.status == 200).then_some(())
    })
    .await;
    let answer = gateway.get("/a").await;
    assert_eq!((answer.status, answer.head.get("paceway-account")), (200, Some("here")));
}

#[rstest]
#[case::said("on: [5xx], ", 200)]
#[case::not_said("", 500)]
#[tokio::test(flavor = "multi_thread")]
async fn a_failure_moves_a_call_only_where_the_file_says_so(#[case] on: &str, #[case] status: u16) {
    let verdicts = Verdicts::default();
    verdicts.lock().insert("Bearer m", ("500 Internal Server Error", "{}"));
    let upstream = vendor(&verdicts).await;
    let accounts = format!(
        "accounts:\n      - {{ name: main, headers: {{ authorization: 'Bearer m' }} }}\n      \
         - {{ name: spare, {on}after: 1h, headers: {{ authorization: 'Bearer s' }} }}"
    );
    let gateway = gateway(&upstream, "", &accounts, "rate: 1000/s, burst: 100", "").await;
    assert_eq!(gateway.get("/a").await.status, status);
    // A call that may have had an effect is not made twice.
    let mut conn: Conn = gateway.connect().await;
    conn.send(request("POST", "/a", &[("Content-Length", "0")])).await.expect("send");
    assert_eq!(conn.answer_to("POST").await.expect("an answer").status, 500);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_secret_of_an_account_is_shown() {
    let verdicts = Verdicts::default();
    let upstream = vendor(&verdicts).await;
    verdicts.lock().insert("Bearer secret-1", ("401 Unauthorized", "{}"));
    let gateway = gateway(&upstream, "", THREE, "rate: 1000/s, burst: 100", "").await;
    assert_eq!(gateway.get("/a").await.status, 200);
    for page in [
        "/status",
        "/limiters",
        "/limiters/quota/keys",
        "/upstreams",
        "/requests",
        "/metrics",
        "/readyz",
    ] {
        let shown = gateway.page(page).await.text();
        assert!(!shown.contains("secret-"), "{page}: {shown}");
    }
    let (stdout, stderr) = gateway.output();
    assert!(!stdout.iter().chain(&stderr).any(|line| line.contains("secret-")), "{stderr:?}");
}

#[rstest]
#[case::no_accounts("", "has the limiter `quota`, whose key names the account of a request")]
#[case::twice("accounts: [{ name: a }, { name: a }]", "`a` is named twice")]
#[case::no_name("accounts: [{ headers: { a: b } }]", "accounts[0].name: is missing")]
#[case::a_map("accounts: { a: { headers: { a: b } } }", "must be a list")]
#[case::a_status("accounts: [{ name: a, on: [200] }]", "is no status of a failure")]
#[case::alone("park_for: 5s", "is for upstreams with `accounts`")]
fn mistakes_in_accounts_have_a_cure(#[case] lines: &str, #[case] expected: &str) {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("paceway.yaml");
    let yaml = format!(
        "upstreams:\n  api:\n    url: http://127.0.0.1:1\n    {lines}\n\
         limiters: {{ quota: {{ rate: 5/s, key: '{{account.quota}}' }} }}\n\
         routes: [{{ suffix: '*', limiters: [quota] }}]\n"
    );
    std::fs::write(&file, yaml).expect("write");
    let said = crate::support::paceway(&["check", file.to_str().expect("a path")]);
    let said =
        String::from_utf8_lossy(&said.stderr).into_owned() + &String::from_utf8_lossy(&said.stdout);
    assert!(said.contains(expected), "{said}");
}
