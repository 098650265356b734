//! Upstreams that are reached through an HTTP proxy.

use crate::support::{Authority, Gateway, Upstream, eventually};
use parking_lot::Mutex;
use rstest::rstest;
use serde_json::Value;
use std::{net::SocketAddr, sync::Arc};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional},
    net::{TcpListener, TcpStream},
};
use tokio_rustls::rustls::DEFAULT_VERSIONS;

/// A proxy that opens tunnels to one address, whatever host it is asked for, or answers with `refusal`; it notes the heads that
/// it got.
struct Corporate {
    address: SocketAddr,
    heads: Arc<Mutex<Vec<String>>>,
}

impl Corporate {
    async fn start(to: SocketAddr, refusal: Option<&'static str>) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let heads = Arc::<Mutex<Vec<String>>>::default();
        let seen = heads.clone();
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let seen = seen.clone();
                tokio::spawn(async move {
                    let mut head = Vec::new();
                    while !head.ends_with(b"\r\n\r\n") {
                        head.push(client.read_u8().await.expect("a head"));
                    }
                    seen.lock().push(String::from_utf8(head).expect("text"));
                    if let Some(refusal) = refusal {
                        client.write_all(refusal.as_bytes()).await.expect("send");
                        // An empty answer keeps the client waiting.
                        let _ = client.read_u8().await;
                        return;
                    }
                    client.write_all(b"HTTP/1.1 200 OK\r\nX: y\r\n\r\n").await.expect("send");
                    let mut upstream = TcpStream::connect(to).await.expect("connect");
                    let _ = copy_bidirectional(&mut client, &mut upstream).await;
                });
            }
        });
        Self { address, heads }
    }
}

fn yaml(url: &str, via: &str, more: &str) -> String {
    format!(
        "upstreams: {{ vendor: {{ url: '{url}', via: '{via}', connect_timeout: 1m{more} }} }}
routes: [{{ suffix: \"*\" }}]
"
    )
}

/// The proxy resolves the name, which no other server knows.
#[rstest]
#[case::clear_text(false, "vendor.invalid:80")]
#[case::tls(true, "vendor.invalid:443")]
#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_is_reached_through_a_proxy(#[case] is_https: bool, #[case] asked: &str) {
    let authority = Authority::new();
    let upstream = match is_https {
        true => Upstream::tls(authority.server("vendor.invalid", DEFAULT_VERSIONS, None)).await,
        false => Upstream::ok().await,
    };
    let proxy = Corporate::start(upstream.address(), None).await;
    let (url, more) = match is_https {
        true => ("https://vendor.invalid", format!(", ca: '{}'", authority.file())),
        false => ("http://vendor.invalid", String::new()),
    };
    let via = format!("http://me:se%2Fcret@{}", proxy.address);
    let gateway = Gateway::start(&yaml(url, &via, &more)).await;
    for _ in 0..3 {
        assert_eq!(gateway.get("/x").await.text(), "ok");
    }
    assert_eq!(upstream.calls()[0].head.get("host"), Some("vendor.invalid"));
    let heads = proxy.heads.lock().clone();
    let head = format!(
        "CONNECT {asked} HTTP/1.1\r\nHost: {asked}\r\nProxy-Authorization: Basic bWU6c2UvY3JldA==\r\n\r\n"
    );
    assert!(heads.iter().all(|own| *own == head), "{heads:?}");
    let (stdout, stderr) = gateway.output();
    let said = [stdout, stderr].concat().join("\n");
    assert!(
        !said.contains("bWU6") && !said.contains("se%2Fcret") && !said.contains("se/cret"),
        "{said}"
    );
}

#[rstest]
#[case::password(
    Some("HTTP/1.1 407 Proxy Authentication Required\r\n\r\n"),
    "me:hunter2@",
    "refuses the user or the password"
)]
#[case::no_password(
    Some("HTTP/1.1 407 Proxy Authentication Required\r\n\r\n"),
    "",
    "it wants a user and a password"
)]
#[case::bad_gateway(
    Some("HTTP/1.1 502 Bad Gateway\r\n\r\n"),
    "",
    "it answered 502 to the CONNECT to vendor.invalid:80"
)]
#[case::no_proxy(Some("SSH-2.0-x\r\n"), "", "is it an HTTP proxy?")]
#[case::silence(Some(""), "", "it did not answer CONNECT in time")]
#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_of_the_proxy_is_clear(
    #[case] refusal: Option<&'static str>,
    #[case] credentials: &str,
    #[case] reason: &str,
) {
    let proxy = Corporate::start(SocketAddr::from(([127, 0, 0, 1], 1)), refusal).await;
    let via = format!("http://{credentials}{}", proxy.address);
    let patience = if refusal == Some("") { "500ms" } else { "1m" };
    let text = yaml("http://vendor.invalid", &via, "");
    let gateway = Gateway::start(
        &text.replace("connect_timeout: 1m", &format!("connect_timeout: {patience}")),
    )
    .await;
    let answer = gateway.get("/").await;
    assert_eq!((answer.status, answer.problem()), (502, "upstream-unreachable".into()));
    assert!(answer.text().contains(reason), "{}", answer.text());
    let line = eventually("it is said", async || {
        let is_meant = |line: &Value| line["upstream"] == "vendor" && line["level"] == "WARN";
        gateway.events().into_iter().find(is_meant)
    });
    let error = line.await["error"].as_str().expect("a text").to_owned();
    assert!(error.contains(reason) && error.contains(&proxy.address.to_string()), "{error}");
    assert!(!gateway.output().1.join("\n").contains("hunter2"));
}
