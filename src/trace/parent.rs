//! The field `traceparent` (W3C Trace Context section 3.2): the trace that a request is part of.

use http::{HeaderMap, HeaderName, HeaderValue};
use opentelemetry::trace::{SpanId, TraceId};

/// The field that names a trace and the span that a request comes from.
pub(super) const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// A valid `traceparent`.
#[derive(Debug, PartialEq, Eq)]
pub struct TraceParent {
    /// The trace.
    pub trace: TraceId,
    /// The caller's span.
    pub(super) span: SpanId,
    /// Whether the caller records the trace.
    pub(super) is_sampled: bool,
}

// === impl TraceParent ===

impl TraceParent {
    /// Reads the field of a request. `None` if it is missing, occurs twice or is not valid.
    pub fn of(headers: &HeaderMap) -> Option<Self> {
        let mut all = headers.get_all(TRACEPARENT).iter();
        let (Some(value), None) = (all.next(), all.next()) else { return None };
        Self::parse(value.to_str().ok()?)
    }

    fn parse(text: &str) -> Option<Self> {
        let is_hex = |text: &str, length| {
            let digits = text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
            text.len() == length && digits
        };
        let mut parts = text.split('-');
        let mut part = |length| parts.next().filter(|part| is_hex(part, length));
        let (version, trace, span, flags) = (part(2)?, part(32)?, part(16)?, part(2)?);
        // A later version may have further parts (section 3.2.4).
        if version == "ff" || (version == "00" && parts.next().is_some()) {
            return None;
        }
        let trace = TraceId::from_hex(trace).ok().filter(|id| *id != TraceId::INVALID)?;
        let span = SpanId::from_hex(span).ok().filter(|id| *id != SpanId::INVALID)?;
        Some(Self { trace, span, is_sampled: u8::from_str_radix(flags, 16).ok()? & 1 == 1 })
    }
}

/// The field for a request that `span` of `trace` sends.
pub(super) fn field(trace: TraceId, span: SpanId) -> HeaderValue {
    // Digits and hyphens are a valid value.
    HeaderValue::from_str(&format!("00-{trace}-{span}-01")).unwrap_or(HeaderValue::from_static("-"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const SPAN: &str = "00f067aa0ba902b7";

    #[rstest]
    #[case::sampled("00-T-S-01", Some(true))]
    #[case::with_other_flags("00-T-S-03", Some(true))]
    #[case::not_sampled("00-T-S-00", Some(false))]
    #[case::later_version("cc-T-S-01-more", Some(true))]
    #[case::too_long("00-T-S-01-more", None)]
    #[case::no_version("ff-T-S-01", None)]
    #[case::no_trace("00-00000000000000000000000000000000-S-01", None)]
    #[case::no_span("00-T-0000000000000000-01", None)]
    #[case::capitals("00-4BF92F3577B34DA6A3CE929D0E0E4736-S-01", None)]
    #[case::short("00-T-S", None)]
    #[case::nothing("", None)]
    fn reads_the_fields_of_traceparent(#[case] text: &str, #[case] sampled: Option<bool>) {
        let text = text.replace('T', TRACE).replace('S', SPAN);
        let parent = TraceParent::parse(&text);
        assert_eq!(parent.as_ref().map(|parent| parent.is_sampled), sampled);
        let value = HeaderValue::from_str(&text).expect("a value");
        let mut headers = HeaderMap::new();
        assert_eq!(TraceParent::of(&headers), None);
        headers.append(TRACEPARENT, value.clone());
        assert_eq!(TraceParent::of(&headers), parent);
        headers.append(TRACEPARENT, value);
        assert_eq!(TraceParent::of(&headers), None, "two of them");
        if let Some(TraceParent { trace, span, .. }) = parent {
            assert_eq!(field(trace, span), format!("00-{TRACE}-{SPAN}-01"));
        }
    }
}
