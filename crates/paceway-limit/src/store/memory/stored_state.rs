//! One place of the table of states: the print of a key, and its state in one cache line. Decides nothing.

use crate::{algorithm::timeline, probing};
use std::mem;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// The print of a key: 128 bits of hashes that no client can compute. Two keys with one print are less likely than an error
/// of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Print(pub(super) [u64; 2]);

/// A state with its print, in one cache line.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(64))]
pub(super) struct StoredState {
    pub(super) print: Print,
    /// The state of a token bucket.
    pub(super) packed: timeline::Packed,
    pub(super) kind: Kind,
    /// One more than the index of its part in the shard's `asides`; 0 if it has none there.
    pub(super) aside: u64,
}

/// The kind of a state: a packed token bucket, as [`Kind::FIRST`] plus the index of its pace in the shard, or another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Kind(u64);

// === impl Print ===

impl Print {
    pub(super) fn home(self) -> u64 {
        self.0[1]
    }
}

// === impl StoredState ===

impl StoredState {
    pub(super) fn home(&self) -> u64 {
        self.print.home()
    }

    /// The index of its part in the shard's `asides`.
    pub(super) fn place_aside(&self) -> Option<usize> {
        usize::try_from(self.aside.checked_sub(1)?).ok()
    }
}

/// A state whose bytes are all zero is an empty place.
impl probing::Place for StoredState {
    type Thing = Self;

    fn empty() -> Self {
        Self::new_zeroed()
    }

    fn get(&self) -> Option<&Self> {
        (self.kind != Kind::NONE).then_some(self)
    }

    fn get_mut(&mut self) -> Option<&mut Self> {
        (self.kind != Kind::NONE).then_some(self)
    }

    fn put(&mut self, thing: Self) {
        *self = thing;
    }

    fn take(&mut self) -> Option<Self> {
        let taken = mem::replace(self, Self::empty());
        taken.get().copied()
    }
}

// === impl Kind ===

impl Kind {
    const NONE: Self = Self(0);
    pub(super) const OTHER: Self = Self(1);
    const FIRST: u64 = 2;

    pub(super) fn of(pace: usize) -> Self {
        Self(pace as u64 + Self::FIRST)
    }

    pub(super) fn pace(self) -> Option<usize> {
        usize::try_from(self.0.checked_sub(Self::FIRST)?).ok()
    }
}
