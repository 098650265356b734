//! A connection that has switched to another protocol, a WebSocket for example. Knows no protocol.

use super::H1Connection;
use crate::upstream::balance::PickedAddress;
use bytes::Buf;
use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A connection to an upstream after a 101 response. It counts as open, and its address as in use, until it is dropped.
pub struct Tunnel {
    wire: Box<H1Connection>,
    _picked: Option<PickedAddress>,
}

// === impl Tunnel ===

impl Tunnel {
    pub(in crate::upstream) fn new(wire: Box<H1Connection>, picked: Option<PickedAddress>) -> Self {
        Self { wire, _picked: picked }
    }
}

impl AsyncRead for Tunnel {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let H1Connection { io, input, .. } = &mut *self.wire;
        if input.is_empty() {
            return Pin::new(io).poll_read(cx, buf);
        }
        // These bytes came together with the 101 response.
        let count = input.len().min(buf.remaining());
        buf.put_slice(&input[..count]);
        input.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Tunnel {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.wire.io).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.wire.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.wire.io).poll_shutdown(cx)
    }
}
