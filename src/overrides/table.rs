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
    /// The overrides of single keys, by the names of their limiters.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub keys: BTreeMap<String, BTreeMap<String, Override>>,
}

/// The subject of an override.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overridden<'a> {
    /// The global switch.
    Limiting,
    /// A limiter.
    Limiter(&'a str),
    /// The rate of one key of a limiter, or of a pattern of keys.
    Key {
        /// The name of the limiter.
        limiter: &'a str,
        /// The key.
        key: &'a str,
    },
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
        self.keys.retain(|_, keys| {
            keys.retain(|_, own| own.until > now);
            !keys.is_empty()
        });
        self.limiting = self.limiting.filter(|own| own.until > now);
        self
    }

    /// How many overrides there are.
    pub fn len(&self) -> usize {
        self.all().count()
    }

    /// Whether there is no override.
    pub fn is_empty(&self) -> bool {
        self.all().next().is_none()
    }

    /// The end that comes first.
    pub fn first_end(&self) -> Option<Micros> {
        self.all().map(|(_, own)| own.until).min()
    }

    /// All overrides, each with what it changes.
    pub fn all(&self) -> impl Iterator<Item = (Overridden<'_>, &Override)> {
        let limiters = self.limiters.iter().map(|(name, own)| (Overridden::Limiter(name), own));
        let keys = self.keys.iter().flat_map(|(limiter, keys)| {
            keys.iter().map(move |(key, own)| (Overridden::Key { limiter, key }, own))
        });
        let limiting = self.limiting.iter().map(|own| (Overridden::Limiting, own));
        limiting.chain(limiters).chain(keys)
    }

    /// All overrides, to change them.
    pub fn all_mut(&mut self) -> impl Iterator<Item = &mut Override> {
        let keys = self.keys.values_mut().flat_map(BTreeMap::values_mut);
        self.limiters.values_mut().chain(&mut self.limiting).chain(keys)
    }

    /// The override of a limiter, of a key, or of `limiting`.
    pub fn get(&self, of: Overridden<'_>) -> Option<&Override> {
        match of {
            Overridden::Limiting => self.limiting.as_ref(),
            Overridden::Limiter(name) => self.limiters.get(name),
            Overridden::Key { limiter, key } => self.keys.get(limiter)?.get(key),
        }
    }

    /// Sets an override, or removes it. Returns the one before.
    pub fn set(&mut self, of: Overridden<'_>, new: Option<Override>) -> Option<Override> {
        let (all, name) = match of {
            Overridden::Limiting => return std::mem::replace(&mut self.limiting, new),
            Overridden::Limiter(name) => (&mut self.limiters, name),
            Overridden::Key { limiter, key } => {
                (self.keys.entry(limiter.to_owned()).or_default(), key)
            }
        };
        let before = match new {
            Some(new) => all.insert(name.to_owned(), new),
            None => all.remove(name),
        };
        self.keys.retain(|_, keys| !keys.is_empty());
        before
    }

    /// The values of the configuration that the overrides replace. A pause replaces none.
    pub fn edits(&self) -> Vec<ConfigEdit> {
        let mut edits = Vec::new();
        for (of, own) in self.all() {
            let (limiter, key) = match of {
                Overridden::Limiting => {
                    let limiting = own.limiting.iter();
                    edits.extend(limiting.map(|limiting| ConfigEdit::Limiting(limiting != "off")));
                    continue;
                }
                Overridden::Limiter(limiter) => (limiter.to_owned(), None),
                Overridden::Key { limiter, key } => (limiter.to_owned(), Some(key.to_owned())),
            };
            if let Some(mode) = own.mode.clone() {
                edits.push(ConfigEdit::Mode { limiter: limiter.clone(), mode });
            }
            if let Some(rates) = &own.rate {
                edits.push(ConfigEdit::Rates { limiter, key, rates: rates.list() });
            }
        }
        edits
    }
}

// === impl Overridden ===

impl<'a> Overridden<'a> {
    /// The limiter; `None` for `limiting`.
    pub fn limiter(self) -> Option<&'a str> {
        match self {
            Self::Limiting => None,
            Self::Limiter(limiter) | Self::Key { limiter, .. } => Some(limiter),
        }
    }

    /// The key, where it is one.
    pub fn key(self) -> Option<&'a str> {
        match self {
            Self::Limiting | Self::Limiter(_) => None,
            Self::Key { key, .. } => Some(key),
        }
    }

    /// Whether an edit of the configuration is of this override.
    pub fn is_of(self, edit: &ConfigEdit) -> bool {
        let key = match edit {
            ConfigEdit::Rates { key, .. } => key.as_deref(),
            ConfigEdit::Limiting(_) | ConfigEdit::Mode { .. } => None,
        };
        (self.limiter(), self.key()) == (edit.limiter(), key)
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
        table.set(
            Overridden::Limiter("a"),
            Some(of(&format!(r#"{{"rate": "2/s", {rest}, "until": 10}}"#))),
        );
        table.set(
            Overridden::Limiter("b"),
            Some(of(&format!(r#"{{"pause": true, {rest}, "until": 20}}"#))),
        );
        let list = format!(r#"{{"rate": ["2/s", "9/min"], "mode": "off", {rest}, "until": 30}}"#);
        table.set(Overridden::Limiter("c"), Some(of(&list)));
        for (key, until) in [("k", 10), ("l-*", 20)] {
            let change = format!(r#"{{"rate": "3/s", {rest}, "until": {until}}}"#);
            table.set(Overridden::Key { limiter: "a", key }, Some(of(&change)));
        }
        table.set(
            Overridden::Limiting,
            Some(of(&format!(r#"{{"limiting": "off", {rest}, "until": 15}}"#))),
        );
        assert_eq!(OverrideTable::parse(&table.text()), Some(table.clone()));
        assert_eq!((table.len(), table.first_end()), (6, Some(10)));
        assert_eq!(table.edits().len(), 6, "a pause edits nothing");
        let left = table.without_ended(15);
        let all = left.all().map(|(name, _)| name).collect::<Vec<_>>();
        let pattern = Overridden::Key { limiter: "a", key: "l-*" };
        assert_eq!(all, [Overridden::Limiter("b"), Overridden::Limiter("c"), pattern]);
        let without = |mut table: OverrideTable| table.set(pattern, None).map(|_| table.keys);
        assert_eq!(without(left.clone()), Some(BTreeMap::new()));
        assert_eq!(left.limiters["c"].change(), "rate 2/s 9/min, mode off");
        // A later version may add fields; a text of another program is no table.
        assert!(OverrideTable::parse(r#"{"limiters": {}, "routes": {}}"#).is_some());
        assert_eq!(OverrideTable::parse("hello"), None);
    }
}
