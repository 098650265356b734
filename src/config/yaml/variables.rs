//! Fills `${NAME}` and `${file:PATH}` into the values of a document.

use crate::{config::mistake::unreadable, key::is_part};
use std::{
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
}

/// Fills in `${NAME}`, `${NAME:-default}` and `${file:PATH}`. `$${` stands for the characters `${`.
pub(super) fn fill(written: &str, outside: &Outside<'_>) -> Result<String, String> {
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
