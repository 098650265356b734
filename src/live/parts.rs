//! The parts that the configuration of a running gateway is made of.

use super::file::ReadFile;
use crate::config::{ConfigEdit, LimitRow, RateTables};
use std::sync::Arc;

/// The parts that the configuration of a running gateway is made of. A change replaces one of them, and [`Live`](super::Live)
/// makes the whole again.
///
/// A further source is a further field here and a further step of [`Self::effective`]; its task calls `live.apply(|parts| parts.field = value)`.
#[derive(Debug, Clone)]
pub struct ConfigParts {
    /// The configuration file as it was read last without a mistake.
    pub file: Arc<ReadFile>,
    /// The rows of `limits_from` that are in use. They replace limiters of the file, or add some.
    pub rows: Arc<[LimitRow]>,
    /// The rows of `rates_from`, by the names of their limiters.
    pub rates: RateTables,
    /// The values that operators have overridden.
    pub overrides: Vec<ConfigEdit>,
}

// === impl ConfigParts ===

impl ConfigParts {
    /// The parts at a start, before any other source than the file is read.
    pub fn of(file: Arc<ReadFile>) -> Self {
        Self { file, rows: Arc::default(), rates: RateTables::new(), overrides: Vec::new() }
    }
}
