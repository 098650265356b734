//! How many octets a tunnel has passed on, and which side sent the last ones. Keeps none of them.

use crate::proxy::TunnelBytes;
use parking_lot::Mutex;
use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    time::Instant,
};

/// A tunnel is idle if the host has sent the last octets, and none came for this long: most likely its client keeps a
/// connection for later. After octets of the client an answer may still come.
const SILENCE: Duration = Duration::from_secs(3);
/// The times that a client of TLS begins to send before its first answer: its hello, and the end of its handshake with the
/// request. A server of TLS 1.3 sends session tickets after those (RFC 8446 section 4.6.1), which are no answer.
const HANDSHAKE: u32 = 2;

/// The octets of one tunnel.
pub(super) struct Traffic(Mutex<State>);

struct State {
    bytes: TunnelBytes,
    last: TunnelSide,
    at: Instant,
    /// How often the client has begun to send.
    asked: u32,
}

/// The side that octets come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TunnelSide {
    Client,
    Host,
}

/// One side of a tunnel, from which octets are counted when they are read.
pub(super) struct MeteredSide<'t> {
    stream: &'t mut TcpStream,
    traffic: &'t Traffic,
    side: TunnelSide,
}

// === impl Traffic ===

impl Traffic {
    /// A tunnel that opens `now`. Nothing was asked of its host.
    pub(super) fn begin(now: Instant) -> Self {
        let (bytes, last) = (TunnelBytes::default(), TunnelSide::Host);
        Self(Mutex::new(State { bytes, last, at: now, asked: 0 }))
    }

    pub(super) fn bytes(&self) -> TunnelBytes {
        self.0.lock().bytes
    }

    /// The time until the tunnel is to be looked at again; `None` if it is idle `now`.
    pub(super) fn time_to_idle(&self, now: Instant) -> Option<Duration> {
        let state = self.0.lock();
        let silence = now.saturating_duration_since(state.at);
        match state.last {
            TunnelSide::Client => Some(SILENCE),
            TunnelSide::Host if (1..=HANDSHAKE).contains(&state.asked) => Some(SILENCE),
            TunnelSide::Host => SILENCE.checked_sub(silence).filter(|left| !left.is_zero()),
        }
    }

    fn note(&self, side: TunnelSide, count: usize, now: Instant) {
        let mut state = self.0.lock();
        state.asked += u32::from(side == TunnelSide::Client && state.last == TunnelSide::Host);
        (state.last, state.at) = (side, now);
        let bytes = &mut state.bytes;
        let total = if side == TunnelSide::Host { &mut bytes.sent } else { &mut bytes.received };
        *total += count as u64;
    }
}

// === impl MeteredSide ===

impl<'t> MeteredSide<'t> {
    pub(super) fn new(stream: &'t mut TcpStream, traffic: &'t Traffic, side: TunnelSide) -> Self {
        Self { stream, traffic, side }
    }
}

impl AsyncRead for MeteredSide<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut *self.stream).poll_read(cx, buf))?;
        let count = buf.filled().len() - before;
        if count > 0 {
            self.traffic.note(self.side, count, Instant::now());
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for MeteredSide<'_> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The client asks for the first time with the end of its handshake, and the host sends tickets at once: its answer may come
    /// later. After the next answer the tunnel is idle.
    #[test]
    fn a_tunnel_is_idle_after_the_silence_of_its_host() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let traffic = Traffic::begin(start);
        assert_eq!(traffic.time_to_idle(at(1)), Some(Duration::from_secs(2)));
        assert_eq!(traffic.time_to_idle(at(3)), None, "no client has asked");
        for second in [10, 11] {
            traffic.note(TunnelSide::Client, 5, at(second));
            traffic.note(TunnelSide::Host, 7, at(second));
            assert_eq!(traffic.time_to_idle(at(1000)), Some(SILENCE), "an answer may come");
        }
        traffic.note(TunnelSide::Client, 5, at(1000));
        assert_eq!(traffic.time_to_idle(at(2000)), Some(SILENCE), "an answer may come");
        traffic.note(TunnelSide::Host, 7, at(2000));
        assert_eq!(traffic.time_to_idle(at(2002)), Some(Duration::from_secs(1)));
        assert_eq!(traffic.time_to_idle(at(2003)), None);
        let TunnelBytes { sent, received } = traffic.bytes();
        assert_eq!((sent, received), (21, 15));
    }
}
