//! A connection in clear text, over TLS or through a Unix socket, in two halves. Knows nothing of what is said on it.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf, ReadHalf, WriteHalf},
    net::{TcpStream, UnixStream, tcp, unix},
};
use tokio_rustls::client::TlsStream;

/// Both halves.
pub(super) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// What comes.
pub(super) enum Incoming {
    Tcp(tcp::OwnedReadHalf),
    Unix(unix::OwnedReadHalf),
    Tls(ReadHalf<Box<TlsStream<TcpStream>>>),
}

/// What goes.
pub(super) enum Outgoing {
    Tcp(tcp::OwnedWriteHalf),
    Unix(unix::OwnedWriteHalf),
    Tls(WriteHalf<Box<TlsStream<TcpStream>>>),
}

// === impl Stream ===

impl Stream {
    pub(super) fn into_split(self) -> (Incoming, Outgoing) {
        match self {
            Self::Tcp(stream) => {
                let (from, to) = stream.into_split();
                (Incoming::Tcp(from), Outgoing::Tcp(to))
            }
            Self::Unix(stream) => {
                let (from, to) = stream.into_split();
                (Incoming::Unix(from), Outgoing::Unix(to))
            }
            Self::Tls(stream) => {
                let (from, to) = tokio::io::split(stream);
                (Incoming::Tls(from), Outgoing::Tls(to))
            }
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_read(cx, buffer),
            Self::Unix(stream) => Pin::new(stream).poll_read(cx, buffer),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Unix(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Self::Unix(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

// === impl Incoming ===

impl Incoming {
    pub(super) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(from) => Pin::new(from).poll_read(cx, buffer),
            Self::Unix(from) => Pin::new(from).poll_read(cx, buffer),
            Self::Tls(from) => Pin::new(from).poll_read(cx, buffer),
        }
    }
}

// === impl Outgoing ===

impl Outgoing {
    /// Writes what can be written at once, outside of any task. Over TLS that is nothing.
    pub(super) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(to) => to.try_write(bytes),
            Self::Unix(to) => to.try_write(bytes),
            Self::Tls(_) => Ok(0),
        }
    }

    pub(super) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self {
            Self::Tcp(to) => Pin::new(to).poll_write(cx, bytes),
            Self::Unix(to) => Pin::new(to).poll_write(cx, bytes),
            Self::Tls(to) => Pin::new(to).poll_write(cx, bytes),
        }
    }

    /// TLS keeps what the socket did not take.
    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(_) | Self::Unix(_) => Poll::Ready(Ok(())),
            Self::Tls(to) => Pin::new(to).poll_flush(cx),
        }
    }
}
