//! The pointers into a document that is being read: the containers on their way, and the values that were found. Knows no
//! grammar.

use super::{
    AllFound, Found, JsonPointer, are_alike,
    fault::JsonFaultKind::{self as Kind, Alike, Long, Twice, Value},
    index,
};
use serde::de::{Deserializer, Error, Visitor};
use smallvec::SmallVec;
use std::{
    borrow::{Borrow, Cow},
    fmt,
};

/// The most bytes of a text or a number on the way of a pointer or at its end, as it is written.
const MAX_TEXT: usize = 64 << 10;

/// How documents are read that have a name twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reading {
    /// They are refused, where the name is one on the way of a pointer, and so are other spellings of it and texts that are
    /// not UTF-8.
    OneWay,
    /// The last member counts.
    LastCounts,
}

/// The state between two values, names and ends of containers.
#[derive(Debug)]
pub(super) struct Seek {
    reading: Reading,
    /// The containers on the way of a pointer, the outermost first.
    levels: SmallVec<[Level; 1]>,
    /// The pointers that lead to the value that comes next or is being read; `None` if it is passed over.
    sought: Option<Places>,
    /// The text, number or word that is being read, if it matters.
    text: Vec<u8>,
    found: AllFound,
    /// The values that nothing can change.
    known: SmallVec<[bool; 4]>,
}

/// Pointers by their places.
type Places = SmallVec<[usize; 2]>;

/// A container on the way of a pointer.
#[derive(Debug)]
struct Level {
    is_object: bool,
    /// The pointers that lead into it.
    places: Places,
    /// The pointers of whose next name there was a member.
    seen: Places,
    /// The items before the present one.
    items: usize,
}

/// Reads a value that is no object and no array.
struct Scalar;

// === impl Seek ===

impl Seek {
    /// Seeks as many pointers as `count` says.
    pub(super) fn new(count: usize, reading: Reading) -> Self {
        Self {
            reading,
            levels: SmallVec::new(),
            sought: Some((0..count).collect()),
            text: Vec::new(),
            found: (0..count).map(|_| None).collect(),
            known: (0..count).map(|_| false).collect(),
        }
    }

    pub(super) fn is_strict(&self) -> bool {
        self.reading == Reading::OneWay
    }

    pub(super) fn is_known(&self) -> bool {
        self.known.iter().all(|known| *known)
    }

    pub(super) fn knows(&self, place: usize) -> bool {
        self.known[place]
    }

    pub(super) fn found(&self) -> &AllFound {
        &self.found
    }

    /// The number of containers on the way of a pointer that the present place is in.
    pub(super) fn depth(&self) -> usize {
        self.levels.len()
    }

    /// Whether the innermost of them is an object; `None` outside of all.
    pub(super) fn is_in_object(&self) -> Option<bool> {
        self.levels.last().map(|level| level.is_object)
    }

    /// Whether a pointer leads to the value that comes next or is being read.
    pub(super) fn seeks(&self) -> bool {
        self.sought.is_some()
    }

    /// Begins a text, a number or a word.
    pub(super) fn begin_text(&mut self) {
        self.text.clear();
    }

    /// Adds bytes to it.
    pub(super) fn extend_text(&mut self, bytes: &[u8]) -> Result<(), Kind> {
        if self.text.len() + bytes.len() > MAX_TEXT {
            return Err(Long);
        }
        self.text.extend_from_slice(bytes);
        Ok(())
    }

    /// Ends a value that is no container.
    pub(super) fn end_scalar<P: Borrow<JsonPointer>>(
        &mut self,
        pointers: &[P],
    ) -> Result<(), Kind> {
        let Some(places) = self.sought.take() else { return Ok(()) };
        let mut reader = serde_json::Deserializer::from_slice(&self.text);
        let value = reader.deserialize_any(Scalar).map_err(|_| Value)?;
        let depth = self.levels.len();
        for place in places {
            let is_there = pointers[place].borrow().names.len() == depth;
            self.learn(place, is_there.then(|| value.clone()).flatten());
        }
        Ok(())
    }

    /// Begins a container. False if no pointer leads to it: it is passed over.
    pub(super) fn open<P: Borrow<JsonPointer>>(&mut self, pointers: &[P], is_object: bool) -> bool {
        let depth = self.levels.len();
        let Some(mut places) = self.sought.take() else { return false };
        places.retain(|place| {
            let leads_on = pointers[*place].borrow().names.len() > depth;
            if !leads_on {
                self.learn(*place, None);
            }
            leads_on
        });
        self.levels.push(Level { is_object, places, seen: Places::new(), items: 0 });
        true
    }

    /// Ends the innermost container on the way of a pointer.
    pub(super) fn close(&mut self) {
        for place in self.levels.pop().map(|level| level.places).unwrap_or_default() {
            if !self.known[place] {
                self.learn(place, None);
            }
        }
    }

    /// Begins an item of an array: finds the pointers that lead to it.
    pub(super) fn begin_item<P: Borrow<JsonPointer>>(&mut self, pointers: &[P]) {
        let depth = self.levels.len();
        let Some(level) = self.levels.last_mut() else { return };
        let item = level.items;
        level.items += 1;
        let leads = |place: &&usize| {
            let name = pointers[**place].borrow().names.get(depth - 1);
            name.and_then(|name| index(name)) == Some(item)
        };
        let places = level.places.iter().filter(leads).copied().collect();
        self.seek(places);
    }

    /// Ends the name of a member: finds the pointers that lead to its value.
    pub(super) fn end_name<P: Borrow<JsonPointer>>(&mut self, pointers: &[P]) -> Result<(), Kind> {
        let (depth, is_strict) = (self.levels.len(), self.is_strict());
        let Some(level) = self.levels.last_mut() else { return Ok(()) };
        let name = decode_name(&self.text).ok_or(Value)?;
        let mut places = Places::new();
        for &place in &level.places {
            let wanted = &pointers[place].borrow().names[depth - 1];
            if *wanted == *name {
                places.push(place);
            } else if is_strict && are_alike(wanted, &name) {
                return Err(Alike);
            }
        }
        if is_strict {
            if places.iter().any(|place| level.seen.contains(place)) {
                return Err(Twice);
            }
            level.seen.extend_from_slice(&places);
        }
        self.seek(places);
        Ok(())
    }

    /// Learns that an empty document has no part.
    pub(super) fn learn_missing(&mut self) {
        self.known.iter_mut().for_each(|known| *known = true);
    }

    /// Seeks `places` in the value that comes next. The values of an earlier member with its name are forgotten.
    fn seek(&mut self, places: Places) {
        for place in &places {
            self.found[*place] = None;
            self.known[*place] = false;
        }
        self.sought = (!places.is_empty()).then_some(places);
    }

    fn learn(&mut self, place: usize, value: Found) {
        self.found[place] = value;
        self.known[place] = true;
    }
}

/// Reads a name without its quotes; `None` if it has half of a surrogate pair.
fn decode_name(text: &[u8]) -> Option<Cow<'_, str>> {
    if text.contains(&b'\\') {
        let quoted = [b"\"", text, b"\""].concat();
        serde_json::from_slice(&quoted).ok().map(Cow::Owned)
    } else {
        std::str::from_utf8(text).ok().map(Cow::Borrowed)
    }
}

// === impl Scalar ===

impl Visitor<'_> for Scalar {
    type Value = Found;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text, a number or a word")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Found, E> {
        Ok(Some(value.to_string()))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Found, E> {
        Ok(Some(value.to_string()))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Found, E> {
        Ok(Some(value.to_string()))
    }

    /// A whole number may be written `1e3` or `1000.0`; it is shown as `1000`. Zero has no sign.
    fn visit_f64<E: Error>(self, value: f64) -> Result<Found, E> {
        Ok(Some((value + 0.0).to_string()))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Found, E> {
        Ok(Some(value.to_owned()))
    }

    fn visit_unit<E: Error>(self) -> Result<Found, E> {
        Ok(None)
    }
}
