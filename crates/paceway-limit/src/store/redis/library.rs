//! The decision script in the two forms in which servers take it: a library, whose functions a server makes once and keeps,
//! and the script itself, whose functions it makes in each call. Sends nothing, and reads only refusals.

use super::{
    hash, modules,
    reason::{is_elsewhere, is_passing, plainly},
};
use std::sync::LazyLock;

/// The first part of the name of each library. The second is the hash of the text, so that two versions of Paceway have a
/// library each.
pub(super) const NAMES: &str = "paceway_";

/// Errors of a server that takes no writes now. It refuses a function that may write before it runs, and a script when it
/// writes.
const NO_WRITES: [&str; 3] = ["OOM", "MISCONF", "NOREPLICAS"];

/// Both forms, made once.
pub(super) static PROGRAM: LazyLock<Program> = LazyLock::new(Program::new);

/// Both forms of the script, and the names by which a server knows them.
pub(super) struct Program {
    pub(super) script: String,
    /// The name of the script: its SHA-1.
    pub(super) hash: String,
    pub(super) library: String,
    /// The name of the library and of its only function.
    pub(super) function: String,
}

/// The reason why a server has not executed the function, or not taken the library. Nothing was executed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum LibraryRefusal {
    /// The server has no such function: it was never loaded, or removed since.
    Missing,
    /// The server has a library of this name: another connection was faster, or the library is not ours.
    Exists,
    /// The server takes no writes now.
    Passing,
    /// The server keeps no functions, or not for this user, in its own words.
    Never(String),
}

// === impl Program ===

impl Program {
    fn new() -> Self {
        let modules = modules::text();
        // A server gives a library neither `math` nor `redis.call` while it loads, so the first call makes the modules. It
        // keeps them until it ends. A call without keys asks whether the function is there.
        let body = format!(
            "local run\n\
             local function build()\n\
             {modules}\
             return require 'entries'\n\
             end\n\
             local function decide(keys, args)\n\
             if #keys == 0 then return 0 end\n\
             run = run or build()\n\
             return run(keys, args)\n\
             end\n"
        );
        let function = format!("{NAMES}{}", hash(&body));
        // Without the flag `allow-oom`: a server without memory refuses the function before it runs, and takes the script,
        // which runs until it writes.
        let library =
            format!("#!lua name={function}\n{body}redis.register_function('{function}', decide)\n");
        let script = modules + "return require 'entries'(KEYS, ARGV)\n";
        Self { hash: hash(&script), script, library, function }
    }

    /// Whether a library of this name is another version of this one. A library of another program may begin alike.
    pub(super) fn is_other_version(&self, name: &[u8]) -> bool {
        name.len() == self.function.len()
            && name != self.function.as_bytes()
            && name.strip_prefix(NAMES.as_bytes()).is_some_and(is_hash)
    }
}

fn is_hash(text: &[u8]) -> bool {
    text.iter().all(u8::is_ascii_hexdigit)
}

// === impl LibraryRefusal ===

impl LibraryRefusal {
    /// Reads an error in reply to a call of the function; `None` if the function may have run.
    pub(super) fn of_call(words: &str) -> Option<Self> {
        // This error has no code of its own.
        if words == "ERR Function not found" {
            return Some(Self::Missing);
        }
        // An error of a command that the function has called names the script.
        let takes_none = NO_WRITES.iter().any(|start| words.starts_with(start));
        if takes_none && !words.contains("script: ") {
            return Some(Self::Passing);
        }
        let is_forbidden = words.starts_with("NOPERM") && words.contains("'fcall'");
        let is_never = is_forbidden || words.starts_with("ERR unknown command");
        is_never.then(|| Self::Never(plainly(words).to_owned()))
    }

    /// Reads an error in reply to the command that loads the library.
    pub(super) fn of_load(words: &str) -> Option<Self> {
        if words.contains("already exists") {
            return Some(Self::Exists);
        }
        if is_passing(words) || is_elsewhere(words) {
            return Some(Self::Passing);
        }
        Some(Self::Never(plainly(words).to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    /// In the words of Redis 6 and 7, Valkey and Dragonfly.
    #[rstest]
    #[case::not_loaded("ERR Function not found", Some(LibraryRefusal::Missing))]
    #[case::without_memory(
        "OOM command not allowed when used memory > 'maxmemory'.",
        Some(LibraryRefusal::Passing)
    )]
    #[case::without_replicas(
        "NOREPLICAS Not enough good replicas to write.",
        Some(LibraryRefusal::Passing)
    )]
    #[case::without_memory_and_flag(
        "OOM allow-oom flag is not set on the script, can not run it when used memory > 'maxmemory'",
        Some(LibraryRefusal::Passing)
    )]
    #[case::by_the_function(
        "OOM command not allowed when used memory > 'maxmemory'. script: paceway_0",
        None
    )]
    #[case::forbidden(
        "NOPERM this user has no permissions to run the 'fcall' command",
        Some(LibraryRefusal::Never("NOPERM this user has no permissions to run the 'fcall' command".into()))
    )]
    #[case::forbidden_to_the_function(
        "NOPERM ACL failure in script: User a has no permissions to run the 'set' command",
        None
    )]
    #[case::of_an_old_server(
        "ERR unknown command `FCALL`, with args beginning with: `paceway_0`, `0`, ",
        Some(LibraryRefusal::Never("ERR unknown command `FCALL`".into()))
    )]
    #[case::of_the_cluster("MOVED 1 127.0.0.1:7001", None)]
    fn classifies_an_error_of_a_call(
        #[case] words: &str,
        #[case] expected: Option<LibraryRefusal>,
    ) {
        assert_eq!(LibraryRefusal::of_call(words), expected);
    }

    #[rstest]
    #[case::loaded_by_another(
        "ERR Library 'paceway_0' already exists",
        Some(LibraryRefusal::Exists)
    )]
    #[case::without_memory(
        "OOM command not allowed when used memory > 'maxmemory'.",
        Some(LibraryRefusal::Passing)
    )]
    #[case::of_a_replica(
        "READONLY You can't write against a read only replica.",
        Some(LibraryRefusal::Passing)
    )]
    #[case::forbidden(
        "NOPERM this user has no permissions to run the 'function|load' command",
        Some(LibraryRefusal::Never("NOPERM this user has no permissions to run the 'function|load' command".into()))
    )]
    #[case::that_is_not_understood(
        "ERR Error compiling function: x",
        Some(LibraryRefusal::Never("ERR Error compiling function: x".into()))
    )]
    fn classifies_an_error_of_a_load(
        #[case] words: &str,
        #[case] expected: Option<LibraryRefusal>,
    ) {
        assert_eq!(LibraryRefusal::of_load(words), expected);
    }
}
