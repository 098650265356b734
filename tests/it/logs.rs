//! Access lines and events: what they name a request by, and what they never show.

use crate::support::{Gateway, Reply, Upstream, eventually, reply, request};
use rstest::rstest;
use serde_json::{Value, json};
use std::{
    fs,
    io::{BufRead, BufReader},
    process::{Command, Stdio},
};

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
async fn an_upstream_may_answer_with_its_own_request_id() {
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
async fn an_access_line_names_target_host_and_client() {
    let upstream = Upstream::ok().await;
    let gateway = before(&upstream).await;
    let mut conn = gateway.connect().await;
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
async fn an_access_line_of_a_refused_request_is_bounded() {
    let upstream = Upstream::ok().await;
    let gateway = before(&upstream).await;
    let long = format!("/{}", "é".repeat(2000));
    let mut conn = gateway.connect().await;
    let bytes = format!("GET {long}?{long} HTTP/1.1\r\nHost: user:hunter2@a\r\n\r\n");
    conn.send(bytes).await.expect("send");
    assert_eq!(conn.answer().await.expect("an answer").status, 400);
    // As many whole characters as fit.
    let path = format!("/{}", "é".repeat(511));
    let line = gateway.line(&path).await;
    assert_eq!((&line["host"], &line["outcome"]), (&json!(null), &json!("bad_request")));
    assert_eq!(line["query"], path);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_access_line_has_the_cost_and_the_sent_bytes() {
    let upstream = Upstream::start(|call| match call.target.as_str() {
        // A body whose length only its end says.
        "/streamed" => Reply::raw(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n3\r\nfgh\r\n0\r\n\r\n",
        ),
        _ => reply("200 OK", &[], "ok"),
    })
    .await;
    let gateway = Gateway::start(&format!(
        "upstreams: {{ vendor: \"{}\" }}
access_log: {{ format: json, user_agent: on }}
redact: [voucher]
limiters:
  shop: {{ rate: 5/hour, key: \"{{header.x-shop}}\" }}
  secret: {{ rate: 100/s, key: \"{{header.x-api-key}}\" }}
  voucher: {{ rate: 100/s, key: \"{{query.voucher}}\" }}
  one: 100/s
routes:
- {{ suffix: /streamed, limiters: [{{ limiter: shop, cost: 2 }}] }}
- {{ suffix: /secret, limiters: [secret] }}
- {{ suffix: /voucher, limiters: [voucher] }}
- {{ suffix: /one, limiters: [one] }}
- {{ suffix: /free }}
",
        upstream.url()
    ))
    .await;
    let fields =
        [("X-Shop", "s 1"), ("X-Api-Key", "hunter2"), ("User-Agent", "curl/8"), ("Referer", "x")];
    let lines = async |target: &str, status: u16| {
        let answer = gateway.ask(target, &fields).await.answer().await.expect("an answer");
        assert_eq!(answer.status, status);
        let path = target.split('?').next().unwrap_or_default();
        eventually("its line", async || {
            let line = gateway.access().into_iter().rev().find(|line| line["path"] == path)?;
            (line["status"] == status).then_some((line, answer.body.len()))
        })
        .await
    };
    let assert_line = |line: &Value, expected: Value| {
        for (name, value) in expected.as_object().expect("an object") {
            assert_eq!(&line[name], value, "{name} of {line}");
        }
        assert!(line["total_ms"].as_f64() >= line["upstream_ms"].as_f64(), "{line}");
    };
    let sent = json!({ "attempts": 1, "upstream_address": upstream.address().to_string() });
    let (streamed, length) = lines("/streamed", 200).await;
    assert_line(&streamed, sent.clone());
    let expected = json!({ "limiter": "shop", "key": "s%201", "cost": 2, "bytes_sent": 8, "user_agent": "curl/8" });
    assert_line(&streamed, expected);
    assert_eq!(length, 8);
    lines("/streamed", 200).await;
    // A refusal is a body of the gateway, and was not sent.
    let (refused, length) = lines("/streamed", 429).await;
    let expected = json!({ "key": "s%201", "cost": 2, "bytes_sent": length, "attempts": null, "upstream_address": null });
    assert_line(&refused, expected);
    let (secret, _) = lines("/secret", 200).await;
    let key = secret["key"].as_str().expect("a hash");
    assert!(key.starts_with("%23") && key.len() == 35, "{key}");
    let (voucher, _) = lines("/voucher?voucher=hunter2", 200).await;
    assert_line(&voucher, json!({ "key": "***", "cost": 1, "query": "voucher=***" }));
    let (one, _) = lines("/one", 200).await;
    assert_line(&one, json!({ "limiter": "one", "key": null, "cost": 1, "bytes_sent": 2 }));
    let (free, _) = lines("/free", 200).await;
    assert_line(&free, json!({ "limiter": "-", "key": null, "cost": null, "bytes_sent": 2 }));
    assert_line(&free, sent);
    // The head of an answer without its body.
    let mut conn = gateway.connect().await;
    conn.send(request("HEAD", "/nowhere", &[])).await.expect("send");
    conn.head().await.expect("an answer");
    assert_eq!(gateway.line("/nowhere").await["bytes_sent"], 0);
}

/// The first line on stderr of a gateway with this configuration at its top.
fn first_event(top: &str) -> String {
    let dir = tempfile::tempdir().expect("a folder");
    let yaml = format!(
        "{top}\nlisten: 127.0.0.1:0\nadmin: 127.0.0.1:0\nupstream: http://a.invalid\nroutes: [{{ suffix: /x }}]\n"
    );
    fs::write(dir.path().join("paceway.yaml"), yaml).expect("a file");
    let mut gateway = Command::new(env!("CARGO_BIN_EXE_paceway"))
        .arg("run")
        .current_dir(dir.path())
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("a gateway");
    let mut line = String::new();
    let stderr = gateway.stderr.take().expect("a pipe");
    BufReader::new(stderr).read_line(&mut line).expect("a line");
    gateway.kill().expect("a process");
    gateway.wait().expect("its end");
    line
}

#[rstest]
#[case::text("log: text", false)]
#[case::long_form("log: { format: text }", false)]
#[case::json("log: json", true)]
#[case::without_a_terminal("", true)]
fn events_have_the_form_of_the_configuration(#[case] top: &str, #[case] is_json: bool) {
    let line = first_event(top);
    assert!(line.contains("configuration loaded"), "{line}");
    assert_eq!(serde_json::from_str::<Value>(&line).is_ok(), is_json, "{line}");
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
        let mut conn = gateway.connect().await;
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

/// A line of text has what an operator looks at first, and fits a terminal.
#[tokio::test(flavor = "multi_thread")]
async fn an_access_line_of_text_is_short() {
    let upstream = Upstream::ok().await;
    let gateway = Gateway::start(&format!(
        "access_log: text\nupstream: {}\nlimiters: {{ shop: {{ rate: 1/day, key: '{{header.x-shop}}' }} }}\n\
         routes: [{{ suffix: '*', limiters: [shop], max_wait: 0 }}]\n",
        upstream.url()
    ))
    .await;
    let long = format!("/a/{}", "x".repeat(300));
    let fields = [("X-Shop", "acme"), ("X-Request-Id", "0123456789abcdef")];
    for target in ["/search?token=hunter2", "/search", &long] {
        gateway.ask(target, &fields).await.answer().await.expect("an answer");
    }
    let lines = eventually("the lines", async || {
        let lines = gateway.output().0;
        (lines.len() == 3).then_some(lines)
    })
    .await;
    let [passed, refused, cut] = &lines[..] else { panic!("{lines:?}") };
    let words: Vec<_> = passed.split(' ').collect();
    let [time, "200", "passed", "wait=0", "GET", "/search", "key=acme", upstream, "id=89abcdef"] =
        words[..]
    else {
        panic!("{passed}")
    };
    assert!(time.len() == 13 && time.ends_with('Z'), "{time}");
    assert!(upstream.starts_with("upstream=") && upstream.ends_with('s'), "{upstream}");
    let words: Vec<_> = refused.split(' ').skip(1).collect();
    assert_eq!(words[0], "429");
    assert_eq!(words[2..], ["wait=0", "GET", "/search", "key=acme", "id=89abcdef"], "{refused}");
    assert!(cut.chars().count() <= 120 && cut.contains("xxx… "), "{cut}");
}

/// An answer that pauses several limiters, each for several rates, is one line of the log; so is their end.
#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_of_the_upstream_writes_one_line() {
    let after = [("Retry-After", "1")];
    let upstream = Upstream::start(move |_| reply("429 Too Many Requests", &after, "")).await;
    let gateway = Gateway::before(
        &upstream,
        "limiters: { one: [5/s, 100/min], two: 9/s, shop: { rate: 7/s, key: '{header.x-shop}' } }\n\
         routes: [{ suffix: '*', limiters: [one, two, shop], max_wait: 0 }]\n",
    )
    .await;
    gateway.ask("/", &[("X-Shop", "acme")]).await.answer().await.expect("an answer");
    let about = |start: &str| {
        let events = gateway.events();
        let is_about =
            |line: &&Value| line["message"].as_str().is_some_and(|said| said.starts_with(start));
        events.iter().filter(is_about).cloned().collect::<Vec<_>>()
    };
    for start in ["a pause begins", "a pause has ended"] {
        eventually("a line", async || (!about(start).is_empty()).then_some(())).await;
    }
    for start in ["a pause begins", "a pause has ended"] {
        let lines = about(start);
        let [line] = &lines[..] else { panic!("{lines:?}") };
        let mut names: Vec<_> = line["limiter"].as_str().expect("names").split(", ").collect();
        names.sort_unstable();
        assert_eq!((&names[..], &line["key"]), (&["one", "shop", "two"][..], &json!("acme")));
    }
}
