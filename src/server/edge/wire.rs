//! What the parser reads and writes, and what goes beside it: the part of an edge that is polled.

use super::{Edge, Inner, READ_LEAST, READ_MOST, heads::problem};
use crate::config::Limits;
use bytes::BufMut;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::rt::TokioIo;
use std::{
    io::{self, ErrorKind, IoSlice},
    mem,
    pin::{Pin, pin},
    task::{Context, Poll, ready},
};
use tokio::io::{AsyncReadExt, AsyncWrite};

/// As many bytes are written in one piece, rather than in several that are.
const TOGETHER: usize = 1 << 10;

// === impl Inner ===

impl Inner {
    /// Reads what the parser gets next, and keeps it; how much it is.
    fn poll_fill(
        &mut self,
        cx: &mut Context<'_>,
        room: usize,
        head: usize,
    ) -> Poll<io::Result<usize>> {
        if self.is_active {
            // The parser reads on behind a request only when it has used up all that it had.
            self.read.clear();
        } else if self.read.len() > head {
            // No head is longer than that.
            self.read.drain(..self.read.len() - head);
        }
        self.last = self.read.len();
        let most = self.next.min(room);
        self.read.reserve(most);
        let mut limited = (&mut self.read).limit(most);
        let Poll::Ready(count) = pin!(self.transport.read_buf(&mut limited)).poll(cx)? else {
            if !self.is_busy && self.read.capacity() > 4 * READ_LEAST {
                self.read.shrink_to(READ_LEAST);
                self.next = READ_LEAST;
            }
            return Poll::Pending;
        };
        if count == self.next {
            self.next = READ_MOST.min(2 * self.next);
        } else if count < self.next / 4 {
            self.next = READ_LEAST.max(self.next / 2);
        }
        self.is_at_end = count == 0;
        Poll::Ready(Ok(count))
    }

    /// Writes what stands before `buf`. `Some` when it stood in its place.
    fn poll_before(
        &mut self,
        cx: &mut Context<'_>,
        buf: &[u8],
        limits: &Limits,
    ) -> Poll<io::Result<Option<usize>>> {
        if self.is_clean && self.own.is_empty() {
            mem::swap(&mut self.own, &mut self.interim);
            if !self.is_busy
                && let Some((status, problem)) = problem(buf, &self.read, limits)
            {
                (self.own, self.replaces, self.refused) = (problem, buf.len(), Some(status));
            }
        }
        if self.own.is_empty() && self.replaces == 0 {
            return Poll::Ready(Ok(None));
        }
        ready!(self.poll_own(cx))?;
        let replaced = mem::take(&mut self.replaces);
        Poll::Ready(Ok((replaced > 0).then_some(replaced)))
    }

    pub(super) fn poll_own(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.own.is_empty() {
            match ready!(Pin::new(&mut self.transport).poll_write(cx, &self.own))? {
                0 => return Poll::Ready(Err(ErrorKind::WriteZero.into())),
                written => drop(self.own.drain(..written)),
            }
        }
        Poll::Ready(Ok(()))
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.is_clean = true;
        if !self.interim.is_empty() {
            if !self.is_open {
                // The final response has been written meanwhile.
                self.interim.clear();
            } else if self.own.is_empty() {
                mem::swap(&mut self.own, &mut self.interim);
            }
        }
        ready!(self.poll_own(cx))?;
        ready!(Pin::new(&mut self.transport).poll_flush(cx))?;
        self.is_busy &= self.is_active;
        Poll::Ready(Ok(()))
    }

    /// Keeps in mind whether the client takes what is written.
    fn heed<T>(&mut self, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_pending() {
            self.is_blocked = true;
        } else if self.is_blocked {
            self.is_blocked = false;
            self.unblocked = self.unblocked.wrapping_add(1);
        }
        written
    }
}

// === impl Edge ===

impl Read for Edge {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let inner = &mut *self.0.inner.lock();
        if inner.unread == 0 {
            if !inner.is_heeded {
                inner.read = Vec::new();
                ready!(Pin::new(&mut TokioIo::new(&mut inner.transport)).poll_read(cx, buf))?;
                inner.is_fresh = false;
                return Poll::Ready(Ok(()));
            }
            let head = self.0.limits.header_bytes;
            let filled = inner.poll_fill(cx, buf.remaining(), head);
            inner.is_watched = filled.is_pending();
            inner.unread = ready!(filled)?;
        }
        let start = inner.read.len() - inner.unread;
        let count = inner.unread.min(buf.remaining());
        let new = &inner.read[start..start + count];
        // Empty lines before a request are none of it (RFC 9112 section 2.2).
        let is_some = new.iter().any(|byte| !b"\r\n".contains(byte));
        inner.has_head |= inner.is_heeded && !inner.is_active && is_some;
        buf.put_slice(new);
        inner.unread -= count;
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
        let inner = &mut *self.0.inner.lock();
        let flushed = match inner.is_heeded {
            true => inner.poll_flush(cx),
            false => Pin::new(&mut inner.transport).poll_flush(cx),
        };
        inner.heed(flushed)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0.inner.lock().transport).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.inner.lock().transport.is_write_vectored()
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let inner = &mut *self.0.inner.lock();
        if inner.is_abandoned {
            return Poll::Ready(Err(ErrorKind::BrokenPipe.into()));
        }
        if inner.is_heeded {
            // With a body behind it, it is no answer of the parser.
            let whole: &[u8] = if let [only] = bufs { only } else { &[] };
            let Poll::Ready(before) = inner.poll_before(cx, whole, &self.0.limits) else {
                return inner.heed(Poll::Pending);
            };
            if let Some(replaced) = before? {
                return inner.heed(Poll::Ready(Ok(replaced)));
            }
        }
        let written = match together(bufs, &mut [0; TOGETHER]) {
            Some(whole) => Pin::new(&mut inner.transport).poll_write(cx, whole),
            None => Pin::new(&mut inner.transport).poll_write_vectored(cx, bufs),
        };
        inner.is_clean &= written.is_pending();
        inner.heed(written)
    }
}

/// Small buffers in one: a copy costs less than what the system does for each.
fn together<'a>(bufs: &[IoSlice<'_>], whole: &'a mut [u8; TOGETHER]) -> Option<&'a [u8]> {
    let length: usize = bufs.iter().map(|buf| buf.len()).sum();
    if bufs.len() < 2 || length > TOGETHER {
        return None;
    }
    let mut at = 0;
    for buf in bufs {
        whole[at..at + buf.len()].copy_from_slice(buf);
        at += buf.len();
    }
    Some(&whole[..length])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_buffers_become_one() {
        let buffers = |lengths: &[usize]| lengths.iter().map(|n| vec![*n as u8; *n]).collect();
        for (lengths, is_one) in [
            (vec![300, 128], true),
            (vec![1, 0, 2], true),
            (vec![9], false),
            (vec![1, TOGETHER], false),
        ] {
            let parts: Vec<Vec<u8>> = buffers(&lengths);
            let slices: Vec<_> = parts.iter().map(|part| IoSlice::new(part)).collect();
            let mut room = [0; TOGETHER];
            let whole = together(&slices, &mut room).map(<[u8]>::to_vec);
            assert_eq!(whole, is_one.then(|| parts.concat()), "{lengths:?}");
        }
    }
}
