//! The edge of a connection: its stream, shared by the HTTP parser and by whoever must know whether the client is
//! still there. What the parser refuses by itself, without a word, is said in our own.

use crate::answer::Failure;
use http::{Response, StatusCode};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use std::{
    future::Future,
    io::{self, IoSlice},
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll, Waker, ready},
};
use tokio::{io::Interest, net::TcpStream};

/// How the parser's own answers go on behind their status line.
const MARK: &[u8] = b"\r\nconnection: close\r\ncontent-length: 0\r\ndate: ";

/// A connection's stream.
pub(super) struct Stream {
    /// Locked by one task only, for no longer than a system call.
    inner: Mutex<TokioIo<TcpStream>>,
    /// Requests that the service was asked to answer.
    requests: AtomicU64,
    /// The parser waits for input: it will notice by itself when the client leaves.
    is_watched: AtomicBool,
}

/// The stream as the HTTP parser sees it.
pub(super) struct Edge {
    stream: Arc<Stream>,
    /// Answers that were written.
    answers: u64,
    /// What is left of an answer that replaces `replaces` bytes.
    own: Vec<u8>,
    replaces: usize,
}

// === impl Stream ===

impl Stream {
    pub(super) fn new(stream: TcpStream) -> Self {
        let (inner, requests) = (Mutex::new(TokioIo::new(stream)), AtomicU64::new(0));
        Self { inner, requests, is_watched: AtomicBool::new(false) }
    }

    /// Counts a request that the service answers.
    pub(super) fn count_request(&self) {
        self.requests.fetch_add(1, Relaxed);
    }

    /// Whether the client has closed its side, also behind input that nobody has read; `None` while the parser waits
    /// for input, and will notice by itself.
    pub(super) fn is_closed_by_client(&self) -> Option<bool> {
        if self.is_watched.load(Relaxed) {
            return None;
        }
        let stream = self.inner.lock();
        let readiness = pin!(stream.inner().ready(Interest::READABLE));
        Some(match readiness.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(readiness) => readiness.is_ok_and(|readiness| readiness.is_read_closed()),
            Poll::Pending => false,
        })
    }
}

// === impl Edge ===

impl Edge {
    pub(super) fn new(stream: Arc<Stream>) -> Self {
        Self { stream, answers: 0, own: Vec::new(), replaces: 0 }
    }

    /// The problem to write in place of `buf`: an answer to no request that the service has seen.
    fn replacement(&self, buf: &[u8]) -> Option<Vec<u8>> {
        let unasked = self.answers >= self.stream.requests.load(Relaxed);
        if unasked { problem(buf) } else { None }
    }

    /// Counts an answer whose head begins in `buf`, once it is written.
    fn count(&mut self, buf: &[u8], written: &Poll<io::Result<usize>>) {
        let interim = buf.get(9) == Some(&b'1');
        if matches!(written, Poll::Ready(Ok(_))) && buf.starts_with(b"HTTP/1.") && !interim {
            self.answers += 1;
        }
    }

    fn poll_own(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        while !self.own.is_empty() {
            let mut stream = self.stream.inner.lock();
            match ready!(Pin::new(&mut *stream).poll_write(cx, &self.own))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => drop(self.own.drain(..written)),
            }
        }
        Poll::Ready(Ok(std::mem::take(&mut self.replaces)))
    }
}

impl Read for Edge {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut *self.stream.inner.lock()).poll_read(cx, buf);
        self.stream.is_watched.store(read.is_pending(), Relaxed);
        read
    }
}

impl Write for Edge {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.replaces == 0 {
            let Some(own) = self.replacement(buf) else {
                let written = Pin::new(&mut *self.stream.inner.lock()).poll_write(cx, buf);
                self.count(buf, &written);
                return written;
            };
            (self.own, self.replaces) = (own, buf.len());
        }
        self.poll_own(cx)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.stream.inner.lock()).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.stream.inner.lock()).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.inner.lock().is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if let [only] = bufs {
            return self.poll_write(cx, only);
        }
        // With a body behind it, it is no answer of the parser.
        let written = Pin::new(&mut *self.stream.inner.lock()).poll_write_vectored(cx, bufs);
        self.count(bufs.first().map_or(&[], |first| first), &written);
        written
    }
}

/// The problem in place of a bare refusal; `None` for everything else.
fn problem(buf: &[u8]) -> Option<Vec<u8>> {
    // Almost everything ends here.
    let status = buf.strip_prefix(b"HTTP/1.1 4")?;
    let line = status.iter().position(|byte| *byte == b'\r')?;
    let date = status[line..].strip_prefix(MARK)?.strip_suffix(b"\r\n\r\n")?;
    let status = StatusCode::from_bytes(&buf[9..12]).ok()?;
    let failure = match status {
        StatusCode::BAD_REQUEST => {
            Failure::Malformed("this is not a request as HTTP/1.1 writes it".into())
        }
        StatusCode::URI_TOO_LONG => Failure::TooLarge(status, "the target is too long"),
        StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => Failure::TooLarge(
            status,
            "there are more than 100 headers, or more than 32 KiB of them",
        ),
        _ => return None,
    };
    Some(serialized(&failure.response(), date))
}

fn serialized(response: &Response<bytes::Bytes>, date: &[u8]) -> Vec<u8> {
    let (status, body) = (response.status(), response.body());
    let reason = status.canonical_reason().unwrap_or_default();
    let mut out = format!("HTTP/1.1 {} {reason}\r\n", status.as_u16()).into_bytes();
    for (name, value) in response.headers() {
        out.extend([name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"].concat());
    }
    out.extend(format!("connection: close\r\ncontent-length: {}\r\ndate: ", body.len()).bytes());
    out.extend([date, b"\r\n\r\n", body].concat());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_refusal_becomes_a_problem_with_its_date() {
        let bare = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\n\
            content-length: 0\r\ndate: Sat, 21 Nov 2026 10:13:15 GMT\r\n\r\n";
        let text = String::from_utf8(problem(bare).expect("a problem")).expect("text");
        assert!(text.starts_with("HTTP/1.1 431 Request Header Fields Too Large\r\n"), "{text}");
        assert!(text.contains("\r\npaceway-origin: gateway\r\n"), "{text}");
        assert!(text.contains("\r\ndate: Sat, 21 Nov 2026 10:13:15 GMT\r\n\r\n{"), "{text}");
    }

    #[test]
    fn other_answers_stay() {
        let answers: [&[u8]; 3] = [
            b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\ndate: x\r\n\r\n",
            b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\ndate: x\r\n\r\n",
            b"HTTP/1.1 404 Not Found\r\nserver: x\r\n\r\n",
        ];
        assert_eq!(answers.map(problem), [None, None, None]);
    }
}
