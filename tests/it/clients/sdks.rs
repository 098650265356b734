//! The gateway's own answers as the SDKs of vendors and a GraphQL client understand them: their error classes, and the waits of
//! their own retries.

use super::{node, python, run};
use crate::support::{Gateway, Reply, Upstream, reply};
use rstest::rstest;
use serde_json::{Value, json};
use std::time::Duration;

const JSON: (&str, &str) = ("Content-Type", "application/json");
/// An answer that each of the SDKs takes for one of its vendor.
const ANSWER: &str = r#"{"id": "a", "object": "chat.completion", "created": 1, "model": "m", "choices": [], "type": "message",
    "role": "assistant", "content": [], "stop_reason": "end_turn", "usage": {"input_tokens": 1, "output_tokens": 1},
    "candidates": [], "data": {"a": 1}}"#;

/// A gateway with this limiter before a vendor, whose answers it gives itself where it refuses.
async fn before(vendor: &str, limiter: &str, answer: fn() -> Reply) -> (Upstream, Gateway) {
    let upstream = Upstream::start(move |_| answer()).await;
    let url = upstream.url();
    let gateway = Gateway::start(&format!(
        "upstreams: {{ vendor: {{ url: \"{url}\", response_timeout: 200ms, answers: {vendor} }} }}\n\
         limiters: {{ calls: {limiter} }}\n\
         routes: [{{ name: all, suffix: \"*\", limiters: [calls], max_wait: 0 }}]\n"
    ))
    .await;
    (upstream, gateway)
}

fn serve() -> Reply {
    reply("200 OK", &[JSON], ANSWER)
}

/// Makes a call with the SDK of the vendor for each of `retries`, and returns how each ended.
async fn calls(vendor: &str, gateway: &Gateway, retries: &[&str]) -> Vec<Value> {
    let url = format!("http://{}", gateway.listen);
    let command = match vendor {
        "github" => node(&[&["tests/clients/octokit.mjs", &url], retries].concat()),
        _ => python("sdks.py", &[&[vendor, &url], retries].concat()),
    };
    let printed = run(command).await;
    printed.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

async fn refusals(gateway: &Gateway) -> f64 {
    gateway.count("all", "refused").await
}

#[rstest]
#[case::openai("openai", "RateLimitError", json!({ "status_code": 429, "code": "rate_limit_exceeded",
    "type": "rate_limit_exceeded" }))]
#[case::anthropic("anthropic", "RateLimitError", json!({ "status_code": 429 }))]
#[case::google("google", "ClientError", json!({ "code": 429, "status": "RESOURCE_EXHAUSTED" }))]
#[case::github("github", "HttpError", json!({ "status": 429 }))]
#[case::graphql("graphql", "TransportQueryError", json!({}))]
#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_is_the_rate_limit_error_of_the_sdk(
    #[case] vendor: &str,
    #[case] error: &str,
    #[case] expected: Value,
) {
    let (_upstream, gateway) = before(vendor, "{ rate: 1/hour }", serve).await;
    let ended = calls(vendor, &gateway, &["0", "0"]).await;
    assert_eq!((ended.len(), &ended[0]["error"]), (2, &Value::Null), "{ended:?}");
    let raised = &ended[1];
    assert_eq!(raised["error"], error, "{raised}");
    for (key, value) in expected.as_object().expect("fields") {
        assert_eq!(&raised[key], value, "{key} of {raised}");
    }
    let message = raised["message"].as_str().or(raised["errors"][0]["message"].as_str());
    let message = message.expect("a message");
    assert!(message.contains("the limiter `calls` has no slot"), "{message}");
    if vendor == "graphql" {
        assert_eq!(raised["errors"][0]["extensions"]["code"], "RATE_LIMITED", "{raised}");
    }
    assert_eq!(refusals(&gateway).await, 1.0);
}

/// A retry that came too early would be refused again.
#[rstest]
#[case::openai("openai")]
#[case::anthropic("anthropic")]
#[case::github("github")]
#[tokio::test(flavor = "multi_thread")]
async fn sdks_wait_as_long_as_the_refusal_says(#[case] vendor: &str) {
    // Where the machine stalls for 3 s between the two calls, the second is not refused.
    for attempt in 1.. {
        let (upstream, gateway) = before(vendor, "{ rate: 1/3s }", serve).await;
        let ended = calls(vendor, &gateway, &["2", "2"]).await;
        assert!(ended.iter().all(|call| call["error"] == Value::Null), "{ended:?}");
        assert_eq!(upstream.arrivals().len(), 2, "{ended:?}");
        let count = refusals(&gateway).await;
        assert!(count <= 1.0, "{count} refusals: {ended:?}");
        if count == 1.0 {
            break;
        }
        assert!(attempt < 5, "the machine stalled five times: {ended:?}");
    }
}

/// The slot comes in an hour, so that neither a wait for it nor a retry after a second helps.
#[rstest]
#[case::openai("openai")]
#[case::anthropic("anthropic")]
#[tokio::test(flavor = "multi_thread")]
async fn sdks_give_up_at_once_where_waiting_is_useless(#[case] vendor: &str) {
    let (_upstream, gateway) = before(vendor, "{ rate: 1/hour }", serve).await;
    let ended = calls(vendor, &gateway, &["3", "3"]).await;
    assert_eq!(ended[1]["error"], "RateLimitError", "{ended:?}");
    assert_eq!(refusals(&gateway).await, 1.0);
}

#[rstest]
#[case::openai("openai", "InternalServerError")]
#[case::anthropic("anthropic", "InternalServerError")]
#[case::google("google", "ServerError")]
#[case::github("github", "HttpError")]
#[tokio::test(flavor = "multi_thread")]
async fn a_late_upstream_is_the_server_error_of_the_sdk(#[case] vendor: &str, #[case] error: &str) {
    let late = || serve().after(Duration::from_secs(600));
    let (_upstream, gateway) = before(vendor, "{ rate: 100/s }", late).await;
    let ended = calls(vendor, &gateway, &["0"]).await;
    let message = ended[0]["message"].as_str().expect("a message");
    assert!(message.contains("The upstream did not answer in time"), "{ended:?}");
    let kinds = ended[0]["kinds"].as_array().cloned().unwrap_or_default();
    assert!(ended[0]["error"] == error || kinds.contains(&error.into()), "{ended:?}");
}
