//! A client's connection as everything but the parser sees it: the connection driver, the response's body, the gateway.

use super::{
    io::{poll_own, poll_shutdown},
    state::{ClientWait, LastRead, RequestStage, StreamState},
};
use crate::{
    config::Limits,
    metrics::Protocol,
    proxy::ClientConnection,
    server::{connection_limit::ConnectionPermit, transport::Transport, unread_body::UnreadBody},
};
use http::{Request, StatusCode};
use http_body::Body;
use parking_lot::{Mutex, MutexGuard};
use std::{
    future::poll_fn,
    io::{self, ErrorKind},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::{io::AsyncWrite, time::timeout};

/// How many bytes of interim responses may wait until they can be written. Further ones are dropped: they are hints.
const INTERIM_BYTES: usize = 16 << 10;

/// A client's connection, shared by the parser and everything that has to know where the connection is.
pub(in crate::server) struct ClientStream {
    pub(super) limits: Limits,
    /// Only the task of the connection and those of its requests lock it, for no longer than one system call.
    state: Mutex<StreamState>,
}

// === impl ClientStream ===

impl ClientStream {
    /// Makes the stream of a new connection. `early` are the bytes that the handshake has read.
    pub(in crate::server) fn new(
        transport: Transport,
        early: Vec<u8>,
        protocol: Protocol,
        permit: ConnectionPermit,
        limits: Limits,
    ) -> Self {
        let state = StreamState::new(transport, early, protocol, permit);
        Self { limits, state: Mutex::new(state) }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, StreamState> {
        self.state.lock()
    }

    /// Notes that the parser has accepted `request`, and returns its body as the connection sees it; `None` if it has none.
    /// To be called before the parser reads on.
    pub(in crate::server) fn begin<B: Body>(
        &self,
        request: &Request<B>,
    ) -> Option<Arc<UnreadBody>> {
        self.lock().begin(request)
    }

    /// Notes that the service has returned the response; `closes` says that it closes the connection. Returns whether the
    /// connection can be used again, which the rest of the request's body may prevent, too.
    pub(in crate::server) fn answered(&self, closes: bool) -> bool {
        let mut state = self.lock();
        state.answered();
        state.is_sending = closes;
        let Some(unread) = &state.unread else { return !closes };
        let is_open = !closes && unread.leaves_open();
        if !is_open {
            unread.give_up();
        }
        state.is_sending = !is_open || !unread.is_over();
        is_open
    }

    /// Whether the client may still be sending the last request, although that has its response.
    pub(in crate::server) fn is_sending(&self) -> bool {
        self.lock().is_sending
    }

    /// Notes that the body of the response has ended, or was dropped because the client left.
    pub(in crate::server) fn end(&self) {
        self.lock().end();
    }

    /// Notes that another protocol follows the response (RFC 9110 section 7.8).
    pub(in crate::server) fn becomes_tunnel(&self) {
        self.lock().becomes_tunnel();
    }

    /// Returns how many requests have begun. The number wraps.
    pub(in crate::server) fn requests(&self) -> u32 {
        self.lock().requests()
    }

    /// Makes every further write fail, since the client has left and would not read it.
    pub(in crate::server) fn abandon(&self) {
        self.lock().output.is_abandoned = true;
    }

    /// Frees the buffers that only a request needs, some 8 KiB.
    pub(in crate::server) fn rest(&self) {
        self.lock().rest();
    }

    /// Resolves when the client has sent more, or has disconnected.
    pub(in crate::server) async fn readable(&self) {
        poll_fn(|cx| self.lock().transport.tcp().poll_read_ready(cx).map(drop)).await;
    }

    /// Whether the connection still speaks HTTP/1. False for HTTP/2 and for a tunnel.
    pub(in crate::server) fn is_http1(&self) -> bool {
        self.lock().is_http1
    }

    /// Returns what the connection waits for, and a number that changes with each step forward. Remembers the task, and
    /// wakes it when there is something to write that the parser does not know of. Reads the rest of a body that is not
    /// read otherwise.
    pub(in crate::server) fn waits(&self, cx: &mut Context<'_>) -> (ClientWait, u32) {
        let mut state = self.lock();
        state.poll_unread(cx);
        state.waker.get_or_insert_with(|| cx.waker().clone());
        state.waits()
    }

    /// Returns the status of a request that the parser refused by itself.
    pub(in crate::server) fn refused(&self) -> Option<StatusCode> {
        self.lock().refused
    }

    /// Writes `bytes` after the parser has ended.
    pub(in crate::server) async fn write_own(&self, bytes: &[u8]) -> io::Result<()> {
        self.lock().output.own.extend(bytes);
        poll_fn(|cx| {
            let mut state = self.lock();
            ready!(poll_own(&mut state, cx))?;
            Pin::new(&mut state.transport).poll_flush(cx)
        })
        .await
    }

    /// Closes our side, then reads and drops up to `most` bytes that the client still sends, until it pauses for `pause`.
    /// Otherwise its bytes would be answered with a reset, which can take the response away from it (RFC 9112 section 9.6).
    pub(in crate::server) async fn close(&self, mut most: usize, pause: Duration) {
        let shut = poll_fn(|cx| poll_shutdown(&mut self.lock(), cx)).await;
        let mut sink = [0; 16 << 10];
        while shut.is_ok() && most > 0 {
            let taken = poll_fn(|cx| {
                let state = self.lock();
                let tcp = state.transport.tcp();
                loop {
                    ready!(tcp.poll_read_ready(cx))?;
                    match tcp.try_read(&mut sink) {
                        Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                        taken => return Poll::Ready(taken),
                    }
                }
            });
            match timeout(pause, taken).await {
                Ok(Ok(taken)) if taken > 0 => most = most.saturating_sub(taken),
                _ => return,
            }
        }
    }

    /// Whether the client has sent bytes that the parser did not read.
    pub(in crate::server) fn has_unread_input(&self) -> bool {
        let state = self.lock();
        state.input.last_read != LastRead::End
            && matches!(state.transport.tcp().try_read(&mut [0; 64]), Ok(1..))
    }

    /// Makes the connection end with a reset, which drops what the client has not taken.
    pub(in crate::server) fn reset(&self) {
        let state = self.lock();
        let _ = socket2::SockRef::from(state.transport.tcp()).set_linger(Some(Default::default()));
    }
}

impl ClientConnection for ClientStream {
    fn poll_left(&self, cx: &mut Context<'_>) -> Poll<bool> {
        let state = self.lock();
        // The parser of HTTP/2 always reads, and so does that of HTTP/1 within a request's body.
        if state.input.last_read == LastRead::Pending
            || !state.is_http1
            || state.transport.tcp().poll_read_ready(cx).is_pending()
        {
            return Poll::Pending;
        }
        Poll::Ready(state.transport.is_closed_by_client())
    }

    fn framed_twice(&self) -> bool {
        self.lock().request.is_framed_twice
    }

    fn inform(&self, response: &[u8]) {
        let mut state = self.lock();
        let fits = state.output.interim.len() + response.len() <= INTERIM_BYTES;
        let is_open = state.stage == RequestStage::Open;
        if state.is_http1 && is_open && !state.request.is_http10 && fits {
            state.output.interim.extend(response);
            if let Some(waker) = &state.waker {
                waker.wake_by_ref();
            }
        }
    }
}
