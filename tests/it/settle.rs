//! True costs: permits are reserved before a request and settled by its answer, from a header, a JSON body or the last event
//! of a stream, once, on every store and without delaying a byte.

mod evaded;
mod free;
mod learned;
mod sums;

use crate::support::{Answer, Call, Gateway, Reply, Upstream, eventually, reply, request, store};
use rstest::rstest;
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};
use tokio::sync::Semaphore;

const JSON: (&str, &str) = ("Content-Type", "application/json");
const BODY_COST: &str = "{ reserve: '{body./max_tokens}', default: 300, settle: '{response.body./usage/total_tokens}' }";

const TOKENS: &str = "{\"usage\":{\"total_tokens\":120}}";

/// A gateway with 1000 tokens a day, of which each request costs `cost`.
async fn gateway(upstream: &Upstream, store: &str, cost: &str) -> Gateway {
    Gateway::start(&format!(
        "upstream: {}\n{store}\nlimiters: {{ tokens: 1000/day }}\n\
         routes: [{{ name: all, suffix: \"*\", max_wait: 1s, limiters: [{{ limiter: tokens, cost: {cost} }}] }}]\n",
        upstream.url()
    ))
    .await
}

async fn post(gateway: &Gateway, fields: &[(&str, &str)], body: &str) -> Answer {
    let mut conn = gateway.connect().await;
    let length = body.len().to_string();
    let fields = [fields, &[("Content-Length", &*length)]].concat();
    conn.send(request("POST", "/", &fields) + body).await.expect("send");
    conn.answer().await.expect("an answer")
}

/// Waits until so many permits are left.
async fn left(gateway: &Gateway, permits: i64) {
    let what = format!("{permits} permits are left");
    eventually(&what, async || (gateway.limiter("tokens").await["level"] == permits).then_some(()))
        .await;
}

async fn settled(gateway: &Gateway, direction: &str) -> f64 {
    let labels = [("limiter", "tokens"), ("direction", direction)];
    gateway.metric("paceway_settled_permits_total", &labels).await
}

/// An upstream whose answer to a request is as long as the header `x-true` says.
async fn model() -> Upstream {
    Upstream::start(|call: &Call| {
        let cost = call.head.get("x-true").unwrap_or("0");
        let answer = format!("{{\"text\":\"hello\",\"usage\":{{\"total_tokens\":{cost}}}}}");
        reply("200 OK", &[JSON, ("X-Cost", cost)], &answer)
    })
    .await
}

#[rstest]
#[case::json(BODY_COST)]
#[case::header("{ reserve: '{body./max_tokens}', settle: '{response.header.x-cost}' }")]
#[tokio::test(flavor = "multi_thread")]
async fn the_rest_of_a_reserve_is_refunded_and_a_shortfall_is_a_debt(
    #[case] cost: &str,
    #[values(false, true)] is_redis: bool,
) {
    let upstream = model().await;
    let (_redis, store) = store(is_redis);
    let gateway = gateway(&upstream, &store, cost).await;
    let answer = post(&gateway, &[JSON, ("X-True", "200")], "{\"max_tokens\":900}").await;
    assert_eq!(answer.status, 200, "{answer:?}");
    left(&gateway, 800).await;
    // The refund lets this one pass at once, and it uses 100 more than it reserved.
    let answer = post(&gateway, &[JSON, ("X-True", "800")], "{\"max_tokens\":700}").await;
    assert_eq!(answer.status, 200, "{answer:?}");
    left(&gateway, 0).await;
    assert_eq!(
        (settled(&gateway, "refund").await, settled(&gateway, "debt").await),
        (700.0, 100.0)
    );
    let answer = post(&gateway, &[JSON], "{\"max_tokens\":1}").await;
    assert_eq!((answer.status, answer.problem().as_str()), (429, "quota-exceeded"));
    assert_eq!(upstream.calls().len(), 2);
}

/// Each attempt takes its own permits: those of the refused one are spent, and those of the one that was answered are settled.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_is_sent_again_is_settled_once() {
    let calls = AtomicUsize::new(0);
    let upstream = Upstream::start(move |_| match calls.fetch_add(1, Relaxed) {
        0 => reply("429 Too Many Requests", &[JSON, ("Retry-After", "0.2")], TOKENS),
        _ => reply("200 OK", &[JSON], TOKENS),
    })
    .await;
    let gateway = Gateway::start(&format!(
        "upstream: {}\nlimiters: {{ tokens: 100000/s }}\n\
         routes: [{{ name: all, suffix: \"*\", max_wait: 5s, limiters: [{{ limiter: tokens, cost: {BODY_COST} }}] }}]\n",
        upstream.url()
    ))
    .await;
    let answer = post(&gateway, &[JSON], "{\"max_tokens\":300}").await;
    assert_eq!((answer.status, answer.field("paceway-attempts")), (200, Some("2")), "{answer:?}");
    eventually("the second attempt is settled", async || {
        (settled(&gateway, "refund").await == 180.0).then_some(())
    })
    .await;
    assert_eq!(post(&gateway, &[JSON], "{\"max_tokens\":120}").await.status, 200);
    assert_eq!((settled(&gateway, "refund").await, settled(&gateway, "debt").await), (180.0, 0.0));
}

/// The debt is 500 permits of 1000 a day. Permits are granted for one hour ahead, so a part of it is charged at
/// once, and the rest each minute.
#[tokio::test(flavor = "multi_thread")]
async fn a_debt_moves_later_slots() {
    let upstream = model().await;
    let gateway = gateway(&upstream, "", BODY_COST).await;
    post(&gateway, &[JSON, ("X-True", "1500")], "{\"max_tokens\":1000}").await;
    left(&gateway, 0).await;
    let answer = post(&gateway, &[JSON], "{\"max_tokens\":1}").await;
    assert_eq!(answer.status, 429);
    let after: u64 = answer.field("retry-after").expect("a time").parse().expect("seconds");
    assert!((1_700..3_700).contains(&after), "{after}");
}

/// Each event arrives before the upstream sends the next one. The last event that has the value counts.
#[rstest]
#[case::with_its_end(true)]
#[case::until_the_stream_ends(false)]
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_is_settled_by_its_last_event_and_not_delayed(
    #[case] has_end: bool,
    #[values(false, true)] is_redis: bool,
) {
    let next = Arc::new(Semaphore::new(0));
    let sends = next.clone();
    let upstream = Upstream::raw(move |mut conn| {
        let sends = sends.clone();
        async move {
            let Ok(Some((head, ..))) = conn.request().await else { return };
            assert_eq!(head.get("accept-encoding"), Some("identity"));
            let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n\
                        Transfer-Encoding: chunked\r\n\r\n";
            conn.send(head).await.expect("send");
            let events = [
                "data: {\"text\":\"a\",\"usage\":null}\n\n",
                "data: {\"usage\":{\"total_tokens\":5}}\n\n",
                "data: {\"usage\":{\"total_tokens\":50}}\r\n\r\n",
                if has_end { "data: [DONE]\n\n" } else { ": over\n\n" },
            ];
            for event in events {
                sends.acquire().await.expect("open").forget();
                let chunk = format!("{:x}\r\n{event}\r\n", event.len());
                conn.send(chunk).await.expect("send");
            }
            sends.acquire().await.expect("open").forget();
            conn.send("0\r\n\r\n").await.expect("send");
        }
    })
    .await;
    let (_redis, store) = store(is_redis);
    let gateway = gateway(&upstream, &store, BODY_COST).await;
    let mut conn = gateway.connect().await;
    let body = "{\"max_tokens\":400,\"stream\":true}";
    let length = body.len().to_string();
    let fields = [JSON, ("Content-Length", &*length), ("Accept-Encoding", "gzip")];
    conn.send(request("POST", "/", &fields) + body).await.expect("send");
    conn.head().await.expect("a head");
    for end in
        ["null}\n\n", ":5}}\n\n", ":50}}\r\n\r\n", if has_end { "[DONE]\n\n" } else { "over\n\n" }]
    {
        left(&gateway, 600).await;
        next.add_permits(1);
        conn.until(end).await.expect("the event");
    }
    if has_end {
        // A client of a language model leaves now.
        drop(conn);
        left(&gateway, 950).await;
    } else {
        next.add_permits(1);
        conn.until("0\r\n\r\n").await.expect("the end");
        left(&gateway, 950).await;
    }
    assert_eq!(settled(&gateway, "refund").await, 350.0);
}

/// Without the value the reserve counts: no answer, another type, a compressed one, one that breaks off.
#[rstest]
#[case::no_value("Content-Type: application/json\r\nContent-Length: 2", "{}")]
#[case::null(
    "Content-Type: application/json\r\nContent-Length: 31",
    "{\"usage\":{\"total_tokens\":null} }"
)]
#[case::fraction(
    "Content-Type: application/json\r\nContent-Length: 30",
    "{\"usage\":{\"total_tokens\":1.5}}"
)]
#[case::another_type(
    "Content-Type: text/plain\r\nContent-Length: 28",
    "{\"usage\":{\"total_tokens\":1}}"
)]
#[case::compressed(
    "Content-Type: application/json\r\nContent-Encoding: gzip\r\nContent-Length: 28",
    "{\"usage\":{\"total_tokens\":1}}"
)]
#[case::cut(
    "Content-Type: application/json\r\nContent-Length: 99",
    "{\"usage\":{\"total_tokens\":1}}"
)]
#[case::cut_stream(
    "Content-Type: text/event-stream\r\nContent-Length: 99",
    "data: {\"usage\":{\"total_tokens\":1}}\n\n"
)]
#[case::no_answer("", "")]
#[tokio::test(flavor = "multi_thread")]
async fn a_missing_value_makes_the_reserve_the_cost(#[case] head: &str, #[case] body: &str) {
    let bytes = match head {
        "" => String::new(),
        head => format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n{body}"),
    };
    let upstream = Upstream::start(move |_| Reply::raw(&bytes)).await;
    let gateway = gateway(&upstream, "", BODY_COST).await;
    let mut conn = gateway.connect().await;
    let fields = [JSON, ("Content-Length", "18"), ("Connection", "close")];
    conn.send(request("POST", "/", &fields) + "{\"max_tokens\":400}").await.expect("send");
    conn.rest().await;
    left(&gateway, 600).await;
    assert_eq!((settled(&gateway, "refund").await, settled(&gateway, "debt").await), (0.0, 0.0));
}

/// The client leaves in the middle of a stream that has said a cost, which is not the last one.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_pays_its_reserve() {
    let upstream = Upstream::raw(async |mut conn| {
        let Ok(Some(_)) = conn.request().await else { return };
        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n\
                    data: {\"usage\":{\"total_tokens\":1}}\n\n";
        conn.send(head).await.expect("send");
        conn.rest().await;
    })
    .await;
    let gateway = gateway(&upstream, "", BODY_COST).await;
    let mut conn = gateway.connect().await;
    let (fields, sent) = ([JSON, ("Content-Length", "18")], "{\"max_tokens\":400}");
    conn.send(request("POST", "/", &fields) + sent).await.expect("send");
    conn.until("\n\n").await.expect("the event");
    drop(conn);
    // The end of this one shows that the first is over: the gateway counted it.
    eventually("the gateway sees that the client left", async || {
        let text = gateway.page("/metrics").await.text();
        text.contains("paceway_upstream_requests_total").then_some(())
    })
    .await;
    left(&gateway, 600).await;
    assert_eq!(settled(&gateway, "refund").await, 0.0);
}

#[rstest]
#[case::zero("{\"max_tokens\":0}", 999)]
#[case::zero_as_a_text("{\"max_tokens\":\"0\"}", 999)]
#[case::nearly_zero("{\"max_tokens\":1e-400}", 999)]
#[case::missing("{}", 700)]
#[case::no_number("{\"max_tokens\":\"many\"}", 700)]
#[case::whole_with_a_point("{\"max_tokens\":50.0}", 950)]
#[case::above_the_capacity("{\"max_tokens\":128000}", 0)]
#[tokio::test(flavor = "multi_thread")]
async fn a_reserve_comes_from_the_body(#[case] body: &str, #[case] expected: i64) {
    let upstream = Upstream::ok().await;
    let gateway = gateway(&upstream, "", BODY_COST).await;
    assert_eq!(post(&gateway, &[JSON], body).await.status, 200);
    left(&gateway, expected).await;
    assert_eq!(upstream.calls()[0].body, body.as_bytes());
}

/// A cost of 0 takes nothing, and a limiter that is used up does not hold such a request.
#[tokio::test(flavor = "multi_thread")]
async fn a_cost_of_zero_takes_nothing() {
    let upstream = Upstream::ok().await;
    let gateway = Gateway::before(&upstream, "limiters: { points: 5/day, calls: 100/day }\n\
         routes: [{ suffix: \"*\", limiters: [{ limiter: points, cost: '{header.x-cost}' }, calls] }]\n")
    .await;
    let ask = async |cost: &str| {
        let mut conn = gateway.ask("/", &[("X-Cost", cost)]).await;
        conn.answer().await.expect("an answer").status
    };
    assert_eq!((ask("5").await, ask("1").await), (200, 429));
    assert_eq!((ask("0").await, ask("00").await), (200, 200));
    assert_eq!(gateway.limiter("points").await["level"], 0);
    assert_eq!(gateway.limiter("calls").await["level"], 97);
    // The limiter that refuses is named by the index among those that were asked.
    assert_eq!(ask("6").await, 400);
}

/// A key from the body: each model has a bucket of its own.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_comes_from_the_body() {
    let upstream = Upstream::ok().await;
    let gateway = Gateway::before(
        &upstream,
        "limiters: { model: { rate: 1/day, key: '{body./model}' } }\n\
         routes: [{ suffix: \"*\", limiters: [model] }]\n",
    )
    .await;
    let ask = async |body: &str| post(&gateway, &[JSON], body).await.status;
    assert_eq!((ask("{\"model\":\"a\"}").await, ask("{\"model\":\"b\"}").await), (200, 200));
    assert_eq!((ask("{ \"model\" : \"\\u0061\" }").await, ask("{}").await), (429, 200));
    assert_eq!(ask("not json").await, 400);
}

/// The body is sent as it came, whatever its framing.
#[rstest]
#[case::length("Content-Length: 22\r\n\r\n{ \"max_tokens\" : 100 }")]
#[case::chunks(
    "Transfer-Encoding: chunked\r\n\r\n2\r\n{ \r\n13\r\n\"max_tokens\" : 100 \r\n1\r\n}\r\n0\r\n\r\n"
)]
#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_is_read_is_forwarded_byte_for_byte(#[case] rest: &str) {
    let upstream = model().await;
    let gateway = gateway(&upstream, "", BODY_COST).await;
    let mut conn = gateway.connect().await;
    let head = "POST / HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nX-True: 100\r\n";
    conn.send(format!("{head}{rest}")).await.expect("send");
    assert_eq!(conn.answer().await.expect("an answer").status, 200);
    assert_eq!(upstream.calls()[0].body, b"{ \"max_tokens\" : 100 }");
    left(&gateway, 900).await;
}

/// The client waits for `100 Continue` before it sends the body that the cost is in.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_with_a_cost_in_its_body_gets_100_continue() {
    let upstream = model().await;
    let gateway = gateway(&upstream, "", BODY_COST).await;
    let mut conn = gateway.connect().await;
    let fields = [JSON, ("Content-Length", "18"), ("Expect", "100-continue"), ("X-True", "5")];
    conn.send(request("POST", "/", &fields)).await.expect("send");
    assert_eq!(conn.head().await.expect("a head").expect("one").start, "HTTP/1.1 100 Continue");
    conn.send("{\"max_tokens\":400}").await.expect("send");
    assert_eq!(conn.answer().await.expect("an answer").status, 200);
    let call = &upstream.calls()[0];
    assert_eq!((&*call.body, call.head.get("expect")), (&b"{\"max_tokens\":400}"[..], None));
    left(&gateway, 995).await;
}
