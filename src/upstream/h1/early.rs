//! An answer that came before the request had ended: the rest of the request goes on meanwhile, and neither waits for
//! the other.

use super::{Broken, Decoder, H1, Sending};
use crate::upstream::balance::Chosen;
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
pub(in crate::upstream) struct Early {
    exchange: Arc<Mutex<Exchange>>,
    _chosen: Option<Chosen>,
}

struct Exchange {
    /// Until the response has ended, or nobody wants it any more.
    wire: Option<Box<H1>>,
    /// Of who sends the rest of the request.
    waker: Option<Waker>,
}

// === impl Early ===

impl Early {
    /// Sends the rest of a request on `wire`.
    pub(in crate::upstream) fn new(
        wire: Box<H1>,
        chosen: Option<Chosen>,
        mut sending: Sending,
    ) -> Self {
        let exchange = Arc::new(Mutex::new(Exchange { wire: Some(wire), waker: None }));
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
        Self { exchange, _chosen: chosen }
    }

    pub(in crate::upstream) fn poll_body(
        &mut self,
        decoder: &mut Decoder,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        match &mut self.exchange.lock().wire {
            Some(wire) => wire.poll_body(decoder, cx),
            None => Poll::Ready(None),
        }
    }
}

impl Drop for Early {
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

impl fmt::Debug for Early {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Early").finish()
    }
}
