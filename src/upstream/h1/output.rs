//! What is on its way to an upstream: the head of a request, and its body piece by piece.

use super::{WireError, framing::Encoder};
use crate::upstream::{Upload, stream::UpstreamStream};
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

/// An empty buffer that is larger is given back.
const KEPT: usize = 4 << 10;

/// What is to be written, in this order.
#[derive(Debug, Default)]
pub(super) struct OutputBuffer {
    /// Heads, and what frames a body.
    pub(super) text: Vec<u8>,
    /// So much of it is written.
    written: usize,
    /// A piece of a body.
    data: Bytes,
    /// What stands behind it.
    tail: &'static [u8],
    /// Octets written since it was set to 0.
    pub(super) count: u64,
}

/// The body of a request, as long as some of it is left.
#[derive(Debug)]
pub(in crate::upstream) struct OutgoingBody {
    upload: Upload,
    /// `None`: there is no more.
    encoder: Option<Encoder>,
    /// The trailers that the upstream knows of (RFC 9110 section 6.6.2). Others go no further.
    announced: Vec<HeaderName>,
}

// === impl OutputBuffer ===

impl OutputBuffer {
    pub(super) fn is_empty(&self) -> bool {
        self.written == self.text.len() && self.has_room()
    }

    /// Whether another piece can be put behind it.
    fn has_room(&self) -> bool {
        self.data.is_empty() && self.tail.is_empty()
    }

    fn put(&mut self, data: Bytes, encoder: &mut Encoder) -> Result<(), WireError> {
        encoder.before(&data, &mut self.text)?;
        (self.tail, self.data) = (encoder.behind(&data), data);
        Ok(())
    }

    /// Writes some.
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

    /// Forgets what is left.
    pub(super) fn clear(&mut self) {
        self.text.clear();
        self.text.shrink_to(KEPT);
        (self.written, self.data, self.tail) = (0, Bytes::new(), b"");
    }

    /// Writes all there is, and all that comes from `sending`.
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
    /// The body of a request, which has none any more.
    pub(in crate::upstream) fn of(request: &mut Request<Upload>) -> Self {
        let upload = mem::take(request.body_mut());
        let headers = request.headers();
        let is_chunked = !upload.is_none() && headers.contains_key(TRANSFER_ENCODING);
        let encoder = match is_chunked {
            // What is said counts: the body may have ended meanwhile.
            true => Some(Encoder::Chunks),
            false => (!upload.is_end_stream()).then(|| Encoder::of(headers)),
        };
        let mut announced = Vec::new();
        if encoder.is_some() {
            let values = headers.get_all(TRAILER).iter().filter_map(|value| value.to_str().ok());
            let names = values.flat_map(|value| value.split(',')).map(str::trim);
            announced.extend(names.filter_map(|name| name.parse::<HeaderName>().ok()));
        }
        Self { upload, encoder, announced }
    }

    /// Whether there is a body.
    pub(in crate::upstream) fn is_some(&self) -> bool {
        self.encoder.is_some()
    }

    fn end(&mut self, trailers: HeaderMap, out: &mut Vec<u8>) -> Result<(), WireError> {
        let announced = trailers.iter().filter(|(name, _)| self.announced.contains(name));
        let Some(encoder) = mem::take(&mut self.encoder) else { return Ok(()) };
        encoder.end(announced, out)
    }
}
