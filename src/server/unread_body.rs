//! The part of an HTTP/1 request's body that has not been read when its answer begins. A short rest is read and dropped, so
//! that the connection can be used again; for a longer one the answer says `Connection: close`. A byte of it is never taken
//! for the next request: the parser counts the body to its end, or the connection ends.

use super::phase::LINGER;
use bytes::Bytes;
use http::{Request, header::EXPECT};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use parking_lot::Mutex;
use std::{
    future::poll_fn,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};
use tokio::time::timeout;

/// The longest rest that is read and dropped, 1 MiB. It costs less than a new connection with TLS.
const MOST: u64 = 1 << 20;

/// How many bytes of a request are read and dropped by an answer that may close the connection, and for how long, so that
/// the client reads the answer: many libraries read none before they have sent their whole body.
pub(super) const DISCARDED: (usize, Duration) = (64 << 20, Duration::from_secs(30));

/// A request's body, from which the connection learns how much of it is left.
pub(super) struct FollowedBody {
    /// `None` once it is handed back.
    incoming: Option<Incoming>,
    /// `None` for a request without a body.
    unread: Option<Arc<UnreadBody>>,
}

/// The rest of a request's body, as its connection sees it.
#[derive(Debug)]
pub(super) struct UnreadBody(Mutex<UnreadState>);

#[derive(Debug)]
struct UnreadState {
    /// The bytes that still come; `None` while only the chunks will say it.
    left: Option<u64>,
    /// The client may be waiting for `100 Continue`, and may never send the body without it.
    is_held: bool,
    /// The answer said `Connection: close`.
    is_given_up: bool,
    /// The body, once neither the gateway nor the upstream reads it.
    rest: Option<Incoming>,
    /// Wakes the connection when the body is handed back.
    waker: Option<Waker>,
}

// === impl FollowedBody ===

impl FollowedBody {
    pub(super) fn new(incoming: Incoming, unread: Option<Arc<UnreadBody>>) -> Self {
        Self { incoming: Some(incoming), unread }
    }
}

impl Body for FollowedBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Some(incoming) = &mut self.incoming else { return Poll::Ready(None) };
        let frame = pin!(&mut *incoming).poll_frame(cx);
        let left = match &frame {
            Poll::Ready(None) => Some(0),
            _ => incoming.size_hint().exact(),
        };
        if let Some(unread) = &self.unread {
            let mut state = unread.0.lock();
            // The parser sends `100 Continue` when the body is asked for.
            (state.left, state.is_held) = (left, false);
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.as_ref().map(Body::size_hint).unwrap_or_default()
    }
}

impl Drop for FollowedBody {
    fn drop(&mut self) {
        if let (Some(incoming), Some(unread)) = (self.incoming.take(), self.unread.take()) {
            let mut state = unread.0.lock();
            if state.is_over() {
                return;
            }
            state.rest = Some(incoming);
            if let Some(waker) = state.waker.take() {
                waker.wake();
            }
        }
    }
}

// === impl UnreadBody ===

impl UnreadBody {
    /// The body of a request of which nothing has been read yet; `None` if it has none.
    pub(super) fn of<B: Body>(request: &Request<B>) -> Option<Arc<Self>> {
        if request.body().is_end_stream() {
            return None;
        }
        Some(Arc::new(Self(Mutex::new(UnreadState {
            left: request.body().size_hint().exact(),
            is_held: request.headers().contains_key(EXPECT),
            is_given_up: false,
            rest: None,
            waker: None,
        }))))
    }

    /// Whether the connection can be used again after an answer that begins now. If not, the answer has to say so. How much
    /// a body without a length still has is not known, whether or not the upstream reads on.
    pub(super) fn leaves_open(&self) -> bool {
        let state = self.0.lock();
        !state.is_held && state.left.is_some_and(|left| left <= MOST)
    }

    /// Reads and drops the rest before the answer, until the client pauses. Returns whether the connection can be used again.
    pub(super) async fn discard(&self) -> bool {
        let (rest, is_held) = {
            let state = &mut *self.0.lock();
            (state.rest.take(), state.is_held)
        };
        let Some(mut rest) = rest else { return true };
        let mut left = DISCARDED.0;
        let reading = async {
            while !is_held && left > 0 {
                let frame = poll_fn(|cx| Pin::new(&mut rest).poll_frame(cx));
                match timeout(LINGER, frame).await {
                    Ok(Some(Ok(frame))) => {
                        left = left.saturating_sub(frame.data_ref().map_or(0, Bytes::len));
                    }
                    end => return matches!(end, Ok(None)),
                }
            }
            false
        };
        timeout(DISCARDED.1, reading).await.unwrap_or(false)
    }

    /// Leaves the rest unread, so that the parser ends the connection after the answer.
    pub(super) fn give_up(&self) {
        let mut state = self.0.lock();
        (state.is_given_up, state.rest) = (true, None);
    }

    /// Whether the whole body has come, or is given up.
    pub(super) fn is_over(&self) -> bool {
        self.0.lock().is_over()
    }

    /// Reads and drops the rest once neither the gateway nor the upstream reads it. Ready when the whole body has come, or is
    /// given up.
    pub(super) fn poll_rest(&self, cx: &mut Context<'_>) -> Poll<()> {
        let state = &mut *self.0.lock();
        while !state.is_over() {
            let Some(rest) = &mut state.rest else {
                if state.waker.is_none() {
                    state.waker = Some(cx.waker().clone());
                }
                return Poll::Pending;
            };
            match pin!(&mut *rest).poll_frame(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(Ok(_))) => state.left = rest.size_hint().exact(),
                // An error means that the client has left.
                Poll::Ready(None | Some(Err(_))) => state.left = Some(0),
            }
        }
        state.rest = None;
        Poll::Ready(())
    }
}

// === impl UnreadState ===

impl UnreadState {
    fn is_over(&self) -> bool {
        self.left == Some(0) || self.is_given_up
    }
}
