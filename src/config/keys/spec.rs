//! The description of a key and of a section, from which the parser, the JSON Schema and the tables of the documentation are
//! made. Names no key.

use crate::suggest::nearest;

/// A key of the configuration.
pub(in crate::config) struct KeySpec {
    pub(in crate::config) name: &'static str,
    /// The kind of its value, in Markdown, such as "duration, at most 1d".
    pub(in crate::config) kind: &'static str,
    pub(in crate::config) default: &'static str,
    pub(in crate::config) meaning: &'static str,
    pub(in crate::config) schema: &'static str,
}

/// The keys of one kind of section, for example of a limiter.
pub(in crate::config) struct Keys {
    /// The name under `$defs` of the schema and beside the table in the documentation.
    pub(in crate::config) name: &'static str,
    /// The meaning of the section, for the schema.
    pub(in crate::config) meaning: &'static str,
    /// The members of its JSON Schema besides the description and the properties.
    pub(in crate::config) rules: &'static str,
    pub(in crate::config) specs: &'static [KeySpec],
    pub(in crate::config) others: &'static [Other],
}

/// Wrong keys that users of other gateways write, and the hint for them.
pub(in crate::config) struct Other {
    pub(super) names: &'static [&'static str],
    /// The keys that the user probably meant. They are not reported as missing.
    pub(super) meant: &'static [&'static str],
    /// The hint, if "did you mean" and the names are not enough. A value that is one short word replaces the example in `<5>`.
    pub(super) says: Option<&'static str>,
}

/// The name of an [`Other`] that stands for each key that resembles no other. `NAME` in its hint is the key.
pub(super) const ANY: &str = "*";

/// A key whose values are of this kind, in Markdown.
pub(super) const fn key(name: &'static str, kind: &'static str) -> KeySpec {
    KeySpec { name, kind, default: "none", meaning: "", schema: "" }
}

// === impl KeySpec ===

impl KeySpec {
    /// Says which value a missing key has, in Markdown; "required" if it has none. Without this it is "none". A value that is
    /// code alone is the default of the schema, too.
    pub(super) const fn default(self, default: &'static str) -> Self {
        Self { default, ..self }
    }

    /// Says the meaning, in Markdown: a part of a table, and the description in the schema.
    pub(super) const fn means(self, meaning: &'static str) -> Self {
        Self { meaning, ..self }
    }

    /// Sets the members of its JSON Schema besides the description.
    pub(super) const fn schema(self, schema: &'static str) -> Self {
        Self { schema, ..self }
    }

    /// Whether its kind allows only numbers, rates, times, addresses or fixed words. A variable in such a value may be shown.
    pub(super) fn is_measure(&self) -> bool {
        const MEASURES: [&str; 8] =
            ["address", "duration", "name of a [vendor]", "number", "rate", "size", "switch", "`"];
        const TEXTS: [&str; 4] = ["URL", "file", "list", "part of"];
        MEASURES.iter().any(|kind| self.kind.starts_with(kind))
            && !TEXTS.iter().any(|text| self.kind.contains(text))
    }
}

// === impl Keys ===

impl Keys {
    /// Whether `name` is a key of this section.
    pub(in crate::config) fn has(&self, name: &str) -> bool {
        self.specs.iter().any(|key| key.name == name)
    }

    /// Returns the hint for an unknown key with the value `written`, and the keys that the user probably meant. If no key is
    /// near, the hint lists those for which `listed` is true.
    pub(in crate::config) fn hint(
        &self,
        name: &str,
        written: Option<&str>,
        listed: impl Fn(&str) -> bool,
    ) -> (String, Vec<&'static str>) {
        let other = |name: &str| self.others.iter().find(|other| other.names.contains(&name));
        if let Some(other) = other(name) {
            let names: Vec<_> = other.meant.iter().map(|meant| format!("`{meant}`")).collect();
            let ask = || format!("did you mean {}?", names.join(" or "));
            let says = other.says.map_or_else(ask, |says| fill_example(says, written));
            return (says, other.meant.to_vec());
        }
        let names = || self.specs.iter().map(|key| key.name);
        if let Some(best) = nearest(name, names()) {
            return (format!("did you mean `{best}`?"), vec![best]);
        }
        if let Some(says) = other(ANY).and_then(|other| other.says) {
            return (says.replace("NAME", name), Vec::new());
        }
        let known: Vec<_> = names().filter(|key| listed(key)).collect();
        (format!("known here: {}", known.join(", ")), Vec::new())
    }

    /// The key of the map above the unknown key `name`, which should have been indented: the last known key of `before`, if it
    /// has no value and takes a map, and `name` resembles no key of this section.
    pub(in crate::config) fn above<'k>(
        &self,
        name: &str,
        mut before: impl DoubleEndedIterator<Item = (&'k str, bool)>,
    ) -> Option<&'static str> {
        let find = |name: &str| self.specs.iter().find(|key| key.name == name);
        let (key, is_null) = before.rfind(|(name, _)| find(name).is_some())?;
        let is_misspelt = nearest(name, self.specs.iter().map(|key| key.name)).is_some();
        let spec = find(key).filter(|_| is_null && !is_misspelt)?;
        (spec.kind.contains('[') || spec.kind.contains("map")).then_some(spec.name)
    }

    /// A map with the keys that the section must have, or with its first key: `{ cert: ..., key: ... }`. A `number` is the
    /// value of an only key.
    pub(in crate::config) fn example(&self, number: Option<&str>) -> String {
        let required = self.specs.iter().filter(|key| key.default.starts_with("required"));
        let mut names: Vec<_> = required.map(|key| key.name).collect();
        names.extend(self.specs.first().map(|key| key.name).filter(|_| names.is_empty()));
        let value = number.filter(|_| names.len() == 1).unwrap_or("...");
        let keys: Vec<_> = names.iter().map(|name| format!("{name}: {value}")).collect();
        format!("{{ {} }}", keys.join(", "))
    }
}

fn fill_example(says: &str, written: Option<&str>) -> String {
    let is_word = |text: &&str| text.len() <= 16 && text.bytes().all(|b| b.is_ascii_alphanumeric());
    let parts = says.split_once('<').and_then(|(a, rest)| Some((a, rest.split_once('>')?)));
    match parts {
        Some((before, (example, after))) => {
            let value = written.filter(|text| !text.is_empty()).filter(is_word);
            format!("{before}{}{after}", value.unwrap_or(example))
        }
        None => says.to_owned(),
    }
}

type Names = &'static [&'static str];

/// Wrong keys for which a message asks "did you mean" the keys `meant`.
pub(super) const fn meant(names: Names, meant: Names) -> Other {
    Other { names, meant, says: None }
}

/// Wrong keys for which a message says where the setting belongs.
pub(super) const fn elsewhere(names: Names, says: &'static str) -> Other {
    Other { names, meant: &[], says: Some(says) }
}

/// Wrong keys that replace the keys `meant`, with a message of their own.
pub(super) const fn replaced(names: Names, meant: Names, says: &'static str) -> Other {
    Other { names, meant, says: Some(says) }
}

pub(super) const CLIENTS: &str = "what clients may take is written `client: { header_timeout, idle_timeout, \
                       body_timeout, max_connections }`";
pub(super) const ALWAYS_CHECKED: &str =
    "certificates are always checked; name the authority of this one in `ca`";
pub(super) const SET: &str =
    "it is written `headers: { request: { set: { NAME: VALUE } } }`, or `response`";
pub(super) const REMOVE: &str =
    "it is written `headers: { response: { remove: [NAME] } }`, or `request`";
pub(super) const REDIRECT: &str =
    "it is written `headers: { response: { replace: { location: auto } } }`";
pub(super) const RETRIES: &str =
    "it is written at the upstream, as `throttle: { retry: { attempts: <3> } }`";
pub(super) const COST: &str =
    "it belongs to the route, as in `limiters: [{ limiter: a, cost: 5 }]`";
