//! The values of JSON documents that JSON pointers (RFC 6901) name. No other part of a document is kept.

mod fault;
mod number;
mod scan;
mod scanner;
mod seek;
mod utf8;

pub use fault::JsonFault;
pub use scanner::{JsonScanner, JsonValues};

use scan::Scan;
use seek::{Reading, Seek};
use smallvec::SmallVec;

/// A JSON pointer such as `/usage/total_tokens`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct JsonPointer {
    text: String,
    /// The names between the slashes, with `~1` and `~0` read as `/` and `~`; at least one.
    names: Vec<String>,
}

/// The value at a place: a text, a number or a truth value as text. `None` for `null`, an object, an array, or nothing.
type Found = Option<String>;

/// Values by the place of their pointer.
type AllFound = SmallVec<[Found; 1]>;

/// The most names of a pointer.
const MAX_NAMES: usize = 32;

/// The mark that some programs write before a text in UTF-8, and most skip.
pub(crate) const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

// === impl JsonPointer ===

impl JsonPointer {
    /// Reads a pointer such as `/usage/total_tokens`.
    ///
    /// # Errors
    ///
    /// The reason, worded so that it completes a sentence that begins with the text: "`TEXT` needs ...".
    pub fn parse(text: &str) -> Result<Self, String> {
        let Some(names) = text.strip_prefix('/') else {
            return Err(
                "needs a JSON pointer that begins with `/`, as in `/usage/total_tokens`".into()
            );
        };
        let is_escape = |after: &str| after.starts_with(['0', '1']);
        if text.split('~').skip(1).any(|after| !is_escape(after)) {
            return Err("has a `~` that is neither `~0` (a `~`) nor `~1` (a `/`)".into());
        }
        let names = names.split('/').map(|name| name.replace("~1", "/").replace("~0", "~"));
        let names: Vec<_> = names.collect();
        if names.len() > MAX_NAMES {
            return Err(format!("has a JSON pointer of more than {MAX_NAMES} names"));
        }
        Ok(Self { text: text.to_owned(), names })
    }

    /// The pointer as it was written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The names between the slashes, with `~1` and `~0` read as `/` and `~`.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// The name at the end, such as `total_tokens`.
    pub fn last(&self) -> &str {
        self.names.last().map_or("", String::as_str)
    }

    #[cfg(test)]
    fn find(&self, document: &[u8]) -> Option<String> {
        Self::find_all(&[self], document).pop()?
    }

    /// The value of each pointer in a document: a text, or a number or truth value as text. `None` if the document is not
    /// valid, or has `null`, an object, an array or nothing there. The last one of several members with one name counts.
    pub fn find_all(pointers: &[&Self], document: &[u8]) -> SmallVec<[Option<String>; 1]> {
        let mut scan = Scan::new(Seek::new(pointers.len(), Reading::LastCounts));
        match scan.feed(pointers, document).and_then(|()| scan.end(pointers)) {
            Ok(()) => scan.seek().found().clone(),
            Err(_) => pointers.iter().map(|_| None).collect(),
        }
    }
}

/// Whether some programs take two names for one: Go and .NET fold case, and protobuf takes `maxTokens` for `max_tokens`.
fn are_alike(one: &str, other: &str) -> bool {
    let plain = |name: &'_ str| -> String {
        let kept = name.chars().filter(|c| !matches!(c, '_' | '-'));
        kept.flat_map(char::to_uppercase).flat_map(char::to_lowercase).collect()
    };
    plain(one) == plain(other)
}

/// The index of an array that a name stands for: digits without leading zeros (RFC 6901 section 4).
pub(crate) fn index(name: &str) -> Option<usize> {
    let is_index =
        name == "0" || (!name.starts_with('0') && name.bytes().all(|byte| byte.is_ascii_digit()));
    name.parse().ok().filter(|_| is_index)
}

#[cfg(test)]
mod tests;
