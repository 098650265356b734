//! Explains errors of Redis servers: whether they pass, and what the operator can do about them. Sends nothing.

use super::{
    tls,
    url::{Endpoint, Login},
};
use std::io;

/// The reason why a Redis server cannot be used at all.
///
/// ```
/// use paceway_limit::redis::{ConnectError, SetupError};
///
/// let error = SetupError::from(ConnectError::Refused("WRONGPASS invalid username-password pair".into()));
/// assert_eq!(error.to_string(), "it refuses us: WRONGPASS invalid username-password pair");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// No server answers at the address, or it is not ready: a later attempt may succeed.
    #[error("it cannot be reached: {0}")]
    Unreachable(String),
    /// The server answers and refuses us: wrong credentials, no such database, a version that is too old.
    #[error("it refuses us: {0}")]
    Refused(String),
}

/// Errors of a server that is about to work or to be replaced: a later attempt may succeed.
const PASSING: [&str; 9] = [
    "LOADING",
    "MASTERDOWN",
    "CLUSTERDOWN",
    "TRYAGAIN",
    "BUSY",
    "OOM",
    "MISCONF",
    "NOREPLICAS",
    "ERR max number of clients",
];
/// Errors of a server that is not the master any more, or not yet. It has executed nothing.
const NOT_HERE: [&str; 3] = ["READONLY", "MASTERDOWN", "LOADING"];

/// Makes an error of the server at `endpoint` from its own words, and adds what the operator can do.
pub(super) fn refusal(endpoint: &Endpoint, login: &Login, words: &str) -> ConnectError {
    let words = plainly(words);
    if is_passing(words) {
        return ConnectError::Unreachable(format!("{endpoint} says: {words}"));
    }
    let advice = advice(login, words);
    let stop = if advice.is_empty() { "" } else { "; " };
    ConnectError::Refused(format!("{endpoint} says: {words}{stop}{advice}"))
}

/// Makes an error of a connection to `endpoint` that could not be made or was lost while it was made.
pub(super) fn failure(endpoint: &Endpoint, error: &io::Error) -> ConnectError {
    if let Some(why) = tls::explain(error) {
        return ConnectError::Refused(format!("{endpoint} {why}"));
    }
    match error.kind() {
        io::ErrorKind::InvalidData => ConnectError::Refused(format!("{endpoint}: {error}")),
        // The file of a Unix socket belongs to another user.
        io::ErrorKind::PermissionDenied => ConnectError::Refused(format!(
            "{endpoint}: {error}; let the user that runs Paceway connect to it"
        )),
        _ => ConnectError::Unreachable(format!("{endpoint}: {error}")),
    }
}

/// Whether an error is that of a server that is about to work or to be replaced.
pub(super) fn is_passing(words: &str) -> bool {
    PASSING.iter().any(|start| words.starts_with(start))
}

/// Whether an error says that another server is to be asked from now on, as `READONLY` of a former master does.
pub(super) fn is_elsewhere(words: &str) -> bool {
    let words = unwrapped(words);
    NOT_HERE.iter().any(|start| words.starts_with(start))
}

/// Whether an error says that the keys of a call are not all on one node. The node has executed nothing.
pub(super) fn is_split(words: &str) -> bool {
    words.starts_with("TRYAGAIN")
}

/// Returns the part of an error that may be logged: one line, without the arguments of our command.
pub(super) fn plainly(words: &str) -> &str {
    let words = unwrapped(words);
    let words = words.split(['\r', '\n']).find(|line| !line.is_empty()).unwrap_or_default();
    without_arguments(words)
}

/// Returns the error of a command that a script has called. Before Redis 7 the server writes the line of the script in
/// front of it.
fn unwrapped(words: &str) -> &str {
    let of_a_script = ["ERR Error running script", "@user_script:"];
    match words.split_once(": -") {
        Some((_, inner)) if of_a_script.iter().any(|start| words.starts_with(start)) => inner,
        _ => words,
    }
}

/// Cuts off the arguments that Redis repeats for a command that it does not know: one of ours is a password.
fn without_arguments(words: &str) -> &str {
    let end = words.find(", with args beginning").or(words.find("with args beginning"));
    words[..end.unwrap_or(words.len())].trim_end_matches([',', ' '])
}

fn advice(login: &Login, words: &str) -> &'static str {
    let has = |part: &str| words.contains(part);
    match () {
        () if words.starts_with("NOAUTH") => {
            "it asks for a password: write it into the URL, as in redis://:${REDIS_PASSWORD}@HOST"
        }
        () if words.starts_with("WRONGPASS") || has("invalid password") => {
            "user or password in the URL are wrong, or the user is off"
        }
        () if words.starts_with("DENIED") => {
            "its protected mode refuses other machines: give it a password, or switch protected-mode off"
        }
        () if has("without any password configured") || has("no password is set") => {
            "it has no password: take that out of the URL"
        }
        () if login.user.is_some() && has("wrong number of arguments for 'auth'") => {
            "it knows no users, which came with Redis 6: take the user out of the URL, or use a newer server"
        }
        () if has("DB index") || has("SELECT is not allowed") => {
            "there is no such database: change the number at the end of the URL"
        }
        () if words.starts_with("NOPERM")
            || has("user executing the script")
            || words.starts_with("ERR ACL failure in script") =>
        {
            "give its user the right: docs/operation.md lists those that Paceway needs"
        }
        () if words.starts_with("READONLY") || has("write against a read only replica") => {
            "it is a replica: name the master, or its Sentinels as in redis-sentinel://HOST:26379/NAME"
        }
        () if words.starts_with("MOVED") || words.starts_with("CROSSSLOT") => {
            "it is a node of a Cluster: write redis-cluster:// in place of redis://"
        }
        () if has("cluster support disabled") => {
            "it is no node of a Cluster: write redis:// in place of redis-cluster://"
        }
        () if words.starts_with("ERR Write commands not allowed after") => "use Redis 5 or later",
        () if has("unknown command") || has("nknown Redis command") => {
            "Paceway needs this command: do not rename it, and use Redis 5 or later"
        }
        () => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("NOAUTH Authentication required.", false, "write it into the URL")]
    #[case("WRONGPASS invalid username-password pair or user is disabled.", false, "are wrong")]
    #[case("ERR DB index is out of range", false, "no such database")]
    #[case("NOPERM this user has no permissions to run the 'eval' command", false, "lists those")]
    #[case("ERR The user executing the script can't run this command", false, "lists those")]
    #[case("READONLY You can't write against a read only replica.", false, "name the master")]
    #[case("ERR unknown command 'EVAL', with args beginning with: 'x'", false, "do not rename it")]
    #[case("LOADING Redis is loading the dataset in memory", true, "LOADING")]
    #[case("OOM command not allowed when used memory > 'maxmemory'.", true, "OOM")]
    #[case("ERR an unknown reason", false, "ERR an unknown reason")]
    #[case::memory_of_a_script_in_redis_6(
        "@user_script: 26: -OOM command not allowed when used memory > 'maxmemory'.\r\n (SET)",
        true,
        "says: OOM"
    )]
    #[case::right_of_a_script_in_redis_6(
        "@user_script: 1: The user executing the script can't run this command or subcommand",
        false,
        "lists those"
    )]
    #[case::right_of_a_script_since_redis_8_and_in_valkey(
        "ERR ACL failure in script: User ann has no permissions to run the 'setrange' command (SETRANGE)",
        false,
        "lists those"
    )]
    #[case::protected_mode(
        "DENIED Redis is running in protected mode because protected mode is enabled and no password is set for the default user.",
        false,
        "switch protected-mode off"
    )]
    fn an_error_names_the_remedy(#[case] words: &str, #[case] passes: bool, #[case] advice: &str) {
        let error = refusal(&Endpoint::tcp("redis", 6379), &Login::default(), words);
        assert_eq!(matches!(error, ConnectError::Unreachable(_)), passes, "{error}");
        let error = error.to_string();
        assert!(error.contains(advice) && error.contains("redis:6379"), "{error}");
        assert!(!error.contains(char::is_control), "{error:?}");
    }

    /// A connection to a master that has become a replica is given up for one to the new master.
    #[rstest]
    #[case::of_redis_7(
        "READONLY You can't write against a read only replica. script: 4e6d, on @user_script:1.",
        true
    )]
    #[case::of_redis_6(
        "ERR Error running script (call to f_a006146212a026ee8ccc6cfa308420473933fd44): @user_script:180: \
         @user_script: 180: -READONLY You can't write against a read only replica.\r\n",
        true
    )]
    #[case::of_a_master_that_loads("LOADING Redis is loading the dataset in memory", true)]
    #[case::that_is_full("OOM command not allowed when used memory > 'maxmemory'.", false)]
    #[case::of_a_key_of_that_name("ERR an unknown reason: -READONLY", false)]
    fn recognises_replies_of_a_demoted_or_closing_server(#[case] words: &str, #[case] is_so: bool) {
        assert_eq!(is_elsewhere(words), is_so);
    }

    #[test]
    fn a_password_in_a_reply_is_not_shown() {
        for words in [
            "ERR unknown command 'AUTH', with args beginning with: 'hunter2' ",
            "ERR unknown command `AUTH`, with args beginning with: `ann`, `hunter2`, ",
        ] {
            let error =
                refusal(&Endpoint::tcp("redis", 6379), &Login::default(), words).to_string();
            assert!(error.contains("AUTH") && !error.contains("hunter2"), "{error}");
        }
    }
}
