//! A client's connection as hyper's parser sees it.

use super::{
    io::{poll_before, poll_fill, poll_flush, poll_shutdown, poll_write},
    state::HeadStage,
    stream::ClientStream,
};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::rt::TokioIo;
use std::{
    io::{self, ErrorKind, IoSlice},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};
use tokio::io::AsyncWrite;

/// A client's connection as hyper's parser sees it.
pub(in crate::server) struct Edge(pub(in crate::server) Arc<ClientStream>);

// === impl Edge ===

impl Read for Edge {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let state = &mut *self.0.lock();
        if state.input.unread == 0 {
            if !state.is_http1 {
                state.input.bytes = Vec::new();
                ready!(Pin::new(&mut TokioIo::new(&mut state.transport)).poll_read(cx, buf))?;
                state.input.end_fresh();
                return Poll::Ready(Ok(()));
            }
            let head = self.0.limits.header_bytes;
            ready!(poll_fill(state, cx, buf.remaining(), head))?;
        }
        let is_within_body = state.is_within_body();
        let input = &mut state.input;
        let start = input.bytes.len() - input.unread;
        let count = input.unread.min(buf.remaining());
        let new = &input.bytes[start..start + count];
        // Empty lines before a request are not part of it (RFC 9112 section 2.2).
        let is_some = new.iter().any(|byte| !b"\r\n".contains(byte));
        if state.is_http1 && !is_within_body && is_some {
            input.head = HeadStage::Begun;
        }
        buf.put_slice(new);
        input.unread -= count;
        Poll::Ready(Ok(()))
    }
}

impl Write for Edge {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(buf)])
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let state = &mut *self.0.lock();
        let flushed = if state.is_http1 {
            poll_flush(state, cx)
        } else {
            Pin::new(&mut state.transport).poll_flush(cx)
        };
        state.output.note_written(flushed.is_pending());
        flushed
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        poll_shutdown(&mut self.0.lock(), cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.lock().transport.is_write_vectored()
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let state = &mut *self.0.lock();
        if state.output.is_abandoned {
            return Poll::Ready(Err(ErrorKind::BrokenPipe.into()));
        }
        let mut written = None;
        if state.is_http1 {
            // A response of several buffers has a body, so that it is no bare refusal of the parser.
            let whole: &[u8] = if let [only] = bufs { only } else { &[] };
            written = match poll_before(state, cx, whole, &self.0.limits) {
                Poll::Pending => Some(Poll::Pending),
                Poll::Ready(before) => before?.map(|replaced| Poll::Ready(Ok(replaced))),
            };
        }
        let written = written.unwrap_or_else(|| poll_write(state, cx, bufs));
        state.output.note_written(written.is_pending());
        written
    }
}
