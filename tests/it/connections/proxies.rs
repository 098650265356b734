//! The client that a PROXY header names, and the family of its address.

use super::{ends, with};
use crate::support::{Reply, Upstream, eventually, reply, request};
use rstest::rstest;

const PROXIES: &str = "proxy_protocol: on\nclient: { header_timeout: 300ms }\n\
                       trusted_proxies: [127.0.0.1/32, 192.0.2.9/32]";

/// The connections of a proxy count for the clients that it names, and not for the proxy.
#[tokio::test(flavor = "multi_thread")]
async fn each_client_of_a_proxy_has_its_own_connections() {
    let upstream = Upstream::ok().await;
    let keys = "client: { max_connections_per_address: 1 }\nproxy_protocol: on\ntrusted_proxies: [127.0.0.1]";
    let gateway = with(&upstream, keys).await;
    let knock = async |client: &str| {
        let mut conn = gateway.connect().await;
        let head = format!("PROXY TCP4 {client} 198.51.100.1 5000 443\r\n");
        conn.send(head + &request("GET", "/", &[])).await.expect("send");
        let status = conn.answer().await.map(|answer| answer.status).ok();
        (conn, status)
    };
    let (first, status) = knock("192.0.2.1").await;
    assert_eq!(status, Some(200));
    assert_eq!(knock("192.0.2.1").await.1, None, "closed");
    gateway.until_refused("address", 1).await;
    assert_eq!(knock("192.0.2.2").await.1, Some(200));
    drop(first);
    eventually("it may come again", async || {
        (knock("192.0.2.1").await.1 == Some(200)).then_some(())
    })
    .await;
}

/// Version 2 of `PROXY TCP4 192.0.2.1 198.51.100.1 5000 443`, with `more` behind the addresses.
fn version_2(more: &[u8]) -> Vec<u8> {
    let length = u16::try_from(12 + more.len()).expect("short").to_be_bytes();
    let addresses = b"\xc0\0\x02\x01\xc6\x33\x64\x01\x13\x88\x01\xbb";
    [b"\r\n\r\n\0\r\nQUIT\n\x21\x11", &length[..], addresses, more].concat()
}

#[rstest]
#[case::version_1(b"PROXY TCP4 192.0.2.1 198.51.100.1 5000 443\r\n", "192.0.2.1")]
#[case::ipv6(b"PROXY TCP6 2001:db8::7 2001:db8::1 5000 443\r\n", "2001:db8::7")]
#[case::mapped(b"PROXY TCP6 ::ffff:192.0.2.1 ::1 5000 443\r\n", "192.0.2.1")]
#[case::unknown(b"PROXY UNKNOWN\r\n", "127.0.0.1")]
#[case::version_2(&version_2(b""), "192.0.2.1")]
#[case::version_2_with_more(&version_2(&[4; 4000]), "192.0.2.1")]
#[case::local(b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0", "127.0.0.1")]
#[tokio::test(flavor = "multi_thread")]
async fn a_trusted_proxy_names_its_client(
    #[case] header: &[u8],
    #[case] client: &str,
    #[values(false, true)] byte_by_byte: bool,
) {
    let upstream = Upstream::ok().await;
    let gateway = with(&upstream, PROXIES).await;
    let mut conn = gateway.connect().await;
    if byte_by_byte {
        for byte in header.chunks(1) {
            conn.send(byte).await.expect("send");
            tokio::task::yield_now().await;
        }
    }
    let header = if byte_by_byte { &[] } else { header };
    let request = request("GET", "/", &[("X-Forwarded-For", "6.6.6.6")]);
    conn.send([header, request.as_bytes()].concat()).await.expect("send");
    assert_eq!(conn.answer().await.expect("an answer").status, 200);
    let seen = upstream.calls()[0].head.all("x-forwarded-for").join(", ");
    // The client that it names is believed no more than any other client, and neither is the data after a header that
    // names no client.
    assert_eq!(seen, client);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chain_of_trusted_proxies_names_the_client() {
    let upstream = Upstream::ok().await;
    let gateway = with(&upstream, PROXIES).await;
    let mut conn = gateway.connect().await;
    conn.send("PROXY TCP4 192.0.2.9 198.51.100.1 5000 443\r\n").await.expect("send");
    conn.send(request("GET", "/", &[("X-Forwarded-For", "6.6.6.6")])).await.expect("send");
    assert_eq!(conn.answer().await.expect("an answer").status, 200);
    assert_eq!(upstream.calls()[0].head.all("x-forwarded-for").join(", "), "6.6.6.6, 192.0.2.9");
}

#[rstest]
#[case::a_request(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")]
#[case::too_long(&[b"PROXY UNKNOWN ", &[b'a'; 200][..]].concat())]
#[case::without_an_end(b"PROXY TCP4 192.0.2.1")]
#[case::bad_address(b"PROXY TCP4 192.0.2.256 198.51.100.1 5000 443\r\n")]
#[case::version_3(b"\r\n\r\n\0\r\nQUIT\n\x31\x11\0\0")]
#[case::rest_too_long(b"\r\n\r\n\0\r\nQUIT\n\x21\x11\xff\xff")]
#[case::rest_too_short(b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x04abcd")]
#[case::nothing(b"")]
#[tokio::test(flavor = "multi_thread")]
async fn a_trusted_proxy_without_the_proxy_header_is_disconnected(#[case] bytes: &[u8]) {
    let upstream = Upstream::ok().await;
    let gateway = with(&upstream, PROXIES).await;
    assert_eq!(ends(&gateway, bytes).await, "");
    eventually("it is counted", async || {
        let late = gateway.refused_connections("header_timeout").await;
        (gateway.refused_connections("proxy_protocol").await + late == 1.0).then_some(())
    })
    .await;
    assert_eq!(upstream.calls().len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_untrusted_peer_counts_as_the_client() {
    let upstream = Upstream::ok().await;
    let gateway = with(&upstream, "proxy_protocol: on\ntrusted_proxies: [10.0.0.0/8]").await;
    assert_eq!(gateway.get("/").await.status, 200);
    let lie = "PROXY TCP4 192.0.2.1 198.51.100.1 5000 443\r\n";
    let answer = ends(&gateway, format!("{lie}{}", request("GET", "/", &[]))).await;
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    assert_eq!(upstream.calls()[0].head.all("x-forwarded-for"), ["127.0.0.1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn ipv6_clients_are_served() {
    let upstream = Upstream::start(|_| Reply::ok()).await;
    let gateway = with(&upstream, "listen: \"[::1]:0\"\nadmin: \"[::1]:0\"").await;
    assert!(gateway.listen.is_ipv6());
    assert_eq!(gateway.get("/").await.status, 200);
    assert_eq!(upstream.calls()[0].head.all("x-forwarded-for"), ["::1"]);
    let line = gateway.line("/").await;
    assert_eq!(line["client"], "::1");
}

#[tokio::test(flavor = "multi_thread")]
async fn ipv4_clients_of_a_dual_stack_socket_have_ipv4_addresses() {
    let upstream = Upstream::start(|_| reply("200 OK", &[], "ok")).await;
    let gateway = with(&upstream, "listen: \"[::]:0\"").await;
    let address = (
        "127.0.0.1".parse().map(|ip: std::net::IpAddr| ip).expect("an address"),
        gateway.listen.port(),
    );
    let answer = crate::support::get(address.into(), "/").await;
    assert_eq!(answer.status, 200);
    assert_eq!(upstream.calls()[0].head.all("x-forwarded-for"), ["127.0.0.1"]);
}
