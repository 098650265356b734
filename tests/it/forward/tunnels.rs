//! Tunnels to hosts of no upstream, where an allow list names them.

use super::{Forward, get, vendor};
use crate::support::{Answer, Conn, Dns, Says, Upstream, eventually, free_port};
use rstest::rstest;
use serde_json::{Value, json};
use std::net::Ipv4Addr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const NOWHERE: &str = "upstream: http://192.0.2.1\nroutes: [{ suffix: \"*\" }]\n";

/// The head of a CONNECT.
fn connect(host: &str) -> String {
    format!("CONNECT {host} HTTP/1.1\r\nHost: {host}\r\n\r\n")
}

/// The octets pass as they are: the gateway neither answers for the host nor counts a request.
#[tokio::test(flavor = "multi_thread")]
async fn an_allowed_host_is_spoken_to_as_it_is() {
    let echo = Upstream::raw(|mut conn| async move {
        while let Ok(Some(bytes)) = conn.some().await {
            conn.send(bytes).await.expect("send");
        }
    })
    .await;
    let host = echo.address().to_string();
    let forward = Forward::start(NOWHERE, &format!(", others: tunnel, allow: [\"{host}\"]")).await;
    let mut stream = forward.connect(&host).await;
    stream.write_all(b"\x00no HTTP\xff").await.expect("send");
    let mut echoed = [0; 9];
    stream.read_exact(&mut echoed).await.expect("an echo");
    assert_eq!(&echoed, b"\x00no HTTP\xff");
    assert_eq!(forward.gateway.metric("paceway_connections", &[("protocol", "tunnel")]).await, 1.0);
}

#[rstest]
#[case::this_machine("127.0.0.1:PORT", "*:*")]
#[case::this_machine_by_name("localhost:PORT", "*:*")]
#[case::another_port("127.0.0.1:PORT", "127.0.0.1:443")]
#[case::admin("127.0.0.1:ADMIN", "127.0.0.1:*")]
#[case::admin_by_name("localhost:ADMIN", "localhost:*")]
#[case::admin_in_another_way("[::ffff:127.0.0.1]:ADMIN", "[::ffff:127.0.0.1]:*")]
#[case::zero("0.0.0.0:PORT", "0.0.0.0:*")]
#[case::metadata("169.254.169.254:80", "169.254.169.254:*")]
#[case::link_local("[fe80::1]:80", "*:*")]
#[tokio::test(flavor = "multi_thread")]
async fn an_allow_list_has_limits(#[case] host: &str, #[case] allow: &str) {
    let (vendor, _) = vendor().await;
    let admin = free_port().to_string();
    let yaml = format!("admin: 127.0.0.1:{admin}\n{NOWHERE}");
    let forward = Forward::start(&yaml, &format!(", others: tunnel, allow: [\"{allow}\"]")).await;
    let port = vendor.address().port().to_string();
    let host = host.replace("PORT", &port).replace("ADMIN", &admin);
    let answer = forward.answer(&connect(&host)).await;
    assert_eq!((answer.status, answer.problem()), (403, "host-forbidden".into()), "{answer:?}");
    assert_eq!(vendor.connections(), 0);
}

/// A tunnel that its sides keep open ends shortly before the drain does.
#[tokio::test(flavor = "multi_thread")]
async fn a_tunnel_ends_with_the_gateway() {
    let silent = Upstream::raw(|mut conn| async move { drop(conn.rest().await) }).await;
    let host = silent.address().to_string();
    let yaml = format!("drain_timeout: 2s\n{NOWHERE}");
    let mut forward =
        Forward::start(&yaml, &format!(", others: tunnel, allow: [\"{host}\"]")).await;
    let mut stream = forward.connect(&host).await;
    // An answer may come.
    stream.write_all(b"ask").await.expect("send");
    forward.gateway.signal("TERM");
    assert_eq!(stream.read(&mut [0; 1]).await.expect("an end"), 0);
    assert!(forward.gateway.end().await.success());
}

/// The next CONNECT is decided by the list and the DNS servers of the new configuration.
#[tokio::test(flavor = "multi_thread")]
async fn a_reload_changes_the_hosts_of_tunnels() {
    let echo = Upstream::raw(|mut conn| async move { drop(conn.rest().await) }).await;
    let port = echo.address().port();
    let dns = Dns::start(Says::Addresses(vec![Ipv4Addr::LOCALHOST.into()], 60)).await;
    let other = Dns::start(Says::NoSuchName).await;
    let tunnel = |allow: &str| format!(", others: tunnel, allow: [\"{allow}\"]");
    let resolver = |dns: &Dns| format!("resolver: [\"{}\"]\n{NOWHERE}", dns.address());
    let forward = Forward::start(&resolver(&other), &tunnel("api.test:1")).await;
    let host = format!("api.test:{port}");
    let until = async |status: u16| -> Answer {
        eventually("the new configuration holds", async || {
            let answer = forward.answer(&connect(&host)).await;
            (answer.status == status).then_some(answer)
        })
        .await
    };
    until(403).await;
    forward.reload(&resolver(&other), &tunnel(&host)).await;
    until(502).await;
    forward.reload(&resolver(&dns), &tunnel(&host)).await;
    drop(forward.connect(&host).await);
    forward.reload(&resolver(&dns), "").await;
    until(403).await;
}

/// The access line of the CONNECT to this host.
async fn line(forward: &Forward, host: &str) -> Value {
    let is_meant = |line: &Value| line["method"] == "CONNECT" && line["host"] == host;
    eventually("the line is written", async || forward.gateway.access().into_iter().find(is_meant))
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_access_log_has_tunnels_and_refusals_with_their_host() {
    let echo = Upstream::raw(|mut conn| async move {
        drop(conn.some().await);
        conn.send("answer").await.expect("send");
        drop(conn.rest().await);
    })
    .await;
    let host = echo.address().to_string();
    let allow = format!(", others: tunnel, allow: [\"{host}\", \"127.0.0.1:1\"]");
    let forward = Forward::start(NOWHERE, &allow).await;
    let mut stream = forward.connect(&host).await;
    stream.write_all(b"ask").await.expect("send");
    stream.read_exact(&mut [0; 6]).await.expect("an answer");
    drop(stream);
    let ended = line(&forward, &host).await;
    assert_line(
        &ended,
        json!({ "client": "127.0.0.1", "path": "-", "route": "-", "outcome": "passed", "status": 200,
            "bytes_sent": 6, "bytes_received": 3 }),
    );
    assert!(ended["total_ms"].as_f64() > Some(0.0), "{ended}");
    for (host, outcome, status) in
        [("api.example:443", "no_route", 403), ("127.0.0.1:1", "upstream_failed", 502)]
    {
        assert_eq!(forward.answer(&connect(host)).await.status, status);
        let refused = line(&forward, host).await;
        assert_line(
            &refused,
            json!({ "outcome": outcome, "status": status, "bytes_sent": null, "path": "-" }),
        );
        forward.gateway.until_counted("-", outcome, 1).await;
    }
}

fn assert_line(line: &Value, expected: Value) {
    for (name, value) in expected.as_object().expect("fields") {
        assert_eq!(&line[name], value, "{name}: {line}");
    }
}

/// Each step of a tunnel ends within `header_timeout`: a host that is not found in time is answered, and a client that says
/// nothing in its tunnel is left.
#[tokio::test(flavor = "multi_thread")]
async fn one_time_out_bounds_each_step_of_a_tunnel() {
    let dns = Dns::start(Says::Nothing).await;
    let upstream = Upstream::ok().await;
    let yaml = format!(
        "client: {{ header_timeout: 300ms }}\nresolver: [\"{}\"]\nupstream: {}\nroutes: [{{ suffix: \"*\" }}]\n",
        dns.address(),
        upstream.url()
    );
    let forward = Forward::start(&yaml, ", others: tunnel, allow: [\"api.test\"]").await;
    let answer = forward.answer(&connect("api.test:443")).await;
    assert_eq!((answer.status, answer.problem()), (504, "upstream-timeout".into()), "{answer:?}");
    let mut silent = forward.connect(&upstream.address().to_string()).await;
    assert_eq!(silent.read(&mut [0; 1]).await.expect("an end"), 0);
    forward.gateway.until_refused("header_timeout", 1).await;
}

/// A tunnel counts for its client, also where a PROXY header names the client.
#[rstest]
#[case::by_itself("", "")]
#[case::through_a_proxy(
    "proxy_protocol: on\ntrusted_proxies: [127.0.0.1]\n",
    "PROXY TCP4 192.0.2.1 198.51.100.1 5000 443\r\n"
)]
#[tokio::test(flavor = "multi_thread")]
async fn tunnels_count_for_their_client(#[case] keys: &str, #[case] header: &str) {
    let silent = Upstream::raw(|mut conn| async move { drop(conn.rest().await) }).await;
    let host = silent.address().to_string();
    let limit = "client: { max_connections_per_address: 2 }";
    let yaml = format!("{limit}\n{keys}{NOWHERE}");
    let forward = Forward::start(&yaml, &format!(", others: tunnel, allow: [\"{host}\"]")).await;
    let open = async || {
        let mut conn = Conn::to(forward.proxy).await.expect("connect");
        conn.send([header, &connect(&host)].concat()).await.expect("send");
        // One too many has no answer, or the one for too many connections.
        let head = conn.head().await.ok().flatten();
        (conn, head.is_some_and(|head| head.start.starts_with("HTTP/1.1 200")))
    };
    let (first, is_open) = open().await;
    assert!(is_open);
    let (second, is_open) = open().await;
    assert!(is_open);
    assert!(!open().await.1);
    forward.gateway.until_refused("address", 1).await;
    drop((first, second));
    eventually("another tunnel is opened", async || open().await.1.then_some(())).await;
    let client = if header.is_empty() { "127.0.0.1" } else { "192.0.2.1" };
    assert_eq!(line(&forward, &host).await["client"], client);
}

/// A trusted proxy names the client also of the forward proxy, and one that does not is refused.
#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_header_comes_before_connect() {
    let upstream = Upstream::ok().await;
    let keys = "proxy_protocol: on\ntrusted_proxies: [127.0.0.1]";
    let yaml = format!("{keys}\nupstream: {}\nroutes: [{{ suffix: \"*\" }}]\n", upstream.url());
    let forward = Forward::start(&yaml, "").await;
    let host = upstream.address().to_string();
    let mut conn = Conn::to(forward.proxy).await.expect("connect");
    let header = "PROXY TCP4 192.0.2.1 198.51.100.1 5000 443\r\n";
    conn.send([header, &connect(&host)].concat()).await.expect("send");
    assert!(conn.head().await.expect("a head").is_some());
    conn.send(get("/", &host, "")).await.expect("send");
    assert_eq!(conn.answer().await.expect("an answer").status, 200);
    assert_eq!(upstream.calls()[0].head.get("x-forwarded-for"), Some("192.0.2.1"));
    let mut other = Conn::to(forward.proxy).await.expect("connect");
    other.send(connect(&host)).await.expect("send");
    assert!(other.rest().await.is_empty());
    forward.gateway.until_refused("proxy_protocol", 1).await;
}

/// A tunnel whose host has said the last word, and then nothing, is most likely kept for later. It does not hold up the end.
#[tokio::test(flavor = "multi_thread")]
async fn an_idle_tunnel_does_not_delay_the_end_of_the_gateway() {
    let silent = Upstream::raw(|mut conn| async move { drop(conn.rest().await) }).await;
    let host = silent.address().to_string();
    let yaml = format!("drain_timeout: 1h\n{NOWHERE}");
    let mut forward =
        Forward::start(&yaml, &format!(", others: tunnel, allow: [\"{host}\"]")).await;
    let mut stream = forward.connect(&host).await;
    forward.gateway.signal("TERM");
    assert_eq!(stream.read(&mut [0; 1]).await.expect("an end"), 0);
    assert!(forward.gateway.end().await.success());
}
