//! How values are written in keys: visible, unambiguous, bounded. Knows no request.

use sha2::{Digest, Sha256};
use std::fmt::Write as _;

/// Characters that a key has at most; a longer one is replaced by its hash.
pub const MAX_LEN: usize = 128;
/// Bytes of a hash that are kept, of SHA-256.
const HASH_LEN: usize = 16;

/// The ASCII characters that are escaped besides those that always are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(super) struct Escapes(u128);

/// A key as somebody types it, in the form that it has in a store: what is never found in a key is
/// escaped, escapes and hashes stay.
pub fn canonical(text: &str) -> String {
    bounded(escape_text(text), false)
}

/// `key`, or `#` and its hash when it is too long or `secret`.
pub(super) fn bounded(key: String, secret: bool) -> String {
    if !secret && key.len() <= MAX_LEN {
        return key;
    }
    let mut hashed = String::with_capacity(1 + 2 * HASH_LEN);
    hashed.push('#');
    for byte in &Sha256::digest(key)[..HASH_LEN] {
        // Writing to a string cannot fail.
        let _ = write!(hashed, "{byte:02x}");
    }
    hashed
}

/// Whether `text` is what [`bounded`] makes of a key.
pub(super) fn is_hash(text: &str) -> bool {
    let digits = text.strip_prefix('#').unwrap_or_default();
    let hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    digits.len() == 2 * HASH_LEN && digits.bytes().all(hex)
}

/// A key as people see it: the `#` of a hash is written `%23`, so that the key can be pasted into a URL, where a `#`
/// would begin the fragment, which is never sent.
pub fn shown(key: &str) -> String {
    match key.strip_prefix('#').filter(|_| is_hash(key)) {
        Some(digits) => format!("%23{digits}"),
        None => key.to_owned(),
    }
}

/// The hash that `text` is, as [`bounded`] writes it: `#HASH`, `%23HASH`, or the name of a state (`...:#HASH`). No value
/// of a request is written so, because a `#` in it is escaped.
pub(super) fn pasted(text: &str) -> Option<String> {
    let hash = match text.strip_prefix("%23") {
        Some(digits) => format!("#{digits}"),
        None => {
            let start = text.rfind('#').filter(|at| *at == 0 || text[..*at].ends_with(':'))?;
            text[start..].to_owned()
        }
    };
    is_hash(&hash).then_some(hash)
}

/// Escapes what no key holds; what is an escape already stays.
pub(super) fn escape_text(text: &str) -> String {
    let hex = |i: usize| text.as_bytes().get(i).is_some_and(u8::is_ascii_hexdigit);
    let mut out = String::with_capacity(text.len());
    for (i, byte) in text.bytes().enumerate() {
        match byte {
            b'#' if i == 0 => out.push('#'),
            b'%' if hex(i + 1) && hex(i + 2) => out.push('%'),
            byte => Escapes::default().push(&[byte], &mut out),
        }
    }
    out
}

// === impl Escapes ===

impl Escapes {
    pub(super) fn add(&mut self, byte: u8) {
        self.0 |= 1_u128.checked_shl(byte.into()).unwrap_or(0);
    }

    pub(super) fn has(self, byte: u8) -> bool {
        self.0 & 1_u128.checked_shl(byte.into()).unwrap_or(0) != 0
    }

    pub(super) fn push(self, value: &[u8], out: &mut String) {
        for &byte in value {
            // Braces would be a hash tag of Redis, `#` a hash.
            let plain = byte.is_ascii_graphic() && !matches!(byte, b'%' | b'{' | b'}' | b'#');
            if plain && !self.has(byte) {
                out.push(char::from(byte));
            } else {
                // Writing to a string cannot fail.
                let _ = write!(out, "%{byte:02X}");
            }
        }
    }
}
