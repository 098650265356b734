//! A connection as redis-rs gets it: its replies are bounded before redis-rs reads them, and it is known which commands
//! have no reply yet, and why the connection ended. Changes no byte.

use super::{
    commands::Commands,
    frames::{Frames, Malformed},
    stream::{RedisStream, closed},
};
use parking_lot::Mutex;
use std::{
    collections::VecDeque,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::Instant,
};

/// Calls that a subscriber has received and not taken, at most. It takes them as fast as they come: a server that has
/// sent so many in one turn of the runtime calls no tickets of ours.
const MOST_UNREAD: usize = 65_536;

/// A connection whose replies are bounded. [`Traffic`] says what has happened on it.
pub(super) struct BoundedStream {
    inner: RedisStream,
    traffic: Arc<Traffic>,
    commands: Commands,
    replies: Frames,
    /// The traffic has an error, which the next read returns.
    has_ended: bool,
}

/// The commands and replies on one connection: which are unanswered, and why there will be no more.
#[derive(Debug)]
pub(in crate::store::redis) struct Traffic {
    expects: Replies,
    state: Mutex<TrafficState>,
}

/// Which replies a server may send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::store::redis) enum Replies {
    /// One to each command.
    Asked,
    /// Messages of a channel, too.
    Pushed,
}

#[derive(Debug, Default)]
struct TrafficState {
    /// When each command without a reply began to be written, oldest first. As many as a connection may have calls,
    /// because each is a call, or one that its caller has left.
    unanswered: VecDeque<Instant>,
    /// Messages that came and were not taken.
    unread: usize,
    /// Why nothing comes any more.
    ended: Option<io::Error>,
}

// === impl BoundedStream ===

impl BoundedStream {
    pub(super) fn new(inner: RedisStream, expects: Replies) -> (Self, Arc<Traffic>) {
        let traffic = Arc::new(Traffic { expects, state: Mutex::default() });
        let (commands, replies) = (Commands::default(), Frames::new());
        (Self { inner, traffic: traffic.clone(), commands, replies, has_ended: false }, traffic)
    }

    /// Follows commands that the socket has taken.
    fn sent(&mut self, bytes: &[u8]) {
        let begun = self.commands.begun(bytes);
        if begun > 0 {
            let now = Instant::now();
            self.traffic.state.lock().unanswered.extend(std::iter::repeat_n(now, begun));
        }
    }

    /// Follows replies that have come; how many of their bytes may be handed on, and the error that comes after them.
    fn received(&mut self, bytes: &[u8]) -> (usize, io::Result<()>) {
        let mut at = 0;
        while at < bytes.len() {
            match self.replies.advance(&bytes[at..]) {
                Err(why) => return (at, Err(why.into())),
                Ok(length) if self.replies.is_between() => {
                    if let Err(error) = self.traffic.answered() {
                        return (at, Err(error));
                    }
                    at += length;
                }
                Ok(length) => at += length,
            }
        }
        (at, Ok(()))
    }
}

impl AsyncRead for BoundedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.has_ended {
            return Poll::Ready(Err(this.traffic.error().unwrap_or_else(closed)));
        }
        let before = buffer.filled().len();
        let read = std::task::ready!(Pin::new(&mut this.inner).poll_read(cx, buffer));
        let came = buffer.filled().len() - before;
        let error = match read {
            Ok(()) if came == 0 => Some(closed()),
            Ok(()) => {
                let (whole, result) = this.received(&buffer.filled()[before..]);
                // The replies before the error are believed.
                buffer.set_filled(before + whole);
                result.err()
            }
            Err(error) => Some(error),
        };
        match error {
            None => Poll::Ready(Ok(())),
            Some(error) => {
                this.has_ended = true;
                let error = this.traffic.fail(error);
                let has_come = buffer.filled().len() > before;
                Poll::Ready(if has_come { Ok(()) } else { Err(error) })
            }
        }
    }
}

impl AsyncWrite for BoundedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        match std::task::ready!(Pin::new(&mut this.inner).poll_write(cx, bytes)) {
            Ok(count) => {
                this.sent(&bytes[..count]);
                Poll::Ready(Ok(count))
            }
            Err(error) => Poll::Ready(Err(this.traffic.fail(error))),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        Pin::new(&mut this.inner).poll_flush(cx).map_err(|error| this.traffic.fail(error))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

// === impl Traffic ===

impl Traffic {
    /// When the oldest command without a reply began to be written.
    pub(in crate::store::redis) fn oldest(&self) -> Option<Instant> {
        self.state.lock().unanswered.front().copied()
    }

    /// How many commands have no reply yet.
    pub(super) fn unanswered(&self) -> usize {
        self.state.lock().unanswered.len()
    }

    /// The subscriber has taken a message.
    pub(in crate::store::redis) fn took(&self) {
        let mut state = self.state.lock();
        state.unread = state.unread.saturating_sub(1);
    }

    /// Why the connection has ended, if it has.
    pub(in crate::store::redis) fn error(&self) -> Option<io::Error> {
        let state = self.state.lock();
        state.ended.as_ref().map(|error| io::Error::new(error.kind(), error.to_string()))
    }

    /// Notes a whole reply.
    ///
    /// # Errors
    ///
    /// When nothing was asked: redis-rs would give it to the next command.
    fn answered(&self) -> io::Result<()> {
        let mut state = self.state.lock();
        match (self.expects, state.unanswered.pop_front()) {
            (Replies::Asked, Some(_)) => Ok(()),
            (Replies::Asked, None) => Err(Malformed::Foreign.into()),
            (Replies::Pushed, _) if state.unread >= MOST_UNREAD => Err(Malformed::Foreign.into()),
            (Replies::Pushed, _) => {
                state.unread += 1;
                Ok(())
            }
        }
    }

    /// Notes why the connection has ended, if that is not known yet.
    fn fail(&self, error: io::Error) -> io::Error {
        let copy = io::Error::new(error.kind(), error.to_string());
        self.state.lock().ended.get_or_insert(error);
        copy
    }
}
