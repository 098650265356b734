//! Limiters that are rows of a database. They are read by the code that reads those of the file, and their mistakes name the
//! row and the column. Asks no database.

use super::{
    mistake::{ConfigError, Mistake, Position},
    raw,
    settings::Config,
    yaml::{self, Key, Outside, Scalar, YamlEntry, YamlNode, YamlValue},
};
use std::{collections::HashMap, fmt, path::Path};

/// The place of all values of rows. A message has no line for them.
const NO_LINE: Position = Position { line: 0, column: 0 };

/// One row: a limiter with its keys as columns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitRow {
    /// The name of the limiter.
    pub name: String,
    /// The other columns that are not null, with their values as text.
    pub columns: Vec<(String, String)>,
}

// === impl LimitRow ===

impl LimitRow {
    /// The row as a limiter of the file would be. `enabled: false` stands for `mode: off`.
    fn node(&self) -> YamlNode {
        let mut entries = Vec::with_capacity(self.columns.len());
        let mut is_off = false;
        for (column, text) in &self.columns {
            match (column.as_str(), text.as_str()) {
                ("enabled", "true" | "t" | "1" | "on" | "yes") => {}
                ("enabled", "false" | "f" | "0" | "off" | "no") => is_off = true,
                _ => entries.push(entry(column, value(text))),
            }
        }
        if is_off {
            entries.retain(|own: &YamlEntry| own.key.name != "mode");
            entries.push(entry("mode", scalar("off")));
        }
        YamlNode { place: NO_LINE, value: YamlValue::Map(entries) }
    }
}

impl fmt::Display for LimitRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (column, text)) in self.columns.iter().enumerate() {
            // The keys in it may be credentials.
            let text = if matches!(column.as_str(), "rates" | "fair") { "***" } else { text };
            write!(f, "{}{column} {}", if i == 0 { "" } else { ", " }, text.escape_debug())?;
        }
        Ok(())
    }
}

/// A value as the file would have it: a list or map if it is JSON, or a list as YAML writes it, and otherwise a text.
fn value(text: &str) -> YamlNode {
    let trimmed = text.trim();
    if trimmed.starts_with(['[', '{', '"'])
        && let Ok(json) = serde_json::from_str::<serde_json::Value>(trimmed)
    {
        return of_json(json);
    }
    // Nothing in a row is a variable.
    if trimmed.starts_with('[') && !trimmed.contains("${") {
        let outside = Outside { directory: Path::new("."), variable: &|_| None, unread: None };
        let mut mistakes = Vec::new();
        if let Ok(list) = yaml::read(trimmed, &outside, &mut mistakes)
            && mistakes.is_empty()
        {
            return list;
        }
    }
    scalar(text)
}

fn of_json(json: serde_json::Value) -> YamlNode {
    use serde_json::Value;
    let value = match json {
        Value::Array(items) => YamlValue::List(items.into_iter().map(of_json).collect()),
        Value::Object(members) => {
            let entries = members.into_iter().map(|(name, value)| entry(&name, of_json(value)));
            YamlValue::Map(entries.collect())
        }
        Value::String(text) => return scalar(&text),
        other => return scalar(&other.to_string()),
    };
    YamlNode { place: NO_LINE, value }
}

fn entry(name: &str, node: YamlNode) -> YamlEntry {
    YamlEntry { key: Key { place: NO_LINE, name: name.to_owned() }, node }
}

fn scalar(text: &str) -> YamlNode {
    YamlNode { place: NO_LINE, value: YamlValue::Scalar(Scalar::new(text)) }
}

// === impl Config ===

impl Config {
    /// The same configuration with limiters replaced by rows, and with those that rows add. The whole is checked as a file is.
    ///
    /// # Errors
    ///
    /// All mistakes at once. One in a row has no line; [`Mistake::row`] names the row.
    pub fn with_rows(&self, rows: &[LimitRow]) -> Result<Self, ConfigError> {
        if rows.is_empty() {
            return Ok(self.clone());
        }
        let mut document = (*self.document).clone();
        if let YamlValue::Map(entries) = &mut document.root.value {
            entries.retain(|own| own.key.name != "limiters" || !own.node.is_null());
            let limiters = match entries.iter().position(|own| own.key.name == "limiters") {
                Some(known) => known,
                None => {
                    let none = YamlNode { place: NO_LINE, value: YamlValue::Map(Vec::new()) };
                    entries.push(entry("limiters", none));
                    entries.len() - 1
                }
            };
            if let YamlValue::Map(limiters) = &mut entries[limiters].node.value {
                let known = limiters.iter().enumerate();
                let known: HashMap<_, _> =
                    known.map(|(i, own)| (own.key.name.clone(), i)).collect();
                for row in rows {
                    match known.get(&row.name) {
                        Some(i) => limiters[*i].node = row.node(),
                        None => limiters.push(entry(&row.name, row.node())),
                    }
                }
            }
        }
        let mut config = raw::check(document).map_err(|error| named(error, rows))?;
        // The tree has no token.
        config.admin = self.admin.clone();
        Ok(config)
    }
}

/// Names the row and the column in place of the path in a file.
fn named(mut error: ConfigError, rows: &[LimitRow]) -> ConfigError {
    let names: HashMap<&str, ()> = rows.iter().map(|row| (row.name.as_str(), ())).collect();
    for mistake in &mut error.mistakes {
        if mistake.place.is_none_or(|place| place != NO_LINE) {
            continue;
        }
        let Some(path) = mistake.path.strip_prefix("limiters.") else { continue };
        // A name may contain dots.
        let ends = path.match_indices('.').map(|(at, _)| at).chain([path.len()]);
        let name = ends.map(|end| &path[..end]).rfind(|name| names.contains_key(name));
        let Some(name) = name else { continue };
        let row = name.escape_debug();
        mistake.path = match path[name.len()..].strip_prefix('.') {
            Some(column) => format!("limits_from row \"{row}\", column {column}"),
            None => format!("limits_from row \"{row}\""),
        };
        mistake.place = None;
    }
    error
}

// === impl Mistake ===

impl Mistake {
    /// The name of the row of `limits_from` that has the mistake; `None` for a mistake in a file.
    pub fn row(&self) -> Option<&str> {
        let rest = self.path.strip_prefix("limits_from row \"")?;
        rest.split_once('"').map(|(name, _)| name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn config() -> Config {
        let text = "upstream: http://a\nlimiters: { search: 10/s, other: 5/s }\n\
                    routes: [{ suffix: '*', limiters: [{ limiter: search, cost: 5 }] }]\n";
        Config::parse(text, "test.yaml", Path::new("."), &|_| None).expect("a config")
    }

    fn row(name: &str, columns: &[(&str, &str)]) -> LimitRow {
        let columns = columns.iter().map(|(name, text)| ((*name).into(), (*text).into()));
        LimitRow { name: name.into(), columns: columns.collect() }
    }

    #[test]
    fn rows_replace_and_add_limiters() {
        let rows = [
            row(
                "search",
                &[("rate", "[20/s, 100/min]"), ("key", "{header.x-shop}"), ("enabled", "t")],
            ),
            row("a.b", &[("rate", "[\"3/s\", \"20/min\"]"), ("mode", "observe")]),
            row("off", &[("rate", "\"3/s\""), ("mode", "observe"), ("enabled", "0")]),
            row("places", &[("algorithm", "concurrency"), ("max", "4")]),
        ];
        let config = config().with_rows(&rows).expect("a config");
        let shown = config.limiters.iter().map(|limiter| {
            let rates: Vec<_> = limiter.rates.iter().map(ToString::to_string).collect();
            format!("{} {} {}", limiter.name, rates.join("+"), limiter.mode.name())
        });
        let expected = [
            "search 20/s+100/min enforce",
            "other 5/s enforce",
            "a.b 3/s+20/min observe",
            "off 3/s off",
            "places  enforce",
        ];
        assert_eq!(shown.collect::<Vec<_>>(), expected);
        assert_eq!(config.limiters[0].key.as_ref().expect("a key").text(), "{header.x-shop}");
    }

    #[test]
    fn the_log_has_no_keys_of_a_row() {
        let columns = [("rate", "5/s"), ("rates", r#"{"hunter2": "9/s"}"#)];
        assert_eq!(row("shop", &columns).to_string(), "rate 5/s, rates ***");
    }

    #[rstest]
    #[case::value("search", &[("rate", "5/fortnight")], "limits_from row \"search\", column rate: `5/fortnight` has the unknown unit")]
    #[case::key("search", &[("rate", "9/s"), ("brust", "5")], "limits_from row \"search\", column brust: unknown key `brust`; did you mean `burst`?")]
    #[case::nothing("new", &[], "limits_from row \"new\", column rate: is missing, as in `rate: 5/s`")]
    #[case::name("a b", &[("rate", "5/s")], "limits_from row \"a b\": a name holds letters")]
    #[case::dots("a.b", &[("rate", "-1/s")], "limits_from row \"a.b\", column rate: ")]
    #[case::enabled("a", &[("rate", "1/s"), ("enabled", "maybe")], "limits_from row \"a\", column enabled: unknown key `enabled`")]
    #[case::variable("a", &[("rate", "${file:/etc/passwd}")], "limits_from row \"a\", column rate: ")]
    #[case::cost_of_a_route("search", &[("rate", "4/s")], "3:61: routes[0].limiters[0].cost: ")]
    fn mistakes_name_the_row(
        #[case] name: &str,
        #[case] columns: &[(&str, &str)],
        #[case] expected: &str,
    ) {
        let error = config().with_rows(&[row(name, columns)]).expect_err("a mistake");
        let text = error.to_string();
        let line = text.lines().next().expect("a line");
        let said = line.strip_prefix("test.yaml:").expect("the file").trim_start();
        assert!(said.starts_with(expected), "{text}");
        assert!(!text.contains("root"), "{text}");
    }
}
