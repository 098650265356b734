//! Takes the place of `tls.rs` without the feature `tls`: no URL asks for TLS, and no connection has it.

use super::{reason::ConnectError, transport::RedisStream, url::Endpoint};
use std::{convert::Infallible, io};
use tokio::net::TcpStream;

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

/// A server is not asked for a handshake.
pub(super) async fn is_spoken(_host: &str, _: TcpStream) -> Option<bool> {
    None
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
