//! Attempts to reach through the forward proxy what is none of its upstreams.

use super::{Forward, before, get, vendor};
use crate::support::{Conn, Upstream};
use rstest::rstest;

/// A proxy before one upstream in clear text.
async fn plain() -> (Forward, Upstream) {
    let upstream = Upstream::ok().await;
    let yaml = format!("upstream: {}\nroutes: [{{ suffix: \"*\" }}]\n", upstream.url());
    (Forward::start(&yaml, "").await, upstream)
}

#[rstest]
#[case::another_host("GET http://example.com/ HTTP/1.1\r\nHost: example.com\r\n\r\n", 403)]
#[case::host_of_the_upstream("GET http://example.com/ HTTP/1.1\r\nHost: UPSTREAM\r\n\r\n", 403)]
#[case::admin("GET http://ADMIN/limiters HTTP/1.1\r\nHost: ADMIN\r\n\r\n", 403)]
#[case::metadata("GET http://169.254.169.254/ HTTP/1.1\r\nHost: 169.254.169.254\r\n\r\n", 403)]
#[case::another_scheme("GET https://UPSTREAM/ HTTP/1.1\r\nHost: UPSTREAM\r\n\r\n", 403)]
#[case::origin_form("GET / HTTP/1.1\r\nHost: UPSTREAM\r\n\r\n", 400)]
#[case::user_info("GET http://UPSTREAM@example.com/ HTTP/1.1\r\nHost: UPSTREAM\r\n\r\n", 400)]
#[case::ftp("GET ftp://UPSTREAM/ HTTP/1.1\r\nHost: UPSTREAM\r\n\r\n", 400)]
#[case::tunnel_to_another_host(
    "CONNECT example.com:443 HTTP/1.1\r\nHost: example.com:443\r\n\r\n",
    403
)]
#[case::tunnel_to_admin("CONNECT ADMIN HTTP/1.1\r\nHost: ADMIN\r\n\r\n", 403)]
#[case::tunnel_to_metadata(
    "CONNECT 169.254.169.254:80 HTTP/1.1\r\nHost: 169.254.169.254:80\r\n\r\n",
    403
)]
#[case::two_hosts("CONNECT UPSTREAM HTTP/1.1\r\nHost: example.com\r\n\r\n", 400)]
#[case::body("CONNECT UPSTREAM HTTP/1.1\r\nHost: UPSTREAM\r\nContent-Length: 3\r\n\r\nabc", 400)]
#[case::coding(
    "CONNECT UPSTREAM HTTP/1.1\r\nHost: UPSTREAM\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    400
)]
#[case::early_bytes(
    "CONNECT UPSTREAM HTTP/1.1\r\nHost: UPSTREAM\r\n\r\nGET / HTTP/1.1\r\nHost: UPSTREAM\r\n\r\n",
    400
)]
#[case::trace("TRACE http://UPSTREAM/ HTTP/1.1\r\nHost: UPSTREAM\r\n\r\n", 405)]
#[tokio::test(flavor = "multi_thread")]
async fn nothing_else_is_reached(#[case] bytes: &str, #[case] status: u16) {
    let (forward, upstream) = plain().await;
    let (admin, own) = (forward.gateway.admin.to_string(), upstream.address().to_string());
    let answer = forward.answer(&bytes.replace("ADMIN", &admin).replace("UPSTREAM", &own)).await;
    assert_eq!(answer.status, status, "{answer:?}");
    answer.problem();
    assert_eq!(upstream.connections(), 0);
}

/// A second CONNECT, after a request on the same connection, is no way out.
#[tokio::test(flavor = "multi_thread")]
async fn a_tunnel_begins_a_connection() {
    let (forward, upstream) = plain().await;
    let host = upstream.address().to_string();
    let mut conn = Conn::to(forward.proxy).await.expect("connect");
    conn.send(get(&format!("http://{host}/"), &host, "")).await.expect("send");
    assert_eq!(conn.answer().await.expect("an answer").status, 200);
    conn.send("CONNECT example.com:443 HTTP/1.1\r\nHost: example.com:443\r\n\r\n")
        .await
        .expect("send");
    assert_eq!(conn.answer().await.expect("an answer").status, 405);
    assert_eq!(conn.rest().await, b"");
}

#[rstest]
#[case::another_host("/", "example.com", 403)]
#[case::another_port("/", "localhost:1", 403)]
#[case::admin("/limiters", "ADMIN", 403)]
#[case::whole_url("http://localhost:PORT/", "localhost:PORT", 403)]
#[case::whole_url_of_another("https://example.com/", "localhost:PORT", 403)]
#[case::nested_tunnel("CONNECT", "localhost:PORT", 405)]
#[case::its_own("/", "localhost:PORT", 200)]
#[case::in_capitals("/", "LOCALHOST:PORT", 200)]
#[tokio::test(flavor = "multi_thread")]
async fn a_tunnel_is_for_one_origin(#[case] target: &str, #[case] host: &str, #[case] status: u16) {
    let (vendor, authority) = vendor().await;
    let forward = Forward::start(&before(&vendor, &authority), "").await;
    let (port, admin) = (vendor.address().port().to_string(), forward.gateway.admin.to_string());
    let filled = |text: &str| text.replace("PORT", &port).replace("ADMIN", &admin);
    let tls = forward.open(&format!("localhost:{port}"), &["http/1.1"]).await;
    let mut conn = Conn::over(tls);
    let request = match target {
        "CONNECT" => format!("CONNECT {0} HTTP/1.1\r\nHost: {0}\r\n\r\n", filled(host)),
        target => get(&filled(target), &filled(host), ""),
    };
    conn.send(request).await.expect("send");
    let answer = conn.answer().await.expect("an answer");
    assert_eq!(answer.status, status, "{answer:?}");
    assert_eq!(vendor.calls().len(), usize::from(status == 200));
}
