//! Every response that the gateway makes itself: one table from the failure to the status, problem and headers (RFC 9457
//! problems; RateLimit fields of draft-ietf-httpapi-ratelimit-headers-10).

pub mod form;
pub mod grpc;

use crate::{
    algorithm::Micros, metrics::Outcome, store::StoreError, throttle::Timestamp,
    upstream::UpstreamError,
};
use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header::ALLOW};
use jiff::SignedDuration;
use paceway_limit::answer::{
    BAD_REQUEST, LIMITED, Problem, ProblemRow, SECOND, STORE, STORE_DETAIL, limited_detail,
    seconds, whole_millis,
};
use std::borrow::Cow;

pub use paceway_limit::answer::{PACEWAY_ORIGIN, Policy, Quota};

/// The methods of RFC 9110 and RFC 5789 except CONNECT and TRACE. Methods that no RFC defines are forwarded, too.
const ALLOWED: HeaderValue =
    HeaderValue::from_static("GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS");

/// The greatest error of the store's clock as this process knows it: half of the longest round trip, 250 ms in µs.
const CLOCK_ERROR: Micros = 250_000;

/// The reason why a request is not forwarded, or gets no response from the upstream.
#[derive(Debug)]
pub enum Failure {
    /// No route matches the path, host and method: 404.
    NoRoute,
    /// The request is valid HTTP but cannot be forwarded, such as one with a wrong cost: 400.
    BadRequest(Cow<'static, str>),
    /// The request came through the forward proxy, and names a host that it does not reach: 403.
    Forbidden(Cow<'static, str>),
    /// The request breaks a rule of HTTP or is ambiguous, so its sender may disagree on where it ends: 400, and the
    /// connection closes.
    Malformed(Cow<'static, str>),
    /// A call to a service has no token, or another one than the configured: 401.
    Unauthorized,
    /// The method is CONNECT or TRACE, which a gateway does not forward: 405.
    Method,
    /// The body has a transfer coding other than `chunked`: 501.
    Coding,
    /// The request expects something other than `100-continue`: 417.
    Expectation,
    /// An OPTIONS request with `Max-Forwards: 0` may be forwarded no further, so the gateway answers it with 204.
    LastHop,
    /// The request has more bytes or headers than `limits` allows: 413, 414 or 431, and the reason.
    TooLarge(StatusCode, Cow<'static, str>),
    /// The head of a request was not complete within `client.header_timeout`: 408.
    HeadTimeout,
    /// `client.max_connections` clients are connected already: 503.
    TooManyConnections,
    /// The bodies that the gateway holds leave no room for the one that a limiter or a service needs: 503.
    TooManyBodies,
    /// The limiters have no slot within the time that the request may wait: 429.
    Limited {
        /// The limiter that refused the request.
        policy: Policy,
        /// The time after which a lone caller is admitted, µs.
        retry_after: Micros,
        /// Permits that are left. This is above 0 if the request costs more than one.
        remaining: i64,
    },
    /// The store has lost the states of a limiter, which is therefore closed for longer than the request may wait: 429.
    Closed(Box<ClosedLimiter>),
    /// The upstream has refused calls, so that a limiter is paused for longer than the request may wait: 429.
    Throttled {
        /// The limiter that is paused.
        policy: Policy,
        /// The time after which a lone caller is admitted, µs.
        retry_after: Micros,
        /// Permits that are left.
        remaining: i64,
    },
    /// An operator has paused a limiter for longer than the request may wait: 429.
    Paused {
        /// The limiter that is paused.
        policy: Policy,
        /// The time after which a lone caller is admitted, µs.
        retry_after: Micros,
        /// Permits that are left.
        remaining: i64,
    },
    /// As many requests wait on this route as `max_waiting` allows: 503.
    QueueFull {
        /// The time until a slot is free, µs.
        retry_after: Micros,
    },
    /// The gateway stops before the slot of this request: 503.
    Draining {
        /// The time until the slot would have come, µs.
        retry_after: Micros,
    },
    /// The client sent nothing of its body for `client.body_timeout`: 408.
    BodyTimeout,
    /// The client closed its connection before the response, which it can no longer read.
    ClientLeft,
    /// The store gave no decision, and the limiter has `on_failure: reject`: 503.
    Store(StoreError),
    /// Neither the file nor a row of `limits_from` has a limiter that the route names: 503.
    MissingLimiter {
        /// The names, joined.
        names: Box<str>,
        /// The time until the database is asked again, µs.
        retry_after: Micros,
    },
    /// The vendor has rejected all accounts of the upstream: 503.
    AccountsParked {
        /// The time until the first of them is tried again, µs.
        retry_after: Micros,
    },
    /// The upstream gave no valid response: 502, or 504 for a time-out.
    Upstream(UpstreamError),
}

/// A limiter that is closed after the store has lost its states, as its caller learns of it.
#[derive(Debug)]
pub struct ClosedLimiter {
    policy: Policy,
    /// The time after which a lone caller is admitted, µs.
    retry_after: Micros,
    /// Permits that are left.
    remaining: i64,
    /// The time until the limiter reopens, µs.
    left: Micros,
}

// === impl Failure ===

impl Failure {
    /// The refusal by a limiter that stays closed for `left` µs, because the store has lost its states.
    pub fn closed(policy: Policy, retry_after: Micros, remaining: i64, left: Micros) -> Self {
        Self::Closed(Box::new(ClosedLimiter { policy, retry_after, remaining, left }))
    }

    /// The status, the name of the problem and its title, as the client receives them. Each variant has one line.
    fn row(&self) -> ProblemRow {
        use StatusCode as S;
        match self {
            Self::NoRoute => (S::NOT_FOUND, "no-route", "No route matches this request"),
            Self::BadRequest(_) => BAD_REQUEST,
            Self::Forbidden(_) => {
                (S::FORBIDDEN, "host-forbidden", "The host is not reached through this proxy")
            }
            Self::Malformed(_) => (S::BAD_REQUEST, "bad-request", "The request is malformed"),
            Self::Unauthorized => {
                (S::UNAUTHORIZED, "unauthorized", "The token is missing or wrong")
            }
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
            Self::TooManyBodies => {
                (S::SERVICE_UNAVAILABLE, "too-many-bodies", "Too many bodies are held")
            }
            Self::Limited { .. } | Self::Closed(_) => LIMITED,
            Self::Throttled { .. } => {
                (S::TOO_MANY_REQUESTS, "upstream-throttled", "The upstream refuses calls for now")
            }
            Self::Paused { .. } => {
                (S::TOO_MANY_REQUESTS, "paused", "An operator has paused the calls")
            }
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
            Self::MissingLimiter { .. } => {
                (S::SERVICE_UNAVAILABLE, "limiter-missing", "The quota is not known")
            }
            Self::AccountsParked { .. } => {
                (S::SERVICE_UNAVAILABLE, "accounts-parked", "The upstream rejects all accounts")
            }
            Self::Upstream(UpstreamError::Connect(_) | UpstreamError::Via(_)) => {
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

    /// The same failure of a request that the upstream has refused, and that had a slot for another attempt: its caller
    /// learns that the upstream throttles, whichever limiter refuses the request now.
    pub fn throttled(self) -> Self {
        match self {
            Self::Limited { policy, retry_after, remaining } => {
                Self::Throttled { policy, retry_after, remaining }
            }
            Self::Closed(closed) => {
                let ClosedLimiter { policy, retry_after, remaining, .. } = *closed;
                Self::Throttled { policy, retry_after, remaining }
            }
            other => other,
        }
    }

    /// The outcome under which metrics and the access log count this failure.
    pub fn outcome(&self) -> Outcome {
        match self {
            Self::NoRoute | Self::Forbidden(_) => Outcome::NoRoute,
            Self::BadRequest(_)
            | Self::Malformed(_)
            | Self::Unauthorized
            | Self::Method
            | Self::Coding
            | Self::Expectation
            | Self::LastHop
            | Self::HeadTimeout
            | Self::BodyTimeout
            | Self::TooLarge(..) => Outcome::BadRequest,
            Self::Limited { .. } | Self::Closed(_) => Outcome::Refused,
            Self::Throttled { .. } => Outcome::Throttled,
            Self::Paused { .. } => Outcome::Paused,
            Self::QueueFull { .. } | Self::TooManyConnections | Self::TooManyBodies => {
                Outcome::QueueFull
            }
            Self::Draining { .. } => Outcome::Draining,
            Self::ClientLeft => Outcome::Cancelled,
            Self::Store(_) => Outcome::StoreUnavailable,
            Self::MissingLimiter { .. } => Outcome::LimiterMissing,
            Self::AccountsParked { .. } | Self::Upstream(_) => Outcome::UpstreamFailed,
        }
    }

    /// Returns status, name and detail in one line, as `paceway explain` prints them.
    pub fn summary(&self) -> String {
        let (status, name, _) = self.row();
        format!("{} {name}: {}", status.as_u16(), self.detail())
    }

    fn detail(&self) -> String {
        match self {
            Self::NoRoute => "no route of this gateway matches the path, host and method".into(),
            Self::BadRequest(why) | Self::Malformed(why) | Self::Forbidden(why) => why.clone().into_owned(),
            Self::Unauthorized => {
                "a call of this service has its token in `Paceway-Token`, as the configuration names it".into()
            }
            Self::Method => "CONNECT and TRACE are not forwarded".into(),
            Self::Coding => "a body is `chunked` and nothing else, or has a length".into(),
            Self::Expectation => "the only expectation that can be met is 100-continue".into(),
            Self::LastHop => "`Max-Forwards` is 0, so the gateway answers".into(),
            Self::TooLarge(_, why) => why.clone().into_owned(),
            Self::HeadTimeout => "the headers were not complete in time".into(),
            Self::TooManyConnections => "no more clients may be connected now".into(),
            Self::TooManyBodies => "there is no room to read another body for its limiters now".into(),
            Self::Limited { policy, retry_after, .. } => limited_detail(policy, *retry_after),
            Self::Closed(closed) => {
                let ClosedLimiter { policy, retry_after, left, .. } = &**closed;
                let until = end(*left).map(|end| format!(" until {end}")).unwrap_or_default();
                format!(
                    "the limiter `{}` is closed{until}, because the store has lost its states, or may have; \
                     come back in {:.3} s",
                    policy.name,
                    seconds(*retry_after)
                )
            }
            Self::Throttled { policy, retry_after, .. } => format!(
                "the limiter `{}` is paused for longer than this request may wait, because the upstream has refused \
                 calls; come back in {:.3} s",
                policy.name,
                seconds(*retry_after)
            ),
            Self::Paused { policy, retry_after, .. } => format!(
                "an operator has paused the limiter `{}` for longer than this request may wait; come back in {:.3} s",
                policy.name,
                seconds(*retry_after)
            ),
            Self::QueueFull { .. } => "no more requests may wait on this route now".into(),
            Self::Draining { retry_after } => format!(
                "this gateway stops before the request's slot, which would come in {:.3} s",
                seconds(*retry_after)
            ),
            Self::BodyTimeout => "the client sent nothing of its body for too long".into(),
            Self::ClientLeft => "the client closed the connection before the answer".into(),
            Self::Store(_) => STORE_DETAIL.into(),
            Self::MissingLimiter { names, .. } => {
                format!(
                    "the route needs the limiters `{names}`, and the database has not added them yet"
                )
            }
            Self::AccountsParked { retry_after } => format!(
                "no account may be used: the upstream has rejected their credentials, or an operator has parked them; \
                 the first of them is tried again in {:.3} s",
                seconds(*retry_after)
            ),
            Self::Upstream(error) => error.to_string(),
        }
    }

    /// The time after which the caller may come back, as `Retry-After` says it, µs.
    pub fn retry_after(&self) -> Option<Micros> {
        match self {
            Self::Limited { retry_after, .. }
            | Self::Throttled { retry_after, .. }
            | Self::Paused { retry_after, .. }
            | Self::QueueFull { retry_after }
            | Self::Draining { retry_after }
            | Self::AccountsParked { retry_after }
            | Self::MissingLimiter { retry_after, .. } => Some(*retry_after),
            Self::Closed(closed) => Some(closed.retry_after),
            Self::Store(_) | Self::TooManyConnections | Self::TooManyBodies => Some(SECOND),
            Self::HeadTimeout
            | Self::BodyTimeout
            | Self::ClientLeft
            | Self::NoRoute
            | Self::Unauthorized
            | Self::BadRequest(_)
            | Self::Forbidden(_)
            | Self::Malformed(_)
            | Self::Method
            | Self::Coding
            | Self::Expectation
            | Self::LastHop
            | Self::TooLarge(..)
            | Self::Upstream(_) => None,
        }
    }

    /// The limiter that refused the request, and the permits that it has left; `None` for a failure that is no refusal.
    pub fn limited(&self) -> Option<(&Policy, i64)> {
        match self {
            Self::Limited { policy, remaining, .. }
            | Self::Throttled { policy, remaining, .. }
            | Self::Paused { policy, remaining, .. } => Some((policy, *remaining)),
            Self::Closed(closed) => Some((&closed.policy, closed.remaining)),
            _ => None,
        }
    }

    fn retry_after_ms(&self) -> Option<Micros> {
        self.retry_after().map(whole_millis)
    }

    /// Whether the connection must not be used again. After a malformed request, for example, the sender may disagree with
    /// the gateway on where the next request begins.
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

    /// Returns the response to a client that speaks plain HTTP; gRPC clients get [`Self::grpc_response`].
    pub fn response(&self) -> Response<Bytes> {
        let (status, name, title) = self.row();
        if matches!(self, Self::LastHop) {
            let mut response = Response::new(Bytes::new());
            *response.status_mut() = status;
            response.headers_mut().insert(ALLOW, ALLOWED);
            response.headers_mut().insert(PACEWAY_ORIGIN, HeaderValue::from_static("gateway"));
            return response;
        }
        let limited = self.limited();
        let (detail, retry_after) = (self.detail(), self.retry_after());
        let problem = Problem { status, name, title, detail, retry_after, limited };
        let mut response = problem.response();
        if matches!(self, Self::Method) {
            response.headers_mut().insert(ALLOW, ALLOWED);
        }
        response
    }
}

/// The instant that is `left` µs from now, or that is past if this is negative, as people read it, such as
/// `2026-11-24T00:00:00.000Z`.
pub fn end(left: Micros) -> Option<String> {
    let at = Timestamp::now().checked_add(SignedDuration::from_micros(left)).ok()?;
    Some(format!("{at:.3}"))
}

/// Whether a limiter that is closed for `left` µs after a loss of states can be the reason for a `wait` in µs: the wait is
/// shorter if an operator has reset the key. The clock of the store is known to within [`CLOCK_ERROR`].
pub fn is_reason(wait: Micros, left: Micros) -> bool {
    wait.saturating_add(CLOCK_ERROR) >= left
}

#[cfg(test)]
mod tests;
