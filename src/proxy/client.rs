//! The client at the other end of a connection, and the facts that only the connection knows. It is made once for each
//! connection.

use super::{ForwardConnection, reading::OthersWaiting};
use crate::{answer::Failure, key, upstream::RequestBoundary};
use http::{HeaderMap, HeaderValue, StatusCode};
use ipnet::IpNet;
use std::{
    borrow::Borrow,
    fmt,
    future::{Future, poll_fn},
    net::IpAddr,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::time::{Instant, Sleep, sleep_until};

/// How often the socket of a client is asked whether the client has left, while bytes that it sent are not read.
const LOOK: Duration = Duration::from_millis(50);

/// The client at the other end of a connection. All requests on the connection share it.
pub struct Client {
    pub(crate) ip: IpAddr,
    pub(super) forwarded_for: HeaderValue,
    /// Whether it is one of `trusted_proxies`, whose forwarding headers are believed.
    pub(crate) is_trusted: bool,
    /// Whether its connection to the gateway is TLS.
    pub(super) is_tls: bool,
    /// The gateway's port, as the client knows it.
    pub(super) port: HeaderValue,
    /// Where each of its requests ended, and whether every program before us has seen it there.
    pub(super) boundary: Arc<RequestBoundary>,
    /// Its connection is one to the forward proxy.
    pub(super) forward: Option<Box<ForwardConnection>>,
    line: Arc<dyn ClientConnection>,
}

/// The services of a connection for the requests on it.
pub trait ClientConnection: Send + Sync {
    /// Whether the client has closed its side. While this is pending, the end of the connection wakes the task: the
    /// parser does not read while a request is being answered. Ready with false if the client has sent bytes that are
    /// not read, because the end after them does not wake the task.
    fn poll_left(&self, cx: &mut Context<'_>) -> Poll<bool>;

    /// Whether the head that was parsed last may have had a Content-Length beside its Transfer-Encoding. True when that
    /// is uncertain.
    fn framed_twice(&self) -> bool;

    /// Sends a whole interim response before the final one; does nothing where the connection cannot take one.
    fn inform(&self, response: &[u8]);
}

/// Watches whether a client leaves while a request of its is being served.
pub(super) struct DisconnectWatch<L = Arc<dyn ClientConnection>> {
    line: L,
    /// Made when the client has sent bytes that are not read, which is rare.
    timer: Option<Pin<Box<Sleep>>>,
}

// === impl Client ===

impl Client {
    /// Makes the client at `ip`, which may be one of the `trusted` proxies and has connected to our `port`.
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
        // All characters of an address are allowed in a header.
        let forwarded_for = forwarded_for.unwrap_or(HeaderValue::from_static("unknown"));
        let is_trusted = key::is_trusted(ip, trusted);
        let (port, boundary, forward) = (HeaderValue::from(port), Arc::default(), None);
        Self { ip, forwarded_for, is_trusted, is_tls, port, boundary, forward, line }
    }

    /// Makes it a client of the forward proxy, if `connection` is one to that.
    pub fn with_forward(self, connection: Option<ForwardConnection>) -> Self {
        Self { forward: connection.map(Box::new), ..self }
    }

    /// The address of the caller: that of the client, or the one that a trusted proxy names.
    pub(crate) fn client_ip(&self, headers: &HeaderMap, trusted: &[IpNet]) -> IpAddr {
        if self.is_trusted { key::client_ip(self.ip, headers, trusted) } else { self.ip }
    }

    /// The client at `ip`, for which this one speaks. The connection is that of this one.
    pub(crate) fn for_client(&self, ip: IpAddr, trusted: &[IpNet]) -> Self {
        let new = Self::new(ip, 0, self.is_tls, trusted, self.line.clone());
        Self { port: self.port.clone(), ..new }
    }

    /// Watches the client from the body of a response, which outlives the request's future.
    pub(super) fn leaving(&self) -> DisconnectWatch {
        DisconnectWatch { line: self.line.clone(), timer: None }
    }

    /// Resolves when the client has left.
    pub(super) async fn leaves(&self) {
        let mut leaving = DisconnectWatch { line: &self.line, timer: None };
        poll_fn(|cx| leaving.poll(cx)).await;
    }

    /// Waits for an answer unless the client leaves. The answer is pinned by the caller: a future that is passed by value is
    /// copied.
    pub(crate) async fn unless_left<T>(
        &self,
        mut answer: Pin<&mut impl Future<Output = Result<T, Failure>>>,
    ) -> Result<T, Failure> {
        let mut leaves = pin!(self.leaves());
        poll_fn(|cx| match answer.as_mut().poll(cx) {
            Poll::Pending => leaves.as_mut().poll(cx).map(|()| Err(Failure::ClientLeft)),
            answer => answer,
        })
        .await
    }

    /// As [`Self::unless_left`], for a request whose answer others may wait for: then it continues for them.
    pub(super) async fn unless_left_alone<T>(
        &self,
        mut answer: Pin<&mut impl Future<Output = Result<T, Failure>>>,
        others: &OthersWaiting,
    ) -> Result<T, Failure> {
        let (mut leaves, mut has_left) = (pin!(self.leaves()), false);
        let outcome = poll_fn(|cx| match answer.as_mut().poll(cx) {
            Poll::Pending => leaves.as_mut().poll(cx).map(|()| {
                has_left = true;
                Err(Failure::ClientLeft)
            }),
            // An answer in another type would be copied.
            outcome => outcome,
        })
        .await;
        if has_left && others.are_there() {
            // The box keeps all other requests small.
            Box::pin(others.go_on(answer)).await;
        }
        outcome
    }

    /// Whether the head of this request, which has a Transfer-Encoding, had a Content-Length beside it. The parser
    /// removes that field.
    pub(super) fn framed_twice(&self, has_length: bool) -> bool {
        // HTTP/2 has no Transfer-Encoding; its parser refuses it.
        has_length || self.line.framed_twice()
    }

    /// Forwards an interim response (1xx, RFC 9110 section 15.2) where the connection can take one. A switch of
    /// protocols (101) is no interim response.
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
    /// Ready when the client has left. The task must be that of the connection, or one that ends with it, because it is
    /// polled whenever the parser has read input.
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
            // A socket with unread input does not wake the task at its end.
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
