//! Which run of a server a fresh connection leads to.

use super::{
    link::read_one,
    resp::{self, Value},
};
use std::io;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};

/// Asked before the connection is handed on. `None` where the server does not say, as without the right to `INFO`.
///
/// # Errors
///
/// The connection's.
pub(super) async fn run_of(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
) -> io::Result<Option<String>> {
    stream.write_all(&resp::command(&[b"INFO", b"server"])).await?;
    Ok(match read_one(stream).await? {
        Value::Bytes(text) => run_id(&text),
        _ => None,
    })
}

fn run_id(info: &[u8]) -> Option<String> {
    let id = info.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"run_id:"))?;
    let id = std::str::from_utf8(id).ok()?.trim();
    // Forty digits; whatever another server makes of it is bounded all the same.
    ((1..=64).contains(&id.len())).then(|| id.to_owned())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    #[rstest]
    #[case::of_a_server(
        "# Server\r\nredis_version:7.0.15\r\nrun_id:0f3a\r\ntcp_port:6379\r\n",
        Some("0f3a")
    )]
    #[case::that_does_not_say("# Server\r\nredis_version:7.0.15\r\n", None)]
    #[case::empty("run_id:\r\n", None)]
    #[case::in_the_middle_of_a_line("x_run_id:0f3a\r\n", None)]
    fn the_run_of_a_server(#[case] info: &str, #[case] id: Option<&str>) {
        assert_eq!(super::run_id(info.as_bytes()).as_deref(), id);
    }
}
