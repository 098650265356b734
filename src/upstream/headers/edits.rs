//! Makes the changes in headers that the configuration asks for. Knows nothing of the changes that HTTP asks for.

use super::Replacement;
use http::{HeaderMap, HeaderName, HeaderValue, header::Entry};

/// The changes that the configuration makes to the headers of an upstream or a route.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules {
    /// The changes of requests, made after all changes of the gateway itself.
    pub request: Edits,
    /// The changes of responses, made after all changes of the gateway itself.
    pub response: Edits,
    /// The changes of the answers that the gateway makes itself, such as a 429.
    pub own: Edits,
}

/// A list of changes of one message's headers: fields are removed first, then replaced, set and added.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Edits {
    /// The names whose fields are removed.
    pub remove: Vec<HeaderName>,
    /// The names whose values begin in another way from then on.
    pub replace: Vec<(HeaderName, Replacement)>,
    /// Fields that replace all fields of the same name.
    pub set: Vec<(HeaderName, HeaderValue)>,
    /// Fields that are put after those of the same name.
    pub add: Vec<(HeaderName, HeaderValue)>,
}

// === impl Rules ===

impl Rules {
    /// Whether no message is changed.
    pub fn is_empty(&self) -> bool {
        let Self { request, response, own } = self;
        request.is_empty() && response.is_empty() && own.is_empty()
    }
}

// === impl Edits ===

impl Edits {
    /// The names of the fields that the list changes.
    pub fn names(&self) -> impl Iterator<Item = &HeaderName> {
        let values = self.set.iter().chain(&self.add).map(|(name, _)| name);
        self.remove.iter().chain(self.replace.iter().map(|(name, _)| name)).chain(values)
    }

    /// Whether the list is empty, so that headers need not be visited.
    pub fn is_empty(&self) -> bool {
        let Self { remove, replace, set, add } = self;
        remove.is_empty() && replace.is_empty() && set.is_empty() && add.is_empty()
    }

    /// Makes the changes: removes, then replaces, sets and adds.
    pub fn apply(&self, headers: &mut HeaderMap) {
        self.apply_some(headers, |_| true);
    }

    /// The same for an answer to a client of the forward proxy: the URLs of the upstream stay, because the client asks for them.
    pub fn apply_to_forwarded(&self, headers: &mut HeaderMap) {
        self.apply_some(headers, |replacement| !replacement.is_auto);
    }

    fn apply_some(&self, headers: &mut HeaderMap, replaces: impl Fn(&Replacement) -> bool) {
        for name in &self.remove {
            headers.remove(name);
        }
        for (name, replacement) in self.replace.iter().filter(|(_, it)| replaces(it)) {
            let Ok(Entry::Occupied(mut values)) = headers.try_entry(name) else { continue };
            for value in values.iter_mut() {
                if let Some(new) = replacement.apply(value) {
                    *value = new;
                }
            }
        }
        for (name, value) in &self.set {
            headers.insert(name, value.clone());
        }
        for (name, value) in &self.add {
            headers.append(name, value.clone());
        }
    }
}
