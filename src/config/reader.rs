//! Reads sections and values of the configuration tree and collects their mistakes. Knows no key.

use super::{
    foreign,
    keys::Keys,
    limiter::LimiterConfig,
    limits_from::MissingLimiter,
    mistake::{Mistake, Position},
    unit,
    yaml::{self, Scalar, YamlNode, YamlValue},
};
use crate::suggest::suggest;
use std::{fmt, path::PathBuf, time::Duration};

/// The greatest value of any time-out.
pub(super) const MAX_TIMEOUT: Duration = Duration::from_secs(86_400);

/// Reads values and collects mistakes. A value that it returns after a mistake only serves to find further mistakes.
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
    pub(super) entries: &'n [(yaml::Key, YamlNode)],
    /// Known keys for which the user wrote an unknown one, with its value. The mistake is noted already.
    pub(super) meant: Vec<(&'static str, &'n YamlNode)>,
}

/// The value of a key that the user misspelt, if that value is a single one. No mistake in it is noted.
static BROKEN: YamlNode =
    YamlNode { place: Position { line: 1, column: 1 }, value: YamlValue::Broken };

/// A limiter that a route or an upstream names.
pub(super) enum LimiterName {
    /// Its index.
    Known(usize),
    /// Its name. Only a row of `limits_from` can add it.
    Missing(String),
}

/// A value of the configuration, with the path to it.
pub(super) struct Field<'n> {
    pub(super) path: String,
    pub(super) node: &'n YamlNode,
}

// === impl ConfigSection ===

impl<'n> ConfigSection<'n> {
    pub(super) fn get(&self, key: &str) -> Option<Field<'n>> {
        let own = self.entries.iter().find(|(k, _)| k.name == key).map(|(_, node)| node);
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
        keys: &Keys,
    ) -> Option<ConfigSection<'n>> {
        self.section_with(field, keys, |_| true)
    }

    /// Reads a section. The hint for an unknown key that resembles no other lists the known keys for which `listed` is true.
    pub(super) fn section_with<'n>(
        &mut self,
        field: &Field<'n>,
        keys: &Keys,
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
        let mut section = self.map(field)?;
        for (i, (key, node)) in section.entries.iter().enumerate() {
            if keys.has(&key.name) {
                continue;
            }
            let written = match &node.value {
                YamlValue::Scalar(scalar) if !scalar.is_from_outside() => Some(&*scalar.text),
                _ => None,
            };
            let before = section.entries[..i].iter();
            let before = before.map(|(key, node)| (&*key.name, node.is_null()));
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
        Some(ConfigSection { path, place, entries, meant: Vec::new() })
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

    pub(super) fn get<T, E: fmt::Display>(
        &mut self,
        section: &ConfigSection<'_>,
        key: &str,
        default: T,
        read: impl FnMut(&str) -> Result<T, E>,
    ) -> T {
        let field = section.get(key);
        field.and_then(|field| self.scalar(&field, read)).unwrap_or(default)
    }

    pub(super) fn one_of<T: Copy>(
        &mut self,
        section: &ConfigSection<'_>,
        key: &str,
        choices: &[(&str, T)],
    ) -> Option<T> {
        let field = section.get(key)?;
        self.scalar(&field, |text| {
            // Tools that read YAML 1.1 take `on` and `off` for truth values and write those.
            let text = match text {
                "true" => "on",
                "false" => "off",
                text => text,
            };
            let found = choices.iter().find(|(name, _)| *name == text);
            found.map(|(_, choice)| *choice).ok_or_else(|| {
                let names: Vec<_> = choices.iter().map(|(name, _)| *name).collect();
                let hint = suggest(text, names.iter().copied());
                let hint = hint.map_or(String::new(), |hint| format!("; {hint}"));
                format!("is not one of {}{hint}", names.join(", "))
            })
        })
    }

    /// Reads a key that is `on` or `off`, and `off` if it is missing.
    pub(super) fn switch(&mut self, section: &ConfigSection<'_>, key: &str) -> bool {
        self.one_of(section, key, &[("on", true), ("off", false)]).unwrap_or(false)
    }

    pub(super) fn name(&mut self, path: &str, key: &yaml::Key) {
        if !is_name(&key.name) {
            self.note(
                key.place,
                path,
                "a name holds letters, digits, `_`, `-` and `.`, at most 64",
            );
        }
    }

    /// Reads the name of a limiter that `before` does not refuse. A name that the file does not have is no mistake if
    /// `limits_from` may add it.
    pub(super) fn limiter_named(
        &mut self,
        field: &Field<'_>,
        limiters: &[LimiterConfig],
        before: impl Fn(&str) -> Result<(), String>,
    ) -> Option<LimiterName> {
        let has_others = self.has_others;
        let mut missing = None;
        let found = self.scalar(field, |name| {
            before(name)?;
            let found = find(name, "limiter", limiters, |limiter| &limiter.name);
            match found {
                Err(reason) if has_others && is_name(name) => {
                    missing = Some((name.to_owned(), reason));
                    Ok(None)
                }
                found => found.map(Some),
            }
        })?;
        if let Some(known) = found {
            return Some(LimiterName::Known(known));
        }
        let (name, reason) = missing?;
        let is_unread = field.scalar().is_some_and(Scalar::is_unread);
        if !is_unread && self.missing.iter().all(|known| known.name != name) {
            let reason = format!("`{name}` {reason}, and `limits_from` has no such row");
            let mistake = Mistake::new(field.node.place, &field.path, reason);
            self.missing.push(MissingLimiter { name: name.clone(), mistake });
        }
        Some(LimiterName::Missing(name))
    }
}

/// Whether a limiter or an upstream may have this name.
fn is_name(text: &str) -> bool {
    let good = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    (1..=64).contains(&text.len()) && text.chars().all(good)
}

/// Returns the reason for a map or list where a single value is wanted. A template without quotes is a map with one key.
fn not_single(field: &Field<'_>) -> String {
    let keys = [".key", ".cost", ".by", ".priority"];
    let template = keys.iter().any(|key| field.path.ends_with(key));
    match &field.node.value {
        YamlValue::Map(entries) if template => match &**entries {
            [(key, node)] if node.is_null() => format!("needs quotes: `\"{{{}}}\"`", key.name),
            _ => "must be a single value; a template needs quotes".into(),
        },
        _ => "must be a single value".into(),
    }
}

pub(super) fn find<T>(
    name: &str,
    what: &str,
    all: &[T],
    name_of: impl Fn(&T) -> &String,
) -> Result<usize, String> {
    all.iter().position(|one| name_of(one) == name).ok_or_else(|| {
        let names = || all.iter().map(|one| name_of(one).as_str());
        let hint = suggest(name, names()).unwrap_or_else(|| match all.len() {
            0 => format!("there is no {what}"),
            _ => format!("there are: {}", names().collect::<Vec<_>>().join(", ")),
        });
        format!("is no {what}; {hint}")
    })
}

pub(super) fn positive(text: &str, most: u64) -> Result<u64, String> {
    let negative = |reason: String| match text.starts_with('-') {
        true => format!("{reason}; it must be at least 1"),
        false => reason,
    };
    match unit::whole(text).map_err(negative)? {
        0 => Err("must be at least 1".into()),
        number if number > most => Err(format!("must be at most {most}")),
        number => Ok(number),
    }
}

/// Reads a whole number from 0 to `most`.
pub(super) fn at_most(text: &str, most: u64) -> Result<u64, String> {
    match unit::whole(text)? {
        number if number > most => Err(format!("must be at most {most}")),
        number => Ok(number),
    }
}

pub(super) fn bytes(text: &str, least: usize, most: usize) -> Result<usize, String> {
    match usize::try_from(unit::size(text)?) {
        Ok(size) if size < least => Err(format!("must be at least {}", unit::Bytes::from(least))),
        Ok(size) if size <= most => Ok(size),
        _ => Err(format!("must be at most {}", unit::Bytes::from(most))),
    }
}

pub(super) fn span(text: &str, least: Duration, most: Duration) -> Result<Duration, String> {
    let span = unit::duration(text)?;
    if span < least {
        return Err(format!("must be at least {}", unit::Span(least)));
    }
    if span > most {
        return Err(format!("must be at most {}", unit::Span(most)));
    }
    Ok(span)
}
