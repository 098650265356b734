//! The edge of a connection: its stream, shared by the HTTP parser and by whoever must know what the parser keeps to
//! itself. What the parser refuses without a word is said in our own. Parses nothing that the parser has accepted.

mod heads;
mod wire;

pub(super) use heads::serialized;

use super::{seats::Seat, transport::Transport};
use crate::{config::Limits, metrics::Protocol, proxy::ClientConnection};
use heads::has_both_framings;
use http::{Request, StatusCode, Version, header::TRANSFER_ENCODING};
use http_body::Body;
use parking_lot::Mutex;
use std::{
    future::poll_fn,
    io::{self, ErrorKind},
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker, ready},
};
use tokio::io::AsyncWrite;

/// Of interim responses that wait for being written; what is more is not passed on.
const INTERIM_BYTES: usize = 16 << 10;
/// One read: this much at first, and while most of it stays empty.
const READ_LEAST: usize = 4 << 10;
/// One read of a client that sends faster.
const READ_MOST: usize = 64 << 10;

/// A connection's stream.
pub(super) struct Stream {
    limits: Limits,
    /// Locked by one task only, for no longer than a system call.
    inner: Mutex<Inner>,
}

/// The stream as the HTTP parser sees it.
pub(super) struct Edge(pub(super) Arc<Stream>);

/// What a connection waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wait {
    /// Nothing that is the client's to do.
    Nothing,
    /// The first byte.
    Start,
    /// The rest of a head.
    Head,
    /// The next request.
    Request,
    /// Likewise, and the parser holds nothing of it.
    Rest,
    /// The client takes what is written to it.
    Write,
}

struct Inner {
    transport: Transport,
    seat: Seat,
    /// Somebody wants to know of requests and answers: HTTP/1, before an upgrade.
    is_heeded: bool,
    /// Input that may hold the head that is parsed next: what came since the last one, or at least the last read.
    read: Vec<u8>,
    /// Where in it the last read begins.
    last: usize,
    /// So much of its end the parser has not seen yet.
    unread: usize,
    /// How much to read at once.
    next: usize,
    /// The client has ended its side.
    is_at_end: bool,
    /// The parser waits for input: it will notice by itself when the client leaves.
    is_watched: bool,
    /// No request has come yet.
    is_fresh: bool,
    /// The head of a request has begun.
    has_head: bool,
    /// Nothing has come behind the last request: neither a body nor the beginning of another.
    is_bare: bool,
    /// Requests so far.
    requests: u32,
    /// The service is at work on a request.
    is_open: bool,
    /// Likewise, or the body of its response has not ended.
    is_active: bool,
    /// Likewise, or some of the response is not written.
    is_busy: bool,
    /// The last request was HTTP/1.0, which knows no interim responses (RFC 9110 section 15.2).
    is_old: bool,
    /// The last request may have had both lengths and codings.
    is_framed_twice: bool,
    /// The parser has nothing left to write.
    is_clean: bool,
    /// Nobody would read what is written.
    is_abandoned: bool,
    /// The client takes nothing more at present.
    is_blocked: bool,
    /// How often it did again.
    unblocked: u32,
    /// Interim responses to write when they can be.
    interim: Vec<u8>,
    /// What we write before, or in place of, what the parser writes.
    own: Vec<u8>,
    /// So much of what the parser writes is replaced.
    replaces: usize,
    /// What the parser refused by itself.
    refused: Option<StatusCode>,
    /// Of the task that serves the connection.
    waker: Option<Waker>,
}

// === impl Stream ===

impl Stream {
    /// Of a client that has sent `early` already.
    pub(super) fn new(
        transport: Transport,
        early: Vec<u8>,
        protocol: Protocol,
        mut seat: Seat,
        limits: Limits,
    ) -> Self {
        seat.speaks(protocol);
        let inner = Inner {
            transport,
            seat,
            is_heeded: protocol == Protocol::Http1,
            unread: early.len(),
            next: READ_LEAST,
            is_at_end: false,
            is_watched: false,
            is_fresh: early.is_empty(),
            read: early,
            last: 0,
            has_head: false,
            is_bare: false,
            requests: 0,
            is_open: false,
            is_active: false,
            is_busy: false,
            is_old: false,
            is_framed_twice: false,
            is_clean: true,
            is_abandoned: false,
            is_blocked: false,
            unblocked: 0,
            interim: Vec::new(),
            own: Vec::new(),
            replaces: 0,
            refused: None,
            waker: None,
        };
        Self { limits, inner: Mutex::new(inner) }
    }

    /// The service begins with a request. To be called before the parser reads on.
    pub(super) fn begin<B: Body>(&self, request: &Request<B>) {
        let has_coding = request.headers().contains_key(TRANSFER_ENCODING);
        let mut inner = self.inner.lock();
        (inner.is_open, inner.is_active, inner.is_busy) = (true, true, true);
        (inner.is_fresh, inner.has_head) = (false, false);
        inner.is_old = request.version() == Version::HTTP_10;
        inner.is_framed_twice = has_coding && has_both_framings(&inner.read);
        // A head that has only begun does not end with an empty line.
        inner.is_bare = request.body().is_end_stream() && inner.read.ends_with(b"\r\n\r\n");
        inner.requests = inner.requests.wrapping_add(1);
        // What came before the end of this head holds none of the next.
        let last = mem::take(&mut inner.last);
        inner.read.drain(..last);
    }

    /// The service has answered.
    pub(super) fn answered(&self) {
        self.inner.lock().is_open = false;
    }

    /// The body of the answer has ended, or nobody wants it any more.
    pub(super) fn end(&self) {
        self.inner.lock().is_active = false;
    }

    /// From now on it is no HTTP any more.
    pub(super) fn becomes_tunnel(&self) {
        let mut inner = self.inner.lock();
        inner.is_heeded = false;
        inner.seat.speaks(Protocol::Tunnel);
    }

    /// How many requests have begun.
    pub(super) fn requests(&self) -> u32 {
        self.inner.lock().requests
    }

    /// Nothing is written any more: nobody is there to read it.
    pub(super) fn abandon(&self) {
        self.inner.lock().is_abandoned = true;
    }

    /// Gives back what only a request needs, while there is none.
    pub(super) fn rest(&self) {
        let mut inner = self.inner.lock();
        (inner.read, inner.own, inner.interim) = Default::default();
        inner.last = 0;
        inner.next = READ_LEAST;
    }

    /// Resolves when the client has sent more, or has left.
    pub(super) async fn more(&self) {
        poll_fn(|cx| self.inner.lock().transport.tcp().poll_read_ready(cx).map(drop)).await;
    }

    /// Whether the parser has nothing to do with it any more.
    pub(super) fn is_heeded(&self) -> bool {
        self.inner.lock().is_heeded
    }

    /// What the connection waits for, and a number that changes with each step forward. Remembers the task, which is
    /// woken when there is something to write that the parser does not know of.
    pub(super) fn waits(&self, cx: &Context<'_>) -> (Wait, u32) {
        let mut inner = self.inner.lock();
        inner.waker.get_or_insert_with(|| cx.waker().clone());
        let wait = if inner.is_blocked {
            Wait::Write
        } else if inner.is_busy {
            Wait::Nothing
        } else if inner.has_head {
            Wait::Head
        } else if inner.is_fresh {
            Wait::Start
        } else if inner.is_bare && inner.is_watched && inner.unread == 0 {
            Wait::Rest
        } else {
            Wait::Request
        };
        (wait, inner.unblocked.wrapping_add(inner.requests))
    }

    /// What the parser refused by itself, and has been answered with.
    pub(super) fn refused(&self) -> Option<StatusCode> {
        self.inner.lock().refused
    }

    /// Writes `bytes` when the parser does so no more.
    pub(super) async fn say(&self, bytes: &[u8]) -> io::Result<()> {
        self.inner.lock().own.extend(bytes);
        poll_fn(|cx| {
            let mut inner = self.inner.lock();
            ready!(inner.poll_own(cx))?;
            Pin::new(&mut inner.transport).poll_flush(cx)
        })
        .await
    }

    /// Ends our side, and takes no more than `most` bytes of what the client still sends, so that it reads our last
    /// words before it hears that nobody listens (RFC 9112 section 9.6).
    pub(super) async fn close(&self, mut most: usize) {
        let shut = poll_fn(|cx| Pin::new(&mut self.inner.lock().transport).poll_shutdown(cx)).await;
        let mut sink = [0; 4096];
        while shut.is_ok() && most > 0 {
            let taken = poll_fn(|cx| {
                let inner = self.inner.lock();
                let tcp = inner.transport.tcp();
                loop {
                    ready!(tcp.poll_read_ready(cx))?;
                    match tcp.try_read(&mut sink) {
                        Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                        taken => return Poll::Ready(taken),
                    }
                }
            });
            match taken.await {
                Ok(taken) if taken > 0 => most = most.saturating_sub(taken),
                _ => return,
            }
        }
    }

    /// Whether the client may be sending something that nobody will read.
    pub(super) fn is_unread(&self) -> bool {
        let inner = self.inner.lock();
        !inner.is_at_end && matches!(inner.transport.tcp().try_read(&mut [0; 64]), Ok(1..))
    }

    /// The connection ends at once, and with it what was written and not taken.
    pub(super) fn reset(&self) {
        let inner = self.inner.lock();
        let _ = socket2::SockRef::from(inner.transport.tcp()).set_linger(Some(Default::default()));
    }
}

impl ClientConnection for Stream {
    fn poll_left(&self, cx: &mut Context<'_>) -> Poll<bool> {
        let inner = self.inner.lock();
        // In HTTP/2 the parser never stops to look; in HTTP/1 it does so for bodies alone.
        if inner.is_watched
            || !inner.is_heeded
            || inner.transport.tcp().poll_read_ready(cx).is_pending()
        {
            return Poll::Pending;
        }
        Poll::Ready(inner.transport.is_closed_by_client())
    }

    fn framed_twice(&self) -> bool {
        self.inner.lock().is_framed_twice
    }

    fn inform(&self, response: &[u8]) {
        let mut inner = self.inner.lock();
        let fits = inner.interim.len() + response.len() <= INTERIM_BYTES;
        if inner.is_heeded && inner.is_open && !inner.is_old && fits {
            inner.interim.extend(response);
            if let Some(waker) = &inner.waker {
                waker.wake_by_ref();
            }
        }
    }
}

#[cfg(test)]
mod tests;
