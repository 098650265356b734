//! The messages of Envoy's rate limit service, version 3, as far as the gateway reads and writes them. Unknown fields are
//! skipped. The tags are those of `envoy/service/ratelimit/v3/rls.proto` and the files that it names.

use super::super::unary::AddedHeader;
use crate::config::Rate;
use prost::Message;
use std::time::Duration;

/// A question: `envoy.service.ratelimit.v3.RateLimitRequest`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct RateLimitRequest {
    #[prost(message, repeated, tag = "2")]
    pub(super) descriptors: Vec<RateLimitDescriptor>,
    /// How many requests the question is about; 0 means one.
    #[prost(uint32, tag = "3")]
    pub(super) hits_addend: u32,
}

/// The description of a request: `envoy.extensions.common.ratelimit.v3.RateLimitDescriptor`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct RateLimitDescriptor {
    #[prost(message, repeated, tag = "1")]
    pub(super) entries: Vec<DescriptorEntry>,
    /// A rate in place of the configured one.
    #[prost(message, optional, tag = "2")]
    pub(super) limit: Option<LimitOverride>,
    /// How many requests this descriptor is about, 0 included; those of the question without it.
    #[prost(message, optional, tag = "3")]
    pub(super) hits_addend: Option<UInt64Value>,
    /// Whether the hits are given back, and not taken.
    #[prost(bool, tag = "4")]
    pub(super) is_negative_hits: bool,
}

/// One key of a descriptor with its value.
#[derive(Clone, PartialEq, Message)]
pub(super) struct DescriptorEntry {
    #[prost(string, tag = "1")]
    pub(super) key: String,
    #[prost(string, tag = "2")]
    pub(super) value: String,
}

/// `envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.RateLimitOverride`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct LimitOverride {
    #[prost(uint32, tag = "1")]
    pub(super) requests_per_unit: u32,
    #[prost(int32, tag = "2")]
    pub(super) unit: i32,
}

/// `google.protobuf.UInt64Value`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct UInt64Value {
    #[prost(uint64, tag = "1")]
    pub(super) value: u64,
}

/// The answer: `envoy.service.ratelimit.v3.RateLimitResponse`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct RateLimitResponse {
    #[prost(enumeration = "RateLimitCode", tag = "1")]
    pub(super) overall_code: i32,
    #[prost(message, repeated, tag = "2")]
    pub(super) statuses: Vec<DescriptorStatus>,
    #[prost(message, repeated, tag = "3")]
    pub(super) response_headers_to_add: Vec<AddedHeader>,
    #[prost(message, repeated, tag = "4")]
    pub(super) request_headers_to_add: Vec<AddedHeader>,
}

/// Whether a request may pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub(super) enum RateLimitCode {
    Unknown = 0,
    Ok = 1,
    OverLimit = 2,
}

/// The answer for one descriptor, in the order of the question.
#[derive(Clone, PartialEq, Message)]
pub(super) struct DescriptorStatus {
    #[prost(enumeration = "RateLimitCode", tag = "1")]
    pub(super) code: i32,
    #[prost(message, optional, tag = "2")]
    pub(super) current_limit: Option<CurrentLimit>,
    #[prost(uint32, tag = "3")]
    pub(super) limit_remaining: u32,
    #[prost(message, optional, tag = "4")]
    pub(super) duration_until_reset: Option<ProtoDuration>,
}

/// The rate of the limiter that bound.
#[derive(Clone, PartialEq, Message)]
pub(super) struct CurrentLimit {
    #[prost(uint32, tag = "1")]
    requests_per_unit: u32,
    /// 0 for a period that has no unit.
    #[prost(int32, tag = "2")]
    unit: i32,
    #[prost(string, tag = "3")]
    name: String,
}

/// `google.protobuf.Duration`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ProtoDuration {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int32, tag = "2")]
    nanos: i32,
}

// === impl DescriptorStatus ===

impl DescriptorStatus {
    /// The answer for a descriptor that no limiter counts.
    pub(super) fn ok() -> Self {
        Self { code: RateLimitCode::Ok.into(), ..Self::default() }
    }
}

// === impl LimitOverride ===

impl LimitOverride {
    /// The rate; `None` if it is 0 or has no unit. The longest month and the longest year count.
    pub(super) fn rate(&self) -> Option<Rate> {
        const DAY: u64 = 86_400;
        let period = match self.unit {
            1 => 1,
            2 => 60,
            3 => 3_600,
            4 => DAY,
            5 => 31 * DAY,
            6 => 366 * DAY,
            7 => 7 * DAY,
            _ => return None,
        };
        let (count, period) = (self.requests_per_unit.into(), Duration::from_secs(period));
        (count > 0).then_some(Rate { count, period })
    }
}

// === impl CurrentLimit ===

impl CurrentLimit {
    /// The rate of the limiter `name`.
    pub(super) fn new(name: &str, rate: Rate) -> Self {
        let unit = match rate.period.as_millis() {
            1_000 => 1,
            60_000 => 2,
            3_600_000 => 3,
            86_400_000 => 4,
            _ => 0,
        };
        let requests_per_unit = u32::try_from(rate.count).unwrap_or(u32::MAX);
        Self { requests_per_unit, unit, name: name.to_owned() }
    }
}

// === impl ProtoDuration ===

impl From<Duration> for ProtoDuration {
    fn from(span: Duration) -> Self {
        let nanos = i32::try_from(span.subsec_nanos()).unwrap_or_default();
        Self { seconds: i64::try_from(span.as_secs()).unwrap_or(i64::MAX), nanos }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::services::unary::{decode, encode};

    #[test]
    fn reads_a_rate_limit_request_of_envoy() {
        // domain: "d", descriptors: [{ entries: [{ key: "a", value: "b" }], limit: {...}, hits_addend: { value: 3 } }], hits: 2
        let descriptor = b"\x0a\x06\x0a\x01a\x12\x01b\x12\x04\x08\x05\x10\x01\x1a\x02\x08\x03";
        let mut message = b"\x0a\x01d\x12".to_vec();
        message.push(u8::try_from(descriptor.len()).expect("short"));
        message.extend(descriptor);
        message.extend(b"\x18\x02");
        let mut body = vec![0, 0, 0, 0, u8::try_from(message.len()).expect("short")];
        body.extend(message);
        let asked: RateLimitRequest = decode(&body).expect("a question");
        let entry = DescriptorEntry { key: "a".into(), value: "b".into() };
        let hits_addend = Some(UInt64Value { value: 3 });
        let limit = Some(LimitOverride { requests_per_unit: 5, unit: 1 });
        let rate = limit.as_ref().and_then(LimitOverride::rate);
        assert_eq!(rate, Some(Rate { count: 5, period: Duration::from_secs(1) }));
        let is_negative_hits = false;
        let entries = vec![entry];
        let own = RateLimitDescriptor { entries, limit, hits_addend, is_negative_hits };
        let descriptors = vec![own];
        assert_eq!(asked, RateLimitRequest { descriptors, hits_addend: 2 });
        body.push(0);
        assert_eq!(decode::<RateLimitRequest>(&body), None, "bytes after the message");
    }

    #[test]
    fn a_written_answer_can_be_decoded() {
        let rate = Rate { count: 5, period: Duration::from_secs(60) };
        let status = DescriptorStatus {
            code: RateLimitCode::OverLimit.into(),
            current_limit: Some(CurrentLimit::new("search", rate)),
            limit_remaining: 0,
            duration_until_reset: Some(Duration::from_millis(1_250).into()),
        };
        let answer = RateLimitResponse {
            overall_code: RateLimitCode::OverLimit.into(),
            statuses: vec![status],
            ..RateLimitResponse::default()
        };
        assert_eq!(decode(&encode(&answer)), Some(answer));
    }
}
