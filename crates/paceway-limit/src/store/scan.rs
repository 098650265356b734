//! The names of states in a store, read in steps of bounded size, so that no step delays the decisions of others for long.

use std::sync::Arc;

/// The place at which the next step begins. The default is the first place.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ScanPlace {
    /// The server that is read, in a Cluster. Servers are read in the order of their addresses.
    pub(super) server: Option<Arc<str>>,
    /// The place within the server, or the number of a part of the memory store.
    pub(super) cursor: u64,
}

/// The names that one step found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScanStep {
    /// Names with the beginning that was asked for. A later step may bring one of them again.
    pub names: Vec<Arc<str>>,
    /// The place of the next step; `None` after the last one.
    pub next: Option<ScanPlace>,
}
