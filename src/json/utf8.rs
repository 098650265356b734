//! Checks that a text that comes in pieces is UTF-8. Keeps at most one unfinished character.

use smallvec::SmallVec;
use std::str::from_utf8;

/// A character that a piece has begun.
#[derive(Debug, Default)]
pub(super) struct Utf8Check {
    begun: SmallVec<[u8; 4]>,
}

// === impl Utf8Check ===

impl Utf8Check {
    /// Whether the text is UTF-8 up to the end of this piece, as far as its characters are complete.
    pub(super) fn accepts(&mut self, mut piece: &[u8]) -> bool {
        while let (false, Some((byte, after))) = (self.begun.is_empty(), piece.split_first()) {
            self.begun.push(*byte);
            piece = after;
            match from_utf8(&self.begun) {
                Ok(_) => self.begun.clear(),
                Err(error) if error.error_len().is_some() => return false,
                Err(_) => {}
            }
        }
        match from_utf8(piece) {
            Ok(_) => true,
            Err(error) if error.error_len().is_some() => false,
            Err(error) => {
                self.begun.extend_from_slice(&piece[error.valid_up_to()..]);
                true
            }
        }
    }

    /// Whether no character is unfinished.
    pub(super) fn is_whole(&self) -> bool {
        self.begun.is_empty()
    }
}
