//! The tree of a YAML document, and which of its values a message may quote.

use crate::config::{keys::may_be_shown, mistake::Position};

/// A value of the document, with its line and column.
#[derive(Debug, Clone)]
pub(in crate::config) struct YamlNode {
    pub(in crate::config) place: Position,
    pub(in crate::config) value: YamlValue,
}

#[derive(Debug, Clone)]
pub(in crate::config) enum YamlValue {
    /// A value whose `${...}` could not be filled in. This mistake is noted already, so no further one is.
    Broken,
    Scalar(Scalar),
    List(Vec<YamlNode>),
    Map(Vec<YamlEntry>),
}

/// A single value, with `${...}` filled in.
#[derive(Debug, Clone)]
pub(in crate::config) struct Scalar {
    pub(in crate::config) text: String,
    /// The text as written. Messages may quote it, because it contains no secret that `${...}` brought in.
    pub(in crate::config) written: String,
    /// Whether the value has no quotes, so that `null`, `~` and nothing at all mean "no value".
    pub(super) plain: bool,
    /// Other texts that the value may have. Only a check that reads neither variables nor files has them.
    pub(super) stand_ins: Vec<String>,
}

/// A key of a map, and its value.
#[derive(Debug, Clone)]
pub(in crate::config) struct YamlEntry {
    pub(in crate::config) key: Key,
    pub(in crate::config) node: YamlNode,
}

#[derive(Debug, Clone)]
pub(in crate::config) struct Key {
    pub(in crate::config) place: Position,
    pub(in crate::config) name: String,
}

// === impl YamlNode ===

impl YamlNode {
    /// Whether no value is written: `key:`, `key: ~` or `key: null`.
    pub(in crate::config) fn is_null(&self) -> bool {
        let YamlValue::Scalar(scalar) = &self.value else { return false };
        scalar.plain && matches!(scalar.text.as_str(), "" | "~" | "null" | "Null" | "NULL")
    }

    /// Whether this is a map that has a value for `key`, or a variable that is not read and may be anything.
    pub(in crate::config) fn says(&self, key: &str) -> bool {
        match &self.value {
            YamlValue::Map(all) => all.iter().any(|own| own.key.name == key && !own.node.is_null()),
            YamlValue::Scalar(scalar) => scalar.is_unread() && !scalar.written.contains("://"),
            YamlValue::List(_) | YamlValue::Broken => false,
        }
    }

    /// The value of `key`, if this is a map that has it.
    pub(in crate::config) fn value_mut(&mut self, key: &str) -> Option<&mut Self> {
        let YamlValue::Map(entries) = &mut self.value else { return None };
        entries.iter_mut().find(|own| own.key.name == key).map(|own| &mut own.node)
    }
}

// === impl Scalar ===

impl Scalar {
    /// A value that no file holds.
    pub(in crate::config) fn new(text: &str) -> Self {
        Self {
            text: text.to_owned(),
            written: text.to_owned(),
            plain: false,
            stand_ins: Vec::new(),
        }
    }

    /// Whether a variable or a file that is not read is a part of the value. Such a value is no mistake.
    pub(in crate::config) fn is_unread(&self) -> bool {
        !self.stand_ins.is_empty()
    }

    /// Reads the text, or the first of its stand-ins that can be read.
    ///
    /// # Errors
    ///
    /// The reason why the text cannot be read.
    pub(in crate::config) fn read<T, E>(
        &self,
        mut read: impl FnMut(&str) -> Result<T, E>,
    ) -> Result<T, E> {
        read(&self.text).or_else(|reason| {
            let mut others = self.stand_ins.iter().map(|text| read(text));
            others.find(Result::is_ok).unwrap_or(Err(reason))
        })
    }

    /// Whether the value may be secret at this key. That is so if it comes from a file, or from the environment and the key
    /// takes any text.
    pub(in crate::config) fn is_secret_at(&self, path: &str) -> bool {
        self.is_from_outside() && (!may_be_shown_at(path) || self.written.contains("${file:"))
    }

    /// Returns the value as written, with `***` for credentials and the query of a URL.
    pub(in crate::config) fn shown(&self, path: &str) -> String {
        if path.starts_with("upstream") || self.written.contains("://") {
            without_secrets(&self.written)
        } else {
            self.written.clone()
        }
    }

    /// Returns the value as a message may quote it: as [`Self::shown`], followed by the text with its variables filled in
    /// if that text cannot be secret.
    pub(in crate::config) fn quoted(&self, path: &str) -> String {
        let written = self.shown(path);
        if self.is_from_outside() && !self.is_secret_at(path) {
            format!("`{written}` (`{}`)", self.text.escape_debug())
        } else {
            format!("`{written}`")
        }
    }

    /// Whether a variable or a file is a part of the value, which may therefore be secret.
    pub(in crate::config) fn is_from_outside(&self) -> bool {
        self.text != self.written
    }

    /// Returns the reason of a mistake at this key. If the value may be secret, `***` replaces the quoted text, from the first
    /// backtick to the last, because the secret itself may contain backticks.
    pub(in crate::config) fn said(&self, path: &str, reason: &str) -> String {
        match (reason.split_once('`'), reason.rsplit_once('`')) {
            (Some((before, _)), Some((_, behind))) if self.is_secret_at(path) => {
                format!("{before}`***`{behind}")
            }
            _ => reason.to_owned(),
        }
    }
}

/// Whether the key at this path takes only values that cannot be a secret. A limiter may be written as its rate alone.
fn may_be_shown_at(path: &str) -> bool {
    let path = path.trim_end_matches(|c: char| c == ']' || c == '[' || c.is_ascii_digit());
    let key = path.rsplit('.').next().unwrap_or_default();
    let is_short_limiter = path
        .split_once('.')
        .is_some_and(|(section, name)| section == "limiters" && !name.contains('.'));
    is_short_limiter || may_be_shown(key)
}

/// Replaces the credentials and the query of a URL by `***`. The names of variables in it stay.
fn without_secrets(url: &str) -> String {
    let (url, query) = match url.split_once('?') {
        Some((url, query)) if !query.is_empty() => (url, "?***"),
        _ => (url, ""),
    };
    let (scheme, rest) = match url.split_once("://") {
        Some((scheme, rest)) => (format!("{scheme}://"), rest),
        None => (String::new(), url),
    };
    match rest.rsplit_once('@') {
        Some((_, host)) => format!("{scheme}***@{host}{query}"),
        None => format!("{scheme}{rest}{query}"),
    }
}

/// The number of values in a tree, the node itself included.
pub(super) fn size(node: &YamlNode) -> usize {
    1 + match &node.value {
        YamlValue::Broken | YamlValue::Scalar(_) => 0,
        YamlValue::List(items) => items.iter().map(size).sum(),
        YamlValue::Map(entries) => entries.iter().map(|own| size(&own.node)).sum(),
    }
}
