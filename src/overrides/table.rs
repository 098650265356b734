//! The table of overrides as the store keeps it: JSON, with ends on the store's clock. Asks no store.

use crate::{algorithm::Micros, config::ConfigEdit};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The most overrides at one time.
pub const MOST_OVERRIDES: usize = 1024;

/// All overrides, by the names of their limiters.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct OverrideTable {
    /// The instant of its last change, in µs on the store's clock; later in each version than in the one before. 0 in a table
    /// of a gateway that writes none.
    #[serde(skip_serializing_if = "is_zero")]
    pub version: Micros,
    /// The override of `limiting`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limiting: Option<Override>,
    /// The overrides of limiters.
    pub limiters: BTreeMap<String, Override>,
}

/// A change of one limiter, or of `limiting`, until an instant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Override {
    /// Other rates; `None` leaves those of the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rates>,
    /// Another mode; `None` leaves that of the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// Whether the limiter grants nothing.
    #[serde(default, skip_serializing_if = "is_false")]
    pub pause: bool,
    /// `on` or `off`, for the override of `limiting`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limiting: Option<String>,
    /// The reason that the operator gave.
    pub reason: String,
    /// The operator: an address, and whether the token was sent.
    pub by: String,
    /// The end, in µs on the store's clock.
    pub until: Micros,
}

/// The rates of a limiter as the configuration writes them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "`rate` must be a rate such as \"2/s\", or a list of rates")]
pub enum Rates {
    /// One rate, such as `2/s`.
    One(String),
    /// A list, such as `[2/s, 50/min]`.
    Many(Vec<String>),
}

// === impl OverrideTable ===

impl OverrideTable {
    /// Reads the text of a store. `None` for a text that is no table.
    pub fn parse(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    /// The text for a store.
    pub fn text(&self) -> String {
        // A map with text keys and no floats has a JSON form.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Removes what has ended at `now`.
    pub fn without_ended(mut self, now: Micros) -> Self {
        self.limiters.retain(|_, own| own.until > now);
        self.limiting = self.limiting.filter(|own| own.until > now);
        self
    }

    /// How many overrides there are.
    pub fn len(&self) -> usize {
        self.limiters.len() + usize::from(self.limiting.is_some())
    }

    /// Whether there is no override.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The end that comes first.
    pub fn first_end(&self) -> Option<Micros> {
        self.all().map(|(_, own)| own.until).min()
    }

    /// All overrides, each with the name of its limiter; `None` stands for `limiting`.
    pub fn all(&self) -> impl Iterator<Item = (Option<&str>, &Override)> {
        let limiters = self.limiters.iter().map(|(name, own)| (Some(name.as_str()), own));
        self.limiting.iter().map(|own| (None, own)).chain(limiters)
    }

    /// The override of a limiter; of `limiting` for `None`.
    pub fn get(&self, limiter: Option<&str>) -> Option<&Override> {
        match limiter {
            Some(name) => self.limiters.get(name),
            None => self.limiting.as_ref(),
        }
    }

    /// Sets the override of a limiter, or of `limiting`, or removes it. Returns the one before.
    pub fn set(&mut self, limiter: Option<&str>, new: Option<Override>) -> Option<Override> {
        match (limiter, new) {
            (Some(name), Some(new)) => self.limiters.insert(name.to_owned(), new),
            (Some(name), None) => self.limiters.remove(name),
            (None, new) => std::mem::replace(&mut self.limiting, new),
        }
    }

    /// The values of the configuration that the overrides replace. A pause replaces none.
    pub fn edits(&self) -> Vec<ConfigEdit> {
        let mut edits = Vec::new();
        if let Some(limiting) = self.limiting.as_ref().and_then(|own| own.limiting.as_ref()) {
            edits.push(ConfigEdit::Limiting(limiting != "off"));
        }
        for (limiter, own) in &self.limiters {
            if let Some(rates) = &own.rate {
                edits.push(ConfigEdit::Rates { limiter: limiter.clone(), rates: rates.list() });
            }
            if let Some(mode) = &own.mode {
                edits.push(ConfigEdit::Mode { limiter: limiter.clone(), mode: mode.clone() });
            }
        }
        edits
    }
}

// === impl Override ===

impl Override {
    /// The change in a few words, such as `rate 2/s, mode observe`.
    pub fn change(&self) -> String {
        let rate = self.rate.as_ref().map(|rates| format!("rate {}", rates.list().join(" ")));
        let mode = self.mode.as_ref().map(|mode| format!("mode {mode}"));
        let limiting = self.limiting.as_ref().map(|limiting| format!("limiting {limiting}"));
        let pause = self.pause.then(|| "pause".to_owned());
        let all: Vec<_> = [pause, rate, mode, limiting].into_iter().flatten().collect();
        all.join(", ")
    }
}

// === impl Rates ===

impl Rates {
    /// The rates as a list.
    pub fn list(&self) -> Vec<String> {
        match self {
            Self::One(rate) => vec![rate.clone()],
            Self::Many(rates) => rates.clone(),
        }
    }
}

fn is_false(value: &bool) -> bool {
    !value
}

fn is_zero(value: &Micros) -> bool {
    *value == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Override {
        serde_json::from_str(text).expect("an override")
    }

    #[test]
    fn a_table_is_read_as_it_was_written_and_drops_what_has_ended() {
        let mut table = OverrideTable::default();
        let rest = r#""reason": "r", "by": "::1""#;
        table.set(Some("a"), Some(of(&format!(r#"{{"rate": "2/s", {rest}, "until": 10}}"#))));
        table.set(Some("b"), Some(of(&format!(r#"{{"pause": true, {rest}, "until": 20}}"#))));
        let list = format!(r#"{{"rate": ["2/s", "9/min"], "mode": "off", {rest}, "until": 30}}"#);
        table.set(Some("c"), Some(of(&list)));
        table.set(None, Some(of(&format!(r#"{{"limiting": "off", {rest}, "until": 15}}"#))));
        assert_eq!(OverrideTable::parse(&table.text()), Some(table.clone()));
        assert_eq!((table.len(), table.first_end()), (4, Some(10)));
        assert_eq!(table.edits().len(), 4, "a pause edits nothing");
        let left = table.without_ended(15);
        assert_eq!(left.all().map(|(name, _)| name).collect::<Vec<_>>(), [Some("b"), Some("c")]);
        assert_eq!(left.limiters["c"].change(), "rate 2/s 9/min, mode off");
        // A later version may add fields; a text of another program is no table.
        assert!(OverrideTable::parse(r#"{"limiters": {}, "routes": {}}"#).is_some());
        assert_eq!(OverrideTable::parse("hello"), None);
    }
}
