//! A parser of whole documents, to compare the scanner with.

use super::super::{AllFound, BYTE_ORDER_MARK, Found, JsonPointer, are_alike, index};
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use smallvec::SmallVec;
use std::fmt;

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

pub(super) fn seek(
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
