//! The state of one connection at its edge: which request it is at, and what it waits for. Reads and writes no byte.

use super::heads::has_both_framings;
use crate::{
    metrics::Protocol,
    server::{connection_limit::ConnectionPermit, transport::Transport, unread_body::UnreadBody},
};
use http::{Request, StatusCode, Version, header::TRANSFER_ENCODING};
use http_body::Body;
use std::{
    mem,
    sync::Arc,
    task::{Context, Waker},
};

/// The size of a read at first, and again when reads stay mostly empty: 4 KiB hold a whole request most of the time.
pub(super) const READ_LEAST: usize = 4 << 10;

/// The event that a connection waits for. Each but the first has a time-out of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::server) enum ClientWait {
    /// The connection waits for the gateway or the upstream, which have time-outs of their own.
    Nothing,
    /// The client has not sent the rest of a request's body whose answer it has.
    Body,
    /// The client has sent nothing since it connected.
    Start,
    /// The client has sent the beginning of a request's head.
    Head,
    /// The client has not begun its next request.
    Request,
    /// The client has not begun its next request, and the parser holds no byte of it, so that buffers can be given back.
    Rest,
    /// The client takes nothing of the response that is being written.
    Write,
}

/// The state of one connection at its edge.
pub(super) struct StreamState {
    pub(super) transport: Transport,
    permit: ConnectionPermit,
    /// The connection speaks HTTP/1, whose requests and responses the edge follows. False for HTTP/2, and from an upgrade
    /// on: then bytes pass without being looked at.
    pub(super) is_http1: bool,
    pub(super) input: Input,
    pub(super) request: LastRequest,
    pub(super) stage: RequestStage,
    /// The client may still be sending the last request, although that has its response.
    pub(super) is_sending: bool,
    /// The body of the last request, until its end has been read.
    pub(super) unread: Option<Arc<UnreadBody>>,
    pub(super) output: Output,
    /// The status of a request that the parser refused by itself, after the answer to it was written.
    pub(super) refused: Option<StatusCode>,
    /// Wakes the task that serves the connection.
    pub(super) waker: Option<Waker>,
    requests: u32,
}

/// The bytes that the client sent.
pub(super) struct Input {
    /// The bytes that may hold the head that is parsed next: all since the last head, or at least the last read.
    pub(super) bytes: Vec<u8>,
    /// The position in `bytes` at which the last read begins.
    pub(super) last: usize,
    /// How many bytes at the end of `bytes` the parser has not received yet.
    pub(super) unread: usize,
    /// The size of the next read.
    pub(super) next: usize,
    pub(super) last_read: LastRead,
    pub(super) head: HeadStage,
}

/// The result of the last read from the socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LastRead {
    Bytes,
    /// Nothing: the parser is waiting for input, so that it notices by itself when the client disconnects.
    Pending,
    /// The client has closed its side.
    End,
}

/// How much of the next request's head has arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HeadStage {
    /// No byte has arrived since the client connected.
    Fresh,
    /// Nothing has arrived since the last head, or only its body.
    Awaited,
    /// The head has begun.
    Begun,
}

/// Facts about the last request that the parser accepted.
#[derive(Debug, Default)]
pub(super) struct LastRequest {
    /// The request was HTTP/1.0, which knows no interim responses (RFC 9110 section 15.2).
    pub(super) is_http10: bool,
    /// The request may have had both Content-Length and Transfer-Encoding.
    pub(super) is_framed_twice: bool,
    /// Nothing followed the head: neither a body nor the beginning of another request.
    is_head_only: bool,
}

/// How far the connection is with the last request. The stages follow each other in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestStage {
    /// No request is open.
    Idle,
    /// The service works on the response.
    Open,
    /// The service has returned the response, and its body has not ended.
    Body,
    /// The body has ended, and the parser still has some of it to write.
    Flushing,
}

/// The bytes that the gateway writes to the client, apart from those of the parser.
pub(super) struct Output {
    /// Interim responses that wait until the parser has nothing to write.
    pub(super) interim: Vec<u8>,
    /// Bytes of the gateway that are written before, or in place of, those of the parser.
    pub(super) own: Vec<u8>,
    /// The last bytes of the parser that came in several small buffers and were written as one.
    pub(super) whole: Vec<u8>,
    /// How many bytes of the parser `own` replaces.
    pub(super) replaces: usize,
    /// The parser has written all that it had.
    pub(super) is_clean: bool,
    /// The client has left: nothing is written any more.
    pub(super) is_abandoned: bool,
    /// The last write found the socket full.
    is_blocked: bool,
    /// How often a write succeeded after the socket was full.
    unblocked: u32,
}

// === impl StreamState ===

impl StreamState {
    /// The state of a new connection. `early` are the bytes that the handshake has read.
    pub(super) fn new(
        transport: Transport,
        early: Vec<u8>,
        protocol: Protocol,
        mut permit: ConnectionPermit,
    ) -> Self {
        permit.set_protocol(protocol);
        Self {
            transport,
            permit,
            is_http1: protocol == Protocol::Http1,
            input: Input::new(early),
            request: LastRequest::default(),
            stage: RequestStage::Idle,
            is_sending: false,
            unread: None,
            output: Output::new(),
            refused: None,
            waker: None,
            requests: 0,
        }
    }

    /// Notes that the parser has accepted `request`, and returns its body as the connection sees it. Called before the
    /// parser reads on.
    pub(super) fn begin<B: Body>(&mut self, request: &Request<B>) -> Option<Arc<UnreadBody>> {
        let (read, is_bare) = (&self.input.bytes, request.body().is_end_stream());
        let is_framed_twice =
            || request.headers().contains_key(TRANSFER_ENCODING) && has_both_framings(read);
        self.request = LastRequest {
            is_http10: request.version() == Version::HTTP_10,
            // The parser gives each request with a coding a body. If there is none, it is uncertain.
            is_framed_twice: is_bare || is_framed_twice(),
            // The beginning of another head does not end with an empty line.
            is_head_only: is_bare && read.ends_with(b"\r\n\r\n"),
        };
        self.stage = RequestStage::Open;
        self.requests = self.requests.wrapping_add(1);
        self.input.end_head();
        // The body before this request has ended, or the parser would not have come here.
        self.unread = UnreadBody::of(request);
        self.unread.clone()
    }

    /// Notes that the service has returned the response.
    pub(super) fn answered(&mut self) {
        if self.stage == RequestStage::Open {
            self.stage = RequestStage::Body;
        }
    }

    /// Whether bytes that come now may belong to the body of the last request.
    pub(super) fn is_within_body(&self) -> bool {
        self.stage.is_active() || self.unread.as_ref().is_some_and(|unread| !unread.is_over())
    }

    /// Reads and drops the rest of the request's body, once the request has its response and the body is not read otherwise.
    pub(super) fn poll_unread(&mut self, cx: &mut Context<'_>) {
        if self.stage != RequestStage::Open
            && let Some(unread) = &self.unread
            && unread.poll_rest(cx).is_ready()
        {
            self.unread = None;
        }
    }

    /// Notes that the body of the response has ended, or was dropped.
    pub(super) fn end(&mut self) {
        if self.stage.is_active() {
            self.stage = RequestStage::Flushing;
        }
    }

    /// Notes that another protocol follows the response (RFC 9110 section 7.8).
    pub(super) fn becomes_tunnel(&mut self) {
        self.is_http1 = false;
        self.permit.set_protocol(Protocol::Tunnel);
    }

    /// Returns how many requests have begun. The number wraps.
    pub(super) fn requests(&self) -> u32 {
        self.requests
    }

    /// Frees the buffers that only a request needs.
    pub(super) fn rest(&mut self) {
        (self.input.bytes, self.output.own, self.output.interim) = Default::default();
        self.output.whole = Vec::new();
        (self.input.last, self.input.next) = (0, READ_LEAST);
    }

    /// Returns what the connection waits for, and a number that changes with each step forward.
    pub(super) fn waits(&self) -> (ClientWait, u32) {
        let is_parser_empty = self.request.is_head_only
            && self.input.last_read == LastRead::Pending
            && self.input.unread == 0;
        let wait = match self.input.head {
            _ if self.output.is_blocked => ClientWait::Write,
            _ if self.stage != RequestStage::Idle => ClientWait::Nothing,
            _ if self.unread.is_some() => ClientWait::Body,
            HeadStage::Begun => ClientWait::Head,
            HeadStage::Fresh => ClientWait::Start,
            HeadStage::Awaited if is_parser_empty => ClientWait::Rest,
            HeadStage::Awaited => ClientWait::Request,
        };
        (wait, self.output.unblocked.wrapping_add(self.requests))
    }
}

// === impl Input ===

impl Input {
    fn new(early: Vec<u8>) -> Self {
        Self {
            last: 0,
            unread: early.len(),
            next: READ_LEAST,
            last_read: LastRead::Bytes,
            head: if early.is_empty() { HeadStage::Fresh } else { HeadStage::Awaited },
            bytes: early,
        }
    }

    /// Notes that bytes arrived on a connection whose requests the edge does not follow.
    pub(super) fn end_fresh(&mut self) {
        if self.head == HeadStage::Fresh {
            self.head = HeadStage::Awaited;
        }
    }

    /// Drops what came before the last read: a head ends in it, so that the bytes before it hold none of the next head.
    fn end_head(&mut self) {
        self.head = HeadStage::Awaited;
        let last = mem::take(&mut self.last);
        self.bytes.drain(..last);
    }
}

// === impl RequestStage ===

impl RequestStage {
    /// Whether a request is open and its response has not ended.
    pub(super) fn is_active(self) -> bool {
        matches!(self, Self::Open | Self::Body)
    }
}

// === impl Output ===

impl Output {
    fn new() -> Self {
        Self {
            interim: Vec::new(),
            own: Vec::new(),
            whole: Vec::new(),
            replaces: 0,
            is_clean: true,
            is_abandoned: false,
            is_blocked: false,
            unblocked: 0,
        }
    }

    /// Notes whether the socket took what was written.
    pub(super) fn note_written(&mut self, is_pending: bool) {
        if is_pending {
            self.is_blocked = true;
        } else if self.is_blocked {
            self.is_blocked = false;
            self.unblocked = self.unblocked.wrapping_add(1);
        }
    }
}
