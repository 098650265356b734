//! The rights of a user on a server, as docs/operation.md names them.

const DOCS: &str = include_str!("../../../docs/operation.md");

/// Rights of the user that a gateway needs on one server, in the words of `ACL SETUSER` that follow its password.
pub(crate) fn rights() -> Vec<&'static str> {
    let line = DOCS.lines().find_map(|line| line.strip_prefix("ACL SETUSER paceway on >PASSWORD "));
    line.expect("a line with rights").split_whitespace().collect()
}
