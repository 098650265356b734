//! `paceway demo`: a pretend vendor that throttles, and a gateway before it, in one process.

use super::{Failure, log, print};
use crate::{
    config::{AccessLog, Config},
    server::Server,
};
use anyhow::Context;
use axum::{Json, Router, extract::State, http::StatusCode, response::IntoResponse, routing::any};
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

/// The vendor counts arrivals in a sliding window. The margin keeps below it even when a request is up to 100 ms
/// faster on its way than the one five before it.
const LIMITER: &str = "{ algorithm: sliding_window, rate: 5/s, margin: 100ms }";

type Arrivals = Arc<Mutex<VecDeque<Instant>>>;

pub(super) fn demo(port: u16, admin_port: u16, vendor_port: u16) -> Result<(), Failure> {
    let vendor = start_vendor(vendor_port)?;
    let text = format!(
        "listen: 127.0.0.1:{port}\nadmin: 127.0.0.1:{admin_port}\nupstream: http://{vendor}\n\
         limiters: {{ vendor: {LIMITER} }}\n\
         routes: [{{ name: all, suffix: \"*\", limiters: [vendor], max_wait: 30s }}]\n"
    );
    let config = Config::parse(&text, "demo", Path::new("."), &|_| None).map_err(Failure::usage)?;
    let (access_log, _flush) = log::start(Some(AccessLog::Off))?;
    let server = Server::bind(config, access_log).map_err(anyhow::Error::new)?;
    let (gateway, admin) = server.addresses();
    print(&format!(
        "A pretend vendor that allows {QUOTA} calls a second: http://{vendor}\n\
         The gateway before it:                         http://{gateway}\n\
         Its state and its metrics:                     http://{admin}/limiters  http://{admin}/metrics\n\
         \n\
         Straight to the vendor, most of 20 calls get a 429:\n\
         \n  for i in $(seq 20); do curl -s -o /dev/null -w '%{{http_code}} ' http://{vendor}/search; done; echo\n\
         \n\
         Through the gateway, all 20 are paced and none does:\n\
         \n  for i in $(seq 20); do curl -s -o /dev/null -w '%{{http_code}} ' http://{gateway}/search; done; echo\n\
         \n\
         One with its headers: curl -i http://{gateway}/search\n\
         Stop it all with Ctrl-C."
    ))?;
    Ok(server.run().map_err(anyhow::Error::new)?)
}

/// Runs the vendor in a thread of its own; its address.
fn start_vendor(port: u16) -> anyhow::Result<SocketAddr> {
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, port))
        .with_context(|| format!("cannot listen on 127.0.0.1:{port}; try --vendor-port 0"))?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    thread::Builder::new().name("vendor".into()).spawn(move || {
        runtime.block_on(async move {
            let listener = tokio::net::TcpListener::from_std(listener)?;
            let app = Router::new().fallback(any(call)).with_state(Arrivals::default());
            axum::serve(listener, app).await
        })
    })?;
    Ok(address)
}

/// Admits at most [`QUOTA`] calls in any [`WINDOW`].
async fn call(State(arrivals): State<Arrivals>) -> impl IntoResponse {
    let now = Instant::now();
    let mut arrivals = arrivals.lock();
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
