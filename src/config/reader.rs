//! Reads sections and values of the file as written, and collects what is wrong with them. Knows no key.

use super::{
    Mistake, Place, unit,
    yaml::{self, Node, Scalar, Value},
};
use crate::suggest::{nearest, suggest};
use std::{fmt, path::PathBuf, time::Duration};

pub(super) const NOT_YET: &str = "not supported yet";

/// The keys of one kind of section: those that work, and those of the contract that do not yet.
pub(super) struct Keys {
    pub(super) now: &'static [&'static str],
    pub(super) later: &'static [&'static str],
    pub(super) others: &'static [Other],
}

/// A key that is none, and what who writes it has in mind.
pub(super) struct Other {
    pub(super) name: &'static str,
    /// Keys that are not missing when this one is there.
    pub(super) meant: &'static [&'static str],
    /// In place of "did you mean".
    pub(super) says: Option<&'static str>,
}

/// Collects mistakes; what it returns in spite of one is only there to find the next.
pub(super) struct Reader {
    pub(super) mistakes: Vec<Mistake>,
    /// Where relative paths start.
    pub(super) directory: PathBuf,
    /// Keys of headers that look secret and stand in the file in clear text.
    pub(super) clear_secrets: Vec<String>,
    /// Names of routes that limiters of rates bind, and that say nothing of how long their requests may wait.
    pub(super) unheld: Vec<String>,
}

/// A map with its name.
pub(super) struct Section<'n> {
    pub(super) path: String,
    pub(super) place: Place,
    pub(super) entries: &'n [(yaml::Key, Node)],
    /// Known keys that an unknown one was meant to be, which has been said.
    pub(super) meant: Vec<(&'static str, &'n Node)>,
}

/// What stands for a value whose key was said to be wrong.
static BROKEN: Node = Node { place: Place { line: 1, column: 1 }, value: Value::Broken };

/// A value with its name.
pub(super) struct Field<'n> {
    pub(super) path: String,
    pub(super) node: &'n Node,
}

// === impl Keys ===

impl Keys {
    /// What to say of an unknown key, and the keys that it was meant to be.
    fn hint(&self, name: &str, listed: impl Fn(&str) -> bool) -> (String, Vec<&'static str>) {
        if let Some(other) = self.others.iter().find(|other| other.name == name) {
            let names: Vec<_> = other.meant.iter().map(|meant| format!("`{meant}`")).collect();
            let ask = || format!("did you mean {}?", names.join(" or "));
            return (other.says.map_or_else(ask, str::to_owned), other.meant.to_vec());
        }
        match nearest(name, self.now.iter().chain(self.later).copied()) {
            Some(best) => (format!("did you mean `{best}`?"), vec![best]),
            None => {
                let known: Vec<_> = self.now.iter().copied().filter(|key| listed(key)).collect();
                (format!("known here: {}", known.join(", ")), Vec::new())
            }
        }
    }
}

// === impl Section ===

impl<'n> Section<'n> {
    pub(super) fn get(&self, key: &str) -> Option<Field<'n>> {
        let Some((_, node)) = self.entries.iter().find(|(k, _)| k.name == key) else {
            let (_, node) = self.meant.iter().find(|(name, _)| *name == key)?;
            // What is in a map or list is read, because others refer to it.
            let node =
                if let Value::Map(_) | Value::List(_) = node.value { *node } else { &BROKEN };
            return Some(Field { path: join(&self.path, key), node });
        };
        (!node.is_null()).then(|| Field { path: join(&self.path, key), node })
    }
}

pub(super) fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

// === impl Field ===

impl<'n> Field<'n> {
    pub(super) fn scalar(&self) -> Option<&'n Scalar> {
        match &self.node.value {
            Value::Scalar(scalar) => Some(scalar),
            Value::Broken | Value::List(_) | Value::Map(_) => None,
        }
    }

    pub(super) fn item(&self, i: usize, node: &'n Node) -> Self {
        Self { path: format!("{}[{i}]", self.path), node }
    }
}

// === impl Reader ===

impl Reader {
    pub(super) fn note(&mut self, place: Place, path: &str, reason: impl fmt::Display) {
        self.mistakes.push(Mistake::new(place, path, reason.to_string()));
    }

    pub(super) fn note_at(&mut self, field: &Field<'_>, reason: impl fmt::Display) {
        if matches!(field.node.value, Value::Broken) {
            return;
        }
        self.note(field.node.place, &field.path, reason);
    }

    pub(super) fn section<'n>(&mut self, field: &Field<'n>, keys: &Keys) -> Option<Section<'n>> {
        self.section_with(field, keys, |_| true)
    }

    /// `listed` says which keys are named where nothing better can be said of an unknown one.
    pub(super) fn section_with<'n>(
        &mut self,
        field: &Field<'n>,
        keys: &Keys,
        listed: impl Fn(&str) -> bool,
    ) -> Option<Section<'n>> {
        let mut section = self.map(field)?;
        for (key, node) in section.entries {
            let path = join(&section.path, &key.name);
            if keys.later.contains(&key.name.as_str()) {
                self.note(key.place, &path, NOT_YET);
            } else if !keys.now.contains(&key.name.as_str()) {
                let (hint, meant) = keys.hint(&key.name, &listed);
                section.meant.extend(meant.into_iter().map(|name| (name, node)));
                self.note(key.place, &path, format!("unknown key `{}`; {hint}", key.name));
            }
        }
        Some(section)
    }

    pub(super) fn map<'n>(&mut self, field: &Field<'n>) -> Option<Section<'n>> {
        let Value::Map(entries) = &field.node.value else {
            self.note_at(field, "must be a map of `key: value` lines");
            return None;
        };
        let (path, place) = (field.path.clone(), field.node.place);
        Some(Section { path, place, entries, meant: Vec::new() })
    }

    pub(super) fn list<'n>(&mut self, field: &Field<'n>) -> Option<&'n [Node]> {
        let Value::List(items) = &field.node.value else {
            let reason = match field.scalar() {
                Some(scalar) => format!("must be a list: `[{}]`", scalar.shown(&field.path)),
                None => "must be a list: [one, two]".into(),
            };
            self.note_at(field, reason);
            return None;
        };
        Some(items)
    }

    /// `read` says what is wrong with a text, for behind "`TEXT` ".
    pub(super) fn scalar<T, E: fmt::Display>(
        &mut self,
        field: &Field<'_>,
        read: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<T> {
        let Some(scalar) = field.scalar() else {
            self.note_at(field, not_single(field));
            return None;
        };
        match read(&scalar.text) {
            Ok(value) => Some(value),
            Err(reason) => {
                let reason = scalar.said(&field.path, &reason.to_string());
                self.note_at(field, format!("{} {reason}", scalar.quoted(&field.path)));
                None
            }
        }
    }

    pub(super) fn get<T, E: fmt::Display>(
        &mut self,
        section: &Section<'_>,
        key: &str,
        default: T,
        read: impl FnOnce(&str) -> Result<T, E>,
    ) -> T {
        let field = section.get(key);
        field.and_then(|field| self.scalar(&field, read)).unwrap_or(default)
    }

    pub(super) fn one_of<T: Copy>(
        &mut self,
        section: &Section<'_>,
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

    /// Off unless it says otherwise.
    pub(super) fn switch(&mut self, section: &Section<'_>, key: &str) -> bool {
        self.one_of(section, key, &[("on", true), ("off", false)]).unwrap_or(false)
    }

    pub(super) fn name(&mut self, path: &str, key: &yaml::Key) {
        let good = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        if !(1..=64).contains(&key.name.len()) || !key.name.chars().all(good) {
            self.note(
                key.place,
                path,
                "a name holds letters, digits, `_`, `-` and `.`, at most 64",
            );
        }
    }
}

/// A template without quotes is a map with one key.
fn not_single(field: &Field<'_>) -> String {
    let template = field.path.ends_with(".key") || field.path.ends_with(".cost");
    match &field.node.value {
        Value::Map(entries) if template => match &**entries {
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

/// Zero included.
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
