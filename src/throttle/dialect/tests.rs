//! Tests that the headers of each vendor are read as it means them. The examples are those of their documents.

use crate::throttle::{
    Heard, MIN_PAUSE, QuotaReport, Style, ThrottleRules, TimeSource, Timestamp, tests::head,
};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use paceway_limit::Rate;
use proptest::prelude::*;
use rstest::rstest;
use std::time::Duration;

fn hear(style: Style, status: u16, lines: &[&str]) -> Heard {
    let status = StatusCode::from_u16(status).unwrap();
    ThrottleRules::new(style, None).hear(status, &head(lines), None, Timestamp::UNIX_EPOCH)
}

fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

/// Writes a report as `name remaining/limit window reset`, with `-` for each part that is missing.
fn shown(report: &QuotaReport) -> String {
    let span =
        |span: Option<Duration>| span.map_or("-".into(), |span| span.as_secs_f64().to_string());
    let QuotaReport { name, remaining, limit, window, reset } = report;
    let limit = limit.map_or("-".into(), |limit| limit.to_string());
    format!("{name} {remaining}/{limit} {} {}", span(*window), span(*reset)).trim_start().to_owned()
}

// The `Date` of each answer is 1613462400, Tue 16 Feb 2021 08:00:00.
#[rstest]
#[case::draft_10(
    Style::Ietf,
    &["ratelimit-policy: \"burst\";q=100;w=60,\"daily\";q=1000;w=86400", "ratelimit: \"burst\";r=50;t=30"],
    &["burst 50/100 60 30"]
)]
#[case::draft_10_of_two(
    Style::Ietf,
    &["ratelimit: \"a\";r=50;t=30;pk=:c2hvcA==:", "ratelimit: \"b\";r=7;x=\"unknown\""],
    &["a 50/- - 30", "b 7/- - -"]
)]
#[case::draft_10_of_other_units(
    Style::Ietf,
    &["ratelimit-policy: \"a\";q=100;qu=\"requests\";w=60,\"b\";q=9;qu=\"content-bytes\";w=60,\"c\";q=4;qu=\"concurrent-requests\"",
      "ratelimit: \"b\";r=1;t=30, \"a\";r=50;t=30", "ratelimit: \"c\";r=0"],
    &["a 50/100 60 30"]
)]
#[case::draft_08_by_token(Style::Ietf, &["ratelimit: default;r=50;t=30"], &["default 50/- - 30"])]
#[case::draft_07(
    Style::Ietf,
    &["ratelimit: limit=100, remaining=50, reset=5", "ratelimit-policy: 100;w=60"],
    &["50/100 60 5"]
)]
#[case::draft_05(
    Style::Ietf,
    &["ratelimit-limit: 100, 100;w=60", "ratelimit-remaining: 50", "ratelimit-reset: 5"],
    &["50/100 - 5"]
)]
#[case::draft_of_nonsense(Style::Ietf, &["ratelimit: \"a\";r=-1;t=30, \"b\";r=x;;"], &[])]
#[case::discord(
    Style::Discord,
    &["x-ratelimit-limit: 5", "x-ratelimit-remaining: 4", "x-ratelimit-reset: 1613462401.500",
      "x-ratelimit-reset-after: 1.25", "x-ratelimit-bucket: abcd1234"],
    &["4/5 - 1.25"]
)]
#[case::github(
    Style::Github,
    &["x-ratelimit-limit: 5000", "x-ratelimit-remaining: 4999", "x-ratelimit-used: 1",
      "x-ratelimit-reset: 1613466000", "x-ratelimit-resource: core"],
    &["4999/5000 - 3600"]
)]
#[case::shopify(Style::Shopify, &["x-shopify-shop-api-call-limit: 32/40"], &["8/40 - -"])]
#[case::openai(
    Style::Openai,
    &["x-ratelimit-limit-requests: 60", "x-ratelimit-remaining-requests: 59", "x-ratelimit-reset-requests: 1s",
      "x-ratelimit-limit-tokens: 150000", "x-ratelimit-remaining-tokens: 149984", "x-ratelimit-reset-tokens: 6m0s"],
    &["requests 59/60 - 1", "tokens 149984/150000 - 360"]
)]
#[case::azure_unknown(
    Style::Azure,
    &["x-ratelimit-limit-tokens: -1", "x-ratelimit-remaining-tokens: -1", "x-ratelimit-reset-tokens: 0",
      "x-ratelimit-remaining-requests: 0"],
    &[]
)]
#[case::azure(Style::Azure, &["x-ratelimit-remaining-requests: 7", "x-ratelimit-reset-requests: 10"], &["requests 7/- - 10"])]
#[case::anthropic(
    Style::Anthropic,
    &["anthropic-ratelimit-requests-limit: 50", "anthropic-ratelimit-requests-remaining: 49",
      "anthropic-ratelimit-requests-reset: 2021-02-16T08:00:01Z",
      "anthropic-ratelimit-input-tokens-limit: 40000", "anthropic-ratelimit-input-tokens-remaining: 39000",
      "anthropic-ratelimit-input-tokens-reset: 2021-02-16T08:00:02Z"],
    &["requests 49/50 - 1", "input-tokens 39000/40000 - 2"]
)]
#[case::x(
    Style::X,
    &["x-rate-limit-limit: 900", "x-rate-limit-remaining: 899", "x-rate-limit-reset: 1613463300"],
    &["899/900 - 900"]
)]
#[case::hubspot(
    Style::Hubspot,
    &["x-hubspot-ratelimit-daily: 250000", "x-hubspot-ratelimit-daily-remaining: 249999",
      "x-hubspot-ratelimit-secondly: 10", "x-hubspot-ratelimit-secondly-remaining: 9",
      "x-hubspot-ratelimit-max: 100", "x-hubspot-ratelimit-remaining: 98",
      "x-hubspot-ratelimit-interval-milliseconds: 10000"],
    &["daily 249999/250000 86400 -", "secondly 9/10 1 -", "98/100 10 -"]
)]
#[case::riot(
    Style::Riot,
    &["x-app-rate-limit: 10:10,100:120", "x-app-rate-limit-count: 3:10,3:120"],
    &["app:10 7/10 10 -", "app:120 97/100 120 -"]
)]
#[case::salesforce(Style::Salesforce, &["sforce-limit-info: api-usage=25/5000"], &["4975/5000 86400 -"])]
#[case::salesforce_app(
    Style::Salesforce,
    &["sforce-limit-info: api-usage=25/5000; per-app-api-usage=17/250(appName=sample)"],
    &["4975/5000 86400 -"]
)]
#[case::opik(
    Style::Opik,
    &["opik-workspace-limit: generalEventBucket", "opik-workspace-remaining-limit: 9",
      "opik-workspace-remaining-limit-ttl-millis: 997"],
    &["workspace 9/- - 0.997"]
)]
#[case::kong(
    Style::Auto,
    &["x-ratelimit-limit-minute: 60", "x-ratelimit-remaining-minute: 59"],
    &["minute 59/60 60 -"]
)]
#[case::lemlist(
    Style::Auto,
    &["x-ratelimit-limit: 20", "x-ratelimit-remaining: 19",
      "x-ratelimit-reset: Tue Feb 16 2021 09:00:02 GMT+0100 (Central European Standard Time)"],
    &["19/20 - 2"]
)]
#[case::amazon(Style::Amazon, &["x-amzn-ratelimit-limit: 0.0167"], &[])]
#[case::twilio(Style::Twilio, &["twilio-concurrent-requests: 17"], &[])]
#[case::a_limit_of_nothing(Style::Auto, &["x-ratelimit-limit: 0", "x-ratelimit-remaining: 0", "x-ratelimit-reset: 1613466000"], &[])]
#[case::a_limit_of_nothing_in_a_draft(Style::Ietf, &["ratelimit: limit=0, remaining=0, reset=5"], &[])]
#[case::a_policy_of_nothing(Style::Ietf, &["ratelimit-policy: \"a\";q=0;w=60", "ratelimit: \"a\";r=0;t=5"], &[])]
#[case::a_limit_below_nothing(Style::Openai, &["x-ratelimit-limit-tokens: -1", "x-ratelimit-remaining-tokens: 0"], &[])]
#[case::no_tokens_of_none(Style::Anthropic, &["anthropic-ratelimit-tokens-limit: 0", "anthropic-ratelimit-tokens-remaining: 0"], &[])]
#[case::used_of_nothing(Style::Shopify, &["x-shopify-shop-api-call-limit: 0/0"], &[])]
#[case::usage_of_nothing(Style::Salesforce, &["sforce-limit-info: api-usage=0/0"], &[])]
#[case::windows_of_nothing(Style::Riot, &["x-app-rate-limit: 0:10", "x-app-rate-limit-count: 0:10"], &[])]
#[case::not_a_number(Style::Auto, &["x-ratelimit-limit: 20", "x-ratelimit-remaining: NaN"], &[])]
#[case::negative(Style::Auto, &["x-ratelimit-limit: 20", "x-ratelimit-remaining: -1"], &[])]
#[case::text(Style::Auto, &["x-ratelimit-remaining: unlimited"], &[])]
#[case::list(Style::Auto, &["x-ratelimit-remaining: 10, 20"], &[])]
#[case::cached(Style::Auto, &["x-ratelimit-remaining: 10", "age: 60"], &[])]
fn the_remaining_quota_is_read(
    #[case] style: Style,
    #[case] lines: &[&str],
    #[case] reports: &[&str],
) {
    for style in [style, Style::Auto] {
        let is_azure =
            style == Style::Auto && lines.iter().any(|line| line.ends_with("requests: 0"));
        if is_azure {
            // Without a name and without one of Azure's own headers, 0 is 0.
            continue;
        }
        let heard = hear(style, 200, lines);
        assert_eq!(heard.quotas.iter().map(shown).collect::<Vec<_>>(), reports, "{}", style.name());
        assert_eq!(heard.refusal, None);
    }
}

#[rstest]
#[case::draft_10(&["ratelimit: \"default\";r=0;t=30"], Some(30.0))]
#[case::retry_after_wins(&["ratelimit: \"default\";r=0;t=30", "retry-after: 5"], Some(5.0))]
#[case::draft_05(&["ratelimit-remaining: 0", "ratelimit-reset: 7"], Some(7.0))]
#[case::reset_alone(&["ratelimit-reset: 7"], Some(7.0))]
#[case::not_exhausted(&["x-ratelimit-remaining: 4999", "x-ratelimit-reset: 1613466000"], None)]
#[case::the_latest_of_the_exhausted(
    &["x-ratelimit-remaining-requests: 0", "x-ratelimit-reset-requests: 2s",
      "x-ratelimit-remaining-tokens: 0", "x-ratelimit-reset-tokens: 6m0s"],
    Some(360.0)
)]
#[case::only_the_exhausted(
    &["x-ratelimit-remaining-requests: 0", "x-ratelimit-reset-requests: 2s",
      "x-ratelimit-remaining-tokens: 5", "x-ratelimit-reset-tokens: 6m0s"],
    Some(2.0)
)]
#[case::azure_tokens(
    &["x-rate-limit-reset-tokens: 55", "apim-request-id: 1", "x-ratelimit-remaining-requests: 12"],
    Some(55.0)
)]
#[case::azure_unknown(
    &["x-ratelimit-remaining-tokens: -1", "x-ratelimit-limit-tokens: -1", "x-ratelimit-reset-tokens: 0"],
    None
)]
#[case::a_limit_of_nothing(
    &["x-ratelimit-limit: 0", "x-ratelimit-remaining: 0", "x-ratelimit-reset: 1613466000"],
    None
)]
#[case::amazon(&["x-amzn-ratelimit-limit: 0.0167"], Some(59.880_239_520))]
#[case::amazon_of_nothing(&["x-amzn-ratelimit-limit: 0.0"], None)]
#[case::riot(&["x-app-rate-limit: 10:10,100:120", "x-app-rate-limit-count: 10:10,30:120"], Some(10.0))]
#[case::hubspot(&["x-hubspot-ratelimit-secondly: 10", "x-hubspot-ratelimit-secondly-remaining: 0"], Some(1.0))]
#[case::past(&["x-ratelimit-remaining: 0", "x-ratelimit-reset: 1613462399"], None)]
#[case::nonsense(&["x-ratelimit-remaining: 0", "x-ratelimit-reset: soon"], None)]
fn a_refusal_waits_for_the_exhausted_quota(#[case] lines: &[&str], #[case] after: Option<f64>) {
    let refusal = hear(Style::Auto, 429, lines).refusal.unwrap();
    let close =
        |named: Duration| after.is_some_and(|after| (named.as_secs_f64() - after).abs() < 1e-6);
    assert_eq!(refusal.named.is_some(), after.is_some());
    assert!(refusal.named.is_none_or(close), "{refusal:?}");
    assert_eq!(refusal.source == TimeSource::Default, after.is_none());
}

#[rstest]
#[case::github_quota(Style::Github, 403, &["x-ratelimit-remaining: 0", "x-ratelimit-reset: 1613462430"], Some(30.0))]
#[case::github_secondary(Style::Github, 403, &["x-ratelimit-remaining: 4000", "retry-after: 60"], Some(60.0))]
#[case::github_forbidden(Style::Github, 403, &["x-ratelimit-remaining: 4000"], None)]
#[case::github_secondary_without_a_time(Style::Github, 429, &["x-ratelimit-remaining: 4000"], Some(60.0))]
#[case::stripe_by_reason(Style::Stripe, 429, &["stripe-rate-limited-reason: global-rate"], Some(1.0))]
#[case::stripe_lock(Style::Stripe, 429, &[], None)]
#[case::anthropic_overloaded(Style::Anthropic, 529, &[], Some(1.0))]
#[case::auto(Style::Auto, 529, &[], None)]
fn each_style_recognises_its_refusals(
    #[case] style: Style,
    #[case] status: u16,
    #[case] lines: &[&str],
    #[case] pause: Option<f64>,
) {
    let rules = ThrottleRules::new(style, None);
    let refusal = hear(style, status, lines).refusal;
    assert_eq!(refusal.map(|refusal| rules.pause(&refusal, 1)), pause.map(seconds));
}

#[test]
fn every_style_has_conditions_that_can_be_read() {
    for (_, style) in Style::NAMED {
        assert_eq!(style.when().len(), style.conditions().len(), "{}", style.name());
        for condition in style.when() {
            assert!(condition.never().is_none() && condition.likely_header().is_none());
        }
    }
}

#[test]
fn a_style_reads_only_its_own_headers() {
    let lines = ["x-ratelimit-remaining: 0", "ratelimit-remaining: 3"];
    let remaining = |style| {
        hear(style, 200, &lines).quotas.iter().map(|quota| quota.remaining).collect::<Vec<_>>()
    };
    assert_eq!(remaining(Style::Github), [0]);
    assert_eq!(remaining(Style::Ietf), [3]);
    assert_eq!(remaining(Style::Slack), [0; 0]);
}

#[test]
fn shopify_names_the_points_in_the_body() {
    let body = br#"{"errors": [{"extensions": {"code": "THROTTLED"}}], "extensions": {"cost": {
        "requestedQueryCost": 902, "throttleStatus":
        {"maximumAvailable": 2000.0, "currentlyAvailable": 402.5, "restoreRate": 100.0}}}}"#;
    let rules = ThrottleRules::new(Style::ShopifyGraphql, None);
    let heard = rules.hear(StatusCode::OK, &head(&[]), Some(body), Timestamp::UNIX_EPOCH);
    assert_eq!(heard.quotas.iter().map(shown).collect::<Vec<_>>(), ["points 402/2000 - -"]);
    let refusal = heard.refusal.unwrap();
    assert_eq!((refusal.named, refusal.source), (Some(seconds(4.995)), TimeSource::Body));
}

#[rstest]
#[case::same_limit("account", 5000, 3600, true, Some(10))]
#[case::same_limit_among_several("account", 5000, 3600, false, Some(10))]
#[case::part_of_it("account", 4000, 3600, true, Some(10))]
#[case::part_of_it_among_several("account", 4000, 3600, false, None)]
#[case::much_less("search", 5, 1, true, None)]
#[case::shorter_period("account", 4000, 60, true, None)]
fn a_report_concerns_the_limiter_with_the_same_limit(
    #[case] limiter: &str,
    #[case] count: u64,
    #[case] period: u64,
    #[case] is_only: bool,
    #[case] remaining: Option<u64>,
) {
    let lines =
        ["x-ratelimit-limit: 5000", "x-ratelimit-remaining: 10", "x-ratelimit-reset: 1613466000"];
    let rate = Rate { count, period: Duration::from_secs(period) };
    let heard = hear(Style::Auto, 200, &lines);
    assert_eq!(
        heard.remaining(limiter, &rate, count, is_only).map(|report| report.remaining),
        remaining
    );
}

#[test]
fn a_report_concerns_the_limiter_with_the_same_window_or_name() {
    let heard = hear(
        Style::Auto,
        200,
        &["ratelimit-policy: \"a\";q=9;w=60", "ratelimit: \"a\";r=3, \"b\";r=4"],
    );
    let rate = |count, period| Rate { count, period: Duration::from_secs(period) };
    assert_eq!(
        heard.remaining("x", &rate(500, 60), 500, false).map(|report| report.remaining),
        Some(3)
    );
    assert_eq!(
        heard.remaining("b", &rate(500, 1), 500, false).map(|report| report.remaining),
        Some(4)
    );
    assert_eq!(heard.remaining("x", &rate(500, 1), 500, false), None);
}

#[test]
fn the_limit_of_a_bucket_is_its_size() {
    let heard = hear(Style::Auto, 200, &["x-shopify-shop-api-call-limit: 32/40"]);
    let rate = Rate { count: 2, period: Duration::from_secs(1) };
    assert_eq!(heard.remaining("shop", &rate, 40, false).map(|report| report.remaining), Some(8));
    assert_eq!(heard.remaining("shop", &rate, 2, true), None);
}

#[test]
fn the_number_of_quotas_has_a_bound() {
    let lines: Vec<_> = (0..99).map(|i| format!("x-ratelimit-remaining-q{i}: 1")).collect();
    let lines: Vec<_> = lines.iter().map(String::as_str).collect();
    assert_eq!(hear(Style::Auto, 200, &lines).quotas.len(), super::MAX_BUCKETS);
}

proptest! {
    #[test]
    fn no_value_of_any_header_breaks_anything(
        values in proptest::collection::vec("[ -~]{0,24}", 12),
        status in proptest::sample::select(vec![200_u16, 403, 429, 503]),
    ) {
        let names = [
            "ratelimit", "ratelimit-policy", "ratelimit-limit", "ratelimit-reset", "x-ratelimit-remaining",
            "x-ratelimit-reset-after", "x-app-rate-limit", "x-app-rate-limit-count", "sforce-limit-info",
            "x-shopify-shop-api-call-limit", "x-amzn-ratelimit-limit", "date",
        ];
        let fields = names.iter().zip(&values).filter_map(|(name, value)| {
            Some((HeaderName::from_static(name), HeaderValue::from_str(value).ok()?))
        });
        let headers: HeaderMap = fields.collect();
        for (_, style) in Style::NAMED {
            let rules = ThrottleRules::new(style, None);
            let status = StatusCode::from_u16(status).unwrap();
            let heard = rules.hear(status, &headers, None, Timestamp::UNIX_EPOCH);
            if let Some(refusal) = heard.refusal {
                prop_assert!((MIN_PAUSE..=rules.max_pause).contains(&rules.pause(&refusal, 3)));
            }
        }
    }
}

/// A refusal ends when the quota that caused it has room again, whatever that counts.
#[test]
fn an_exhausted_quota_of_bytes_pauses_until_its_reset() {
    let policy = "ratelimit-policy: \"b\";q=9;qu=\"content-bytes\";w=60";
    let heard = hear(Style::Ietf, 429, &[policy, "ratelimit: \"b\";r=0;t=30"]);
    assert_eq!(heard.refusal.and_then(|refusal| refusal.named), Some(seconds(30.0)));
}
