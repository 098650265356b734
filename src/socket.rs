//! Writes to a TCP connection with less work than `TcpStream` of tokio, for the two writes of each request. Knows no
//! protocol.

use rustix::net::{SendFlags, send};
use std::{
    io::{self, ErrorKind::WouldBlock},
    pin::Pin,
    task::{Context, Poll},
};
use tokio::{
    io::{AsyncWrite, Interest},
    net::TcpStream,
};

/// Writes as [`AsyncWrite::poll_write`] does. A socket nearly always has room, so the kernel is asked at once, and the task
/// is registered only when there is none. The system call is made without the C library, which prepares each one of a
/// process with threads for the end of its thread.
pub(crate) fn poll_write(
    stream: &mut TcpStream,
    cx: &mut Context<'_>,
    buf: &[u8],
) -> Poll<io::Result<usize>> {
    let mut sent = 0;
    let outcome = stream.try_io(Interest::WRITABLE, || {
        sent = send(&*stream, buf, SendFlags::NOSIGNAL)?;
        // The socket is full after a short write: tokio then waits for the next event before it writes again.
        if sent < buf.len() { Err(WouldBlock.into()) } else { Ok(()) }
    });
    match outcome {
        Err(full) if full.kind() == WouldBlock && sent == 0 => Pin::new(stream).poll_write(cx, buf),
        Err(error) if error.kind() != WouldBlock => Poll::Ready(Err(error)),
        _ => Poll::Ready(Ok(sent)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use tokio::{io::AsyncReadExt, net::TcpListener};

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let client = TcpStream::connect(address).await.expect("a connection");
        (client, listener.accept().await.expect("a client").0)
    }

    #[tokio::test]
    async fn bytes_beyond_the_socket_buffer_arrive_in_order() {
        let (mut writer, mut reader) = pair().await;
        let all: Vec<u8> = (0..32_u32 << 20).map(|i| (i % 251) as u8).collect();
        let sent = all.clone();
        let writing = tokio::spawn(async move {
            let (mut rest, mut writes) = (&sent[..], 0);
            while !rest.is_empty() {
                let written = poll_fn(|cx| poll_write(&mut writer, cx, rest)).await;
                rest = &rest[written.expect("an open connection")..];
                writes += 1;
            }
            writes
        });
        let mut read = Vec::new();
        reader.read_to_end(&mut read).await.expect("an open connection");
        assert!(read == all, "{} bytes came", read.len());
        assert!(writing.await.expect("no panic") > 1, "one write took all, so nothing was full");
    }

    #[tokio::test]
    async fn a_reset_connection_is_an_error() {
        let (mut writer, reader) = pair().await;
        socket2::SockRef::from(&reader).set_linger(Some(Default::default())).expect("an option");
        drop(reader);
        writer.readable().await.expect("an event");
        let written = poll_fn(|cx| poll_write(&mut writer, cx, b"x")).await;
        assert!(written.is_err(), "{written:?}");
    }
}
