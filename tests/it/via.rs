//! Upstreams that are reached through an HTTP proxy.

mod together;

use crate::support::{Authority, Dns, Gateway, Says, Upstream, eventually, free_port};
use parking_lot::Mutex;
use rstest::rstest;
use serde_json::Value;
use socket2::{Domain, Socket, Type};
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
        Self::leading(move |_| refusal.map_or(Ok(to), Err)).await
    }

    /// A proxy that asks `find` where a tunnel to a host and port leads, or with what it is refused.
    async fn leading(
        find: impl Fn(&str) -> Result<SocketAddr, &'static str> + Send + Sync + 'static,
    ) -> Self {
        let find = Arc::new(find);
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let heads = Arc::<Mutex<Vec<String>>>::default();
        let seen = heads.clone();
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let (seen, find) = (seen.clone(), find.clone());
                tokio::spawn(async move {
                    let mut head = Vec::new();
                    while !head.ends_with(b"\r\n\r\n") {
                        head.push(client.read_u8().await.expect("a head"));
                    }
                    let head = String::from_utf8(head).expect("text");
                    let found = find(head.split(' ').nth(1).expect("a target"));
                    seen.lock().push(head);
                    if let Err(refusal) = found {
                        client.write_all(refusal.as_bytes()).await.expect("send");
                        // An empty answer keeps the client waiting.
                        let _ = client.read_u8().await;
                        return;
                    }
                    client.write_all(b"HTTP/1.1 200 OK\r\nX: y\r\n\r\n").await.expect("send");
                    let to = found.expect("an address");
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
    let (upstream, url, more) = if is_https {
        let server = authority.server("vendor.invalid", DEFAULT_VERSIONS, None);
        let more = format!(", ca: '{}'", authority.file());
        (Upstream::tls(server).await, "https://vendor.invalid", more)
    } else {
        (Upstream::ok().await, "http://vendor.invalid", String::new())
    };
    let proxy = Corporate::start(upstream.address(), None).await;
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
#[case::more_than_a_head(Some("HTTP/1.1 200 OK\r\n\r\n<html>"), "", "is it an HTTP proxy?")]
#[case::no_proxy(Some("SSH-2.0-x\r\n"), "", "is it an HTTP proxy?")]
#[case::another_authentication(
    Some("HTTP/1.1 407 No\r\nProxy-Authenticate: Negotiate\r\nProxy-Authenticate: NTLM\r\n\r\n"),
    "me:hunter2@",
    "takes Negotiate or NTLM alone, but the gateway can only speak Basic"
)]
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
    let error = blamed(&gateway, &proxy.address.to_string(), reason).await;
    assert!(!error.contains("hunter2"), "{error}");
}

/// Asks for a page, which must fail because of this proxy for this reason, in the answer and in the log. Returns both.
async fn blamed(gateway: &Gateway, proxy: &str, reason: &str) -> String {
    let answer = gateway.get("/").await;
    assert_eq!((answer.status, answer.problem()), (502, "upstream-unreachable".into()));
    let line = eventually("it is said", async || {
        let is_meant = |line: &Value| line["upstream"] == "vendor" && line["level"] == "WARN";
        gateway.events().into_iter().find(is_meant)
    });
    let line = line.await;
    for text in [answer.text(), line.to_string()] {
        assert!(text.contains(proxy) && text.contains(reason), "{text}");
    }
    answer.text() + &gateway.output().1.join("\n")
}

/// A port that accepts no connection: its backlog is full.
fn deaf() -> (Socket, Vec<std::net::TcpStream>, SocketAddr) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).expect("a port");
    socket.listen(0).expect("listen");
    let address = socket.local_addr().expect("an address").as_socket().expect("of IP");
    let limit = std::time::Duration::from_millis(300);
    let mut waiting = Vec::new();
    while let Ok(stream) = std::net::TcpStream::connect_timeout(&address, limit) {
        waiting.push(stream);
    }
    (socket, waiting, address)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_that_cannot_be_reached_is_named() {
    let text = |proxy: SocketAddr| {
        let via = format!("http://me:hunter2@{proxy}");
        yaml("http://vendor.invalid", &via, "").replace("timeout: 1m", "timeout: 300ms")
    };
    let closed = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let (_socket, _waiting, full) = deaf();
    for (proxy, reason) in
        [(closed, "it cannot be connected to"), (full, "it did not accept a connection in time")]
    {
        let gateway = Gateway::start(&text(proxy)).await;
        let said = blamed(&gateway, &proxy.to_string(), reason).await;
        assert!(!said.contains("hunter2"), "{said}");
    }
}

#[rstest]
#[case::no_such_name(Says::NoSuchName, "its name has no known address")]
#[case::silence(Says::Nothing, "no DNS server answered for its name in time")]
#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_name_of_a_proxy_is_reported(#[case] says: Says, #[case] reason: &str) {
    let dns = Dns::start(says).await;
    let own = yaml("http://127.0.0.1:1", "http://me:hunter2@api.test:3128", "");
    let own = own.replace("timeout: 1m", "timeout: 500ms");
    let gateway = Gateway::start(&format!("resolver: [\"{}\"]\n{own}", dns.address())).await;
    let answer = gateway.get("/").await;
    assert_eq!((answer.status, answer.problem()), (502, "upstream-unreachable".into()));
    let text = answer.text();
    assert!(text.contains("the proxy api.test:3128") && text.contains(reason), "{text}");
    let line = eventually("it is said", async || {
        gateway.events().into_iter().find(|line| line["message"] == "cannot be resolved")
    });
    assert_eq!(line.await["via"], "api.test:3128");
    assert!(!gateway.output().1.join("\n").contains("hunter2"));
}

/// TLS is the upstream's own, whichever proxy leads to it.
#[tokio::test(flavor = "multi_thread")]
async fn a_failure_of_tls_through_the_proxy_names_the_upstream() {
    let upstream = Upstream::raw(|mut conn| async move {
        drop((conn.some().await, conn.send("no TLS\r\n").await))
    })
    .await;
    let proxy = Corporate::start(upstream.address(), None).await;
    let via = format!("http://{}", proxy.address);
    let gateway = Gateway::start(&yaml("https://vendor.invalid:8443", &via, "")).await;
    let answer = gateway.get("/").await;
    assert_eq!((answer.status, answer.problem()), (502, "upstream-unreachable".into()));
    assert!(!answer.text().contains("because of the proxy"), "{}", answer.text());
    let line = eventually("it is said", async || {
        gateway.events().into_iter().find(|line| line["message"] == "cannot be reached")
    });
    let error = line.await["error"].as_str().expect("a text").to_owned();
    let meant = format!("no TLS with vendor.invalid:8443 through the proxy {}", proxy.address);
    assert!(error.contains(&meant), "{error}");
}
