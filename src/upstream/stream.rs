//! Reads and writes the bytes of a connection to an upstream, with TLS or without, and counts those that it read. Knows
//! no HTTP.

use crate::socket;
use std::{
    io::{self, ErrorKind, IoSlice},
    net::SocketAddr,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll, Waker, ready},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    sync::Notify,
};
use tokio_rustls::client::TlsStream;

/// The socket of a connection to an upstream, with the TLS session around it if the URL is `https`.
pub(super) struct UpstreamStream {
    io: Kind,
    traffic: Arc<BytesRead>,
}

enum Kind {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// The number of bytes that the upstream sent on a connection. Only the worker that owns the connection adds to it, so a
/// plain load and store are enough.
#[derive(Debug, Default)]
pub(super) struct BytesRead {
    read: AtomicU64,
    /// Wakes the requests that wait for the first of them, or for an end without any.
    begun: Notify,
}

// === impl BytesRead ===

impl BytesRead {
    pub(super) fn read(&self) -> u64 {
        self.read.load(Relaxed)
    }

    /// Resolves with the first byte, or at an end without any.
    pub(super) async fn wait_until_begun(&self) {
        let mut begun = pin!(self.begun.notified());
        begun.as_mut().enable();
        if self.read() == 0 {
            begun.await;
        }
    }

    fn add(&self, came: usize) {
        let before = self.read();
        self.read.store(before + came as u64, Relaxed);
        if before == 0 {
            self.begun.notify_waiters();
        }
    }
}

// === impl UpstreamStream ===

impl UpstreamStream {
    pub(super) fn plain(stream: TcpStream) -> Self {
        Self::new(Kind::Plain(stream))
    }

    pub(super) fn tls(stream: TlsStream<TcpStream>) -> Self {
        Self::new(Kind::Tls(Box::new(stream)))
    }

    fn new(io: Kind) -> Self {
        Self { io, traffic: Arc::default() }
    }

    /// The address of the other end, unless the connection is lost.
    pub(super) fn peer(&self) -> Option<SocketAddr> {
        match &self.io {
            Kind::Plain(stream) => stream.peer_addr().ok(),
            Kind::Tls(stream) => stream.get_ref().0.peer_addr().ok(),
        }
    }

    /// Whether the other end has sent bytes that were not read, or has closed the connection.
    pub(super) fn has_input(&mut self) -> bool {
        let mut one = [0; 1];
        let read = match &mut self.io {
            Kind::Plain(stream) => {
                let read = stream.try_read(&mut one);
                return !matches!(read, Err(error) if error.kind() == ErrorKind::WouldBlock);
            }
            Kind::Tls(stream) => Pin::new(stream)
                .poll_read(&mut Context::from_waker(Waker::noop()), &mut ReadBuf::new(&mut one)),
        };
        read.is_ready()
    }

    /// The counter of the bytes that were read. It stays valid when hyper owns the stream.
    pub(super) fn traffic(&self) -> Arc<BytesRead> {
        self.traffic.clone()
    }
}

impl AsyncRead for UpstreamStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(match &mut self.io {
            Kind::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Kind::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        })?;
        let came = buf.filled().len() - before;
        self.traffic.add(came);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for UpstreamStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.io {
            Kind::Plain(stream) => socket::poll_write(stream, cx, buf),
            Kind::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.io {
            Kind::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Kind::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.io {
            Kind::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Kind::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.io {
            Kind::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Kind::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match &self.io {
            Kind::Plain(stream) => stream.is_write_vectored(),
            Kind::Tls(stream) => stream.is_write_vectored(),
        }
    }
}
