//! Commands and errors in the form that redis-rs gives them. Sends nothing.

use redis::{Cmd, RedisWrite, ServerError};

/// Makes a command of these words, the first of which is its name.
pub(in crate::store::redis) fn command(words: &[&[u8]]) -> Cmd {
    let mut command = Cmd::with_capacity(words.len(), words.iter().map(|word| word.len()).sum());
    words.iter().for_each(|word| command.write_arg(word));
    command
}

/// Returns the whole line of an error as the server has written it, such as `MOVED 3999 10.0.0.1:6381`. redis-rs keeps
/// the first word apart, and for the errors that it knows it prints a name of its own in its place.
pub(in crate::store::redis) fn words(error: &ServerError) -> String {
    match error.details() {
        Some(details) => format!("{} {details}", error.code()),
        None => error.code().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::that_redis_rs_knows("MOVED 3999 10.0.0.1:6381")]
    #[case::of_the_plainest_kind("ERR value is not an integer")]
    #[case::that_loads("LOADING Redis is loading the dataset in memory")]
    #[case::that_redis_rs_does_not_know("OOM command not allowed when used memory > 'maxmemory'.")]
    #[case::of_one_word("NOSCRIPT")]
    #[case::of_a_script("@user_script: 26: -OOM command not allowed")]
    #[case::that_ends_in_a_space("ERR ")]
    #[case::empty("")]
    fn an_error_keeps_its_text(#[case] line: &str) {
        let reply = redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).expect("a reply");
        let redis::Value::ServerError(error) = reply else { panic!("{reply:?}") };
        assert_eq!(words(&error), line);
    }

    #[test]
    fn a_command_is_packed_with_its_arguments() {
        let packed = command(&[b"GET", b"a b"]).get_packed_command();
        assert_eq!(packed, b"*2\r\n$3\r\nGET\r\n$3\r\na b\r\n");
    }
}
