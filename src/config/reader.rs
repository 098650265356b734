//! Reads sections and values of the configuration tree and collects their mistakes. Knows no key.

use super::{
    foreign,
    keys::Keys,
    mistake::{Mistake, Position},
    rows_from::MissingLimiter,
    value::Value,
    yaml::{Scalar, YamlEntry, YamlNode, YamlValue},
};
use std::{fmt, path::PathBuf};

/// Reads values and collects mistakes. A value that it returns after a mistake only serves to find further mistakes.
#[derive(Default)]
pub(super) struct ConfigReader {
    pub(super) mistakes: Vec<Mistake>,
    /// The directory at which relative paths start.
    pub(super) directory: PathBuf,
    /// Whether the files that the configuration names are left unread.
    pub(super) is_offline: bool,
    /// Keys of headers that look like credentials and are written in the file in clear text.
    pub(super) clear_secrets: Vec<String>,
    /// A sentence for each file of authorities that cannot do what it is for.
    pub(super) flaws: Vec<String>,
    /// Names of routes that have a limiter with a rate, and neither `max_wait` nor `max_wait_cap`.
    pub(super) unheld: Vec<String>,
    /// Whether there may be limiters that the file does not have: `limits_from` adds some, or a mistake hides them.
    pub(super) has_others: bool,
    /// The limiters that are named and that the file does not have, if there may be such.
    pub(super) missing: Vec<MissingLimiter>,
}

/// A map of the configuration, with the path to it.
pub(super) struct ConfigSection<'n> {
    pub(super) path: String,
    pub(super) place: Position,
    /// The keys that it may have; those of a map whose keys the user names are not listed.
    pub(super) keys: &'static Keys,
    pub(super) entries: &'n [YamlEntry],
    /// Known keys for which the user wrote an unknown one, with its value. The mistake is noted already.
    pub(super) meant: Vec<(&'static str, &'n YamlNode)>,
}

/// The value of a key that the user misspelt, if that value is a single one. No mistake in it is noted.
static BROKEN: YamlNode =
    YamlNode { place: Position { line: 1, column: 1 }, value: YamlValue::Broken };

/// A value of the configuration, with the path to it.
pub(super) struct Field<'n> {
    pub(super) path: String,
    pub(super) node: &'n YamlNode,
}

// === impl ConfigSection ===

impl<'n> ConfigSection<'n> {
    /// A section in which nothing is written.
    pub(super) fn empty(keys: &'static Keys) -> Self {
        let place = Position { line: 1, column: 1 };
        Self { path: String::new(), place, keys, entries: &[], meant: Vec::new() }
    }

    /// The section at a key as if nothing was written there.
    pub(super) fn empty_at(&self, key: &str) -> Self {
        Self::empty(self.keys.section_of(key))
    }

    pub(super) fn get(&self, key: &str) -> Option<Field<'n>> {
        debug_assert!(self.keys.has(key), "{key} is no key of {}", self.keys.name);
        let own = self.entries.iter().find(|own| own.key.name == key).map(|own| &own.node);
        let node = own.filter(|node| !node.is_null()).or_else(|| {
            let (_, node) = self.meant.iter().find(|(name, _)| *name == key)?;
            // A map or list under a misspelt key is read, because other values refer to its entries.
            let is_read = matches!(node.value, YamlValue::Map(_) | YamlValue::List(_));
            Some(if is_read { *node } else { &BROKEN })
        })?;
        Some(Field { path: join(&self.path, key), node })
    }
}

pub(super) fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

// === impl Field ===

impl<'n> Field<'n> {
    pub(super) fn scalar(&self) -> Option<&'n Scalar> {
        match &self.node.value {
            YamlValue::Scalar(scalar) => Some(scalar),
            YamlValue::Broken | YamlValue::List(_) | YamlValue::Map(_) => None,
        }
    }

    pub(super) fn item(&self, i: usize, node: &'n YamlNode) -> Self {
        Self { path: format!("{}[{i}]", self.path), node }
    }
}

// === impl ConfigReader ===

impl ConfigReader {
    pub(super) fn note(&mut self, place: Position, path: &str, reason: impl fmt::Display) {
        self.mistakes.push(Mistake::new(place, path, reason.to_string()));
    }

    pub(super) fn note_at(&mut self, field: &Field<'_>, reason: impl fmt::Display) {
        if matches!(field.node.value, YamlValue::Broken)
            || field.scalar().is_some_and(Scalar::is_unread)
        {
            return;
        }
        self.note(field.node.place, &field.path, reason);
    }

    pub(super) fn section<'n>(
        &mut self,
        field: &Field<'n>,
        keys: &'static Keys,
    ) -> Option<ConfigSection<'n>> {
        self.section_with(field, keys, |_| true)
    }

    /// Reads the section at a key; `None` if it is missing, or after a mistake.
    pub(super) fn section_at<'n>(
        &mut self,
        parent: &ConfigSection<'n>,
        key: &str,
    ) -> Option<ConfigSection<'n>> {
        self.section(&parent.get(key)?, parent.keys.section_of(key))
    }

    /// Reads the section at a key. A missing one, and one after a mistake, is empty, so that each of its keys has its default.
    pub(super) fn section_or_empty<'n>(
        &mut self,
        parent: &ConfigSection<'n>,
        key: &str,
    ) -> ConfigSection<'n> {
        self.section_at(parent, key).unwrap_or_else(|| parent.empty_at(key))
    }

    /// Reads the section at a key that has a short form, too; `None` if it is missing or written in that form.
    pub(super) fn long_form<'n>(
        &mut self,
        parent: &ConfigSection<'n>,
        key: &str,
    ) -> Option<ConfigSection<'n>> {
        let is_map = |field: &Field<'_>| matches!(field.node.value, YamlValue::Map(_));
        parent.get(key).filter(is_map)?;
        self.section_at(parent, key)
    }

    /// Reads a section. The hint for an unknown key that resembles no other lists the known keys for which `listed` is true.
    pub(super) fn section_with<'n>(
        &mut self,
        field: &Field<'n>,
        keys: &'static Keys,
        listed: impl Fn(&str) -> bool,
    ) -> Option<ConfigSection<'n>> {
        if !matches!(field.node.value, YamlValue::Map(_)) {
            let number = field.scalar().map(|scalar| &*scalar.written);
            let number = number.filter(|text| text.starts_with(|c: char| c.is_ascii_digit()));
            let name = field.path.rsplit('.').next();
            let name = name.filter(|name| !name.is_empty() && !name.ends_with(']'));
            let name = name.map_or(String::new(), |name| format!("{name}: "));
            let example = keys.example(number);
            let reason = format!("must be a map of `key: value` lines, as in `{name}{example}`");
            self.note_at(field, reason);
            return None;
        }
        let mut section = ConfigSection { keys, ..self.map(field)? };
        for (i, YamlEntry { key, node }) in section.entries.iter().enumerate() {
            if keys.has(&key.name) {
                continue;
            }
            let written = match &node.value {
                YamlValue::Scalar(scalar) if !scalar.is_from_outside() => Some(&*scalar.text),
                _ => None,
            };
            let before = section.entries[..i].iter();
            let before = before.map(|own| (&*own.key.name, own.node.is_null()));
            let hint = if let Some(above) = keys.above(&key.name, before) {
                section.meant.push((above, &BROKEN));
                format!("indent it below `{above}:`")
            } else {
                let (hint, meant) = keys.hint(&key.name, written, &listed);
                section.meant.extend(meant.into_iter().map(|name| (name, node)));
                hint
            };
            let path = join(&section.path, &key.name);
            self.note(key.place, &path, format!("unknown key `{}`; {hint}", key.name));
        }
        Some(section)
    }

    /// Returns a key that must be there. If it is missing, the mistake ends with `how`, such as ", as in `max: 4`".
    pub(super) fn required<'n>(
        &mut self,
        section: &ConfigSection<'n>,
        key: &str,
        how: &str,
    ) -> Option<Field<'n>> {
        let field = section.get(key);
        if field.is_none() {
            let path = join(&section.path, key);
            self.note(section.place, &path, format!("is missing{how}"));
        }
        field
    }

    pub(super) fn map<'n>(&mut self, field: &Field<'n>) -> Option<ConfigSection<'n>> {
        let YamlValue::Map(entries) = &field.node.value else {
            self.note_at(field, "must be a map of `key: value` lines");
            return None;
        };
        let (path, place) = (field.path.clone(), field.node.place);
        Some(ConfigSection { path, place, keys: &Keys::NAMED_BY_USERS, entries, meant: Vec::new() })
    }

    pub(super) fn list<'n>(&mut self, field: &Field<'n>) -> Option<&'n [YamlNode]> {
        let YamlValue::List(items) = &field.node.value else {
            let reason = match field.scalar() {
                Some(scalar) => format!("must be a list: `[{}]`", scalar.shown(&field.path)),
                None => "must be a list: [one, two]".into(),
            };
            self.note_at(field, reason);
            return None;
        };
        Some(items)
    }

    /// Reads a single value. An error of `read` completes a sentence that begins with the value: "`TEXT` is negative".
    pub(super) fn scalar<T, E: fmt::Display>(
        &mut self,
        field: &Field<'_>,
        read: impl FnMut(&str) -> Result<T, E>,
    ) -> Option<T> {
        let Some(scalar) = field.scalar() else {
            self.note_at(field, not_single(field));
            return None;
        };
        match scalar.read(read) {
            Ok(value) => Some(value),
            Err(reason) => {
                let reason = foreign::add_hint(&scalar.written, reason.to_string());
                let reason = scalar.said(&field.path, &reason);
                self.note_at(field, format!("{} {reason}", scalar.quoted(&field.path)));
                None
            }
        }
    }

    /// Reads the value of a key; `None` if it is missing, or after a mistake.
    pub(super) fn read<T: Value>(&mut self, section: &ConfigSection<'_>, key: &str) -> Option<T> {
        let kind = section.keys.kind_of(key);
        self.read_by(section, key, |text| T::read(text, kind))
    }

    /// Reads the value of a key. A missing one, and one after a mistake, is the default of the key.
    pub(super) fn read_or_default<T: Value>(
        &mut self,
        section: &ConfigSection<'_>,
        key: &str,
    ) -> T {
        let kind = section.keys.kind_of(key);
        self.read_by_or_default(section, key, |text| T::read(text, kind))
    }

    /// As [`Self::read`], for a value that its kind does not describe.
    pub(super) fn read_by<T, E: fmt::Display>(
        &mut self,
        section: &ConfigSection<'_>,
        key: &str,
        read: impl FnMut(&str) -> Result<T, E>,
    ) -> Option<T> {
        let field = section.get(key)?;
        self.scalar(&field, read)
    }

    /// As [`Self::read_or_default`], for a value that its kind does not describe.
    pub(super) fn read_by_or_default<T, E: fmt::Display + fmt::Debug>(
        &mut self,
        section: &ConfigSection<'_>,
        key: &str,
        mut read: impl FnMut(&str) -> Result<T, E>,
    ) -> T {
        self.read_by(section, key, &mut read).unwrap_or_else(|| {
            read(section.keys.default_of(key)).expect("the default of a key is one of its values")
        })
    }

    /// Reads a value that a section must have; `None` after a mistake. If it is missing, the mistake ends with `how`.
    pub(super) fn read_required<T: Value>(
        &mut self,
        section: &ConfigSection<'_>,
        key: &str,
        how: &str,
    ) -> Option<T> {
        self.required(section, key, how)?;
        self.read(section, key)
    }

    /// As [`Self::read_required`], for a value that its kind does not describe.
    pub(super) fn require_by<T, E: fmt::Display>(
        &mut self,
        section: &ConfigSection<'_>,
        key: &str,
        how: &str,
        read: impl FnMut(&str) -> Result<T, E>,
    ) -> Option<T> {
        let field = self.required(section, key, how)?;
        self.scalar(&field, read)
    }

    /// Reads the list at a key, as long as its kind allows and with no value twice. It is empty if it is missing.
    pub(super) fn read_list<T: PartialEq>(
        &mut self,
        section: &ConfigSection<'_>,
        key: &str,
        read: impl FnMut(&mut Self, &Field<'_>) -> Option<T>,
    ) -> Vec<T> {
        let Some(field) = section.get(key) else { return Vec::new() };
        let items = self.list(&field).unwrap_or_default();
        if let Some([_, most]) = section.keys.bounds_without(key, items.len()) {
            self.note_at(&field, format!("must hold at most {most}"));
            return Vec::new();
        }
        self.distinct(&field, items, read)
    }

    /// Reads the items of a list, none of which may be there twice.
    pub(super) fn distinct<T: PartialEq>(
        &mut self,
        field: &Field<'_>,
        items: &[YamlNode],
        mut read: impl FnMut(&mut Self, &Field<'_>) -> Option<T>,
    ) -> Vec<T> {
        let mut values = Vec::new();
        for (i, node) in items.iter().enumerate() {
            let item = Field { path: format!("{}[{i}]", field.path), node };
            let Some(value) = read(self, &item) else { continue };
            if values.contains(&value) {
                self.note_at(&item, "named twice");
            } else {
                values.push(value);
            }
        }
        values
    }
}

/// Returns the reason for a map or list where a single value is wanted. A template without quotes is a map with one key.
fn not_single(field: &Field<'_>) -> String {
    let keys = [".key", ".cost", ".by", ".priority"];
    let template = keys.iter().any(|key| field.path.ends_with(key));
    match &field.node.value {
        YamlValue::Map(entries) if template => match &**entries {
            [YamlEntry { key, node }] if node.is_null() => {
                format!("needs quotes: `\"{{{}}}\"`", key.name)
            }
            _ => "must be a single value; a template needs quotes".into(),
        },
        _ => "must be a single value".into(),
    }
}
