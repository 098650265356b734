//! `paceway status`: shows the state of a running gateway: its configuration, its store and every limiter.

use super::{
    CommandError, accounts,
    admin_client::{AdminArgs, AdminClient},
    print, print_json,
    table::{millis, table},
};
use serde_json::{Value, json};
use std::fmt::Write as _;

pub(super) fn status(args: &AdminArgs) -> Result<(), CommandError> {
    let client = AdminClient::connect(args)?;
    let page = client.get("/limiters")?;
    if !args.json {
        return print(text(&args.admin, &client.ready, &page).trim_end());
    }
    let mut all = json!({ "admin": args.admin });
    for page in [client.ready, page] {
        if let (Value::Object(all), Value::Object(more)) = (&mut all, page) {
            all.extend(more);
        }
    }
    print_json(&all)
}

/// `ready` is the page `/readyz`, and `page` the page `/limiters`.
fn text(admin: &str, ready: &Value, page: &Value) -> String {
    let mut out = String::new();
    let mut line = |name: &str, what: &str| {
        // Writing to a string cannot fail.
        let _ = writeln!(out, "{name:<10} {what}");
    };
    let is_ready = if ready["ready"] == true {
        "ready".to_owned()
    } else {
        format!("not ready: {}", list(&ready["reasons"]))
    };
    line("gateway", &format!("{admin}, {is_ready}"));
    let config = &ready["config"];
    if let Some(hash) = config["hash"].as_str() {
        let loaded = config["loaded"].as_str();
        let loaded = loaded.map_or_else(String::new, |at| format!(", loaded {at}"));
        line("config", &format!("{hash}{loaded}"));
    }
    if let Some(error) = config["error"].as_str() {
        line("", &format!("a later file cannot be used: {}", error.replace('\n', "; ")));
    }
    if config["needs_restart"].is_array() {
        line("", &format!("needs a restart: {}", list(&config["needs_restart"])));
    }
    line("store", &store(&ready["store"]));
    line("limiting", switch(&page["limiting"]));
    if let Some(what) = by(&page["limiting_override"]) {
        line("", &what);
    }
    for (i, account) in page["parked"].as_array().into_iter().flatten().enumerate() {
        line(if i == 0 { "parked" } else { "" }, &accounts::line(account));
    }
    let limiters = page["limiters"].as_array().map(Vec::as_slice).unwrap_or_default();
    if limiters.is_empty() {
        line("limiters", "none");
        return out;
    }
    let rows: Vec<_> = limiters.iter().map(row).collect();
    out.push('\n');
    out + &table(["LIMITER", "RATE", "MODE", "LEVEL", "WAITING", "NEXT SLOT", "NOTES"], &rows)
}

fn store(store: &Value) -> String {
    if !store.is_object() {
        return "memory, of this gateway alone".into();
    }
    let gateways = said(&store["gateways"]);
    let noun = if gateways == "1" { "gateway" } else { "gateways" };
    let mut text = format!(
        "decided by {}; breaker {}; {gateways} {noun}",
        said(&store["decided_by"]),
        said(&store["breaker"])
    );
    if let Some(why) = store["why"].as_str() {
        let never = if store["never_reached"] == true { ", never reached" } else { "" };
        text += &format!("; away for {} s{never}: {why}", said(&store["away_s"]));
    }
    text
}

fn row(limiter: &Value) -> [String; 7] {
    [
        said(&limiter["name"]),
        rate(limiter),
        said(&limiter["mode"]),
        level(limiter),
        said(&limiter["waiting"]),
        limiter["next_slot_ms"].as_f64().map_or_else(|| "-".into(), millis),
        notes(limiter).join("; "),
    ]
}

/// The level of a limiter, or of each of its rates: `3 of 5, 58 of 60`. A `-` if it has none.
pub(super) fn level(limiter: &Value) -> String {
    let one = |level: &Value| {
        Some(format!("{} of {}", level["level"].as_i64()?, level["limit"].as_i64()?))
    };
    let each = limiter["levels"].as_array().map(|each| each.iter().filter_map(one).collect());
    let levels: Vec<_> = each.unwrap_or_else(|| one(limiter).into_iter().collect());
    if levels.is_empty() { "-".into() } else { levels.join(", ") }
}

pub(super) fn rate(limiter: &Value) -> String {
    match &limiter["rate"] {
        Value::Null => format!("{} at once", said(&limiter["limit"])),
        Value::Array(_) => list(&limiter["rate"]),
        rate => said(rate),
    }
}

/// The reasons why a limiter is not as its configuration says, and the key of one that has many buckets.
pub(super) fn notes(limiter: &Value) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some(key) = limiter["key"].as_str() {
        notes.push(format!("for each {key}"));
    }
    for (state, until, why) in
        [("paused", "paused_until", "pause_reason"), ("closed", "closed_until", "closed_reason")]
    {
        if let Some(until) = limiter[until].as_str() {
            notes.push(format!("{state} until {until}: {}", said(&limiter[why])));
        }
    }
    if let Some(rate) = limiter["working_rate"].as_str() {
        let [since, why] = ["working_since", "working_reason"].map(|field| said(&limiter[field]));
        notes.push(format!("works at {rate} from {since}: {why}"));
    }
    if let Some(at) = limiter["used_up_at"].as_str() {
        notes.push(format!("its quota ends at {at}, at the pace of the last hour"));
    }
    notes.extend(by(&limiter["override"]));
    for own in limiter["key_overrides"].as_array().into_iter().flatten() {
        notes.extend(by(own).map(|text| format!("key {}: {text}", said(&own["key"]))));
    }
    if let Some(error) = limiter["error"].as_str() {
        notes.push(format!("no level: {error}"));
    }
    notes
}

/// Describes an override: its values, and the reason, author and end.
pub(super) fn by(change: &Value) -> Option<String> {
    let change = change.as_object()?;
    let facts = ["rate", "mode", "pause", "limiting"];
    let values = facts.iter().filter_map(|name| {
        let value = change.get(*name).filter(|value| !value.is_null())?;
        Some(match value {
            Value::Bool(_) => (*name).to_owned(),
            Value::Array(_) => format!("{name} {}", list(value)),
            value => format!("{name} {}", said(value)),
        })
    });
    let values: Vec<_> = values.collect();
    let mut text = format!("override: {}", values.join(", "));
    for (name, before) in [("until", "until "), ("by", "by "), ("reason", "")] {
        if let Some(value) = change.get(name).filter(|value| !value.is_null()) {
            text += &format!(", {before}{}", said(value));
        }
    }
    Some(text)
}

/// The global switch, as the configuration writes it.
pub(super) fn switch(limiting: &Value) -> &'static str {
    if *limiting == false { "off: every request is forwarded unlimited" } else { "on" }
}

/// A value as text, without the quotes of a string.
pub(super) fn said(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "-".into(),
        value => value.to_string(),
    }
}

fn list(values: &Value) -> String {
    let values = values.as_array().map(Vec::as_slice).unwrap_or_default();
    values.iter().map(said).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::alone(1, "decided by store; breaker closed; 1 gateway")]
    #[case::several(3, "decided by store; breaker closed; 3 gateways")]
    fn shows_the_store_in_one_line(#[case] gateways: u64, #[case] expected: &str) {
        let page = json!({ "decided_by": "store", "breaker": "closed", "gateways": gateways });
        assert_eq!(store(&page), expected);
    }
}
