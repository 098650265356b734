//! Reads `headers`: the changes to headers of requests and responses. Never quotes a value, because it may be a secret.

use crate::{
    config::{
        keys::EDITS,
        reader::{ConfigReader, ConfigSection, Field, join},
        yaml::{Key, YamlEntry, YamlValue},
    },
    upstream::{
        Target,
        headers::{Edits, ReplacedPrefix, Replacement, Rules},
    },
};
use http::{HeaderName, HeaderValue};

const MAX_VALUE: usize = 8 << 10;
const TWICE: &str = "named twice; upper and lower case are one name";

/// Headers that frame a message or concern one connection only. The gateway sets them, so no rule may change them.
const FRAMING: &[&str] = &[
    "connection",
    "content-length",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Headers by which an answer of the gateway says what happened. Clients wait by them.
const SAID: &[&str] = &[
    "allow",
    "content-type",
    "ratelimit",
    "ratelimit-policy",
    "retry-after",
    "server-timing",
    "x-request-id",
];
const SAID_PREFIXES: &[&str] = &["paceway-", "grpc-"];

impl ConfigReader {
    /// Reads `headers` of an upstream with these URLs, or of a route to it.
    pub(super) fn header_rules(
        &mut self,
        section: &ConfigSection<'_>,
        targets: &[Target],
    ) -> Rules {
        let section = self.section_or_empty(section, "headers");
        Rules {
            request: self.edits(&section, "request", None),
            response: self.edits(&section, "response", Some(targets)),
            own: self.own_edits(&section),
        }
    }

    /// Reads `own`, which may not change what a refusal says by itself.
    fn own_edits(&mut self, section: &ConfigSection<'_>) -> Edits {
        let edits = self.edits(section, "own", None);
        let is_said = |name: &&HeaderName| {
            SAID.contains(&name.as_str())
                || SAID_PREFIXES.iter().any(|p| name.as_str().starts_with(p))
        };
        if let Some(field) = section.get("own") {
            for name in edits.names().filter(is_said) {
                let reason =
                    format!("`{name}` is a part of the gateway's answers that stays as it is");
                self.note_at(&field, reason);
            }
        }
        edits
    }

    fn edits(
        &mut self,
        section: &ConfigSection<'_>,
        key: &str,
        targets: Option<&[Target]>,
    ) -> Edits {
        let section = self.section_or_empty(section, key);
        let set = self.values(&section, "set");
        let add = self.values(&section, "add");
        let remove = self.removed(&section, |name| set.iter().any(|(set, _)| set == name));
        let replace = self.replaced(&section, targets);
        if let Some(field) = section.get("replace") {
            let is_moot = |name: &&HeaderName| {
                remove.contains(name) || set.iter().any(|(set, _)| set == *name)
            };
            for name in replace.iter().map(|(name, _)| name).filter(is_moot) {
                let reason =
                    format!("`{name}` is also removed or set, which leaves nothing to replace");
                self.note_at(&field, reason);
            }
        }
        Edits { remove, replace, set, add }
    }

    /// Reads `replace`: a map of names, each with `auto` or a map of beginnings. `targets` are those of the upstream, for
    /// responses only.
    fn replaced(
        &mut self,
        section: &ConfigSection<'_>,
        targets: Option<&[Target]>,
    ) -> Vec<(HeaderName, Replacement)> {
        let Some(field) = section.get("replace") else { return Vec::new() };
        if let YamlValue::List(_) = field.node.value {
            self.note_at(&field, "must be a map, as in `{ location: auto }`");
            return Vec::new();
        }
        let Some(section) = self.map(&field) else { return Vec::new() };
        let mut all: Vec<(HeaderName, Replacement)> = Vec::new();
        for YamlEntry { key: named, node } in section.entries {
            let path = join(&section.path, &named.name);
            let Some(name) = self.header_name(named, &path) else { continue };
            if all.iter().any(|(known, _)| *known == name) {
                self.note(named.place, &path, TWICE);
                continue;
            }
            let field = Field { path, node };
            let replacement = match (&node.value, targets) {
                (YamlValue::Map(entries), _) => self.prefixes(&name, &field, entries),
                (YamlValue::Scalar(scalar), targets) if scalar.text == "auto" => {
                    if targets.is_none() {
                        self.note_at(&field, "`auto` is for responses; write the texts to replace");
                    }
                    Replacement::of_targets(targets.unwrap_or_default())
                }
                _ => {
                    self.note_at(
                        &field,
                        "must be `auto`, or a map of beginnings and what replaces them, as in \
                         `{ \"https://api.vendor.example/\": \"https://gateway.example/\" }`",
                    );
                    continue;
                }
            };
            all.push((name, replacement));
        }
        let written = all.iter().filter(|(_, replacement)| !replacement.is_auto);
        let count: usize = written.map(|(_, replacement)| replacement.prefixes.len()).sum();
        if let Some([_, most]) = EDITS.bounds_without("replace", all.len().max(count)) {
            self.note_at(&field, format!("must hold at most {most}"));
        }
        all
    }

    fn prefixes(
        &mut self,
        name: &HeaderName,
        field: &Field<'_>,
        entries: &[YamlEntry],
    ) -> Replacement {
        if entries.is_empty() {
            self.note_at(field, "is empty; it needs a beginning and what replaces it");
        }
        let mut prefixes = Vec::new();
        for YamlEntry { key, node } in entries {
            let field = Field { path: join(&field.path, &key.name), node };
            if key.name.is_empty() || key.name.len() > MAX_VALUE {
                self.note(key.place, &field.path, "a beginning has 1 to 8192 characters");
            } else if let Some(to) = self.header_value(name, &field) {
                prefixes.push(ReplacedPrefix { from: key.name.clone(), to });
            }
        }
        Replacement::new(prefixes)
    }

    /// Reads `set` or `add`: a map of names and values.
    pub(super) fn values(
        &mut self,
        section: &ConfigSection<'_>,
        key: &str,
    ) -> Vec<(HeaderName, HeaderValue)> {
        let Some(field) = section.get(key) else { return Vec::new() };
        if let YamlValue::List(_) = field.node.value {
            self.note_at(&field, "must be a map, as in `{ x-shop: 7 }`");
            return Vec::new();
        }
        let keys = section.keys;
        let Some(section) = self.map(&field) else { return Vec::new() };
        let (mut names, mut values) = (Vec::new(), Vec::new());
        for YamlEntry { key: named, node } in section.entries {
            let path = join(&section.path, &named.name);
            let Some(name) = self.header_name(named, &path) else { continue };
            if names.contains(&name) {
                self.note(named.place, &path, TWICE);
                continue;
            }
            names.push(name.clone());
            let field = Field { path, node };
            let fields = match &node.value {
                YamlValue::List(items) if key == "add" => {
                    items.iter().enumerate().map(|(i, node)| field.item(i, node)).collect()
                }
                YamlValue::List(_) => {
                    self.note_at(&field, "must be a single value; a list of them needs `add`");
                    continue;
                }
                _ => vec![field],
            };
            let read = fields.iter().filter_map(|field| self.header_value(&name, field));
            values.extend(read.map(|value| (name.clone(), value)));
        }
        if let Some([_, most]) = keys.bounds_without(key, values.len()) {
            self.note_at(&field, format!("must hold at most {most}"));
        }
        values
    }

    fn header_name(&mut self, key: &Key, path: &str) -> Option<HeaderName> {
        match name(&key.name) {
            Ok(name) => Some(name),
            Err(reason) => {
                self.note(key.place, path, format!("`{}` {reason}", key.name));
                None
            }
        }
    }

    /// Reads the value of a header. A value that comes from outside, or whose name looks secret, is shown nowhere.
    fn header_value(&mut self, name: &HeaderName, field: &Field<'_>) -> Option<HeaderValue> {
        if field.node.is_null() {
            self.note_at(
                field,
                "has no value; write '' for an empty one, or list it under `remove`",
            );
            return None;
        }
        let Some(scalar) = field.scalar() else {
            self.note_at(field, "must be a single value");
            return None;
        };
        let text = scalar.text.trim_matches([' ', '\t']);
        if text.len() > MAX_VALUE {
            self.note_at(field, "is longer than 8KiB");
            return None;
        }
        let Ok(mut value) = HeaderValue::from_bytes(text.as_bytes()) else {
            self.note_at(
                field,
                "holds a line break or another control character, which no header may",
            );
            return None;
        };
        let is_from_outside = scalar.is_from_outside();
        let is_secret = looks_secret(name);
        if is_secret && !is_from_outside && !text.is_empty() {
            self.clear_secrets.push(field.path.clone());
        }
        value.set_sensitive(is_from_outside || is_secret);
        Some(value)
    }

    fn removed(
        &mut self,
        section: &ConfigSection<'_>,
        is_set: impl Fn(&HeaderName) -> bool,
    ) -> Vec<HeaderName> {
        self.read_list(section, "remove", |reader, item| {
            let name = reader.scalar(item, name)?;
            if is_set(&name) {
                let reason =
                    format!("`{name}` is removed and set; `set` alone replaces what was there");
                reader.note_at(item, reason);
            }
            Some(name)
        })
    }
}

/// Reads the name of a header that an operator may change, in small letters.
fn name(text: &str) -> Result<HeaderName, String> {
    if text.starts_with(':') {
        return Err("is a part of the request line, no header".into());
    }
    let name = HeaderName::from_bytes(text.as_bytes());
    let name = name.map_err(|_| "is no name of a header".to_owned())?;
    match name.as_str() {
        "host" => {
            Err("is not changed here; the upstream gets the host of its URL, or the client's with \
                       `preserve_host: true`"
                .into())
        }
        "paceway-origin" => Err("is set by the gateway alone".into()),
        name if FRAMING.contains(&name) => {
            Err("is for one connection or marks the end of a message, so only the gateway sets it"
                .into())
        }
        _ => Ok(name),
    }
}

/// Whether the name of a header suggests that its value is a credential.
fn looks_secret(name: &HeaderName) -> bool {
    let name = name.as_str().replace('_', "-");
    let parts = ["authorization", "api-key", "apikey", "token", "secret", "password", "cookie"];
    parts.iter().any(|part| name.contains(part))
}
