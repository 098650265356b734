//! The metrics of a store's calls. The caller makes them, so that this crate chooses no names.

use crate::store::StoreError;
use metrics::{Counter, Histogram};

/// The metrics of a store.
#[derive(Debug, Clone)]
pub struct StoreMetrics {
    /// The time in seconds of each call that was answered.
    pub seconds: Histogram,
    /// The calls without an answer, one counter for each of [`StoreError::KINDS`].
    pub errors: [Counter; StoreError::KINDS.len()],
    /// The permits of blocks that requests used, and those of blocks that ended before. Each permit is one of them when its
    /// block has ended.
    pub blocks: [Counter; 2],
}

// === impl StoreMetrics ===

impl StoreMetrics {
    pub(in crate::store) fn count(&self, error: &StoreError) {
        let kind = StoreError::KINDS.iter().position(|kind| *kind == error.kind());
        if let Some(kind) = kind {
            self.errors[kind].increment(1);
        }
    }

    /// Returns metrics that record nothing, for tests and programs without a recorder.
    pub fn noop() -> Self {
        let (errors, blocks) =
            (std::array::from_fn(|_| Counter::noop()), std::array::from_fn(|_| Counter::noop()));
        Self { seconds: Histogram::noop(), errors, blocks }
    }
}
