//! The second listener: metrics, health and state, for operators and their machines. It never sees a
//! caller's request.

mod limiters;

use crate::{config::Mode, gateway::Plan, metrics, store::Store};
use axum::{
    Json, Router,
    extract::State,
    http::{StatusCode, header::CONTENT_TYPE},
    response::IntoResponse,
    routing::{get, post},
};
use limiters::Problem;
use metrics_exporter_prometheus::PrometheusHandle;
use serde_json::json;
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};
use tokio::runtime::RuntimeMetrics;

/// What the pages show.
#[derive(Clone)]
pub struct Admin {
    /// Shared with the workers.
    pub plan: Arc<Plan>,
    /// This side's own connection.
    pub store: Arc<dyn Store>,
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
        .route("/metrics", get(measured))
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(readyz))
        .route("/limiters", get(limiters::all))
        .route("/limiters/{name}", get(limiters::one).delete(limiters::reset))
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
    admin.metrics.run_upkeep();
    (
        [(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")],
        admin.plan.measured(&admin.metrics),
    )
}

async fn readyz(State(admin): State<Admin>) -> impl IntoResponse {
    let mut reasons = Vec::new();
    if admin.draining.load(Relaxed) {
        reasons.push("draining".to_owned());
    }
    let limiting = admin.plan.config.limiting;
    let mut enforcing =
        admin.plan.limiters.iter().filter(|plan| limiting && plan.limiter.mode == Mode::Enforce);
    let asked = enforcing.find_map(|plan| plan.checks.first());
    if let Some(check) = asked
        && let Err(error) = admin.store.look(check).get().await
    {
        reasons.push(error.to_string());
    }
    let (status, ready) = match reasons.is_empty() {
        true => (StatusCode::OK, true),
        false => (StatusCode::SERVICE_UNAVAILABLE, false),
    };
    (status, Json(json!({ "ready": ready, "reasons": reasons })))
}
