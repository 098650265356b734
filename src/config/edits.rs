//! Replaces single values of a configuration while the gateway runs. The result is checked as a file is.

use super::{
    mistake::{ConfigError, Mistake},
    raw,
    settings::Config,
    yaml::{Key, Scalar, YamlEntry, YamlNode, YamlValue},
};
use crate::key::Template;

/// A value that replaces one of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConfigEdit {
    /// Another value of `limiting`.
    Limiting(bool),
    /// Other rates of a limiter: one, or a list as in the file.
    Rates {
        /// The name of the limiter.
        limiter: String,
        /// The key, or the pattern of keys, that gets the rate; `None` for all keys without one of their own.
        key: Option<String>,
        /// At least one rate, such as `5/s`.
        rates: Vec<String>,
    },
    /// Another mode of a limiter.
    Mode {
        /// The name of the limiter.
        limiter: String,
        /// The mode, such as `observe`.
        mode: String,
    },
}

// === impl Config ===

impl Config {
    /// An error with these mistakes in the file that this configuration was read from.
    pub(crate) fn error(&self, mistakes: Vec<Mistake>) -> ConfigError {
        ConfigError::new(&self.document.file, mistakes)
    }

    /// The same configuration with some values replaced, checked as a file is. The admin side keeps its settings.
    ///
    /// # Errors
    ///
    /// All mistakes at once. Their places are those of the replaced values.
    pub fn edited(&self, edits: &[ConfigEdit]) -> Result<Self, ConfigError> {
        if edits.is_empty() {
            return Ok(self.clone());
        }
        let mut document = (*self.document).clone();
        for edit in edits {
            edit.apply(&mut document.root);
        }
        let mut config = raw::check(document)?;
        config.admin = self.admin.clone();
        // Another change begins with the file, and not with this result.
        config.document = self.document.clone();
        Ok(config)
    }
}

// === impl ConfigEdit ===

impl ConfigEdit {
    /// The limiter whose value it replaces; `None` for `limiting`.
    pub fn limiter(&self) -> Option<&str> {
        match self {
            Self::Limiting(_) => None,
            Self::Rates { limiter, .. } | Self::Mode { limiter, .. } => Some(limiter),
        }
    }

    /// Replaces the value in the tree. An edit of a limiter that the tree does not have changes nothing.
    fn apply(&self, root: &mut YamlNode) {
        match self {
            Self::Limiting(is_on) => set(root, "limiting", text(if *is_on { "on" } else { "off" })),
            Self::Rates { limiter, key: Some(key), rates } => {
                let Some(limiter) = long_form(root, limiter) else { return };
                let template = limiter.value_mut("key").and_then(|node| match &node.value {
                    YamlValue::Scalar(scalar) => Template::parse(&scalar.text).ok(),
                    _ => None,
                });
                if limiter.value_mut("rates").is_none_or(|names| names.is_null()) {
                    set(limiter, "rates", YamlValue::Map(Vec::new()));
                }
                if let (Some(names), [rate]) = (limiter.value_mut("rates"), &rates[..]) {
                    if let (Some(template), YamlValue::Map(own)) = (template, &mut names.value) {
                        // The file may write the name in another spelling.
                        own.retain(|own| template.canonical_name(&own.key.name) != *key);
                    }
                    set(names, key, text(rate));
                }
            }
            Self::Rates { limiter, key: None, rates } => {
                let Some(limiter) = long_form(root, limiter) else { return };
                let is_auto = limiter.value_mut("rate").is_some_and(|rate| {
                    matches!(&rate.value, YamlValue::Scalar(scalar) if scalar.text == "auto")
                });
                let learns = is_auto || limiter.value_mut("learn").is_some();
                if let (true, YamlValue::Map(entries)) = (learns, &mut limiter.value) {
                    // The keys that belong to a rate that is learned.
                    let others = ["start", "min", "max", "learn"];
                    entries.retain(|own| !others.contains(&&*own.key.name));
                }
                match &rates[..] {
                    [rate] => set(limiter, "rate", text(rate)),
                    rates => {
                        let place = limiter.place;
                        let item = |rate: &String| YamlNode { place, value: text(rate) };
                        set(limiter, "rate", YamlValue::List(rates.iter().map(item).collect()));
                    }
                }
            }
            Self::Mode { limiter, mode } => {
                if let Some(limiter) = long_form(root, limiter) {
                    set(limiter, "mode", text(mode));
                }
            }
        }
    }
}

/// The section of a limiter, which its short form is made into.
fn long_form<'n>(root: &'n mut YamlNode, limiter: &str) -> Option<&'n mut YamlNode> {
    let node = root.value_mut("limiters")?.value_mut(limiter)?;
    if !matches!(node.value, YamlValue::Map(_)) && !node.is_null() {
        let key = Key { place: node.place, name: "rate".into() };
        node.value = YamlValue::Map(vec![YamlEntry { key, node: node.clone() }]);
    }
    Some(node)
}

fn set(node: &mut YamlNode, key: &str, new: YamlValue) {
    let place = node.place;
    if let Some(old) = node.value_mut(key) {
        old.value = new;
    } else if let YamlValue::Map(entries) = &mut node.value {
        let node = YamlNode { place, value: new };
        entries.push(YamlEntry { key: Key { place, name: key.into() }, node });
    }
}

fn text(text: &str) -> YamlValue {
    YamlValue::Scalar(Scalar::new(text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn config() -> Config {
        let text = "admin: { listen: '127.0.0.1:1', token: hunter2, read: token }\nupstream: http://a\n\
                    limiters:\n  short: 10/s\n  list: [5/s, 100/min]\n  long: { rate: 10/s, burst: 7, mode: off }\n  \
                    auto: { rate: auto, start: 5/s, max: 9/s }\n  places: { algorithm: concurrency, max: 4 }\n\
                    routes: [{ suffix: '*', limiters: [{ limiter: short, cost: 5 }, long] }]\n";
        Config::parse(text, "test.yaml", Path::new("."), &|_| None).expect("a config")
    }

    fn rates(limiter: &str, rates: &[&str]) -> ConfigEdit {
        let rates = rates.iter().map(|rate| (*rate).to_owned()).collect();
        ConfigEdit::Rates { limiter: limiter.into(), key: None, rates }
    }

    fn mode(limiter: &str, mode: &str) -> ConfigEdit {
        ConfigEdit::Mode { limiter: limiter.into(), mode: mode.into() }
    }

    #[test]
    fn single_values_are_replaced_and_the_rest_stays() {
        let before = config();
        assert_eq!(before.edited(&[]).expect("a config"), before);
        let edits = [
            ConfigEdit::Limiting(false),
            rates("short", &["20/s"]),
            rates("list", &["2/s", "50/min"]),
            mode("short", "observe"),
            mode("long", "enforce"),
            rates("auto", &["3/s"]),
            rates("unknown", &["3/s"]),
        ];
        let after = before.edited(&edits).expect("a config");
        assert!(!after.limiting);
        assert_eq!(after.admin, before.admin);
        let shown = |i: usize| {
            let limiter = &after.limiters[i];
            let rates: Vec<_> = limiter.rates.iter().map(ToString::to_string).collect();
            (rates.join(" "), limiter.mode.name(), limiter.capacity(), limiter.auto.is_some())
        };
        assert_eq!(shown(0), ("20/s".into(), "observe", 20, false));
        assert_eq!(shown(1), ("2/s 50/min".into(), "enforce", 2, false));
        assert_eq!(shown(2), ("10/s".into(), "enforce", 7, false));
        assert_eq!(shown(3), ("3/s".into(), "enforce", 3, false));
        // The next change begins with the file.
        assert_eq!(after.edited(&[]).expect("a config").limiters, after.limiters);
        assert_eq!(
            after.edited(&[mode("short", "off")]).expect("a config").limiters[0].rates,
            before.limiters[0].rates
        );
        assert!(!format!("{after:?}").contains("hunter2"));
    }

    /// The file may write a key in another spelling than the operator.
    #[test]
    fn the_rate_of_one_key_is_replaced() {
        for (key, name) in [
            ("header.x-shop", "acme"),
            ("header.x-shop", "ü"),
            ("header.x-shop", "plus *"),
            ("header.authorization", "Bearer x"),
        ] {
            let text = format!(
                "upstream: http://a\nroutes: [{{ suffix: '*' }}]\n\
                 limiters: {{ it: {{ rate: 2/s, key: '{{{key}}}', rates: {{ '{name}': 20/s }} }} }}\n"
            );
            let before = Config::parse(&text, "t", Path::new("."), &|_| None).expect("a config");
            let template = before.limiters[0].key.clone().expect("a key");
            let key = template.canonical_name(name);
            let rates = vec!["30/s".into()];
            let edit = ConfigEdit::Rates { limiter: "it".into(), key: Some(key.clone()), rates };
            let after = before.edited(&[edit]).expect("a config");
            let asked = key.replace('*', "1");
            let count = |config: &Config| config.limiters[0].of_key(Some(&asked)).rates[0].count;
            assert_eq!((count(&before), count(&after)), (20, 30), "{name}");
        }
    }

    #[test]
    fn the_whole_is_checked_as_a_file_is() {
        let mistake = |edit: ConfigEdit| {
            let error = config().edited(&[edit]).expect_err("must be refused");
            error.to_string()
        };
        let unknown = mistake(rates("short", &["5/fortnight"]));
        assert!(
            unknown.contains("limiters.short.rate: `5/fortnight` has the unknown unit"),
            "{unknown}"
        );
        let cost = mistake(rates("short", &["2/s"]));
        assert!(cost.contains("routes[0].limiters[0].cost"), "{cost}");
        let places = mistake(rates("places", &["2/s"]));
        assert!(places.contains("belongs to the other algorithms"), "{places}");
        assert!(
            mistake(mode("short", "sometimes")).contains("is not one of enforce, observe, off")
        );
    }
}
