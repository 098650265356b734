//! The configuration file of each vendor, before a pretend vendor that refuses as the real one does.

mod windows;

use crate::support::{Answer, Conn, Gateway, Reply, Upstream, eventually, reply, request};
use paceway::throttle::Timestamp;
use rstest::rstest;
use std::{
    fs,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    time::Duration,
};

/// Makes the vendor's answer to the first call, at this time of its clock.
type Refusal = fn(Timestamp) -> Reply;

/// A pause begins when the gateway has the answer, a little after the vendor has the call.
const ON_THE_WAY: Duration = Duration::from_millis(50);
const JSON: (&str, &str) = ("Content-Type", "application/json");

/// Starts a vendor that refuses the first call and takes all others, and a gateway with the file of this vendor.
async fn before(vendor: &str, refusal: Refusal) -> (Upstream, Gateway) {
    let calls = AtomicUsize::new(0);
    let upstream = Upstream::start(move |_| match calls.fetch_add(1, Relaxed) {
        0 => refusal(Timestamp::now()),
        _ => Reply::ok(),
    })
    .await;
    let gateway = with_file(vendor, &upstream).await;
    (upstream, gateway)
}

/// Starts a gateway with the file of a vendor, which is here.
async fn with_file(vendor: &str, upstream: &Upstream) -> Gateway {
    let file = fs::read_to_string(format!("config/vendors/{vendor}.yaml")).expect("a file");
    let line = |line: &str| match line.trim_start().strip_prefix("url: ") {
        Some(_) => format!("    url: {}\n", upstream.url()),
        None => format!("{line}\n"),
    };
    let yaml: String = file.lines().map(line).collect();
    assert!(yaml.contains(&upstream.url()), "{yaml}");
    Gateway::start(&yaml).await
}

/// An answer of a vendor with its own `Date`, which has whole seconds.
fn answer(now: Timestamp, status: &str, fields: &[(&str, &str)], body: &str) -> Reply {
    let date = now.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
    reply(status, &[fields, &[("Date", date.as_str()), JSON]].concat(), body)
}

fn too_many(now: Timestamp, fields: &[(&str, &str)], body: &str) -> Reply {
    answer(now, "429 Too Many Requests", fields, body)
}

fn forbidden(now: Timestamp, fields: &[(&str, &str)], body: &str) -> Reply {
    answer(now, "403 Forbidden", fields, body)
}

/// Seconds since 1970, this many seconds from now.
fn epoch(now: Timestamp, seconds: i64) -> String {
    (now.as_second() + seconds).to_string()
}

/// Sends a call such as `GET /a`. One with a body has two bytes of it.
async fn send(gateway: &Gateway, call: &str, fields: &[(&str, &str)]) -> Conn {
    let (method, target) = call.split_once(' ').expect("a method and a target");
    let has_body = method == "POST";
    let length: &[_] = if has_body { &[("Content-Length", "2")] } else { &[] };
    let mut conn = gateway.connect().await;
    let head = request(method, target, &[fields, length].concat());
    conn.send(head + if has_body { "{}" } else { "" }).await.expect("send");
    conn
}

async fn answered(gateway: &Gateway, call: &str, fields: &[(&str, &str)]) -> Answer {
    send(gateway, call, fields).await.answer().await.expect("an answer")
}

/// Checks that the gateway itself refuses a call during a pause, in whichever form the file of the vendor asks for.
fn assert_throttled(answer: &Answer) {
    assert_eq!(
        (answer.status, answer.field("paceway-origin")),
        (429, Some("gateway")),
        "{answer:?}"
    );
    assert!(answer.text().contains("because the upstream has refused calls"), "{answer:?}");
}

const THROTTLED: &str = r#"{"errors": [{"message": "Throttled", "extensions": {"code": "THROTTLED"}}], "extensions":
    {"cost": {"requestedQueryCost": 150, "throttleStatus": {"maximumAvailable": 2000.0, "currentlyAvailable": 30.0,
    "restoreRate": 100.0}}}}"#;
const SECONDARY: &str =
    r#"{"message": "You have exceeded a secondary rate limit. Please wait a few minutes."}"#;
const GRAPHQL: &str = "POST /admin/api/2026-07/graphql.json";

#[rstest]
#[case::github_quota("github", "GET /repos/a/b", |now| forbidden(now, &[("X-RateLimit-Limit", "5000"),
    ("X-RateLimit-Remaining", "0"), ("X-RateLimit-Used", "5000"), ("X-RateLimit-Reset", &epoch(now, 2))], "{}"), 2000)]
#[case::github_secondary("github", "GET /repos/a/b", |now| forbidden(now, &[("X-RateLimit-Remaining", "4000"),
    ("Retry-After", "1")], "{}"), 1000)]
#[case::github_message("github", "GET /repos/a/b", |now| forbidden(now, &[("X-RateLimit-Remaining", "4000"),
    ("Retry-After", "1")], SECONDARY), 1000)]
#[case::github_write("github", "POST /repos/a/b/issues", |now| too_many(now, &[("Retry-After", "1")], "{}"), 1000)]
#[case::shopify_rest("shopify-rest", "POST /admin/api/2026-07/orders.json", |now| too_many(now,
    &[("X-Shopify-Shop-Api-Call-Limit", "40/40"), ("Retry-After", "2.0")], "{}"), 2000)]
#[case::shopify_graphql("shopify-graphql", GRAPHQL, |now| answer(now, "200 OK", &[], THROTTLED), 1200)]
#[case::stripe("stripe", "POST /v1/customers", |now| too_many(now,
    &[("Stripe-Rate-Limited-Reason", "endpoint-rate")], "{}"), 1000)]
#[case::slack("slack", "POST /api/conversations.list", |now| too_many(now, &[("Retry-After", "1")],
    r#"{"ok": false, "error": "ratelimited"}"#), 1000)]
#[case::discord("discord", "POST /api/v10/channels/1/messages", |now| too_many(now, &[],
    r#"{"message": "You are being rate limited.", "retry_after": 1.25, "global": false}"#), 1250)]
#[case::discord_by_header("discord", "POST /api/v10/channels/1/messages", |now| too_many(now,
    &[("X-RateLimit-Remaining", "0"), ("X-RateLimit-Reset-After", "1.25")], "{}"), 1250)]
#[case::openai("openai", "POST /v1/chat/completions", |now| too_many(now, &[("retry-after-ms", "1250"),
    ("retry-after", "2")], "{}"), 1250)]
#[case::openai_tokens("openai", "POST /v1/chat/completions", |now| too_many(now,
    &[("x-ratelimit-remaining-requests", "9"), ("x-ratelimit-reset-requests", "6m0s"),
      ("x-ratelimit-remaining-tokens", "0"), ("x-ratelimit-reset-tokens", "1.5s")], "{}"), 1500)]
#[case::anthropic("anthropic", "POST /v1/messages", |now| too_many(now, &[("retry-after", "1")], "{}"), 1000)]
#[case::anthropic_by_reset("anthropic", "POST /v1/messages", |now| too_many(now,
    &[("anthropic-ratelimit-input-tokens-remaining", "0"), ("anthropic-ratelimit-input-tokens-reset",
      &Timestamp::from_second(now.as_second() + 2).expect("a time").to_string())], "{}"), 2000)]
#[case::bedrock("bedrock", "POST /model/anthropic.claude-sonnet-4-20250514-v1%3A0/converse", |now| too_many(now,
    &[("x-amzn-ErrorType", "ThrottlingException")], r#"{"message": "Too many tokens, please wait."}"#), 1000)]
#[case::google("google", "POST /v4/spreadsheets", |now| forbidden(now, &[],
    r#"{"error": {"code": 403, "errors": [{"reason": "userRateLimitExceeded"}]}}"#), 1000)]
#[case::gemini("google", "POST /v1beta/models/a:generateContent", |now| too_many(now, &[],
    r#"{"error": {"status": "RESOURCE_EXHAUSTED", "details": [{"@type": "type.googleapis.com/google.rpc.RetryInfo",
        "retryDelay": "1.25s"}]}}"#), 1250)]
#[case::gemini_in_a_stream("google", "POST /v1beta/models/a:streamGenerateContent", |now| too_many(now, &[],
    r#"[{"error": {"status": "RESOURCE_EXHAUSTED", "details": [{"retryDelay": "1.25s"}]}}]"#), 1250)]
#[case::amazon("amazon-sp-api", "GET /listings/2021-08-01/items/a", |now| too_many(now,
    &[("x-amzn-RateLimit-Limit", "0.8")], r#"{"errors": [{"code": "QuotaExceeded"}]}"#), 1250)]
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_sent_until_the_time_that_the_vendor_names(
    #[case] vendor: &str,
    #[case] call: &str,
    #[case] refusal: Refusal,
    #[case] named: u64,
) {
    let (upstream, gateway) = before(vendor, refusal).await;
    let mut refused = send(&gateway, call, &[]).await;
    eventually("the refused call waits", async || {
        (gateway.metric("paceway_waiting", &[]).await == 1.0).then_some(())
    })
    .await;
    let other = answered(&gateway, call, &[("Prefer", "wait=0")]).await;
    assert_throttled(&other);
    let answer = refused.answer().await.expect("an answer");
    assert_eq!((answer.status, answer.field("paceway-attempts")), (200, Some("2")), "{answer:?}");
    let arrivals = upstream.arrivals();
    assert_eq!(arrivals.len(), 2);
    let gap = arrivals[1] - arrivals[0];
    assert!(gap + ON_THE_WAY >= Duration::from_millis(named), "{gap:?}");
}

/// The caller gets the vendor's own answer at once when the pause is longer than its time, and later calls are refused.
#[rstest]
#[case::github_without_a_time("github", "GET /repos/a/b", |now| too_many(now, &[("X-RateLimit-Remaining", "4000")], "{}"), 429)]
#[case::github_by_its_message("github", "POST /repos/a/b/issues", |now| forbidden(now,
    &[("X-RateLimit-Remaining", "4000")], SECONDARY), 403)]
#[case::openai_without_credit("openai", "POST /v1/chat/completions", |now| too_many(now, &[],
    r#"{"error": {"code": "insufficient_quota"}}"#), 429)]
#[case::google_day("google", "GET /v4/spreadsheets/a", |now| forbidden(now, &[],
    r#"{"error": {"errors": [{"reason": "dailyLimitExceeded"}]}}"#), 403)]
#[case::salesforce("salesforce", "GET /services/data/v60.0/query", |now| forbidden(now,
    &[("Sforce-Limit-Info", "api-usage=100000/100000")], r#"[{"errorCode": "REQUEST_LIMIT_EXCEEDED"}]"#), 403)]
#[case::amazon_orders("amazon-sp-api", "GET /orders/v0/orders", |now| too_many(now,
    &[("x-amzn-RateLimit-Limit", "0.0017")], "{}"), 429)]
#[tokio::test(flavor = "multi_thread")]
async fn requests_do_not_wait_for_a_long_pause(
    #[case] vendor: &str,
    #[case] call: &str,
    #[case] refusal: Refusal,
    #[case] status: u16,
) {
    let (upstream, gateway) = before(vendor, refusal).await;
    let first = answered(&gateway, call, &[]).await;
    assert_eq!((first.status, first.field("paceway-attempts")), (status, None), "{first:?}");
    let second = answered(&gateway, call, &[]).await;
    assert_throttled(&second);
    let seconds = second.field("retry-after").and_then(|seconds| seconds.parse::<u64>().ok());
    // GitHub: 60 s, of which a caller may wait 30 s.
    assert!(seconds.is_some_and(|seconds| (25..=600).contains(&seconds)), "{second:?}");
    assert_eq!(upstream.arrivals().len(), 1);
    let begun = |event: &serde_json::Value| {
        event["message"].as_str().is_some_and(|message| message.starts_with("a pause begins"))
    };
    eventually("one line says that the upstream refuses calls", async || {
        let lines = gateway.events().into_iter().filter(begun).count();
        assert!(lines <= 1, "one line for one refusal");
        (lines == 1).then_some(())
    })
    .await;
}

/// Answers with the same status that say nothing about a quota pause nothing.
#[rstest]
#[case::github_permission("github", "GET /repos/a/b", |now| forbidden(now, &[("X-RateLimit-Remaining", "4000")], "{}"), 403)]
#[case::stripe_lock("stripe", "POST /v1/customers", |now| too_many(now, &[],
    r#"{"error": {"code": "lock_timeout"}}"#), 429)]
#[case::google_permission("google", "GET /v4/spreadsheets/a", |now| forbidden(now, &[],
    r#"{"error": {"errors": [{"reason": "forbidden"}]}}"#), 403)]
#[case::salesforce_permission("salesforce", "GET /services/data/v60.0/query", |now| forbidden(now, &[],
    r#"[{"errorCode": "API_DISABLED_FOR_ORG"}]"#), 403)]
#[case::graphql_error("shopify-graphql", GRAPHQL, |now| answer(now, "200 OK", &[],
    r#"{"errors": [{"extensions": {"code": "undefinedField"}}]}"#), 200)]
#[tokio::test(flavor = "multi_thread")]
async fn other_answers_pause_nothing(
    #[case] vendor: &str,
    #[case] call: &str,
    #[case] refusal: Refusal,
    #[case] status: u16,
) {
    let (upstream, gateway) = before(vendor, refusal).await;
    assert_eq!(answered(&gateway, call, &[]).await.status, status);
    let answer = answered(&gateway, call, &[("Prefer", "wait=10")]).await;
    assert_eq!((answer.status, answer.text().as_str()), (200, "ok"));
    assert_eq!(upstream.arrivals().len(), 2);
    assert_eq!(gateway.metric("paceway_upstream_throttled_total", &[]).await, 0.0);
}

/// The answer of a language model says how many tokens the call has used. The rest of the reserve is refunded, and a
/// shortfall is a debt.
#[rstest]
#[case::openai("openai", "POST /v1/chat/completions", r#"{"usage": {"prompt_tokens": 80, "completion_tokens": 40,
    "total_tokens": 120}}"#, &[("tokens", "refund", 880.0)])]
#[case::anthropic("anthropic", "POST /v1/messages", r#"{"usage": {"input_tokens": 80, "output_tokens": 340}}"#,
    &[("input-tokens", "refund", 920.0), ("output-tokens", "debt", 40.0)])]
#[tokio::test(flavor = "multi_thread")]
async fn a_call_costs_the_tokens_that_it_used(
    #[case] vendor: &str,
    #[case] call: &str,
    #[case] usage: &'static str,
    #[case] settled: &[(&str, &str, f64)],
) {
    let upstream = Upstream::start(move |_| reply("200 OK", &[JSON], usage)).await;
    let gateway = with_file(vendor, &upstream).await;
    assert_eq!(answered(&gateway, call, &[]).await.status, 200);
    for (limiter, direction, permits) in settled {
        let labels = [("limiter", *limiter), ("direction", *direction)];
        eventually("the call is settled", async || {
            let so_far = gateway.metric("paceway_settled_permits_total", &labels).await;
            (so_far == *permits).then_some(())
        })
        .await;
    }
}
