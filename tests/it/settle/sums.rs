//! Costs that are sums, of parts of the request and of parts of the answer.

use super::{JSON, gateway, left, post, settled};
use crate::support::{Gateway, Reply, Upstream, paceway_fed, reply, service_address, store};
use rstest::rstest;
use serde_json::json;

const USAGE: &str = "{ reserve: '{body./max_tokens} + 2*{body./images}', default: 50, \
                     settle: '{response.body./usage/in} + 5*{response.body./usage/out}' }";

/// Each request takes what its query and header say. A part that is missing counts 1, and a bad one is the caller's mistake.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_sum_of_parts_of_the_request_is_charged(#[values(false, true)] is_redis: bool) {
    let upstream = Upstream::start(|_| reply("200 OK", &[], "")).await;
    let (_redis, store) = store(is_redis);
    let gateway = gateway(&upstream, &store, "'1 + 2*{query.n} + 10*{header.x-pages}'").await;
    for (target, pages, expected) in [
        ("/?n=7", Some("3"), Ok(955)),
        ("/?n=0", Some("0"), Ok(954)),
        ("/", None, Ok(941)),
        ("/?n=7", Some("x"), Err("the cost `x` in `{header.x-pages}` is not between 0 and 1000")),
        (
            "/?n=500",
            None,
            Err(
                "the cost `1011` in `1 + 2*{query.n} + 10*{header.x-pages}` is not between 0 and 1000",
            ),
        ),
        (
            "/?n=9223372036854775807",
            None,
            Err(
                "the cost of more than 9223372036854775807 in `1 + 2*{query.n} + 10*{header.x-pages}` is not",
            ),
        ),
    ] {
        let fields: Vec<_> = pages.iter().map(|pages| ("X-Pages", *pages)).collect();
        let answer = gateway.ask(target, &fields).await.answer().await.expect("an answer");
        match expected {
            Ok(permits) => {
                assert_eq!(answer.status, 200, "{answer:?}");
                left(&gateway, permits).await;
            }
            Err(detail) => {
                assert_eq!((answer.status, answer.problem().as_str()), (400, "bad-request"));
                assert!(answer.text().contains(detail), "{answer:?}");
            }
        }
    }
    left(&gateway, 941).await;
    assert_eq!(upstream.calls().len(), 3);
}

/// The request reserves a sum, and the answer says another one.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_sum_of_parts_of_the_answer_is_settled(#[values(false, true)] is_redis: bool) {
    let upstream =
        Upstream::start(|_| reply("200 OK", &[JSON], "{\"usage\":{\"in\":100,\"out\":20}}")).await;
    let (_redis, store) = store(is_redis);
    let gateway = gateway(&upstream, &store, USAGE).await;
    // It reserves 400 + 2 * 50: a part that is missing counts the default.
    assert_eq!(post(&gateway, &[JSON], "{\"max_tokens\":400}").await.status, 200);
    left(&gateway, 800).await;
    assert_eq!(settled(&gateway, "refund").await, 300.0);
    // This one reserves 10 + 2 * 5, and owes the rest.
    assert_eq!(post(&gateway, &[JSON], "{\"max_tokens\":10,\"images\":5}").await.status, 200);
    left(&gateway, 600).await;
    assert_eq!(settled(&gateway, "debt").await, 180.0);
    let answer = post(&gateway, &[JSON], "{\"max_tokens\":1,\"images\":9223372036854775807}").await;
    assert_eq!((answer.status, answer.problem().as_str()), (400, "bad-request"), "{answer:?}");
    left(&gateway, 600).await;
}

/// The parts of a sum may come in several events, of which the last with each part counts.
#[rstest]
#[case::in_one_event(&["{\"usage\":null}", "{\"usage\":{\"in\":9,\"out\":9}}", "{\"usage\":{\"in\":100,\"out\":20}}"], 800)]
#[case::in_several(&["{\"usage\":{\"in\":100,\"out\":1}}", "{\"usage\":{\"out\":20}}", "{}"], 800)]
#[case::without_a_part(&["{\"usage\":{\"in\":100}}", "{\"usage\":{\"in\":100}}"], 500)]
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_is_settled_by_the_last_event_with_each_part(
    #[case] events: &[&str],
    #[case] expected: i64,
) {
    let events: String = events.iter().map(|event| format!("data: {event}\n\n")).collect();
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n";
    let length = events.len() + "data: [DONE]\n\n".len();
    let answer = format!("{head}Content-Length: {length}\r\n\r\n{events}data: [DONE]\n\n");
    let upstream = Upstream::start(move |_| Reply::raw(&answer)).await;
    let gateway = gateway(&upstream, "", USAGE).await;
    let body = "{\"max_tokens\":400,\"images\":50}";
    assert_eq!(post(&gateway, &[JSON], body).await.status, 200);
    left(&gateway, expected).await;
}

/// A header and the body may be parts of one sum.
#[tokio::test(flavor = "multi_thread")]
async fn a_header_and_the_body_are_parts_of_one_sum() {
    let upstream =
        Upstream::start(|_| reply("200 OK", &[JSON, ("X-Units", "7")], "{\"n\":3}")).await;
    let cost = "{ reserve: 100, settle: '1 + 2*{response.header.x-units} + {response.body./n}' }";
    let gateway = gateway(&upstream, "", cost).await;
    assert_eq!(post(&gateway, &[], "").await.status, 200);
    left(&gateway, 982).await;
}

/// Other proxies ask about the same costs.
#[tokio::test(flavor = "multi_thread")]
async fn a_service_charges_a_sum() {
    let gateway = Gateway::start(
        "services: { forward_auth: { listen: 127.0.0.1:0 } }\nupstream: http://127.0.0.1:9\n\
         limiters: { tokens: 1000/day }\n\
         routes: [{ suffix: '*', limiters: [{ limiter: tokens, cost: '1 + 2*{query.n}' }] }]\n",
    )
    .await;
    let mut conn =
        crate::support::Conn::to(service_address(&gateway, "forward_auth")).await.expect("connect");
    conn.send(crate::support::request("GET", "/?n=7", &[])).await.expect("send");
    assert_eq!(conn.answer().await.expect("an answer").status, 200);
    left(&gateway, 985).await;
}

/// A log has the query, so that a replay knows the cost.
#[test]
fn a_replay_charges_a_sum() {
    let config = "upstream: http://a\nlimiters: { tokens: 10/day }\n\
                  routes: [{ suffix: '*', limiters: [{ limiter: tokens, cost: '1 + 2*{query.n}' }] }]\n";
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join("gateway.yaml"), config).expect("a file");
    let line =
        "10.0.0.1 - - [23/Nov/2026:10:00:00 +0000] \"GET /?n=2 HTTP/1.1\" 200 1 \"-\" \"-\"\n";
    let args = ["replay", "gateway.yaml", "--log", "-", "--json"];
    let output = paceway_fed(dir.path(), &args, &line.repeat(3));
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let replayed = &said["routes"][0]["replay"];
    assert_eq!([&replayed["passed"], &replayed["refused"]], [&json!(2), &json!(1)], "{said}");
}

#[rstest]
#[case::too_many(
    "'1+1+1+1+1+1+1+1+{query.n}'",
    "`1+1+1+1+1+1+1+1+{query.n}` has 9 terms; a cost is a sum of at most 8"
)]
#[case::factor(
    "'0*{query.n}'",
    "`0*{query.n}` has the factor `0`; a factor is a whole number from 1 to 1000000000"
)]
#[case::answer(
    "'{response.body./n} + 1'",
    "`{response.body./n} + 1` has the term `{response.body./n}`, which is a part of the answer, which comes later; \
     write it as `settle` of `cost: { reserve: ..., settle: ... }`"
)]
#[case::above(
    "'11 + {query.n}'",
    "a cost of at least 11 is more than `a` can ever give at once, which is 10"
)]
fn check_says_what_is_wrong_with_a_sum(#[case] cost: &str, #[case] reason: &str) {
    let config = format!(
        "upstream: http://a\nlimiters: {{ a: 10/s }}\nroutes:\n\
         - {{ suffix: '*', max_wait: 1s, limiters: [{{ limiter: a, cost: {cost} }}] }}\n"
    );
    let dir = tempfile::tempdir().expect("a directory");
    let output = paceway_fed(dir.path(), &["check", "-"], &config);
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{err}");
    assert_eq!(err.trim_end(), format!("stdin:4:63: routes[0].limiters[0].cost: {reason}"));
}
