//! Short texts that gateways share beside the states of their limiters, such as a margin that they have learned. A text
//! changes only for a writer that has read the one before, so two gateways never overwrite each other.

use crate::algorithm::Micros;
use std::{sync::Arc, time::Duration};

/// How long a store keeps a text that no gateway reads: 30 days. Readers renew it.
pub const KEPT: Duration = Duration::from_secs(30 * 24 * 3600);

/// A shared text as a store had it at one instant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// The text; `None` if there is none.
    pub text: Option<Arc<str>>,
    /// The instant on the store's clock, in µs.
    pub now: Micros,
}

/// The replacement of a shared text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoteChange {
    /// The text that the writer has read. If the store has another one, nothing changes.
    pub expected: Option<Arc<str>>,
    /// The new text, not empty.
    pub text: Arc<str>,
}
