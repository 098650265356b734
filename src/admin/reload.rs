//! Reads the configuration again when an operator asks for it, and shows which one is in use.

use super::{
    Admin,
    access::Operator,
    page_error::{PageError, Result},
};
use crate::live::{Live, LoadedConfig, ReloadError, RowsStatus};
use axum::{Extension, Json, extract::State, http::StatusCode};
use serde_json::{Map, Value, json};
use tokio::task::spawn_blocking;

/// Reads the configuration again. The answer comes when all workers serve their next request by it.
pub(super) async fn reload(
    State(admin): State<Admin>,
    Extension(operator): Extension<Operator>,
) -> Result<Json<Value>> {
    operator.log("an operator reloads the configuration", None, None);
    let live = admin.live.clone();
    // Reading files may block.
    let result = spawn_blocking(move || live.reload()).await;
    let failed = |status, why: &dyn ToString| PageError(status, why.to_string());
    match result {
        Ok(Ok(reloaded)) => Ok(Json(json!({
            "reloaded": true,
            "changed": reloaded.is_new,
            "hash": reloaded.hash,
            "masked": reloaded.masked,
            "overrides_not_applied": unfit(&admin.live),
            "needs_restart": reloaded.needs_restart,
        }))),
        Ok(Err(error @ ReloadError::NoFile)) => Err(failed(StatusCode::CONFLICT, &error)),
        Ok(Err(error)) => Err(failed(StatusCode::UNPROCESSABLE_ENTITY, &error)),
        // It panicked, which the log shows.
        Err(error) => Err(failed(StatusCode::INTERNAL_SERVER_ERROR, &error)),
    }
}

/// Describes the overrides that the configuration cannot have.
pub(super) fn unfit(live: &Live) -> Vec<Value> {
    let unfit = live.unfit();
    let shown = unfit.iter().map(|own| {
        let (limiter, why) = own.shown();
        json!({ "limiter": limiter, "why": why })
    });
    shown.collect()
}

/// Describes the configuration that is in use, and the mistakes of a later one.
pub(super) fn describe(loaded: LoadedConfig) -> Value {
    let LoadedConfig { hash, at, error, needs_restart, .. } = loaded;
    let mut said = json!({ "hash": hash, "loaded": format!("{at:.3}") });
    if let Some(error) = error {
        said["error"] = error.into();
    }
    if !needs_restart.is_empty() {
        said["needs_restart"] = needs_restart.into();
    }
    said
}

/// Describes the source of each `rates_from`, by the names of their limiters.
pub(super) fn rates(live: &Live) -> Map<String, Value> {
    live.rates_status().into_iter().map(|(name, status)| (name, rows(status, &[]))).collect()
}

/// Describes the source of rows, how many of them are in use, and which limiters are missing.
pub(super) fn rows(status: RowsStatus, missing: &[String]) -> Value {
    let RowsStatus { up, error, loaded, rows, invalid } = status;
    let mut said = json!({ "up": up, "rows": rows, "invalid": invalid });
    if let Some(error) = error {
        said["error"] = error.into();
    }
    if let Some(at) = loaded {
        said["loaded"] = format!("{at:.3}").into();
    }
    if !missing.is_empty() {
        said["missing"] = missing.into();
    }
    said
}
