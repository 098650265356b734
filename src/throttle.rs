//! Reads from an answer of an upstream what it says about its quota: whether it refuses the call, for how long, and what remains. Pure: reads
//! an answer's head, and the start of its body where a condition asks for that; does nothing about it.

mod body;
mod condition;
mod dialect;
mod grpc;
mod pointer;
mod quota;
mod rates;
pub(crate) mod structured;
mod style;
mod time;

pub use condition::Condition;
pub use jiff::Timestamp;
pub use quota::QuotaReport;
pub use rates::QuotaRate;
pub(crate) use rates::rate_for;
pub use style::Style;
pub(crate) use time::instant;

use crate::{
    key,
    upstream::headers::{HeaderFlags, number},
};
use dialect::HeadQuotas;
use http::{
    HeaderMap, HeaderName, StatusCode,
    header::{AGE, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, DATE, RETRY_AFTER},
};
use paceway_limit::Rate;
use serde_json::Value;
use std::time::Duration;
use time::UpstreamClock;

/// The shortest pause, whatever the upstream says: `Retry-After: 0` must not make a loop of calls.
pub const MIN_PAUSE: Duration = Duration::from_millis(100);
/// The bytes of a body that are read for a condition or a time. A longer body is not read at all.
pub const MAX_BODY: usize = 64 << 10;

/// How the answers of one upstream are read. Made when the configuration is loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThrottleRules {
    /// The answers that are refusals: those that meet one of the conditions.
    pub when: Vec<Condition>,
    /// The pause after the first refusal that names no time. It doubles with each refusal in a row.
    pub default_pause: Duration,
    /// No pause is longer, whatever the upstream says.
    pub max_pause: Duration,
    /// The statuses of the answers that the upstream does not count.
    pub free: Vec<StatusCode>,
    /// Whether the remaining quota is read from answers.
    pub learns: bool,
    /// The headers and conditions that the upstream is known for.
    pub style: Style,
    /// The statuses of `when`, one bit for each from 0 to 639.
    statuses: [u64; 10],
}

/// The content of one answer, as far as it concerns quotas.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Heard {
    /// The upstream refuses the call.
    pub refusal: Option<UpstreamRefusal>,
    /// The quotas of which the answer says how much remains; empty if it says nothing, or nothing is learned.
    pub quotas: Vec<QuotaReport>,
}

/// An answer by which the upstream refuses a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UpstreamRefusal {
    /// The status of the answer. For gRPC, whose HTTP status is 200: 429 for `RESOURCE_EXHAUSTED`, 503 for `UNAVAILABLE`.
    pub status: StatusCode,
    /// The time after which the upstream may be called again, as it named it; `None` if it named none.
    pub named: Option<Duration>,
    /// The place of that time.
    pub source: TimeSource,
    /// Which calls may be repeated after it.
    pub repeat: Repeat,
}

/// The place in which an upstream named the time of a pause, in the order in which they are looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeSource {
    /// `grpc-retry-pushback-ms`, or `RetryInfo` in `grpc-status-details-bin`.
    Grpc,
    /// `retry-after-ms`.
    RetryAfterMs,
    /// `Retry-After`.
    RetryAfter,
    /// A member of the body, such as `retry_after`.
    Body,
    /// The latest reset of the quotas that are exhausted.
    Reset,
    /// A header with the rate of the quota: the time of one permit.
    Rate,
    /// No place: the default pause is taken.
    Default,
}

/// The time of a pause with the place that names it.
struct NamedTime {
    span: Duration,
    source: TimeSource,
}

/// Which refused calls may be sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repeat {
    /// None: the quota is one that no retry can wait for, such as credit that is used up.
    Never,
    /// Those of an idempotent method: the upstream may have processed the call.
    IfIdempotent,
    /// All: the upstream did not process the call.
    Always,
}

static RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");
static X_MS_RETRY_AFTER_MS: HeaderName = HeaderName::from_static("x-ms-retry-after-ms");

// === impl ThrottleRules ===

impl ThrottleRules {
    /// Makes the rules of a style, with its own conditions or those of the user.
    pub fn new(style: Style, when: Option<Vec<Condition>>) -> Self {
        let when = when.unwrap_or_else(|| style.when());
        let mut statuses = [0; 10];
        for condition in &when {
            let place = place(condition.status);
            statuses[place / 64] |= 1 << (place % 64);
        }
        Self {
            when,
            default_pause: style.default_pause(),
            max_pause: Duration::from_secs(600),
            free: style.free(),
            learns: true,
            style,
            statuses,
        }
    }

    /// Whether each answer with this status is a refusal.
    pub fn refuses_always(&self, status: StatusCode) -> bool {
        self.when.iter().any(|condition| condition.is_plain(status))
    }

    /// Whether an answer may say something, so that [`Self::hear`] has to be called. Costs a look at a bit of the status and
    /// one at the flags, which the removal of hop-by-hop fields needs anyway.
    #[inline]
    pub fn concerns(&self, status: StatusCode, flags: HeaderFlags) -> bool {
        let place = place(status);
        self.statuses[place / 64] & (1 << (place % 64)) != 0 || flags.has(HeaderFlags::QUOTA)
    }

    /// Whether the body of an answer has to be read before [`Self::hear`]: a condition asks for it, or the answer is a refusal
    /// whose head names no time. Only JSON of at most [`MAX_BODY`] that is not compressed is read.
    pub fn needs_body(&self, status: StatusCode, headers: &HeaderMap) -> bool {
        if !has_readable_json(headers) || is_cached(headers) {
            return false;
        }
        if self.when.iter().any(|condition| condition.is_met(status, headers, None)) {
            let clock = UpstreamClock::new(None, Timestamp::UNIX_EPOCH);
            named_by_head(headers, &clock).is_none()
        } else {
            self.when.iter().any(|condition| condition.asks_body(status, headers))
        }
    }

    /// Reads an answer. `body` is the whole body if [`Self::needs_body`] asked for it and it was at most [`MAX_BODY`]; `now` is
    /// the time of the gateway's clock, for answers without `Date`. An answer from a cache (`Age`) says nothing.
    pub fn hear(
        &self,
        status: StatusCode,
        headers: &HeaderMap,
        body: Option<&[u8]>,
        now: Timestamp,
    ) -> Heard {
        if is_cached(headers) {
            return Heard::default();
        }
        let clock = UpstreamClock::new(text(headers, &DATE), now);
        let body = body.filter(|body| body.len() <= MAX_BODY);
        let body: Option<Value> = body.and_then(|body| serde_json::from_slice(body).ok());
        let head = HeadQuotas::read(headers, self.style, &clock);
        let refusal = self.refusal(status, headers, body.as_ref(), &head, &clock);
        let points = body.as_ref().and_then(body::points);
        let quotas = if self.learns { head.reports().chain(points).collect() } else { Vec::new() };
        Heard { refusal, quotas }
    }

    /// Whether an answer meets one of the conditions. One from a cache (`Age`) meets none. `body` is as for [`Self::hear`].
    pub fn meets(&self, status: StatusCode, headers: &HeaderMap, body: Option<&[u8]>) -> bool {
        let body = body.filter(|body| body.len() <= MAX_BODY);
        let body: Option<Value> = body.and_then(|body| serde_json::from_slice(body).ok());
        let is_met = |own: &Condition| own.is_met(status, headers, body.as_ref());
        !is_cached(headers) && self.when.iter().any(is_met)
    }

    /// Reads the rates of quotas that an answer names. One from a cache (`Age`) says nothing.
    pub fn rates(&self, headers: &HeaderMap) -> Vec<QuotaRate> {
        if is_cached(headers) { Vec::new() } else { rates::read(headers, self.style) }
    }

    fn refusal(
        &self,
        status: StatusCode,
        headers: &HeaderMap,
        body: Option<&Value>,
        head: &HeadQuotas,
        clock: &UpstreamClock<'_>,
    ) -> Option<UpstreamRefusal> {
        if !self.when.iter().any(|condition| condition.is_met(status, headers, body)) {
            return of_grpc(headers);
        }
        let is_hard = status == StatusCode::PAYMENT_REQUIRED || body.is_some_and(body::is_hard);
        let repeat = match status {
            _ if is_hard => Repeat::Never,
            StatusCode::TOO_MANY_REQUESTS => Repeat::Always,
            _ if body.is_some_and(body::is_unprocessed) => Repeat::Always,
            _ => Repeat::IfIdempotent,
        };
        let in_body = || TimeSource::Body.names(body::retry_after(body?, clock));
        let at_reset = || TimeSource::Reset.names(head.reset());
        let by_rate = || TimeSource::Rate.names(head.pace);
        let found = named_by_head(headers, clock).or_else(in_body);
        // A hard quota is not filled at the reset of another one.
        let found = found.or_else(|| if is_hard { None } else { at_reset().or_else(by_rate) });
        let (named, source) = found.map(|time| (time.span, time.source)).unzip();
        let source = source.unwrap_or(TimeSource::Default);
        Some(UpstreamRefusal { status, named, source, repeat })
    }

    /// Returns the length of the pause after a refusal, which is the `in_a_row`th without a success between them. At least
    /// [`MIN_PAUSE`], and at most `max_pause`.
    pub fn pause(&self, refusal: &UpstreamRefusal, in_a_row: u32) -> Duration {
        let doubled = || {
            let times = 1_u32.checked_shl(in_a_row.saturating_sub(1)).unwrap_or(u32::MAX);
            self.default_pause.saturating_mul(times)
        };
        let span = match (refusal.named, refusal.repeat) {
            (Some(named), _) => named,
            // Credit that is used up names no time at which it is filled again.
            (None, Repeat::Never) => self.max_pause,
            (None, _) => doubled(),
        };
        span.min(self.max_pause).max(MIN_PAUSE)
    }
}

impl Default for ThrottleRules {
    /// `when: [429, "503 with retry-after"]`, for an upstream of any style.
    fn default() -> Self {
        Self::new(Style::Auto, None)
    }
}

// === impl Heard ===

impl Heard {
    /// Returns the report on the quota that a limiter keeps with `rate` and `capacity`, the permits that it can give at once.
    /// `is_only_rate` is true if the request was charged to no other rate. `None` if no report is of this quota: one has its
    /// window, its limit or its name, or there is nothing else that it could be of.
    pub fn remaining(
        &self,
        limiter: &str,
        rate: &Rate,
        capacity: u64,
        is_only_rate: bool,
    ) -> Option<&QuotaReport> {
        let is_only = is_only_rate && self.quotas.len() == 1;
        let own = self.quotas.iter().filter(|own| own.is_of(limiter, rate, capacity, is_only));
        own.min_by_key(|report| report.remaining)
    }
}

// === impl TimeSource ===

impl TimeSource {
    /// The time that this place names, if it does.
    fn names(self, span: Option<Duration>) -> Option<NamedTime> {
        span.map(|span| NamedTime { span, source: self })
    }
}

/// The place of a status among 640 bits.
fn place(status: StatusCode) -> usize {
    usize::from(status.as_u16()).min(639)
}

/// The time that a head names for coming back, apart from the resets of its quotas.
fn named_by_head(headers: &HeaderMap, clock: &UpstreamClock<'_>) -> Option<NamedTime> {
    let in_millis = |name| time::millis(text(headers, name)?);
    let millis = in_millis(&RETRY_AFTER_MS).or_else(|| in_millis(&X_MS_RETRY_AFTER_MS));
    let named = || TimeSource::RetryAfter.names(clock.read(text(headers, &RETRY_AFTER)?));
    TimeSource::RetryAfterMs.names(millis).or_else(named)
}

fn of_grpc(headers: &HeaderMap) -> Option<UpstreamRefusal> {
    let refusal = grpc::refusal(headers)?;
    let status = if refusal.is_unavailable {
        StatusCode::SERVICE_UNAVAILABLE
    } else {
        StatusCode::TOO_MANY_REQUESTS
    };
    let source = if refusal.after.is_some() { TimeSource::Grpc } else { TimeSource::Default };
    // Both statuses say that the call was not processed: one without quota, the other with an invitation to come back.
    let repeat = if refusal.may_repeat { Repeat::Always } else { Repeat::Never };
    Some(UpstreamRefusal { status, named: refusal.after, source, repeat })
}

/// Whether an answer comes from a cache. `Age: 0` does not: some CDNs write it on every answer.
fn is_cached(headers: &HeaderMap) -> bool {
    headers.get(AGE).and_then(|age| number(age.as_bytes())).is_some_and(|age| age > 0)
}

/// Whether the body is JSON that can be read in one piece: no stream of events, not compressed, and not longer than
/// [`MAX_BODY`] if the head names its length.
fn has_readable_json(headers: &HeaderMap) -> bool {
    let Some(content_type) = headers.get(CONTENT_TYPE) else { return false };
    let is_plain = |coding: &[u8]| coding.eq_ignore_ascii_case(b"identity");
    let length = headers.get(CONTENT_LENGTH).and_then(|length| number(length.as_bytes()));
    key::is_json(content_type.as_bytes())
        && headers.get(CONTENT_ENCODING).is_none_or(|coding| is_plain(coding.as_bytes()))
        && length.is_none_or(|length| (1..=MAX_BODY as u64).contains(&length))
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

#[cfg(test)]
mod tests;
