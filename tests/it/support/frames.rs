//! HTTP/2 as frames on a socket, also those that no library would send.

use super::wire::Conn;
use std::{io::Result, net::SocketAddr};

pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A frame as it came (RFC 9113 section 4.1).
#[derive(Debug, Clone)]
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) stream: u32,
    pub(crate) payload: Vec<u8>,
}

/// A connection of HTTP/2 on which a test writes and reads single frames.
pub(crate) struct Frames(pub(crate) Conn);

/// Writes a frame: its length, kind, flags and stream, and its payload.
pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Fields as HPACK writes them when it compresses nothing (RFC 7541 section 6.2.2).
pub(crate) fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, value) in fields {
        out.push(0);
        for text in [name, value] {
            let mut length = text.len();
            if length < 127 {
                out.push(u8::try_from(length).expect("short"));
            } else {
                out.push(127);
                length -= 127;
                while length >= 128 {
                    out.push(u8::try_from(length % 128 + 128).expect("a byte"));
                    length /= 128;
                }
                out.push(u8::try_from(length).expect("a byte"));
            }
            out.extend(text.as_bytes());
        }
    }
    out
}

/// The frame of a request's head; with `end` when no body follows.
pub(crate) fn headers(stream: u32, method: &str, path: &str, end: bool) -> Vec<u8> {
    let fields =
        [(":method", method), (":scheme", "http"), (":authority", "gateway.test"), (":path", path)];
    frame(1, 4 + u8::from(end), stream, &block(&fields))
}

// === impl Frames ===

impl Frames {
    /// Connects, and says how it wants to be spoken to.
    pub(crate) async fn to(address: SocketAddr, settings: &[u8]) -> Self {
        let mut conn = Conn::to(address).await.expect("connect");
        conn.send([PREFACE, &frame(4, 0, 0, settings)].concat()).await.expect("send");
        Self(conn)
    }

    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) -> Result<()> {
        self.0.send(bytes).await
    }

    pub(crate) async fn next(&mut self) -> Result<Frame> {
        let head = self.0.exactly(9).await?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        let payload = self.0.exactly(length as usize).await?;
        Ok(Frame { kind: head[3], stream, payload })
    }

    /// The next frame of this kind, on this stream.
    pub(crate) async fn until(&mut self, kind: u8, stream: u32) -> Frame {
        loop {
            let frame = self.next().await.unwrap_or_else(|error| {
                panic!("no frame of kind {kind} on stream {stream}: {error}")
            });
            if (frame.kind, frame.stream) == (kind, stream) {
                return frame;
            }
        }
    }

    /// The reason of the other side's GOAWAY, if one comes before the connection ends.
    pub(crate) async fn goes_away(&mut self) -> Option<u32> {
        let mut reason = None;
        while let Ok(frame) = self.next().await {
            if frame.kind == 7 {
                reason = Some(frame.code());
            }
        }
        reason
    }
}

// === impl Frame ===

impl Frame {
    /// The error code in the payload of an RST_STREAM or a GOAWAY.
    pub(crate) fn code(&self) -> u32 {
        let at = if self.kind == 7 { 4 } else { 0 };
        u32::from_be_bytes(self.payload[at..at + 4].try_into().expect("four bytes"))
    }

    /// Whether a HEADERS frame has this status, as our side writes it.
    pub(crate) fn has_status(&self, status: u16) -> bool {
        // Indexed in the static table, or its three digits as they are or by Huffman.
        let indexed = match status {
            200 => Some(0x88),
            204 => Some(0x89),
            400 => Some(0x8c),
            404 => Some(0x8d),
            _ => None,
        };
        match indexed {
            Some(byte) => self.payload.first() == Some(&byte),
            None => self.payload.first() == Some(&0x48),
        }
    }
}
