//! `on_loss`: a daily quota after a restart of a Redis that keeps its data, and after one that has lost it; and how operators
//! and callers learn which limiters are closed.

use crate::support::{Conn, Gateway, Redis, Upstream, eventually, request};
use rstest::rstest;
use serde_json::Value;

fn yaml(redis: &Redis, upstream: &Upstream) -> String {
    format!(
        "store: {{ url: \"{}\", timeout: 10s, on_failure: reject, on_loss: trust }}
upstream: {}
limiters:
  trusting: {{ algorithm: fixed_window, rate: 3/day }}
  closing: {{ algorithm: fixed_window, rate: 3/day, on_loss: close }}
  keyed: {{ rate: 1/hour, burst: 3, on_loss: close, key: \"{{query.k}}\" }}
  permits: {{ algorithm: concurrency, max: 2, lease: 1h, on_loss: close }}
routes:
  - {{ suffix: /trusting, limiters: [trusting] }}
  - {{ suffix: /closing, limiters: [closing] }}
  - {{ suffix: /keyed, limiters: [keyed] }}
  - {{ suffix: /permits, limiters: [permits] }}
",
        redis.url(),
        upstream.url()
    )
}

async fn readyz(gateway: &Gateway) -> Value {
    serde_json::from_slice(&gateway.page("/readyz").await.body).expect("JSON")
}

/// The lines of the log about closed limiters: their names, and whether a `DELETE` reopens them.
fn closed(gateway: &Gateway) -> Vec<(String, bool)> {
    let events = gateway.events();
    let lines = events.iter().filter(|event| event.to_string().contains("a limiter is closed"));
    let reopens = |event: &Value| event.to_string().contains("`DELETE /limiters/NAME` reopens it");
    let named = lines.filter_map(|event| Some((name_in(event)?, reopens(event))));
    let mut named: Vec<_> = named.collect();
    named.sort();
    named
}

fn name_in(event: &Value) -> Option<String> {
    let name = event.get("limiter").or_else(|| event.get("fields")?.get("limiter"))?;
    Some(name.as_str()?.to_owned())
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Event {
    /// The server is killed and reads its append-only file.
    Restart,
    /// The server forgets everything.
    Flush,
}

#[rstest]
#[case::a_restart_with_the_data(Event::Restart)]
#[case::a_server_that_is_emptied(Event::Flush)]
#[tokio::test(flavor = "multi_thread")]
async fn a_quota_that_trusts_the_store_stays_open(#[case] event: Event) {
    let mut redis = Redis::with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let upstream = Upstream::ok().await;
    let gateway = Gateway::start(&yaml(&redis, &upstream)).await;
    for target in ["/trusting", "/closing", "/keyed?k=a", "/permits"] {
        assert_eq!(gateway.get(target).await.status, 200);
    }
    assert_eq!(readyz(&gateway).await.get("closed"), None);
    match event {
        Event::Restart => {
            redis.kill();
            redis.start_again();
        }
        Event::Flush => drop(redis.command(&["FLUSHALL"])),
    }
    gateway.until_answered("/closing", 429).await;
    // The restart kept one of the three permits as used, the flush none.
    let left = if event == Event::Restart { 2 } else { 3 };
    let mut statuses = Vec::new();
    for _ in 0..left + 1 {
        statuses.push(gateway.get("/trusting").await.status);
    }
    let expected: Vec<u16> = (0..left).map(|_| 200).chain([429]).collect();
    assert_eq!(statuses, expected);

    for name in ["closing", "permits"] {
        let answer = gateway.get(&format!("/{name}")).await;
        let problem: Value = serde_json::from_slice(&answer.body).expect("JSON");
        let detail = problem["detail"].as_str().expect("a text");
        assert!(detail.contains(&format!("`{name}` is closed until 20")), "{detail}");
        assert!(detail.contains("because the store has lost its states"), "{detail}");
        assert_eq!(problem["code"], "quota-exceeded");
        if name == "permits" {
            // A lease of one hour, of which this test takes less than half.
            let retry_after = problem["retry_after_ms"].as_i64().expect("a number");
            assert!((1_800_000..=3_600_250).contains(&retry_after), "{problem}");
        }
    }
    let used_up: Value =
        serde_json::from_slice(&gateway.get("/trusting").await.body).expect("JSON");
    assert!(!used_up.to_string().contains("lost"), "used up, not closed: {used_up}");

    let ready = readyz(&gateway).await;
    let mut names: Vec<_> = ready["closed"].as_array().expect("a list").iter().collect();
    names.sort_by_key(|limiter| limiter["limiter"].to_string());
    let names: Vec<_> = names.iter().filter_map(|limiter| limiter["limiter"].as_str()).collect();
    assert_eq!((names, &ready["ready"]), (vec!["closing", "keyed", "permits"], &Value::Bool(true)));
    assert!(ready["closed"][0]["until"].is_string(), "{ready}");
    let shown = gateway.limiter("closing").await;
    assert_eq!((&shown["on_loss"], &shown["level"]), (&"close".into(), &0.into()));
    // Midnight, to within the error of the store's clock as the gateway knows it.
    let until = shown["closed_until"].as_str().expect("an instant");
    assert!(until.contains("T00:00:00.") || until.contains("T23:59:59."), "{until}");
    assert!(shown["closed_reason"].as_str().expect("a reason").contains("lost its states"));
    assert_eq!(gateway.limiter("trusting").await.get("closed_until"), None);
    eventually("the log names them", async || {
        let expected = [("closing", true), ("keyed", true), ("permits", false)];
        let expected = expected.map(|(name, reopens)| (name.to_owned(), reopens));
        (closed(&gateway) == expected).then_some(())
    })
    .await;

    // An operator's reset opens the limiter, and the pages do not call it closed any more.
    let mut admin = Conn::to(gateway.admin).await.expect("connect");
    admin.send(request("DELETE", "/limiters/closing", &[])).await.expect("send");
    assert_eq!(admin.answer().await.expect("an answer").status, 200);
    assert_eq!(gateway.get("/closing").await.status, 200);
    assert_eq!(gateway.limiter("closing").await.get("closed_until"), None);

    // The lost holders of permits may still call, so that no reset opens their limiter.
    admin.send(request("DELETE", "/limiters/permits", &[])).await.expect("send");
    assert_eq!(admin.answer().await.expect("an answer").json()["reset"], false);
    assert_eq!(gateway.get("/permits").await.status, 429);
    assert!(gateway.limiter("permits").await["closed_until"].is_string());
}
