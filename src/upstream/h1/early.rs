//! A response that began before its request had ended: the rest of the request is sent meanwhile, and neither waits for
//! the other.

use super::{H1Connection, framing::Decoder, output::OutgoingBody};
use crate::upstream::{balance::PickedAddress, error::WireError};
use bytes::Bytes;
use http_body::Frame;
use parking_lot::Mutex;
use std::{
    fmt,
    future::poll_fn,
    sync::Arc,
    task::{Context, Poll, Waker},
};

/// The response's side of such an exchange. Dropping it ends the rest of the request and closes the connection.
pub(in crate::upstream) struct EarlyResponse {
    exchange: Arc<Mutex<SharedConnection>>,
    _picked: Option<PickedAddress>,
}

/// The connection, shared by the task that sends the rest and by the reader of the response.
struct SharedConnection {
    /// `None` once the response has ended or was dropped.
    wire: Option<Box<H1Connection>>,
    /// Wakes the task that sends the rest of the request, so that it ends.
    waker: Option<Waker>,
}

// === impl EarlyResponse ===

impl EarlyResponse {
    /// Spawns a task that sends the rest of the request on `wire`; `picked` counts as in flight until the response ends.
    pub(in crate::upstream) fn new(
        wire: Box<H1Connection>,
        picked: Option<PickedAddress>,
        mut sending: OutgoingBody,
    ) -> Self {
        let exchange = Arc::new(Mutex::new(SharedConnection { wire: Some(wire), waker: None }));
        let shared = exchange.clone();
        tokio::spawn(poll_fn(move |cx| {
            let mut exchange = shared.lock();
            let Some(wire) = &mut exchange.wire else { return Poll::Ready(()) };
            // A failure is not reported: the request has its response.
            let sent = wire.output.poll_all(&mut wire.io, &mut sending, cx).map(drop);
            if sent.is_pending() {
                exchange.waker = Some(cx.waker().clone());
            }
            sent
        }));
        Self { exchange, _picked: picked }
    }

    pub(in crate::upstream) fn poll_body(
        &mut self,
        decoder: &mut Decoder,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, WireError>>> {
        match &mut self.exchange.lock().wire {
            Some(wire) => wire.poll_body(decoder, cx),
            None => Poll::Ready(None),
        }
    }
}

impl Drop for EarlyResponse {
    fn drop(&mut self) {
        let mut exchange = self.exchange.lock();
        let (wire, waker) = (exchange.wire.take(), exchange.waker.take());
        drop(exchange);
        drop(wire);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl fmt::Debug for EarlyResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("EarlyResponse").finish()
    }
}
