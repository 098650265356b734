use super::*;
use http::HeaderValue;
use proptest::prelude::*;
use rstest::rstest;

/// Makes a head from lines such as `retry-after: 5`, with a `Date`.
pub(super) fn head(lines: &[&str]) -> HeaderMap {
    let date = "date: Tue, 16 Feb 2021 08:00:00 GMT";
    let field = |line: &&str| {
        let (name, value) = line.split_once(": ").unwrap();
        let name: HeaderName = name.to_ascii_lowercase().parse().unwrap();
        (name, HeaderValue::from_str(value).unwrap())
    };
    lines.iter().chain([&date]).map(field).collect()
}

fn rules(when: &[&str]) -> ThrottleRules {
    let when = when.iter().map(|text| Condition::parse(text).unwrap()).collect();
    ThrottleRules::new(Style::Auto, Some(when))
}

fn hear(
    rules: &ThrottleRules,
    status: u16,
    lines: &[&str],
    body: Option<&str>,
) -> Option<UpstreamRefusal> {
    let status = StatusCode::from_u16(status).unwrap();
    let body = body.map(str::as_bytes);
    rules.hear(status, &head(lines), body, Timestamp::UNIX_EPOCH).refusal
}

#[rstest]
#[case::too_many(429, &[], true)]
#[case::unavailable(503, &[], false)]
#[case::unavailable_for_a_time(503, &["retry-after: 5"], true)]
#[case::success(200, &["retry-after: 5"], false)]
#[case::forbidden(403, &["retry-after: 5"], false)]
#[case::from_a_cache(429, &["age: 7"], false)]
#[case::age_of_nothing(429, &["age: 0"], true)]
fn by_default_429_and_503_with_a_time_are_refusals(
    #[case] status: u16,
    #[case] lines: &[&str],
    #[case] refused: bool,
) {
    assert_eq!(hear(&ThrottleRules::default(), status, lines, None).is_some(), refused);
}

#[rstest]
#[case::millis_first(&["retry-after-ms: 250", "retry-after: 9"], 250, TimeSource::RetryAfterMs)]
#[case::seconds(&["retry-after: 9"], 9000, TimeSource::RetryAfter)]
#[case::fraction(&["retry-after: 2.5"], 2500, TimeSource::RetryAfter)]
#[case::date(&["retry-after: Tue, 16 Feb 2021 08:00:07 GMT"], 7000, TimeSource::RetryAfter)]
#[case::nonsense_and_then_the_body(&["retry-after: NaN"], 500, TimeSource::Body)]
#[case::negative_and_then_the_body(&["retry-after: -1"], 500, TimeSource::Body)]
#[case::past_and_then_the_body(&["retry-after: Tue, 16 Feb 2021 07:00:07 GMT"], 500, TimeSource::Body)]
fn the_first_named_time_counts(
    #[case] lines: &[&str],
    #[case] millis: u64,
    #[case] source: TimeSource,
) {
    let body = Some(r#"{"retry_after": 0.5, "global": false}"#);
    let refusal = hear(&ThrottleRules::default(), 429, lines, body).unwrap();
    assert_eq!((refusal.named, refusal.source), (Some(Duration::from_millis(millis)), source));
}

#[rstest]
#[case::discord(r#"{"retry_after": 0.5}"#, Some(500))]
#[case::telegram(r#"{"parameters": {"retry_after": 35}}"#, Some(35_000))]
#[case::gemini(r#"{"error": {"details": [{}, {"retryDelay": "34s"}]}}"#, Some(34_000))]
#[case::gemini_in_a_stream(
    r#"[{"error": {"details": [{}, {"retryDelay": "34s"}]}}]"#,
    Some(34_000)
)]
#[case::rpc_status(
    r#"{"code": 8, "details": [{"retryDelay": "0.25s"}, {"retryDelay": "7s"}]}"#,
    Some(7000)
)]
#[case::discord_in_an_array(r#"[{"retry_after": 0.5}]"#, Some(500))]
#[case::a_delay_of_nonsense(
    r#"[{"error": {"details": [{"retryDelay": 5}, {"retryDelay": "soon"}]}}]"#,
    None
)]
#[case::this_gateway(r#"{"retry_after_ms": 1250}"#, Some(1250))]
#[case::none(r#"{"retry_after": null}"#, None)]
#[case::negative(r#"{"retry_after": -1}"#, None)]
#[case::no_json("{", None)]
fn a_body_names_a_time(#[case] body: &str, #[case] millis: Option<u64>) {
    let refusal = hear(&ThrottleRules::default(), 429, &[], Some(body)).unwrap();
    assert_eq!(refusal.named, millis.map(Duration::from_millis));
}

#[test]
fn a_body_is_a_refusal_only_by_a_condition() {
    let throttled = r#"{"errors": [{"extensions": {"code": "THROTTLED"}}]}"#;
    let rules = rules(&["200 with json /errors/0/extensions/code=THROTTLED"]);
    let refusal = hear(&rules, 200, &[], Some(throttled)).unwrap();
    assert_eq!((refusal.status, refusal.repeat), (StatusCode::OK, Repeat::Always));
    assert_eq!(hear(&rules, 200, &[], Some(r#"{"data": {}}"#)), None);
    assert_eq!(hear(&ThrottleRules::default(), 200, &[], Some(throttled)), None);
}

#[rstest]
#[case::too_many("429", 429, "{}", Repeat::Always)]
#[case::forbidden("403", 403, "{}", Repeat::IfIdempotent)]
#[case::google(
    "403",
    403,
    r#"{"error": {"errors": [{"reason": "userRateLimitExceeded"}]}}"#,
    Repeat::Always
)]
#[case::a_day(
    "403",
    403,
    r#"{"error": {"errors": [{"reason": "dailyLimitExceeded"}]}}"#,
    Repeat::Never
)]
#[case::no_money_in_an_array(
    "429",
    429,
    r#"[{"error": {"code": "insufficient_quota"}}]"#,
    Repeat::Never
)]
#[case::no_money("429", 429, r#"{"error": {"code": "insufficient_quota"}}"#, Repeat::Never)]
#[case::payment("402", 402, "{}", Repeat::Never)]
fn a_hard_quota_is_not_repeated(
    #[case] when: &str,
    #[case] status: u16,
    #[case] body: &str,
    #[case] repeat: Repeat,
) {
    let rules = rules(&[when]);
    let refusal = hear(&rules, status, &[], Some(body)).unwrap();
    assert_eq!(refusal.repeat, repeat);
    let is_long = rules.pause(&refusal, 1) == rules.max_pause;
    assert_eq!(is_long, repeat == Repeat::Never);
}

#[rstest]
#[case::condition(200, &["content-type: application/json"], true)]
#[case::problem(200, &["content-type: application/problem+json; charset=utf-8"], true)]
#[case::amazon(200, &["content-type: application/x-amz-json-1.1"], true)]
#[case::capitals(200, &["content-type: Application/X-Amz-JSON-1.0; charset=UTF-8"], true)]
#[case::rows(200, &["content-type: application/x-ndjson"], false)]
#[case::stream(200, &["content-type: text/event-stream"], false)]
#[case::no_kind(200, &[], false)]
#[case::long(200, &["content-type: application/json", "content-length: 65537"], false)]
#[case::longest(200, &["content-type: application/json", "content-length: 65536"], true)]
#[case::empty(200, &["content-type: application/json", "content-length: 0"], false)]
#[case::compressed(200, &["content-type: application/json", "content-encoding: gzip"], false)]
#[case::cached(200, &["content-type: application/json", "age: 5"], false)]
#[case::no_condition(201, &["content-type: application/json"], false)]
#[case::refusal_without_a_time(429, &["content-type: application/json"], true)]
#[case::refusal_with_a_time(429, &["content-type: application/json", "retry-after: 5"], false)]
#[case::refusal_in_text(429, &["content-type: text/html"], false)]
fn a_body_is_held_only_where_it_decides(
    #[case] status: u16,
    #[case] lines: &[&str],
    #[case] needed: bool,
) {
    let rules = rules(&["429", "200 with json /error"]);
    let status = StatusCode::from_u16(status).unwrap();
    assert_eq!(rules.needs_body(status, &head(lines)), needed);
}

#[rstest]
#[case::now(403, r#"{"message": "You have exceeded a secondary rate limit. Please wait."}"#, true)]
#[case::before(403, r#"{"message": "You have triggered an abuse detection mechanism."}"#, true)]
#[case::permission(403, r#"{"message": "Resource not accessible by integration"}"#, false)]
#[case::other_status(422, r#"{"message": "You have exceeded a secondary rate limit."}"#, false)]
fn github_refuses_by_a_message_alone(
    #[case] status: u16,
    #[case] body: &str,
    #[case] refuses: bool,
) {
    let rules = ThrottleRules::new(Style::Github, None);
    let lines = &["content-type: application/json", "x-ratelimit-remaining: 4000"];
    let code = StatusCode::from_u16(status).unwrap();
    assert_eq!(rules.needs_body(code, &head(lines)), status == 403);
    let refusal = hear(&rules, status, lines, Some(body));
    let pause = refusal.map(|refusal| rules.pause(&refusal, 1).as_secs());
    assert_eq!(pause, refuses.then_some(60));
}

#[test]
fn the_default_pause_doubles_up_to_the_bound() {
    let rules = ThrottleRules::default();
    let refusal = hear(&rules, 429, &[], None).unwrap();
    let pauses = [1, 2, 3, 4, 10, 11, 33, u32::MAX].map(|n| rules.pause(&refusal, n).as_secs());
    assert_eq!(pauses, [1, 2, 4, 8, 512, 600, 600, 600]);
}

#[test]
fn a_named_time_is_clamped() {
    let rules = ThrottleRules::default();
    for (named, pause) in [("0", 100), ("0.05", 100), ("5", 5000), ("999999999", 600_000)] {
        let refusal = hear(&rules, 429, &[&format!("retry-after: {named}")], None).unwrap();
        assert_eq!(rules.pause(&refusal, 7), Duration::from_millis(pause), "{named}");
    }
}

#[test]
fn grpc_refusals_have_the_status_200() {
    let rules = ThrottleRules::default();
    let grpc = "content-type: application/grpc";
    let exhausted = hear(&rules, 200, &[grpc, "grpc-status: 8"], None).unwrap();
    assert_eq!((exhausted.status.as_u16(), exhausted.repeat), (429, Repeat::Always));
    assert_eq!(hear(&rules, 200, &["grpc-status: 8"], None), None);
    assert_eq!(hear(&rules, 200, &[grpc, "grpc-status: 14"], None), None);
}

#[rstest]
#[case::plain(200, &["content-type: text/plain"], false)]
#[case::status(429, &[], true)]
#[case::status_of_a_condition(503, &[], true)]
#[case::quota(200, &["x-ratelimit-remaining: 5"], true)]
#[case::grpc(200, &["grpc-status: 0"], true)]
#[case::other(500, &["server: x", "x-powered-by: y", "accept-ranges: none"], false)]
fn most_answers_change_nothing(
    #[case] status: u16,
    #[case] lines: &[&str],
    #[case] concerns: bool,
) {
    let status = StatusCode::from_u16(status).unwrap();
    let flags = HeaderFlags::of(&head(lines));
    assert_eq!(ThrottleRules::default().concerns(status, flags), concerns);
}

proptest! {
    #[test]
    fn every_answer_is_read_and_every_pause_is_within_the_bounds(
        status in 200..600u16,
        after in "\\PC{0,30}",
        body in "\\PC{0,60}",
        row in 0..99u32,
    ) {
        let rules = rules(&["429", "503 with retry-after", "200 with json /a"]);
        let line = format!("retry-after: {}", after.trim());
        if HeaderValue::from_str(&line).is_ok() && !after.trim().is_empty()
            && let Some(refusal) = hear(&rules, status, &[&line], Some(&body))
        {
            let pause = rules.pause(&refusal, row);
            prop_assert!((MIN_PAUSE..=rules.max_pause).contains(&pause));
        }
    }

    #[test]
    fn a_longer_time_is_never_a_shorter_pause(one in 0..1_000_000u32, other in 0..1_000_000u32) {
        let rules = ThrottleRules::default();
        let pause = |seconds: u32| {
            let refusal = hear(&rules, 429, &[&format!("retry-after: {seconds}")], None);
            refusal.map(|refusal| rules.pause(&refusal, 1))
        };
        prop_assert!(pause(one.min(other)) <= pause(one.max(other)));
    }
}
