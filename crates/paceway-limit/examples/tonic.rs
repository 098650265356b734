//! A gRPC client whose calls wait for their permits: ten calls at 5 a second, to a server that this program starts. A
//! tonic `Channel` is a tower service, so a `PaceLayer` fits around it, and every generated client takes the result.
//!
//! ```sh
//! cargo run -p paceway-limit --example tonic
//! ```

use paceway_limit::{Limit, Limiter, PaceLayer, Rate, memory};
use std::{error::Error, io::Write, time::Duration};
use tokio::{net::TcpListener, time::Instant};
use tonic::{
    body::Body,
    codegen::http::Request,
    transport::{
        Endpoint, Server,
        server::{Router, TcpIncoming},
    },
};
use tonic_health::{
    pb::{HealthCheckRequest, health_client::HealthClient},
    server::health_reporter,
};
use tower::Layer;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let channel = Endpoint::try_from(format!("http://{}", listener.local_addr()?))?.connect_lazy();
    tokio::spawn(server().serve_with_incoming(TcpIncoming::from(listener)));

    let limiter = Limiter::new(Limit::token_bucket("vendor", Rate::per_second(5), 2), memory())?;
    let layer = PaceLayer::new(limiter)
        .max_wait(Duration::from_secs(10))
        // One bucket for each method, such as `/grpc.health.v1.Health/Check`.
        .key("vendor", |call: &Request<Body>| Some(call.uri().path().to_owned()));
    let mut client = HealthClient::new(layer.layer(channel));

    let mut out = std::io::stdout();
    let started = Instant::now();
    for i in 0..10 {
        let answer = client.check(HealthCheckRequest::default()).await?.into_inner();
        writeln!(out, "call {i}: {:?} after {:?}", answer.status(), started.elapsed())?;
    }
    Ok(())
}

/// Makes a server that answers health checks, as most gRPC servers do.
fn server() -> Router {
    let (_, service) = health_reporter();
    Server::builder().add_service(service)
}
