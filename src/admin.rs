//! The second listener: metrics, health and state, for operators and their machines. It never sees a
//! caller's request.

mod limiters;
mod pages;
mod shown;

use crate::{
    answer::PACEWAY_ORIGIN,
    config::{Mode, OnFailure},
    log, metrics,
    plan::Plan,
    store::{
        Store,
        health::{Breaker, Health},
    },
};
use axum::{
    Json, Router,
    extract::State,
    http::{StatusCode, header::CONTENT_TYPE},
    response::IntoResponse,
    routing::{any, get, post},
};
use limiters::Problem;
use metrics_exporter_prometheus::PrometheusHandle;
use serde_json::json;
use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::{runtime::RuntimeMetrics, task::spawn_blocking};

/// What the pages show.
#[derive(Clone)]
pub struct Admin {
    /// Shared with the workers.
    pub plan: Arc<Plan>,
    /// This side's own connection.
    pub store: Arc<dyn Store>,
    /// How it is; `None`: it is this process.
    pub health: Option<Arc<Health>>,
    /// Renders `/metrics`.
    pub metrics: PrometheusHandle,
    /// No new connections are accepted any more.
    pub draining: Arc<AtomicBool>,
    /// Of the workers.
    pub runtimes: Vec<RuntimeMetrics>,
}

/// The pages.
pub fn router(admin: Admin) -> Router {
    Router::new()
        .route("/", get(pages::index))
        .route("/metrics", get(measured))
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(readyz))
        .route("/limiters", get(limiters::all))
        .route("/limiters/{name}", get(limiters::one).delete(limiters::reset))
        .route("/limiters/{name}/keys", any(limiters::no_key))
        .route("/limiters/{name}/keys/", any(limiters::no_key))
        .route("/limiters/{name}/keys/{key}", get(limiters::one_key).delete(limiters::reset_key))
        .route("/limiters/{name}/acquire", post(limiters::acquire))
        .route("/limiters/{name}/renew", post(limiters::renew))
        .route("/limiters/{name}/release", post(limiters::release))
        .fallback(async || Problem(StatusCode::NOT_FOUND, "there is no such page".into()))
        .method_not_allowed_fallback(async || {
            Problem(StatusCode::METHOD_NOT_ALLOWED, "this page has other methods".into())
        })
        .with_state(admin)
}

async fn measured(State(admin): State<Admin>) -> impl IntoResponse {
    for (plan, level) in limiters::levels(&admin).await {
        // What cannot be known now keeps its last value; the store's metrics say why.
        if let (Some(Ok(level)), Some(available)) = (level, &plan.metrics.available) {
            available.set(level.remaining as f64);
        }
    }
    let tasks: usize = admin.runtimes.iter().map(RuntimeMetrics::num_alive_tasks).sum();
    metrics::tasks().set(tasks as f64);
    for stream in log::Stream::ALL {
        metrics::log_dropped(stream).absolute(stream.dropped());
    }
    // It takes a while where there are many.
    if let Ok(Some(files)) = spawn_blocking(open_files).await {
        metrics::open_files().set(files as f64);
    }
    admin.metrics.run_upkeep();
    (
        [(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")],
        admin.plan.measured(&admin.metrics),
    )
}

/// File descriptors of this process, where the system shows them.
fn open_files() -> Option<usize> {
    fs::read_dir("/proc/self/fd").ok().map(Iterator::count)
}

async fn readyz(State(admin): State<Admin>) -> impl IntoResponse {
    let mut reasons = Vec::new();
    if admin.draining.load(Relaxed) {
        reasons.push("draining".to_owned());
    }
    let limiting = admin.plan.config.limiting;
    let enforcing =
        || admin.plan.limiters.iter().filter(|plan| limiting && plan.limiter.mode == Mode::Enforce);
    // Others are served as they say, whatever the store does.
    let needs_store = enforcing().next().is_some()
        && enforcing().all(|plan| plan.limiter.on_failure == OnFailure::Reject);
    let away = admin.health.as_ref().and_then(|health| health.away());
    let asked = enforcing().find_map(|plan| plan.checks.first()).filter(|_| away.is_none());
    if let Some(check) = asked
        && let Err(error) = admin.store.look(check).get().await
        && (needs_store || error.is_of_a_key())
    {
        reasons.push(error.to_string());
    }
    // One that answers each call with an error decides as little as one that is away.
    let failed = admin.health.as_ref().filter(|_| away.is_none()).and_then(|health| {
        let failures = enforcing().map(|plan| health.failure(&plan.checks[0].key));
        failures.collect::<Option<Vec<_>>>()?.into_iter().next()
    });
    if let Some(why) = away.map(|(_, why)| why).or(failed).filter(|_| needs_store) {
        reasons.push(format!("{why}; every limiter has `on_failure: reject`"));
    }
    let (status, ready) = match reasons.is_empty() {
        true => (StatusCode::OK, true),
        false => (StatusCode::SERVICE_UNAVAILABLE, false),
    };
    let mut said = json!({ "ready": ready, "reasons": reasons });
    if let Some(health) = &admin.health {
        said["store"] = store(health);
    }
    // By this `paceway health` knows that it asks the admin side and not some other server.
    (status, [(PACEWAY_ORIGIN, "admin")], Json(said))
}

/// Where limits are decided now.
fn store(health: &Health) -> serde_json::Value {
    const ALONE: &str = "this gateway, by `on_failure`";
    let failures = health.failures();
    let (breaker, decides) = match health.breaker() {
        Breaker::Closed if failures.is_empty() => ("closed", "the store"),
        Breaker::Closed if failures.iter().any(|(group, ..)| group.is_empty()) => ("closed", ALONE),
        Breaker::Closed => ("closed", "the store, but for groups that get no decisions"),
        Breaker::HalfOpen => ("half-open", ALONE),
        Breaker::Open => ("open", ALONE),
    };
    let mut said =
        json!({ "breaker": breaker, "gateways": health.gateways(), "decided_by": decides });
    let millis = |span: Duration| span.as_micros() as f64 / 1e3;
    said["round_trip_ms"] = millis(health.pace.round_trip()).into();
    said["timeout_ms"] = millis(health.pace.limit()).into();
    let failures: Vec<_> = failures
        .into_iter()
        .map(|(group, span, why)| {
            json!({ "group": group, "for_s": span.as_secs(), "why": why.to_string() })
        })
        .collect();
    if !failures.is_empty() {
        said["no_decisions"] = failures.into();
    }
    if let Some((span, why)) = health.away() {
        said["away_s"] = span.as_secs().into();
        said["why"] = why.to_string().into();
    }
    said
}
