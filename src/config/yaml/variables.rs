//! Fills `${NAME}` and `${file:PATH}` into the values of a document.

use crate::{config::mistake::unreadable, key::is_part};
use std::{
    cell::{Cell, RefCell},
    collections::BTreeSet,
    fmt,
    fs::File,
    io::{self, Read as _},
    path::Path,
};

/// The most bytes that a file may have which `${file:PATH}` reads.
const MAX_FILE: u64 = 1 << 20;

/// The sources of `${NAME}` and `${file:PATH}`.
pub(in crate::config) struct Outside<'a> {
    /// The directory of the configuration file, at which relative paths start.
    pub(in crate::config) directory: &'a Path,
    /// Returns the value of an environment variable.
    pub(in crate::config) variable: &'a dyn Fn(&str) -> Option<String>,
    /// The variables and files that a check without them has not read, such as `${TOKEN}`. `None` if they are read.
    pub(in crate::config) unread: Option<&'a RefCell<BTreeSet<String>>>,
}

/// The values that a check without variables and files tries in the place of one, after its name.
const STAND_INS: [&str; 8] = [
    "1000",
    "1",
    "1s",
    "1000/977ms",
    "http://placeholder.invalid",
    "redis://placeholder.invalid",
    "127.0.0.1:0",
    "127.0.0.1",
];

/// Fills in `${NAME}`, `${NAME:-default}` and `${file:PATH}`. `$${` stands for the characters `${`. The second value has
/// other texts that the value may have, if the check reads neither variables nor files; otherwise it is empty.
pub(super) fn fill(written: &str, outside: &Outside<'_>) -> Result<(String, Vec<String>), String> {
    let Some(unread) = outside.unread else {
        return Ok((filled(written, &|name| look_up(name, outside))?, Vec::new()));
    };
    let is_known = Cell::new(true);
    let stand_in = |name: &str, value: &str| {
        if let (_, Some(default)) = named(name)? {
            return Ok(default.to_owned());
        }
        is_known.set(false);
        unread.borrow_mut().insert(format!("${{{name}}}"));
        Ok(value.to_owned())
    };
    let text = filled(written, &|name| stand_in(name, &placeholder(name)))?;
    if is_known.get() {
        return Ok((text, Vec::new()));
    }
    let others = STAND_INS.iter().map(|value| filled(written, &|name| stand_in(name, value)));
    Ok((text, others.collect::<Result<_, String>>()?))
}

/// The text in the place of a variable or a file that is not read. Two of them differ, as their values do.
fn placeholder(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let name = name.trim_start_matches("file:").trim_matches(|c: char| !c.is_ascii_alphanumeric());
    format!("placeholder-{}", name.chars().map(plain).collect::<String>())
}

fn filled(written: &str, value: &dyn Fn(&str) -> Result<String, String>) -> Result<String, String> {
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
        text.push_str(&value(name)?);
        rest = after;
    }
    text.push_str(rest);
    Ok(text)
}

/// Recognises `${client_ip}`, which was meant as a part of a request and not as a variable, and says so.
pub(super) fn part_of_a_request(written: &str, outside: &Outside<'_>) -> Option<String> {
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
    let (name, default) = named(name)?;
    let value = (outside.variable)(name).filter(|value| !value.is_empty() || default.is_none());
    value.or(default.map(str::to_owned)).ok_or_else(|| {
        format!(
            "the environment variable `{name}` is not set; set it, or write `${{{name}:-default}}`"
        )
    })
}

/// The name of a variable or a file, and the default that is written with a variable.
fn named(text: &str) -> Result<(&str, Option<&str>), String> {
    if text.starts_with("file:") {
        return Ok((text, None));
    }
    let (name, default) = match text.split_once(":-") {
        Some((name, default)) => (name, Some(default)),
        None => (text, None),
    };
    let good = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if name.is_empty() || !name.chars().all(good) {
        return Err(format!("`${{{name}}}` is no name of an environment variable"));
    }
    Ok((name, default))
}

/// Reads a file, without the newlines at its end. It may have [`MAX_FILE`] bytes.
fn read_file(path: &Path) -> Result<String, String> {
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(MAX_FILE + 1).read_to_string(&mut text));
    let failed =
        |why: &dyn fmt::Display| format!("`${{file:...}}`: cannot read {}: {why}", path.display());
    match read {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(failed(&"there is no such file"))
        }
        Err(error) => Err(failed(&unreadable(&error))),
        Ok(_) if text.len() as u64 > MAX_FILE => Err(failed(&"it is larger than 1MiB")),
        Ok(_) => Ok(text.trim_end_matches(['\n', '\r']).to_owned()),
    }
}
