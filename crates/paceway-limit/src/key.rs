//! The names of the states of limiters in a store. Asks no store.

use crate::algorithm::{STATE_VERSION, in_names};
use fnv::FnvHasher;
use std::hash::Hasher;

/// The names of the states of one limiter, or of one of its rates.
///
/// ```
/// use paceway_limit::key::StateNames;
///
/// let names = StateNames::new("paceway", "account", b'T', "search");
/// assert_eq!(names.of(None), "paceway:{account}:T:search");
/// assert_eq!(names.of(Some("acme")), "paceway:{account}:T:search:acme");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateNames {
    upto_tag: String,
    after_tag: String,
    is_spread: bool,
    /// One state for all keys.
    is_shared: bool,
}

// === impl StateNames ===

impl StateNames {
    /// Names of the form `PREFIX:{TAG}:LETTER:NAME`, followed by `:KEY` for a key. States with one `{tag}`
    /// are on one server of a Redis Cluster, so one call can decide on them together.
    pub fn new(prefix: &str, tag: &str, letter: u8, name: &str) -> Self {
        let kind = format!("{}{}", char::from(letter), in_names(STATE_VERSION));
        Self {
            upto_tag: format!("{prefix}:{{{tag}"),
            after_tag: format!("}}:{kind}:{name}"),
            is_spread: false,
            is_shared: false,
        }
    }

    /// The same names with 64 tags in place of one, for keys that are decided on one by one.
    pub fn spread(self) -> Self {
        Self { is_spread: true, ..self }
    }

    /// The same names, without keys: all calls share one state, whatever their keys.
    pub fn shared(self) -> Self {
        Self { is_shared: true, ..self }
    }

    /// The same names, for a state of each key.
    pub fn per_key(self) -> Self {
        Self { is_shared: false, ..self }
    }

    /// Whether all calls share one state, whatever their keys.
    pub fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// Whether each state is on the server of a Redis Cluster that has the state of the same key by the `other` names.
    pub fn share_tags(&self, other: &Self) -> bool {
        let of = |names: &Self| (names.is_spread, names.is_spread && names.is_shared);
        self.upto_tag == other.upto_tag && of(self) == of(other)
    }

    /// The name of the state of `key`; without a key, of the state that all calls share.
    pub fn of(&self, key: Option<&str>) -> String {
        let key = key.filter(|_| !self.is_shared);
        let key_len = key.map_or(0, |key| key.len() + ":.00".len());
        let mut name = String::with_capacity(self.upto_tag.len() + self.after_tag.len() + key_len);
        name.push_str(&self.upto_tag);
        if let Some(key) = key.filter(|_| self.is_spread) {
            let number = spread(key);
            name.push('.');
            name.extend([b'0' + number / 10, b'0' + number % 10].map(char::from));
        }
        name.push_str(&self.after_tag);
        if let Some(key) = key {
            name.push(':');
            name.push_str(key);
        }
        name
    }

    /// The beginning of the names of all states, whatever their keys. Names of other states may have it, too.
    pub fn beginning(&self) -> &str {
        &self.upto_tag
    }

    /// The key of the state `name`; `None` if it is the state of another limiter, and `Some(None)` if it has no key.
    ///
    /// ```
    /// # use paceway_limit::key::StateNames;
    /// let names = StateNames::new("paceway", "account", b'T', "search").spread();
    /// assert_eq!(names.key_in(&names.of(Some("acme"))), Some(Some("acme")));
    /// assert_eq!(names.key_in(&names.of(None)), Some(None));
    /// assert_eq!(names.key_in("paceway:{account}:T:searches"), None);
    /// ```
    pub fn key_in<'n>(&self, name: &'n str) -> Option<Option<&'n str>> {
        let rest = name.strip_prefix(&self.upto_tag)?;
        let is_number =
            |text: &str| text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
        let numbered = rest.strip_prefix('.').and_then(|rest| rest.split_at_checked(2));
        let rest = match numbered.filter(|(number, _)| self.is_spread && is_number(number)) {
            Some((_, rest)) => rest,
            None => rest,
        };
        match rest.strip_prefix(&self.after_tag)? {
            "" => Some(None),
            rest => rest.strip_prefix(':').map(Some),
        }
    }
}

/// A number below 64 that depends on the key alone, on every machine, for spreading keys over a cluster:
/// FNV-1a, and the upper bits of a multiplication (Knuth, The Art of Computer Programming, volume 3, section
/// 6.4), because the upper bits of FNV hardly depend on the last characters.
fn spread(key: &str) -> u8 {
    let mut fnv = FnvHasher::default();
    fnv.write(key.as_bytes());
    (fnv.finish().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58) as u8
}
