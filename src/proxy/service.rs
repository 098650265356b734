//! The proxy as a `tower::Service`, for programs that mount it: in axum as a fallback, or nested beside routes of their own.

use super::{Arrival, Body, Client, ClientConnection, Proxy};
use axum::extract::ConnectInfo;
use bytes::Bytes;
use http::{Request, Response};
use std::{
    convert::Infallible,
    error::Error,
    future::Future,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
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
        let client = Client::new(ip, port, false, trusted, Arc::new(ForeignConnection));
        let (mut arrival, client) = (Arrival::new(request), Arc::new(client));
        Box::pin(async move {
            let mut head = Response::new(());
            let replied = proxy.answer(&client, &mut arrival, &mut head).await;
            Ok(head.map(|()| replied.body))
        })
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
