//! A connection that is reserved for one request. After the request it returns to the pool, or its address is counted as
//! failing. Sends nothing.

use super::{
    balance::{Address, AddressFailure, PickedAddress},
    error::{UpstreamError, WireError},
    h2::is_own_reset,
    pool::state::PoolState,
    target::Target,
    wire::Wire,
};
use std::{fmt, net::SocketAddr, sync::Arc};
use tokio::time::Instant;

/// A connection that is reserved for one request. Dropping it closes an HTTP/1.1 connection, or gives an HTTP/2 stream up.
pub struct Connection {
    pub(super) wire: Wire,
    pub(super) address: Arc<Address>,
    /// The choice of the address; `None` if the upstream has only one.
    pub(super) picked: Option<PickedAddress>,
    pub(super) pool: Arc<PoolState>,
}

// === impl Connection ===

impl Connection {
    /// The target that the connection leads to: a request names its host, and its path begins with its base path.
    pub fn target(&self) -> &Target {
        self.pool.target_of(&self.address)
    }

    /// The address of the other end.
    pub fn peer(&self) -> Option<SocketAddr> {
        match (&self.wire, &self.address.sockets[..]) {
            // `localhost` has two addresses, of which one was reached.
            (Wire::Http1(wire), [_, _, ..]) => wire.peer(),
            (_, all) => all.first().copied(),
        }
    }

    /// Whether the connection speaks HTTP/2, which has no `Upgrade`.
    pub fn is_http2(&self) -> bool {
        matches!(self.wire, Wire::Http2(_))
    }

    /// Returns the connection to its pool for the next request.
    pub fn recycle(self) {
        self.recycle_since(Instant::now());
    }

    /// Returns the connection to its pool. Its response had ended by `since`.
    pub(super) fn recycle_since(self, since: Instant) {
        if let Wire::Http1(wire) = self.wire {
            self.pool.keep(wire, self.address, since);
        }
    }

    /// Notes that the request had its response: the address works.
    pub(super) fn note_answer(&mut self) {
        if let Some(picked) = &mut self.picked {
            self.pool.cluster.note_answer(picked);
        }
    }

    /// Notes that the request had no response, unless its own client was the reason, and returns the error.
    pub(super) fn failed(&mut self, error: UpstreamError) -> UpstreamError {
        let is_ours = match &error {
            UpstreamError::Broken(WireError::Upload(_) | WireError::Length) => true,
            UpstreamError::Broken(WireError::Http2(error)) => {
                error.is_user() || is_own_reset(error)
            }
            _ => false,
        };
        if !is_ours {
            let (address, picked) = (&self.address, self.picked.as_mut());
            self.pool.cluster.failed(address, picked, AddressFailure::NoAnswer, &error);
        }
        error
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Connection").field(&self.address).finish()
    }
}
