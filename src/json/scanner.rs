//! Seeks parts in a JSON document that comes in pieces, and refuses it as soon as programs may read it in different ways.
//! Keeps no piece.

use super::{
    AllFound, JsonFault, JsonPointer,
    scan::Scan,
    seek::{Reading, Seek},
};
use std::sync::Arc;

/// Reads one document. It checks the document to its end, also when all parts are known.
#[derive(Debug)]
pub struct JsonScanner {
    pointers: Arc<[JsonPointer]>,
    scan: Scan,
}

/// The values of the parts of one document.
#[derive(Debug, Clone)]
pub struct JsonValues {
    pointers: Arc<[JsonPointer]>,
    found: AllFound,
    /// By the place of a pointer: its part was not reached.
    unseen: Box<[bool]>,
}

// === impl JsonScanner ===

impl JsonScanner {
    /// Seeks `pointers` in a document that no program may read in another way.
    pub fn new(pointers: &Arc<[JsonPointer]>) -> Self {
        let scan = Scan::new(Seek::new(pointers.len(), Reading::OneWay));
        Self { pointers: pointers.clone(), scan }
    }

    /// Reads the next piece.
    ///
    /// # Errors
    ///
    /// The document is no JSON in UTF-8, has the name of a place twice or in another spelling, is nested deeper than 1,024
    /// levels, or has a text of more than 64 KiB where a part is sought. Nothing can be read after an error.
    pub fn feed(&mut self, piece: &[u8]) -> Result<(), JsonFault> {
        self.scan.feed(&self.pointers, piece)
    }

    /// Ends the document. A document without a byte has no part.
    ///
    /// # Errors
    ///
    /// It is not complete.
    pub fn end(&mut self) -> Result<(), JsonFault> {
        self.scan.end(&self.pointers)
    }

    /// Whether no later piece can change a value.
    pub fn is_known(&self) -> bool {
        self.scan.seek().is_known()
    }

    /// The values as far as they are known.
    pub fn values(&self) -> JsonValues {
        let (places, seek) = (0..self.pointers.len(), self.scan.seek());
        JsonValues {
            pointers: self.pointers.clone(),
            found: seek.found().clone(),
            unseen: places.map(|place| !seek.knows(place)).collect(),
        }
    }
}

// === impl JsonValues ===

impl JsonValues {
    /// The values of a whole document.
    ///
    /// # Errors
    ///
    /// Those of [`JsonScanner::feed`] and [`JsonScanner::end`].
    pub fn of(pointers: &Arc<[JsonPointer]>, document: &[u8]) -> Result<Self, JsonFault> {
        let mut scanner = JsonScanner::new(pointers);
        scanner.feed(document)?;
        scanner.end()?;
        Ok(scanner.values())
    }

    /// The value of a part: a text, or a number or truth value as text. `None` for `null`, an object, an array, or nothing.
    pub fn get(&self, pointer: &JsonPointer) -> Option<&str> {
        let place = self.pointers.iter().position(|own| own == pointer)?;
        self.found[place].as_deref()
    }

    /// Whether the document was not read as far as the part with this place among the pointers.
    pub fn is_unseen(&self, place: usize) -> bool {
        self.unseen[place]
    }
}
