//! `paceway demo`: a pretend vendor that throttles, and a gateway in front of it, in one process.

use super::{CommandError, log, print};
use crate::{
    config::{AccessLog, Config},
    server::Server,
};
use anyhow::Context;
use axum::{
    Json, Router,
    extract::State,
    http::{HeaderMap, StatusCode},
    response::IntoResponse,
    routing::any,
};
use parking_lot::Mutex;
use serde_json::json;
use std::{
    collections::VecDeque,
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    sync::Arc,
    thread,
    time::Duration,
};
use tokio::time::Instant;

const QUOTA: usize = 5;
const WINDOW: Duration = Duration::from_secs(1);

/// The gateway's limiter. The vendor counts arrivals in a sliding window of 1 s; the margin keeps the gateway within it even
/// if a request travels up to 100 ms faster than the one five before it.
const LIMITER: &str = "{ algorithm: sliding_window, rate: 5/s, margin: 100ms }";

/// The header by which the vendor recognises the gateway. All other calls share a second quota, so that a call straight to
/// the vendor takes nothing from the gateway's quota, in whatever order the printed commands are pasted.
const KEY: (&str, &str) = ("x-api-key", "of-the-gateway");

type Arrivals = Arc<Mutex<VecDeque<Instant>>>;

/// The pretend vendor: the instants of recent calls, for the gateway's API key and for all others.
#[derive(Clone, Default)]
struct Vendor {
    gateway: Arrivals,
    others: Arrivals,
}

pub(super) fn demo(port: u16, admin_port: u16, vendor_port: u16) -> Result<(), CommandError> {
    let vendor = start_vendor(vendor_port)?;
    let text = format!(
        "listen: 127.0.0.1:{port}\nadmin: 127.0.0.1:{admin_port}\nupstream: http://{vendor}\n\
         limiters: {{ vendor: {LIMITER} }}\n\
         routes:\n\
         - {{ name: all, suffix: \"*\", limiters: [vendor], max_wait: 30s,\n\
         \x20   headers: {{ request: {{ set: {{ {}: {} }} }} }} }}\n",
        KEY.0, KEY.1
    );
    let config =
        Config::parse(&text, "demo", Path::new("."), &|_| None).map_err(CommandError::usage)?;
    let (access_log, _flush) = log::start(Some(AccessLog::Off), None)?;
    let server = Server::bind(config, access_log).map_err(anyhow::Error::new)?;
    let (gateway, admin) = server.addresses();
    print(&format!(
        "# A pretend vendor, {QUOTA} calls a second for each API key: http://{vendor}\n\
         # The gateway before it, with an API key of its own:   http://{gateway}\n\
         # The state and the metrics of the gateway:            http://{admin}/limiters  http://{admin}/metrics\n\
         # Paste these lines into another terminal, all at once or one by one, in any order.\n\
         \n\
         # Straight to the vendor: {QUOTA} of 20 calls pass in each second, the others get a 429.\n\
         for i in $(seq 20); do curl -s -o /dev/null -w '%{{http_code}} ' http://{vendor}/search; done; echo\n\
         \n\
         # Through the gateway: all 20 pass. `max_wait: 30s` on its route holds each call until its slot comes, about 3\n\
         # seconds in all.\n\
         for i in $(seq 20); do curl -s -o /dev/null -w '%{{http_code}} ' http://{gateway}/search; done; echo\n\
         \n\
         # One call with its headers. Server-Timing says for how many ms it waited, if it did.\n\
         curl -i http://{gateway}/search; echo\n\
         \n\
         # Stop it all with Ctrl-C."
    ))?;
    Ok(server.run().map_err(anyhow::Error::new)?)
}

/// Runs the vendor in a separate thread and returns its address.
fn start_vendor(port: u16) -> anyhow::Result<SocketAddr> {
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, port))
        .with_context(|| format!("cannot listen on 127.0.0.1:{port}; try --vendor-port 0"))?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    thread::Builder::new().name("vendor".into()).spawn(move || {
        runtime.block_on(async move {
            let listener = tokio::net::TcpListener::from_std(listener)?;
            let app = Router::new().fallback(any(call)).with_state(Vendor::default());
            axum::serve(listener, app).await
        })
    })?;
    Ok(address)
}

/// Admits at most [`QUOTA`] calls in any [`WINDOW`] for each API key.
async fn call(State(vendor): State<Vendor>, headers: HeaderMap) -> impl IntoResponse {
    let now = Instant::now();
    let is_gateway = headers.get(KEY.0).is_some_and(|key| key == KEY.1);
    let mut arrivals = if is_gateway { vendor.gateway.lock() } else { vendor.others.lock() };
    while arrivals.front().is_some_and(|first| now - *first >= WINDOW) {
        arrivals.pop_front();
    }
    if arrivals.len() >= QUOTA {
        let problem = json!({ "error": "too many calls", "allowed": "5 a second" });
        return (StatusCode::TOO_MANY_REQUESTS, Json(problem));
    }
    arrivals.push_back(now);
    (StatusCode::OK, Json(json!({ "ok": true, "calls_in_the_last_second": arrivals.len() })))
}
