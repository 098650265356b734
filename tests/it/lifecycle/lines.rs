//! The access line of each request.

use super::{after_traffic, vendor};
use crate::support::{Gateway, Redis, Upstream, eventually};
use rstest::rstest;
use serde_json::{Value, json};
use std::collections::BTreeSet;

#[tokio::test(flavor = "multi_thread")]
async fn each_request_writes_one_access_line_without_its_query() {
    let (redis, upstream) = (Redis::start(), vendor().await);
    let gateway = after_traffic(&redis, &upstream).await;
    let lines = eventually("31 lines", async || {
        let lines = gateway.access();
        (lines.len() == 31).then_some(lines)
    })
    .await;
    for line in &lines {
        let keys: BTreeSet<_> =
            line.as_object().expect("a map").keys().map(String::as_str).collect();
        let all = [
            "timestamp",
            "client",
            "method",
            "path",
            "route",
            "limiter",
            "outcome",
            "wait_ms",
            "status",
        ];
        for key in all {
            assert!(keys.contains(key), "no {key} in {line}");
        }
        assert_eq!(line["client"], "127.0.0.1");
    }
    let of = |path: &str| lines.iter().filter(|line| line["path"] == path).collect::<Vec<_>>();
    let searches = of("/search");
    assert_eq!(searches.len(), 3);
    for line in searches {
        assert_eq!((&line["route"], &line["limiter"]), (&json!("search"), &json!("account")));
        assert_eq!((&line["method"], &line["status"]), (&json!("GET"), &json!(200)));
        assert!(line["upstream_ms"].as_f64().is_some_and(|ms| ms > 0.0), "{line}");
        let waited = line["wait_ms"].as_f64().expect("ms") > 0.0;
        assert_eq!(line["outcome"], if waited { "waited" } else { "passed" });
    }
    let strict = of("/strict");
    let outcomes: Vec<_> =
        strict.iter().map(|line| line["outcome"].as_str().expect("it")).collect();
    assert_eq!(outcomes, ["passed", "observed", "observed", "observed", "observed", "refused"]);
    let refused = strict[5];
    assert_eq!((&refused["limiter"], &refused["status"]), (&json!("day"), &json!(429)));
    assert!(refused["upstream_ms"].is_null(), "the upstream never saw it: {refused}");
    let nowhere = of("/nowhere/3")[0];
    assert_eq!((&nowhere["route"], &nowhere["outcome"]), (&json!("-"), &json!("no_route")));
    assert_eq!((&nowhere["method"], &nowhere["status"]), (&json!("M3"), &json!(404)));
    let (out, err) = gateway.output();
    for line in out.iter().chain(&err) {
        assert!(!line.contains("hunter"), "{line}");
    }
}

#[rstest]
#[case::off("off")]
#[case::text("text")]
#[tokio::test(flavor = "multi_thread")]
async fn access_lines_can_be_texts_or_left_out(#[case] kind: &str) {
    let upstream = Upstream::ok().await;
    let mut gateway = Gateway::start(&format!(
        "access_log: {kind}\nupstream: {}\nroutes: [{{ name: all, suffix: \"*\" }}]\n",
        upstream.url()
    ))
    .await;
    assert_eq!(gateway.get("/path?a=1&token=hunter2").await.status, 200);
    gateway.signal("TERM");
    assert_eq!(gateway.end().await.code(), Some(0));
    // Whatever is written is written by now.
    let lines = eventually("the lines", async || {
        let (out, _) = gateway.output();
        (kind == "off" || !out.is_empty()).then_some(out)
    })
    .await;
    if kind == "off" {
        assert_eq!(lines, [""; 0]);
        return;
    }
    assert_eq!(lines.len(), 1);
    assert!(serde_json::from_str::<Value>(&lines[0]).is_err(), "{lines:?}");
    assert!(lines[0].contains(" 200 passed wait=0 GET /path upstream="), "{lines:?}");
}
