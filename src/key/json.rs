//! The values of a JSON document that JSON pointers (RFC 6901) name. The document is read once, and no other part of it is
//! kept.

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use smallvec::SmallVec;
use std::fmt;

/// A JSON pointer such as `/usage/total_tokens`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct JsonPointer {
    text: String,
    /// The names between the slashes, with `~1` and `~0` read as `/` and `~`; at least one.
    names: Vec<String>,
}

/// The most names of a pointer.
const MAX_NAMES: usize = 32;

/// The value at a place: a text, a number or a truth value as text. `None` for `null`, an object or an array.
type Found = Option<String>;

/// Values by the place of their pointer.
type AllFound = SmallVec<[Found; 1]>;

/// Reads a document, and finds the values that names lead to.
struct Seek<'a, 's> {
    /// The pointers that lead into this part of the document; at least one.
    wanted: &'s [SoughtValue<'a>],
    found: &'s mut [Found],
    /// Refuses names that programs read differently.
    is_strict: bool,
}

/// The rest of the names of a pointer, and the place of its value.
#[derive(Clone, Copy)]
struct SoughtValue<'a> {
    names: &'a [String],
    place: usize,
}

/// The pointers that lead into one member or item. A single one needs no allocation.
type Within<'a> = SmallVec<[SoughtValue<'a>; 1]>;

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
        let found = seek(pointers, document, false);
        found.unwrap_or_else(|_| pointers.iter().map(|_| None).collect())
    }

    /// The same value in the body of a request, of which no upstream may read another one. `None` if the body is empty.
    ///
    /// # Errors
    ///
    /// A message for the caller: the body is not valid JSON in UTF-8, or has the name of a place twice or in another spelling.
    pub fn read(&self, body: &[u8]) -> Result<Option<String>, String> {
        if body.is_empty() {
            return Ok(None);
        }
        let unclear = |error: &dyn fmt::Display| {
            format!(
                "the body has to be JSON that can be read in one way alone, because a limiter reads it: {error}"
            )
        };
        // The parser looks at no text that it skips, and some programs take no document with such a one.
        std::str::from_utf8(body).map_err(|error| unclear(&error))?;
        let found = seek(&[self], body, true).map_err(|error| unclear(&error))?;
        Ok(found.into_iter().next().flatten())
    }
}

fn seek(
    pointers: &[&JsonPointer],
    document: &[u8],
    is_strict: bool,
) -> Result<AllFound, serde_json::Error> {
    let document = document.strip_prefix(BYTE_ORDER_MARK).unwrap_or(document);
    let mut reader = serde_json::Deserializer::from_slice(document);
    let wanted = pointers.iter().enumerate();
    let wanted: Within<'_> =
        wanted.map(|(place, pointer)| SoughtValue { names: &pointer.names, place }).collect();
    let mut found: AllFound = pointers.iter().map(|_| None).collect();
    Seek { wanted: &wanted, found: &mut found, is_strict }.deserialize(&mut reader)?;
    reader.end()?;
    Ok(found)
}

/// Whether some programs take two names for one: Go and .NET fold case, and protobuf takes `maxTokens` for `max_tokens`.
fn are_alike(one: &str, other: &str) -> bool {
    let plain = |name: &'_ str| -> String {
        let kept = name.chars().filter(|c| !matches!(c, '_' | '-'));
        kept.flat_map(char::to_uppercase).flat_map(char::to_lowercase).collect()
    };
    plain(one) == plain(other)
}

// === impl SoughtValue ===

impl<'a> SoughtValue<'a> {
    /// The same pointer within the member or item of this name.
    fn within(self, is_name: impl Fn(&str) -> bool) -> Option<Self> {
        let (first, names) = self.names.split_first()?;
        is_name(first).then_some(Self { names, ..self })
    }

    fn first(self) -> Option<&'a String> {
        self.names.first()
    }
}

// === impl Seek ===

impl<'de> DeserializeSeed<'de> for Seek<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<(), D::Error> {
        reader.deserialize_any(self)
    }
}

impl Seek<'_, '_> {
    /// Keeps a value that is no object and no array, as text.
    fn scalar<E: Error>(self, value: impl Fn() -> String) -> Result<(), E> {
        for wanted in self.wanted.iter().filter(|wanted| wanted.names.is_empty()) {
            self.found[wanted.place] = Some(value());
        }
        Ok(())
    }

    /// Refuses a name that is `seen` already, or that some programs take for one that is wanted.
    fn check_name<E: Error>(&self, name: &str, seen: &mut SmallVec<[usize; 1]>) -> Result<(), E> {
        for wanted in self.wanted {
            match wanted.first() {
                Some(first) if first == name && seen.contains(&wanted.place) => {
                    return Err(E::custom(format_args!("`{first}` comes twice")));
                }
                Some(first) if first == name => seen.push(wanted.place),
                Some(first) if are_alike(first, name) => {
                    let why = format_args!("a name is taken for `{first}` by some programs");
                    return Err(E::custom(why));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Seeks `within` a member or an item. The values of an earlier one with the same name are forgotten.
    fn part<'b, 't>(&'t mut self, within: &'t [SoughtValue<'b>]) -> Seek<'b, 't> {
        for wanted in within {
            self.found[wanted.place] = None;
        }
        Seek { wanted: within, found: self.found, is_strict: self.is_strict }
    }
}

impl<'de> Visitor<'de> for Seek<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<(), E> {
        self.scalar(|| value.to_string())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<(), E> {
        self.scalar(|| value.to_string())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<(), E> {
        self.scalar(|| value.to_string())
    }

    /// A whole number may be written `1e3` or `1000.0`; it is shown as `1000`. Zero has no sign.
    fn visit_f64<E: Error>(self, value: f64) -> Result<(), E> {
        self.scalar(|| (value + 0.0).to_string())
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<(), E> {
        self.scalar(|| value.to_owned())
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut members: A) -> Result<(), A::Error> {
        let mut seen = SmallVec::new();
        while let Some(name) = members.next_key::<std::borrow::Cow<'de, str>>()? {
            if self.is_strict {
                self.check_name(&name, &mut seen)?;
            }
            let within = self.wanted.iter().filter_map(|own| own.within(|first| first == name));
            let within: Within<'_> = within.collect();
            if within.is_empty() {
                members.next_value::<IgnoredAny>()?;
            } else {
                members.next_value_seed(self.part(&within))?;
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut items: A) -> Result<(), A::Error> {
        for i in 0.. {
            let within =
                self.wanted.iter().filter_map(|own| own.within(|name| index(name) == Some(i)));
            let within: Within<'_> = within.collect();
            let item = if within.is_empty() {
                items.next_element::<IgnoredAny>()?.map(drop)
            } else {
                items.next_element_seed(self.part(&within))?
            };
            if item.is_none() {
                break;
            }
        }
        Ok(())
    }
}

/// The index of an array that a name stands for: digits without leading zeros (RFC 6901 section 4).
pub(crate) fn index(name: &str) -> Option<usize> {
    let is_index =
        name == "0" || (!name.starts_with('0') && name.bytes().all(|byte| byte.is_ascii_digit()));
    name.parse().ok().filter(|_| is_index)
}

#[cfg(test)]
mod tests;
