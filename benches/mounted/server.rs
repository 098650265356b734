//! A server whose cost `benches/run.sh mounted` counts: the same [`Proxy`] in an axum program, or without axum.
//!
//! `mounted FRONT FILE` serves the routes of the configuration FILE on its `listen`. FRONT is `proxy` (hyper calls the
//! `Proxy` as a tower service), `router` (the same connection of hyper calls `paceway::router`) or `serve` (`axum::serve`
//! with that router, as a program would write it).

use axum::Router;
use hyper::{Request, body::Incoming, server::conn::http1};
use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use paceway::{Config, Proxy, router};
use std::{env, error::Error, path::Path};
use tokio::net::TcpListener;
use tower::Service;

const USAGE: &str = "usage: mounted proxy|router|serve FILE";

// One thread, as the gateway has with `workers: 1`.
#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = env::args().skip(1).collect();
    let [front, file] = args.as_slice() else { return Err(USAGE.into()) };
    let config = Config::load(Path::new(file))?;
    let listener = TcpListener::bind(config.listen).await?;
    match front.as_str() {
        "proxy" => serve(listener, Proxy::open(config).await?).await,
        "router" => serve::<Router, _>(listener, router(config).await?).await,
        "serve" => Ok(axum::serve(listener, router(config).await?).await?),
        _ => Err(USAGE.into()),
    }
}

/// Serves HTTP/1.1 connections by hyper, each as a task.
async fn serve<S, B>(listener: TcpListener, service: S) -> Result<(), Box<dyn Error>>
where
    S: Service<Request<Incoming>, Response = http::Response<B>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<Box<dyn Error + Send + Sync>>,
    B: http_body::Body<Data = bytes::Bytes> + Send + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let service = TowerToHyperService::new(service.clone());
        // Without a timer, as `axum::serve`.
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
    }
}
