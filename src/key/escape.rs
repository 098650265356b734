//! Writes values into keys so that they are visible, unambiguous and bounded. Knows no request.

use sha2::{Digest, Sha256};
use std::fmt::Write as _;

/// The most characters that a key has. A longer key is replaced by its hash.
pub const MAX_LEN: usize = 128;
/// The number of bytes of a SHA-256 hash that a key keeps; 128 bits make a collision by chance impossible in practice.
const HASH_LEN: usize = 16;

/// The ASCII characters that one template escapes in addition to those that every template escapes, one bit for each.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(super) struct Escapes(u128);

/// Brings a key that an operator typed into the form that it has in a store: characters that no key contains are escaped,
/// and escapes and hashes stay.
pub fn canonical(text: &str) -> String {
    bounded(escape_text(text), false)
}

/// Returns `key`, or `#` and its hash if the key is `secret` or longer than [`MAX_LEN`].
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

/// Returns the hash of a key, also of one that is no secret, in the form that [`shown`] returns.
pub fn hashed(key: &str) -> String {
    let key = if is_hash(key) { key.to_owned() } else { bounded(key.to_owned(), true) };
    shown(&key)
}

/// Whether `text` is a hash as [`bounded`] writes it: `#` and 32 hexadecimal digits.
pub(super) fn is_hash(text: &str) -> bool {
    let digits = text.strip_prefix('#').unwrap_or_default();
    let hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    digits.len() == 2 * HASH_LEN && digits.bytes().all(hex)
}

/// Returns a key as pages and logs show it. The `#` of a hash is written `%23`, so that the key can be pasted into a URL: a
/// `#` there would begin the fragment, which clients never send.
pub fn shown(key: &str) -> String {
    match key.strip_prefix('#').filter(|_| is_hash(key)) {
        Some(digits) => format!("%23{digits}"),
        None => key.to_owned(),
    }
}

/// Returns the hash that `text` names, in one of three forms: `#HASH`, `%23HASH`, or the name of a state (`...:#HASH`). No
/// value of a request has such a form, because a `#` in it is escaped.
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

/// Escapes the characters that no key contains. An escape that is in the text already stays.
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
            // In a Redis Cluster, braces would be a hash tag; `#` would be read as the start of a hash.
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
