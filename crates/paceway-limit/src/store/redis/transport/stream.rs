//! A socket to a Redis server, in clear text, over TLS or through the file system. Knows nothing of the bytes on it.

use std::io;
use tokio::io::{AsyncRead, AsyncWrite};

/// The bytes to and from a server, over whichever kind of socket the URL of the store names: `redis:`, `unix:` or `rediss:`.
pub(in crate::store::redis) trait Socket:
    AsyncRead + AsyncWrite + Send + Unpin
{
}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Socket for S {}

/// One such socket.
pub(in crate::store::redis) type RedisStream = Box<dyn Socket>;

/// The error of a connection that the server has closed.
pub(super) fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection")
}
