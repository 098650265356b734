//! `paceway check`: prints all mistakes of configurations, or a summary of one line for each.

use super::{CommandError, USAGE, config_file, print, print_json};
use crate::{
    config::{Config, ConfigError},
    rows,
};
use serde_json::{Value, json};
use std::{collections::BTreeSet, io::Write, path::PathBuf};

/// A configuration that has no mistake, and the variables and files that the check has not read.
type Checked = Result<(Config, BTreeSet<String>), ConfigError>;

pub(super) fn check(files: &[PathBuf], offline: bool, json: bool) -> Result<(), CommandError> {
    let stdin = files.iter().filter(|file| config_file::is_stdin(file)).count();
    if stdin > 1 {
        return Err(CommandError::usage("error: `-` is named twice, and stdin can be read once"));
    }
    let mut mistakes = Vec::new();
    let mut shown = Vec::new();
    for file in files {
        let name = config_file::name(file);
        let checked = if offline {
            config_file::text(file).and_then(|text| Config::parse_offline(&text, &name))
        } else {
            config_file::load(file).map(|config| (config, BTreeSet::new()))
        };
        if json {
            shown.push(as_json(&name, &checked, offline));
        } else {
            say(&name, &checked, offline)?;
        }
        mistakes.extend(checked.err());
    }
    let is_ok = mistakes.is_empty();
    if json {
        print_json(&json!({ "ok": is_ok, "files": shown }))?;
    }
    if is_ok {
        return Ok(());
    }
    let lines: Vec<_> = mistakes.iter().filter(|_| !json).map(ToString::to_string).collect();
    Err(CommandError { code: USAGE, message: lines.join("\n") })
}

/// Prints the summary and the warnings of a configuration without mistakes.
fn say(name: &str, checked: &Checked, offline: bool) -> Result<(), CommandError> {
    let Ok((config, unread)) = checked else { return Ok(()) };
    for warning in warnings(config, offline) {
        // If stderr is closed, the error cannot be reported either.
        let _ = writeln!(std::io::stderr(), "{name}: warning: {warning}");
    }
    let unread: Vec<_> = unread.iter().map(String::as_str).collect();
    let unread = if unread.is_empty() {
        String::new()
    } else {
        format!("; not read: {}", unread.join(", "))
    };
    print(&format!("{name}: ok: {}{unread}", config.summary()))
}

fn warnings(config: &Config, offline: bool) -> Vec<String> {
    let rates = if offline { Vec::new() } else { rows::with_files(config.clone()).flaws };
    config.warnings().into_iter().chain(config.missing_warnings()).chain(rates).collect()
}

fn as_json(name: &str, checked: &Checked, offline: bool) -> Value {
    match checked {
        Ok((config, unread)) => json!({
            "file": name,
            "ok": true,
            "summary": config.summary(),
            "mistakes": [],
            "warnings": warnings(config, offline),
            "not_read": unread,
        }),
        Err(error) => {
            let mistakes = error.mistakes.iter().map(|mistake| {
                json!({
                    "line": mistake.place.map(|place| place.line),
                    "column": mistake.place.map(|place| place.column),
                    "key": mistake.path,
                    "reason": mistake.reason,
                })
            });
            let mistakes: Vec<_> = mistakes.collect();
            json!({
                "file": name,
                "ok": false,
                "summary": null,
                "mistakes": mistakes,
                "warnings": [],
                "not_read": [],
            })
        }
    }
}
