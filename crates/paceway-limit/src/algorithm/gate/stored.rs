//! A gate as the Lua twin keeps it, ahead of the state of its limiter.

use super::Gate;
use crate::algorithm::stored::StoredBytes;

/// The first byte of a stored gate.
pub(in crate::algorithm) const LETTER: u8 = b'V';

// === impl Gate ===

impl Gate {
    /// Reads a gate as the Lua twin writes it, ahead of a state.
    pub(in crate::algorithm) fn read(bytes: &mut StoredBytes<'_>) -> Option<Self> {
        let [letter] = bytes.bytes()?;
        let [until, from, origin, first, spent, last, unused, used] = bytes.integers()?;
        let [knee, written, unit, clear, even, left, reset] = bytes.integers()?;
        let [early] = bytes.bytes()?;
        let (status, holes) = (bytes.short()?, usize::from(bytes.short()?));
        let holes = bytes.list(holes)?.into_iter().map(|[start, end]| (start, end)).collect();
        let has_curve = knee == 0 || unit >= 1 && written >= 1;
        (letter == LETTER && knee >= 0 && has_curve).then_some(Self {
            until,
            from,
            origin,
            first,
            spent,
            holes,
            last,
            unused,
            knee,
            used,
            written,
            unit,
            clear,
            even,
            early,
            left,
            reset,
            status,
        })
    }
}
