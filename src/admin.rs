//! The admin side, on a second listener: metrics, health and the state of limiters, for operators and their programs. It
//! never receives a request of a caller.

mod access;
mod accounts;
mod dashboard;
mod estimate;
mod keys;
mod limiters;
mod overrides;
mod page;
mod page_error;
mod pages;
mod reload;
mod shown;
mod tenants;
mod used_up;

use crate::{
    answer::PACEWAY_ORIGIN,
    config::FailurePolicy,
    live::Live,
    log, metrics,
    overrides::Overrides,
    plan::{Plan, slowest_per_second},
    store::{
        StoreAdmin,
        health::{Breaker, Health},
    },
};
use axum::{
    Extension, Json, Router,
    extract::{FromRef, State},
    http::{StatusCode, header::CONTENT_TYPE},
    middleware::{from_fn_with_state, map_response},
    response::IntoResponse,
    routing::{any, get, post, put},
};
use dashboard::Dashboard;
pub(crate) use dashboard::EventStream;
pub(crate) use page_error::PageError;
use serde_json::json;
use std::{
    fs,
    ops::Deref,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::{runtime::RuntimeMetrics, task::spawn_blocking};
pub(crate) use used_up::QuotaPaces;

/// The gateway as one request of an operator sees it.
#[derive(Clone)]
pub struct Admin {
    /// The routes and limiters at the time of the request, shared with the workers.
    pub plan: Arc<Plan>,
    parts: Arc<AdminParts>,
}

/// The parts of the gateway that the admin pages show.
pub struct AdminParts {
    /// The configuration, and the way by which it changes.
    pub live: Arc<Live>,
    /// The overrides of operators.
    pub overrides: Arc<Overrides>,
    /// The store, through a connection that only the admin side uses.
    pub store: Arc<dyn StoreAdmin>,
    /// The state of the store; `None` if the store is the memory of this process.
    pub health: Option<Arc<Health>>,
    /// True after SIGTERM, when no new connections are accepted. `/readyz` then answers 503.
    pub draining: Arc<AtomicBool>,
    /// The runtimes of the workers, whose tasks are counted.
    pub runtimes: Vec<RuntimeMetrics>,
    /// The paces at which the quotas of windows are used.
    pub quotas: QuotaPaces,
}

/// Returns the router of all admin pages; [`pages`] lists them for operators. The current runtime keeps the history that the
/// dashboard draws.
pub fn router(parts: AdminParts) -> Router {
    let state = Arc::new(parts);
    let dashboard = Arc::new(Dashboard::new(&state));
    tokio::spawn(dashboard.clone().keep(state.clone()));
    Router::new()
        .route("/", get(pages::index))
        .route("/assets/{name}", get(page::file))
        .route("/status", get(dashboard::status))
        .route("/events", get(dashboard::events))
        .route("/routes", get(dashboard::routes))
        .route("/upstreams", get(dashboard::upstreams))
        .route("/upstreams/{name}/accounts", get(accounts::list))
        .route(
            "/upstreams/{name}/accounts/{account}/park",
            put(accounts::park).delete(accounts::unpark),
        )
        .route("/requests", get(dashboard::requests))
        .route("/access", get(access::show_access))
        .route("/metrics", get(measured))
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(readyz))
        .route("/reload", post(reload::reload))
        .route("/limiters", get(limiters::all))
        .route("/limiters/{name}", get(limiters::one).delete(limiters::reset))
        .route("/limiters/{name}/override", put(overrides::set).delete(overrides::remove))
        .route(
            "/limiting",
            get(overrides::limiting)
                .put(overrides::set_limiting)
                .delete(overrides::remove_limiting),
        )
        .route("/limiters/{name}/keys", get(keys::list).delete(keys::reset))
        .route(
            "/limiters/{name}/keys/{key}/override",
            put(overrides::set_of_key).delete(overrides::remove_of_key),
        )
        .route("/limiters/{name}/keys/", any(limiters::no_key))
        .route("/limiters/{name}/keys/{key}", get(limiters::one_key).delete(limiters::reset_key))
        .route("/limiters/{name}/tenants", get(tenants::list))
        .route("/limiters/{name}/estimate", post(estimate::estimate))
        .route("/limiters/{name}/acquire", post(limiters::acquire))
        .route("/limiters/{name}/renew", post(limiters::renew))
        .route("/limiters/{name}/release", post(limiters::release))
        .fallback(async || {
            PageError(StatusCode::NOT_FOUND, "there is no such page; `GET /` lists them".into())
        })
        .method_not_allowed_fallback(async || {
            let why =
                "this page has other methods: `Allow` names them, and `GET /` lists all pages";
            PageError(StatusCode::METHOD_NOT_ALLOWED, why.into())
        })
        .layer(Extension(dashboard))
        .with_state(state.clone())
        .layer(from_fn_with_state(state, access::guard))
        .layer(map_response(page_error::as_problem))
}

// === impl Admin ===

impl FromRef<Arc<AdminParts>> for Admin {
    fn from_ref(parts: &Arc<AdminParts>) -> Self {
        Self { plan: parts.live.plan(), parts: parts.clone() }
    }
}

impl Deref for Admin {
    type Target = AdminParts;

    fn deref(&self) -> &AdminParts {
        &self.parts
    }
}

// === pages

async fn measured(State(admin): State<Admin>) -> impl IntoResponse {
    for (plan, level) in limiters::levels(&admin).await {
        // A level that the store does not report now keeps its last value; the store's metrics show the reason.
        let Some(Ok(each)) = level else { continue };
        if let Some(quota) = &plan.metrics.quota
            && let Some(end) = admin.quotas.note(&plan.current(), &each)
        {
            quota.set(end.reset, end.used_up);
        }
        if let Some(rate) = &plan.metrics.rate
            && let Some(now) = slowest_per_second(&plan.limiter.rates, &each)
        {
            rate.set(now);
        }
        if let Some(available) = &plan.metrics.available {
            available.set(shown::tightest(each).remaining as f64);
        }
    }
    for (plan, left) in limiters::pauses(&admin) {
        plan.metrics.paused.set(left);
    }
    if let Some(health) = &admin.health {
        metrics::STORE_CLOCK_SET_BACK.level(&[]).set(health.clock_ahead() as f64 / 1e6);
    }
    if let Some(states) = admin.store.states() {
        metrics::STORE_STATES.level(&[]).set(states as f64);
    }
    let tasks: usize = admin.runtimes.iter().map(RuntimeMetrics::num_alive_tasks).sum();
    metrics::TASKS.level(&[]).set(tasks as f64);
    for stream in log::LogStream::ALL {
        metrics::LOG_DROPPED.count(&[stream.name()]).absolute(stream.dropped());
    }
    // Counting 100,000 open files takes tens of milliseconds, for which no other page should wait.
    if let Ok(Some(files)) = spawn_blocking(open_files).await {
        metrics::OPEN_FILES.level(&[]).set(files as f64);
    }
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], admin.live.measured())
}

/// Counts the open file descriptors of this process. `None` on systems without `/proc`.
fn open_files() -> Option<usize> {
    fs::read_dir("/proc/self/fd").ok().map(Iterator::count)
}

async fn readyz(State(admin): State<Admin>) -> impl IntoResponse {
    let mut reasons = Vec::new();
    if admin.draining.load(Relaxed) {
        reasons.push("draining".to_owned());
    }
    let enforcing = || admin.plan.enforcing();
    // Requests of limiters with another `on_failure` are served while the store is away.
    let needs_store = enforcing().next().is_some()
        && enforcing().all(|plan| plan.limiter.on_failure == FailurePolicy::Reject);
    let away = admin.health.as_ref().and_then(|health| health.away());
    let asked = enforcing().find_map(|plan| plan.checks.first()).filter(|_| away.is_none());
    if let Some(check) = asked
        && let Err(error) = admin.store.look(check).get().await
        && (needs_store || error.is_of_a_key())
    {
        reasons.push(error.to_string());
    }
    // A store that answers each call with an error decides nothing, like one that is away.
    let failed = admin.health.as_ref().filter(|_| away.is_none()).and_then(|health| {
        let failures = enforcing().map(|plan| health.failure(&plan.checks[0].key));
        failures.collect::<Option<Vec<_>>>()?.into_iter().next()
    });
    if let Some(why) = away.map(|(_, why)| why).or(failed).filter(|_| needs_store) {
        reasons.push(format!("{why}; every limiter has `on_failure: reject`"));
    }
    let (limits, missing) = (admin.live.limits_status(), admin.live.missing());
    // Once the database has answered, the other routes are served: only an edit of the rows can open these.
    if !missing.is_empty() && limits.as_ref().is_none_or(|limits| limits.loaded.is_none()) {
        let names = missing.join(", ");
        reasons.push(format!("limits_from: no rows yet, and the file has no limiters {names}"));
    }
    let (status, ready) = if reasons.is_empty() {
        (StatusCode::OK, true)
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, false)
    };
    let mut said = json!({ "ready": ready, "reasons": reasons });
    said["config"] = reload::describe(admin.live.loaded());
    let unfit = reload::unfit(&admin.live);
    if !unfit.is_empty() {
        said["config"]["overrides_not_applied"] = unfit.into();
    }
    if let Some(limits) = limits {
        said["limits_from"] = reload::rows(limits, &missing);
    }
    let rates = reload::rates(&admin.live);
    if !rates.is_empty() {
        said["rates_from"] = rates.into();
    }
    if let Some(health) = &admin.health {
        said["store"] = store(health);
    }
    let closed = limiters::closed(&admin).await;
    if !closed.is_empty() {
        said["closed"] = closed.into();
    }
    // This header tells `paceway health` that it asks the admin side and not some other server.
    (status, [(PACEWAY_ORIGIN, "admin")], Json(said))
}

/// Describes where limits are decided now, for `/readyz`: by the store, or by this gateway while the breaker is open.
fn store(health: &Health) -> serde_json::Value {
    const ALONE: &str = "this gateway, by `on_failure`";
    let failures = health.failures();
    let (breaker, decides) = match health.breaker() {
        Breaker::Closed if failures.is_empty() => ("closed", "the store"),
        Breaker::Closed if failures.iter().any(|(group, ..)| group.is_empty()) => ("closed", ALONE),
        Breaker::Closed => ("closed", "the store, except for groups that get no decisions"),
        Breaker::HalfOpen => ("half-open", ALONE),
        Breaker::Open => ("open", ALONE),
    };
    let mut said =
        json!({ "breaker": breaker, "gateways": health.gateways(), "decided_by": decides });
    let millis = |span: Duration| span.as_micros() as f64 / 1e3;
    said["round_trip_ms"] = millis(health.pace.round_trip()).into();
    said["timeout_ms"] = millis(health.pace.limit()).into();
    if let Some(is_script) = health.scripted.is_script() {
        said["functions"] = if is_script { "script" } else { "library" }.into();
    }
    match health.clock_ahead() {
        0 => {}
        ahead => said["clock_set_back_s"] = (ahead as f64 / 1e6).into(),
    }
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
        if !health.was_reached() {
            said["never_reached"] = true.into();
        }
    }
    said
}
