//! Which run of a server a fresh connection leads to.

use super::{ConnectError, connect::ask, resp::Value, stream::Stream, url::Place};

/// A run of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) id: Box<str>,
    /// Up to where it had followed another server when it took that one's place, if it ever did.
    pub(super) promoted_at: Option<i64>,
}

/// Asked before the connection is handed on. `None` where the server does not say, as without the right to `INFO`.
///
/// # Errors
///
/// The connection's.
pub(super) async fn run_of(
    stream: &mut Stream,
    place: &Place,
) -> Result<Option<Run>, ConnectError> {
    Ok(match ask(stream, place, &[b"INFO"]).await? {
        Value::Bytes(text) => run(&text),
        _ => None,
    })
}

fn run(info: &[u8]) -> Option<Run> {
    let value = |name: &str| {
        let mut lines = info.split(|byte| *byte == b'\n');
        let value =
            lines.find_map(|line| line.strip_prefix(name.as_bytes())?.strip_prefix(b":"))?;
        Some(std::str::from_utf8(value).ok()?.trim())
    };
    let id = value("run_id")?;
    let promoted_at = value("second_repl_offset").and_then(|offset| offset.parse().ok());
    // Forty digits; whatever another server makes of it is bounded all the same.
    let is_one = (1..=64).contains(&id.len());
    is_one.then(|| Run { id: id.into(), promoted_at: promoted_at.filter(|offset| *offset >= 0) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::of_a_server(
        "# Server\r\nredis_version:7.0.15\r\nrun_id:0f3a\r\ntcp_port:6379\r\nsecond_repl_offset:-1\r\n",
        Some(("0f3a", None))
    )]
    #[case::of_one_that_was_a_replica("run_id:0f3a\r\nsecond_repl_offset:71\r\n", Some(("0f3a", Some(71))))]
    #[case::of_one_that_says_little("run_id:0f3a\r\n", Some(("0f3a", None)))]
    #[case::that_does_not_say("# Server\r\nredis_version:7.0.15\r\n", None)]
    #[case::empty("run_id:\r\n", None)]
    #[case::in_the_middle_of_a_line("x_run_id:0f3a\r\n", None)]
    fn the_run_of_a_server(#[case] info: &str, #[case] expected: Option<(&str, Option<i64>)>) {
        let expected = expected.map(|(id, promoted_at)| Run { id: id.into(), promoted_at });
        assert_eq!(run(info.as_bytes()), expected);
    }
}
