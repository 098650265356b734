//! The rights of a user on a server, as docs/operation.md names them.

use super::redis::binary;
use std::process::Command;

const DOCS: &str = include_str!("../../../docs/operation.md");

/// Rights of the user that a gateway needs on one server, in the words of `ACL SETUSER` that follow its password.
pub(crate) fn rights() -> Vec<&'static str> {
    let output = Command::new(binary()).arg("--version").output().expect("redis-server");
    let version = String::from_utf8_lossy(&output.stdout);
    // Older servers have no functions, and do not know the names of these rights.
    let is_old = ["v=5.", "v=6."].iter().any(|start| version.contains(start));
    let is_known =
        |right: &&str| !(is_old && (*right == "+fcall" || right.starts_with("+function")));
    let line = DOCS.lines().find_map(|line| line.strip_prefix("ACL SETUSER paceway on >PASSWORD "));
    line.expect("a line with rights").split_whitespace().filter(is_known).collect()
}
