//! Reads what the JSON body of a refusal says: a time, and a code that tells a hard quota from a soft one.

use super::{
    pointer,
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
/// The places of a time: Discord, Telegram, others, Google's `RetryInfo` in an error.
const TIMES: &[&[&str]] = &[
    &["retry_after"],
    &["parameters", "retry_after"],
    &["error", "retry_after"],
    &["error", "details", "*", "retryDelay"],
];
/// The place of a time in milliseconds: this gateway's own refusals.
const MILLIS: &[&str] = &["retry_after_ms"];

/// Returns the time after which the upstream may be called again.
pub(super) fn retry_after(body: &Value, clock: UpstreamClock) -> Option<Duration> {
    let read = |value: &Value| match value {
        Value::Number(number) => clock.number(number.as_f64()?),
        Value::String(text) => clock.read(text),
        _ => None,
    };
    let millis = |value: &Value| seconds(value.as_f64()? / 1000.0);
    let times = TIMES.iter().find_map(|place| first(place, body, read));
    first(MILLIS, body, millis).or(times)
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
    CODES.iter().any(|place| pointer::any(place, body, &mut known))
}

/// Returns the first value at a place that can be read.
fn first<T>(place: &[&str], body: &Value, read: impl Fn(&Value) -> Option<T>) -> Option<T> {
    let mut found = None;
    pointer::any(place, body, &mut |value| {
        found = read(value);
        found.is_some()
    });
    found
}
