//! Tunnels: two connections that speak another protocol by now, each octet of one passed to the other. Nothing in
//! them is looked at, and no time-out of ours ends them but that of the drain.

use crate::upstream::Tunnel;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use metrics::Gauge;
use std::io;
use tokio::{io::copy_bidirectional_with_sizes, sync::watch};

/// Octets under way, each way.
const BUFFER: usize = 16 << 10;

/// The tunnels of one worker. They are tasks of their own and outlive the requests that began them.
#[derive(Debug)]
pub(super) struct Tunnels {
    open: watch::Sender<usize>,
    cut: watch::Sender<bool>,
}

/// Counts a tunnel.
struct Counted {
    open: watch::Sender<usize>,
    gauge: Gauge,
}

// === impl Tunnels ===

impl Tunnels {
    pub(super) fn new() -> Self {
        Self { open: watch::Sender::new(0), cut: watch::Sender::new(false) }
    }

    /// Begins a tunnel when the client is ready for it; what it holds, `held`, goes at its end.
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
                // Its end and its errors are seen by both sides.
                _ = pass(ends) => {}
                _ = cut.wait_for(|cut| *cut) => {}
            }
        });
    }

    /// Resolves when none is open.
    pub(super) async fn ended(&self) {
        // Fails only without a sender, which is in our hands.
        let _ = self.open.subscribe().wait_for(|open| *open == 0).await;
    }

    /// Cuts all that are open, and all that begin.
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

/// Until both directions have ended, or one has failed. The end of one is passed on, and the other goes on.
async fn pass((client, mut upstream): (OnUpgrade, Tunnel)) -> io::Result<()> {
    let mut client = TokioIo::new(client.await.map_err(io::Error::other)?);
    copy_bidirectional_with_sizes(&mut client, &mut upstream, BUFFER, BUFFER).await?;
    Ok(())
}
