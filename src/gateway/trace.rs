//! By what a request is told from others: its `X-Request-Id`, kept or made, and the trace that it is part of (W3C Trace
//! Context). They are names, not secrets.

use http::{HeaderMap, HeaderName, HeaderValue};
use std::{
    hash::{BuildHasher, RandomState},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

/// Kept when it is sane, made otherwise, and said both ways.
pub(super) const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const MAX_ID: usize = 128;

/// Makes ids of 128 bits that no two requests of any gateways share. One a worker.
#[derive(Debug)]
pub(super) struct Ids {
    /// Random: one of 2^64.
    high: u64,
    /// Random at first; then it counts.
    low: AtomicU64,
}

// === impl Ids ===

impl Ids {
    pub(super) fn new() -> Self {
        // Each state is keyed by the system's random numbers.
        let random = |of: u8| RandomState::new().hash_one(of);
        Self { high: random(0) ^ random(1).rotate_left(32), low: random(2).into() }
    }

    /// The request's own id, or a new one in its place.
    pub(super) fn of(&self, headers: &mut HeaderMap) -> HeaderValue {
        let mut own = headers.get_all(&X_REQUEST_ID).iter();
        if let (Some(id), None) = (own.next(), own.next())
            && is_sane(id.as_bytes())
        {
            return id.clone();
        }
        let id = self.next();
        headers.insert(X_REQUEST_ID, id.clone());
        id
    }

    fn next(&self) -> HeaderValue {
        let low = mix(self.low.fetch_add(1, Relaxed));
        let mut text = [0; 32];
        for (i, digit) in text.iter_mut().enumerate() {
            let half = if i < 16 { self.high } else { low };
            let nibble = half >> (60 - 4 * (i % 16)) & 15;
            *digit = b"0123456789abcdef"[nibble as usize];
        }
        // Digits are what a header may hold.
        HeaderValue::from_bytes(&text).unwrap_or(HeaderValue::from_static("-"))
    }
}

/// One to one, so that no two counts look alike, or one after the other (the finish of SplitMix64).
fn mix(count: u64) -> u64 {
    let mut z = count.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Short, and of characters that every log can hold.
fn is_sane(id: &[u8]) -> bool {
    let is_plain = |byte: &u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\'' | b'\\');
    (1..=MAX_ID).contains(&id.len()) && id.iter().all(is_plain)
}

/// The trace-id of a valid `traceparent` (W3C Trace Context section 3.2).
pub(super) fn trace_id(headers: &HeaderMap) -> Option<&str> {
    let mut all = headers.get_all(TRACEPARENT).iter();
    let (Some(value), None) = (all.next(), all.next()) else { return None };
    let value = value.to_str().ok()?;
    let mut parts = value.splitn(4, '-');
    let (version, trace, parent) = (parts.next()?, parts.next()?, parts.next()?);
    let flags = parts.next()?;
    let is_hex = |text: &str, length| {
        let digits = text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        text.len() == length && digits
    };
    let is_some = |text: &str| text.bytes().any(|byte| byte != b'0');
    // Later versions may have more behind it.
    let flags = if version == "00" { flags } else { flags.split('-').next()? };
    let is_valid = is_hex(version, 2)
        && version != "ff"
        && is_hex(trace, 32)
        && is_some(trace)
        && is_hex(parent, 16)
        && is_some(parent)
        && is_hex(flags, 2);
    is_valid.then_some(trace)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use std::collections::HashSet;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

    #[test]
    fn made_ids_differ() {
        let workers = [Ids::new(), Ids::new()];
        let made = workers.iter().flat_map(|ids| (0..10_000).map(|_| ids.next()));
        let made: HashSet<_> = made.collect();
        assert_eq!(made.len(), 20_000);
        assert!(made.iter().all(|id| id.len() == 32 && is_sane(id.as_bytes())));
    }

    #[rstest]
    #[case::uuid("8b8b1f0e-6c7e-4b61-9d0e-7a1c2d3e4f50", true)]
    #[case::anything("A/b:c=d+e,f;g|h", true)]
    #[case::empty("", false)]
    #[case::space("a b", false)]
    #[case::tab("a\tb", false)]
    #[case::quote("a\"b", false)]
    #[case::escape("a\\b", false)]
    #[case::obs_text("caf\u{e9}", false)]
    fn sane_ids(#[case] id: &str, #[case] sane: bool) {
        assert_eq!(is_sane(id.as_bytes()), sane);
    }

    #[test]
    fn long_ids_and_several_are_replaced() {
        let value = |text: &str| HeaderValue::from_str(text).unwrap();
        let (longest, longer) = ("x".repeat(128), "x".repeat(129));
        for (sent, kept) in
            [(vec![&longest], true), (vec![&longer], false), (vec![&longest; 2], false)]
        {
            let mut headers = HeaderMap::new();
            for id in &sent {
                headers.append(X_REQUEST_ID, value(id));
            }
            let id = Ids::new().of(&mut headers);
            assert_eq!(id == value(&longest), kept);
            assert_eq!(headers.get_all(X_REQUEST_ID).iter().collect::<Vec<_>>(), [&id]);
        }
    }

    #[rstest]
    #[case::usual(&["00-TRACE-00f067aa0ba902b7-01"], true)]
    #[case::later_version(&["cc-TRACE-00f067aa0ba902b7-01-what-comes"], true)]
    #[case::more_in_this_version(&["00-TRACE-00f067aa0ba902b7-01-what"], false)]
    #[case::no_version(&["ff-TRACE-00f067aa0ba902b7-01"], false)]
    #[case::no_parent(&["00-TRACE-0000000000000000-01"], false)]
    #[case::no_trace(&["00-00000000000000000000000000000000-00f067aa0ba902b7-01"], false)]
    #[case::capitals(&["00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01"], false)]
    #[case::short(&["00-TRACE-00f067aa0ba902b7"], false)]
    #[case::twice(&["00-TRACE-00f067aa0ba902b7-01", "00-TRACE-00f067aa0ba902b7-01"], false)]
    #[case::none(&[], false)]
    fn trace_ids(#[case] sent: &[&str], #[case] valid: bool) {
        let mut headers = HeaderMap::new();
        for value in sent {
            let value = value.replace("TRACE", TRACE);
            headers.append(TRACEPARENT, HeaderValue::from_str(&value).unwrap());
        }
        assert_eq!(trace_id(&headers), valid.then_some(TRACE));
    }
}
