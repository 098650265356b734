//! The client at the other end of a connection, and what only its connection knows. Made once per connection.

use crate::key;
use http::{HeaderMap, HeaderValue, Request, StatusCode};
use ipnet::IpNet;
use std::{
    fmt,
    future::{Future, poll_fn},
    net::IpAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::time::{Instant, Sleep, sleep_until};

/// How often a client is looked after while the parser does not.
const LOOK: Duration = Duration::from_millis(50);

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
    has_left: HasLeft,
}

/// Looks whether the client has closed its side of the connection; `None`: the parser waits for input, and ends the
/// request by itself.
type HasLeft = Arc<dyn Fn() -> Option<bool> + Send + Sync>;

/// Looks after a client for as long as something is done for it.
pub(super) struct Leaving {
    has_left: HasLeft,
    /// Made when the parser stops to look for the first time. It almost never does.
    timer: Option<Pin<Box<Sleep>>>,
}

// === impl Peer ===

impl Peer {
    /// The client at `ip`, maybe one of the `trusted` proxies; `has_left` looks whether it has closed its side of the
    /// connection, and says `None` while the parser waits for input.
    pub fn new(
        ip: IpAddr,
        port: u16,
        trusted: &[IpNet],
        has_left: impl Fn() -> Option<bool> + Send + Sync + 'static,
    ) -> Self {
        let ip = ip.to_canonical();
        let text = ip.to_string();
        let forwarded_for = HeaderValue::from_str(&text);
        // An address is made of characters that a header may hold.
        let forwarded_for = forwarded_for.unwrap_or(HeaderValue::from_static("unknown"));
        let is_trusted = key::is_trusted(ip, trusted);
        let (port, is_tls) = (HeaderValue::from(port), false);
        Self { ip, forwarded_for, is_trusted, is_tls, port, has_left: Arc::new(has_left) }
    }

    /// Looks after the client.
    pub(super) fn leaving(&self) -> Leaving {
        Leaving { has_left: self.has_left.clone(), timer: None }
    }

    /// Resolves when the client has left.
    pub(super) async fn leaves(&self) {
        let mut leaving = self.leaving();
        poll_fn(|cx| leaving.poll(cx)).await;
    }

    /// Whether the head of this request had a Content-Length beside its Transfer-Encoding, which the parser conceals.
    pub(super) fn framed_twice<B>(&self, _request: &Request<B>) -> bool {
        false
    }

    /// Passes an interim response (1xx, RFC 9110 section 15.2) on, where the connection can take one.
    pub(super) fn inform(&self, _status: StatusCode, _headers: &HeaderMap) {}
}

// === impl Leaving ===

impl Leaving {
    /// Ready when the client has left. The task must be that of the connection, or one that ends with it: what is
    /// done for a client is polled whenever the parser has looked at its input.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            match (self.has_left)() {
                None => {
                    self.timer = None;
                    return Poll::Pending;
                }
                Some(true) => return Poll::Ready(()),
                Some(false) => {}
            }
            // A socket with unread input does not wake.
            let next = || Box::pin(sleep_until(Instant::now() + LOOK));
            ready!(self.timer.get_or_insert_with(next).as_mut().poll(cx));
            self.timer = None;
        }
    }
}

impl fmt::Debug for Leaving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Leaving").finish()
    }
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Peer").field(&self.ip).finish()
    }
}
