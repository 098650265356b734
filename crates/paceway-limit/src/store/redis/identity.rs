//! Reads which run of a server a connection leads to. A server that has restarted or was promoted may lack states.

use super::info::Info;
use redis::Value;

/// A server from its start to its end, and what it has done with the keys that it was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ServerRun {
    pub(super) id: Box<str>,
    /// The replication offset up to which it had followed the master that it replaced, if it was promoted.
    pub(super) promoted_at: Option<i64>,
    /// How many keys it has evicted since its start.
    pub(super) evicted: i64,
}

/// The command whose reply [`read`] reads.
pub(super) const INFO: &[u8] = b"INFO";

/// Reads the reply to `INFO`; `None` if the server does not say, as without the right to that command.
pub(super) fn read(said: &Value) -> Option<ServerRun> {
    let Value::BulkString(text) = said else { return None };
    let info = Info::new(text);
    let id = info.get("run_id")?;
    let promoted_at = info.number("second_repl_offset").filter(|offset| *offset >= 0);
    let evicted = info.number("evicted_keys").unwrap_or(0);
    // Redis writes forty digits; the bound is for other servers.
    let is_one = (1..=64).contains(&id.len());
    is_one.then(|| ServerRun { id: id.into(), promoted_at, evicted })
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
    fn reads_the_run_of_a_server(
        #[case] info: &str,
        #[case] expected: Option<(&str, Option<i64>, i64)>,
    ) {
        let expected = expected.map(|(id, promoted_at, evicted)| ServerRun {
            id: id.into(),
            promoted_at,
            evicted,
        });
        assert_eq!(read(&Value::BulkString(info.as_bytes().into())), expected);
        assert_eq!(read(&Value::Nil), None);
    }
}
