//! The edge of a connection: what the HTTP parser refuses by itself, without a word, is said in our own.

use crate::answer::Failure;
use http::{Response, StatusCode};
use hyper::rt::{Read, ReadBufCursor, Write};
use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
};

/// How the parser's own answers begin behind their status line. No answer that comes from a service does: its
/// `content-length` stands before a `connection` that the drain adds.
const MARK: &[u8] = b"\r\nconnection: close\r\ncontent-length: 0\r\ndate: ";

/// A stream whose bare refusals become problems.
pub(super) struct Edge<T> {
    inner: T,
    /// What is left of an answer that replaces `replaces` bytes.
    own: Vec<u8>,
    replaces: usize,
}

// === impl Edge ===

impl<T> Edge<T> {
    pub(super) fn new(inner: T) -> Self {
        Self { inner, own: Vec::new(), replaces: 0 }
    }
}

impl<T: Write + Unpin> Edge<T> {
    fn poll_own(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        while !self.own.is_empty() {
            match ready!(Pin::new(&mut self.inner).poll_write(cx, &self.own))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => drop(self.own.drain(..written)),
            }
        }
        Poll::Ready(Ok(std::mem::take(&mut self.replaces)))
    }
}

impl<T: Read + Unpin> Read for Edge<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl<T: Write + Unpin> Write for Edge<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.replaces == 0 {
            let Some(own) = problem(buf) else {
                return Pin::new(&mut self.inner).poll_write(cx, buf);
            };
            (self.own, self.replaces) = (own, buf.len());
        }
        self.poll_own(cx)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match bufs {
            // The parser's answer is all that is left to write on its connection.
            [only] => self.poll_write(cx, only),
            _ => Pin::new(&mut self.inner).poll_write_vectored(cx, bufs),
        }
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
            Failure::BadRequest("this is not a request as HTTP/1.1 writes it")
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
    fn what_a_service_answers_stays() {
        let answers: [&[u8]; 3] = [
            b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\ndate: x\r\n\r\n",
            b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\ndate: x\r\n\r\n",
            b"HTTP/1.1 404 Not Found\r\nserver: x\r\n\r\n",
        ];
        assert_eq!(answers.map(problem), [None, None, None]);
    }
}
