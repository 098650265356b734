//! Writes a request to an upstream: its head, then its body piece by piece. Reads nothing.

use super::framing::Encoder;
use crate::upstream::{error::WireError, stream::UpstreamStream, upload::Upload};
use bytes::{Buf, Bytes};
use http::{
    HeaderMap, HeaderName, Request,
    header::{TRAILER, TRANSFER_ENCODING},
};
use http_body::Body;
use std::{
    io::{self, ErrorKind, IoSlice},
    mem,
    pin::Pin,
    task::{Context, Poll, ready},
};
use tokio::io::AsyncWrite;

/// The room of an empty buffer that is kept for the next request, in bytes. A larger buffer is freed.
const KEPT: usize = 4 << 10;

/// The bytes that are still to be written, in the order of the fields.
#[derive(Debug, Default)]
pub(super) struct OutputBuffer {
    /// The head of the request, and the size lines that frame its chunks.
    pub(super) text: Vec<u8>,
    /// The number of bytes of `text` that are written.
    written: usize,
    /// A piece of the body, written without being copied.
    data: Bytes,
    /// The line end after a chunk, or nothing.
    tail: &'static [u8],
    /// The octets that were written since the current request began.
    pub(super) count: u64,
}

/// The rest of a request's body, and how it is framed.
#[derive(Debug)]
pub(in crate::upstream) struct OutgoingBody {
    upload: Upload,
    /// `None` once the end of the body is written, or if there is no body.
    encoder: Option<Encoder>,
    /// The trailers that the field `Trailer` announces (RFC 9110 section 6.6.2). No other ones are forwarded.
    announced: Vec<HeaderName>,
}

// === impl OutputBuffer ===

impl OutputBuffer {
    pub(super) fn is_empty(&self) -> bool {
        self.written == self.text.len() && self.has_room()
    }

    /// Whether the last piece is written, so that the next one can be taken.
    fn has_room(&self) -> bool {
        self.data.is_empty() && self.tail.is_empty()
    }

    /// Takes a piece of the body, with the framing before and after it.
    fn put(&mut self, data: Bytes, encoder: &mut Encoder) -> Result<(), WireError> {
        encoder.before(&data, &mut self.text)?;
        (self.tail, self.data) = (encoder.after(&data), data);
        Ok(())
    }

    /// Writes once to the socket, as much as it accepts.
    fn poll_write(
        &mut self,
        io: &mut UpstreamStream,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        let text = &self.text[self.written..];
        let count = if self.has_room() {
            ready!(Pin::new(io).poll_write(cx, text))?
        } else {
            let all = [IoSlice::new(text), IoSlice::new(&self.data), IoSlice::new(self.tail)];
            ready!(Pin::new(io).poll_write_vectored(cx, &all))?
        };
        if count == 0 {
            return Poll::Ready(Err(ErrorKind::WriteZero.into()));
        }
        self.count += count as u64;
        let of_text = count.min(text.len());
        let of_data = (count - of_text).min(self.data.len());
        self.written += of_text;
        self.data.advance(of_data);
        self.tail = &self.tail[count - of_text - of_data..];
        if self.is_empty() {
            self.clear();
        }
        Poll::Ready(Ok(()))
    }

    /// Drops the bytes that are left, and frees a large buffer.
    pub(super) fn clear(&mut self) {
        self.text.clear();
        self.text.shrink_to(KEPT);
        (self.written, self.data, self.tail) = (0, Bytes::new(), b"");
    }

    /// Writes all that is left, and all that `sending` gives. Resolves when the whole request is written.
    pub(super) fn poll_all(
        &mut self,
        io: &mut UpstreamStream,
        sending: &mut OutgoingBody,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), WireError>> {
        let mut is_pending = false;
        loop {
            if let Some(encoder) = &mut sending.encoder
                && self.has_room()
                && !is_pending
            {
                match Pin::new(&mut sending.upload).poll_frame(cx) {
                    Poll::Pending => is_pending = true,
                    Poll::Ready(Some(Err(fault))) => return Poll::Ready(Err(fault.into())),
                    Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                        Ok(data) => self.put(data, encoder)?,
                        Err(frame) => {
                            let trailers = frame.into_trailers().unwrap_or_default();
                            sending.end(trailers, &mut self.text)?;
                        }
                    },
                    Poll::Ready(None) => sending.end(HeaderMap::new(), &mut self.text)?,
                }
            }
            if !self.is_empty() {
                ready!(self.poll_write(io, cx))?;
                continue;
            }
            ready!(Pin::new(&mut *io).poll_flush(cx))?;
            if sending.encoder.is_none() {
                return Poll::Ready(Ok(()));
            }
            if is_pending {
                return Poll::Pending;
            }
        }
    }
}

// === impl OutgoingBody ===

impl OutgoingBody {
    /// Takes the body out of a request.
    pub(in crate::upstream) fn of(request: &mut Request<Upload>) -> Self {
        let upload = mem::take(request.body_mut());
        let headers = request.headers();
        let is_chunked = !upload.is_none() && headers.contains_key(TRANSFER_ENCODING);
        let encoder = if is_chunked {
            // The head says chunked, so the body is chunked, even if it has ended meanwhile.
            Some(Encoder::Chunks)
        } else {
            (!upload.is_end_stream()).then(|| Encoder::of(headers))
        };
        let mut announced = Vec::new();
        if encoder.is_some() {
            let values = headers.get_all(TRAILER).iter().filter_map(|value| value.to_str().ok());
            let names = values.flat_map(|value| value.split(',')).map(str::trim);
            announced.extend(names.filter_map(|name| name.parse::<HeaderName>().ok()));
        }
        Self { upload, encoder, announced }
    }

    /// Whether a part of the body is still to be written.
    pub(in crate::upstream) fn is_some(&self) -> bool {
        self.encoder.is_some()
    }

    fn end(&mut self, trailers: HeaderMap, out: &mut Vec<u8>) -> Result<(), WireError> {
        let announced = trailers.iter().filter(|(name, _)| self.announced.contains(name));
        let Some(encoder) = mem::take(&mut self.encoder) else { return Ok(()) };
        encoder.end(announced, out)
    }
}
