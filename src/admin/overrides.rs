//! The pages that set and remove overrides. Reads and checks what operators send, and keeps nothing.

use super::{
    Admin,
    access::{MOST_REASON, Operator},
    page_error::{PageError, Result, bad},
    shown::override_in_force,
};
use crate::{
    config::{Mode, duration},
    key::shown,
    overrides::{NewOverride, Overridden, Override, OverrideError, Rates},
    plan::LimiterPlan,
};
use axum::{
    Extension, Json,
    body::Bytes,
    extract::{Path, State},
    http::StatusCode,
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};
use std::time::Duration;

/// An override ends within a year.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);
/// The most characters of a rate or a mode, and the most rates, that are passed on to the checks of a configuration.
const MOST_WORD: usize = 64;
const MOST_RATES: usize = 8;
/// Examples of bodies, for errors.
const RATE_CHANGE: &str = r#"{"rate": "2/s", "for": "10m", "reason": "..."}"#;
const SWITCH_CHANGE: &str = r#"{"limiting": "off", "for": "10m", "reason": "..."}"#;

/// The body of `PUT /limiters/NAME/override`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a map")]
struct LimiterChange {
    rate: Option<Rates>,
    mode: Option<String>,
    #[serde(default)]
    pause: bool,
    #[serde(rename = "for")]
    span: Option<String>,
    reason: Option<String>,
}

/// The parts of a path that name one key of a limiter.
#[derive(Deserialize)]
pub(super) struct LimiterKey {
    name: String,
    key: String,
}

/// The body of `PUT /limiters/NAME/keys/KEY/override`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a map")]
struct KeyChange {
    rate: String,
    #[serde(rename = "for")]
    span: Option<String>,
    reason: Option<String>,
}

/// The body of `PUT /limiting`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a map")]
struct LimitingChange {
    limiting: String,
    #[serde(rename = "for")]
    span: Option<String>,
    reason: Option<String>,
}

pub(super) async fn set(
    State(admin): State<Admin>,
    Extension(operator): Extension<Operator>,
    Path(name): Path<String>,
    body: Bytes,
) -> Result<Json<Value>> {
    let plan = admin.limiter(&name)?;
    let LimiterChange { rate, mode, pause, span, reason } = read(&body, "change", RATE_CHANGE)?;
    if rate.is_none() && mode.is_none() && !pause {
        return Err(bad("name a change: `rate`, `mode`, or `\"pause\": true`"));
    }
    if let Some(rates) = &rate {
        check_rates(plan, rates)?;
    }
    let mode = mode.map(|mode| word("mode", mode)).transpose()?;
    let enforces = mode.as_deref().unwrap_or(plan.limiter.mode.name()) == Mode::Enforce.name();
    if pause && !enforces {
        return Err(bad(
            "a limiter that does not enforce holds no request, so that a pause changes nothing",
        ));
    }
    let (span, reason) = (span_of(span)?, reason_of(reason)?);
    let by = operator.to_string();
    let change = Override { rate, mode, pause, limiting: None, reason, by, until: 0 };
    let new = NewOverride { change, span };
    let set = put(&admin, Overridden::Limiter(&name), new).await?;
    Ok(Json(json!({ "limiter": name, "override": set })))
}

/// Sets an override, and returns it as pages show it.
async fn put(admin: &Admin, of: Overridden<'_>, new: NewOverride) -> Result<Option<Value>> {
    admin.overrides.set(of, Some(new)).await?;
    Ok(admin.overrides.of(of).map(|own| override_in_force(admin, of, &own)))
}

/// Sets another rate for one key of a limiter.
pub(super) async fn set_of_key(
    State(admin): State<Admin>,
    Extension(operator): Extension<Operator>,
    Path(LimiterKey { name, key }): Path<LimiterKey>,
    body: Bytes,
) -> Result<Json<Value>> {
    let key = stored_key(&admin, &name, &key)?;
    let KeyChange { rate, span, reason } = read(&body, "change", RATE_CHANGE)?;
    let rate = Some(Rates::One(word("rate", rate)?));
    let (span, reason) = (span_of(span)?, reason_of(reason)?);
    let by = operator.to_string();
    let change = Override { rate, mode: None, pause: false, limiting: None, reason, by, until: 0 };
    let of = Overridden::Key { limiter: &name, key: &key };
    let set = put(&admin, of, NewOverride { change, span }).await?;
    Ok(Json(json!({ "limiter": name, "key": shown(&key), "override": set })))
}

pub(super) async fn remove_of_key(
    State(admin): State<Admin>,
    Extension(operator): Extension<Operator>,
    Path(LimiterKey { name, key }): Path<LimiterKey>,
) -> Result<Json<Value>> {
    let key = stored_key(&admin, &name, &key)?;
    let of = Overridden::Key { limiter: &name, key: &key };
    let before = admin.overrides.set(of, None).await?;
    if before.is_some() {
        operator.log("an operator removes an override", Some(&name), Some(&shown(&key)));
    }
    Ok(Json(json!({ "removed": before.is_some() })))
}

/// The key in the form that requests bring it.
fn stored_key(admin: &Admin, limiter: &str, key: &str) -> Result<String> {
    let plan = admin.limiter(limiter)?;
    match &plan.limiter.key {
        Some(template) => Ok(template.canonical_name(key)),
        None => Err(bad("this limiter has one bucket for all, and no keys")),
    }
}

pub(super) async fn remove(
    State(admin): State<Admin>,
    Extension(operator): Extension<Operator>,
    Path(name): Path<String>,
) -> Result<Json<Value>> {
    let before = admin.overrides.set(Overridden::Limiter(&name), None).await?;
    if before.is_none() {
        // A misspelt name is a mistake; a limiter that no file has any more may still have an override.
        admin.limiter(&name)?;
    }
    if before.is_some() {
        operator.log("an operator removes an override", Some(&name), None);
    }
    Ok(Json(json!({ "removed": before.is_some() })))
}

pub(super) async fn limiting(State(admin): State<Admin>) -> Json<Value> {
    let set = admin
        .overrides
        .of(Overridden::Limiting)
        .map(|own| override_in_force(&admin, Overridden::Limiting, &own));
    Json(json!({ "limiting": admin.plan.config.limiting, "override": set }))
}

pub(super) async fn set_limiting(
    State(admin): State<Admin>,
    Extension(operator): Extension<Operator>,
    body: Bytes,
) -> Result<Json<Value>> {
    let LimitingChange { limiting, span, reason } = read(&body, "change", SWITCH_CHANGE)?;
    if !["on", "off"].contains(&limiting.as_str()) {
        return Err(bad("`limiting` is `on` or `off`"));
    }
    let (span, reason) = (span_of(span)?, reason_of(reason)?);
    let (by, limiting) = (operator.to_string(), Some(limiting));
    let change = Override { rate: None, mode: None, pause: false, limiting, reason, by, until: 0 };
    let new = NewOverride { change, span };
    let set = put(&admin, Overridden::Limiting, new).await?;
    // The plan of the request is the one before the change.
    Ok(Json(json!({ "limiting": admin.live.plan().config.limiting, "override": set })))
}

pub(super) async fn remove_limiting(
    State(admin): State<Admin>,
    Extension(operator): Extension<Operator>,
) -> Result<Json<Value>> {
    let before = admin.overrides.set(Overridden::Limiting, None).await?;
    if before.is_some() {
        operator.log("an operator removes the override of `limiting`", None, None);
    }
    Ok(Json(json!({ "removed": before.is_some() })))
}

/// Reads a body of JSON, whatever its content type says: curl names another one. An error names the `kind` of body that the page
/// wants, and shows the `example`.
pub(super) fn read<T: DeserializeOwned>(body: &[u8], kind: &str, example: &str) -> Result<T> {
    serde_json::from_slice(body).map_err(|error| {
        let why = if body.is_empty() {
            format!("the body is empty; send a {kind} such as {example}")
        } else {
            format!("the body is no {kind} such as {example}: {error}")
        };
        PageError(StatusCode::UNPROCESSABLE_ENTITY, why)
    })
}

/// A limiter with several rates keeps all of its quotas, so each of them is named.
fn check_rates(plan: &LimiterPlan, rates: &Rates) -> Result<()> {
    let rates = rates.list();
    if rates.is_empty() || rates.len() > MOST_RATES {
        return Err(bad(format!("`rate` is one rate, or a list of 1 to {MOST_RATES}")));
    }
    for rate in &rates {
        word("rate", rate.clone())?;
    }
    let own: Vec<_> = plan.limiter.rates.iter().map(ToString::to_string).collect();
    if own.len() > 1 && rates.len() != own.len() {
        return Err(bad(format!(
            "this limiter has {} rates, {}; name as many, as in [\"2/s\", \"50/min\"]",
            own.len(),
            own.join(" and ")
        )));
    }
    Ok(())
}

fn word(name: &str, text: String) -> Result<String> {
    if text.len() <= MOST_WORD && !text.chars().any(char::is_control) {
        Ok(text)
    } else {
        Err(bad(format!("`{name}` is longer than {MOST_WORD} characters")))
    }
}

fn span_of(span: Option<String>) -> Result<Duration> {
    let text = span.ok_or_else(|| bad("`for` is missing: how long it lasts, as in \"10m\""))?;
    span_up_to(text, LONGEST, "366d")
}

/// Reads how long a change lasts: for `most` at most, which is `written` in an error.
pub(super) fn span_up_to(text: String, most: Duration, written: &str) -> Result<Duration> {
    let text = word("for", text)?;
    let span = duration(&text).map_err(|why| {
        bad(format!("`for`: `{text}` {why}; write how long it lasts, as in \"10m\""))
    })?;
    match span {
        span if span < Duration::from_millis(1) => Err(bad("`for` must be at least 1ms")),
        span if span > most => Err(bad(format!("`for` must be at most {written}"))),
        span => Ok(span),
    }
}

fn reason_of(reason: Option<String>) -> Result<String> {
    let reason = reason.unwrap_or_default().trim().to_owned();
    if reason.is_empty() {
        return Err(bad("`reason` is missing: other operators see it, as in \"vendor asked\""));
    }
    if reason.chars().count() > MOST_REASON || reason.chars().any(char::is_control) {
        return Err(bad(format!("`reason` is one line of at most {MOST_REASON} characters")));
    }
    Ok(reason)
}

impl From<OverrideError> for PageError {
    fn from(error: OverrideError) -> Self {
        let status = match &error {
            OverrideError::Invalid(_) => StatusCode::UNPROCESSABLE_ENTITY,
            OverrideError::Full | OverrideError::Contended | OverrideError::Unreadable => {
                StatusCode::CONFLICT
            }
            OverrideError::Store(_) => StatusCode::SERVICE_UNAVAILABLE,
        };
        Self(status, error.to_string())
    }
}
