//! Replies out of the bytes of a connection, as they come. Keeps no more than one that is not whole.

use super::{
    connect::{closed, no_redis},
    resp::{self, Parsed, Value},
    stream::Incoming,
};
use std::{
    io,
    task::{Context, Poll},
};
use tokio::io::ReadBuf;

/// Of the buffer; a larger reply makes it grow while it lasts.
const BUFFER: usize = 16 * 1024;

/// Bytes that came, and are no whole reply yet.
pub(super) struct Reader {
    buffer: Vec<u8>,
    filled: usize,
    /// With fewer bytes there is no reply.
    needs: usize,
}

// === impl Reader ===

impl Reader {
    pub(super) fn new() -> Self {
        Self { buffer: vec![0; BUFFER], filled: 0, needs: 1 }
    }

    /// Hands on all replies that are there; resolves when there will be no more.
    pub(super) fn poll(
        &mut self,
        from: &mut Incoming,
        cx: &mut Context<'_>,
        mut hand_on: impl FnMut(Value) -> io::Result<()>,
    ) -> Poll<io::Error> {
        loop {
            let mut buffer = ReadBuf::new(&mut self.buffer[self.filled..]);
            match from.poll_read(cx, &mut buffer) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(error)) => return Poll::Ready(error),
                Poll::Ready(Ok(())) if buffer.filled().is_empty() => return Poll::Ready(closed()),
                Poll::Ready(Ok(())) => self.filled += buffer.filled().len(),
            }
            if let Err(error) = self.hand_on(&mut hand_on) {
                return Poll::Ready(error);
            }
        }
    }

    fn hand_on(&mut self, hand_on: &mut impl FnMut(Value) -> io::Result<()>) -> io::Result<()> {
        let mut done = 0;
        while self.filled - done >= self.needs {
            match resp::parse(&self.buffer[done..self.filled]).map_err(|_| no_redis())? {
                Parsed::Needs(length) => self.needs = length,
                Parsed::Reply(value, length) => {
                    (done, self.needs) = (done + length, 1);
                    hand_on(value)?;
                }
            }
        }
        self.buffer.copy_within(done..self.filled, 0);
        self.filled -= done;
        let room = if self.needs > BUFFER / 2 { self.needs + BUFFER } else { BUFFER };
        if self.buffer.len() != room {
            self.buffer.resize(room, 0);
            self.buffer.shrink_to(room);
        }
        Ok(())
    }
}
