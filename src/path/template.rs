//! The path template of a route, in the syntax of matchit, the router of axum: `{name}` is one segment, `{*rest}` one segment
//! or more. Compares only paths in normal form.

mod relation;

pub use relation::Relation;

use super::{
    origins::Paths,
    reading::{decode, fold},
};
use std::borrow::Cow;

/// The most segments of a template. It bounds how deep a lookup descends.
const MAX_SEGMENTS: usize = 64;
const MAX_NAME: usize = 64;

/// The whole path that a request must have for a route to match it, as written in `path`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PathTemplate {
    /// The template as written, for messages and pages.
    text: String,
    /// The segments in the normal form of the origins.
    segments: Box<[TemplateSegment]>,
    /// The segments in the form that keys of limiters have, which is in small letters unless `fold_case: off` is set.
    in_keys: Box<[TemplateSegment]>,
    /// The names of the parameters in their order. A parameter without a name cannot be written.
    names: Box<[String]>,
    /// The segments as one text without the names, by which templates are compared: two that match the same paths have the
    /// same text.
    shape: Box<[u8]>,
}

/// One segment of a template.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TemplateSegment {
    /// A segment that is the same for all paths, such as `channels`.
    Literal(Box<[u8]>),
    /// A segment that begins with these characters and has at least one more: `{channel}` after none, `bot{token}` after
    /// `bot`.
    Parameter(Box<[u8]>),
    /// One segment or more at the end of the path: `{*rest}`.
    Rest,
}

/// The segments of a template that were read, as paths and as keys have them, with the names of parameters.
#[derive(Default)]
struct ReadSegments {
    segments: Vec<TemplateSegment>,
    in_keys: Vec<TemplateSegment>,
    names: Vec<String>,
}

// === impl ReadSegments ===

impl ReadSegments {
    /// Adds the segment that is written so.
    fn add(&mut self, written: &str, paths: &Paths) -> Result<(), String> {
        if self.segments.last() == Some(&TemplateSegment::Rest) {
            return Err("has a segment after `{*...}`, which is the rest of the path".into());
        }
        let (plain, parameter) = parameter(written)?;
        let is_rest = parameter.is_some_and(|name| name.starts_with('*'));
        if let Some(name) = parameter {
            let name = checked(name.strip_prefix('*').unwrap_or(name), &self.names)?;
            self.names.push(name);
        }
        match parameter {
            Some(_) if is_rest && plain.is_empty() => {
                self.segments.push(TemplateSegment::Rest);
                self.in_keys.push(TemplateSegment::Rest);
            }
            Some(_) if is_rest => {
                return Err("has characters before `{*...}`, which is whole segments".into());
            }
            Some(_) => {
                let mut prefix = Vec::new();
                decode(plain.as_bytes(), paths.own(), &mut prefix);
                if prefix.contains(&b'/') {
                    return Err("has an escaped slash in the segment of a parameter".into());
                }
                let folded = fold(&prefix);
                let in_key = if paths.folds() || paths.may_fold() { &folded } else { &prefix };
                self.in_keys.push(TemplateSegment::Parameter(in_key[..].into()));
                let normal = if paths.folds() { &folded } else { &prefix };
                self.segments.push(TemplateSegment::Parameter(normal[..].into()));
            }
            // A slash at the end, or two in a row: paths are compared without them.
            None if plain.is_empty() => {}
            None => {
                let path = format!("/{plain}");
                let normal = paths.normal(&path);
                if normal.len() == 1 {
                    return Err(format!(
                        "can never match: paths are compared without segments such as `{plain}`"
                    ));
                }
                self.segments.extend(literals(&normal));
                self.in_keys.extend(literals(&paths.key_form(&path)));
            }
        }
        Ok(())
    }
}

// === impl PathTemplate ===

impl PathTemplate {
    /// Reads a template for origins that read paths as `paths` says: with `fold_case: on` it is in small letters.
    ///
    /// # Errors
    ///
    /// The reason, worded so that it completes a sentence that begins with the text: "`TEXT` must begin with a slash".
    pub fn parse(text: &str, paths: &Paths) -> Result<Self, String> {
        let Some(written) = text.strip_prefix('/') else {
            return Err(
                "must begin with `/`: it is compared with the whole path of a request".into()
            );
        };
        if text.contains(['?', '#', ';', '\\']) || text.chars().any(char::is_control) {
            return Err(
                "holds one of ? # ; \\ or a control character, which no path in normal form has"
                    .into(),
            );
        }
        if let Some(reason) = wildcard(text) {
            return Err(reason);
        }
        let mut read = ReadSegments::default();
        for written in written.split('/') {
            read.add(written, paths)?;
        }
        let ReadSegments { segments, in_keys, names } = read;
        if segments.len() > MAX_SEGMENTS {
            return Err(format!("has more than {MAX_SEGMENTS} segments"));
        }
        let shape = shape(&segments);
        let (segments, in_keys) = (segments.into(), in_keys.into());
        Ok(Self { text: text.to_owned(), segments, in_keys, names: names.into(), shape })
    }

    /// The template as written, such as `/channels/{channel}`.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The segments in normal form; none for the root path.
    pub fn segments(&self) -> &[TemplateSegment] {
        &self.segments
    }

    /// The names of the parameters, such as `channel`, in their order.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Whether every path that one of the two matches is matched by the other: they differ in names alone.
    pub fn matches_same(&self, other: &Self) -> bool {
        self.shape == other.shape
    }

    /// Whether `other` matches the same paths for an origin that folds case, as `/A/{x}` and `/a/{y}` do.
    pub fn is_folded(&self, other: &Self) -> bool {
        if self.shape.is_ascii() && other.shape.is_ascii() {
            self.shape.eq_ignore_ascii_case(&other.shape)
        } else {
            fold(&self.shape) == fold(&other.shape)
        }
    }

    /// The same template for paths whose case is folded: `/getUser/{id}` becomes `/getuser/{id}`.
    #[must_use]
    pub fn folded(&self) -> Self {
        let segments = self.segments.iter().map(|segment| match segment {
            TemplateSegment::Literal(bytes) => TemplateSegment::Literal(fold(bytes).into()),
            TemplateSegment::Parameter(prefix) => TemplateSegment::Parameter(fold(prefix).into()),
            TemplateSegment::Rest => TemplateSegment::Rest,
        });
        let segments: Box<[_]> = segments.collect();
        let shape = shape(&segments);
        Self { segments, shape, ..self.clone() }
    }

    /// Whether a path in normal form matches.
    pub fn matches(&self, path: &[u8]) -> bool {
        values(&self.segments, path).is_some()
    }

    /// The values of the parameters in a path as keys contain it, in the order of [`Self::names`]. `None` if the path does
    /// not match.
    pub fn captures<'p>(&self, key_form: &'p [u8]) -> Option<Vec<&'p [u8]>> {
        values(&self.in_keys, key_form)
    }

    /// The value of a parameter in the path of a request, in the form that all spellings of the path share. `None` if the
    /// template has no parameter of this name.
    pub fn value<'p>(&self, name: &str, path: &'p str, paths: &Paths) -> Option<Cow<'p, [u8]>> {
        let at = self.names.iter().position(|own| own == name)?;
        let of = |form: &[u8]| Some(self.captures(form)?[at].to_vec());
        let found = match paths.key_form(path) {
            Cow::Borrowed(form) => self.captures(form).map(|values| Cow::Borrowed(values[at])),
            Cow::Owned(form) => of(&form).map(Cow::Owned),
        };
        // The route can be that of another reading, whose limiters are those of all readings.
        found.or_else(|| {
            let mut others = paths.readings(path);
            let value = others.find_map(|(reading, _)| of(&paths.key_form_of(&reading)));
            value.map(Cow::Owned)
        })
    }
}

/// Splits a segment as written into its plain characters and the name of the parameter after them. `{{` and `}}` are the
/// characters themselves.
fn parameter(segment: &str) -> Result<(String, Option<&str>), String> {
    let mut plain = String::new();
    let mut rest = segment;
    loop {
        let at = rest.find(['{', '}']).unwrap_or(rest.len());
        let (before, brace) = rest.split_at(at);
        plain.push_str(before);
        if let Some(after) = brace.strip_prefix("{{") {
            plain.push('{');
            rest = after;
        } else if let Some(after) = brace.strip_prefix("}}") {
            plain.push('}');
            rest = after;
        } else if let Some(after) = brace.strip_prefix('{') {
            let Some((name, after)) = after.split_once('}').filter(|(name, _)| !name.contains('{'))
            else {
                return Err(
                    "has a `{` without its `}` in one segment; `{{` is the character itself".into(),
                );
            };
            return match after {
                "" => Ok((plain, Some(name))),
                _ => Err(format!(
                    "has characters after `{{{name}}}` in its segment; a parameter ends its segment"
                )),
            };
        } else if brace.is_empty() {
            return Ok((plain, None));
        } else {
            return Err("has a `}` without its `{`; `}}` is the character itself".into());
        }
    }
}

/// The mistake of a template with a `*` outside of braces, which other gateways read as any segment or as all of them.
fn wildcard(text: &str) -> Option<String> {
    let is_star = |(at, _): &(usize, &str)| !text[..*at].ends_with('{');
    text.match_indices('*').find(is_star)?;
    let one = text.replacen("/*/", "/{name}/", 1);
    let meant = match below(text) {
        Some(path) => format!("all paths below it: {path}"),
        None if one.contains('*') => "one segment is `{name}`, and all after it `{*rest}`".into(),
        None => format!("one segment: `path: \"{one}\"`"),
    };
    Some(format!("may not hold `*`: a path is compared as written; {meant}"))
}

/// The path that matches all paths below `/x`, as the configuration writes it, for a text such as `/x/*` or `/x/**`. `None`
/// if the text ends in another way.
pub(super) fn below(text: &str) -> Option<String> {
    let before = text.strip_suffix("/**").or_else(|| text.strip_suffix("/*"))?;
    let slash = if before.is_empty() || before.starts_with('/') { "" } else { "/" };
    (!before.contains('*')).then(|| format!("`path: \"{slash}{before}/{{*rest}}\"`"))
}

/// The segments of a path in normal form.
fn literals(path: &[u8]) -> impl Iterator<Item = TemplateSegment> {
    let all = path.split(|byte| *byte == b'/').filter(|literal| !literal.is_empty());
    all.map(|literal| TemplateSegment::Literal(literal.into()))
}

/// Checks the name of a parameter against those before it.
fn checked(name: &str, before: &[String]) -> Result<String, String> {
    let good = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
    if name.is_empty() || name.len() > MAX_NAME || !name.chars().all(good) {
        return Err(format!(
            "has the parameter `{{{name}}}`; a name holds letters, digits, `_` and `-`, at most {MAX_NAME}"
        ));
    }
    if before.iter().any(|other| other == name) {
        return Err(format!("has two parameters `{{{name}}}`"));
    }
    Ok(name.to_owned())
}

fn shape(segments: &[TemplateSegment]) -> Box<[u8]> {
    let mut shape = Vec::new();
    for segment in segments {
        shape.push(b'/');
        match segment {
            TemplateSegment::Literal(bytes) => shape.extend_from_slice(bytes),
            // No template contains a control character, and escaped ones stay escaped.
            TemplateSegment::Parameter(prefix) => {
                shape.extend_from_slice(prefix);
                shape.push(1);
            }
            TemplateSegment::Rest => shape.push(2),
        }
    }
    shape.into()
}

/// The values of the parameters, if the path matches.
fn values<'p>(segments: &[TemplateSegment], path: &'p [u8]) -> Option<Vec<&'p [u8]>> {
    let mut values = Vec::new();
    let mut rest = if path == b"/" { &[][..] } else { path };
    for segment in segments {
        let after = rest.strip_prefix(b"/")?;
        let end = after.iter().position(|byte| *byte == b'/').unwrap_or(after.len());
        let (own, others) = after.split_at(end);
        match segment {
            TemplateSegment::Literal(bytes) if **bytes == *own => {}
            TemplateSegment::Literal(_) => return None,
            TemplateSegment::Parameter(prefix) => {
                let value = own.strip_prefix(&**prefix).filter(|value| !value.is_empty())?;
                values.push(value);
            }
            TemplateSegment::Rest => {
                values.push(after);
                return Some(values);
            }
        }
        rest = others;
    }
    rest.is_empty().then_some(values)
}

#[cfg(test)]
mod tests;
