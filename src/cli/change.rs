//! `paceway pause`, `resume` and `set`: change a limiter, or the global switch, on all gateways for a time.

use super::{
    CommandError,
    admin_client::{AdminArgs, AdminClient, segment},
    print, print_json,
    status::{by, level, rate, said, switch},
};
use http::Method;
use serde_json::{Map, Value};

/// The name before `=` that means the global switch. No limiter is asked for it, because the name of one has no `=`.
const SWITCH: &str = "limiting=";

/// The error of a key for the global switch.
const NO_KEY: &str = "error: `limiting` is for all limiters, and no key has it; leave `--key` out";

/// The key whose rate is changed alone.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct KeyArgs {
    /// One key of the limiter, such as acme, or a pattern, such as plus-*; for `rate=`.
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
}

/// The end and the reason of a change. Every change has both.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct ChangeArgs {
    /// How long: 30s, 10m, 2h.
    #[arg(long = "for", value_name = "TIME")]
    time: String,
    /// Why, for those who see it in `status` and in the log.
    #[arg(long)]
    reason: String,
    #[command(flatten)]
    admin: AdminArgs,
}

// === impl ChangeArgs ===

impl ChangeArgs {
    pub(super) fn prints_json(&self) -> bool {
        self.admin.json
    }
}

// === commands

pub(super) fn pause(name: &str, args: &ChangeArgs) -> Result<(), CommandError> {
    let body = Map::from_iter([("pause".to_owned(), true.into())]);
    put(name, &path(name, None), body, args)
}

/// Ends the override of a limiter or of one key, a pause among them.
pub(super) fn resume(name: &str, key: &KeyArgs, args: &AdminArgs) -> Result<(), CommandError> {
    let path = match name {
        "limiting" if key.key.is_some() => {
            return Err(CommandError::usage(NO_KEY));
        }
        "limiting" => "/limiting".to_owned(),
        name => path(name, key.key.as_deref()),
    };
    let client = AdminClient::connect(args)?;
    let answer = client.ask(&Method::DELETE, &path, None)?;
    if args.json {
        return print_json(&answer);
    }
    let done =
        if answer["removed"] == false { "no override was set" } else { "the override has ended" };
    if name == "limiting" {
        let now = switch(&client.get("/limiters")?["limiting"]);
        return print(&format!("limiting: {done}; now {now}"));
    }
    let page = page(name, key.key.as_deref());
    let state = client.get(&page)?;
    let level = match &*level(&state) {
        "-" => String::new(),
        level => format!(", level {level}"),
    };
    print(&format!("{name}: {done}; now {}, mode {}{level}", rate(&state), said(&state["mode"])))?;
    // A pause that the upstream has asked for is no override.
    let paused = state["paused_until"].as_str().map(|until| {
        let why = state["pause_reason"].as_str().unwrap_or("the upstream refused a request");
        let (below, whose) =
            if state["key"].is_string() { ("/keys/KEY", "the pause of one key") } else { ("", "that") };
        let end = format!("`DELETE {page}{below}` ends {whose}");
        format!("it is paused until {until}, because {why}; {end} on the admin side, and resets the level")
    });
    paused.map_or(Ok(()), |paused| print(&paused))
}

/// Sets `rate=2/s`, `mode=observe` or both for a limiter, or `limiting=off` for all.
pub(super) fn set(words: &[String], key: &KeyArgs, args: &ChangeArgs) -> Result<(), CommandError> {
    let usage = |why: String| CommandError::usage(format!("error: {why}"));
    if let [switch] = words
        && let Some(value) = switch.strip_prefix(SWITCH)
    {
        if key.key.is_some() {
            return Err(CommandError::usage(NO_KEY));
        }
        let body = Map::from_iter([("limiting".to_owned(), value.into())]);
        return put("limiting", "/limiting", body, args);
    }
    let [name, settings @ ..] = words else { return Err(usage("name a limiter".into())) };
    if name.contains('=') || settings.is_empty() {
        return Err(usage(
            "write a limiter and its values, as in `paceway set search rate=2/s`, or `paceway set limiting=off`"
                .into(),
        ));
    }
    let mut body = Map::new();
    for setting in settings {
        match setting.split_once('=') {
            Some(("mode", _)) if key.key.is_some() => {
                return Err(usage(
                    "a key has a rate of its own, and no mode; leave `--key` out".into(),
                ));
            }
            Some((key @ ("rate" | "mode"), value)) if !value.is_empty() => {
                let value = match value.split(',').map(str::trim).collect::<Vec<_>>() {
                    rates if rates.len() > 1 => rates.into(),
                    _ => Value::from(value),
                };
                if body.insert(key.to_owned(), value).is_some() {
                    return Err(usage(format!("`{key}` is written twice")));
                }
            }
            _ => return Err(usage(format!("`{setting}` is neither rate=RATE nor mode=MODE"))),
        }
    }
    put(name, &path(name, key.key.as_deref()), body, args)
}

fn path(name: &str, key: Option<&str>) -> String {
    format!("{}/override", page(name, key))
}

/// The page of a limiter, or of one key of it.
fn page(name: &str, key: Option<&str>) -> String {
    let page = format!("/limiters/{}", segment(name));
    key.map_or_else(|| page.clone(), |key| format!("{page}/keys/{}", segment(key)))
}

fn put(
    name: &str,
    path: &str,
    mut body: Map<String, Value>,
    args: &ChangeArgs,
) -> Result<(), CommandError> {
    body.insert("for".into(), args.time.as_str().into());
    body.insert("reason".into(), args.reason.as_str().into());
    let client = AdminClient::connect(&args.admin)?;
    let answer = client.ask(&Method::PUT, path, Some(&Value::Object(body)))?;
    if args.admin.json {
        return print_json(&answer);
    }
    let set = by(&answer["override"]).unwrap_or_else(|| format!("set for {}", args.time));
    print(&format!("{name}: {set}"))
}
