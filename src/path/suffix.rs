//! The suffix of a route: which paths end in it. Compares only paths in normal form.

use super::{
    origins::Paths,
    reading::{decode, fold, without_trailing},
    template,
};
use std::borrow::Cow;

/// The end that a path must have for a route to match it, as written in `suffix`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Suffix {
    /// `*` matches every path.
    Any,
    /// A suffix that starts with `/` matches whole segments, in normal form: `/search` matches `/v2/search`.
    Segments(Box<[u8]>),
    /// Any other suffix matches the last characters of the path, in normal form: `.json` matches `/v2/all.json`.
    Characters(Box<[u8]>),
}

// === impl Suffix ===

impl Suffix {
    /// Reads a suffix from a configuration without `paths`.
    ///
    /// # Errors
    ///
    /// The reason, if no path could ever end in this suffix.
    pub fn parse(text: &str) -> Result<Self, Cow<'static, str>> {
        Self::parse_for(text, &Paths::new(Some(false), Some(false), Some(false)))
    }

    /// Reads a suffix for origins that read paths as `paths` says: with `fold_case: on` it is in small letters.
    ///
    /// # Errors
    ///
    /// The reason, if no path could ever end in this suffix.
    pub fn parse_for(text: &str, paths: &Paths) -> Result<Self, Cow<'static, str>> {
        if text == "*" {
            return Ok(Self::Any);
        }
        if text.is_empty() {
            return Err("is empty; write \"*\" for every path".into());
        }
        if text.contains('*') {
            let below = template::below(text);
            let below = below.map_or(String::new(), |path| format!("; all paths below it: {path}"));
            return Err(format!(
                "may not hold `*`: a suffix is compared as written, and only \"*\" alone matches all{below}"
            )
            .into());
        }
        if text.contains(['?', '#', ';', '\\']) {
            return Err("holds one of ? # ; \\, which no path in normal form has".into());
        }
        if text.starts_with('/') {
            return Ok(Self::Segments(paths.normal(text).into_owned().into()));
        }
        if text.ends_with('/') || text.contains("//") {
            return Err(
                "can never match: paths are compared without double and trailing slashes".into()
            );
        }
        let mut characters = Vec::new();
        for (i, segment) in text.split('/').enumerate() {
            if i > 0 {
                characters.push(b'/');
                if matches!(segment, "." | "..") {
                    return Err(
                        "can never match: paths are compared with dot segments resolved".into()
                    );
                }
            }
            decode(segment.as_bytes(), paths.own(), &mut characters);
        }
        if paths.strips && without_trailing(&characters).len() < characters.len() {
            return Err(
                "can never match: paths are compared without dots and spaces at their ends".into(),
            );
        }
        let characters = if paths.folds() { fold(&characters) } else { characters };
        Ok(Self::Characters(characters.into()))
    }

    /// Returns the same suffix for paths whose case is folded: `/getUser` becomes `/getuser`.
    pub fn folded(&self) -> Self {
        match self {
            Self::Any => Self::Any,
            Self::Segments(bytes) => Self::Segments(fold(bytes).into()),
            Self::Characters(bytes) => Self::Characters(fold(bytes).into()),
        }
    }

    /// Whether `other` is the same suffix for an origin that folds case, as `/A` and `/a` are.
    pub fn is_folded(&self, other: &Self) -> bool {
        let is_same = |own: &[u8], other: &[u8]| {
            if own.is_ascii() && other.is_ascii() {
                own.eq_ignore_ascii_case(other)
            } else {
                fold(own) == fold(other)
            }
        };
        match (self, other) {
            (Self::Any, Self::Any) => true,
            (Self::Segments(own), Self::Segments(other))
            | (Self::Characters(own), Self::Characters(other)) => is_same(own, other),
            _ => false,
        }
    }

    /// The number of bytes that are compared. If several suffixes match a path, the longest one wins.
    pub fn len(&self) -> usize {
        match self {
            Self::Any => 0,
            Self::Segments(bytes) | Self::Characters(bytes) => bytes.len(),
        }
    }

    /// Whether every path matches, which is so for `*` alone.
    pub fn is_empty(&self) -> bool {
        *self == Self::Any
    }
}
