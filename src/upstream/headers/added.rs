//! Holds the fields that the gateway adds to a request. They are written beside the client's headers without being
//! inserted among them, which would cost a search for each.

use http::{HeaderMap, HeaderName, HeaderValue};
use smallvec::SmallVec;
use std::borrow::Cow;

/// The fields that the gateway adds to one request, such as `Via` and `X-Forwarded-For`. Most values belong to the
/// connection or to the configuration, and are borrowed: a clone of the upstream's host, which all workers share, would
/// count in a cache line of all of them.
#[derive(Debug, Default)]
pub struct AddedHeaders<'a> {
    /// Each of these replaces all of the client's fields of its name.
    set: SmallVec<[AddedField<'a>; 6]>,
    /// Each of these is written after the client's fields of its name.
    added: SmallVec<[AddedField<'a>; 1]>,
}

type AddedField<'a> = (&'static HeaderName, Cow<'a, HeaderValue>);

// === impl AddedHeaders ===

impl<'h> AddedHeaders<'h> {
    /// Adds a field in place of all that the client sent under this name.
    pub fn set(&mut self, name: &'static HeaderName, value: Cow<'h, HeaderValue>) {
        self.set.push((name, value));
    }

    /// Adds a field after those that the client sent under this name.
    pub fn add(&mut self, name: &'static HeaderName, value: Cow<'h, HeaderValue>) {
        self.added.push((name, value));
    }

    /// Inserts the fields into `headers`, for requests whose headers are changed further. No field is left here.
    pub fn merge_into(&mut self, headers: &mut HeaderMap) {
        for (name, value) in self.set.drain(..) {
            headers.insert(name, value.into_owned());
        }
        for (name, value) in self.added.drain(..) {
            headers.append(name, value.into_owned());
        }
    }

    /// All fields of a request whose client sent `headers`, in the order in which they are written: those that replace
    /// others first, as servers look for `Host` first.
    pub fn with<'a>(
        &'a self,
        headers: &'a HeaderMap,
    ) -> impl Iterator<Item = (&'a HeaderName, &'a HeaderValue)> {
        let stays =
            |(name, _): &(&HeaderName, &HeaderValue)| !self.set.iter().any(|(own, _)| own == name);
        let set = self.set.iter().map(|(name, value)| (*name, &**value));
        let added = self.added.iter().map(|(name, value)| (*name, &**value));
        set.chain(headers.iter().filter(stays)).chain(added)
    }

    /// The field that replaces the client's of this name, for a second attempt at another host.
    pub fn get_mut(&mut self, name: &HeaderName) -> Option<&mut HeaderValue> {
        self.set.iter_mut().find(|(own, _)| *own == name).map(|(_, value)| value.to_mut())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    static NAMES: [HeaderName; 4] =
        [http::header::HOST, http::header::VIA, http::header::TE, http::header::ACCEPT];

    proptest! {
        #[test]
        fn written_headers_equal_merged_headers(
            sent in prop::collection::vec((0..4usize, 0..9u32), 0..6),
            set in prop::collection::hash_map(0..4usize, 0..9u32, 0..3),
            added in prop::collection::vec((0..4usize, 0..9u32), 0..3),
        ) {
            let mut headers = HeaderMap::new();
            for (name, value) in sent {
                headers.append(&NAMES[name], value.into());
            }
            let mut own = AddedHeaders::default();
            set.into_iter().for_each(|(name, value)| own.set(&NAMES[name], Cow::Owned(value.into())));
            added.into_iter().for_each(|(name, value)| own.add(&NAMES[name], Cow::Owned(value.into())));
            let written: HeaderMap =
                own.with(&headers).map(|(name, value)| (name.clone(), value.clone())).collect();
            own.merge_into(&mut headers);
            prop_assert_eq!(written, headers);
        }
    }
}
