//! Tunnels: two connections that have switched to another protocol. The gateway copies the octets of each to the other
//! without reading them, and only the end of the drain ends a tunnel from its side.

use crate::upstream::Tunnel;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use metrics::Gauge;
use std::io;
use tokio::{io::copy_bidirectional_with_sizes, sync::watch};

/// The octets that a tunnel holds in each direction.
const BUFFER: usize = 16 << 10;

/// The tunnels of one worker. They are tasks of their own and outlive the requests that began them.
#[derive(Debug)]
pub(super) struct Tunnels {
    open: watch::Sender<usize>,
    cut: watch::Sender<bool>,
}

/// Counts an open tunnel until it is dropped.
struct Counted {
    open: watch::Sender<usize>,
    gauge: Gauge,
}

// === impl Tunnels ===

impl Tunnels {
    pub(super) fn new() -> Self {
        Self { open: watch::Sender::new(0), cut: watch::Sender::new(false) }
    }

    /// Begins a tunnel when the client's side of it is ready. The tunnel drops `held`, such as a concurrency permit, at
    /// its end.
    pub(super) fn begin(
        &self,
        ends: (OnUpgrade, Tunnel),
        held: impl Send + 'static,
        gauge: &Gauge,
    ) {
        let counted = Counted::new(&self.open, gauge);
        let mut cut = self.cut.subscribe();
        tokio::spawn(async move {
            let _held = (counted, held);
            tokio::select! {
                // Both sides see the end of the tunnel and its errors.
                _ = pass(ends) => {}
                _ = cut.wait_for(|cut| *cut) => {}
            }
        });
    }

    /// Resolves when no tunnel is open.
    pub(super) async fn ended(&self) {
        // An error means that no sender exists, but this value has one.
        let _ = self.open.subscribe().wait_for(|open| *open == 0).await;
    }

    /// Cuts all tunnels that are open, and each one that begins later.
    pub(super) fn cut(&self) {
        self.cut.send_replace(true);
    }
}

// === impl Counted ===

impl Counted {
    fn new(open: &watch::Sender<usize>, gauge: &Gauge) -> Self {
        open.send_modify(|open| *open += 1);
        gauge.increment(1.0);
        Self { open: open.clone(), gauge: gauge.clone() }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.open.send_modify(|open| *open -= 1);
        self.gauge.decrement(1.0);
    }
}

/// Copies until both directions have ended, or one has failed. The end of one direction is passed on, and the other
/// continues.
async fn pass((client, mut upstream): (OnUpgrade, Tunnel)) -> io::Result<()> {
    let mut client = TokioIo::new(client.await.map_err(io::Error::other)?);
    copy_bidirectional_with_sizes(&mut client, &mut upstream, BUFFER, BUFFER).await?;
    Ok(())
}
