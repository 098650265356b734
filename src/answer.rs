//! Every response that is our own: one table from what happened to status, problem and headers
//! (RFC 9457 problems; RateLimit fields of draft-ietf-httpapi-ratelimit-headers-10).

pub mod grpc;

use crate::{algorithm::Micros, metrics::Outcome, store::StoreError, upstream::UpstreamError};
use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header::ALLOW};
use paceway_limit::answer::{
    BAD_REQUEST, LIMITED, Problem, Row, SECOND, STORE, STORE_DETAIL, limited_detail, seconds,
    whole_millis,
};
use std::borrow::Cow;

pub use paceway_limit::answer::{PACEWAY_ORIGIN, Policy, Quota};

/// What RFC 9110 and 5789 define but for CONNECT and TRACE; others pass, too.
const ALLOWED: HeaderValue =
    HeaderValue::from_static("GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS");

/// Why a request is not forwarded, or has no response.
#[derive(Debug)]
pub enum Failure {
    /// No route matches.
    NoRoute,
    /// The request makes no request for the upstream.
    BadRequest(Cow<'static, str>),
    /// The request is not what HTTP says, or not for a gateway; whoever sent it may not agree on where it ends.
    Malformed(Cow<'static, str>),
    /// A method that is not for a gateway: 405.
    Method,
    /// A transfer coding that nobody here knows: 501.
    Coding,
    /// It expects what nobody here knows: 417.
    Expectation,
    /// It may be forwarded no further, so the gateway answers it in place of the upstream: 204.
    LastHop,
    /// More of something than a request may have: 413, 414 or 431, and of what.
    TooLarge(StatusCode, Cow<'static, str>),
    /// The head of a request was not whole in time.
    HeadTimeout,
    /// As many clients as may be connected are.
    TooManyConnections,
    /// No slot within the budget.
    Limited {
        /// The limiter that bound.
        policy: Policy,
        /// A lone caller who comes back then is admitted, µs.
        retry_after: Micros,
        /// Permits that are left: more than none where the request costs more than one.
        remaining: i64,
    },
    /// As many requests as may wait on this route do.
    QueueFull {
        /// When a slot is free, µs.
        retry_after: Micros,
    },
    /// The gateway stops before the request's slot comes.
    Draining {
        /// When its slot would have come, µs.
        retry_after: Micros,
    },
    /// The client sent nothing of its body for too long.
    BodyTimeout,
    /// The client left before the answer; nobody reads it.
    ClientLeft,
    /// The store gave no decision.
    Store(StoreError),
    /// The upstream gave no response.
    Upstream(UpstreamError),
}

// === impl Failure ===

impl Failure {
    /// What a client sees: the status, the problem's name, its title. One line a variant.
    fn row(&self) -> Row {
        use StatusCode as S;
        match self {
            Self::NoRoute => (S::NOT_FOUND, "no-route", "No route matches this request"),
            Self::BadRequest(_) => BAD_REQUEST,
            Self::Malformed(_) => (S::BAD_REQUEST, "bad-request", "The request is malformed"),
            Self::Method => {
                (S::METHOD_NOT_ALLOWED, "method-not-allowed", "The method is not forwarded")
            }
            Self::Coding => {
                (S::NOT_IMPLEMENTED, "not-implemented", "The transfer coding is not known")
            }
            Self::Expectation => {
                (S::EXPECTATION_FAILED, "expectation-failed", "The expectation is not known")
            }
            Self::LastHop => (S::NO_CONTENT, "last-hop", "The request may be forwarded no further"),
            Self::TooLarge(status, _) => (*status, "too-large", "The request is too large"),
            Self::HeadTimeout => {
                (S::REQUEST_TIMEOUT, "request-timeout", "The request did not come in time")
            }
            Self::TooManyConnections => {
                (S::SERVICE_UNAVAILABLE, "too-many-connections", "Too many clients are connected")
            }
            Self::Limited { .. } => LIMITED,
            Self::QueueFull { .. } => {
                (S::SERVICE_UNAVAILABLE, "queue-full", "Too many requests wait")
            }
            Self::Draining { .. } => {
                (S::SERVICE_UNAVAILABLE, "draining", "The gateway is stopping")
            }
            Self::BodyTimeout => {
                (S::REQUEST_TIMEOUT, "body-timeout", "The request's body did not come in time")
            }
            Self::ClientLeft => (S::BAD_REQUEST, "client-left", "The client left"),
            Self::Store(_) => STORE,
            Self::Upstream(UpstreamError::Connect(_)) => {
                (S::BAD_GATEWAY, "upstream-unreachable", "The upstream cannot be reached")
            }
            Self::Upstream(
                UpstreamError::Broken(_)
                | UpstreamError::Unpaid(_)
                | UpstreamError::Unsent(_)
                | UpstreamError::Invalid(_),
            ) => (S::BAD_GATEWAY, "upstream-broken", "The upstream gave no valid response"),
            Self::Upstream(
                UpstreamError::ConnectTimeout
                | UpstreamError::TlsTimeout
                | UpstreamError::ResponseTimeout,
            ) => (S::GATEWAY_TIMEOUT, "upstream-timeout", "The upstream did not answer in time"),
        }
    }

    /// What metrics and the access log call it.
    pub fn outcome(&self) -> Outcome {
        match self {
            Self::NoRoute => Outcome::NoRoute,
            Self::BadRequest(_)
            | Self::Malformed(_)
            | Self::Method
            | Self::Coding
            | Self::Expectation
            | Self::LastHop
            | Self::HeadTimeout
            | Self::BodyTimeout
            | Self::TooLarge(..) => Outcome::BadRequest,
            Self::Limited { .. } => Outcome::Refused,
            Self::QueueFull { .. } | Self::TooManyConnections => Outcome::QueueFull,
            Self::Draining { .. } => Outcome::Draining,
            Self::ClientLeft => Outcome::Cancelled,
            Self::Store(_) => Outcome::StoreUnavailable,
            Self::Upstream(_) => Outcome::UpstreamFailed,
        }
    }

    /// Status, name and detail in one line, for people.
    pub fn summary(&self) -> String {
        let (status, name, _) = self.row();
        format!("{} {name}: {}", status.as_u16(), self.detail())
    }

    fn detail(&self) -> String {
        match self {
            Self::NoRoute => "no route of this gateway matches the path, host and method".into(),
            Self::BadRequest(why) | Self::Malformed(why) => why.clone().into_owned(),
            Self::Method => "CONNECT and TRACE are not forwarded".into(),
            Self::Coding => "a body is `chunked` and nothing else, or has a length".into(),
            Self::Expectation => "the only expectation that can be met is 100-continue".into(),
            Self::LastHop => "`Max-Forwards` is 0, so the gateway answers".into(),
            Self::TooLarge(_, why) => why.clone().into_owned(),
            Self::HeadTimeout => "the headers were not complete in time".into(),
            Self::TooManyConnections => "as many clients as may be connected are".into(),
            Self::Limited { policy, retry_after, .. } => limited_detail(policy, *retry_after),
            Self::QueueFull { .. } => "as many requests as may wait on this route do so".into(),
            Self::Draining { retry_after } => format!(
                "this gateway stops before the request's slot, which would come in {:.3} s",
                seconds(*retry_after)
            ),
            Self::BodyTimeout => "the client sent nothing of its body for too long".into(),
            Self::ClientLeft => "the client closed the connection before the answer".into(),
            Self::Store(_) => STORE_DETAIL.into(),
            Self::Upstream(error) => error.to_string(),
        }
    }

    fn retry_after(&self) -> Option<Micros> {
        match self {
            Self::Limited { retry_after, .. }
            | Self::QueueFull { retry_after }
            | Self::Draining { retry_after } => Some(*retry_after),
            Self::Store(_) | Self::TooManyConnections => Some(SECOND),
            Self::HeadTimeout
            | Self::BodyTimeout
            | Self::ClientLeft
            | Self::NoRoute
            | Self::BadRequest(_)
            | Self::Malformed(_)
            | Self::Method
            | Self::Coding
            | Self::Expectation
            | Self::LastHop
            | Self::TooLarge(..)
            | Self::Upstream(_) => None,
        }
    }

    fn retry_after_ms(&self) -> Option<Micros> {
        self.retry_after().map(whole_millis)
    }

    /// Whether the connection must not be used again: whoever sent this may take what follows for something else.
    pub fn ends_connection(&self) -> bool {
        matches!(
            self,
            Self::Malformed(_)
                | Self::Method
                | Self::Coding
                | Self::TooLarge(..)
                | Self::HeadTimeout
                | Self::BodyTimeout
                | Self::ClientLeft
        )
    }

    /// The response.
    pub fn response(&self) -> Response<Bytes> {
        let (status, name, title) = self.row();
        if matches!(self, Self::LastHop) {
            let mut response = Response::new(Bytes::new());
            *response.status_mut() = status;
            response.headers_mut().insert(ALLOW, ALLOWED);
            response.headers_mut().insert(PACEWAY_ORIGIN, HeaderValue::from_static("gateway"));
            return response;
        }
        let limited = match self {
            Self::Limited { policy, remaining, .. } => Some((policy, *remaining)),
            _ => None,
        };
        let (detail, retry_after) = (self.detail(), self.retry_after());
        let problem = Problem { status, name, title, detail, retry_after, limited };
        let mut response = problem.response();
        if matches!(self, Self::Method) {
            response.headers_mut().insert(ALLOW, ALLOWED);
        }
        response
    }
}

#[cfg(test)]
mod tests {
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
    fn a_refusal_says_everything_a_caller_needs() {
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
    fn a_refused_request_of_high_cost_is_told_what_is_left() {
        let rate = Rate { count: 10_000, period: Duration::from_secs(60) };
        let policy = Policy { name: "points".into(), quota: Quota::Rate(rate) };
        let failure = Failure::Limited { policy, retry_after: 30_000_000, remaining: 4_004 };
        assert_eq!(failure.response().headers()["ratelimit"], "\"points\";r=4004;t=30");
    }
}
