//! Listening sockets.

use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use std::{
    io,
    net::{SocketAddr, TcpListener},
    time::Duration,
};

/// How many completed connections the kernel may keep until a worker accepts them, if `net.core.somaxconn` allows it.
const BACKLOG: i32 = 4096;
/// A connection without traffic is probed after 60 s.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// Opens a listening socket. With `shared`, other sockets of this process can listen on the same port (`SO_REUSEPORT`).
pub(super) fn listen(address: SocketAddr, shared: bool) -> io::Result<TcpListener> {
    let socket = bind(address, shared)?;
    // Accepted sockets inherit it. It finds clients that disappeared without closing, for example with their power.
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE))?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Has the kernel probe the connections of a listening socket that this process has not opened.
pub(super) fn keep_alive(socket: &TcpListener) -> io::Result<()> {
    SockRef::from(socket).set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE))
}

/// Fails when a process listens on `address`, even with `SO_REUSEPORT`. Never listens itself, so that no client reaches it.
pub(super) fn ensure_free(address: SocketAddr) -> io::Result<()> {
    bind(address, false).map(drop)
}

fn bind(address: SocketAddr, shared: bool) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(shared)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    Ok(socket)
}
