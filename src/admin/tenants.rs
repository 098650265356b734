//! The tenants that wait for a limiter, and what each was granted: their page, and the rows of the dashboard. Changes
//! nothing.

use super::{
    Admin,
    limiters::checks,
    page_error::{Result, bad},
};
use crate::{
    algorithm::fair::Priority,
    config::priority_name,
    key,
    plan::LimiterPlan,
    store::{Answer, Check, StoreError, TenantLevel, Turn},
};
use axum::{
    Json,
    extract::{Path, RawQuery, State},
};
use serde_json::{Value, json};
use std::{
    cmp::Reverse,
    collections::{HashMap, hash_map::Entry},
    sync::{Arc, atomic::Ordering::Relaxed},
};

const DEFAULT_LIMIT: usize = 100;
/// The tenants of a limiter that have a turn of their own, at each of the three priorities.
const MOST_LISTED: usize = 3 * 1024;
/// The most limiters or keys that one picture of the dashboard asks about, and the most rows that it has.
const MOST_ASKED: usize = 20;
const MOST_SHOWN: usize = 20;

/// The query of the page.
#[derive(Debug, Default, PartialEq, Eq)]
struct TenantQuery {
    /// The bucket of a limiter with a key.
    key: Option<String>,
    limit: Option<usize>,
}

pub(super) async fn list(
    State(admin): State<Admin>,
    Path(name): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<Json<Value>> {
    let plan = admin.limiter(&name)?;
    let query = TenantQuery::parse(query.as_deref().unwrap_or_default())?;
    if !plan.limiter.has_turns {
        return Err(bad(
            "this limiter serves requests first come, first served: it has no `fair`, and no route with a `priority` uses it",
        ));
    }
    if let (Some(template), None) = (&plan.limiter.key, &query.key) {
        return Err(bad(format!(
            "this limiter has a bucket for each `{}`, with tenants of its own; name one, as in /limiters/{name}/tenants?key=KEY",
            template.text()
        )));
    }
    let answers = ask(&admin, checks(plan, query.key.as_deref(), 1)?);
    let all = joined(answers).await?;
    let waiting: u64 = all.iter().map(|tenant| tenant.waiting).sum();
    let limit = query.limit.unwrap_or(DEFAULT_LIMIT);
    let rows: Vec<_> = all.iter().take(limit).map(describe).collect();
    let mut said = json!({
        "limiter": name,
        "by": plan.limiter.fair.as_ref().map(|fair| fair.by.text()),
        "tenants": rows,
        "total": all.len(),
        "waiting": waiting,
    });
    if let (Some(template), Some(key)) = (&plan.limiter.key, &query.key) {
        said["key"] = key::shown(&template.canonical(key)).into();
    }
    Ok(Json(said))
}

/// The tenants with the most waiting requests, for the dashboard: of limiters with one bucket, and of these keys. A limiter
/// for which the store gives no answer is left out; the store has a panel of its own.
pub(super) async fn with_most_waiting<'k>(
    admin: &Admin,
    keys: impl Iterator<Item = (&'k str, &'k str)>,
) -> Vec<Value> {
    let has_turns = |plan: &&LimiterPlan| plan.limiter.has_turns && admin.plan.config.limiting;
    let mut single: Vec<_> = admin.plan.limiters.iter().filter(has_turns).collect();
    single.retain(|plan| plan.limiter.key.is_none());
    single.sort_by_key(|plan| Reverse(plan.waiting.load(Relaxed)));
    let keyed = keys.filter_map(|(limiter, key)| {
        let plan = admin.limiter(limiter).ok().filter(has_turns)?;
        Some((plan, Some(key)))
    });
    let asked = single.into_iter().map(|plan| (plan, None)).chain(keyed).take(MOST_ASKED);
    let asked = asked.map(|(plan, key)| (plan, key, ask(admin, plan.checks(key, 1).collect())));
    // All questions are asked before the first answer is awaited, so that Redis gets them together.
    let asked: Vec<_> = asked.collect();
    let mut rows = Vec::new();
    for (plan, key, answers) in asked {
        let waiting = joined(answers).await.unwrap_or_default();
        let waiting = waiting.into_iter().filter(|tenant| tenant.waiting > 0).take(MOST_SHOWN);
        rows.extend(waiting.map(|tenant| (plan, key, tenant)));
    }
    rows.sort_by_key(|(_, _, tenant)| Reverse(tenant.waiting));
    let rows = rows.iter().take(MOST_SHOWN).map(|(plan, key, tenant)| {
        let mut said = describe(tenant);
        said["limiter"] = plan.limiter.name.as_str().into();
        if let Some(key) = key {
            said["key"] = key::shown(key).into();
        }
        said
    });
    rows.collect()
}

fn ask(admin: &Admin, checks: Vec<Check>) -> Vec<Answer<Vec<TenantLevel>>> {
    // A store keeps tenants for checks that take turns.
    let turn = Turn::new("", 1, Priority::Normal);
    let asked = checks.into_iter().map(|check| check.with_turn(turn.clone()));
    asked.map(|check| admin.store.tenants(&check)).collect()
}

/// The tenants of all rates of one limiter, those with the most waiting requests first. A request waits for each of its
/// rates, and is counted once.
async fn joined(
    answers: Vec<Answer<Vec<TenantLevel>>>,
) -> std::result::Result<Vec<TenantLevel>, StoreError> {
    let mut all = HashMap::<(Arc<str>, Priority), TenantLevel>::new();
    for answer in answers {
        for tenant in answer.get().await? {
            match all.entry((tenant.tenant.clone(), tenant.priority)) {
                Entry::Vacant(new) => drop(new.insert(tenant)),
                Entry::Occupied(mut known) => {
                    let known = known.get_mut();
                    known.waiting = known.waiting.max(tenant.waiting);
                    known.granted = known.granted.max(tenant.granted);
                }
            }
        }
    }
    let mut all: Vec<_> = all.into_values().collect();
    all.sort_by(|one, other| {
        let place = |tenant: &TenantLevel| (Reverse(tenant.waiting), Reverse(tenant.granted));
        let by_name = || (&one.tenant, one.priority).cmp(&(&other.tenant, other.priority));
        place(one).cmp(&place(other)).then_with(by_name)
    });
    Ok(all)
}

fn describe(tenant: &TenantLevel) -> Value {
    json!({
        "tenant": key::shown(&tenant.tenant),
        "weight": tenant.weight,
        "priority": priority_name(tenant.priority),
        "waiting": tenant.waiting,
        "granted": tenant.granted,
    })
}

// === impl TenantQuery ===

impl TenantQuery {
    fn parse(query: &str) -> Result<Self> {
        let mut asked = Self::default();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            match &*name {
                "key" => asked.key = Some(value.into_owned()),
                "limit" => {
                    let limit =
                        value.parse().ok().filter(|limit| (1..=MOST_LISTED).contains(limit));
                    let why = || bad(format!("`limit` must be a number from 1 to {MOST_LISTED}"));
                    asked.limit = Some(limit.ok_or_else(why)?);
                }
                _ => {
                    return Err(bad("the query has `key` and `limit`, as in `?key=acme&limit=20`"));
                }
            }
        }
        Ok(asked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_sets_key_and_length_of_the_list() {
        let asked =
            |key: Option<&str>, limit| Some(TenantQuery { key: key.map(str::to_owned), limit });
        for (query, expected) in [
            ("", asked(None, None)),
            ("key=a%20b&limit=3072", asked(Some("a b"), Some(3072))),
            ("key=%2523aa", asked(Some("%23aa"), None)),
            ("limit=0", None),
            ("limit=3073", None),
            ("sort=waiting", None),
        ] {
            assert_eq!(TenantQuery::parse(query).ok(), expected, "{query}");
        }
    }

    #[tokio::test]
    async fn a_tenant_of_several_rates_is_counted_once() {
        let level = |tenant: &str, priority, waiting, granted| TenantLevel {
            lead: 0,
            tenant: tenant.into(),
            weight: 1,
            priority,
            waiting,
            granted,
        };
        let (high, low) = (Priority::High, Priority::Low);
        let second = vec![level("a", low, 2, 7), level("b", low, 5, 1)];
        let minute = vec![level("a", low, 3, 6), level("a", high, 1, 0)];
        let all = joined(vec![Answer::Ready(Ok(second)), Answer::Ready(Ok(minute))]).await;
        let expected = [level("b", low, 5, 1), level("a", low, 3, 7), level("a", high, 1, 0)];
        assert_eq!(all.expect("tenants"), expected);
        let lost = joined(vec![Answer::Ready(Err(StoreError::NotConnected))]).await;
        assert!(lost.is_err());
    }
}
