//! A tunnel to a host of no upstream. The gateway copies its octets and never reads them.

use crate::{
    metrics::Protocol,
    server::{connection_limit::ConnectionPermit, phase::Phase},
    upstream::DirectConnection,
};
use tokio::{io::copy_bidirectional_with_sizes, net::TcpStream, sync::watch};

/// The octets that a tunnel holds in each direction.
const BUFFER: usize = 16 << 10;

/// A tunnel whose client has got its 200.
pub(in crate::server) struct BlindTunnel {
    pub(super) client: TcpStream,
    pub(super) upstream: DirectConnection,
}

// === impl BlindTunnel ===

impl BlindTunnel {
    /// Copies until both sides have ended, one fails, or the gateway closes its tunnels.
    pub(in crate::server) async fn run(
        mut self,
        mut permit: ConnectionPermit,
        mut phases: watch::Receiver<Phase>,
    ) {
        permit.set_protocol(Protocol::Tunnel);
        let (client, upstream) = (&mut self.client, &mut self.upstream.stream);
        tokio::select! {
            // Both sides see the end of the tunnel and its errors.
            _ = copy_bidirectional_with_sizes(client, upstream, BUFFER, BUFFER) => {}
            _ = phases.wait_for(|phase| *phase >= Phase::ClosingTunnels) => {}
        }
    }
}
