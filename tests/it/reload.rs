//! The configuration of a running gateway changes, by signal and by request, and requests do not notice.

use crate::support::{Gateway, Upstream, eventually, paceway, request};
use rstest::rstest;
use serde_json::Value;

fn yaml(upstream: &Upstream, rest: &str) -> String {
    format!("upstream: {}\nworkers: 2\n{rest}", upstream.url())
}

fn routes(rate: &str, more: &str) -> String {
    format!(
        "limiters:\n  one: {{ rate: {rate}, burst: 3 }}\n\
         routes:\n- {{ name: all, suffix: /all, limiters: [one], max_wait: 5m }}\n{more}"
    )
}

async fn ready(gateway: &Gateway) -> Value {
    gateway.page("/readyz").await.json()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_file_takes_effect_and_levels_counters_and_connections_stay() {
    let upstream = Upstream::ok().await;
    let gateway = Gateway::start(&yaml(&upstream, &routes("1/h", ""))).await;
    assert_eq!(gateway.get("/all").await.status, 200);
    assert_eq!(gateway.get("/new").await.status, 404);
    let (before, connections) = (ready(&gateway).await, upstream.connections());
    gateway.rewrite(&yaml(&upstream, &routes("2/h", "- { name: new, suffix: /new }\n")));
    let answer = gateway.reload().await;
    assert_eq!((answer.status, &answer.json()["changed"]), (200, &Value::Bool(true)));
    // One of three permits is used, also by the new rule.
    let limiter = gateway.limiter("one").await;
    assert_eq!((&limiter["rate"], &limiter["level"]), (&"2/h".into(), &2.into()));
    assert_eq!(gateway.get("/new").await.status, 200);
    assert_eq!(gateway.count("all", "passed").await, 1.0);
    assert_eq!(gateway.metric("paceway_requests_total", &[("route", "-")]).await, 1.0);
    assert_eq!(gateway.metric("paceway_config_reloads_total", &[("result", "ok")]).await, 1.0);
    let after = ready(&gateway).await;
    assert_ne!(before["config"]["hash"], after["config"]["hash"]);
    assert_eq!(after["config"]["hash"], answer.json()["hash"]);
    let hash = after["config"]["hash"].as_str().expect("a hash");
    assert_eq!(gateway.metric("paceway_config_info", &[]).await, 1.0);
    assert_eq!(gateway.metric("paceway_config_info", &[("hash", hash)]).await, 1.0);
    // Each worker may have a connection of its own.
    assert!(upstream.connections() <= connections + 1, "{}", upstream.connections());
    // The same file again changes nothing.
    assert_eq!(gateway.reload().await.json()["changed"], false);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_waits_ends_as_it_began() {
    let upstream = Upstream::ok().await;
    let slow = "limiters: { one: 1/s }\nroutes:\n\
                - { name: all, suffix: \"*\", limiters: [one], max_wait: 20s, max_waiting: 2 }\n";
    let gateway = Gateway::start(&yaml(&upstream, slow)).await;
    assert_eq!(gateway.get("/").await.status, 200);
    let mut waiting = [gateway.ask("/first", &[]).await, gateway.ask("/second", &[]).await];
    gateway.until_waiting("all", 2).await;
    // The new plan still counts the two requests that wait under the old one.
    gateway.rewrite(&yaml(&upstream, &slow.replace("20s", "19s")));
    assert_eq!(gateway.reload().await.status, 200);
    assert_eq!(gateway.metric("paceway_waiting", &[("route", "all")]).await, 2.0);
    assert_eq!(gateway.limiter("one").await["waiting"], 2);
    assert_eq!(gateway.get("/third").await.status, 503);
    // Without the route, the limiter and the upstream of before.
    let other = Upstream::ok().await;
    gateway.rewrite(&yaml(&other, "routes: [{ name: other, suffix: /other }]\n"));
    assert_eq!(gateway.reload().await.status, 200);
    assert_eq!(gateway.get("/other").await.status, 200);
    for conn in &mut waiting {
        assert_eq!(conn.answer().await.expect("an answer").status, 200);
    }
    assert_eq!((upstream.calls().len(), other.calls().len()), (3, 1));
    let names = |line: &Value| (line["route"].clone(), line["outcome"].clone());
    assert_eq!(names(&gateway.line("/second").await), ("all".into(), "waited".into()));
    let text = gateway.page("/metrics").await.text();
    assert!(!text.contains("route=\"all\",outcome"), "{text}");
}

#[rstest]
#[case::a_mistake("routes: [{ suffix: /a, limiters: [none] }]\n")]
#[case::no_yaml("routes: [\n")]
#[case::empty("")]
#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_file_changes_nothing_and_is_reported_as_check_does(#[case] routes: &str) {
    let upstream = Upstream::ok().await;
    let gateway = Gateway::start(&yaml(&upstream, "routes: [{ suffix: /a }]\n")).await;
    let before = ready(&gateway).await;
    let loaded = gateway.metric("paceway_config_loaded_timestamp_seconds", &[]).await;
    gateway.rewrite(&if routes.is_empty() { String::new() } else { yaml(&upstream, routes) });
    let file = gateway.file();
    let said = paceway(&["check", file.to_str().expect("a path")]);
    let said = String::from_utf8(said.stderr).expect("text").trim_end().to_owned();
    let answer = gateway.reload().await;
    assert_eq!((answer.status, answer.json()["detail"].as_str()), (422, Some(&*said)));
    let after = ready(&gateway).await;
    assert_eq!(after["config"]["error"].as_str(), Some(&*said));
    assert_eq!(
        (&after["ready"], &after["config"]["hash"]),
        (&true.into(), &before["config"]["hash"])
    );
    assert_eq!(gateway.get("/a").await.status, 200);
    assert_eq!(gateway.metric("paceway_config_reloads_total", &[("result", "error")]).await, 1.0);
    assert_eq!(gateway.metric("paceway_config_loaded_timestamp_seconds", &[]).await, loaded);
    let event = eventually("the log has it", async || {
        gateway.events().into_iter().find(|event| event["error"] == *said)
    });
    assert_eq!(event.await["level"], "ERROR");
    gateway.rewrite(&yaml(&upstream, "routes: [{ suffix: /b }]\n"));
    assert_eq!(gateway.reload().await.status, 200);
    assert!(ready(&gateway).await["config"].get("error").is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hangup_reads_secrets_again_and_names_what_needs_a_restart() {
    let upstream = Upstream::ok().await;
    let file = |more: &str| {
        yaml(
            &upstream,
            &format!(
                "{more}routes:\n- suffix: /a\n  headers: \
                 {{ request: {{ set: {{ X-Token: \"${{file:token}}\" }} }} }}\n"
            ),
        )
    };
    let dir = tempfile::tempdir().expect("a directory");
    let gateway = Gateway::start_in(dir, &file(""), |dir| {
        std::fs::write(dir.join("token"), "first").expect("a secret");
    })
    .await;
    assert_eq!(gateway.get("/a").await.status, 200);
    let directory = gateway.file().parent().expect("a directory").to_owned();
    std::fs::write(directory.join("token"), "second").expect("a secret");
    gateway.rewrite(&file("listen: 127.0.0.1:1\nstore: redis://127.0.0.1:1\n"));
    gateway.signal("HUP");
    let event = eventually("it is reported", async || {
        gateway.events().into_iter().find(|event| event["keys"] == "listen, store")
    });
    assert_eq!(event.await["level"], "WARN");
    assert_eq!(ready(&gateway).await["config"]["needs_restart"][1], "store");
    assert_eq!(gateway.get("/a").await.status, 200);
    let tokens: Vec<_> = upstream
        .calls()
        .iter()
        .map(|call| call.head.get("x-token").expect("a token").to_owned())
        .collect();
    assert_eq!(tokens, ["first", "second"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_without_a_file_says_so() {
    let gateway = Gateway::demo(&["--port", "0", "--admin-port", "0", "--vendor-port", "0"]).await;
    assert_eq!(gateway.reload().await.status, 409);
    gateway.signal("HUP");
    assert_eq!(gateway.page("/readyz").await.status, 200);
}

/// A request that the admin side does not expect.
#[tokio::test(flavor = "multi_thread")]
async fn only_a_post_reloads() {
    let upstream = Upstream::ok().await;
    let gateway = Gateway::start(&yaml(&upstream, "routes: [{ suffix: /a }]\n")).await;
    assert_eq!(gateway.page("/reload").await.status, 405);
    let answer = gateway.admin_request(request("PUT", "/reload", &[])).await;
    assert_eq!(answer.status, 405);
}
