//! Builds the tree from the events of the parser, with bounds on its size and depth.

use super::{
    tree::{Key, Scalar, YamlEntry, YamlNode, YamlValue, size},
    variables::{Outside, fill, part_of_a_request},
};
use crate::config::{
    foreign, indentation,
    mistake::{Mistake, Position},
    quotes,
};
use granit_parser::{Event, Parser, Span};
use std::collections::HashMap;

/// The most values that a document may have with all aliases written out. Without this bound, a few lines with aliases of
/// aliases would fill the memory.
const MAX_NODES: usize = 200_000;
const MAX_DEPTH: usize = 64;
/// Reads the only document of `text`. Mistakes in `${...}` and keys that are written twice are added to `mistakes`, and the
/// reading continues.
///
/// # Errors
///
/// The mistake that ends the reading, if the text is not YAML.
pub(in crate::config) fn read(
    text: &str,
    outside: &Outside<'_>,
    mistakes: &mut Vec<Mistake>,
) -> Result<YamlNode, Mistake> {
    read_quietly(text, outside, mistakes).map_err(|mistake| with_hint(mistake, text))
}

/// The same for a document whose keys may be credentials: no mistake quotes a line.
///
/// # Errors
///
/// As [`read`].
pub(in crate::config) fn read_quietly(
    text: &str,
    outside: &Outside<'_>,
    mistakes: &mut Vec<Mistake>,
) -> Result<YamlNode, Mistake> {
    let parser = Parser::new_from_str(text);
    let (anchors, path) = (HashMap::new(), Vec::new());
    let mut builder = Builder { parser, outside, mistakes, anchors, path, nodes: 0 };
    Ok(builder.document()?.unwrap_or(YamlNode {
        place: Position { line: 1, column: 1 },
        value: YamlValue::Map(Vec::new()),
    }))
}

/// Completes a mistake that ends the reading by its cure: a value in its line that needs quotes, two keys in one line, or
/// another indentation.
fn with_hint(mut mistake: Mistake, text: &str) -> Mistake {
    if mistake.reason.starts_with("too large") {
        return mistake;
    }
    let line = mistake.place.and_then(|place| text.lines().nth(place.line.saturating_sub(1)));
    if let Some(hint) = line.and_then(foreign::hint_in_line) {
        mistake.reason = hint;
    } else if let Some(wanted) = line.and_then(quotes::wanted) {
        mistake.reason.push_str(&format!("; it needs quotes: `\"{wanted}\"`"));
    } else if let Some(map) = line.and_then(quotes::map_in_a_line) {
        mistake.reason = format!(
            "two keys in one line; write `{map}`, or the second one below the first, further in"
        );
    } else if let Some(place) =
        mistake.place.and_then(|place| indentation::slip(text, place, &mistake.reason))
    {
        mistake.place = Some(place);
        mistake.reason.push_str("; indent this line like its siblings, with spaces");
    }
    mistake
}

struct Builder<'a, 't> {
    parser: Parser<'t, granit_parser::StrInput<'t>>,
    outside: &'a Outside<'a>,
    mistakes: &'a mut Vec<Mistake>,
    anchors: HashMap<usize, YamlNode>,
    /// The path to the current value, as a list of `.key` and `[index]`.
    path: Vec<String>,
    nodes: usize,
}

// === impl Builder ===

impl<'t> Builder<'_, 't> {
    fn next(&mut self) -> Result<(Event<'t>, Position), Mistake> {
        match self.parser.next_event() {
            Some(Ok((event, span))) => Ok((event, place(&span))),
            Some(Err(error)) => {
                let marker = error.marker();
                let place = Position { line: marker.line(), column: marker.col() + 1 };
                Err(Mistake::new(place, "", format!("this is not YAML: {}", error.info())))
            }
            None => Ok((Event::StreamEnd, Position { line: 1, column: 1 })),
        }
    }

    fn document(&mut self) -> Result<Option<YamlNode>, Mistake> {
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

    fn node(
        &mut self,
        event: Event<'t>,
        place: Position,
        depth: usize,
    ) -> Result<YamlNode, Mistake> {
        if depth > MAX_DEPTH {
            return Err(Mistake::new(place, "", "nested too deeply"));
        }
        self.count(1, place)?;
        let (anchor, value) = match event {
            Event::Scalar(text, style, anchor, _) => {
                let plain = style == granit_parser::ScalarStyle::Plain;
                (anchor, self.scalar(text.into_owned(), plain, place))
            }
            Event::SequenceStart(_, anchor, _) => (anchor, YamlValue::List(self.list(depth)?)),
            Event::MappingStart(_, anchor, _) => (anchor, YamlValue::Map(self.map(depth)?)),
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
                return Ok(YamlNode { place, ..node });
            }
            _ => return Err(Mistake::new(place, "", "this is not YAML: a value was expected")),
        };
        let node = YamlNode { place, value };
        if anchor != 0 {
            self.anchors.insert(anchor, node.clone());
        }
        Ok(node)
    }

    fn list(&mut self, depth: usize) -> Result<Vec<YamlNode>, Mistake> {
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

    fn map(&mut self, depth: usize) -> Result<Vec<YamlEntry>, Mistake> {
        let mut entries: Vec<YamlEntry> = Vec::new();
        // The line of each key. A map may have many.
        let mut lines: HashMap<String, usize> = HashMap::new();
        // The keys of these maps are added at the end, so that none of them is reported as missing.
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
            match lines.get(&key.name) {
                Some(line) => self.mistakes.push(Mistake::new(
                    key.place,
                    &path,
                    format!("written twice; line {line} has it already"),
                )),
                None => {
                    lines.insert(key.name.clone(), key.place.line);
                    entries.push(YamlEntry { key, node });
                }
            }
        }
    }

    fn count(&mut self, nodes: usize, place: Position) -> Result<(), Mistake> {
        self.nodes += nodes;
        if self.nodes > MAX_NODES {
            return Err(Mistake::new(place, "", "too large: more than 200000 values"));
        }
        Ok(())
    }

    fn scalar(&mut self, written: String, plain: bool, place: Position) -> YamlValue {
        match fill(&written, self.outside) {
            Ok((text, stand_ins)) => YamlValue::Scalar(Scalar { text, written, plain, stand_ins }),
            Err(reason) => {
                let path = self.at();
                let reason = foreign::add_hint(&written, reason);
                let reason = if path.ends_with(".key") || path.ends_with(".cost") {
                    part_of_a_request(&written, self.outside).unwrap_or(reason)
                } else {
                    reason
                };
                self.mistakes.push(Mistake::new(place, &path, reason));
                YamlValue::Broken
            }
        }
    }

    /// The path of a value. Names in `rates` and `weights` come from requests, and may be credentials.
    fn at(&self) -> String {
        let is_of_requests = |name: &String| matches!(name.as_str(), ".rates" | ".weights");
        let known = self.path.iter().position(is_of_requests).map_or(self.path.len(), |at| at + 1);
        self.path[..known].concat().trim_start_matches('.').to_owned()
    }
}

fn merge(entries: &mut Vec<YamlEntry>, merged: Vec<YamlNode>) {
    for node in merged {
        match node.value {
            YamlValue::Map(more) => {
                for entry in more {
                    if !entries.iter().any(|own| own.key.name == entry.key.name) {
                        entries.push(entry);
                    }
                }
            }
            YamlValue::List(items) => merge(entries, items),
            YamlValue::Scalar(_) | YamlValue::Broken => {}
        }
    }
}

fn place(span: &Span) -> Position {
    Position { line: span.start.line(), column: span.start.col() + 1 }
}
