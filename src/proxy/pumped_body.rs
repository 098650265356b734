//! A body that others wait for beside the client that asked first. It is read as fast as it comes, so that no client waits for
//! another one, until it is whole or too large; then the first alone gets the rest.

use super::{Body, BodyError, client::DisconnectWatch};
use crate::reads::{Lead, MOST_SHARED};
use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use std::{
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::{
    sync::mpsc::{self, UnboundedReceiver, UnboundedSender},
    time::{Instant, timeout_at},
};

/// The longest time for which a body is read for others. A slower one is for the first alone.
const PATIENCE: Duration = Duration::from_secs(10);

/// The body as the client has it that asked first.
#[derive(Debug)]
pub(super) struct PumpedBody {
    /// The pieces that the client has not read yet: at most [`MOST_SHARED`] bytes, and the frame or body after them.
    pieces: UnboundedReceiver<Piece>,
    /// The rest, once it is read for others no more.
    rest: Option<Body>,
    is_over: bool,
    left: SizeHint,
    client: DisconnectWatch,
}

#[derive(Debug)]
enum Piece {
    Frame(Frame<Bytes>),
    Failed(BodyError),
    Rest(Body),
    End,
}

/// Gives `body` to the client and to all who follow `lead`.
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
    let left = body.size_hint();
    if left.lower() > MOST_SHARED as u64 {
        lead.keeps_to_itself();
        return body;
    }
    let (to_first, pieces) = mpsc::unbounded_channel();
    tokio::spawn(pump(lead, body, to_first));
    Body::pumped(PumpedBody { pieces, rest: None, is_over: false, left, client })
}

/// Reads `body` for all. Sending fails when the first has left, and the others are served nevertheless.
async fn pump(lead: Lead, mut body: Body, to_first: UnboundedSender<Piece>) {
    body.forget_client();
    let (mut kept, until) = (lead.buffer(), Instant::now() + PATIENCE);
    while lead.has_followers() {
        let frame = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx));
        let Ok(frame) = timeout_at(until, frame).await else { break };
        let is_kept = match frame {
            Some(Ok(frame)) => {
                let is_kept = frame.data_ref().is_some_and(|data| kept.extend(data, MOST_SHARED));
                let _ = to_first.send(Piece::Frame(frame));
                is_kept
            }
            Some(Err(error)) => {
                let _ = to_first.send(Piece::Failed(error));
                return;
            }
            None => {
                let _ = to_first.send(Piece::End);
                return lead.answers(kept);
            }
        };
        if !is_kept {
            break;
        }
    }
    let _ = to_first.send(Piece::Rest(body));
    lead.keeps_to_itself();
}

// === impl PumpedBody ===

impl PumpedBody {
    pub(super) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        if let Some(rest) = &mut self.rest {
            return Pin::new(rest).poll_frame(cx);
        }
        let Poll::Ready(piece) = self.pieces.poll_recv(cx) else {
            ready!(self.client.poll(cx));
            return Poll::Ready(Some(Err(BodyError::ClientLeft)));
        };
        match piece {
            Some(Piece::Frame(frame)) => {
                let given = frame.data_ref().map_or(0, |data| data.len() as u64);
                if let Some(exact) = self.left.exact() {
                    self.left = SizeHint::with_exact(exact.saturating_sub(given));
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Some(Piece::Rest(rest)) => Pin::new(self.rest.insert(rest)).poll_frame(cx),
            Some(Piece::End) => {
                self.is_over = true;
                Poll::Ready(None)
            }
            Some(Piece::Failed(error)) => {
                self.is_over = true;
                Poll::Ready(Some(Err(error)))
            }
            // The task has ended in the midst of it.
            None => Poll::Ready(Some(Err(BodyError::Reset))),
        }
    }

    pub(super) fn has_ended(&self) -> bool {
        self.is_over || self.rest.as_ref().is_some_and(Body::is_end_stream)
    }

    /// The bytes that are left, as far as they are known.
    pub(super) fn size_hint(&self) -> SizeHint {
        self.rest.as_ref().map_or_else(|| self.left.clone(), Body::size_hint)
    }
}
