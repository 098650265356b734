//! The accounts of upstreams: the state of each, what is left of its quotas, and the switch by which an operator parks one. Never
//! shows a header of an account.

mod hours;

use super::{
    Admin,
    access::Operator,
    dashboard::Dashboard,
    limiters::await_levels,
    overrides::{read, span_up_to},
    page_error::{PageError, Result, bad},
    shown::tightest,
};
use crate::{
    algorithm::Micros,
    answer::end,
    config::{self, Mode},
    key::{self, AccountNames},
    metrics,
    path::PathRule,
    plan::{AccountsPlan, LimiterPlan},
    store::KnownPause,
    suggest::suggest,
};
use axum::{
    Extension, Json,
    body::Bytes,
    extract::{Path, State},
    http::StatusCode,
};
pub(super) use hours::AccountHours;
use serde::Deserialize;
use serde_json::{Value, json};
use std::{collections::BTreeSet, sync::Arc, time::Duration};

/// The longest time for which an operator parks an account.
const LONGEST: Duration = Duration::from_secs(24 * 3600);
/// The most names in an error.
const MOST_NAMED: usize = 20;

/// The body of `PUT /upstreams/NAME/accounts/ACCOUNT/park`.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a map")]
struct ParkChange {
    #[serde(rename = "for")]
    span: Option<String>,
}

/// The path of a page about one account.
#[derive(Deserialize)]
pub(super) struct AccountPath {
    name: String,
    account: String,
}

/// The accounts of one upstream, with the limiters that have a key for each.
struct UpstreamAccounts<'a> {
    admin: &'a Admin,
    upstream: &'a str,
    plan: &'a AccountsPlan,
    config: &'a config::Accounts,
    limiters: Vec<&'a LimiterPlan>,
    /// The pauses that this gateway knows, if an account may have one of several keys.
    known: Vec<(Arc<str>, KnownPause)>,
}

// === pages

pub(super) async fn list(
    State(admin): State<Admin>,
    Extension(dashboard): Extension<Arc<Dashboard>>,
    Path(name): Path<String>,
) -> Result<Json<Value>> {
    let own = UpstreamAccounts::named(&admin, &name)?;
    let requests = own.config.all.iter().map(|account| {
        let now = own.requests(account);
        dashboard.accounts.lock().of(&name, &account.name, now)
    });
    let requests: Vec<u64> = requests.collect();
    let sum: u64 = requests.iter().sum();
    let mut levels = own.levels().await;
    let all = own.config.all.iter().enumerate().map(|(i, account)| {
        let mut shown = own.describe(i);
        shown["quota"] = account.quota.as_str().into();
        shown["after_s"] = account.after.as_secs_f64().into();
        if let Some(url) = account.url() {
            shown["url"] = url.into();
        }
        shown["requests_last_hour"] = requests[i].into();
        if sum > 0 {
            shown["part_of_last_hour"] = thousandths(requests[i] as f64 / sum as f64).into();
        }
        shown["limiters"] = std::mem::take(&mut levels[i]).into();
        shown
    });
    let all: Vec<_> = all.collect();
    Ok(Json(json!({ "upstream": name, "accounts": all })))
}

pub(super) async fn park(
    State(admin): State<Admin>,
    Extension(operator): Extension<Operator>,
    Path(AccountPath { name, account }): Path<AccountPath>,
    body: Bytes,
) -> Result<Json<Value>> {
    let own = UpstreamAccounts::named(&admin, &name)?;
    let place = own.place(&account)?;
    let change: ParkChange = match body.trim_ascii() {
        b"" => ParkChange::default(),
        body => read(body, "change", r#"{"for": "1h"}"#)?,
    };
    let span = change.span.map(|span| span_up_to(span, LONGEST, "1d")).transpose()?;
    for asked in own.plan.ask_to_park(&*admin.store, place, span, 0) {
        asked.get().await?;
    }
    operator.log_account("an operator parks an account", &name, &account);
    Ok(Json(own.named_state(place)))
}

pub(super) async fn unpark(
    State(admin): State<Admin>,
    Extension(operator): Extension<Operator>,
    Path(AccountPath { name, account }): Path<AccountPath>,
) -> Result<Json<Value>> {
    let own = UpstreamAccounts::named(&admin, &name)?;
    let place = own.place(&account)?;
    let was_parked = own.parked(place).is_some() || own.plan.is_doubtful(place);
    for check in own.plan.trust(place) {
        admin.store.forget(&check).get().await?;
        admin.store.pauses().end(&check.key);
    }
    // A request may have found it parked while the store was asked.
    own.plan.trust(place);
    if was_parked {
        operator.log_account("an operator unparks an account", &name, &account);
    }
    let mut said = own.named_state(place);
    said["unparked"] = was_parked.into();
    Ok(Json(said))
}

/// The accounts of all upstreams that are parked, or were and are tried.
pub(super) fn parked(admin: &Admin) -> Vec<Value> {
    let upstreams = admin.plan.config.upstreams.iter().filter(|own| own.accounts.is_some());
    let all = upstreams.filter_map(|own| UpstreamAccounts::of(admin, &own.name));
    let parked = all.flat_map(|own| {
        let is_parked = |i: &usize| own.parked(*i).is_some() || own.plan.is_doubtful(*i);
        let places = (0..own.plan.all.len()).filter(is_parked);
        places.map(|i| own.named_state(i)).collect::<Vec<_>>()
    });
    parked.collect()
}

/// The states of the accounts of an upstream; `None` if it has none. Asks no store.
pub(super) fn states(admin: &Admin, upstream: &str) -> Option<Value> {
    let own = UpstreamAccounts::of(admin, upstream)?;
    Some((0..own.config.all.len()).map(|i| own.describe(i)).collect())
}

fn seconds(micros: Micros) -> f64 {
    thousandths(micros as f64 / 1e6)
}

fn thousandths(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

/// The error for a `name` that is none of `all`.
fn missing<'n>(kind: &str, name: &str, all: impl Iterator<Item = &'n str> + Clone) -> PageError {
    let meant = suggest(name, all.clone()).map_or(String::new(), |meant| format!("{meant} "));
    let mut shown = all.clone().take(MOST_NAMED).collect::<Vec<_>>().join(", ");
    let others = all.count().saturating_sub(MOST_NAMED);
    if others > 0 {
        shown += &format!(", and {others} others");
    }
    let why = format!("there is no such {kind}; {meant}there are: {shown}");
    PageError(StatusCode::NOT_FOUND, why)
}

// === impl UpstreamAccounts ===

impl<'a> UpstreamAccounts<'a> {
    fn of(admin: &'a Admin, name: &str) -> Option<Self> {
        let plan = &admin.plan;
        let i = plan.config.upstreams.iter().position(|own| own.name == name)?;
        let upstream = &plan.config.upstreams[i];
        let routes = plan.config.routes.iter().filter(|route| route.upstream == i);
        let routes = routes.filter(|route| route.path != PathRule::Descriptor);
        let used = routes.flat_map(|route| route.limiters.iter().map(|charge| charge.limiter));
        let used: BTreeSet<usize> = used.collect();
        let limiters = used.into_iter().map(|limiter| &plan.limiters[limiter]).filter(|plan| {
            let key = plan.limiter.key.as_ref();
            plan.limiter.mode != Mode::Off && key.is_some_and(|key| key.names_account())
        });
        let own = Self {
            admin,
            upstream: &upstream.name,
            plan: plan.accounts[i].as_deref()?,
            config: upstream.accounts.as_ref()?,
            limiters: limiters.collect(),
            known: Vec::new(),
        };
        let names = own.config.all.first()?.names();
        let has_keys = |plan: &&LimiterPlan| own.key(plan, names).is_none();
        let known = own.limiters.iter().find(|plan| has_keys(plan));
        let known = known.map(|_| admin.store.pauses().all());
        Some(Self { known: known.unwrap_or_default(), ..own })
    }

    /// The accounts of an upstream that an operator names.
    fn named(admin: &'a Admin, name: &str) -> Result<Self> {
        if let Some(own) = Self::of(admin, name) {
            return Ok(own);
        }
        // An upstream that stands for an account with a URL of its own has a `/` in its name.
        let names = admin.plan.config.upstreams.iter().map(|upstream| upstream.name.as_str());
        let names = names.filter(|name| !name.contains('/'));
        if names.clone().any(|own| own == name) {
            return Err(bad(format!(
                "the upstream `{name}` has no accounts: `accounts` in its entry of `upstreams` gives it some"
            )));
        }
        Err(missing("upstream", name, names))
    }

    fn place(&self, account: &str) -> Result<usize> {
        let names = self.config.all.iter().map(|account| account.name.as_str());
        let found = names.clone().position(|name| name == account);
        found.ok_or_else(|| missing("account", account, names))
    }

    fn requests(&self, account: &config::Account) -> u64 {
        metrics::ACCOUNT_REQUESTS.value(&[self.upstream, &account.name])
    }

    fn parked(&self, account: usize) -> Option<KnownPause> {
        self.plan.pause_of(&*self.admin.store, account)
    }

    /// The key that all requests with an account have at a limiter, if that is one.
    fn key(&self, plan: &LimiterPlan, account: AccountNames<'_>) -> Option<String> {
        plan.limiter.key.as_ref()?.of_account(account)
    }

    /// The time until the last pause of its limiters ends.
    fn paused(&self, account: AccountNames<'_>) -> Option<Micros> {
        let pauses = self.admin.store.pauses();
        let left = |plan: &&LimiterPlan| match self.key(plan, account) {
            Some(key) => {
                let checks = plan.checks(Some(&key), 1);
                checks.filter_map(|check| Some(pauses.get(&check.key)?.left())).max()
            }
            None => {
                let template = plan.limiter.key.as_ref()?;
                let is_own = |state: &str| {
                    let key = plan.key_in(state).flatten();
                    key.is_some_and(|key| template.is_of_account(key, account))
                };
                let own = self.known.iter().filter(|(state, _)| is_own(state));
                own.map(|(_, pause)| pause.left()).max()
            }
        };
        self.limiters.iter().filter_map(left).max().filter(|left| *left > 0)
    }

    /// Writes the state of an account, as this gateway knows it.
    fn describe(&self, place: usize) -> Value {
        let account = &self.config.all[place];
        let paused = self.paused(account.names());
        let mut shown = json!({ "name": account.name, "requests": self.requests(account) });
        let parked = self.parked(place);
        shown["state"] = match (parked, paused) {
            (Some(_), _) => "parked",
            (None, _) if self.plan.is_doubtful(place) => "tried",
            (None, Some(_)) => "paused",
            (None, None) => "open",
        }
        .into();
        if let Some(pause) = parked {
            shown["parked_s"] = seconds(pause.left()).into();
            shown["parked_until"] = end(pause.left()).into();
            shown["parked_reason"] = match pause.status {
                0 => "an operator has parked it".into(),
                status => format!("the upstream answered {status}").into(),
            };
        }
        if let Some(left) = paused {
            shown["paused_s"] = seconds(left).into();
        }
        shown
    }

    /// The same with the names of the upstream and the account.
    fn named_state(&self, place: usize) -> Value {
        let mut shown =
            json!({ "upstream": self.upstream, "account": self.config.all[place].name });
        let own = self.describe(place);
        for field in ["state", "parked_s", "parked_until", "parked_reason"] {
            if let Some(value) = own.get(field) {
                shown[field] = value.clone();
            }
        }
        shown
    }

    /// The levels of each account at the limiters that have one key for it.
    async fn levels(&self) -> Vec<Vec<Value>> {
        let asked = self.config.all.iter().map(|account| {
            let asked = self.limiters.iter().filter_map(|plan| {
                let key = self.key(plan, account.names())?;
                let checks: Vec<_> = plan.checks(Some(&key), 1).collect();
                let looks = checks.iter().map(|check| self.admin.store.look(check)).collect();
                let limit = checks.iter().map(|check| check.algorithm.limit()).min();
                let shown = json!({
                    "limiter": plan.limiter.name, "key": key::shown(&key), "limit": limit,
                });
                Some((shown, looks))
            });
            asked.collect::<Vec<_>>()
        });
        // All questions are asked before the first answer is awaited, so that Redis gets them together.
        let asked: Vec<Vec<_>> = asked.collect();
        let mut all = Vec::with_capacity(asked.len());
        for own in asked {
            let mut levels = Vec::with_capacity(own.len());
            for (mut shown, looks) in own {
                match await_levels(looks).await.map(tightest) {
                    Ok(level) => {
                        shown["level"] = level.remaining.into();
                        shown["next_slot_s"] = seconds(level.next).into();
                    }
                    Err(error) => shown["error"] = error.to_string().into(),
                }
                levels.push(shown);
            }
            all.push(levels);
        }
        all
    }
}
