//! The client at the other end of a connection, and what only its connection knows. Made once per connection.

use crate::key;
use http::{HeaderMap, HeaderValue, Request, StatusCode};
use ipnet::IpNet;
use std::{fmt, net::IpAddr, time::Duration};
use tokio::time::sleep;

/// The client at the other end of a connection; made once per connection.
pub struct Peer {
    pub(super) ip: IpAddr,
    pub(super) forwarded_for: HeaderValue,
    /// One of the proxies that are believed.
    pub(super) is_trusted: bool,
    /// It speaks TLS with us.
    pub(super) is_tls: bool,
    /// Our port, as it knows it.
    pub(super) port: HeaderValue,
    /// Looks whether the client has closed its side of the connection.
    has_left: Box<dyn Fn() -> bool + Send + Sync>,
}

// === impl Peer ===

impl Peer {
    /// The client at `ip`, maybe one of the `trusted` proxies; `has_left` looks whether it has closed its side of the
    /// connection.
    pub fn new(
        ip: IpAddr,
        port: u16,
        trusted: &[IpNet],
        has_left: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Self {
        let ip = ip.to_canonical();
        let text = ip.to_string();
        let forwarded_for = HeaderValue::from_str(&text);
        // An address is made of characters that a header may hold.
        let forwarded_for = forwarded_for.unwrap_or(HeaderValue::from_static("unknown"));
        let is_trusted = key::is_trusted(ip, trusted);
        let (port, is_tls) = (HeaderValue::from(port), false);
        Self { ip, forwarded_for, is_trusted, is_tls, port, has_left: Box::new(has_left) }
    }

    /// Resolves when the client has left. Looks from time to time: a socket with unread input does not wake.
    pub(super) async fn leaves(&self, look: Duration) {
        while !(self.has_left)() {
            sleep(look).await;
        }
    }

    /// Whether the head of this request had a Content-Length beside its Transfer-Encoding, which the parser conceals.
    pub(super) fn framed_twice<B>(&self, _request: &Request<B>) -> bool {
        false
    }

    /// Passes an interim response (1xx, RFC 9110 section 15.2) on, where the connection can take one.
    #[expect(dead_code, reason = "issue 4 in the making")]
    pub(super) fn inform(&self, _status: StatusCode, _headers: &HeaderMap) {}
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Peer").field(&self.ip).finish()
    }
}
