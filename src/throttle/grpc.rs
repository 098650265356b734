//! Reads the refusals of gRPC: `RESOURCE_EXHAUSTED`, and `UNAVAILABLE` that names a time. Only answers whose head has the
//! status (`Trailers-Only`) are read, because those with messages have begun before their status is known.

use base64::{
    Engine as _, alphabet,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use http::{HeaderMap, HeaderName, header::CONTENT_TYPE};
use std::time::Duration;

/// A refusal in the head of a gRPC answer.
pub(super) struct GrpcRefusal {
    /// The time that the upstream named.
    pub(super) after: Option<Duration>,
    /// Whether the call may be repeated. False for a negative `grpc-retry-pushback-ms` (gRFC A6).
    pub(super) may_repeat: bool,
    /// Whether it is `UNAVAILABLE`, the status of an upstream that is away, rather than `RESOURCE_EXHAUSTED`.
    pub(super) is_unavailable: bool,
}

pub(super) static GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
static GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
static PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");
static DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");

const RESOURCE_EXHAUSTED: &[u8] = b"8";
const UNAVAILABLE: &[u8] = b"14";
/// gRPC libraries refuse a message that is too large with `RESOURCE_EXHAUSTED`, which no pause helps.
const NO_QUOTA: [&str; 2] = ["larger than max", "exceeds maximum size"];
const RETRY_INFO: &[u8] = b"google.rpc.RetryInfo";
/// The longest status that is decoded. Header lists are bounded as well, but at a higher number.
const MAX_DETAILS: usize = 16 << 10;
/// Binary headers come with padding and without (gRPC over HTTP/2, "Custom-Metadata").
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Returns the refusal in a head, if there is one.
pub(super) fn refusal(headers: &HeaderMap) -> Option<GrpcRefusal> {
    let status = headers.get(&GRPC_STATUS)?.as_bytes();
    let is_grpc = |kind: &[u8]| kind.to_ascii_lowercase().starts_with(b"application/grpc");
    if !headers.get(CONTENT_TYPE).is_some_and(|kind| is_grpc(kind.as_bytes())) {
        return None;
    }
    let pushback = headers.get(&PUSHBACK).map(|value| value.to_str().ok()?.parse().ok());
    let pushback: Option<Option<u64>> = pushback;
    let after = match pushback {
        Some(after) => after.map(Duration::from_millis),
        None => headers.get(&DETAILS).and_then(|value| retry_info(value.as_bytes())),
    };
    let is_unavailable = match status {
        RESOURCE_EXHAUSTED => false,
        UNAVAILABLE if after.is_some() => true,
        _ => return None,
    };
    let message = headers.get(&GRPC_MESSAGE).and_then(|value| value.to_str().ok());
    // The message is percent-encoded.
    let message = message.unwrap_or_default().replace("%20", " ");
    if NO_QUOTA.iter().any(|cause| message.contains(cause)) {
        return None;
    }
    Some(GrpcRefusal {
        after,
        may_repeat: pushback.is_none_or(|after| after.is_some()),
        is_unavailable,
    })
}

/// Reads `google.rpc.RetryInfo.retry_delay` from a `google.rpc.Status` in base64.
fn retry_info(text: &[u8]) -> Option<Duration> {
    if text.len() > MAX_DETAILS {
        return None;
    }
    let status = BASE64.decode(text).ok()?;
    // Status { details = 3: Any { type_url = 1, value = 2 } }
    let mut details = Fields(&status).filter(|(number, _)| *number == 3);
    let info = details.find_map(|(_, field)| {
        let any = field.bytes()?;
        let url = Fields(any).find(|(number, _)| *number == 1)?.1.bytes()?;
        let value = || Fields(any).find(|(number, _)| *number == 2)?.1.bytes();
        if url.ends_with(RETRY_INFO) { value() } else { None }
    })?;
    // RetryInfo { retry_delay = 1: Duration { seconds = 1, nanos = 2 } }
    let delay = Fields(info).find(|(number, _)| *number == 1)?.1.bytes()?;
    let (mut fields, mut seconds, mut nanos) = (Fields(delay), 0, 0);
    for (number, field) in &mut fields {
        match number {
            1 => seconds = field.number()?,
            2 => nanos = field.number()?,
            _ => {}
        }
    }
    // A negative number is one above 2^63 here.
    let is_whole = fields.0.is_empty() && i64::try_from(seconds).is_ok();
    let nanos = u32::try_from(nanos).ok().filter(|nanos| is_whole && *nanos < 1_000_000_000)?;
    Some(Duration::new(seconds, nanos))
}

/// The fields of a protobuf message. Ends before the first one that is malformed.
struct Fields<'a>(&'a [u8]);

/// The value of a protobuf field.
#[derive(Clone, Copy)]
enum FieldValue<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    /// A value of fixed size, which no message here has.
    Fixed,
}

// === impl Fields ===

impl<'a> Iterator for Fields<'a> {
    type Item = (u64, FieldValue<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        let before = self.0;
        let field = self.field();
        if field.is_none() {
            self.0 = before;
        }
        field
    }
}

impl<'a> Fields<'a> {
    fn field(&mut self) -> Option<(u64, FieldValue<'a>)> {
        let tag = self.varint()?;
        let value = match tag & 7 {
            0 => FieldValue::Number(self.varint()?),
            1 => self.fixed(8)?,
            2 => {
                let length = usize::try_from(self.varint()?).ok()?;
                let (bytes, rest) = self.0.split_at_checked(length)?;
                self.0 = rest;
                FieldValue::Bytes(bytes)
            }
            5 => self.fixed(4)?,
            _ => return None,
        };
        Some((tag >> 3, value))
    }

    fn varint(&mut self) -> Option<u64> {
        let mut number = 0;
        for (i, byte) in self.0.iter().take(10).enumerate() {
            number |= u64::from(byte & 0x7f) << (7 * i);
            if byte & 0x80 == 0 {
                self.0 = &self.0[i + 1..];
                return Some(number);
            }
        }
        None
    }

    fn fixed(&mut self, length: usize) -> Option<FieldValue<'a>> {
        self.0 = self.0.get(length..)?;
        Some(FieldValue::Fixed)
    }
}

// === impl FieldValue ===

impl<'a> FieldValue<'a> {
    fn bytes(self) -> Option<&'a [u8]> {
        if let Self::Bytes(bytes) = self { Some(bytes) } else { None }
    }

    fn number(self) -> Option<u64> {
        if let Self::Number(number) = self { Some(number) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;
    use proptest::prelude::*;

    fn head(fields: &[(&'static str, &str)]) -> HeaderMap {
        let field = |(name, value): &(&'static str, &str)| {
            (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())
        };
        let kind = ("content-type", "application/grpc+proto");
        fields.iter().chain([&kind]).map(field).collect()
    }

    fn message(number: u8, value: &[u8]) -> Vec<u8> {
        [&[number << 3 | 2, u8::try_from(value.len()).unwrap()], value].concat()
    }

    fn details(delay: &[u8]) -> String {
        let info = message(1, delay);
        let url = message(1, b"type.googleapis.com/google.rpc.RetryInfo");
        let any = [url, message(2, &info)].concat();
        let other = message(3, &message(1, b"type.googleapis.com/google.rpc.Help"));
        BASE64.encode([&[8, 8][..], &message(2, b"slow"), &other, &message(3, &any)].concat())
    }

    fn after(fields: &[(&'static str, &str)]) -> Option<Option<Duration>> {
        refusal(&head(fields)).map(|refusal| refusal.after)
    }

    #[test]
    fn resource_exhausted_and_unavailable_with_a_time_are_refusals() {
        assert_eq!(after(&[("grpc-status", "8")]), Some(None));
        assert_eq!(after(&[("grpc-status", "14")]), None);
        assert_eq!(after(&[("grpc-status", "0")]), None);
        let pushed = [("grpc-status", "14"), ("grpc-retry-pushback-ms", "1500")];
        assert_eq!(after(&pushed), Some(Some(Duration::from_millis(1500))));
        let delay = details(&[8, 2, 16, 0x80, 0xca, 0xb5, 0xee, 0x01]);
        for padding in [delay.as_str(), delay.trim_end_matches('=')] {
            let named = [("grpc-status", "14"), ("grpc-status-details-bin", padding)];
            assert_eq!(after(&named), Some(Some(Duration::from_millis(2500))));
        }
    }

    #[test]
    fn a_negative_pushback_forbids_the_repetition() {
        let refused = refusal(&head(&[("grpc-status", "8"), ("grpc-retry-pushback-ms", "-1")]));
        assert!(refused.is_some_and(|refusal| !refusal.may_repeat && refusal.after.is_none()));
    }

    #[test]
    fn a_message_that_is_too_large_is_no_quota() {
        let said = "grpc: received message larger%20than max (5 vs. 4)";
        assert_eq!(after(&[("grpc-status", "8"), ("grpc-message", said)]), None);
    }

    #[test]
    fn an_invalid_delay_is_ignored() {
        for delay in [&[8, 0xff][..], &[16, 0xff, 0xff, 0xff, 0xff, 0x7f], &[10, 1, 1], &[8]] {
            let named = details(delay);
            let fields = [("grpc-status", "14"), ("grpc-status-details-bin", named.as_str())];
            assert_eq!(after(&fields), None, "{delay:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            let _ = retry_info(BASE64.encode(&bytes).as_bytes());
            let _ = retry_info(&bytes);
        }
    }
}
