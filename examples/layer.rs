//! The limiter as a layer of an axum program: 5 requests a second, each held up to 2 s, the rest answered 429.
//!
//! ```sh
//! cargo run --example layer &
//! for i in $(seq 20); do curl -s -o /dev/null -w '%{http_code} ' http://127.0.0.1:3000/ & done; wait
//! ```

use axum::{Router, routing::get};
use paceway::{Limit, LimitLayer, Limiter, Rate, memory};
use std::{error::Error, time::Duration};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let limiter = Limiter::new(Limit::token_bucket("hello", Rate::per_second(5), 5), memory())?;
    let layer = LimitLayer::new(limiter).max_wait(Duration::from_secs(2));
    let app = Router::new().route("/", get(async || "hello\n")).layer(layer);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    Ok(axum::serve(listener, app).await?)
}
