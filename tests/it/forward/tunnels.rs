//! Tunnels to hosts of no upstream, where an allow list names them.

use super::{Forward, vendor};
use crate::support::{Answer, Dns, Says, Upstream, eventually, free_port};
use rstest::rstest;
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
