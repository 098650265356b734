//! The second listener: metrics, health and state, for operators and their machines. It never sees a
//! caller's request.

use crate::{
    algorithm::Level,
    config::Mode,
    gateway::{LimiterPlan, Plan},
    store::{Store, StoreError},
};
use axum::{
    Json, Router,
    extract::State,
    http::{StatusCode, header::CONTENT_TYPE},
    response::IntoResponse,
    routing::get,
};
use metrics_exporter_prometheus::PrometheusHandle;
use serde_json::{Value, json};
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};

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
}

/// The pages.
pub fn router(admin: Admin) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(readyz))
        .route("/limiters", get(limiters))
        .with_state(admin)
}

async fn metrics(State(admin): State<Admin>) -> impl IntoResponse {
    for (limiter, level) in levels(&admin).await {
        // What cannot be known now keeps its last value; the store's metrics say why.
        if let Some(Ok(level)) = level {
            limiter.metrics.available.set(level.remaining as f64);
        }
    }
    admin.metrics.run_upkeep();
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], admin.metrics.render())
}

async fn readyz(State(admin): State<Admin>) -> impl IntoResponse {
    let mut reasons = Vec::new();
    if admin.draining.load(Relaxed) {
        reasons.push("draining".to_owned());
    }
    let limiting = admin.plan.config.limiting;
    let asked =
        admin.plan.limiters.iter().find(|limiter| limiting && limiter.mode == Mode::Enforce);
    if let Some(limiter) = asked
        && let Err(error) = admin.store.look(&limiter.check).get().await
    {
        reasons.push(error.to_string());
    }
    let (status, ready) = match reasons.is_empty() {
        true => (StatusCode::OK, true),
        false => (StatusCode::SERVICE_UNAVAILABLE, false),
    };
    (status, Json(json!({ "ready": ready, "reasons": reasons })))
}

async fn limiters(State(admin): State<Admin>) -> Json<Value> {
    let levels = levels(&admin).await;
    let all: Vec<_> = levels.into_iter().map(|(limiter, level)| state(limiter, level)).collect();
    Json(json!({ "limiting": admin.plan.config.limiting, "limiters": all }))
}

/// Every limiter with its level; `None` where it is off.
async fn levels(admin: &Admin) -> Vec<(&LimiterPlan, Option<Result<Level, StoreError>>)> {
    let ask = |limiter: &LimiterPlan| {
        (limiter.mode != Mode::Off).then(|| admin.store.look(&limiter.check))
    };
    // All are asked for before one is awaited: a store that does I/O takes them together.
    let asked: Vec<_> = admin.plan.limiters.iter().map(|limiter| (limiter, ask(limiter))).collect();
    let mut levels = Vec::with_capacity(asked.len());
    for (limiter, answer) in asked {
        let level = match answer {
            Some(answer) => Some(answer.get().await),
            None => None,
        };
        levels.push((limiter, level));
    }
    levels
}

fn state(limiter: &LimiterPlan, level: Option<Result<Level, StoreError>>) -> Value {
    let mut state = json!({
        "name": limiter.policy.name,
        "algorithm": limiter.check.algorithm.name(),
        "rate": limiter.policy.rate.to_string(),
        "burst": limiter.check.algorithm.capacity(),
        "mode": limiter.mode.name(),
        "waiting": limiter.waiting.load(Relaxed),
    });
    let millis = |micros: i64| micros as f64 / 1000.0;
    match level {
        Some(Ok(level)) => {
            state["level"] = level.remaining.into();
            state["next_slot_ms"] = millis(level.next).into();
            state["reset_ms"] = millis(level.reset_after).into();
        }
        Some(Err(error)) => state["error"] = error.to_string().into(),
        None => {}
    }
    state
}
