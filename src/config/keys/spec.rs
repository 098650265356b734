//! The declaration of a key and of a section, from which the parser, the JSON Schema and the tables of the documentation are
//! made. Names no key.

use super::{
    kind::{Choice, Kind},
    rule_kind::RuleKind,
};
use crate::suggest::nearest;
use std::{ops::RangeInclusive, time::Duration};

pub(super) const MILLISECOND: Duration = Duration::from_millis(1);
pub(super) const TENTH: Duration = Duration::from_millis(100);
pub(super) const SECOND: Duration = Duration::from_secs(1);
pub(super) const MINUTE: Duration = Duration::from_secs(60);
pub(super) const HOUR: Duration = Duration::from_secs(3600);
pub(super) const DAY: Duration = Duration::from_secs(86_400);

/// A key of the configuration.
#[derive(Clone, Copy)]
pub(in crate::config) struct KeySpec {
    pub(in crate::config) name: &'static str,
    pub(in crate::config) kind: Kind,
    /// Further kinds that its values may have.
    pub(in crate::config) others: &'static [Kind],
    /// The words for the further kinds, in Markdown.
    pub(in crate::config) more: &'static str,
    /// The words for all kinds, in Markdown, in which `{least}` and `{most}` are the bounds; empty if they follow from `kind`.
    pub(in crate::config) written: &'static str,
    pub(in crate::config) default: DefaultValue,
    /// The rest of the sentence about the default, in Markdown.
    pub(in crate::config) but: &'static str,
    /// The meaning, in Markdown: a part of a table, and the description in the schema.
    pub(in crate::config) meaning: &'static str,
    /// The rules whose limiters have the key.
    pub(in crate::config) rules: &'static [RuleKind],
    /// Whether limiters with `rate: auto` have it, too.
    pub(in crate::config) is_for_auto_rates: bool,
}

/// The meaning of a missing key.
#[derive(Clone, Copy)]
pub(in crate::config) enum DefaultValue {
    Required,
    /// The same as this value.
    Value(&'static str),
    /// The meaning that these words describe, in Markdown.
    Words(&'static str),
}

/// The keys of one kind of section, for example of a limiter.
pub(in crate::config) struct Keys {
    /// The name under `$defs` of the schema and beside the table in the documentation.
    pub(in crate::config) name: &'static str,
    /// The meaning of the section, for the schema.
    pub(in crate::config) meaning: &'static str,
    pub(in crate::config) specs: &'static [KeySpec],
    pub(in crate::config) others: &'static [Other],
}

/// Wrong keys that users of other gateways write, and the hint for them.
pub(in crate::config) struct Other {
    /// The wrong keys, with spaces between them.
    names: &'static str,
    /// The keys that the user probably meant, with spaces between them. They are not reported as missing.
    meant: &'static str,
    /// The hint, if "did you mean" and the names are not enough. A value that is one short word replaces the example in `<5>`.
    says: Option<&'static str>,
}

/// The name of an [`Other`] that stands for each key that resembles no other. `NAME` in its hint is the key.
pub(super) const ANY: &str = "*";

/// A key whose values are of this kind.
pub(super) const fn key(name: &'static str, kind: Kind) -> KeySpec {
    KeySpec {
        name,
        kind,
        others: &[],
        more: "",
        written: "",
        default: DefaultValue::Words("none"),
        but: "",
        meaning: "",
        rules: RuleKind::EVERY,
        is_for_auto_rates: false,
    }
}

pub(super) const fn number(name: &'static str, range: RangeInclusive<u64>) -> KeySpec {
    key(name, Kind::Number { least: *range.start(), most: *range.end() })
}

pub(super) const fn duration(name: &'static str, range: RangeInclusive<Duration>) -> KeySpec {
    key(name, Kind::Duration { least: *range.start(), most: *range.end() })
}

pub(super) const fn size(name: &'static str, range: RangeInclusive<u64>) -> KeySpec {
    key(name, Kind::Size { least: *range.start(), most: *range.end() })
}

/// A key whose value is one of the words of `T`.
pub(super) const fn choice<T: Choice>(name: &'static str) -> KeySpec {
    key(name, Kind::Word(|| T::CHOICES.iter().map(|(word, _)| *word).collect()))
}

/// A key whose value is one of these words.
pub(super) const fn words(name: &'static str, words: fn() -> Vec<&'static str>) -> KeySpec {
    key(name, Kind::Word(words))
}

/// A key whose value is a map with the keys of a section. `written` is a link to the table of them.
pub(super) const fn section(
    name: &'static str,
    keys: &'static Keys,
    written: &'static str,
) -> KeySpec {
    key(name, Kind::Section(keys)).written(written)
}

pub(super) const fn list(
    name: &'static str,
    range: RangeInclusive<u64>,
    of: &'static Kind,
) -> KeySpec {
    key(name, Kind::List { least: *range.start(), most: *range.end(), of })
}

pub(super) const fn map(
    name: &'static str,
    range: RangeInclusive<u64>,
    of: &'static Kind,
) -> KeySpec {
    key(name, Kind::Map { least: *range.start(), most: *range.end(), of })
}

// === impl KeySpec ===

impl KeySpec {
    /// Says which value a missing key has.
    pub(super) const fn default(self, value: &'static str) -> Self {
        Self { default: DefaultValue::Value(value), ..self }
    }

    /// Says that a section must have the key.
    pub(super) const fn required(self) -> Self {
        Self { default: DefaultValue::Required, ..self }
    }

    /// Says what a missing key means if no value means the same. Without this it is "none".
    pub(super) const fn otherwise(self, words: &'static str) -> Self {
        Self { default: DefaultValue::Words(words), ..self }
    }

    /// Ends the sentence about the default.
    pub(super) const fn but(self, but: &'static str) -> Self {
        Self { but, ..self }
    }

    /// Allows values of further kinds, with words for them that follow those for the first.
    pub(super) const fn or(self, others: &'static [Kind], more: &'static str) -> Self {
        Self { others, more, ..self }
    }

    /// Replaces the words that follow from the kind.
    pub(super) const fn written(self, written: &'static str) -> Self {
        Self { written, ..self }
    }

    /// Says the meaning.
    pub(super) const fn says(self, meaning: &'static str) -> Self {
        Self { meaning, ..self }
    }

    /// Gives the key to limiters with one of these rules only.
    pub(super) const fn of(self, rules: &'static [RuleKind]) -> Self {
        Self { rules, ..self }
    }

    /// Gives the key to limiters with `rate: auto`, in addition to those of [`Self::of`].
    pub(super) const fn of_auto_rates(self) -> Self {
        Self { is_for_auto_rates: true, ..self }
    }

    fn kinds(&self) -> impl Iterator<Item = &Kind> {
        [&self.kind].into_iter().chain(self.others)
    }

    /// Whether a message may show each single value of this key that a variable has brought in.
    pub(super) fn may_be_shown(&self) -> bool {
        // A value that is a section is no single value.
        let mut single = self.kinds().filter(|kind| !matches!(kind, Kind::Section(_))).peekable();
        single.peek().is_some() && single.all(Kind::may_be_shown)
    }
}

// === impl Keys ===

impl Keys {
    /// Those of a map whose keys the user names.
    pub(in crate::config) const NAMED_BY_USERS: Self =
        Self { name: "", meaning: "", specs: &[], others: &[] };

    fn find(&self, name: &str) -> Option<&KeySpec> {
        self.specs.iter().find(|key| key.name == name)
    }

    /// The kind of the values of a key.
    pub(in crate::config) fn kind_of(&self, name: &str) -> &Kind {
        self.find(name).map_or(&Kind::Text, |key| &key.kind)
    }

    /// The bounds of a list or a map, if this many items of it are outside of them.
    pub(in crate::config) fn bounds_without(&self, name: &str, items: usize) -> Option<[u64; 2]> {
        self.find(name)?.kinds().find_map(|kind| kind.bounds_without(items))
    }

    /// The value that a missing key means; empty if no value means the same.
    pub(in crate::config) fn default_of(&self, name: &str) -> &'static str {
        match self.find(name).map(|key| key.default) {
            Some(DefaultValue::Value(value)) => value,
            _ => "",
        }
    }

    /// The keys of the section that a key has as its value, or as the items of it.
    pub(in crate::config) fn section_of(&self, name: &str) -> &'static Self {
        let section = self.find(name).and_then(|key| key.kinds().find_map(Kind::section));
        section.unwrap_or(&Self::NAMED_BY_USERS)
    }

    /// Whether `name` is a key of this section.
    pub(in crate::config) fn has(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    /// Returns the hint for an unknown key with the value `written`, and the keys that the user probably meant. If no key is
    /// near, the hint lists those for which `listed` is true.
    pub(in crate::config) fn hint(
        &self,
        name: &str,
        written: Option<&str>,
        listed: impl Fn(&str) -> bool,
    ) -> (String, Vec<&'static str>) {
        let has = |other: &&Other, name: &str| other.names.split(' ').any(|own| own == name);
        let other = |name: &str| self.others.iter().find(|other| has(other, name));
        if let Some(other) = other(name) {
            let meant: Vec<_> = other.meant.split_terminator(' ').collect();
            let names: Vec<_> = meant.iter().map(|meant| format!("`{meant}`")).collect();
            let ask = || format!("did you mean {}?", names.join(" or "));
            let says = other.says.map_or_else(ask, |says| fill_example(says, written));
            return (says, meant);
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
        let (key, is_null) = before.rfind(|(name, _)| self.has(name))?;
        let is_misspelt = nearest(name, self.specs.iter().map(|key| key.name)).is_some();
        let spec = self.find(key).filter(|_| is_null && !is_misspelt)?;
        spec.kinds().any(Kind::takes_map).then_some(spec.name)
    }

    /// A map with the keys that the section must have, or with its first key: `{ cert: ..., key: ... }`. A `number` is the
    /// value of an only key.
    pub(in crate::config) fn example(&self, number: Option<&str>) -> String {
        let required =
            self.specs.iter().filter(|key| matches!(key.default, DefaultValue::Required));
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

/// Wrong keys for which a message asks "did you mean" the keys `meant`.
pub(super) const fn meant(names: &'static str, meant: &'static str) -> Other {
    Other { names, meant, says: None }
}

/// Wrong keys for which a message says where the setting belongs.
pub(super) const fn elsewhere(names: &'static str, says: &'static str) -> Other {
    Other { names, meant: "", says: Some(says) }
}

/// Wrong keys that replace the keys `meant`, with a message of their own.
pub(super) const fn replaced(
    names: &'static str,
    meant: &'static str,
    says: &'static str,
) -> Other {
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
