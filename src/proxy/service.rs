//! The proxy as a `tower::Service`, for programs that mount it: in axum as a fallback, or nested beside routes of their own.

use super::{Arrival, Body, Client, ClientConnection, Proxy};
use axum::extract::ConnectInfo;
use bytes::Bytes;
use http::{Request, Response};
use parking_lot::Mutex;
use std::{
    convert::Infallible,
    error::Error,
    future::{Future, pending},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    panic::resume_unwind,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};
use tower::Service;

/// The connection of a request that another server has accepted. That server drops the request's future when its client
/// leaves, so there is nothing to watch here.
struct ForeignConnection;

impl<B> Service<Request<B>> for Proxy
where
    B: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    /// Always ready: a request waits for its limiters and for a connection inside its future.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    /// Serves a request. Its client is the address in `ConnectInfo<SocketAddr>`, if the server put it there
    /// (`Router::into_make_service_with_connect_info`), and 0.0.0.0 otherwise: limiters by `{client_ip}` need the former.
    fn call(&mut self, request: Request<B>) -> Self::Future {
        let proxy = self.clone();
        let address = request.extensions().get::<ConnectInfo<SocketAddr>>().map(|info| info.0);
        let config = &proxy.0.plan.config;
        let ip = address.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |address| address.ip());
        let (port, trusted) = (config.listen.port(), &config.trusted_proxies);
        let watched = proxy.0.plan.shares_waits().then(|| Arc::new(WatchedConnection::default()));
        let line: Arc<dyn ClientConnection> = match &watched {
            Some(watched) => watched.clone(),
            None => Arc::new(ForeignConnection),
        };
        let client = Client::new(ip, port, false, trusted, line);
        let (mut arrival, client) = (Arrival::new(request), Arc::new(client));
        let answer = async move {
            let mut head = Response::new(());
            let replied = proxy.answer(&client, &mut arrival, &mut head).await;
            Ok(head.map(|()| replied.body))
        };
        match watched {
            Some(watched) => Box::pin(watched.answer(answer)),
            None => Box::pin(answer),
        }
    }
}

/// The same where other requests may wait for the answer: the request's future is a task of its own, which learns of the drop
/// as of a client that leaves, and continues if it has to.
#[derive(Default)]
struct WatchedConnection(Mutex<DropNotice>);

#[derive(Default)]
struct DropNotice {
    has_left: bool,
    watcher: Option<Waker>,
}

/// Tells the connection, when it is dropped, that the client has left.
struct LeavesOnDrop(Option<Arc<WatchedConnection>>);

// === impl WatchedConnection ===

impl WatchedConnection {
    /// Runs `answer` as a task.
    async fn answer<T: Send + 'static>(
        self: Arc<Self>,
        answer: impl Future<Output = T> + Send + 'static,
    ) -> T {
        let mut leaves = LeavesOnDrop(Some(self));
        let answered = tokio::spawn(answer).await;
        leaves.0 = None;
        match answered {
            Ok(answer) => answer,
            Err(error) if error.is_panic() => resume_unwind(error.into_panic()),
            // The runtime ends.
            Err(_) => pending().await,
        }
    }
}

impl ClientConnection for WatchedConnection {
    fn poll_left(&self, cx: &mut Context<'_>) -> Poll<bool> {
        let mut notice = self.0.lock();
        if notice.has_left {
            return Poll::Ready(true);
        }
        notice.watcher = Some(cx.waker().clone());
        Poll::Pending
    }

    fn framed_twice(&self) -> bool {
        false
    }

    fn inform(&self, _: &[u8]) {}
}

impl Drop for LeavesOnDrop {
    fn drop(&mut self) {
        let Some(connection) = self.0.take() else { return };
        let mut notice = connection.0.lock();
        notice.has_left = true;
        let watcher = notice.watcher.take();
        drop(notice);
        if let Some(watcher) = watcher {
            watcher.wake();
        }
    }
}

// === impl ForeignConnection ===

impl ClientConnection for ForeignConnection {
    fn poll_left(&self, _: &mut Context<'_>) -> Poll<bool> {
        Poll::Pending
    }

    fn framed_twice(&self) -> bool {
        false
    }

    fn inform(&self, _: &[u8]) {}
}
