//! The frames of a WebSocket (RFC 6455 section 5.2), as far as an orderly end needs them: where one ends and the next begins.
//! It reads no payload.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};

/// A close frame with the status 1001, "going away" (RFC 6455 section 7.4.1), as a server sends it.
const CLOSE: [u8; 4] = [0x88, 0x02, 0x03, 0xE9];
/// The same as a client sends it: masked, here with zeros, which change nothing.
const MASKED_CLOSE: [u8; 8] = [0x88, 0x82, 0, 0, 0, 0, 0x03, 0xE9];
/// The longest head of a frame: two bytes, eight of a length, four of a mask.
const HEAD: usize = 14;

/// One side of a WebSocket, whose writes are followed frame by frame.
#[derive(Debug)]
pub(super) struct FrameWriter<T> {
    inner: T,
    frames: FrameTracker,
}

/// The place in a stream of frames that has been reached.
#[derive(Debug)]
struct FrameTracker {
    head: [u8; HEAD],
    /// The bytes of the present frame's head that are known.
    known: usize,
    /// The bytes of its payload that are still to come.
    left: u64,
    /// A frame has ended the stream, or bytes came that are no frame: nothing may be added.
    is_over: bool,
}

// === impl FrameWriter ===

impl<T: AsyncRead + AsyncWrite + Unpin> FrameWriter<T> {
    pub(super) fn new(inner: T) -> Self {
        Self { inner, frames: FrameTracker::new() }
    }

    /// Sends a close frame where the last frame is complete, and then the end of the stream. A frame that is not complete
    /// would swallow it.
    pub(super) async fn close(&mut self, is_masked: bool) -> io::Result<()> {
        if self.frames.is_between() {
            let frame = if is_masked { &MASKED_CLOSE[..] } else { &CLOSE };
            self.inner.write_all(frame).await?;
        }
        self.inner.shutdown().await
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for FrameWriter<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for FrameWriter<T> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let count = ready!(Pin::new(&mut this.inner).poll_write(cx, buf))?;
        this.frames.follow(buf.get(..count).unwrap_or_default());
        Poll::Ready(Ok(count))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.frames.is_over = true;
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

// === impl FrameTracker ===

impl FrameTracker {
    fn new() -> Self {
        Self { head: [0; HEAD], known: 0, left: 0, is_over: false }
    }

    /// Whether the last frame is complete, and another one may follow.
    fn is_between(&self) -> bool {
        !self.is_over && self.known == 0 && self.left == 0
    }

    /// Notes the bytes that have been written.
    fn follow(&mut self, mut bytes: &[u8]) {
        while let Some((first, rest)) = bytes.split_first() {
            if self.is_over {
                return;
            }
            if self.left > 0 {
                let taken = usize::try_from(self.left).unwrap_or(usize::MAX).min(bytes.len());
                self.left -= taken as u64;
                bytes = &bytes[taken..];
                continue;
            }
            self.head[self.known] = *first;
            self.known += 1;
            bytes = rest;
            if self.known == self.head_length() {
                self.left = self.payload_length();
                self.known = 0;
                // A close frame is the last one. Opcodes without a meaning come from another protocol.
                self.is_over = !matches!(self.head[0] & 0x0F, 0..=2 | 9 | 10);
            }
        }
    }

    /// The length of the present head, as far as its known bytes say it.
    fn head_length(&self) -> usize {
        let [_, second, ..] = self.head;
        if self.known < 2 {
            return 2;
        }
        let length = match second & 0x7F {
            126 => 2,
            127 => 8,
            _ => 0,
        };
        2 + length + if second & 0x80 > 0 { 4 } else { 0 }
    }

    /// The length of the payload after a whole head.
    fn payload_length(&self) -> u64 {
        let number = |bytes: &[u8]| bytes.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
        match self.head[1] & 0x7F {
            126 => number(&self.head[2..4]),
            127 => number(&self.head[2..10]),
            short => short.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn frame(first: u8, length: usize, is_masked: bool) -> Vec<u8> {
        let mask = if is_masked { 0x80 } else { 0 };
        let mut frame = vec![first];
        match length {
            0..126 => frame.push(mask | length as u8),
            126..65_536 => {
                frame.push(mask | 126);
                frame.extend((length as u16).to_be_bytes());
            }
            _ => {
                frame.push(mask | 127);
                frame.extend((length as u64).to_be_bytes());
            }
        }
        if is_masked {
            frame.extend([1, 2, 3, 4]);
        }
        frame.extend(vec![0x88; length]);
        frame
    }

    #[rstest]
    fn frames_end_after_their_length(
        #[values(0, 1, 125, 126, 65_535, 65_536)] length: usize,
        #[values(false, true)] is_masked: bool,
        #[values(1, 3, 70_000)] piece: usize,
    ) {
        let mut tracker = FrameTracker::new();
        let frames = [frame(0x01, length, is_masked), frame(0x8A, 0, is_masked)];
        for bytes in &frames {
            let (last, before) = bytes.split_last().unwrap();
            for part in before.chunks(piece) {
                tracker.follow(part);
                assert!(!tracker.is_between());
            }
            tracker.follow(&[*last]);
            assert!(tracker.is_between());
        }
    }

    #[test]
    fn nothing_follows_a_close_frame_or_another_protocol() {
        for bytes in [&CLOSE[..], &MASKED_CLOSE, b"still here\n", &[0x8B, 0]] {
            let mut tracker = FrameTracker::new();
            tracker.follow(bytes);
            assert!(!tracker.is_between(), "{bytes:?}");
        }
    }

    #[tokio::test]
    async fn a_close_frame_follows_a_whole_frame_and_no_other() {
        for (sent, closes) in [(frame(0x82, 300, false), true), (vec![0x82, 5, 1], false)] {
            let (mut peer, ours) = tokio::io::duplex(1024);
            let mut writer = FrameWriter::new(ours);
            writer.write_all(&sent).await.unwrap();
            writer.close(false).await.unwrap();
            let mut read = Vec::new();
            tokio::io::AsyncReadExt::read_to_end(&mut peer, &mut read).await.unwrap();
            let expected = if closes { [&sent[..], &CLOSE].concat() } else { sent };
            assert_eq!(read, expected);
        }
    }
}
