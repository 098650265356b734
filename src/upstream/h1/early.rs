//! An answer that came before the request had ended: the rest of the request goes on meanwhile, and neither waits for
//! the other.

use super::{Decoder, H1Connection, OutgoingBody, WireError};
use crate::upstream::balance::PickedAddress;
use bytes::Bytes;
use http_body::Frame;
use parking_lot::Mutex;
use std::{
    fmt,
    future::poll_fn,
    sync::Arc,
    task::{Context, Poll, Waker},
};

/// The response. Dropped, it ends the rest of its request.
pub(in crate::upstream) struct EarlyResponse {
    exchange: Arc<Mutex<SharedConnection>>,
    _picked: Option<PickedAddress>,
}

struct SharedConnection {
    /// Until the response has ended, or nobody wants it any more.
    wire: Option<Box<H1Connection>>,
    /// Of who sends the rest of the request.
    waker: Option<Waker>,
}

// === impl EarlyResponse ===

impl EarlyResponse {
    /// Sends the rest of a request on `wire`.
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
            // Why it fails is of no interest any more: there is an answer.
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
