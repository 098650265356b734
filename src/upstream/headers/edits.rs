//! Makes the changes in headers that the configuration asks for. Knows nothing of the changes that HTTP asks for.

use http::{HeaderMap, HeaderName, HeaderValue};

/// The changes that the configuration makes to the headers of an upstream or a route.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules {
    /// The changes of requests, made after all changes of the gateway itself.
    pub request: Edits,
    /// The changes of responses, made after all changes of the gateway itself.
    pub response: Edits,
}

/// A list of changes of one message's headers: fields are removed first, then set, then added.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Edits {
    /// The names whose fields are removed.
    pub remove: Vec<HeaderName>,
    /// Fields that replace all fields of the same name.
    pub set: Vec<(HeaderName, HeaderValue)>,
    /// Fields that are put after those of the same name.
    pub add: Vec<(HeaderName, HeaderValue)>,
}

// === impl Rules ===

impl Rules {
    /// Whether neither requests nor responses are changed.
    pub fn is_empty(&self) -> bool {
        self.request.is_empty() && self.response.is_empty()
    }
}

// === impl Edits ===

impl Edits {
    /// Whether the list is empty, so that headers need not be visited.
    pub fn is_empty(&self) -> bool {
        self.remove.is_empty() && self.set.is_empty() && self.add.is_empty()
    }

    /// Makes the changes: removes, then sets, then adds.
    pub fn apply(&self, headers: &mut HeaderMap) {
        for name in &self.remove {
            headers.remove(name);
        }
        for (name, value) in &self.set {
            headers.insert(name, value.clone());
        }
        for (name, value) in &self.add {
            headers.append(name, value.clone());
        }
    }
}
