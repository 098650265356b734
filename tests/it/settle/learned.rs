//! `reserve: learned`: what the answers of a limiter said is reserved for further calls, by all gateways and after a restart.

use super::JSON;
use crate::support::{
    Call, Gateway, Redis, Reply, Said, Upstream, closed, eventually, reached, reply, request,
};
use rstest::rstest;
use std::{sync::Arc, time::Duration};
use tokio::{sync::Semaphore, time::Instant};

const CAPACITY: i64 = 1_000_000;
const DEFAULT: i64 = 5000;

/// A model that takes a token for 4 bytes and answers with 100 more, as a stream if it is asked at `/stream`. It holds calls with
/// `X-Hold` until the gate opens.
async fn model(began: &Arc<Semaphore>, gate: &Arc<Semaphore>) -> Upstream {
    let (began, gate) = (began.clone(), gate.clone());
    Upstream::start(move |call: &Call| {
        let usage = format!("{{\"usage\":{{\"in\":{},\"out\":20}}}}", call.body.len() / 4);
        let answer = if call.target == "/stream" {
            let events = format!("data: {{}}\n\ndata: {usage}\n\ndata: [DONE]\n\n");
            reply("200 OK", &[("Content-Type", "text/event-stream")], &events)
        } else {
            reply("200 OK", &[JSON], &usage)
        };
        if call.head.get("x-hold").is_some() {
            began.add_permits(1);
            return Reply { gate: Some(gate.clone()), ..answer };
        }
        answer
    })
    .await
}

/// No gateway has a share, so that calls cost no more for as long as a killed one is missed.
async fn gateway(upstream: &Upstream, redis: &Redis, key: &str) -> Gateway {
    Gateway::start(&format!(
        "upstream: {}\nstore: {{ url: \"{}\", timeout: 5s }}\n\
         limiters: {{ tokens: {{ algorithm: fixed_window, rate: {CAPACITY}/day{key}, on_failure: reject }} }}\n\
         routes: [{{ suffix: \"*\", max_wait: 1s, limiters: [{{ limiter: tokens, cost: {{ reserve: learned, \
         default: {DEFAULT}, settle: '{{response.body./usage/in}} + 5*{{response.body./usage/out}}' }} }}] }}]\n",
        upstream.url(),
        redis.url()
    ))
    .await
}

/// Sends a call with a body of so many bytes, which costs a quarter of them and 100 more.
async fn call(gateway: &Gateway, target: &str, length: usize) {
    let mut conn = gateway.connect().await;
    let size = length.to_string();
    let head = request("POST", target, &[("Content-Length", &size), ("X-Key", "acme")]);
    conn.send(head + &"x".repeat(length)).await.expect("send");
    assert_eq!(conn.answer().await.expect("an answer").status, 200);
}

async fn level(gateway: &Gateway, is_keyed: bool) -> i64 {
    if !is_keyed {
        return gateway.limiter("tokens").await["level"].as_i64().expect("a number");
    }
    let page = gateway.page("/limiters/tokens/keys/acme").await.json();
    page["level"].as_i64().unwrap_or(CAPACITY)
}

/// The permits that are reserved for a call with this body, which is held.
async fn reserve(gateway: &Gateway, is_keyed: bool, began: &Semaphore, body: &str) -> i64 {
    let before = level(gateway, is_keyed).await;
    let mut conn = gateway.connect().await;
    let head = "POST / HTTP/1.1\r\nHost: a\r\nX-Key: acme\r\nX-Hold: 1\r\n";
    conn.send(format!("{head}{body}")).await.expect("send");
    reached(began, "the call is sent").await;
    before - level(gateway, is_keyed).await
}

/// Answers that came just before the end of a gateway count.
#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_ends_shares_its_last_costs() {
    let (began, gate, redis) = (closed(), closed(), Redis::that_is_heard());
    let upstream = model(&began, &gate).await;
    let mut first = gateway(&upstream, &redis, "").await;
    for i in 0..40 {
        call(&first, "/json", 400 * (i % 20)).await;
    }
    first.signal("TERM");
    assert!(first.end().await.success());
    match redis.command(&["GET", "paceway:{tokens}:R:tokens"]) {
        Said::Bytes(Some(text)) => assert!(text.starts_with(b"r2 4e1 "), "{text:?}"),
        nothing => panic!("{nothing:?}"),
    }
}

/// The gateway continues to learn while the store is away. A store that has lost the costs gets them again.
#[tokio::test(flavor = "multi_thread")]
async fn costs_are_learned_without_the_store_and_shared_when_it_is_back() {
    let (began, gate, mut redis) = (closed(), closed(), Redis::start());
    let upstream = model(&began, &gate).await;
    let yaml = format!(
        "upstream: {}\nstore: {{ url: \"{}\", timeout: 200ms }}\n\
         limiters: {{ tokens: {{ algorithm: fixed_window, rate: {CAPACITY}/day, on_loss: trust }} }}\n\
         routes: [{{ suffix: \"*\", max_wait: 1s, limiters: [{{ limiter: tokens, cost: {{ reserve: learned, \
         default: {DEFAULT}, settle: '{{response.body./usage/in}} + 5*{{response.body./usage/out}}' }} }}] }}]\n",
        upstream.url(),
        redis.url()
    );
    let gateway = Gateway::start(&yaml).await;
    let until_shared = async |redis: &Redis, text: &str| {
        eventually(text, async || match redis.command(&["GET", "paceway:{tokens}:R:tokens"]) {
            Said::Bytes(Some(shared)) => shared.starts_with(text.as_bytes()).then_some(()),
            _ => None,
        })
        .await;
    };
    for i in 0..40 {
        call(&gateway, "/json", 400 * (i % 20)).await;
    }
    until_shared(&redis, "r2 4e1 ").await;
    redis.kill();
    for i in 0..20 {
        call(&gateway, "/json", 400 * (i % 20)).await;
    }
    redis.start_again();
    until_shared(&redis, "r2 6e1 ").await;
    eventually("the store decides", async || {
        (gateway.limiter("tokens").await["share"].is_null()).then_some(())
    })
    .await;
    // It costs 2,100.
    let sized = &format!("Content-Length: 8000\r\n\r\n{}", "x".repeat(8000));
    let learned = reserve(&gateway, false, &began, sized).await;
    assert!((2100..2600).contains(&learned), "{learned}");
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_reserve_is_learned_from_answers_and_kept_over_a_restart(
    #[values("/json", "/stream")] target: &str,
    #[values(false, true)] is_keyed: bool,
) {
    let (began, gate, redis) = (closed(), closed(), Redis::that_is_heard());
    let upstream = model(&began, &gate).await;
    let key = if is_keyed { ", key: '{header.x-key}'" } else { "" };
    let mut first = gateway(&upstream, &redis, key).await;
    let other = gateway(&upstream, &redis, key).await;
    // It costs 2,100.
    let sized = &format!("Content-Length: 8000\r\n\r\n{}", "x".repeat(8000));
    assert_eq!(reserve(&first, is_keyed, &began, sized).await, DEFAULT);
    for i in 0..40 {
        call(&first, target, 400 * (i % 20)).await;
    }
    let name =
        if is_keyed { "paceway:{tokens}:R:tokens:acme" } else { "paceway:{tokens}:R:tokens" };
    let text = eventually("the answers are shared", async || match redis.command(&["GET", name]) {
        Said::Bytes(Some(text)) => {
            String::from_utf8(text).ok().filter(|text| text.starts_with("r2 4"))
        }
        _ => None,
    });
    assert!(text.await.len() < 1500);
    let learned = reserve(&first, is_keyed, &began, sized).await;
    assert!((2100..2600).contains(&learned), "{learned}");
    let chunks = format!("9c40\r\n{}\r\n0\r\n\r\n", "x".repeat(40_000));
    let chunked = &format!("Transfer-Encoding: chunked\r\n\r\n{chunks}");
    let unknown = reserve(&first, is_keyed, &began, chunked).await;
    assert_eq!(unknown, DEFAULT, "the length is not known in advance");
    first.signal("KILL");
    first.end().await;
    let again = gateway(&upstream, &redis, key).await;
    for gateway in [&other, &again] {
        eventually("the gateway knows the costs", async || {
            (reserve(gateway, is_keyed, &began, sized).await == learned).then_some(())
        })
        .await;
    }
    let path = match (is_keyed, target) {
        (false, _) => "/limiters/tokens",
        (true, "/json") => "/limiters/tokens/keys/acme",
        (true, _) => "/limiters/tokens/keys",
    };
    assert_eq!(again.admin_request(request("DELETE", path, &[])).await.status, 200);
    let begun = Instant::now();
    assert_eq!(reserve(&again, is_keyed, &began, sized).await, DEFAULT, "a reset forgets");
    eventually("the other gateway forgets", async || {
        (reserve(&other, is_keyed, &began, sized).await == DEFAULT).then_some(())
    })
    .await;
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
}
