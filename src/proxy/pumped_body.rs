//! A body that others wait for beside the client that asked first. It is read as fast as it comes, so that no client waits for
//! another one, until it is whole or too large; then the first alone gets the rest.

use super::{Body, BodyError, client::DisconnectWatch};
use crate::{
    reads::{Lead, MOST_SHARED},
    upstream::KeptBuffer,
};
use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use parking_lot::Mutex;
use std::{
    future::poll_fn,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker, ready},
    time::Duration,
};
use tokio::time::{Instant, timeout_at};

/// The longest time for which a body is read for others. A slower one is for the first alone.
const PATIENCE: Duration = Duration::from_secs(10);
/// The most bytes of a frame that is copied for the first, 64 KiB.
const PIECE: usize = 64 << 10;

/// The body as the client has it that asked first.
#[derive(Debug)]
pub(super) struct PumpedBody {
    pump: Arc<Mutex<Pump>>,
    /// How many bytes of those in the pump the client has.
    given: usize,
    /// The rest, once the body is read for others no more.
    rest: Option<Body>,
    is_over: bool,
    size: SizeHint,
    client: DisconnectWatch,
}

/// A body while it is read for all.
#[derive(Debug)]
struct Pump {
    kept: KeptBuffer,
    /// The part after the kept bytes, once it is known.
    end: Option<PumpEnd>,
    first: Option<Waker>,
}

#[derive(Debug)]
enum PumpEnd {
    /// All of its bytes. The kept ones are a part of the shared answer now.
    Whole(Bytes),
    Failed(BodyError),
    /// The frame that was not kept, and the rest.
    Rest(Option<Frame<Bytes>>, Body),
}

/// Gives `body` to the client and to all that follow `lead`.
pub(super) fn share(lead: Lead, body: Body, client: DisconnectWatch) -> Body {
    let mut kept = lead.buffer();
    if let Some(whole) = body.whole_bytes() {
        if kept.extend(whole, MOST_SHARED) {
            lead.answers(kept);
        } else {
            lead.keeps_to_itself();
        }
        return body;
    }
    let size = body.size_hint();
    if size.lower() > MOST_SHARED as u64 {
        lead.keeps_to_itself();
        return body;
    }
    let pump = Arc::new(Mutex::new(Pump { kept, end: None, first: None }));
    tokio::spawn(read(lead, body, pump.clone()));
    Body::of_pump(PumpedBody { pump, given: 0, rest: None, is_over: false, size, client })
}

/// Reads `body` for all, whether the first is still there or not.
async fn read(lead: Lead, mut body: Body, pump: Arc<Mutex<Pump>>) {
    body.forget_client();
    let until = Instant::now() + PATIENCE;
    let mut left_over = None;
    while lead.has_followers() && left_over.is_none() {
        let frame = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx));
        match timeout_at(until, frame).await {
            Ok(Some(Ok(frame))) => left_over = pump.lock().put(frame),
            Ok(Some(Err(error))) => return pump.lock().end(PumpEnd::Failed(error)),
            Ok(None) => {
                let mut pump = pump.lock();
                let kept = std::mem::replace(&mut pump.kept, lead.buffer());
                let whole = lead.answers(kept);
                return pump.end(PumpEnd::Whole(whole));
            }
            Err(_) => break,
        }
    }
    lead.keeps_to_itself();
    pump.lock().end(PumpEnd::Rest(left_over, body));
}

// === impl Pump ===

impl Pump {
    /// Keeps a frame. Returns one that is too large, or no data.
    fn put(&mut self, frame: Frame<Bytes>) -> Option<Frame<Bytes>> {
        let is_kept = frame.data_ref().is_some_and(|data| self.kept.extend(data, MOST_SHARED));
        self.wake();
        (!is_kept).then_some(frame)
    }

    fn end(&mut self, end: PumpEnd) {
        self.end = Some(end);
        self.wake();
    }

    fn wake(&mut self) {
        if let Some(first) = self.first.take() {
            first.wake();
        }
    }
}

// === impl PumpedBody ===

impl PumpedBody {
    pub(super) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if let Some(rest) = &mut self.rest {
            return Pin::new(rest).poll_frame(cx);
        }
        if self.is_over {
            return Poll::Ready(None);
        }
        let mut pump = self.pump.lock();
        let left = &pump.kept.bytes[self.given.min(pump.kept.bytes.len())..];
        if !left.is_empty() {
            let piece = Bytes::copy_from_slice(&left[..left.len().min(PIECE)]);
            drop(pump);
            return Poll::Ready(Some(Ok(self.give(Frame::data(piece)))));
        }
        let Some(end) = pump.end.take() else {
            pump.first = Some(cx.waker().clone());
            drop(pump);
            ready!(self.client.poll(cx));
            return Poll::Ready(Some(Err(BodyError::ClientLeft)));
        };
        drop(pump);
        self.is_over = true;
        match end {
            PumpEnd::Whole(whole) => {
                let left = whole.slice(self.given.min(whole.len())..);
                let frame = (!left.is_empty()).then(|| self.give(Frame::data(left)));
                Poll::Ready(frame.map(Ok))
            }
            PumpEnd::Failed(error) => Poll::Ready(Some(Err(error))),
            PumpEnd::Rest(Some(frame), rest) => {
                self.rest = Some(rest);
                Poll::Ready(Some(Ok(frame)))
            }
            PumpEnd::Rest(None, rest) => Pin::new(self.rest.insert(rest)).poll_frame(cx),
        }
    }

    /// Counts a frame that the client gets.
    fn give(&mut self, frame: Frame<Bytes>) -> Frame<Bytes> {
        let bytes = frame.data_ref().map_or(0, Bytes::len);
        self.given += bytes;
        if let Some(exact) = self.size.exact() {
            self.size = SizeHint::with_exact(exact.saturating_sub(bytes as u64));
        }
        frame
    }

    pub(super) fn has_ended(&self) -> bool {
        self.rest.as_ref().map_or(self.is_over, Body::is_end_stream)
    }

    /// The bytes that are left, as far as they are known.
    pub(super) fn size_hint(&self) -> SizeHint {
        self.rest.as_ref().map_or(self.size, Body::size_hint)
    }
}
