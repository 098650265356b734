//! A client of the crate `reqwest-middleware` whose requests wait for their permits: a `PaceLayer` is a middleware. The
//! server is one that this program starts.
//!
//! ```sh
//! cargo run -p paceway-limit --features reqwest-middleware --example reqwest_middleware
//! ```

use paceway_limit::{Limit, Limiter, PaceLayer, Rate, memory, retry_after};
use reqwest::{Client, Request, Response};
use reqwest_middleware::ClientBuilder;
use std::{error::Error, io::Write, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    time::Instant,
};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let server = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/", server.local_addr()?);
    tokio::spawn(serve(server));

    let limiter = Limiter::new(Limit::token_bucket("vendor", Rate::per_second(5), 2), memory())?;
    let layer = PaceLayer::new(limiter)
        .max_wait(Duration::from_secs(10))
        .key("vendor", |request: &Request| Some(request.url().host_str()?.to_owned()))
        .pause_when(|response: &Response| retry_after(response.status(), response.headers()));
    let client = ClientBuilder::new(Client::new()).with(layer).build();

    let mut out = std::io::stdout();
    let started = Instant::now();
    for i in 0..10 {
        let response = client.get(&url).send().await?;
        writeln!(out, "request {i}: {} after {:?}", response.status(), started.elapsed())?;
    }
    Ok(())
}

/// Answers each connection with one empty response.
async fn serve(server: TcpListener) {
    while let Ok((mut client, _)) = server.accept().await {
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
        // An answer before the request is an error of the client.
        let read = client.read(&mut [0; 1024]).await;
        if read.is_ok() && client.write_all(answer).await.is_ok() {
            drop(client.shutdown().await);
        }
    }
}
