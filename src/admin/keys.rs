//! The keys of a limiter that are in use: their list, and the reset of all of them. A scan of the store is bounded in steps,
//! keys and time, and the answer says whether it saw all.

use super::{
    Admin,
    access::Operator,
    limiters::{await_levels, forget_costs, forget_known_costs, tell_others},
    page_error::{Result, bad},
    shown::{millis, show, show_found, show_learned, show_working, tightest},
};
use crate::{
    algorithm::Level,
    key,
    plan::LimiterPlan,
    store::{ScanPlace, WaitingCount},
};
use axum::{
    Extension, Json,
    extract::{Path, RawQuery, State},
};
use serde_json::{Value, json};
use std::{
    cmp::Reverse,
    collections::{HashMap, HashSet},
    time::Duration,
};
use tokio::time::Instant;

/// How many steps of a scan one page makes: a million keys of a server, and 1 s of its time.
const STEPS: usize = 1000;
/// The most keys whose levels one page reads.
const MOST: usize = 10_000;
/// How many keys are asked for at one time. Redis gets them in a few calls.
const TOGETHER: usize = 256;
/// A list takes up to 5 s, a reset up to 20 s.
const PATIENCE: Duration = Duration::from_secs(5);
const RESET: Duration = Duration::from_secs(20);
const DEFAULT_LIMIT: usize = 20;
const MOST_LISTED: usize = 1000;

/// The order of the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KeyOrder {
    /// The keys with the most requests that wait in this gateway come first, then those that are used most.
    Waiting,
    /// The keys with the fewest free permits come first.
    Used,
}

/// One key, as the list shows it.
struct KeyInUse {
    key: String,
    /// The levels of its rates, and that of all of them.
    each: std::result::Result<Vec<Level>, String>,
    level: std::result::Result<Level, String>,
    waiting: usize,
}

/// A scan of the states of one limiter, step by step.
struct KeyScan<'a> {
    admin: &'a Admin,
    plan: &'a LimiterPlan,
    next: Option<ScanPlace>,
    steps: usize,
    until: Instant,
}

pub(super) async fn list(
    State(admin): State<Admin>,
    Path(name): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<Json<Value>> {
    let plan = keyed(&admin, &name)?;
    let (order, limit) = read_query(query.as_deref().unwrap_or_default())?;
    let waiting = waiting(&admin, plan);
    let mut found: HashSet<String> = waiting.keys().cloned().collect();
    let mut is_complete = true;
    // The keys with the most waiting requests are known without the store.
    if order == KeyOrder::Used || found.len() < limit {
        let mut scan = KeyScan::new(&admin, plan, PATIENCE);
        while found.len() < MOST
            && let Some(keys) = scan.step().await?
        {
            found.extend(keys);
        }
        is_complete = scan.next.is_none();
    }
    let found: Vec<String> = found.into_iter().take(MOST).collect();
    let examined = found.len();
    let mut all = Vec::with_capacity(examined);
    for keys in found.chunks(TOGETHER) {
        let ask = |key: &String| -> Vec<_> {
            plan.checks(Some(key), 1).map(|check| admin.store.look(&check)).collect()
        };
        // All are asked before the first answer is awaited, so that Redis gets them together.
        let answers: Vec<_> = keys.iter().map(ask).collect();
        for (key, answers) in keys.iter().zip(answers) {
            let each = match await_levels(answers).await {
                Err(error) if !error.is_of_a_key() => return Err(error.into()),
                each => each.map_err(|error| error.to_string()),
            };
            let level = each.clone().map(tightest);
            let waiting = waiting.get(key).copied().unwrap_or_default();
            all.push(KeyInUse { key: key.clone(), each, level, waiting });
        }
    }
    all.retain(KeyInUse::is_in_use);
    all.sort_by_cached_key(|key| key.place(order));
    let shown: Vec<_> = all.iter().take(limit).map(|key| key.describe(plan)).collect();
    Ok(Json(json!({
        "limiter": name,
        "sort": order.name(),
        "keys": shown,
        "examined": examined,
        "complete": is_complete,
    })))
}

pub(super) async fn reset(
    State(admin): State<Admin>,
    Extension(operator): Extension<Operator>,
    Path(name): Path<String>,
) -> Result<Json<Value>> {
    let plan = keyed(&admin, &name)?;
    let mut scan = KeyScan::new(&admin, plan, RESET);
    let mut reset = 0_usize;
    forget_known_costs(&admin, plan).await?;
    while let Some(keys) = scan.step().await? {
        let keys: Vec<_> = keys.collect();
        for key in keys.iter().filter(|_| plan.reserves.is_some()) {
            forget_costs(&admin, plan, plan.checks(Some(key), 1).next().as_ref()).await?;
        }
        for keys in keys.chunks(TOGETHER) {
            let checks = keys.iter().flat_map(|key| plan.checks(Some(key), 1));
            let answers: Vec<_> = checks.map(|check| admin.store.forget(&check)).collect();
            for answer in answers {
                reset += usize::from(answer.get().await?);
            }
        }
    }
    tell_others(&admin, plan).await;
    operator.log("an operator resets all keys", Some(&name), None);
    Ok(Json(json!({ "reset": reset, "complete": scan.next.is_none() })))
}

/// The limiter of this name, which has a key.
fn keyed<'a>(admin: &'a Admin, name: &str) -> Result<&'a LimiterPlan> {
    let plan = admin.limiter(name)?;
    match plan.limiter.key {
        Some(_) => Ok(plan),
        None => Err(bad(format!(
            "this limiter has one bucket for all, and no keys; it is shown by /limiters/{name}"
        ))),
    }
}

/// Reads `sort` and `limit` of the query.
fn read_query(query: &str) -> Result<(KeyOrder, usize)> {
    let (mut order, mut limit) = (KeyOrder::Waiting, DEFAULT_LIMIT);
    for part in query.split('&').filter(|part| !part.is_empty()) {
        match part.split_once('=').unwrap_or((part, "")) {
            ("sort", "waiting") => order = KeyOrder::Waiting,
            ("sort", "used") => order = KeyOrder::Used,
            ("sort", _) => return Err(bad("`sort` is `waiting` or `used`")),
            ("limit", text) => {
                let number = text.parse().ok().filter(|limit| (1..=MOST_LISTED).contains(limit));
                let why = || bad(format!("`limit` must be a number from 1 to {MOST_LISTED}"));
                limit = number.ok_or_else(why)?;
            }
            _ => return Err(bad("the query has `sort` and `limit`, as in `?sort=used&limit=20`")),
        }
    }
    Ok((order, limit))
}

/// The number of requests of this gateway that wait for a slot, by key.
fn waiting(admin: &Admin, plan: &LimiterPlan) -> HashMap<String, usize> {
    let mut all = HashMap::new();
    for WaitingCount { state, calls, .. } in admin.store.pauses().waiting() {
        if let Some(Some(key)) = plan.key_in(&state) {
            // A limiter with several rates has a state for each of them.
            let most = all.entry(key.to_owned()).or_default();
            *most = calls.max(*most);
        }
    }
    all
}

/// The part up to the hash tag, with which the names of all states of a limiter begin.
fn beginning(plan: &LimiterPlan) -> &str {
    let state = &*plan.checks[0].key;
    state.split_once('}').map_or(state, |(beginning, _)| beginning)
}

// === impl KeyScan ===

impl<'a> KeyScan<'a> {
    fn new(admin: &'a Admin, plan: &'a LimiterPlan, patience: Duration) -> Self {
        let until = Instant::now() + patience;
        Self { admin, plan, next: Some(ScanPlace::default()), steps: 0, until }
    }

    /// The keys of the next step; `None` after the last one, or when the scan has taken too long.
    async fn step(&mut self) -> Result<Option<impl Iterator<Item = String> + use<'a>>> {
        if self.steps == STEPS || Instant::now() > self.until {
            return Ok(None);
        }
        let Some(place) = self.next.take() else { return Ok(None) };
        self.steps += 1;
        let (plan, prefix) = (self.plan, beginning(self.plan).into());
        let step = self.admin.store.scan(prefix, place).await?;
        self.next = step.next;
        Ok(Some(step.names.into_iter().filter_map(|name| {
            let key = plan.key_in(&name).flatten()?;
            (!is_internal(key)).then(|| key.to_owned())
        })))
    }
}

/// Whether a key is none of a request: that of the state which keys share in a full memory store, or of a charge on the
/// return of the store. A `#` in the value of a request is escaped.
fn is_internal(key: &str) -> bool {
    key == "#overflow" || key.starts_with("#wait:") || key.contains(":#wait:")
}

// === impl KeyOrder ===

impl KeyOrder {
    fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Used => "used",
        }
    }
}

// === impl KeyInUse ===

impl KeyInUse {
    fn is_in_use(&self) -> bool {
        let is_used = |level: &Level| level.reset_after > 0 || level.paused > 0;
        self.waiting > 0 || self.level.as_ref().map_or(true, is_used)
    }

    /// The place of the key in the list: the smaller, the further in front.
    fn place(&self, order: KeyOrder) -> impl Ord + use<> {
        let waiting = Reverse(if order == KeyOrder::Waiting { self.waiting } else { 0 });
        let used = self
            .level
            .as_ref()
            .ok()
            .map(|level| (level.remaining, Reverse(level.next), Reverse(level.reset_after)));
        (waiting, used.is_none(), used, self.key.clone())
    }

    fn describe(&self, plan: &LimiterPlan) -> Value {
        let mut shown = json!({ "key": key::shown(&self.key), "waiting": self.waiting });
        let limiter = &plan.limiter;
        // Those of its former states come after the rates of the limiter.
        let rules = plan.checks(Some(&self.key), 1).take(limiter.algorithms.len());
        shown["limit"] = rules.map(|check| check.algorithm.limit()).min().into();
        let own = limiter.of_key(Some(&self.key));
        if let (false, [rate]) = (limiter.key_rates.is_empty(), &own.rates[..]) {
            shown["rate"] = rate.to_string().into();
        }
        show_learned(&mut shown, plan, Some(&self.key));
        let limiter = &*own;
        match &self.level {
            Ok(level) => {
                show(&mut shown, *level);
                show_found(&mut shown, limiter, *level);
                if level.paused > 0 {
                    shown["paused_ms"] = millis(level.paused).into();
                }
            }
            Err(error) => shown["error"] = error.as_str().into(),
        }
        show_working(&mut shown, limiter.highest(), self.each.as_deref().unwrap_or_default());
        shown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_sets_order_and_length_of_the_list() {
        for (query, expected) in [
            ("", Some((KeyOrder::Waiting, 20))),
            ("sort=used", Some((KeyOrder::Used, 20))),
            ("limit=1000&sort=waiting", Some((KeyOrder::Waiting, 1000))),
            ("limit=0", None),
            ("limit=1001", None),
            ("limit=-1", None),
            ("sort=", None),
            ("page=2", None),
        ] {
            assert_eq!(read_query(query).ok(), expected, "{query}");
        }
    }
}
