//! One core's share of the data plane: its own runtime, listener, connections and store.

use super::{
    HEADER_BYTES, HEADER_TIMEOUT, LINGER, Phase, ServerError,
    edge::{Edge, Stream},
    source::StoreSource,
    system,
};
use crate::{
    gateway::{Gateway, Peer, Plan},
    upstream::{Site, Upstream},
};
use http::{HeaderValue, Request, StatusCode, header::CONNECTION};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioTimer;
use std::{
    convert::Infallible,
    net::{SocketAddr, TcpListener as StdListener},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
    time::{sleep, timeout},
};

/// One core's share of the data plane.
pub(super) struct Worker {
    /// Its own: the kernel spreads connections over the listeners of one port.
    pub(super) listener: StdListener,
    pub(super) plan: Arc<Plan>,
    pub(super) source: StoreSource,
    /// Shared by all workers.
    pub(super) sites: Vec<Arc<Site>>,
    pub(super) draining: Arc<AtomicBool>,
    pub(super) phases: watch::Receiver<Phase>,
}

// === impl Worker ===

impl Worker {
    pub(super) async fn run(mut self) -> Result<(), ServerError> {
        let store = self.source.store().await?;
        let workers = self.plan.config.workers;
        let upstreams = self.sites.iter().map(|site| Upstream::new(site.clone(), workers));
        let gateway = Gateway::new(self.plan.clone(), store.clone(), upstreams.collect());
        let gateway = Arc::new(gateway);
        let listener = TcpListener::from_std(self.listener.try_clone().map_err(system)?);
        let listener = listener.map_err(system)?;
        let mut connections = JoinSet::new();
        let mut drain = self.phases.clone();
        loop {
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((stream, peer)) => {
                        connections.spawn(self.connection(&gateway, stream, peer));
                    }
                    Err(error) => {
                        // Most likely out of file descriptors: wait until some are free.
                        tracing::warn!(%error, "cannot accept");
                        sleep(Duration::from_millis(100)).await;
                    }
                },
                _ = drain.wait_for(|phase| *phase >= Phase::Draining) => break,
                Some(_) = connections.join_next() => {}
            }
        }
        // Those who got through to us before the door closed are still served.
        while let Ok((stream, peer)) = self.listener.accept() {
            let stream = stream.set_nonblocking(true).and_then(|()| TcpStream::from_std(stream));
            if let Ok(stream) = stream {
                connections.spawn(self.connection(&gateway, stream, peer));
            }
        }
        drop((listener, self.listener));
        let all = async {
            while connections.join_next().await.is_some() {}
            gateway.tunnels_ended().await;
        };
        tokio::select! {
            () = all => {}
            _ = self.phases.wait_for(|phase| *phase == Phase::Aborting) => {}
        }
        gateway.cut_tunnels();
        connections.shutdown().await;
        gateway.tunnels_ended().await;
        // What was not used is on its way back to a store that may be away.
        let _ = timeout(LINGER, store.flush()).await;
        Ok(())
    }

    fn connection(
        &self,
        gateway: &Arc<Gateway>,
        stream: TcpStream,
        peer: SocketAddr,
    ) -> impl Future<Output = ()> + Send + use<> {
        let (gateway, draining) = (gateway.clone(), self.draining.clone());
        let mut phases = self.phases.clone();
        // Small answers must not wait for a client's delayed acknowledgement.
        let _ = stream.set_nodelay(true);
        let port = stream.local_addr().map_or(0, |address| address.port());
        let stream = Arc::new(Stream::new(stream));
        let watched = stream.clone();
        let trusted = &self.plan.config.trusted_proxies;
        let peer =
            Arc::new(Peer::new(peer.ip(), port, trusted, move || watched.is_closed_by_client()));
        async move {
            let counted = stream.clone();
            let service = service_fn(move |request: Request<Incoming>| {
                counted.count_request();
                let (gateway, peer, draining) = (gateway.clone(), peer.clone(), draining.clone());
                async move {
                    let mut response = gateway.handle(&peer, request).await;
                    if draining.load(Relaxed)
                        && response.status() != StatusCode::SWITCHING_PROTOCOLS
                    {
                        let close = HeaderValue::from_static("close");
                        response.headers_mut().insert(CONNECTION, close);
                    }
                    Ok::<_, Infallible>(response)
                }
            });
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEADER_TIMEOUT)
                .max_header_size(HEADER_BYTES)
                .serve_connection(Edge::new(stream), service)
                .with_upgrades();
            tokio::pin!(connection);
            let closing =
                async { drop(phases.wait_for(|phase| *phase >= Phase::ClosingIdle).await) };
            // A connection's error is its client's: it left, or did not speak HTTP and was told so.
            tokio::select! {
                biased;
                _ = connection.as_mut() => {}
                () = closing => {
                    connection.as_mut().graceful_shutdown();
                    let _ = connection.await;
                }
            }
        }
    }
}
