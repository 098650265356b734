//! Mounts the gateway in an axum program: `cargo run --example mount -- config/quickstart.yaml`.
//!
//! The routes of the program are served by itself, everything else by the routes and limiters of the file, which is the same
//! file that `paceway run --config` takes. `/paced` serves the same routes below a prefix.

use axum::{Router, routing::get};
use paceway::{Config, Proxy};
use std::{env, error::Error, net::SocketAddr, path::PathBuf};
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let file = env::args_os().nth(1).map_or_else(|| "config/quickstart.yaml".into(), PathBuf::from);
    let proxy = Proxy::open(Config::load(&file)?).await?;
    let program = Router::new()
        .route("/hello", get(async || "not paced"))
        .nest_service("/paced", proxy.clone())
        .fallback_service(proxy)
        // The limiters by `{client_ip}` need the addresses of the clients.
        .into_make_service_with_connect_info::<SocketAddr>();
    let listener = TcpListener::bind("127.0.0.1:8080").await?;
    axum::serve(listener, program).await?;
    Ok(())
}
