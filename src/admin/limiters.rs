//! The pages about limiters: their states, and decisions for programs that send no request through the gateway.

use super::{
    Admin,
    access::Operator,
    accounts,
    page_error::{PageError, Result, bad},
    shown::{self, state},
};
use crate::{
    algorithm::Level,
    answer::end,
    config::Mode,
    key, learn,
    limit::{self, Admission, LeasedPermit},
    overrides::Overridden,
    plan::LimiterPlan,
    services::permits,
    store::{Answer, Check, Checks, Decision, Store, StoreError},
    suggest::suggest,
};
use axum::{
    Extension, Json,
    body::{Body, Bytes},
    extract::{FromRequest, Path, Request, State, rejection::JsonRejection},
    http::StatusCode,
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};

/// The most names of limiters in an error.
const MOST_NAMED: usize = 20;

/// The body of `POST /limiters/NAME/acquire`: the permits that a program asks for.
#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Acquire {
    key: Option<String>,
    cost: i64,
    max_wait_ms: u64,
}

/// A body of JSON, or no body at all, which means the defaults.
pub(super) struct OptionalJson<T>(T);

/// The body of `renew` and `release`: the lease of a concurrency permit that [`acquire`] gave.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Lease {
    key: Option<String>,
    lease: String,
}

/// The path of a page about one key of a limiter.
#[derive(Debug, Deserialize)]
pub(super) struct KeyPath {
    name: String,
    key: String,
}

/// The levels of the rates of a limiter; `None` if it has none that can be shown.
type Shown = Option<std::result::Result<Vec<Level>, StoreError>>;

// === pages

pub(super) async fn all(State(admin): State<Admin>) -> Json<Value> {
    let levels = levels(&admin).await;
    let all = levels.into_iter().map(|(plan, level)| state(&admin, plan, &plan.current(), level));
    let all: Vec<_> = all.collect();
    let mut all = json!({ "limiting": admin.plan.config.limiting, "limiters": all });
    if let Some(own) = admin.overrides.of(Overridden::Limiting) {
        all["limiting_override"] = shown::override_in_force(&admin, Overridden::Limiting, &own);
    }
    let parked = accounts::parked(&admin);
    if !parked.is_empty() {
        all["parked"] = parked.into();
    }
    Json(all)
}

pub(super) async fn one(
    State(admin): State<Admin>,
    Path(name): Path<String>,
) -> Result<Json<Value>> {
    let plan = admin.limiter(&name)?;
    let level = if has_level(plan) { Some(levels_at(&admin, &plan.current()).await) } else { None };
    Ok(Json(state(&admin, plan, &plan.current(), level)))
}

pub(super) async fn one_key(
    State(admin): State<Admin>,
    Path(KeyPath { name, key }): Path<KeyPath>,
) -> Result<Json<Value>> {
    let plan = admin.limiter(&name)?;
    let checks = checks(plan, Some(&key), 1)?;
    let level = levels_at(&admin, &checks).await;
    let mut state = state(&admin, plan, &checks, Some(level));
    // The page shows the key in the form that the store has, so that it repeats no credential that was typed.
    if let Some(template) = &plan.limiter.key {
        state["key"] = key::shown(&template.canonical(&key)).into();
    }
    Ok(Json(state))
}

/// Answers a path without a key. The operator may have pasted a hashed key, whose `#` begins the fragment in a URL and is
/// never sent.
pub(super) async fn no_key() -> PageError {
    bad(
        "name a key, as in /limiters/NAME/keys/KEY; the `#` of a hashed key is written `%23` in a URL",
    )
}

pub(super) async fn reset(
    State(admin): State<Admin>,
    Extension(operator): Extension<Operator>,
    Path(name): Path<String>,
) -> Result<Json<Value>> {
    let plan = admin.limiter(&name)?;
    let checks = checks(plan, None, 1)?;
    if let Some(margin) = plan.margin() {
        learn::forget(margin, &admin.store).await?;
    }
    forget_known_costs(&admin, plan).await?;
    let reset = forget(&admin, &checks).await?;
    tell_others(&admin, plan).await;
    operator.log("an operator resets a limiter", Some(&name), None);
    Ok(reset)
}

pub(super) async fn reset_key(
    State(admin): State<Admin>,
    Extension(operator): Extension<Operator>,
    Path(KeyPath { name, key }): Path<KeyPath>,
) -> Result<Json<Value>> {
    let plan = admin.limiter(&name)?;
    let checks = checks(plan, Some(&key), 1)?;
    forget_costs(&admin, plan, checks.first()).await?;
    let reset = forget(&admin, &checks).await?;
    tell_others(&admin, plan).await;
    let key = plan.limiter.key.as_ref().map(|template| key::shown(&template.canonical(&key)));
    operator.log("an operator resets a key", Some(&name), key.as_deref());
    Ok(reset)
}

/// Forgets what the calls of all keys cost that this gateway knows, and their learned rates.
pub(super) async fn forget_known_costs(
    admin: &Admin,
    plan: &LimiterPlan,
) -> std::result::Result<(), StoreError> {
    for costs in plan.reserves.iter().flat_map(|reserves| reserves.all()) {
        learn::forget_costs(&costs, &admin.store).await?;
    }
    if let Some(learned) = &plan.learned {
        learn::forget_limits(learned, None, &admin.store).await?;
    }
    Ok(())
}

/// Forgets what the calls of the key of a check cost, and its learned rate.
pub(super) async fn forget_costs(
    admin: &Admin,
    plan: &LimiterPlan,
    check: Option<&Check>,
) -> std::result::Result<(), StoreError> {
    let key = check.map(|check| plan.key_in(&check.key).flatten());
    if let (Some(reserves), Some(key)) = (&plan.reserves, key) {
        learn::forget_costs(&reserves.of(key), &admin.store).await?;
    }
    if let (Some(learned), Some(key)) = (&plan.learned, key) {
        let key = Some(key.unwrap_or_default());
        learn::forget_limits(learned, key, &admin.store).await?;
    }
    Ok(())
}

/// Lets the other gateways forget soon, too. Without an answer of the store they do when they read their rates and costs.
pub(super) async fn tell_others(admin: &Admin, plan: &LimiterPlan) {
    if plan.reserves.is_some() || plan.learned.is_some() {
        drop(admin.overrides.tell_forgotten().await);
    }
}

async fn forget(admin: &Admin, checks: &[Check]) -> Result<Json<Value>> {
    let mut reset = false;
    for check in checks {
        reset |= admin.store.forget(check).get().await?;
    }
    Ok(Json(json!({ "reset": reset })))
}

pub(super) async fn acquire(
    State(admin): State<Admin>,
    Path(name): Path<String>,
    OptionalJson(Acquire { key, cost, max_wait_ms }): OptionalJson<Acquire>,
) -> Result<Json<Value>> {
    let plan = admin.limiter(&name)?;
    let checks: Checks = checks(plan, key.as_deref(), cost)?.into();
    let limit = |i: usize| checks[i].algorithm.limit();
    if plan.limiter.mode == Mode::Off || !admin.plan.config.limiting {
        return Ok(Json(permits::give_uncounted(plan, limit(0))));
    }
    let refuse = |refusal: Decision| {
        let Decision { retry_after, bound_by, level, .. } = refusal;
        Json(permits::describe(&name, Some(retry_after), 0, limit(bound_by), level))
    };
    if let Some(held) = admin.store.pauses().held(&checks) {
        return Ok(refuse(Decision::paused(held.index, held.left())));
    }
    // The admin side has no queue for concurrency permits: a program that gets none asks again.
    let is_lease = checks.iter().any(Check::is_lease);
    let budget = if is_lease { Duration::ZERO } else { Duration::from_millis(max_wait_ms) };
    let store: Arc<dyn Store> = admin.store.clone();
    Ok(match limit::ask(&store, &checks, budget).await? {
        Admission::Granted(mut reservation) => {
            let wait = limit::micros(reservation.wait);
            Json(permits::give(&name, wait, &mut reservation).answer)
        }
        Admission::Refused(refusal) => refuse(refusal),
        Admission::Queued(waiter) => refuse(Decision::paused(waiter.bound_by, 0)),
    })
}

pub(super) async fn renew(
    State(admin): State<Admin>,
    Path(name): Path<String>,
    body: std::result::Result<Json<Lease>, JsonRejection>,
) -> Result<Json<Value>> {
    let permit = admin.permit(&name, body?.0)?;
    Ok(Json(permits::renew(permit, &*admin.store).await?))
}

pub(super) async fn release(
    State(admin): State<Admin>,
    Path(name): Path<String>,
    body: std::result::Result<Json<Lease>, JsonRejection>,
) -> Result<Json<Value>> {
    let permit = admin.permit(&name, body?.0)?;
    let store: Arc<dyn Store> = admin.store.clone();
    let released = permits::release(permit, &store);
    admin.store.flush().await;
    Ok(Json(released))
}

// === shared by the pages

impl Admin {
    pub(super) fn limiter(&self, name: &str) -> Result<&LimiterPlan> {
        let found = self.plan.limiters.iter().find(|plan| plan.limiter.name == name);
        found.ok_or_else(|| {
            let names = || self.plan.limiters.iter().map(|plan| plan.limiter.name.as_str());
            let meant = suggest(name, names()).map_or(String::new(), |meant| format!("{meant} "));
            let mut shown = names().take(MOST_NAMED).collect::<Vec<_>>().join(", ");
            let others = self.plan.limiters.len().saturating_sub(MOST_NAMED);
            if others > 0 {
                shown += &format!(", and {others} others, which /limiters lists");
            }
            let why = if shown.is_empty() {
                "there is no such limiter, because the configuration has none".into()
            } else {
                format!("there is no such limiter; {meant}there are: {shown}")
            };
            PageError(StatusCode::NOT_FOUND, why)
        })
    }

    fn permit(&self, name: &str, Lease { key, lease }: Lease) -> Result<LeasedPermit> {
        permits::find_permit(self.limiter(name)?, key.as_deref(), &lease).map_err(bad)
    }
}

/// Returns the checks with which the limiter is asked about one bucket.
pub(super) fn checks(plan: &LimiterPlan, key: Option<&str>, cost: i64) -> Result<Vec<Check>> {
    permits::checks(plan, key, cost).map_err(bad)
}

fn has_level(plan: &LimiterPlan) -> bool {
    plan.limiter.mode != Mode::Off && plan.limiter.key.is_none()
}

/// Lists every limiter with its level. The level is `None` for a limiter that is off or has a bucket for each key.
pub(super) async fn levels(admin: &Admin) -> Vec<(&LimiterPlan, Shown)> {
    levels_of(admin, admin.plan.limiters.iter()).await
}

/// Lists these limiters with their levels.
pub(super) async fn levels_of<'a>(
    admin: &Admin,
    limiters: impl Iterator<Item = &'a LimiterPlan>,
) -> Vec<(&'a LimiterPlan, Shown)> {
    // All questions are asked before the first answer is awaited, so that Redis gets them in one call.
    let asked = limiters.map(|plan| {
        let checks = plan.current().into_iter().filter(|_| has_level(plan));
        (plan, checks.map(|check| admin.store.look(&check)).collect::<Vec<_>>())
    });
    let asked: Vec<_> = asked.collect();
    let mut levels = Vec::with_capacity(asked.len());
    for (plan, answers) in asked {
        let has_level = !answers.is_empty();
        let own = await_levels(answers).await;
        levels.push((plan, has_level.then_some(own)));
    }
    levels
}

/// Describes each limiter that is closed because the store has lost its states. Only those without a key are looked at, in
/// one call: an operator may have reset them.
pub(super) async fn closed(admin: &Admin) -> Vec<Value> {
    let mut asked = Vec::new();
    for plan in admin.plan.enforcing() {
        let checks = plan.current();
        if checks.iter().any(|check| admin.store.closed_for(check).is_some()) {
            let looks = checks.iter().filter(|_| has_level(plan));
            let looks: Vec<_> = looks.map(|check| admin.store.look(check)).collect();
            asked.push((plan, checks, looks));
        }
    }
    let mut all = Vec::with_capacity(asked.len());
    for (plan, checks, looks) in asked {
        let level = if looks.is_empty() {
            None
        } else {
            Some(await_levels(looks).await.map(shown::tightest))
        };
        if let Some(left) = shown::closed(admin, &checks, level.as_ref()) {
            let name = &plan.limiter.name;
            all.push(json!({ "limiter": name, "until": end(left), "why": shown::LOST }));
        }
    }
    all
}

/// Lists every limiter with the seconds that are left of its pause: of the longest one of its keys, 0 without any.
pub(super) fn pauses(admin: &Admin) -> impl Iterator<Item = (&LimiterPlan, f64)> {
    let known = admin.store.pauses().all();
    admin.plan.limiters.iter().map(move |plan| {
        let own = known.iter().filter(|(state, _)| plan.key_in(state).is_some());
        let held = admin
            .overrides
            .of(Overridden::Limiter(&plan.limiter.name))
            .filter(|own| own.change.pause);
        let left = own.map(|(_, pause)| pause.left()).chain(held.map(|own| own.left));
        let left = left.max().unwrap_or_default();
        (plan, left as f64 / 1e6)
    })
}

async fn levels_at(admin: &Admin, checks: &[Check]) -> std::result::Result<Vec<Level>, StoreError> {
    await_levels(checks.iter().map(|check| admin.store.look(check)).collect()).await
}

/// Awaits the levels of all rates of a limiter.
pub(super) async fn await_levels(
    answers: Vec<Answer<Level>>,
) -> std::result::Result<Vec<Level>, StoreError> {
    let mut all = Vec::with_capacity(answers.len());
    for answer in answers {
        all.push(answer.get().await?);
    }
    Ok(all)
}

// === impl Acquire ===

impl Default for Acquire {
    fn default() -> Self {
        Self { key: None, cost: 1, max_wait_ms: 0 }
    }
}

// === impl OptionalJson ===

impl<S: Send + Sync, T: DeserializeOwned + Default> FromRequest<S> for OptionalJson<T> {
    type Rejection = PageError;

    async fn from_request(request: Request, state: &S) -> Result<Self> {
        let (head, body) = request.into_parts();
        let read = Bytes::from_request(Request::from_parts(head.clone(), body), state).await;
        let bytes =
            read.map_err(|rejection| PageError(rejection.status(), rejection.body_text()))?;
        if bytes.trim_ascii().is_empty() {
            return Ok(Self(T::default()));
        }
        let request = Request::from_parts(head, Body::from(bytes));
        let Json(asked) = Json::from_request(request, state).await?;
        Ok(Self(asked))
    }
}
