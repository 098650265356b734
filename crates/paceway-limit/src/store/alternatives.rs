//! The ways in which one request can be made, such as with one of several accounts at a vendor. Decides nothing.

use super::{Checks, Decision};
use crate::algorithm::Micros;
use smallvec::SmallVec;
use std::sync::Arc;

/// One way to make a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alternative {
    /// The number by which its caller knows it.
    pub id: u8,
    /// Its limiters.
    pub checks: Checks,
    /// It is taken only where the slots of those with smaller numbers come later than this, in µs.
    pub after: Micros,
}

/// The ways to make one request, of which the store takes the one with the earliest slot, and charges that alone. Among equal
/// slots it is the one whose limiters have most left, and then the first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alternatives {
    /// In the order of `after`.
    ways: Box<[Alternative]>,
    /// The limiters of all, one list after the other. A limiter that two of them have is listed twice.
    all: Checks,
}

/// The limiters that a request asks: those of the only way to make it, or those of several.
#[derive(Debug, Clone)]
pub enum Question {
    /// There is one way.
    Checks(Checks),
    /// The store chooses.
    Ways(Arc<Alternatives>),
}

/// One of the ways of a [`Question`].
#[derive(Debug, Clone, Copy)]
pub struct Way<'q> {
    /// As [`Alternative::id`]; `None` for the only way.
    pub id: Option<u8>,
    /// Its limiters.
    pub checks: &'q Checks,
    /// As [`Alternative::after`].
    pub after: Micros,
}

// === impl Alternatives ===

impl Alternatives {
    /// The most ways of one request: all of their states are read in each decision.
    pub const MOST: usize = 64;

    /// The ways of a request, each with an id of its own. `None` if there are none or more than [`Self::MOST`], or if one of them
    /// has no limiter.
    pub fn new(mut ways: Vec<Alternative>) -> Option<Self> {
        if !(1..=Self::MOST).contains(&ways.len()) || ways.iter().any(|way| way.checks.is_empty()) {
            return None;
        }
        ways.sort_by_key(|way| way.after);
        let all = ways.iter().flat_map(|way| way.checks.iter().cloned()).collect();
        Some(Self { ways: ways.into(), all })
    }

    /// The ways in the order in which a store looks at them.
    pub fn ways(&self) -> &[Alternative] {
        &self.ways
    }

    /// The limiters of the way that was `chosen`; those of the first if it has no such way.
    pub fn checks(&self, chosen: Option<u8>) -> &Checks {
        let way = self.ways.iter().find(|way| Some(way.id) == chosen);
        &way.unwrap_or(&self.ways[0]).checks
    }

    /// The limiters of all ways.
    pub fn all(&self) -> &Checks {
        &self.all
    }
}

// === impl Question ===

impl From<&Checks> for Question {
    fn from(checks: &Checks) -> Self {
        Self::Checks(checks.clone())
    }
}

impl From<&Arc<Alternatives>> for Question {
    fn from(among: &Arc<Alternatives>) -> Self {
        Self::Ways(among.clone())
    }
}

impl Question {
    /// The limiters that `decision` is about.
    pub fn checks_of(&self, decision: &Decision) -> &Checks {
        match self {
            Self::Checks(checks) => checks,
            Self::Ways(among) => among.checks(decision.chosen),
        }
    }

    /// The limiters of the first way.
    pub fn first(&self) -> &Checks {
        match self {
            Self::Checks(checks) => checks,
            Self::Ways(among) => among.checks(None),
        }
    }

    /// The ways in the order in which a store looks at them.
    pub fn ways(&self) -> SmallVec<[Way<'_>; 1]> {
        match self {
            Self::Checks(checks) => smallvec::smallvec![Way { id: None, checks, after: 0 }],
            Self::Ways(among) => {
                let ways = among.ways().iter();
                ways.map(|way| Way { id: Some(way.id), checks: &way.checks, after: way.after })
                    .collect()
            }
        }
    }

    /// The limiters that `decision` is about, taken out of the question.
    pub fn into_checks(self, decision: &Decision) -> Checks {
        match self {
            Self::Checks(checks) => checks,
            Self::Ways(among) => among.checks(decision.chosen).clone(),
        }
    }

    /// All limiters that a decision may be about.
    pub fn all(&self) -> &Checks {
        match self {
            Self::Checks(checks) => checks,
            Self::Ways(among) => among.all(),
        }
    }
}
