//! The values that all connections of one worker share. Holds no connection itself.

use super::{connection_limit::ConnectionLimit, forward::ForwardDoor, phase::Phase};
use crate::{
    config::{ClientLimits, Service},
    plan::Plan,
    proxy::CurrentProxy,
};
use std::sync::{Arc, atomic::AtomicBool};
use tokio::sync::watch;
use tokio_rustls::rustls::ServerConfig;

/// The values that all connections of one worker share.
pub(super) struct ConnectionContext {
    /// Each request loads it, and keeps what it has loaded.
    pub(super) proxy: CurrentProxy,
    /// The service that decides the requests of this port; `None` for the data plane, which forwards them.
    pub(super) service: Option<Service>,
    /// The forward proxy, if this port is that.
    pub(super) forward: Option<Arc<ForwardDoor>>,
    /// The certificates for the next handshake; `None` while clients speak clear text.
    pub(super) tls: watch::Receiver<Option<Arc<ServerConfig>>>,
    /// The port that this worker listens on.
    pub(super) port: u16,
    /// The connection limit of all workers together: that of clients, or that of services.
    pub(super) connections: Arc<ConnectionLimit>,
    /// Becomes true with [`Phase::Draining`]. Each response reads it, which is cheaper than asking `phases`.
    pub(super) draining: Arc<AtomicBool>,
    pub(super) phases: watch::Receiver<Phase>,
}

// === impl ConnectionContext ===

impl ConnectionContext {
    /// Returns the plan that a connection begins with. Its requests may have later ones.
    pub(super) fn plan(&self) -> Arc<Plan> {
        self.proxy.plan()
    }

    /// Returns the time-outs of clients (`client` in the configuration).
    pub(super) fn client(&self) -> ClientLimits {
        self.plan().config.client
    }
}
