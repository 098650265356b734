//! Reads from the JSON body of an answer: the time of a refusal, a code that tells a hard quota from a soft one, and the points
//! that remain.

use super::{
    QuotaReport, pointer,
    time::{UpstreamClock, seconds},
};
use serde_json::Value;
use std::time::Duration;

/// Codes of quotas that are used up for the day, or until the bill is paid. Such a call is not repeated.
const HARD: &[&str] = &[
    "insufficient_quota",
    "billing_hard_limit_reached",
    "billing_not_active",
    "dailyLimitExceeded",
    "dailyLimitExceededUnreg",
];
/// Codes by which an upstream says that it did nothing with the call, whatever the status.
const UNPROCESSED: &[&str] = &[
    "THROTTLED",
    "rateLimitExceeded",
    "userRateLimitExceeded",
    "REQUEST_LIMIT_EXCEEDED",
    "OVER_QUERY_LIMIT",
    "RESOURCE_EXHAUSTED",
];
/// The places of a code: OpenAI, Google (`status`, `reason`), GraphQL, Amazon, Salesforce, Google Maps.
const CODES: &[&[&str]] = &[
    &["error", "code"],
    &["error", "type"],
    &["error", "status"],
    &["error", "errors", "*", "reason"],
    &["errors", "*", "extensions", "code"],
    &["errors", "*", "code"],
    &["*", "errorCode"],
    &["status"],
];
/// The places of a time: Discord, Telegram, others.
const TIMES: &[&[&str]] =
    &[&["retry_after"], &["parameters", "retry_after"], &["error", "retry_after"]];
/// The time in Google's `RetryInfo`, which is somewhere among the details of an error.
const RETRY_DELAY: &str = "retryDelay";
/// The place of Shopify's cost of a query, in points.
const COST: &str = "/extensions/cost";
/// The place of a time in milliseconds: this gateway's own refusals.
const MILLIS: &[&str] = &["retry_after_ms"];

/// Returns the time after which the upstream may be called again.
pub(super) fn retry_after(body: &Value, clock: &UpstreamClock<'_>) -> Option<Duration> {
    let read = |value: &Value| match value {
        Value::Number(number) => clock.number(number.as_f64()?),
        Value::String(text) => clock.read(text),
        _ => None,
    };
    let millis = |value: &Value| seconds(value.as_f64()? / 1000.0);
    let times = TIMES.iter().find_map(|place| first(place, body, read));
    let delay = || longest_delay(body, clock);
    first(MILLIS, body, millis).or(times).or_else(delay).or_else(|| points_again(body))
}

/// Returns the longest `retryDelay` in a body, whose depth `serde_json` bounds.
fn longest_delay(body: &Value, clock: &UpstreamClock<'_>) -> Option<Duration> {
    match body {
        Value::Array(items) => items.iter().filter_map(|item| longest_delay(item, clock)).max(),
        Value::Object(members) => {
            let own = members.get(RETRY_DELAY).and_then(Value::as_str);
            let within = members.values().filter_map(|member| longest_delay(member, clock)).max();
            own.and_then(|text| clock.read(text)).max(within)
        }
        _ => None,
    }
}

/// Returns the time after which Shopify's bucket has the points of the query again.
fn points_again(body: &Value) -> Option<Duration> {
    let number = |place: &str| body.pointer(COST)?.pointer(place)?.as_f64();
    let missing = number("/requestedQueryCost")? - number("/throttleStatus/currentlyAvailable")?;
    let rate = number("/throttleStatus/restoreRate").filter(|rate| *rate > 0.0)?;
    seconds(missing.max(0.0) / rate)
}

/// Returns the points that remain in Shopify's bucket, if an answer names them.
pub(super) fn points(body: &Value) -> Option<QuotaReport> {
    let status = body.pointer(COST)?.get("throttleStatus")?;
    let points = |name: &str| {
        let number = status.get(name)?.as_f64().filter(|number| (0.0..1e15).contains(number))?;
        Some(number as u64)
    };
    Some(QuotaReport {
        name: "points".into(),
        remaining: points("currentlyAvailable")?,
        limit: points("maximumAvailable"),
        window: None,
        reset: None,
    })
}

/// Whether the body says that the quota is one that no retry can wait for.
pub(super) fn is_hard(body: &Value) -> bool {
    has_code(body, HARD)
}

/// Whether the body says that the upstream did nothing with the call.
pub(super) fn is_unprocessed(body: &Value) -> bool {
    has_code(body, UNPROCESSED)
}

fn has_code(body: &Value, codes: &[&str]) -> bool {
    let mut known = |value: &Value| value.as_str().is_some_and(|code| codes.contains(&code));
    CODES.iter().any(|place| any(place, body, &mut known))
}

/// Whether `test` is true for a value at a place of the body or, if the body is an array, of one of its items: Google answers
/// a streamed call with `[{"error": ...}]`.
fn any(place: &[&str], body: &Value, test: &mut dyn FnMut(&Value) -> bool) -> bool {
    let items = body.as_array().into_iter().flatten();
    pointer::any(place, body, test) || items.into_iter().any(|item| pointer::any(place, item, test))
}

/// Returns the first value at a place that can be read.
fn first<T>(place: &[&str], body: &Value, read: impl Fn(&Value) -> Option<T>) -> Option<T> {
    let mut found = None;
    any(place, body, &mut |value| {
        found = read(value);
        found.is_some()
    });
    found
}
