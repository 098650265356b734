//! The pretend vendor: it counts the calls of each API key strictly, and its other paths answer as vendors do.

use anyhow::Context;
use axum::{
    Json, Router,
    extract::State,
    http::{HeaderMap, StatusCode, header::RETRY_AFTER},
    response::{IntoResponse, Response},
    routing::any,
};
use parking_lot::Mutex;
use serde_json::json;
use std::{
    collections::VecDeque,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    thread,
    time::Duration,
};
use tokio::time::{Instant, sleep};

/// The calls that an API key may make in a [`WINDOW`].
pub(super) const QUOTA: usize = 5;
const WINDOW: Duration = Duration::from_secs(1);

/// The header by which the vendor recognises the gateway. All other calls share a second quota, so that a call straight to
/// the vendor takes nothing from the gateway's quota, in whatever order the printed commands are pasted.
pub(super) const KEY: (&str, &str) = ("x-api-key", "of-the-gateway");

/// In the second 25 of every 60 the catalog refuses calls, and asks for a pause of 6 s.
const REFUSES: (u64, u64) = (25, 60);
const PAUSE: &str = "6";

type Arrivals = Arc<Mutex<VecDeque<Instant>>>;

/// The instants of recent calls, for the gateway's API key and for all others.
#[derive(Clone)]
struct Vendor {
    gateway: Arrivals,
    others: Arrivals,
    started: Instant,
}

/// Runs the vendor in a separate thread and returns its address.
pub(super) fn start(port: u16) -> anyhow::Result<SocketAddr> {
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, port))
        .with_context(|| format!("cannot listen on 127.0.0.1:{port}; try --vendor-port 0"))?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    thread::Builder::new().name("vendor".into()).spawn(move || {
        runtime.block_on(async move {
            let listener = tokio::net::TcpListener::from_std(listener)?;
            let (gateway, others) = Default::default();
            let vendor = Vendor { gateway, others, started: Instant::now() };
            let app = Router::new()
                .route("/catalog", any(catalog))
                .route("/orders", any(async || answer(30).await))
                .route("/exports", any(async || answer(900).await))
                .route("/reports", any(async || answer(15).await))
                .fallback(any(call))
                .with_state(vendor);
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

/// Refuses calls for one second of a minute.
async fn catalog(State(vendor): State<Vendor>) -> Response {
    let (second, period) = REFUSES;
    if vendor.started.elapsed().as_secs() % period == second {
        return (StatusCode::TOO_MANY_REQUESTS, [(RETRY_AFTER, PAUSE)]).into_response();
    }
    answer(40).await.into_response()
}

/// Answers after so many ms.
async fn answer(millis: u64) -> impl IntoResponse {
    sleep(Duration::from_millis(millis)).await;
    Json(json!({ "ok": true }))
}
