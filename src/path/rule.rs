//! The part of a route that says which paths it takes: a suffix or a whole path. Reads neither.

use super::{suffix::Suffix, template::PathTemplate};
use std::sync::Arc;

/// The paths that a route takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PathRule {
    /// Paths that end in a suffix.
    Suffix(Suffix),
    /// Whole paths. They outrank every suffix.
    Template(Arc<PathTemplate>),
    /// None: the route is for descriptors of Envoy.
    Descriptor,
}

// === impl PathRule ===

impl PathRule {
    /// The template, if the rule is for whole paths.
    pub fn template(&self) -> Option<&Arc<PathTemplate>> {
        match self {
            Self::Suffix(_) | Self::Descriptor => None,
            Self::Template(template) => Some(template),
        }
    }

    /// Whether both rules take the same paths. The names of parameters make no difference.
    pub fn takes_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Suffix(own), Self::Suffix(theirs)) => own == theirs,
            (Self::Template(own), Self::Template(theirs)) => own.matches_same(theirs),
            _ => false,
        }
    }

    /// Whether both rules take the same paths for an origin that folds case.
    pub fn is_folded(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Suffix(own), Self::Suffix(theirs)) => own.is_folded(theirs),
            (Self::Template(own), Self::Template(theirs)) => own.is_folded(theirs),
            _ => false,
        }
    }

    /// Whether the rule has a character that an origin without regard to case takes for another one.
    pub fn is_cased(&self) -> bool {
        match self {
            Self::Suffix(suffix) => suffix.folded() != *suffix,
            Self::Template(template) => !template.matches_same(&template.folded()),
            Self::Descriptor => false,
        }
    }

    /// Whether the rule takes a path in normal form.
    pub fn takes(&self, path: &[u8]) -> bool {
        match self {
            Self::Suffix(Suffix::Any) => true,
            Self::Suffix(Suffix::Segments(bytes) | Suffix::Characters(bytes)) => {
                path.ends_with(bytes)
            }
            Self::Template(template) => template.matches(path),
            Self::Descriptor => false,
        }
    }
}
