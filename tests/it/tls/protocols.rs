//! The application protocol that client and gateway agree on, and handshakes that end without one.

use super::{Authority, connect, pair, start};
use crate::support::{Conn, Upstream, request};
use rstest::rstest;

#[rstest]
#[case::both(&["h2", "http/1.1"], Some("h2"))]
#[case::ours_comes_first(&["http/1.1", "h2"], Some("h2"))]
#[case::one(&["http/1.1"], Some("http/1.1"))]
#[case::none(&[], None)]
#[tokio::test(flavor = "multi_thread")]
async fn the_protocol_is_negotiated(#[case] offered: &[&str], #[case] agreed: Option<&str>) {
    let (upstream, directory) = (Upstream::ok().await, tempfile::tempdir().expect("a directory"));
    let authority = Authority::new();
    authority.write(directory.path(), "a.example");
    let gateway =
        start(&upstream, &format!("{{ {} }}", pair(directory.path(), "a.example")), "").await;
    let stream = connect(&gateway, authority.client(offered), "a.example").await.expect("TLS");
    let protocol = stream.get_ref().1.alpn_protocol().map(<[u8]>::to_vec);
    assert_eq!(protocol.as_deref(), agreed.map(str::as_bytes));
    let mut conn = Conn::over(stream);
    if agreed == Some("h2") {
        conn.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.expect("send");
        // Its settings.
        conn.until("\x04\0\0\0\0\0").await.expect("HTTP/2");
    } else {
        conn.send(request("GET", "/", &[])).await.expect("send");
        assert_eq!(conn.answer().await.expect("an answer").status, 200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn peers_without_a_common_version_do_not_connect() {
    let (upstream, directory) = (Upstream::ok().await, tempfile::tempdir().expect("a directory"));
    let authority = Authority::new();
    authority.write(directory.path(), "a.example");
    let gateway =
        start(&upstream, &format!("{{ {} }}", pair(directory.path(), "a.example")), "").await;
    assert!(connect(&gateway, authority.client(&["h3"]), "a.example").await.is_err());
    let mut clear = gateway.connect().await;
    clear.send(request("GET", "/", &[])).await.expect("send");
    clear.rest().await;
    gateway.until_refused("tls", 2).await;
    assert_eq!(upstream.calls().len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_handshake_is_disconnected_and_delays_no_client() {
    let (upstream, directory) = (Upstream::ok().await, tempfile::tempdir().expect("a directory"));
    let authority = Authority::new();
    authority.write(directory.path(), "a.example");
    let tls = format!("{{ {} }}", pair(directory.path(), "a.example"));
    // Long enough for a handshake of another client on a busy machine.
    let more = "workers: 1\nclient: { header_timeout: 5s }";
    let gateway = start(&upstream, &tls, more).await;
    let mut slow = gateway.connect().await;
    // The beginning of a record, and no more.
    slow.send(b"\x16\x03\x01\x02\0\x01").await.expect("send");
    let stream = connect(&gateway, authority.client(&[]), "a.example").await.expect("TLS");
    let mut conn = Conn::over(stream);
    conn.send(request("GET", "/", &[])).await.expect("send");
    assert_eq!(conn.answer().await.expect("an answer").status, 200);
    slow.rest().await;
    gateway.until_refused("header_timeout", 1).await;
}
