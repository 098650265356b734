//! The gateway's own answers as a vendor would give them, so that its SDKs raise the errors and wait as they do with the
//! vendor. Status, `Retry-After` and all other headers stay those of the problem.

use super::{Failure, Policy, Quota};
use crate::{algorithm::Micros, config::AnswerForm, throttle::Timestamp};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header::CONTENT_TYPE};
use paceway_limit::answer::{whole_millis, whole_seconds};
use serde_json::{Value, json};

const JSON: HeaderValue = HeaderValue::from_static("application/json");
/// The time after which to come back, ms: read by the SDKs of OpenAI and Anthropic before `Retry-After`.
const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");
/// Whether to come back at all, as the same SDKs obey it.
const X_SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");
/// Where Anthropic's SDKs find the id of a request.
const REQUEST_ID: HeaderName = HeaderName::from_static("request-id");
/// The longest time that all versions of the SDKs wait as told, µs. Told a longer one, some come back after seconds, in vain.
const LONGEST_WAIT: Micros = 60_000_000;
/// The page that GitHub's refusals name; clients recognise its end.
const GITHUB_PAGE: &str = "https://docs.github.com/rest/using-the-rest-api/rate-limits-for-the-rest-api#about-secondary-rate-limits";

/// The name of the errors with one status, for each vendor.
struct ErrorNames {
    openai: &'static str,
    anthropic: &'static str,
    google: &'static str,
    graphql: &'static str,
}

// === impl Failure ===

impl Failure {
    /// Returns the response in the form that the clients of a route understand; `id` is that of the request.
    pub fn response_as(&self, form: AnswerForm, id: &HeaderValue) -> Response<Bytes> {
        let mut response = self.response();
        let Some(body) = self.body_as(form, id).filter(|_| !response.body().is_empty()) else {
            return response;
        };
        *response.body_mut() = body.to_string().into();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, JSON);
        if let Some(retry_after) = self.retry_after() {
            headers.insert(RETRY_AFTER_MS, whole_millis(retry_after).into());
        }
        if let Some(helps) = self.is_worth_another_try() {
            let word = if helps { "true" } else { "false" };
            headers.insert(X_SHOULD_RETRY, HeaderValue::from_static(word));
        }
        if form == AnswerForm::Anthropic {
            headers.insert(REQUEST_ID, id.clone());
        }
        if let (AnswerForm::GitHub, Some((policy, _)), Some(retry_after)) =
            (form, self.limited(), self.retry_after())
        {
            add_github_quota(headers, policy, retry_after);
        }
        response
    }

    /// Whether the same request can pass later, and a client can wait as long as that takes. `None` leaves it to the client,
    /// which knows whether its request may be sent twice.
    fn is_worth_another_try(&self) -> Option<bool> {
        let (status, ..) = self.row();
        match self.retry_after() {
            Some(retry_after) => Some(retry_after <= LONGEST_WAIT),
            // Such as a cost that no limiter can ever give.
            None if status.is_client_error() && status != StatusCode::REQUEST_TIMEOUT => {
                Some(false)
            }
            None => None,
        }
    }

    /// The body in another form than that of a problem.
    fn body_as(&self, form: AnswerForm, id: &HeaderValue) -> Option<Value> {
        let (status, name, title) = self.row();
        let names = ErrorNames::of(status);
        let message = || format!("{title}: {}", self.detail());
        let retry_after = self.retry_after();
        let is_limit = status == StatusCode::TOO_MANY_REQUESTS;
        Some(match form {
            AnswerForm::Problem => return None,
            AnswerForm::OpenAi => {
                let code = if is_limit { names.openai } else { name };
                json!({ "error": { "message": message(), "type": names.openai, "param": null, "code": code } })
            }
            AnswerForm::Anthropic => json!({
                "type": "error",
                "error": { "type": names.anthropic, "message": message() },
                "request_id": String::from_utf8_lossy(id.as_bytes()),
            }),
            AnswerForm::Google => {
                let details = retry_after.map(|retry_after| {
                    json!({
                        "@type": "type.googleapis.com/google.rpc.RetryInfo",
                        "retryDelay": google_duration(retry_after),
                    })
                });
                let details: Vec<_> = details.into_iter().collect();
                let code = status.as_u16();
                json!({ "error": { "code": code, "message": message(), "status": names.google, "details": details } })
            }
            AnswerForm::GitHub => {
                // Octokit waits as long as `Retry-After` says if it reads these words, and otherwise up to two seconds longer.
                let start =
                    if is_limit { "You have exceeded a secondary rate limit. " } else { "" };
                json!({
                    "message": format!("{start}{}", message()),
                    "documentation_url": GITHUB_PAGE,
                    "status": status.as_str(),
                })
            }
            AnswerForm::GraphQl => {
                let mut extensions = json!({ "code": names.graphql });
                if let Some(retry_after) = retry_after {
                    extensions["retryAfter"] = whole_seconds(retry_after).into();
                }
                json!({ "errors": [{ "message": message(), "extensions": extensions }], "data": null })
            }
        })
    }
}

// === impl ErrorNames ===

impl ErrorNames {
    #[rustfmt::skip]
    fn of(status: StatusCode) -> Self {
        let [openai, anthropic, google, graphql] = match status.as_u16() {
            401 => ["authentication_error", "authentication_error", "UNAUTHENTICATED", "UNAUTHENTICATED"],
            404 => ["invalid_request_error", "not_found_error", "NOT_FOUND", "NOT_FOUND"],
            408 | 504 => ["timeout_error", "timeout_error", "DEADLINE_EXCEEDED", "TIMEOUT"],
            413 => ["invalid_request_error", "request_too_large", "INVALID_ARGUMENT", "BAD_REQUEST"],
            429 => ["rate_limit_exceeded", "rate_limit_error", "RESOURCE_EXHAUSTED", "RATE_LIMITED"],
            501 => ["invalid_request_error", "invalid_request_error", "UNIMPLEMENTED", "BAD_REQUEST"],
            400..=499 => ["invalid_request_error", "invalid_request_error", "INVALID_ARGUMENT", "BAD_REQUEST"],
            503 => ["server_error", "overloaded_error", "UNAVAILABLE", "SERVICE_UNAVAILABLE"],
            _ => ["server_error", "api_error", "UNAVAILABLE", "BAD_GATEWAY"],
        };
        Self { openai, anthropic, google, graphql }
    }
}

/// A duration as protobuf writes it in JSON, such as `3s` or `0.250s`.
fn google_duration(span: Micros) -> String {
    let millis = whole_millis(span);
    match millis % 1000 {
        0 => format!("{}s", millis / 1000),
        rest => format!("{}.{rest:03}s", millis / 1000),
    }
}

/// Adds GitHub's headers of a quota of which nothing is left for a request, until it may come back.
fn add_github_quota(headers: &mut HeaderMap, policy: &Policy, retry_after: Micros) {
    let limit = match policy.quota {
        Quota::Rate(rate) => HeaderValue::from(rate.count),
        Quota::Concurrency(max) => HeaderValue::from(max),
    };
    headers.insert("x-ratelimit-limit", limit);
    headers.insert("x-ratelimit-remaining", HeaderValue::from_static("0"));
    // A whole second, so it is the first one that is not too early.
    let reset = Timestamp::now().as_second().saturating_add(whole_seconds(retry_after));
    headers.insert("x-ratelimit-reset", HeaderValue::from(reset.saturating_add(1)));
}

#[cfg(test)]
mod tests;
