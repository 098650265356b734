//! The client at the other end of a connection, and what only its connection knows. Made once per connection.

use crate::{key, upstream::RequestBoundary};
use http::{HeaderMap, HeaderValue, StatusCode};
use ipnet::IpNet;
use std::{
    borrow::Borrow,
    fmt,
    future::{Future, poll_fn},
    net::IpAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::time::{Instant, Sleep, sleep_until};

/// How often a client is looked after that has sent more than is read.
const LOOK: Duration = Duration::from_millis(50);

/// The client at the other end of a connection; made once per connection.
pub struct Client {
    pub(super) ip: IpAddr,
    pub(super) forwarded_for: HeaderValue,
    /// One of the proxies that are believed.
    pub(super) is_trusted: bool,
    /// It speaks TLS with us.
    pub(super) is_tls: bool,
    /// Our port, as it knows it.
    pub(super) port: HeaderValue,
    /// Of its requests.
    pub(super) boundary: Arc<RequestBoundary>,
    line: Arc<dyn ClientConnection>,
}

/// What a connection can do for the requests on it.
pub trait ClientConnection: Send + Sync {
    /// Whether the client has closed its side, of which the task hears while it is pending: the parser does not look
    /// while a request is being answered. Ready with false where there is input that nobody reads, behind which the
    /// end cannot be heard.
    fn poll_left(&self, cx: &mut Context<'_>) -> Poll<bool>;

    /// Whether the head that was parsed last may have had a Content-Length beside its Transfer-Encoding. Says yes when
    /// it cannot be sure.
    fn framed_twice(&self) -> bool;

    /// Sends a whole interim response before the final one; does nothing where it cannot.
    fn inform(&self, response: &[u8]);
}

/// Looks after a client for as long as something is done for it.
pub(super) struct DisconnectWatch<L = Arc<dyn ClientConnection>> {
    line: L,
    /// Made when more has come than is read. It almost never does.
    timer: Option<Pin<Box<Sleep>>>,
}

// === impl Client ===

impl Client {
    /// The client at `ip`, maybe one of the `trusted` proxies, who asked for our `port`.
    pub fn new(
        ip: IpAddr,
        port: u16,
        is_tls: bool,
        trusted: &[IpNet],
        line: Arc<dyn ClientConnection>,
    ) -> Self {
        let ip = ip.to_canonical();
        let text = ip.to_string();
        let forwarded_for = HeaderValue::from_str(&text);
        // An address is made of characters that a header may hold.
        let forwarded_for = forwarded_for.unwrap_or(HeaderValue::from_static("unknown"));
        let is_trusted = key::is_trusted(ip, trusted);
        let (port, boundary) = (HeaderValue::from(port), Arc::default());
        Self { ip, forwarded_for, is_trusted, is_tls, port, boundary, line }
    }

    /// Who calls: the client, or whom it says it speaks for, if it is believed.
    pub(super) fn client_ip(&self, headers: &HeaderMap, trusted: &[IpNet]) -> IpAddr {
        match self.is_trusted {
            true => key::client_ip(self.ip, headers, trusted),
            false => self.ip,
        }
    }

    /// Looks after the client.
    pub(super) fn leaving(&self) -> DisconnectWatch {
        DisconnectWatch { line: self.line.clone(), timer: None }
    }

    /// Resolves when the client has left.
    pub(super) async fn leaves(&self) {
        let mut leaving = DisconnectWatch { line: &self.line, timer: None };
        poll_fn(|cx| leaving.poll(cx)).await;
    }

    /// Whether the head of this request, which has a Transfer-Encoding, had a Content-Length beside it. The parser
    /// conceals that.
    pub(super) fn framed_twice(&self, has_length: bool) -> bool {
        // HTTP/2 has no Transfer-Encoding; its parser refuses it.
        has_length || self.line.framed_twice()
    }

    /// Passes an interim response (1xx, RFC 9110 section 15.2) on, where the connection can take one. A switch of
    /// protocols is none.
    pub(super) fn inform(&self, status: StatusCode, headers: &HeaderMap) {
        if !status.is_informational() || status == StatusCode::SWITCHING_PROTOCOLS {
            return;
        }
        let reason = status.canonical_reason().unwrap_or_default();
        let mut response = format!("HTTP/1.1 {} {reason}\r\n", status.as_str()).into_bytes();
        for (name, value) in headers {
            for part in [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"] {
                response.extend(part);
            }
        }
        response.extend(b"\r\n");
        self.line.inform(&response);
    }
}

// === impl DisconnectWatch ===

impl<L: Borrow<Arc<dyn ClientConnection>>> DisconnectWatch<L> {
    /// Ready when the client has left. The task must be that of the connection, or one that ends with it: what is
    /// done for a client is polled whenever the parser has looked at its input.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            match self.line.borrow().poll_left(cx) {
                Poll::Pending => {
                    self.timer = None;
                    return Poll::Pending;
                }
                Poll::Ready(true) => return Poll::Ready(()),
                Poll::Ready(false) => {}
            }
            // A socket with unread input does not wake.
            let next = || Box::pin(sleep_until(Instant::now() + LOOK));
            ready!(self.timer.get_or_insert_with(next).as_mut().poll(cx));
            self.timer = None;
        }
    }
}

impl fmt::Debug for DisconnectWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DisconnectWatch").finish()
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Client").field(&self.ip).finish()
    }
}
