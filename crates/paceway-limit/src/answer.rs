//! The answer that a client of an HTTP program gets when a limiter does not let its request through (RFC 9457 problems;
//! RateLimit fields of draft-ietf-httpapi-ratelimit-headers-10). Decides nothing.

use crate::{algorithm::Micros, rate::Rate, store::StoreError};
use bytes::Bytes;
use http::{
    HeaderName, HeaderValue, Response, StatusCode,
    header::{CONTENT_TYPE, RETRY_AFTER},
};
use serde::Serialize;
use std::{
    borrow::Cow,
    fmt::{self, Write},
};

/// Names the origin of an answer: the gateway, or the upstream (on its own 429).
pub const PACEWAY_ORIGIN: HeaderName = HeaderName::from_static("paceway-origin");
/// The permits that a limiter has left, and the time after which to come back.
pub const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
/// The rule of a limiter.
pub const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const PROBLEM: HeaderValue = HeaderValue::from_static("application/problem+json");
/// The type of the problem that a refused request gets; all others have a `urn:paceway:problem:NAME`.
pub const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
/// Room for the body of a problem beside its detail, in bytes, and for its fields. Each time that one of them grew would cost
/// a refusal 500 of its 27,000 instructions.
const BODY: usize = 256;
const FIELDS: usize = 8;
/// When a client may come back if the store gave no decision, µs.
pub const SECOND: Micros = 1_000_000;

/// The status, the name and the title of a problem, as a client sees them.
pub type ProblemRow = (StatusCode, &'static str, &'static str);

/// The status, name and title of a request that has no slot within its budget.
pub const LIMITED: ProblemRow =
    (StatusCode::TOO_MANY_REQUESTS, "quota-exceeded", "Request quota exceeded");
/// The status, name and title of a request for which the store gave no decision.
pub const STORE: ProblemRow =
    (StatusCode::SERVICE_UNAVAILABLE, "store-unavailable", "The quota cannot be checked");
/// The status, name and title of a request that cannot be forwarded as it is.
pub const BAD_REQUEST: ProblemRow =
    (StatusCode::BAD_REQUEST, "bad-request", "The request cannot be forwarded");
/// The detail of a request for which the store gave no decision.
pub const STORE_DETAIL: &str = "the shared quota state gave no answer; nothing was forwarded";

/// Why a limiter does not let a request through.
#[derive(Debug)]
pub enum CallFailure {
    /// No slot within the budget.
    Limited {
        /// The limiter that bound.
        policy: Policy,
        /// The time after which a lone caller that comes back is admitted, µs.
        retry_after: Micros,
        /// Permits that are left: more than none where the request costs more than one.
        remaining: i64,
    },
    /// The request makes no request for the limiter.
    BadRequest(Cow<'static, str>),
    /// The store gave no decision.
    Store(StoreError),
}

/// The description of the limiter that bound a request, for its caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// The limiter's name.
    pub name: String,
    /// The rule of the limiter, such as 5 permits per second.
    pub quota: Quota,
}

/// The rule of a limiter, as far as a caller needs to know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quota {
    /// A number of permits in each period.
    Rate(Rate),
    /// A number of calls at one time.
    Concurrency(i64),
}

/// The content of a response that the gateway or a limiter makes itself.
#[derive(Debug)]
pub struct Problem<'a> {
    /// The status of the response.
    pub status: StatusCode,
    /// The problem's name, such as `quota-exceeded`.
    pub name: &'a str,
    /// The problem's title for people, which is the same in each case of it.
    pub title: &'a str,
    /// A description of this case of the problem, for people.
    pub detail: String,
    /// The time after which a lone caller that comes back is admitted, µs.
    pub retry_after: Option<Micros>,
    /// The limiter that bound, and the permits that it has left. Its headers need `retry_after`, too.
    pub limited: Option<(&'a Policy, i64)>,
}

/// The body (RFC 9457 section 3.1).
#[derive(Serialize)]
struct ProblemBody<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    title: &'a str,
    status: u16,
    detail: &'a str,
    code: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<Micros>,
    #[serde(rename = "violated-policies", skip_serializing_if = "Option::is_none")]
    violated_policies: Option<[&'a String; 1]>,
}

// === impl CallFailure ===

impl CallFailure {
    /// The response.
    pub fn response(&self) -> Response<Bytes> {
        let (row, detail, retry_after, limited) = match self {
            Self::Limited { policy, retry_after, remaining } => {
                let detail = limited_detail(policy, *retry_after);
                (LIMITED, detail, Some(*retry_after), Some((policy, *remaining)))
            }
            Self::BadRequest(why) => (BAD_REQUEST, why.clone().into_owned(), None, None),
            Self::Store(_) => (STORE, STORE_DETAIL.to_owned(), Some(SECOND), None),
        };
        let (status, name, title) = row;
        Problem { status, name, title, detail, retry_after, limited }.response()
    }
}

// === impl Problem ===

impl Problem<'_> {
    /// The response.
    pub fn response(&self) -> Response<Bytes> {
        let kind = if self.name == LIMITED.1 {
            Cow::Borrowed(QUOTA_EXCEEDED)
        } else {
            Cow::Owned(format!("urn:paceway:problem:{}", self.name))
        };
        let body = ProblemBody {
            kind: &kind,
            title: self.title,
            status: self.status.as_u16(),
            detail: &self.detail,
            code: self.name,
            retry_after_ms: self.retry_after.map(whole_millis),
            violated_policies: self.limited.map(|(policy, _)| [&policy.name]),
        };
        let mut text = Vec::with_capacity(BODY + self.detail.len());
        // Strings and numbers: nothing in it cannot be written.
        drop(serde_json::to_writer(&mut text, &body));
        let mut response = Response::new(text.into());
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.reserve(FIELDS);
        headers.insert(CONTENT_TYPE, PROBLEM);
        headers.insert(PACEWAY_ORIGIN, HeaderValue::from_static("gateway"));
        let Some(micros) = self.retry_after else { return response };
        let seconds = whole_seconds(micros);
        headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        if let Some((policy, remaining)) = self.limited {
            for (field, value) in policy.fields(remaining, seconds) {
                headers.insert(field, value);
            }
        }
        response
    }
}

// === impl Policy ===

impl Policy {
    /// The name in a form that needs no escape in a structured field. The configuration allows no other names; a program
    /// that uses the library may have one.
    pub fn plain_name(&self) -> Cow<'_, str> {
        if self.name.contains(['"', '\\']) {
            self.name.replace(['"', '\\'], "_").into()
        } else {
            self.name.as_str().into()
        }
    }

    /// The fields `RateLimit` and `RateLimit-Policy` of this limiter, which has `remaining` permits left and is to be asked
    /// again after `seconds`. A name that no field can hold yields no field.
    pub fn fields(
        &self,
        remaining: i64,
        seconds: i64,
    ) -> impl Iterator<Item = (HeaderName, HeaderValue)> + use<> {
        let name = self.plain_name();
        let quota = match self.quota {
            Quota::Rate(rate) => {
                let (quota, window) = rate.per_whole_seconds();
                text(name.len(), format_args!("\"{name}\";q={quota};w={window}"))
            }
            Quota::Concurrency(max) => {
                text(name.len(), format_args!("\"{name}\";q={max};qu=\"concurrent-requests\""))
            }
        };
        let left = text(name.len(), format_args!("\"{name}\";r={remaining};t={seconds}"));
        let fields = [(RATELIMIT, left), (RATELIMIT_POLICY, quota)].into_iter();
        fields.filter_map(|(field, value)| Some((field, HeaderValue::try_from(value).ok()?)))
    }
}

/// The detail of a refusal: it has the limiter's name, and the time after which to come back.
pub fn limited_detail(policy: &Policy, retry_after: Micros) -> String {
    let (name, seconds) = (&policy.name, seconds(retry_after));
    let said = format_args!(
        "the limiter `{name}` has no slot within the time this request may wait; \
         come back in {seconds:.3} s"
    );
    text(96 + name.len(), said)
}

/// As `format!`, with room for 48 bytes beside `room`, so that the text need not grow.
fn text(room: usize, said: fmt::Arguments<'_>) -> String {
    let mut text = String::with_capacity(48 + room);
    // A string takes all that is written.
    let _ = text.write_fmt(said);
    text
}

/// The time in seconds, rounded up to whole ms, so that a caller that waits for it does not come too early.
pub fn seconds(micros: Micros) -> f64 {
    (micros as f64 / 1000.0).ceil() / 1000.0
}

/// The time in ms, rounded up.
pub fn whole_millis(micros: Micros) -> i64 {
    micros.max(0).saturating_add(999) / 1000
}

/// The time in seconds, rounded up and at least 1, so that a caller that comes back then is not too early (RFC 9110
/// section 10.2.3).
pub fn whole_seconds(micros: Micros) -> i64 {
    (micros.saturating_add(SECOND - 1) / SECOND).max(1)
}
