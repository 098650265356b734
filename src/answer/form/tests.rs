use super::*;
use crate::{answer::Failure, config::Rate, upstream::UpstreamError};
use rstest::rstest;
use std::time::Duration;

const FORMS: [AnswerForm; 5] = [
    AnswerForm::OpenAi,
    AnswerForm::Anthropic,
    AnswerForm::Google,
    AnswerForm::GitHub,
    AnswerForm::GraphQl,
];

fn limited(retry_after: Micros) -> Failure {
    let rate = Rate { count: 10, period: Duration::from_secs(1) };
    let policy = Policy { name: "search".into(), quota: Quota::Rate(rate) };
    Failure::Limited { policy, retry_after, remaining: 0 }
}

fn response(failure: &Failure, form: AnswerForm) -> Response<Bytes> {
    failure.response_as(form, &HeaderValue::from_static("id-7"))
}

fn body(failure: &Failure, form: AnswerForm) -> Value {
    serde_json::from_slice(response(failure, form).body()).expect("JSON")
}

const DETAIL: &str = "Request quota exceeded: the limiter `search` has no slot within the time this request may wait; come \
                      back in 2.500 s";

#[rstest]
#[case::openai(AnswerForm::OpenAi, json!({ "error": {
    "message": DETAIL, "type": "rate_limit_exceeded", "param": null, "code": "rate_limit_exceeded" } }))]
#[case::anthropic(AnswerForm::Anthropic, json!({
    "type": "error", "error": { "type": "rate_limit_error", "message": DETAIL }, "request_id": "id-7" }))]
#[case::google(AnswerForm::Google, json!({ "error": {
    "code": 429, "message": DETAIL, "status": "RESOURCE_EXHAUSTED",
    "details": [{ "@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "2.500s" }] } }))]
#[case::github(AnswerForm::GitHub, json!({
    "message": format!("You have exceeded a secondary rate limit. {DETAIL}"),
    "documentation_url": GITHUB_PAGE, "status": "429" }))]
#[case::graphql(AnswerForm::GraphQl, json!({
    "errors": [{ "message": DETAIL, "extensions": { "code": "RATE_LIMITED", "retryAfter": 3 } }], "data": null }))]
fn a_refusal_is_one_of_the_vendor(#[case] form: AnswerForm, #[case] expected: Value) {
    assert_eq!(body(&limited(2_500_000), form), expected);
}

#[rstest]
#[case::problem(AnswerForm::Problem)]
#[case::openai(AnswerForm::OpenAi)]
#[case::github(AnswerForm::GitHub)]
fn every_form_keeps_status_and_headers_of_the_problem(#[case] form: AnswerForm) {
    let failure = limited(2_500_000);
    let (problem, other) = (failure.response(), response(&failure, form));
    assert_eq!(other.status(), 429);
    for (name, value) in problem.headers().iter().filter(|(name, _)| *name != CONTENT_TYPE) {
        assert_eq!(other.headers().get(name), Some(value), "{name}");
    }
    let is_problem = form == AnswerForm::Problem;
    assert_eq!(problem.body() == other.body(), is_problem);
    assert_eq!(other.headers().contains_key("retry-after-ms"), !is_problem);
}

#[rstest]
#[case::a_second(limited(1_000_000), Some("true"))]
#[case::a_minute(limited(60_000_000), Some("true"))]
#[case::longer_than_clients_wait(limited(60_000_001), Some("false"))]
#[case::a_full_queue(Failure::QueueFull { retry_after: 500_000 }, Some("true"))]
#[case::a_cost_that_is_never_granted(Failure::BadRequest("a cost of 50 is more than 10".into()), Some("false"))]
#[case::an_answer_that_is_late(Failure::Upstream(UpstreamError::ResponseTimeout), None)]
#[case::a_slow_client(Failure::BodyTimeout, None)]
fn answers_say_whether_another_try_helps(#[case] failure: Failure, #[case] expected: Option<&str>) {
    for form in FORMS {
        let response = response(&failure, form);
        let told = response.headers().get("x-should-retry").map(|told| told.to_str().unwrap());
        assert_eq!(told, expected, "{form:?}");
    }
}

#[test]
fn the_wait_is_in_milliseconds_rounded_up() {
    let response = response(&limited(1_234_001), AnswerForm::Anthropic);
    assert_eq!(response.headers()["retry-after-ms"], "1235");
    assert_eq!(response.headers()["retry-after"], "2");
    assert_eq!(response.headers()["request-id"], "id-7");
    assert_eq!(response.headers()["content-type"], "application/json");
}

#[rstest]
#[case::whole(3_000_000, "3s")]
#[case::with_milliseconds(1_005_000, "1.005s")]
#[case::below_a_second(1, "0.001s")]
fn google_durations_are_those_of_protobuf(#[case] micros: Micros, #[case] expected: &str) {
    assert_eq!(google_duration(micros), expected);
}

#[test]
fn github_names_a_reset_that_is_not_too_early() {
    let before = Timestamp::now();
    let response = response(&limited(2_500_000), AnswerForm::GitHub);
    let header = |name: &str| response.headers()[name].to_str().unwrap().parse::<i64>().unwrap();
    assert_eq!((header("x-ratelimit-limit"), header("x-ratelimit-remaining")), (10, 0));
    let wait = header("x-ratelimit-reset") * 1000 - before.as_millisecond();
    assert!((2500..=5000).contains(&wait), "{wait}");
}

#[rstest]
#[case::a_full_queue(Failure::QueueFull { retry_after: 1 }, "overloaded_error", "UNAVAILABLE", "SERVICE_UNAVAILABLE")]
#[case::a_late_answer(
    Failure::Upstream(UpstreamError::ResponseTimeout),
    "timeout_error",
    "DEADLINE_EXCEEDED",
    "TIMEOUT"
)]
fn other_failures_have_the_vendors_names(
    #[case] failure: Failure,
    #[case] anthropic: &str,
    #[case] google: &str,
    #[case] graphql: &str,
) {
    assert_eq!(body(&failure, AnswerForm::Anthropic)["error"]["type"], anthropic);
    assert_eq!(body(&failure, AnswerForm::Google)["error"]["status"], google);
    let extensions = &body(&failure, AnswerForm::GraphQl)["errors"][0]["extensions"];
    assert_eq!(extensions["code"], graphql);
    let github = response(&failure, AnswerForm::GitHub);
    assert!(!github.headers().contains_key("x-ratelimit-remaining"), "{github:?}");
}
