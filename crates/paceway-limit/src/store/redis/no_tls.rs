//! Takes the place of `tls.rs` without the feature `tls`: no URL asks for TLS, and no connection has it.

use super::{reason::ConnectError, transport::RedisStream, url::Endpoint};
use std::{convert::Infallible, io};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// The settings for TLS of a URL, of which none exist.
pub(super) type Settings = Infallible;

/// TLS with these settings.
pub(super) struct NoTls(Infallible);

pub(super) type Tls = NoTls;

/// Refuses a URL that asks for TLS by its `scheme`.
pub(super) fn settings(scheme: &str) -> Result<Box<Settings>, String> {
    Err(format!(
        "`{scheme}://` asks for TLS, which this program was built without: add the feature `tls` of `paceway-limit`"
    ))
}

/// No error is one of TLS.
pub(super) fn explain(_: &io::Error) -> Option<String> {
    None
}

/// Whether the server at the other end of `stream` answers an empty `ClientHello` by an alert of TLS (RFC 8446 sections 4.1.2
/// and 6). `None` if that cannot be seen.
pub(super) async fn is_spoken(_host: &str, mut stream: TcpStream) -> Option<bool> {
    const CLIENT_HELLO: [u8; 9] = [22, 3, 1, 0, 4, 1, 0, 0, 0];
    const ALERT: [u8; 2] = [21, 3];
    stream.write_all(&CLIENT_HELLO).await.ok()?;
    let mut said = [0; 2];
    stream.read_exact(&mut said).await.ok()?;
    Some(said == ALERT)
}

// === impl NoTls ===

impl NoTls {
    pub(super) fn new(settings: &Settings) -> Result<Self, ConnectError> {
        match *settings {}
    }

    pub(super) async fn connect(
        &self,
        _host: &str,
        _: TcpStream,
        _: &Endpoint,
    ) -> Result<RedisStream, ConnectError> {
        match self.0 {}
    }
}
