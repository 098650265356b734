//! Tunnels: two connections that have switched to another protocol. The gateway copies the octets of each to the other
//! without reading them, and only the end of the drain ends a tunnel from its side.

use super::websocket::FrameWriter;
use crate::upstream::Tunnel;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use metrics::Gauge;
use std::{io, time::Duration};
use tokio::{
    io::{AsyncRead, AsyncReadExt, copy_bidirectional_with_sizes},
    time::timeout,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// The octets that a tunnel holds in each direction.
const BUFFER: usize = 16 << 10;

/// How long a WebSocket may take for its close frames at the end of the drain.
const GOODBYE: Duration = Duration::from_millis(400);

/// The tunnels of one worker. They are tasks of their own and outlive the requests that began them. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct Tunnels {
    open: TaskTracker,
    /// The end of the drain is near: WebSockets get a close frame.
    close: CancellationToken,
    cut: CancellationToken,
}

/// Counts an open tunnel in the metrics until it is dropped.
struct OpenTunnel(Gauge);

// === impl Tunnels ===

impl Tunnels {
    pub(super) fn new() -> Self {
        let (close, cut) = (CancellationToken::new(), CancellationToken::new());
        Self { open: TaskTracker::new(), close, cut }
    }

    /// Begins a tunnel when the client's side of it is ready. The tunnel drops `held`, such as a concurrency permit, at
    /// its end.
    pub(super) fn begin(
        &self,
        client: OnUpgrade,
        upstream: Tunnel,
        is_websocket: bool,
        held: impl Send + 'static,
        gauge: &Gauge,
    ) {
        let (counted, cut) = (OpenTunnel::new(gauge), self.cut.clone());
        let close = is_websocket.then(|| self.close.clone());
        self.open.spawn(async move {
            let _held = (counted, held);
            tokio::select! {
                // Both sides see the end of the tunnel and its errors.
                _ = pass(client, upstream, close) => {}
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

    /// Ends all WebSockets that are open, and each one that begins later, with a close frame.
    pub(super) fn close(&self) {
        self.close.cancel();
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
/// continues. A WebSocket also ends with a close frame on both sides when `close` says so.
async fn pass(
    client: OnUpgrade,
    mut upstream: Tunnel,
    close: Option<CancellationToken>,
) -> io::Result<()> {
    let mut client = TokioIo::new(client.await.map_err(io::Error::other)?);
    let Some(close) = close else {
        copy_bidirectional_with_sizes(&mut client, &mut upstream, BUFFER, BUFFER).await?;
        return Ok(());
    };
    let (mut client, mut upstream) = (FrameWriter::new(client), FrameWriter::new(upstream));
    tokio::select! {
        copied = copy_bidirectional_with_sizes(&mut client, &mut upstream, BUFFER, BUFFER) => {
            copied?;
            return Ok(());
        }
        () = close.cancelled() => {}
    }
    let goodbye = async {
        let _ = tokio::join!(client.close(false), upstream.close(true));
        // Both sides answer with a close frame, which is read, so that no reset overtakes ours.
        tokio::join!(discard(&mut client), discard(&mut upstream));
    };
    let _ = timeout(GOODBYE, goodbye).await;
    Ok(())
}

/// Reads to the end.
async fn discard(side: &mut (impl AsyncRead + Unpin)) {
    let mut sink = [0; 512];
    while matches!(side.read(&mut sink).await, Ok(1..)) {}
}
