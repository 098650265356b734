//! How many clients may be connected at one time, over all workers: to the data plane, and apart from it to all services. A
//! client beyond the limit gets 503 and no permit.

use super::{
    address_limit::{AddressLimit, AddressPermit, TooManyOfAddress},
    load_guard::LoadGuard,
    windows::WindowBudget,
};
use crate::metrics::{ConnectionMetrics, Protocol, Refusal};
use std::{net::IpAddr, num::NonZeroUsize, sync::Arc};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How many clients may be connected at one time, and the metrics of those that are.
pub(super) struct ConnectionLimit {
    free: Arc<Semaphore>,
    addresses: Arc<AddressLimit>,
    /// The bytes of request bodies that all HTTP/2 connections together may have in their flow-control windows.
    pub(super) windows: WindowBudget,
    metrics: ConnectionMetrics,
}

/// The right of one client to be connected. It is released on drop, when neither the connection nor any request on it is
/// left.
pub(super) struct ConnectionPermit {
    limit: Arc<ConnectionLimit>,
    _permit: OwnedSemaphorePermit,
    /// The permit of the client's address, where addresses have a limit.
    of_address: Option<AddressPermit>,
    /// The protocol that the client is counted under; `None` until the handshake has found it.
    protocol: Option<Protocol>,
    /// Counts the connection for the worker that serves it.
    load: LoadGuard,
}

// === impl ConnectionLimit ===

impl ConnectionLimit {
    /// Makes the limit: `max` clients at one time, with a part of `windows` for each that speaks HTTP/2.
    pub(super) fn new(max: NonZeroUsize, windows: WindowBudget) -> Self {
        Self {
            free: Arc::new(Semaphore::new(max.get().min(Semaphore::MAX_PERMITS))),
            addresses: Arc::default(),
            windows,
            metrics: ConnectionMetrics::default(),
        }
    }

    /// Takes a permit for a new connection, which `load` counts for its worker. Returns `None`, and counts a refusal,
    /// when as many clients are connected as may be.
    pub(super) fn acquire(self: &Arc<Self>, load: LoadGuard) -> Option<ConnectionPermit> {
        let Ok(permit) = self.free.clone().try_acquire_owned() else {
            self.refuse(Refusal::Limit);
            return None;
        };
        Some(ConnectionPermit {
            limit: self.clone(),
            _permit: permit,
            of_address: None,
            protocol: None,
            load,
        })
    }

    /// Counts a connection that the gateway ends, with the reason as its label.
    pub(super) fn refuse(&self, reason: Refusal) {
        self.metrics.refuse(reason);
    }
}

// === impl ConnectionPermit ===

impl ConnectionPermit {
    /// Counts the connection under `protocol` from now on, for example when an upgrade makes it a tunnel.
    pub(super) fn set_protocol(&mut self, protocol: Protocol) {
        self.uncount();
        self.limit.metrics.open(protocol).increment(1.0);
        self.protocol = Some(protocol);
    }

    /// Counts the connection for the address of its client, which may have `most` at one time. Counts a refusal when it has
    /// as many.
    pub(super) fn count_for(
        &mut self,
        address: IpAddr,
        most: Option<NonZeroUsize>,
    ) -> Result<(), TooManyOfAddress> {
        let Some(most) = most else { return Ok(()) };
        let permit = self.limit.addresses.acquire(address, most);
        self.of_address = Some(permit.inspect_err(|_| self.limit.refuse(Refusal::Address))?);
        Ok(())
    }

    /// Counts the connection for another worker: the one that it was meant for did not take it.
    pub(super) fn set_load(&mut self, load: LoadGuard) {
        self.load = load;
    }

    fn uncount(&mut self) {
        if let Some(protocol) = self.protocol.take() {
            self.limit.metrics.open(protocol).decrement(1.0);
        }
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.uncount();
    }
}
