//! The name of a request that waits in the queue of a limiter, in the form of a grant: the request has no permits that it
//! could name, because its slot can be exchanged.

use crate::algorithm::{Grant, reserve::Part};

/// The `born` of a grant that is none: every state was born later.
const PLACE: i64 = -1;

/// A request that waits in a [`Queue`](super::Queue).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place(pub u64);

// === impl Place ===

impl Place {
    /// The place of no request: their numbers are those of instants.
    pub const NONE: Self = Self(0);

    /// The grant that names the place.
    pub fn grant(self) -> Grant {
        Grant { whole: self.0.cast_signed(), ticks: 0, born: PLACE, aux: 0 }
    }

    /// The place that one of the parts of a decision names, with the index of that part; `None` if the slot is certain.
    pub fn among(parts: &[Part]) -> Option<(usize, Self)> {
        let mut parts = parts.iter().enumerate().filter(|(_, part)| part.at >= 0);
        parts.find_map(|(i, part)| Some((i, Self::of(part.grant)?)))
    }

    /// The place that a grant names; `None` if it names permits.
    pub fn of(grant: Grant) -> Option<Self> {
        (grant.born == PLACE).then_some(Self(grant.whole.cast_unsigned()))
    }
}
