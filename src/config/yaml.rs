//! A YAML document as a tree that knows where everything stands, with `${...}` filled in. No rule about
//! the content of a configuration lives here.
//!
//! A tree of our own on serde-saphyr's parser, and not serde, because serde stops at the first mistake.

use super::{Mistake, Place, quotes};
use crate::key::is_part;
use granit_parser::{Event, Parser, Span};
use std::{
    collections::HashMap,
    fmt,
    fs::File,
    io::{self, Read as _},
    path::Path,
};

/// Nodes a document may have, aliases written out: a bound for documents that explode.
const MAX_NODES: usize = 200_000;
const MAX_DEPTH: usize = 64;
/// Bytes of a file that `${file:PATH}` reads.
const MAX_FILE: u64 = 1 << 20;

/// A value and where it stands.
#[derive(Debug, Clone)]
pub(super) struct Node {
    pub(super) place: Place,
    pub(super) value: Value,
}

#[derive(Debug, Clone)]
pub(super) enum Value {
    /// What `${...}` asks for is not there: said already, and not to be complained of twice.
    Broken,
    Scalar(Scalar),
    List(Vec<Node>),
    Map(Vec<(Key, Node)>),
}

/// A scalar with `${...}` filled in.
#[derive(Debug, Clone)]
pub(super) struct Scalar {
    pub(super) text: String,
    /// As written: what an error may quote, because it holds no secret that came from outside.
    pub(super) written: String,
    /// Not in quotes: `null`, `~` and nothing at all mean "no value".
    plain: bool,
}

#[derive(Debug, Clone)]
pub(super) struct Key {
    pub(super) place: Place,
    pub(super) name: String,
}

/// Where `${NAME}` and `${file:PATH}` come from.
pub(super) struct Outside<'a> {
    /// Relative paths start here: the directory of the configuration file.
    pub(super) directory: &'a Path,
    /// Reads an environment variable.
    pub(super) variable: &'a dyn Fn(&str) -> Option<String>,
}

// === impl Node ===

impl Node {
    /// Nothing was written: `key:`, `~` or `null`.
    pub(super) fn is_null(&self) -> bool {
        let Value::Scalar(scalar) = &self.value else { return false };
        scalar.plain && matches!(scalar.text.as_str(), "" | "~" | "null" | "Null" | "NULL")
    }
}

// === impl Scalar ===

impl Scalar {
    /// Whether it may be secret at this place: it comes from a file, or from the environment to where a text may stand.
    pub(super) fn is_secret_at(&self, path: &str) -> bool {
        self.is_from_outside() && (!is_measure(path) || self.written.contains("${file:"))
    }

    /// As it is written, without what looks like a password or a key in a URL.
    pub(super) fn shown(&self, path: &str) -> String {
        match path.starts_with("upstream") || self.written.contains("://") {
            true => without_secrets(&self.written),
            false => self.written.clone(),
        }
    }

    /// The value as a message may quote it: as written, without anything that looks like a password or a key in a URL; and
    /// the value of its variables, if they came from the environment and are no secrets.
    pub(super) fn quoted(&self, path: &str) -> String {
        let written = self.shown(path);
        match self.is_from_outside() && !self.is_secret_at(path) {
            true => format!("`{written}` (`{}`)", self.text.escape_debug()),
            false => format!("`{written}`"),
        }
    }

    /// Whether a variable or a file is in it: it may be secret.
    pub(super) fn is_from_outside(&self) -> bool {
        self.text != self.written
    }

    /// What is wrong with it at this place, without what it quotes when that may be secret. It may hold a backtick too, so
    /// what is between the first and the last goes.
    pub(super) fn said(&self, path: &str, reason: &str) -> String {
        match (reason.split_once('`'), reason.rsplit_once('`')) {
            (Some((before, _)), Some((_, behind))) if self.is_secret_at(path) => {
                format!("{before}`***`{behind}")
            }
            _ => reason.to_owned(),
        }
    }
}

/// Whether numbers, rates, times, addresses or words of ours stand at a place, none of which is a secret.
fn is_measure(path: &str) -> bool {
    const KEYS: &[&str] = &[
        "listen",
        "admin",
        "workers",
        "access_log",
        "limiting",
        "rate",
        "burst",
        "margin",
        "capacity",
        "warm_up",
        "cold_factor",
        "max",
        "lease",
        "algorithm",
        "mode",
        "scope",
        "on_failure",
        "max_wait",
        "max_wait_cap",
        "max_waiting",
        "header_bytes",
        "body",
        "uri",
        "pool_size",
        "max_connections",
        "fold_case",
        "encoded_slash",
        "trailing_dots",
    ];
    let path = path.trim_end_matches(|c: char| c == ']' || c == '[' || c.is_ascii_digit());
    let key = path.rsplit('.').next().unwrap_or_default();
    let is_short_limiter = path
        .split_once('.')
        .is_some_and(|(section, name)| section == "limiters" && !name.contains('.'));
    is_short_limiter || KEYS.contains(&key) || key.ends_with("timeout")
}

/// A URL without its credentials and its query; variables in it are no secrets.
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

/// Reads the only document of `text`; mistakes in `${...}` and double keys are noted and read on over.
///
/// # Errors
///
/// When the text is not YAML.
pub(super) fn read(
    text: &str,
    outside: &Outside<'_>,
    mistakes: &mut Vec<Mistake>,
) -> Result<Node, Mistake> {
    let parser = Parser::new_from_str(text);
    let (anchors, path) = (HashMap::new(), Vec::new());
    let mut builder = Builder { parser, outside, mistakes, anchors, path, nodes: 0 };
    let root = builder.document().map_err(|mistake| with_hint(mistake, text))?;
    Ok(root.unwrap_or(Node { place: Place { line: 1, column: 1 }, value: Value::Map(Vec::new()) }))
}

/// A mistake that ends the reading, with what lacks quotes in its line.
fn with_hint(mut mistake: Mistake, text: &str) -> Mistake {
    if mistake.reason.starts_with("too large") {
        return mistake;
    }
    let line = mistake.place.and_then(|place| text.lines().nth(place.line.saturating_sub(1)));
    if let Some(wanted) = line.and_then(quotes::wanted) {
        mistake.reason.push_str(&format!("; it needs quotes: `\"{wanted}\"`"));
    } else if let Some(map) = line.and_then(quotes::map_in_a_line) {
        mistake.reason = format!(
            "two keys in one line; write `{map}`, or the second one below the first, further in"
        );
    }
    mistake
}

struct Builder<'a, 't> {
    parser: Parser<'t, granit_parser::StrInput<'t>>,
    outside: &'a Outside<'a>,
    mistakes: &'a mut Vec<Mistake>,
    anchors: HashMap<usize, Node>,
    /// To where we are: `.key` and `[index]`.
    path: Vec<String>,
    nodes: usize,
}

// === impl Builder ===

impl<'t> Builder<'_, 't> {
    fn next(&mut self) -> Result<(Event<'t>, Place), Mistake> {
        match self.parser.next_event() {
            Some(Ok((event, span))) => Ok((event, place(&span))),
            Some(Err(error)) => {
                let marker = error.marker();
                let place = Place { line: marker.line(), column: marker.col() + 1 };
                Err(Mistake::new(place, "", format!("this is not YAML: {}", error.info())))
            }
            None => Ok((Event::StreamEnd, Place { line: 1, column: 1 })),
        }
    }

    fn document(&mut self) -> Result<Option<Node>, Mistake> {
        let mut root = None;
        loop {
            match self.next()? {
                (Event::StreamEnd, _) => return Ok(root),
                (Event::StreamStart | Event::DocumentStart(..) | Event::DocumentEnd, _) => {}
                (_, place) if root.is_some() => {
                    return Err(Mistake::new(place, "", "a second document; one file holds one"));
                }
                (event, place) => root = Some(self.node(event, place, 0)?),
            }
        }
    }

    fn node(&mut self, event: Event<'t>, place: Place, depth: usize) -> Result<Node, Mistake> {
        if depth > MAX_DEPTH {
            return Err(Mistake::new(place, "", "nested too deeply"));
        }
        self.count(1, place)?;
        let (anchor, value) = match event {
            Event::Scalar(text, style, anchor, _) => {
                let plain = style == granit_parser::ScalarStyle::Plain;
                (anchor, self.scalar(text.into_owned(), plain, place))
            }
            Event::SequenceStart(_, anchor, _) => (anchor, Value::List(self.list(depth)?)),
            Event::MappingStart(_, anchor, _) => (anchor, Value::Map(self.map(depth)?)),
            Event::Alias(id) => {
                let Some(node) = self.anchors.get(&id).cloned() else {
                    return Err(Mistake::new(place, "", "an alias inside of its own anchor"));
                };
                let before = self.nodes;
                if self.count(size(&node), place).is_err() {
                    let reason = format!(
                        "too large: this alias stands for {} values, and a file may have {MAX_NODES} with all its \
                         aliases written out, of which {before} came before; use fewer aliases of aliases",
                        size(&node)
                    );
                    return Err(Mistake::new(place, "", reason));
                }
                return Ok(Node { place, ..node });
            }
            _ => return Err(Mistake::new(place, "", "this is not YAML: a value was expected")),
        };
        let node = Node { place, value };
        if anchor != 0 {
            self.anchors.insert(anchor, node.clone());
        }
        Ok(node)
    }

    fn list(&mut self, depth: usize) -> Result<Vec<Node>, Mistake> {
        let mut items = Vec::new();
        loop {
            match self.next()? {
                (Event::SequenceEnd, _) => return Ok(items),
                (event, place) => {
                    self.path.push(format!("[{}]", items.len()));
                    items.push(self.node(event, place, depth + 1)?);
                    self.path.pop();
                }
            }
        }
    }

    fn map(&mut self, depth: usize) -> Result<Vec<(Key, Node)>, Mistake> {
        let mut entries: Vec<(Key, Node)> = Vec::new();
        // The reader goes on with these, so that no key in them is reported as missing.
        let mut merged = Vec::new();
        loop {
            let (event, place) = self.next()?;
            if event == Event::MappingEnd {
                merge(&mut entries, merged);
                return Ok(entries);
            }
            let Event::Scalar(name, ..) = event else {
                return Err(Mistake::new(place, "", "a key must be a plain word"));
            };
            let key = Key { place, name: name.into_owned() };
            let (event, place) = self.next()?;
            self.path.push(format!(".{}", key.name));
            let node = self.node(event, place, depth + 1)?;
            let path = self.at();
            self.path.pop();
            if key.name == "<<" {
                let reason = "merge keys (`<<`) are not read; write the keys out, or give the whole value an anchor \
                              (`&a`) and use it with `*a`";
                self.mistakes.push(Mistake::new(key.place, &path, reason));
                merged.push(node);
                continue;
            }
            match entries.iter().find(|(earlier, _)| earlier.name == key.name) {
                Some((earlier, _)) => self.mistakes.push(Mistake::new(
                    key.place,
                    &path,
                    format!("written twice; it stands in line {} already", earlier.place.line),
                )),
                None => entries.push((key, node)),
            }
        }
    }

    fn count(&mut self, nodes: usize, place: Place) -> Result<(), Mistake> {
        self.nodes += nodes;
        if self.nodes > MAX_NODES {
            return Err(Mistake::new(place, "", "too large: more than 200000 values"));
        }
        Ok(())
    }

    fn scalar(&mut self, written: String, plain: bool, place: Place) -> Value {
        match fill(&written, self.outside) {
            Ok(text) => Value::Scalar(Scalar { text, written, plain }),
            Err(reason) => {
                let path = self.at();
                let reason = match path.ends_with(".key") || path.ends_with(".cost") {
                    true => part_of_a_request(&written, self.outside).unwrap_or(reason),
                    false => reason,
                };
                self.mistakes.push(Mistake::new(place, &path, reason));
                Value::Broken
            }
        }
    }

    fn at(&self) -> String {
        self.path.concat().trim_start_matches('.').to_owned()
    }
}

fn merge(entries: &mut Vec<(Key, Node)>, merged: Vec<Node>) {
    for node in merged {
        match node.value {
            Value::Map(more) => {
                for (key, node) in more {
                    if !entries.iter().any(|(own, _)| own.name == key.name) {
                        entries.push((key, node));
                    }
                }
            }
            Value::List(items) => merge(entries, items),
            Value::Scalar(_) | Value::Broken => {}
        }
    }
}

fn place(span: &Span) -> Place {
    Place { line: span.start.line(), column: span.start.col() + 1 }
}

fn size(node: &Node) -> usize {
    1 + match &node.value {
        Value::Broken | Value::Scalar(_) => 0,
        Value::List(items) => items.iter().map(size).sum(),
        Value::Map(entries) => entries.iter().map(|(_, node)| size(node)).sum(),
    }
}

/// Fills `${NAME}`, `${NAME:-default}` and `${file:PATH}` in; `$${` stands for `${` itself.
fn fill(written: &str, outside: &Outside<'_>) -> Result<String, String> {
    let mut text = String::with_capacity(written.len());
    let mut rest = written;
    while let Some((before, after)) = rest.split_once("${") {
        if let Some(before) = before.strip_suffix('$') {
            text.push_str(before);
            text.push_str("${");
            rest = after;
            continue;
        }
        let Some((name, after)) = after.split_once('}') else {
            return Err("`${` without its `}`; write `$${` for the characters themselves".into());
        };
        text.push_str(before);
        text.push_str(&look_up(name, outside)?);
        rest = after;
    }
    text.push_str(rest);
    Ok(text)
}

/// Somebody wrote `${client_ip}`, which is no variable but a part of a request.
fn part_of_a_request(written: &str, outside: &Outside<'_>) -> Option<String> {
    let mut names = written.split("${").skip(1).filter_map(|rest| Some(rest.split_once('}')?.0));
    let name = names.find(|name| is_part(name) && (outside.variable)(name).is_none())?;
    Some(format!(
        "`${{{name}}}` is a variable, and none of this name is set; did you mean `{{{name}}}`?"
    ))
}

fn look_up(name: &str, outside: &Outside<'_>) -> Result<String, String> {
    if let Some(path) = name.strip_prefix("file:") {
        return read_file(&outside.directory.join(path));
    }
    let (name, default) = match name.split_once(":-") {
        Some((name, default)) => (name, Some(default)),
        None => (name, None),
    };
    let good = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if name.is_empty() || !name.chars().all(good) {
        return Err(format!("`${{{name}}}` is no name of an environment variable"));
    }
    let value = (outside.variable)(name).filter(|value| !value.is_empty() || default.is_none());
    value.or(default.map(str::to_owned)).ok_or_else(|| {
        format!(
            "the environment variable `{name}` is not set; set it, or write `${{{name}:-default}}`"
        )
    })
}

/// The text of a file without newlines at its end.
fn read_file(path: &Path) -> Result<String, String> {
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(MAX_FILE + 1).read_to_string(&mut text));
    let failed =
        |why: &dyn fmt::Display| format!("`${{file:...}}`: cannot read {}: {why}", path.display());
    match read {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(failed(&"there is no such file"))
        }
        Err(error) => Err(failed(&super::unreadable(&error))),
        Ok(_) if text.len() as u64 > MAX_FILE => Err(failed(&"it is larger than 1MiB")),
        Ok(_) => Ok(text.trim_end_matches(['\n', '\r']).to_owned()),
    }
}
