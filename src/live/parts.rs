//! The parts that the configuration of a running gateway is made of.

use super::file::ReadFile;
use crate::config::{Config, ConfigError};
use std::sync::Arc;

/// The parts that the configuration of a running gateway is made of. A change replaces one of them, and [`Live`](super::Live)
/// makes the whole again.
///
/// A further source (limits from a database, overrides by an operator) is a further field here and a further step of
/// [`Self::effective`]; its task calls `live.apply(|parts| parts.field = value)`.
#[derive(Debug, Clone)]
pub struct ConfigParts {
    /// The configuration file as it was read last without a mistake.
    pub file: Arc<ReadFile>,
}

// === impl ConfigParts ===

impl ConfigParts {
    /// The configuration that all parts together make. Later parts replace values of earlier ones.
    pub(super) fn effective(&self) -> Result<Config, ConfigError> {
        Ok(self.file.config.clone())
    }
}
