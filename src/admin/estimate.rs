//! The page that tells when calls would be sent. It charges nothing: the rules decide the calls on a copy of their states.

use super::{
    Admin,
    limiters::checks,
    overrides::read,
    page_error::{PageError, Result, bad},
    shown::millis,
};
use crate::{
    algorithm::{Algorithm, Micros, Rule, fair::Priority},
    answer::end,
    config::{Calendar, Charge, Config, Mode, PRIORITIES},
    limit::micros,
    plan::LimiterPlan,
    store::{Check, Checks, Forecast, ForecastAsk, StateCopy, StoreError, TenantLevel, Turn},
};
use axum::{
    Json,
    body::Bytes,
    extract::{Path, State},
};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::{
    sync::Semaphore,
    task::spawn_blocking,
    time::{Instant, timeout},
};

/// The most calls of one estimate. Where they do not repeat soon, they take about half a second of a CPU.
const MOST: u32 = 1_000_000;
/// How long the store has for its states, and how long an estimate waits for those before it.
const PATIENCE: Duration = Duration::from_secs(5);
/// An example of a body, for errors.
const EXAMPLE: &str = r#"{"count": 5000, "cost": 1}"#;

/// Estimates are computed one after another, so that they take one CPU at most.
static COMPUTED: Semaphore = Semaphore::const_new(1);

/// The body of `POST /limiters/NAME/estimate`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a map")]
struct Estimate {
    count: i64,
    #[serde(default = "one")]
    cost: i64,
    key: Option<String>,
    tenant: Option<String>,
    priority: Option<String>,
}

/// The cost of a call that names none.
fn one() -> i64 {
    1
}

pub(super) async fn estimate(
    State(admin): State<Admin>,
    Path(name): Path<String>,
    body: Bytes,
) -> Result<Json<Value>> {
    let plan = admin.limiter(&name)?;
    let Estimate { count, cost, key, tenant, priority } = read(&body, "question", EXAMPLE)?;
    let count = u32::try_from(count).ok().filter(|count| (1..=MOST).contains(count));
    let count = count.ok_or_else(|| bad(format!("`count` must be between 1 and {MOST}")))?;
    let priority = match priority {
        Some(name) => named(&name)?,
        None => priority_of_routes(&admin, &name),
    };
    let turn = turn(plan, tenant.as_deref(), priority)?;
    let own = checks(plan, key.as_deref(), cost)?;
    if own.iter().any(Check::is_lease) {
        return Err(bad(
            "a permit of this limiter comes back when a call ends, at a time that no store knows; \
             GET /limiters shows how many are free now",
        ));
    }
    if plan.limiter.mode != Mode::Enforce || !admin.plan.config.limiting {
        return Ok(Json(describe(Forecast { first: 0, last: 0 }, Duration::ZERO)));
    }
    let own = own.into_iter().map(|check| Check { turn: turn.clone(), ..check });
    let own: Checks = own.collect();
    let closed = admin.store.pauses().held(&own).map_or(0, |held| held.left());
    let (states, copied) = (copy(&admin, &own).await?, Instant::now());
    let calendar = plan.limiter.calendar.clone();
    let permit = timeout(PATIENCE, COMPUTED.acquire()).await;
    let permit = permit.map_err(|_| unavailable("other estimates are computed; ask again"))?;
    let told = spawn_blocking(move || {
        let _computed = permit;
        let CopiedStates { copy, tenants } = states;
        let ask = ForecastAsk { count, closed, tenants: &tenants };
        copy.forecast(ask, |now| at(&own, calendar.as_ref(), now))
    });
    let told = told.await.map_err(|_| unavailable("the gateway ends"))?;
    Ok(Json(describe(told, copied.elapsed())))
}

/// The states of a limiter, and the tenants that wait for it.
struct CopiedStates {
    copy: StateCopy,
    tenants: Vec<TenantLevel>,
}

async fn copy(admin: &Admin, own: &Checks) -> Result<CopiedStates> {
    let copied = async {
        let mut tenants = Vec::new();
        for check in own.iter().filter(|check| check.turn.is_some()).take(1) {
            tenants = admin.store.tenants(check).get().await?;
        }
        let copy = admin.store.copy_states(own.clone()).await?;
        Ok::<_, StoreError>(CopiedStates { copy, tenants })
    };
    let copied = timeout(PATIENCE, copied).await;
    Ok(copied.map_err(|_| unavailable("the store did not answer in time"))??)
}

fn unavailable(why: &str) -> PageError {
    PageError(http::StatusCode::SERVICE_UNAVAILABLE, why.to_owned())
}

fn named(name: &str) -> Result<Priority> {
    let found = PRIORITIES.iter().find(|(own, _)| *own == name);
    found.map(|(_, own)| *own).ok_or_else(|| bad("`priority` is `high`, `normal` or `low`"))
}

/// The priority of the routes of a limiter, or `normal` if they have several, or callers name it.
fn priority_of_routes(admin: &Admin, limiter: &str) -> Priority {
    let Config { routes, limiters, .. } = &admin.plan.config;
    let is_own = |charge: &Charge| limiters[charge.limiter].name == limiter;
    let mut routes = routes.iter().filter(|route| route.limiters.iter().any(is_own));
    let first = routes.next().and_then(|route| route.priority.fixed());
    let all = first.filter(|first| routes.all(|route| route.priority.fixed() == Some(*first)));
    all.unwrap_or(Priority::Normal)
}

/// The turn of the calls, if the limiter has turns.
fn turn(plan: &LimiterPlan, tenant: Option<&str>, priority: Priority) -> Result<Option<Turn>> {
    let limiter = &plan.limiter;
    match (&limiter.fair, tenant) {
        (Some(fair), Some(tenant)) => {
            let tenant = fair.by.canonical(tenant);
            let weight = fair.weight(&tenant);
            Ok(Some(Turn::new(&*tenant, weight, priority)))
        }
        (None, Some(_)) => {
            Err(bad("this limiter has no `fair`, so that it knows no tenants; give no tenant"))
        }
        (_, None) if limiter.has_turns => Ok(Some(Turn { priority, ..Turn::of_nobody() })),
        _ => Ok(None),
    }
}

/// The checks at an instant, with the windows of the calendar around it.
fn at(own: &Checks, calendar: Option<&Calendar>, now: Micros) -> Checks {
    let (Some(calendar), Ok(at)) = (calendar, Timestamp::from_microsecond(now)) else {
        return own.clone();
    };
    let renewed = own.iter().map(|check| match check.algorithm {
        Rule::Rate(Algorithm::CalendarWindow(rule)) if !rule.begins_with(now) => {
            let rule = calendar.rule(check.algorithm.capacity(), at).unwrap_or(rule);
            Check { algorithm: rule.into(), ..check.clone() }
        }
        _ => check.clone(),
    });
    renewed.collect()
}

/// Writes a forecast from the states as they were so long `ago`.
fn describe(Forecast { first, last }: Forecast, ago: Duration) -> Value {
    let ago = micros(ago);
    json!({
        "first_ms": millis(first),
        "last_ms": millis(last),
        "first_at": end(first - ago),
        "last_at": end(last - ago),
    })
}
