//! A reqwest client that does what its vendor's responses say: after a 429 it waits for as long as `Retry-After` names, and
//! it counts the tokens that an answer has really used. The vendor is a server that this program starts.
//!
//! ```sh
//! cargo run -p paceway-limit --example responses
//! ```

use paceway_limit::{Limit, Limiter, PaceLayer, Rate, memory, retry_after};
use reqwest::{Client, Request, Response};
use std::{error::Error, io::Write, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    time::Instant,
};
use tower::{Layer, Service};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let vendor = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/", vendor.local_addr()?);
    tokio::spawn(serve(vendor));

    let calls = Limit::token_bucket("calls", Rate::per_second(5), 5);
    let tokens = Limit::token_bucket("tokens", Rate::per_second(1_000), 2_000);
    let limiter = Limiter::all("llm", [calls, tokens], memory())?;
    let tokens = limiter.cost("tokens")?;
    let layer = PaceLayer::new(limiter)
        .max_wait(Duration::from_secs(10))
        .cost(&tokens, |_: &Request| 2_000)
        // Without it each request would wait for 2 s, until 2000 tokens are there again.
        .settle(&tokens, |response: &Response| {
            response.headers().get("tokens-used")?.to_str().ok()?.parse().ok()
        })
        .pause_when(|response| retry_after(response.status(), response.headers()));
    let mut client = layer.layer(Client::new());

    let mut out = std::io::stdout();
    let started = Instant::now();
    for i in 0..5 {
        let response = client.call(Request::new("GET".parse()?, url.parse()?)).await?;
        writeln!(out, "request {i}: {} after {:?}", response.status(), started.elapsed())?;
    }
    Ok(())
}

/// Answers the third request with 429, and the others with the tokens that they cost.
async fn serve(vendor: TcpListener) {
    const ANSWER: &str =
        "HTTP/1.1 200 OK\r\nTokens-Used: 120\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    const REFUSAL: &str = "HTTP/1.1 429 Too Many Requests\r\nRetry-After: 2\r\nTokens-Used: 0\r\nContent-Length: 0\r\n\
                           Connection: close\r\n\r\n";
    let mut requests = 0;
    while let Ok((mut client, _)) = vendor.accept().await {
        requests += 1;
        let answer = if requests == 3 { REFUSAL } else { ANSWER };
        // An answer before the request is an error of the client.
        let read = client.read(&mut [0; 1024]).await;
        if read.is_ok() && client.write_all(answer.as_bytes()).await.is_ok() {
            drop(client.shutdown().await);
        }
    }
}
