//! The identity of a request: its `X-Request-Id`, kept or made. It is a name, not a secret.

use crate::upstream::headers::HeaderFlags;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use parking_lot::Mutex;
use std::hash::{BuildHasher, RandomState};

/// The header with the request's id. It is sent to the upstream, returned to the client, and written to the log.
pub(crate) static X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const MAX_ID: usize = 128;
/// The digits of an id that the gateway makes: 32 hex digits are 128 bits.
const DIGITS: usize = 2 * HALF;
const HALF: usize = 16;
/// The number of ids that are made at once, so that one allocation serves them all.
const BLOCK: usize = 64;

/// The two digits of each byte.
static HEX: [[u8; 2]; 256] = {
    let (digits, mut pairs, mut byte) = (b"0123456789abcdef", [[0; 2]; 256], 0);
    while byte < 256 {
        pairs[byte] = [digits[byte >> 4], digits[byte & 15]];
        byte += 1;
    }
    pairs
};

/// Makes ids of 128 bits that no two requests of any gateways share. Each worker has one.
#[derive(Debug)]
pub(super) struct RequestIds {
    /// The digits of the first half of each id, which is random for each worker and start.
    high: [u8; HALF],
    next: Mutex<Next>,
}

#[derive(Debug)]
struct Next {
    /// The second half of the next id, before it is mixed: a counter with a random start.
    low: u64,
    /// The ids that are made and not used yet, one after the other.
    made: Bytes,
}

// === impl RequestIds ===

impl RequestIds {
    pub(super) fn new() -> Self {
        // The system's random numbers are the key of each hash state.
        let random = |of: u8| RandomState::new().hash_one(of);
        let next = Next { low: random(2), made: Bytes::new() };
        Self { high: hex(random(0) ^ random(1).rotate_left(32)), next: Mutex::new(next) }
    }

    /// Returns the id of a request: its own if it has exactly one that is sane, otherwise a new one.
    ///
    /// It is marked as sensitive, which keeps it out of the header tables of HTTP/2 (RFC 7541 section 6.2.3). A table
    /// full of ids that never come again costs h2 2,000 instructions a response, since it compares each with the next id,
    /// and leaves no room for the headers that do come again.
    pub(super) fn of(&self, headers: &HeaderMap, seen: HeaderFlags) -> HeaderValue {
        let mut id = self.kept_or_made(headers, seen);
        id.set_sensitive(true);
        id
    }

    fn kept_or_made(&self, headers: &HeaderMap, seen: HeaderFlags) -> HeaderValue {
        if !seen.has(HeaderFlags::REQUEST_ID) {
            return self.next();
        }
        let mut own = headers.get_all(&X_REQUEST_ID).iter();
        if let (Some(id), None) = (own.next(), own.next())
            && is_sane(id.as_bytes())
        {
            return id.clone();
        }
        self.next()
    }

    fn next(&self) -> HeaderValue {
        let mut next = self.next.lock();
        if next.made.is_empty() {
            next.made = self.block(next.low).into();
            next.low = next.low.wrapping_add(BLOCK as u64);
        }
        let id = next.made.split_to(DIGITS);
        drop(next);
        // All digits are allowed in the value of a header.
        HeaderValue::from_maybe_shared(id).unwrap_or(HeaderValue::from_static("-"))
    }

    fn block(&self, low: u64) -> Vec<u8> {
        let mut text = Vec::with_capacity(BLOCK * DIGITS);
        for count in 0..BLOCK as u64 {
            text.extend_from_slice(&self.high);
            text.extend_from_slice(&hex(mix(low.wrapping_add(count))));
        }
        text
    }
}

/// The 16 hex digits of a number.
fn hex(number: u64) -> [u8; HALF] {
    let mut text = [0; HALF];
    for (byte, digits) in number.to_be_bytes().into_iter().zip(text.as_chunks_mut::<2>().0) {
        *digits = HEX[usize::from(byte)];
    }
    text
}

/// Maps counts to numbers one to one, so that successive ids do not look alike (the last step of SplitMix64).
fn mix(count: u64) -> u64 {
    let mut z = count.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Whether an id is short, and of characters that every log can hold.
fn is_sane(id: &[u8]) -> bool {
    let is_plain = |byte: &u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\'' | b'\\');
    (1..=MAX_ID).contains(&id.len()) && id.iter().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use std::collections::HashSet;

    #[test]
    fn generated_ids_differ() {
        let workers = [RequestIds::new(), RequestIds::new()];
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
    fn recognises_sane_request_ids(#[case] id: &str, #[case] sane: bool) {
        assert_eq!(is_sane(id.as_bytes()), sane);
    }

    #[test]
    fn long_or_repeated_ids_are_replaced() {
        let value = |text: &str| HeaderValue::from_str(text).unwrap();
        let (longest, longer) = ("x".repeat(128), "x".repeat(129));
        for (sent, kept) in
            [(vec![&longest], true), (vec![&longer], false), (vec![&longest; 2], false)]
        {
            let mut headers = HeaderMap::new();
            for id in &sent {
                headers.append(&X_REQUEST_ID, value(id));
            }
            let seen = HeaderFlags::of(&headers);
            let id = RequestIds::new().of(&headers, seen);
            assert_eq!(id == value(&longest), kept);
            assert!(id.is_sensitive(), "HTTP/2 would keep it in a table");
        }
    }
}
