//! A tunnel to a host of no upstream. The gateway copies its octets and never reads them.

mod traffic;

use crate::{
    metrics::Protocol,
    proxy::TunnelRecord,
    server::{connection_limit::ConnectionPermit, phase::Phase},
    upstream::DirectConnection,
};
use tokio::{
    io::copy_bidirectional_with_sizes,
    net::TcpStream,
    sync::watch,
    time::{Instant, sleep},
};
use traffic::{MeteredSide, Traffic, TunnelSide};

/// The octets that a tunnel holds in each direction.
const BUFFER: usize = 16 << 10;

/// A tunnel whose client has got its 200.
pub(in crate::server) struct BlindTunnel {
    pub(super) client: TcpStream,
    pub(super) upstream: DirectConnection,
    pub(super) record: TunnelRecord,
}

// === impl BlindTunnel ===

impl BlindTunnel {
    /// Copies until both sides have ended, one fails, or the gateway closes its tunnels.
    pub(in crate::server) async fn run(
        mut self,
        mut permit: ConnectionPermit,
        phases: watch::Receiver<Phase>,
    ) {
        permit.set_protocol(Protocol::Tunnel);
        let traffic = Traffic::begin(Instant::now());
        let mut client = MeteredSide::new(&mut self.client, &traffic, TunnelSide::Client);
        let mut host = MeteredSide::new(&mut self.upstream.stream, &traffic, TunnelSide::Host);
        tokio::select! {
            // Both sides see the end of the tunnel and its errors.
            _ = copy_bidirectional_with_sizes(&mut client, &mut host, BUFFER, BUFFER) => {}
            () = closes(&traffic, phases) => {}
        }
        self.record.end(traffic.bytes());
    }
}

/// Resolves when the gateway closes connections that are idle and the tunnel is idle, or when it closes all tunnels.
async fn closes(traffic: &Traffic, mut phases: watch::Receiver<Phase>) {
    let mut idle_ones = phases.clone();
    let is_idle = async {
        let _ = idle_ones.wait_for(|phase| *phase >= Phase::ClosingIdle).await;
        while let Some(left) = traffic.time_to_idle(Instant::now()) {
            sleep(left).await;
        }
    };
    tokio::select! {
        () = is_idle => {}
        _ = phases.wait_for(|phase| *phase >= Phase::ClosingTunnels) => {}
    }
}
