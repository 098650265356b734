//! One picture of the gateway, for all viewers: limiters, routes, upstreams, the store, keys, requests and the configuration,
//! each as its own page shows it. A gateway with thousands of limiters shows the most interesting ones.

use super::{Dashboard, history::TICK, waiting::WaitingRequests};
use crate::{
    admin::{
        Admin, accounts,
        limiters::{levels_of, pauses},
        reload,
        shown::{millis, override_in_force, state},
        tenants,
    },
    key,
    metrics::{self, Outcome},
    overrides::Overridden,
    plan::{LimiterPlan, RecentReason, RecentRequest},
    throttle::Timestamp,
};
use serde_json::{Value, json};
use std::{
    collections::{HashMap, HashSet},
    sync::atomic::Ordering::Relaxed,
    time::Duration,
};

/// The most limiters in a picture: those that hold requests, are paused or overridden, then those that come first in the file.
const MOST_LIMITERS: usize = 200;

/// Everything.
pub(super) async fn all(admin: &Admin, dashboard: &Dashboard) -> Value {
    let waiting = WaitingRequests::of(admin);
    let limiters = limiters(admin, &waiting).await;
    let now = Timestamp::now();
    let config = &admin.plan.config;
    let keys = waiting.keys.iter().map(|(limiter, key, ahead)| {
        json!({
            "limiter": limiter,
            "key": key::shown(key),
            "waiting": ahead.slots,
            "last_slot_ms": in_millis(ahead.left()),
        })
    });
    let keys: Vec<_> = keys.collect();
    let named = waiting.keys.iter().map(|(limiter, key, _)| (&**limiter, &**key));
    let tenants = tenants::with_most_waiting(admin, named).await;
    let (tick, routes, upstreams) = {
        let history = dashboard.history.lock();
        (history.number, history.routes_now(&admin.plan), history.upstreams_now(&admin.plan))
    };
    let mut said = json!({
        "at": format!("{now:.3}"),
        "version": env!("CARGO_PKG_VERSION"),
        "started": format!("{:.3}", dashboard.started),
        "draining": admin.draining.load(Relaxed),
        "workers": config.workers,
        "limiting": config.limiting,
        "waiting": admin.plan.waiting(),
        "tick": tick,
        "tick_s": TICK.as_secs(),
        "limiters": limiters,
        "limiters_total": admin.plan.limiters.len(),
        "routes": routes,
        "routes_total": config.routes.len(),
        "upstreams": upstreams,
        "upstreams_total": config.upstreams.len(),
        "keys": keys,
        "tenants": tenants,
        "requests": requests(admin),
        "store": store(admin),
        "config": self::config(admin),
    });
    if let Some(own) = admin.overrides.of(Overridden::Limiting) {
        said["limiting_override"] = override_in_force(admin, Overridden::Limiting, &own);
    }
    if let Some(gateways) = dashboard.fleet.gateways() {
        said["gateways"] = gateways;
    }
    if let Some(limits) = admin.live.limits_status() {
        said["limits_from"] = reload::rows(limits, &admin.live.missing());
    }
    add_waiting(admin, &mut said["routes"]);
    add_addresses(admin, &mut said);
    said
}

async fn limiters(admin: &Admin, waiting: &WaitingRequests) -> Vec<Value> {
    let all = &admin.plan.limiters;
    let shown: Vec<&LimiterPlan> = if all.len() <= MOST_LIMITERS {
        all.iter().collect()
    } else {
        let paused = pauses(admin).filter(|(_, left)| *left > 0.0);
        let paused: HashSet<&str> = paused.map(|(plan, _)| plan.limiter.name.as_str()).collect();
        let is_special = |plan: &&LimiterPlan| {
            let name = plan.limiter.name.as_str();
            plan.waiting.load(Relaxed) > 0
                || paused.contains(name)
                || admin.overrides.of(Overridden::Limiter(name)).is_some()
        };
        let (special, plain): (Vec<_>, Vec<_>) = all.iter().partition(is_special);
        special.into_iter().chain(plain).take(MOST_LIMITERS).collect()
    };
    let levels = levels_of(admin, shown.into_iter()).await.into_iter();
    let all = levels.map(|(plan, level)| {
        let mut said = state(admin, plan, &plan.current(), level);
        let ahead = waiting.ahead(&plan.limiter.name);
        said["promised"] = ahead.map_or(0, |ahead| ahead.slots).into();
        if let Some(ahead) = ahead {
            said["last_slot_ms"] = in_millis(ahead.left()).into();
        }
        said["pauses_total"] = metrics::PAUSES.value(&[&plan.limiter.name]).into();
        said
    });
    all.collect()
}

/// Adds the number of requests that wait to each route.
fn add_waiting(admin: &Admin, routes: &mut Value) {
    let names = admin.plan.config.routes.iter().enumerate();
    let places: HashMap<_, _> = names.map(|(i, route)| (route.name.as_str(), i)).collect();
    for route in routes.as_array_mut().into_iter().flatten() {
        let place = route["name"].as_str().and_then(|name| places.get(name));
        route["waiting"] = place.map_or(0, |place| admin.plan.waiting_on(*place)).into();
    }
}

/// Adds the addresses and accounts of each upstream, and the counts that its history does not have.
pub(super) fn add_addresses(admin: &Admin, said: &mut Value) {
    let clusters = admin.live.clusters();
    for upstream in said["upstreams"].as_array_mut().into_iter().flatten() {
        let Some(name) = upstream["name"].as_str().map(str::to_owned) else { continue };
        let cluster = clusters.iter().find(|cluster| cluster.name() == name);
        let addresses = cluster.map(|cluster| cluster.addresses()).unwrap_or_default();
        let addresses = addresses.iter().map(|address| {
            let state = match (address.ejected, address.is_down) {
                (Some(_), _) => "ejected",
                (None, true) => "down",
                (None, false) => "up",
            };
            let mut said = json!({
                "address": address.socket.to_string(),
                "state": state,
                "in_flight": address.in_flight,
            });
            if let Some(left) = address.ejected {
                said["ejected_ms"] = in_millis(left).into();
            }
            said
        });
        upstream["addresses"] = addresses.collect();
        if let Some(accounts) = accounts::states(admin, &name) {
            upstream["accounts"] = accounts;
        }
        upstream["ejections_total"] = metrics::UPSTREAM_EJECTIONS.value(&[&name]).into();
        upstream["throttled_total"] = metrics::UPSTREAM_THROTTLED.value(&[&name]).into();
    }
}

/// The requests that were held or refused last, the newest first.
pub(super) fn requests(admin: &Admin) -> Vec<Value> {
    let all = admin.plan.recent.all();
    let shown = |request: RecentRequest| {
        let owner = request.state.as_deref().and_then(|state| admin.plan.owner(state));
        let (decision, wait, why) = match &request.reason {
            RecentReason::Slot(wait) => {
                ("held", Some(in_millis(*wait)), "its slot comes later".to_owned())
            }
            RecentReason::Permit => ("held", None, "all concurrency permits are in use".to_owned()),
            RecentReason::Refused { outcome, retry_after, is_closed } => {
                (outcome.name(), retry_after.map(millis), refusal(*outcome, *is_closed).to_owned())
            }
        };
        let mut said = json!({
            "at": format!("{:.3}", request.at),
            "id": String::from_utf8_lossy(request.id.as_bytes()),
            "route": &*request.route,
            "decision": decision,
            "why": why,
        });
        if let Some((plan, key)) = owner {
            said["limiter"] = plan.limiter.name.as_str().into();
            if let Some(key) = key {
                said["key"] = key::shown(key).into();
            }
        }
        if let Some(wait) = wait {
            said[if decision == "held" { "wait_ms" } else { "retry_after_ms" }] = wait.into();
        }
        said
    };
    all.into_iter().map(shown).collect()
}

/// The reason of a refusal in one line.
fn refusal(outcome: Outcome, is_closed: bool) -> &'static str {
    match outcome {
        _ if is_closed => "the limiter is closed, because the store has lost its states",
        Outcome::Refused => "no slot comes within the time that it may wait",
        Outcome::Throttled => "the limiter is paused for longer than it may wait",
        Outcome::Paused => "an operator has paused the limiter for longer than it may wait",
        Outcome::QueueFull => "as many requests wait on the route as may",
        Outcome::Draining => "the gateway stops before its slot",
        Outcome::StoreUnavailable => "the store gave no decision",
        _ => "it was not forwarded",
    }
}

fn store(admin: &Admin) -> Value {
    match &admin.health {
        None => json!({ "kind": "memory" }),
        Some(health) => {
            let mut said = super::super::store(health);
            said["kind"] = "redis".into();
            said["up"] = health.away().is_none().into();
            said
        }
    }
}

fn config(admin: &Admin) -> Value {
    let loaded = admin.live.loaded();
    let reloads = loaded.reloads.iter().map(|reload| match &reload.result {
        Ok((hash, is_new)) => {
            json!({ "at": format!("{:.3}", reload.at), "ok": true, "hash": hash, "changed": is_new })
        }
        Err(error) => json!({ "at": format!("{:.3}", reload.at), "ok": false, "error": error }),
    });
    let reloads: Vec<_> = reloads.collect();
    let mut said = reload::describe(loaded);
    said["reloads"] = reloads.into();
    said
}

fn in_millis(span: Duration) -> f64 {
    (span.as_secs_f64() * 1e6).round() / 1e3
}
