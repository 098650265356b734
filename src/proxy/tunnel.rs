//! Tunnels: two connections that have switched to another protocol. The gateway copies the octets of each to the other
//! without reading them, and only the end of the drain ends a tunnel from its side.

use crate::upstream::Tunnel;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use metrics::Gauge;
use std::io;
use tokio::io::copy_bidirectional_with_sizes;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// The octets that a tunnel holds in each direction.
const BUFFER: usize = 16 << 10;

/// The tunnels of one worker. They are tasks of their own and outlive the requests that began them. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct Tunnels {
    open: TaskTracker,
    cut: CancellationToken,
}

/// Counts an open tunnel in the metrics until it is dropped.
struct OpenTunnel(Gauge);

// === impl Tunnels ===

impl Tunnels {
    pub(super) fn new() -> Self {
        Self { open: TaskTracker::new(), cut: CancellationToken::new() }
    }

    /// Begins a tunnel when the client's side of it is ready. The tunnel drops `held`, such as a concurrency permit, at
    /// its end.
    pub(super) fn begin(
        &self,
        ends: (OnUpgrade, Tunnel),
        held: impl Send + 'static,
        gauge: &Gauge,
    ) {
        let (counted, cut) = (OpenTunnel::new(gauge), self.cut.clone());
        self.open.spawn(async move {
            let _held = (counted, held);
            tokio::select! {
                // Both sides see the end of the tunnel and its errors.
                _ = pass(ends) => {}
                () = cut.cancelled() => {}
            }
        });
    }

    /// Resolves when no tunnel is open.
    pub(super) async fn ended(&self) {
        // Closing lets the tracker report when it is empty. Tunnels may still begin after it.
        self.open.close();
        self.open.wait().await;
    }

    /// Cuts all tunnels that are open, and each one that begins later.
    pub(super) fn cut(&self) {
        self.cut.cancel();
    }
}

// === impl OpenTunnel ===

impl OpenTunnel {
    fn new(gauge: &Gauge) -> Self {
        gauge.increment(1.0);
        Self(gauge.clone())
    }
}

impl Drop for OpenTunnel {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}

/// Copies until both directions have ended, or one has failed. The end of one direction is passed on, and the other
/// continues.
async fn pass((client, mut upstream): (OnUpgrade, Tunnel)) -> io::Result<()> {
    let mut client = TokioIo::new(client.await.map_err(io::Error::other)?);
    copy_bidirectional_with_sizes(&mut client, &mut upstream, BUFFER, BUFFER).await?;
    Ok(())
}
