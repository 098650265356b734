//! Reads and writes of one connection, with the gateway's own bytes between those of the parser.

use super::{
    heads::problem,
    state::{LastRead, READ_LEAST, RequestStage, StreamState},
};
use crate::config::Limits;
use bytes::BufMut;
use std::{
    io::{self, ErrorKind, IoSlice},
    mem,
    pin::{Pin, pin},
    task::{Context, Poll, ready},
};
use tokio::io::{AsyncReadExt, AsyncWrite};

/// The size of a read when a client sends faster than reads of 4 KiB can take.
const READ_MOST: usize = 64 << 10;
/// Buffers of up to 1 KiB together are copied and written as one, which is cheaper than a vectored write.
const TOGETHER: usize = 1 << 10;

/// Reads the next bytes for the parser, at most `room`, and keeps them. It keeps at most `head` bytes of older
/// input, the length of the longest head.
pub(super) fn poll_fill(
    state: &mut StreamState,
    cx: &mut Context<'_>,
    room: usize,
    head: usize,
) -> Poll<io::Result<()>> {
    let (input, is_idle) = (&mut state.input, state.stage == RequestStage::Idle);
    if state.stage.is_active() {
        // Within a request the parser reads on only after it has used up all that it had.
        input.bytes.clear();
    } else if input.bytes.len() > head {
        input.bytes.drain(..input.bytes.len() - head);
    }
    input.last = input.bytes.len();
    input.last_read = LastRead::Bytes;
    let most = input.next.min(room);
    input.bytes.reserve(most);
    let mut limited = (&mut input.bytes).limit(most);
    let Poll::Ready(count) = pin!(state.transport.read_buf(&mut limited)).poll(cx)? else {
        input.last_read = LastRead::Pending;
        if is_idle && input.bytes.capacity() > 4 * READ_LEAST {
            input.bytes.shrink_to(READ_LEAST);
            input.next = READ_LEAST;
        }
        return Poll::Pending;
    };
    if count == input.next {
        input.next = READ_MOST.min(2 * input.next);
    } else if count < input.next / 4 {
        input.next = READ_LEAST.max(input.next / 2);
    }
    if count == 0 {
        input.last_read = LastRead::End;
    }
    input.unread = count;
    Poll::Ready(Ok(()))
}

/// Writes the gateway's own bytes that come before `buf`, the next bytes of the parser. Returns the length of `buf` if they
/// replace it.
pub(super) fn poll_before(
    state: &mut StreamState,
    cx: &mut Context<'_>,
    buf: &[u8],
    limits: &Limits,
) -> Poll<io::Result<Option<usize>>> {
    let output = &mut state.output;
    if output.is_clean && output.own.is_empty() {
        mem::swap(&mut output.own, &mut output.interim);
        if state.stage == RequestStage::Idle
            && let Some((status, problem)) = problem(buf, &state.input.bytes, limits)
        {
            (output.own, output.replaces, state.refused) = (problem, buf.len(), Some(status));
        }
    }
    if output.own.is_empty() && output.replaces == 0 {
        return Poll::Ready(Ok(None));
    }
    ready!(poll_own(state, cx))?;
    let replaced = mem::take(&mut state.output.replaces);
    Poll::Ready(Ok((replaced > 0).then_some(replaced)))
}

/// Writes the gateway's own bytes.
pub(super) fn poll_own(state: &mut StreamState, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
    let own = &mut state.output.own;
    while !own.is_empty() {
        match ready!(Pin::new(&mut state.transport).poll_write(cx, own))? {
            0 => return Poll::Ready(Err(ErrorKind::WriteZero.into())),
            written => drop(own.drain(..written)),
        }
    }
    Poll::Ready(Ok(()))
}

/// Writes interim responses that wait, then flushes the transport. After it a response whose body has ended is complete.
pub(super) fn poll_flush(state: &mut StreamState, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
    let output = &mut state.output;
    output.is_clean = true;
    if !output.interim.is_empty() {
        if state.stage != RequestStage::Open {
            // The final response has been written meanwhile.
            output.interim.clear();
        } else if output.own.is_empty() {
            mem::swap(&mut output.own, &mut output.interim);
        }
    }
    ready!(poll_own(state, cx))?;
    ready!(Pin::new(&mut state.transport).poll_flush(cx))?;
    if state.stage == RequestStage::Flushing {
        state.stage = RequestStage::Idle;
    }
    Poll::Ready(Ok(()))
}

/// Writes bytes of the parser.
pub(super) fn poll_write(
    state: &mut StreamState,
    cx: &mut Context<'_>,
    bufs: &[IoSlice<'_>],
) -> Poll<io::Result<usize>> {
    let written = match together(bufs, &mut state.output.whole) {
        Some(whole) => Pin::new(&mut state.transport).poll_write(cx, whole),
        None => Pin::new(&mut state.transport).poll_write_vectored(cx, bufs),
    };
    state.output.is_clean &= written.is_pending();
    written
}

/// Closes our side of the connection.
pub(super) fn poll_shutdown(state: &mut StreamState, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
    Pin::new(&mut state.transport).poll_shutdown(cx)
}

/// Copies small buffers into one, because a copy of up to 1 KiB costs less than what the system does for each buffer.
fn together<'a>(bufs: &[IoSlice<'_>], whole: &'a mut Vec<u8>) -> Option<&'a [u8]> {
    let length: usize = bufs.iter().map(|buf| buf.len()).sum();
    if bufs.len() < 2 || length > TOGETHER {
        return None;
    }
    whole.clear();
    bufs.iter().for_each(|buf| whole.extend_from_slice(buf));
    Some(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_buffers_become_one() {
        let buffers = |lengths: &[usize]| lengths.iter().map(|n| vec![*n as u8; *n]).collect();
        for (lengths, is_one) in [
            (vec![300, 128], true),
            (vec![1, 0, 2], true),
            (vec![9], false),
            (vec![1, TOGETHER], false),
        ] {
            let parts: Vec<Vec<u8>> = buffers(&lengths);
            let slices: Vec<_> = parts.iter().map(|part| IoSlice::new(part)).collect();
            let mut room = b"before".to_vec();
            let whole = together(&slices, &mut room).map(<[u8]>::to_vec);
            assert_eq!(whole, is_one.then(|| parts.concat()), "{lengths:?}");
        }
    }
}
