//! Reads the names by which parts of a file refer to each other.

use crate::{
    config::{
        limiter::LimiterConfig,
        mistake::Mistake,
        reader::{ConfigReader, Field},
        rows_from::MissingLimiter,
        yaml::{Key, Scalar},
    },
    suggest::suggest,
};

/// A limiter that a route or an upstream names.
pub(super) enum LimiterName {
    /// Its index.
    Known(usize),
    /// Its name. Only a row of `limits_from` can add it.
    Missing(String),
}

impl ConfigReader {
    pub(super) fn name(&mut self, path: &str, key: &Key) {
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
