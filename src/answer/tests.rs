use super::*;
use crate::config::Rate;
use http::header::RETRY_AFTER;
use paceway_limit::answer::QUOTA_EXCEEDED;
use rstest::rstest;
use serde_json::json;
use std::time::Duration;

fn limited(retry_after: Micros) -> Response<Bytes> {
    let rate = Rate { count: 10, period: Duration::from_millis(250) };
    let policy = Policy { name: "search".into(), quota: Quota::Rate(rate) };
    Failure::Limited { policy, retry_after, remaining: 0 }.response()
}

#[rstest]
#[case::now(0, "1")]
#[case::a_bit(1, "1")]
#[case::one(1_000_000, "1")]
#[case::above_one(1_000_001, "2")]
#[case::a_minute(60_000_000, "60")]
fn retry_after_is_rounded_up_and_never_0(#[case] micros: Micros, #[case] seconds: &str) {
    assert_eq!(limited(micros).headers()[RETRY_AFTER], seconds);
}

#[test]
fn a_refusal_has_status_headers_and_problem() {
    let response = limited(1_234_567);
    let headers = response.headers();
    assert_eq!(response.status(), 429);
    assert_eq!(headers["ratelimit"], "\"search\";r=0;t=2");
    assert_eq!(headers["ratelimit-policy"], "\"search\";q=40;w=1");
    assert_eq!(headers["content-type"], "application/problem+json");
    assert_eq!(headers["paceway-origin"], "gateway");
    let problem: serde_json::Value = serde_json::from_slice(response.body()).expect("JSON");
    assert_eq!(problem["type"], QUOTA_EXCEEDED);
    assert_eq!(problem["violated-policies"], json!(["search"]));
    assert_eq!(problem["retry_after_ms"], 1235);
}

#[test]
fn a_refusal_because_of_a_pause_has_a_code_of_its_own() {
    let rate = Rate { count: 10, period: Duration::from_millis(250) };
    let policy = Policy { name: "search".into(), quota: Quota::Rate(rate) };
    let failure = Failure::Throttled { policy, retry_after: 6_000_000, remaining: 0 };
    let response = failure.response();
    assert_eq!(response.status(), 429);
    assert_eq!(response.headers()["retry-after"], "6");
    assert_eq!(response.headers()["ratelimit"], "\"search\";r=0;t=6");
    let problem: serde_json::Value = serde_json::from_slice(response.body()).expect("JSON");
    assert_eq!(problem["code"], "upstream-throttled");
    assert_eq!(problem["type"], "urn:paceway:problem:upstream-throttled");
    assert_eq!(problem["violated-policies"], json!(["search"]));
    let head = failure.grpc_response();
    assert_eq!(head.headers()["grpc-status"], "8");
    assert_eq!(head.headers()["grpc-retry-pushback-ms"], "6000");
}

#[test]
fn a_refusal_after_a_loss_names_reason_and_end() {
    let rate = Rate { count: 10, period: Duration::from_secs(86_400) };
    let policy = Policy { name: "daily".into(), quota: Quota::Rate(rate) };
    let response = Failure::closed(policy, 60_000_000, 0, 60_000_000).response();
    assert_eq!(response.status(), 429);
    assert_eq!(response.headers()["retry-after"], "60");
    assert_eq!(response.headers()["ratelimit"], "\"daily\";r=0;t=60");
    let problem: serde_json::Value = serde_json::from_slice(response.body()).expect("JSON");
    assert_eq!(problem["type"], QUOTA_EXCEEDED);
    let detail = problem["detail"].as_str().expect("a text");
    assert!(detail.starts_with("the limiter `daily` is closed until 20"), "{detail}");
    assert!(detail.contains("Z, because the store has lost its states"), "{detail}");
}

#[test]
fn a_refusal_of_high_cost_names_the_remaining_permits() {
    let rate = Rate { count: 10_000, period: Duration::from_secs(60) };
    let policy = Policy { name: "points".into(), quota: Quota::Rate(rate) };
    let failure = Failure::Limited { policy, retry_after: 30_000_000, remaining: 4_004 };
    assert_eq!(failure.response().headers()["ratelimit"], "\"points\";r=4004;t=30");
}
