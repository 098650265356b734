//! The pages, commands and lines that show tenants and priorities to operators, and the mistakes of a file.

use super::{Ordered, served};
use crate::support::{eventually, paceway_in};
use rstest::rstest;
use serde_json::{Value, json};
use std::{fs, path::Path};

/// Only limiters with turns have a tenant and a priority in the access line, and `explain` says the same.
#[tokio::test(flavor = "multi_thread")]
async fn explain_and_the_access_line_agree() {
    let config = "trusted_proxies: [127.0.0.0/8]
limiters:
  vendor: { rate: 1000/s, fair: { by: '{query.team}', weights: { a: 4, 'b c': 2 } } }
  other: 1000/s
  plain: 1000/s
routes:
  - { name: x, suffix: /x, limiters: [vendor], priority: '{header.x-priority}' }
  - { name: rfc, suffix: /rfc, limiters: [other], priority: rfc9218 }
  - { name: other, suffix: /other, limiters: [other] }
  - { name: plain, suffix: /plain, limiters: [plain] }
";
    let ordered = Ordered::start(config).await;
    let gateway = &ordered.gateway;
    let mut expected = Vec::new();
    let rows: &[(&str, &'static [(&str, &str)])] = &[
        ("/1/x?team=a", &[("X-Priority", "low")]),
        ("/2/x?team=b%20c", &[("X-Priority", "HIGH")]),
        ("/3/x?team=", &[("X-Priority", "urgent")]),
        ("/4/x", &[("X-Priority", "high"), ("Connection", "x-priority")]),
        ("/1/rfc", &[("Priority", "u=6, i")]),
        ("/2/rfc", &[("Priority", "i"), ("Priority", "u=0")]),
        ("/3/rfc", &[("Priority", "u=9")]),
        ("/1/other", &[("Priority", "u=0")]),
        ("/1/plain", &[("Priority", "u=0")]),
    ];
    let file = gateway.file();
    for (target, fields) in rows {
        let mut args = vec!["explain", file.to_str().expect("a path"), "GET", target, "--json"];
        args.extend(["--client-ip", "127.0.0.1"]);
        let headers: Vec<_> =
            fields.iter().map(|(name, value)| format!("{name}: {value}")).collect();
        headers.iter().for_each(|header| args.extend(["-H", header]));
        let output = paceway_in(Path::new("."), &args, &[]);
        let said: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let limiter = &said["limiters"][0];
        served(ordered.ask(target, fields, 1)).await;
        let line = gateway.line(target.split('?').next().expect("a path")).await;
        assert_eq!(
            (&line["tenant"], &line["priority"]),
            (&limiter["tenant"], &limiter["priority"]),
            "{target}"
        );
        expected.push(json!([limiter["tenant"], limiter["weight"], limiter["priority"]]));
    }
    let all = [
        json!(["a", 4, "low"]),
        json!(["b%20c", 2, "high"]),
        json!(["-", 1, "normal"]),
        json!(["-", 1, "normal"]),
        json!([null, null, "low"]),
        json!([null, null, "high"]),
        json!([null, null, "normal"]),
        json!([null, null, "normal"]),
        json!([null, null, null]),
    ];
    assert_eq!(expected, all);
}

#[rstest]
#[case::weight(
    "fair: { by: '{host}', weights: { a: 1001 } }",
    "",
    "limiters.a.fair.weights.a: `1001` must be at most 1000"
)]
#[case::tenant("fair: { by: host }", "", "limiters.a.fair.by: `host` names no part of the request")]
#[case::priority("", "priority: urgent", "routes[0].priority: `urgent` is no priority")]
#[case::place("", "fair: { by: '{host}' }", "routes[0].fair: unknown key `fair`")]
fn a_mistake_has_file_line_and_key(
    #[case] limiter: &str,
    #[case] route: &str,
    #[case] expected: &str,
) {
    let dir = tempfile::tempdir().expect("a directory");
    let text = format!(
        "upstream: http://a\nlimiters:\n  a: {{ rate: 5/s, {limiter} }}\nroutes:\n- {{ suffix: /a, {route} }}\n"
    );
    fs::write(dir.path().join("wrong.yaml"), text).expect("a file");
    let output = paceway_in(dir.path(), &["check", "wrong.yaml"], &[]);
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{err}");
    let line = if limiter.is_empty() { "wrong.yaml:5:" } else { "wrong.yaml:3:" };
    assert!(err.contains(line) && err.contains(expected), "{err}");
}

/// A reload gives a limiter tenants while requests wait for it: all of them are served.
#[tokio::test(flavor = "multi_thread")]
async fn a_reload_changes_the_order_and_loses_no_request() {
    let config = |vendor: &str| {
        format!(
            "limiters: {{ vendor: {{ rate: 20/s, burst: 1{vendor} }} }}\n\
             routes: [{{ name: x, suffix: /x, limiters: [vendor], max_wait: 60s }}]\n"
        )
    };
    let ordered = Ordered::start(&config("")).await;
    let gateway = &ordered.gateway;
    let before = fs::read_to_string(gateway.file()).expect("a file");
    let first = ordered.ask("/x?team=a", &[], 20);
    ordered.until_asked(20).await;
    let fair = config(", fair: { by: '{query.team}' }");
    gateway.rewrite(&before.replace(&config(""), &fair));
    assert_eq!(gateway.reload().await.status, 200);
    let second = ordered.ask("/x?team=a", &[], 20);
    let third = ordered.ask("/x?team=b", &[], 5);
    ordered.until_asked(45).await;
    gateway.rewrite(&before);
    assert_eq!(gateway.reload().await.status, 200);
    let last = ordered.ask("/x?team=b", &[], 5);
    for asked in [first, second, third, last] {
        served(asked).await;
    }
    eventually("nothing waits", async || {
        (gateway.metric("paceway_waiting", &[("route", "x")]).await == 0.0).then_some(())
    })
    .await;
    assert_eq!(ordered.upstream.calls().len(), 50);
}
