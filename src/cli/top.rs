//! `paceway top`: shows the limiters and keys with the most waiting requests, or the fewest free permits, and the tenants that
//! wait, again and again.

use super::{
    CommandError,
    admin_client::{AdminArgs, AdminClient, segment},
    print, print_json,
    status::{notes, rate, said, switch},
    table::{millis, table},
};
use clap::ValueEnum;
use serde_json::{Value, json};
use std::{
    cmp::{Ordering, Reverse},
    io::{self, IsTerminal},
    thread,
    time::Duration,
};

const INTERVAL: Duration = Duration::from_secs(2);
/// Limiters with a key whose keys are asked for, one request each.
const MOST_LIMITERS: usize = 100;
/// Moves the cursor to the first line, and clears the screen.
const CLEAR: &str = "\u{1b}[H\u{1b}[2J";

/// The order of the rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum TopOrder {
    /// Most waiting requests first.
    Waiting,
    /// Fewest free permits first.
    Used,
}

/// A limiter with one bucket, or one key of a limiter.
struct TopRow {
    shown: Value,
    waiting: i64,
    /// The part of the permits that is used, from 0 to 1.
    used: f64,
}

pub(super) fn top(
    args: &AdminArgs,
    order: TopOrder,
    limit: u16,
    once: bool,
) -> Result<(), CommandError> {
    let client = AdminClient::connect(args)?;
    if args.json {
        return print_json(&look(&client, order, limit)?);
    }
    let refreshes = !once && io::stdout().is_terminal();
    loop {
        let text = text(&args.admin, &look(&client, order, limit)?);
        if !refreshes {
            return print(text.trim_end());
        }
        print(&format!("{CLEAR}{}", text.trim_end()))?;
        thread::sleep(INTERVAL);
    }
}

/// Asks for all limiters, and for the keys of those that have keys.
fn look(client: &AdminClient, order: TopOrder, limit: u16) -> Result<Value, CommandError> {
    let mut page = client.get("/limiters")?;
    let limiters = match page["limiters"].take() {
        Value::Array(limiters) => limiters,
        _ => Vec::new(),
    };
    let (keyed, single): (Vec<_>, Vec<_>) =
        limiters.into_iter().partition(|limiter| limiter["key"].is_string());
    let mut rows: Vec<_> = single.iter().map(|limiter| TopRow::of(limiter, None)).collect();
    let mut is_complete = keyed.len() <= MOST_LIMITERS;
    for limiter in keyed.iter().filter(|limiter| limiter["mode"] != "off").take(MOST_LIMITERS) {
        let name = segment(&said(&limiter["name"]));
        let keys = format!("/limiters/{name}/keys?sort={}&limit={limit}", order.name());
        let page = match client.get(&keys) {
            Ok(page) => page,
            // Without the store the gateway still knows which limiters hold requests.
            Err(failure) => {
                rows.push(TopRow::without_keys(limiter, &failure));
                is_complete = false;
                continue;
            }
        };
        is_complete &= page["complete"] != false;
        let keys = page["keys"].as_array().map(Vec::as_slice).unwrap_or_default();
        rows.extend(keys.iter().map(|key| TopRow::of(limiter, Some(key))));
    }
    rows.sort_by(|one, other| one.place(other, order));
    let tenants = tenants(client, &single, &rows, limit)?;
    let rows = rows.into_iter().take(limit.into()).map(|row| row.shown);
    Ok(json!({
        "limiting": page["limiting"],
        "sort": order.name(),
        "complete": is_complete,
        "rows": rows.collect::<Vec<_>>(),
        "tenants": tenants,
    }))
}

/// Asks for the tenants of each limiter with one bucket, and of each key with waiting requests, whose requests take turns.
/// Returns those with the most waiting requests.
fn tenants(
    client: &AdminClient,
    single: &[Value],
    rows: &[TopRow],
    limit: u16,
) -> Result<Vec<Value>, CommandError> {
    let limit_asked = limit.min(1000);
    let page = |limiter: &Value, key: Option<&Value>| {
        let name = segment(&said(&limiter["name"]));
        let key = key.map_or_else(String::new, |key| format!("&key={}", segment(&said(key))));
        format!("/limiters/{name}/tenants?limit={limit_asked}{key}")
    };
    let has_turns = |limiter: &&Value| limiter["turns"] == true;
    let one = single.iter().filter(has_turns).map(|limiter| page(limiter, None));
    let keyed = rows.iter().filter(|row| row.waiting > 0 && row.shown["turns"] == true);
    let keyed = keyed.filter(|row| row.shown["key"].is_string());
    let keyed =
        keyed.map(|row| page(&json!({ "name": row.shown["limiter"] }), Some(&row.shown["key"])));
    let mut all = Vec::new();
    for page in one.chain(keyed).take(MOST_LIMITERS) {
        let page = client.get(&page)?;
        for tenant in page["tenants"].as_array().into_iter().flatten() {
            let mut tenant = tenant.clone();
            tenant["limiter"] = page["limiter"].clone();
            tenant["key"] = page["key"].clone();
            all.push(tenant);
        }
    }
    all.sort_by_key(|tenant| Reverse(tenant["waiting"].as_i64()));
    all.truncate(limit.into());
    Ok(all)
}

fn text(admin: &str, page: &Value) -> String {
    let mut out = format!("gateway {admin}, limiting {}\n\n", switch(&page["limiting"]));
    let rows = page["rows"].as_array().map(Vec::as_slice).unwrap_or_default();
    let cells = rows.iter().map(|row| {
        let level = match (row["level"].as_i64(), row["limit"].as_i64()) {
            (Some(level), Some(limit)) => format!("{level} of {limit}"),
            _ => "-".into(),
        };
        [
            said(&row["limiter"]),
            said(&row["key"]),
            said(&row["rate"]),
            level,
            said(&row["waiting"]),
            row["next_slot_ms"].as_f64().map_or_else(|| "-".into(), millis),
            said(&row["notes"]),
        ]
    });
    let cells: Vec<_> = cells.collect();
    out += &table(["LIMITER", "KEY", "RATE", "LEVEL", "WAITING", "NEXT SLOT", "NOTES"], &cells);
    if rows.is_empty() {
        out += "no limiter has requests\n";
    }
    let tenants = page["tenants"].as_array().map(Vec::as_slice).unwrap_or_default();
    if !tenants.is_empty() {
        let cells = tenants.iter().map(|tenant| {
            ["limiter", "key", "tenant", "weight", "priority", "waiting", "granted"]
                .map(|field| said(&tenant[field]))
        });
        let cells: Vec<_> = cells.collect();
        out.push('\n');
        out += &table(
            ["LIMITER", "KEY", "TENANT", "WEIGHT", "PRIORITY", "WAITING", "GRANTED"],
            &cells,
        );
    }
    if page["complete"] == false {
        out += "\nnot all keys are listed\n";
    }
    out
}

// === impl TopOrder ===

impl TopOrder {
    fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Used => "used",
        }
    }
}

// === impl TopRow ===

impl TopRow {
    fn of(limiter: &Value, key: Option<&Value>) -> Self {
        let state = key.unwrap_or(limiter);
        let mut notes = match key {
            None => notes(limiter),
            Some(_) => Vec::new(),
        };
        if let Some(left) = key.and_then(|key| key["paused_ms"].as_f64()) {
            notes.push(format!("paused for {}", millis(left)));
        }
        if let Some(rate) = key.and_then(|key| key["working_rate"].as_str()) {
            notes.push(format!("works at {rate}"));
        }
        // A key may have a rate of its own; a gateway of another version does not show its limit.
        let of_key = |field: &str| key.map(|key| &key[field]).filter(|value| !value.is_null());
        let limit = of_key("limit").unwrap_or(&limiter["limit"]);
        let shown = json!({
            "limiter": limiter["name"],
            "key": key.map(|key| key["key"].clone()),
            "rate": of_key("rate").map_or_else(|| rate(limiter), said),
            "level": state["level"],
            "limit": limit,
            "waiting": state["waiting"],
            "next_slot_ms": state["next_slot_ms"],
            "notes": notes.join("; "),
            "turns": limiter["turns"],
        });
        let number = |value: &Value| value.as_f64();
        let used = match (number(&state["level"]), number(limit)) {
            (Some(level), Some(limit)) if limit > 0.0 => 1.0 - level / limit,
            _ => 0.0,
        };
        Self { waiting: state["waiting"].as_i64().unwrap_or_default(), used, shown }
    }

    /// The row of a limiter whose keys could not be listed, with the reason.
    fn without_keys(limiter: &Value, failure: &CommandError) -> Self {
        let mut row = Self::of(limiter, None);
        let reason = failure.message.trim_start_matches("error: ");
        let notes = row.shown["notes"].as_str().filter(|notes| !notes.is_empty());
        let notes = notes.map_or(String::new(), |notes| format!("{notes}; "));
        row.shown["notes"] = format!("{notes}its keys are not listed: {reason}").into();
        row
    }

    fn place(&self, other: &Self, order: TopOrder) -> Ordering {
        let by_waiting = Reverse(self.waiting).cmp(&Reverse(other.waiting));
        let by_use = other.used.total_cmp(&self.used);
        match order {
            TopOrder::Waiting => by_waiting.then(by_use),
            TopOrder::Used => by_use.then(by_waiting),
        }
    }
}
