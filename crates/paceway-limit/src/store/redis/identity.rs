//! Which run of a server a connection leads to, and what it says of the states that it was given.

use super::{
    ConnectError,
    connect::ask,
    info::Info,
    resp::{self, Value},
    stream::Stream,
    url::Place,
};

/// A run of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) id: Box<str>,
    /// Up to where it had followed another server when it took that one's place, if it ever did.
    pub(super) promoted_at: Option<i64>,
    /// How many keys it has evicted.
    pub(super) evicted: i64,
}

/// What asks for it.
const INFO: &[u8] = b"INFO";

/// Asked before the connection is handed on. `None` where the server does not say, as without the right to `INFO`.
///
/// # Errors
///
/// The connection's.
pub(super) async fn run_of(
    stream: &mut Stream,
    place: &Place,
) -> Result<Option<Run>, ConnectError> {
    Ok(read(&ask(stream, place, &[INFO]).await?))
}

/// The command whose reply [`read`] reads.
pub(super) fn command() -> Vec<u8> {
    resp::command(&[INFO])
}

/// `None` of a server that does not say.
pub(super) fn read(said: &Value) -> Option<Run> {
    let Value::Bytes(text) = said else { return None };
    let info = Info::new(text);
    let id = info.get("run_id")?;
    let promoted_at = info.number("second_repl_offset").filter(|offset| *offset >= 0);
    let evicted = info.number("evicted_keys").unwrap_or(0);
    // Forty digits; whatever another server makes of it is bounded all the same.
    let is_one = (1..=64).contains(&id.len());
    is_one.then(|| Run { id: id.into(), promoted_at, evicted })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::of_a_server(
        "# Server\r\nrun_id:0f3a\r\ntcp_port:6379\r\nsecond_repl_offset:-1\r\nevicted_keys:0\r\n",
        Some(("0f3a", None, 0))
    )]
    #[case::of_one_that_was_a_replica("run_id:0f3a\r\nsecond_repl_offset:71\r\n", Some(("0f3a", Some(71), 0)))]
    #[case::of_one_that_evicts("run_id:0f3a\r\nevicted_keys:12\r\n", Some(("0f3a", None, 12)))]
    #[case::of_one_that_says_little("run_id:0f3a\r\n", Some(("0f3a", None, 0)))]
    #[case::that_does_not_say("# Server\r\nredis_version:7.0.15\r\n", None)]
    #[case::empty("run_id:\r\n", None)]
    fn the_run_of_a_server(#[case] info: &str, #[case] expected: Option<(&str, Option<i64>, i64)>) {
        let expected =
            expected.map(|(id, promoted_at, evicted)| Run { id: id.into(), promoted_at, evicted });
        assert_eq!(read(&Value::Bytes(info.as_bytes().into())), expected);
        assert_eq!(read(&Value::Error("NOPERM".into())), None);
    }
}
