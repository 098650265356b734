//! Answers that an upstream is asked to confirm, by the request and its headers. The bytes of all of them are bounded; the
//! one that was used longest ago leaves first. Gives no answer out that the upstream did not confirm: the caller has to ask.

use super::{
    Identity, Variant,
    rules::has_directive,
    update::{remove_own, storable, update},
    waits::Counted,
};
use crate::upstream::{KeptBuffer, KeptBytes, KeptShare};
use bytes::Bytes;
use hashlink::LinkedHashMap;
use http::{
    HeaderMap, Response,
    header::{ETAG, IF_MODIFIED_SINCE, IF_NONE_MATCH, LAST_MODIFIED, VARY},
};
use parking_lot::Mutex;
use std::sync::Arc;

/// The part of the memory that one answer may have.
const PARTS: usize = 8;
/// The bytes that an entry needs besides the texts of its head and its body, roughly.
const ENTRY: usize = 512;
/// The most fields of a head that is kept on, as of an upstream's answer: each confirmation may add some.
const MOST_FIELDS: usize = 100;
/// The bytes that a field needs besides its texts, roughly.
const FIELD: usize = 64;

/// The kept answers of an upstream or a route.
#[derive(Debug)]
pub struct KeptAnswers {
    memory: usize,
    /// From the one that was used longest ago.
    answers: Mutex<LinkedHashMap<Identity, Arc<KeptAnswer>>>,
    /// Counts the bytes of all answers that are kept, that are being read to be kept, and that clients still read.
    bound: Arc<KeptBytes>,
}

/// A kept answer, with a status of 200.
#[derive(Debug)]
pub struct KeptAnswer {
    head: Response<()>,
    variant: Variant,
    body: Bytes,
    _share: KeptShare,
}

/// An answer that is being read to be kept.
#[derive(Debug)]
pub struct Keeping {
    of: Arc<KeptAnswers>,
    identity: Identity,
    head: Response<()>,
    variant: Variant,
    share: KeptShare,
    body: KeptBuffer,
}

// === impl KeptAnswers ===

impl KeptAnswers {
    /// An empty memory of so many bytes.
    pub fn new(memory: usize) -> Arc<Self> {
        let bound = KeptBytes::new(memory);
        Arc::new(Self { memory, answers: Mutex::default(), bound })
    }

    /// Its bytes.
    pub fn memory(&self) -> usize {
        self.memory
    }

    /// The answer to a request with this identity and these headers that was kept last.
    pub fn get(&self, identity: Identity, request: &HeaderMap) -> Option<Arc<KeptAnswer>> {
        let mut answers = self.answers.lock();
        let found = answers.to_back(&identity)?;
        found.variant.matches(request).then(|| found.clone())
    }

    /// Forgets an answer.
    pub fn forget(&self, identity: Identity) {
        let gone = self.answers.lock().remove(&identity);
        drop(gone);
    }

    /// Begins to keep an answer whose body comes. `None` if it is none to be kept, or if there is no room for it.
    pub fn begin(
        self: &Arc<Self>,
        identity: Identity,
        request: &HeaderMap,
        answer: &Response<()>,
    ) -> Option<Keeping> {
        let variant = Variant::of(answer.headers(), request)?;
        let head = storable(answer);
        let share = self.room(bytes_of(&head, &variant))?;
        let body = KeptBuffer::new(self.bound.share());
        Some(Keeping { of: self.clone(), identity, head, variant, share, body })
    }

    /// A share of so many bytes, for which other answers leave.
    fn room(&self, bytes: usize) -> Option<KeptShare> {
        let mut share = self.bound.share();
        while !share.grow(bytes) {
            self.evict()?;
        }
        Some(share)
    }

    /// Forgets the answer that was used longest ago; `None` if there is none.
    fn evict(&self) -> Option<()> {
        let oldest = self.answers.lock().pop_front();
        oldest.map(drop)
    }

    fn put(&self, identity: Identity, answer: KeptAnswer) {
        let former = self.answers.lock().insert(identity, Arc::new(answer));
        drop(former);
    }

    /// The kept answer with the head of the 304 that confirms it, for the caller who asked. It is kept on with that head, unless
    /// the 304 says that it must not be kept, or is about another one.
    pub fn confirm(
        &self,
        identity: Identity,
        kept: &KeptAnswer,
        confirmation: &HeaderMap,
    ) -> Response<()> {
        let mut own = kept.head.clone();
        let tags = own.headers().get(ETAG).zip(confirmation.get(ETAG));
        let varies = confirmation.get(VARY).is_some_and(|new| own.headers().get(VARY) != Some(new));
        let is_same = tags.is_none_or(|(own, new)| is_weakly_same(own.as_bytes(), new.as_bytes()));
        // The fields of a 304 about another answer are not those of this one (RFC 9111 section 4.3.4).
        if !is_same {
            self.forget(identity);
            return own;
        }
        update(own.headers_mut(), confirmation);
        let mut stored = own.clone();
        remove_own(stored.headers_mut());
        let room = self.room(bytes_of(&stored, &kept.variant));
        let may_stay = !varies
            && stored.headers().len() <= MOST_FIELDS
            && !has_directive(stored.headers(), "no-store");
        match room.filter(|_| may_stay) {
            Some(share) => {
                let (variant, body) = (kept.variant.clone(), kept.body.clone());
                self.put(identity, KeptAnswer { head: stored, variant, body, _share: share });
            }
            None => self.forget(identity),
        }
        own
    }
}

/// Whether two entity tags are of the same answer, as `If-None-Match` compares them (RFC 9110 section 8.8.3.2).
fn is_weakly_same(one: &[u8], other: &[u8]) -> bool {
    fn opaque(tag: &[u8]) -> &[u8] {
        tag.strip_prefix(b"W/").unwrap_or(tag)
    }
    opaque(one) == opaque(other)
}

/// The bytes of a head, roughly.
fn bytes_of(head: &Response<()>, variant: &Variant) -> usize {
    let fields = head.headers().iter();
    let fields = fields.map(|(name, value)| name.as_str().len() + value.len() + FIELD);
    ENTRY + fields.sum::<usize>() + variant.bytes()
}

// === impl KeptAnswer ===

impl KeptAnswer {
    /// Adds the condition by which the upstream confirms the answer (RFC 9111 section 4.3.1).
    pub fn add_condition(&self, request: &mut HeaderMap) {
        for (validator, condition) in [(ETAG, IF_NONE_MATCH), (LAST_MODIFIED, IF_MODIFIED_SINCE)] {
            if let Some(value) = self.head.headers().get(validator) {
                request.insert(condition, value.clone());
            }
        }
    }

    /// Its body.
    pub fn body(&self) -> Bytes {
        self.body.clone()
    }
}

// === impl Keeping ===

impl Keeping {
    /// Adds a piece of the body. False if the body is too large to be kept.
    pub fn add(&mut self, piece: &[u8]) -> bool {
        let most = self.of.memory / PARTS;
        loop {
            if self.body.extend(piece, most) {
                return true;
            }
            if self.body.bytes.len() + piece.len() > most || self.of.evict().is_none() {
                return false;
            }
        }
    }

    /// Keeps the answer, now that its body is whole.
    pub fn end(self) {
        let Self { of, identity, head, variant, share, body } = self;
        let body = Bytes::from_owner(Counted(body));
        of.put(identity, KeptAnswer { head, variant, body, _share: share });
    }
}

#[cfg(test)]
mod tests;
