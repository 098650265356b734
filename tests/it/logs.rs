//! Access lines and events: what they name a request by, and what they never show.

use crate::support::{Conn, Gateway, Reply, Upstream, eventually, reply, request};
use rstest::rstest;
use serde_json::json;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

async fn before(upstream: &Upstream) -> Gateway {
    let url = upstream.url();
    Gateway::start(&format!(
        "upstreams: {{ vendor: \"{url}\" }}\nroutes: [{{ name: all, suffix: /x }}]\n"
    ))
    .await
}

#[rstest]
#[case::kept(&["a-1/b:c"], true)]
#[case::made(&[], false)]
#[case::several(&["a", "b"], false)]
#[case::spaces(&["a b"], false)]
#[case::quotes(&["a\"b"], false)]
#[case::too_long(&[LONG], false)]
#[tokio::test(flavor = "multi_thread")]
async fn a_request_has_one_id_everywhere(#[case] sent: &[&str], #[case] kept: bool) {
    let upstream = Upstream::ok().await;
    let gateway = before(&upstream).await;
    let fields: Vec<_> = sent.iter().map(|id| ("X-Request-Id", *id)).collect();
    for (target, status) in [("/x", 200), ("/nowhere", 404)] {
        let answer = gateway.ask(target, &fields).await.answer().await.expect("an answer");
        assert_eq!(answer.status, status);
        let id = answer.field("x-request-id").expect("an id").to_owned();
        match kept {
            true => assert_eq!(id, sent[0]),
            false => {
                assert!(!sent.contains(&id.as_str()), "{id}");
                let digits = id.bytes().all(|byte| byte.is_ascii_hexdigit());
                assert!(digits && id.len() == 32, "{id}");
            }
        }
        assert_eq!(gateway.line(target).await["request_id"], id);
        if status == 200 {
            assert_eq!(upstream.calls()[0].head.all("x-request-id"), [id]);
        }
    }
}

const LONG: &str = "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\
                    xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx";

#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_may_have_its_own_id() {
    let upstream = Upstream::start(|_| reply("200 OK", &[("X-Request-Id", "theirs")], "")).await;
    let gateway = before(&upstream).await;
    let answer = gateway.ask("/x", &[("X-Request-Id", "ours")]).await.answer().await;
    assert_eq!(answer.expect("an answer").head.all("x-request-id"), ["theirs"]);
    assert_eq!(gateway.line("/x").await["request_id"], "ours");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trace_passes_unchanged_and_is_named() {
    let upstream = Upstream::ok().await;
    let gateway = before(&upstream).await;
    let parent = format!("00-{TRACE}-00f067aa0ba902b7-01");
    let fields =
        [("traceparent", parent.as_str()), ("tracestate", "a=1,b=2"), ("tracestate", "c=3")];
    gateway.ask("/x", &fields).await.answer().await.expect("an answer");
    let call = &upstream.calls()[0];
    assert_eq!(call.head.all("traceparent"), [parent]);
    assert_eq!(call.head.all("tracestate"), ["a=1,b=2", "c=3"]);
    assert_eq!(gateway.line("/x").await["trace_id"], TRACE);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_line_says_what_was_asked_of_whom() {
    let upstream = Upstream::ok().await;
    let gateway = before(&upstream).await;
    let mut conn = Conn::to(gateway.listen).await.expect("connect");
    let bytes =
        "GET http://API.example:81/x?a=1&api%5Fkey=hunter2&b HTTP/1.1\r\nHost: other\r\n\r\n";
    conn.send(bytes).await.expect("send");
    conn.answer().await.expect("an answer");
    let line = gateway.line("/x").await;
    for (name, value) in [
        ("host", json!("API.example:81")),
        ("protocol", json!("HTTP/1.1")),
        ("method", json!("GET")),
        ("query", json!("a=1&api%5Fkey=***&b")),
        ("route", json!("all")),
        ("upstream", json!("vendor")),
        ("status", json!(200)),
    ] {
        assert_eq!(line[name], value, "{line}");
    }
    assert!(line["trace_id"].is_null(), "{line}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_line_of_a_refused_request_shows_no_host_that_is_none_and_no_end_of_a_long_path() {
    let upstream = Upstream::ok().await;
    let gateway = before(&upstream).await;
    let long = format!("/{}", "é".repeat(2000));
    let mut conn = Conn::to(gateway.listen).await.expect("connect");
    let bytes = format!("GET {long}?{long} HTTP/1.1\r\nHost: user:hunter2@a\r\n\r\n");
    conn.send(bytes).await.expect("send");
    assert_eq!(conn.answer().await.expect("an answer").status, 400);
    // As many whole characters as fit.
    let path = format!("/{}", "é".repeat(511));
    let line = gateway.line(&path).await;
    assert_eq!((&line["host"], &line["outcome"]), (&json!(null), &json!("bad_request")));
    assert_eq!(line["query"], path);
}

/// Secrets in each part of a request and of an answer, at every level.
#[rstest]
#[case::as_usual("", "text")]
#[case::trace("trace", "json")]
#[case::trace_of_hyper("info,hyper=trace,h2=trace,rustls=trace", "text")]
#[tokio::test(flavor = "multi_thread")]
async fn no_secret_shows_at_any_level(#[case] level: &str, #[case] kind: &str) {
    let upstream = Upstream::start(|_| {
        let fields = [("Set-Cookie", "sid=hunter2"), ("X-Vendor-Token", "hunter2")];
        reply("200 OK", &fields, "hunter2")
    })
    .await;
    let broken = Upstream::start(|_| Reply::raw("HTTP/1.1 200 hunter2\r\nX\r\n\r\n")).await;
    let yaml = format!(
        "access_log: {kind}\nupstreams: {{ a: \"{}\", b: \"{}\" }}
limiters: {{ one: {{ rate: 100/s, key: \"{{header.authorization}}\" }} }}
routes: [{{ suffix: /x, upstream: a, limiters: [one] }}, {{ suffix: /broken, upstream: b }}]\n",
        upstream.url(),
        broken.url()
    );
    let gateway = Gateway::start_with(&yaml, &[("PACEWAY_LOG".to_owned(), level.to_owned())]).await;
    let fields = [
        ("Authorization", "Bearer hunter2"),
        ("Cookie", "sid=hunter2"),
        ("X-Api-Key", "hunter2"),
        ("X-Own", "hunter2"),
        ("Referer", "http://a/?token=hunter2"),
        ("User-Agent", "hunter2"),
        ("Forwarded", "for=hunter2"),
    ];
    let query =
        "token=hunter2&X-API-KEY=hunter2&a[pass%77ord]=hunter2&to=http%3A%2F%2Fb%3Fsig%3Dhunter2";
    for path in ["/x;jsessionid=hunter2", "/broken", "/nowhere"] {
        let mut conn = gateway.ask(&format!("{path}?{query}"), &fields).await;
        conn.answer().await.expect("an answer");
    }
    // Bytes that are no request are not shown either.
    for bytes in [
        "GET /?token=hunter2 HTTP/1.1\r\nBad Name: hunter2\r\n\r\n".to_owned(),
        "GET http://user:hunter2@a/x HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(),
        "hunter2\r\n\r\n".to_owned(),
        request("POST", "/x", &[("Transfer-Encoding", "chunked")]) + "hunter2\r\n",
    ] {
        let mut conn = Conn::to(gateway.listen).await.expect("connect");
        conn.send(bytes).await.expect("send");
        conn.rest().await;
    }
    let (out, err) = eventually("the lines of all", async || {
        let (out, err) = gateway.output();
        (out.len() >= 5).then_some((out, err))
    })
    .await;
    for line in out.iter().chain(&err) {
        assert!(!line.contains("hunter2"), "{line}");
    }
}
