//! The values that all connections of one worker share. Holds no connection itself.

use super::{connection_limit::ConnectionLimit, phase::Phase};
use crate::{config::ClientLimits, plan::Plan, proxy::Proxy};
use std::sync::{Arc, atomic::AtomicBool};
use tokio::sync::watch;
use tokio_rustls::rustls::ServerConfig;

/// The values that all connections of one worker share.
pub(super) struct ConnectionContext {
    pub(super) proxy: Proxy,
    pub(super) plan: Arc<Plan>,
    /// The certificates that clients see; `None` where clients speak clear text.
    pub(super) tls: Option<watch::Receiver<Arc<ServerConfig>>>,
    /// The port that this worker listens on.
    pub(super) port: u16,
    /// The connection limit of all workers together.
    pub(super) connections: Arc<ConnectionLimit>,
    /// Becomes true with [`Phase::Draining`]. Each response reads it, which is cheaper than asking `phases`.
    pub(super) draining: Arc<AtomicBool>,
    pub(super) phases: watch::Receiver<Phase>,
}

// === impl ConnectionContext ===

impl ConnectionContext {
    /// Returns the time-outs of clients (`client` in the configuration).
    pub(super) fn client(&self) -> ClientLimits {
        self.plan.config.client
    }
}
