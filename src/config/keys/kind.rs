//! The kind of values that a key takes: their bounds, and whether a message may show them. Reads no value.

use super::spec::Keys;
use crate::config::unit::{Bytes, Span};
use std::{fmt::Display, time::Duration};

/// The kind of values that a key takes.
#[derive(Clone, Copy)]
pub(in crate::config) enum Kind {
    /// A whole number.
    Number {
        least: u64,
        most: u64,
    },
    /// A number that need not be whole, or a percentage.
    Fraction,
    Duration {
        least: Duration,
        most: Duration,
    },
    /// A number of bytes.
    Size {
        least: u64,
        most: u64,
    },
    /// COUNT/PERIOD.
    Rate,
    /// `on` or `off`.
    Switch,
    /// One of a few words.
    Word(fn() -> Vec<&'static str>),
    /// IP:PORT.
    Address,
    /// A credential.
    Secret,
    /// A URL, which may hold credentials.
    Url,
    /// The path of a file.
    File,
    /// A text with parts of a request or an answer, such as `{header.x-shop}`.
    Template,
    /// Any other text.
    Text,
    List {
        least: u64,
        most: u64,
        of: &'static Self,
    },
    /// A map whose keys the user names.
    Map {
        least: u64,
        most: u64,
        of: &'static Self,
    },
    /// A map with the keys of a section.
    Section(&'static Keys),
}

/// A setting that is one of a few words.
pub(in crate::config) trait Choice: Copy + PartialEq + 'static {
    /// The words, in the order in which messages list them.
    const CHOICES: &'static [(&'static str, Self)];

    /// The word for this value.
    fn word(self) -> &'static str {
        let named = Self::CHOICES.iter().find(|(_, value)| *value == self);
        named.map_or("", |(word, _)| word)
    }
}

// === impl Kind ===

impl Kind {
    /// Whether a message may show a value of this kind that a variable has brought in. It may not if the value can be a
    /// secret, or have one as a part.
    pub(super) fn may_be_shown(&self) -> bool {
        match self {
            Self::Number { .. } | Self::Fraction | Self::Duration { .. } | Self::Size { .. } => {
                true
            }
            Self::Rate | Self::Switch | Self::Word(_) | Self::Address => true,
            Self::Secret | Self::Url | Self::File | Self::Template | Self::Text => false,
            Self::List { .. } | Self::Map { .. } | Self::Section(_) => false,
        }
    }

    /// Whether a value can be a map, also as an item of a list.
    pub(super) fn takes_map(&self) -> bool {
        match self {
            Self::List { of, .. } => of.takes_map(),
            kind => matches!(kind, Self::Map { .. } | Self::Section(_)),
        }
    }

    /// The keys of a value, or of its items or entries.
    pub(super) fn section(&self) -> Option<&'static Keys> {
        match self {
            Self::Section(keys) => Some(keys),
            Self::List { of, .. } | Self::Map { of, .. } => of.section(),
            _ => None,
        }
    }

    /// The bounds of a list or a map, if this many items are outside of them.
    pub(super) fn bounds_without(&self, items: usize) -> Option<[u64; 2]> {
        match *self {
            Self::List { least, most, .. } | Self::Map { least, most, .. } => {
                (!(least..=most).contains(&(items as u64))).then_some([least, most])
            }
            _ => None,
        }
    }

    /// The least and the greatest value as users write them, for a kind that has them.
    pub(in crate::config) fn bounds(&self) -> Option<[String; 2]> {
        let written =
            |least: &dyn Display, most: &dyn Display| Some([least.to_string(), most.to_string()]);
        match self {
            Self::Number { least, most }
            | Self::List { least, most, .. }
            | Self::Map { least, most, .. } => written(least, most),
            Self::Size { least, most } => written(&Bytes::from(*least), &Bytes::from(*most)),
            Self::Duration { least, most } => written(&Span(*least), &Span(*most)),
            _ => None,
        }
    }
}

// === impl bool ===

impl Choice for bool {
    const CHOICES: &'static [(&'static str, Self)] = &[("on", true), ("off", false)];
}
