//! The forward proxy: its certificates, the requests in its tunnels, and the hosts that it does not reach.

mod escapes;
mod tunnels;

use crate::support::{Authority, Conn, Gateway, Head, Upstream, eventually, paceway_in, reply};
use rstest::rstest;
use serde_json::json;
use std::{fs, net::SocketAddr, sync::Arc};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{
        ClientConfig, DEFAULT_VERSIONS, RootCertStore,
        crypto::aws_lc_rs,
        pki_types::{CertificateDer, ServerName, pem::PemObject},
    },
};

/// A gateway with a forward proxy, whose authority is in `ca.pem` beside its file.
struct Forward {
    gateway: Gateway,
    proxy: SocketAddr,
}

impl Forward {
    /// Starts it with this configuration, and `more` keys of the proxy.
    async fn start(yaml: &str, more: &str) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let gateway = Gateway::start_in(dir, &with_proxy(yaml, more), |dir| {
            let made = paceway_in(dir, &["ca", "--cert", "ca.pem", "--key", "ca.key"], &[]);
            assert!(made.status.success(), "{made:?}");
        })
        .await;
        let events = gateway.events();
        let line = events.iter().find(|line| line["message"] == "listening").expect("a line");
        let proxy = line["forward"].as_str().expect("an address").parse().expect("an address");
        Self { gateway, proxy }
    }

    /// Gives it another configuration, which needs no restart.
    async fn reload(&self, yaml: &str, more: &str) {
        self.gateway.rewrite(&with_proxy(yaml, more));
        let answer = self.gateway.reload().await;
        assert_eq!(
            (answer.status, &answer.json()["needs_restart"]),
            (200, &json!([])),
            "{answer:?}"
        );
    }

    /// A client that trusts it.
    fn client(&self, alpn: &[&str]) -> TlsConnector {
        let pem = fs::read(self.gateway.file().with_file_name("ca.pem")).expect("a file");
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(&pem).expect("a certificate")).expect("a root");
        let provider = Arc::new(aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider);
        let builder = builder.with_safe_default_protocol_versions().expect("versions");
        let mut config = builder.with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        TlsConnector::from(Arc::new(config))
    }

    /// Asks for a tunnel, which must be opened.
    async fn connect(&self, authority: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.proxy).await.expect("connect");
        let head = format!("CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n");
        stream.write_all(head.as_bytes()).await.expect("send");
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            let byte = stream.read_u8().await;
            answer.push(byte.unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&answer))));
        }
        assert!(answer.starts_with(b"HTTP/1.1 200 "), "{}", String::from_utf8_lossy(&answer));
        stream
    }

    /// Opens TLS in a tunnel.
    async fn open(&self, authority: &str, alpn: &[&str]) -> TlsStream<TcpStream> {
        let stream = self.connect(authority).await;
        let host = authority.rsplit_once(':').expect("a port").0.to_owned();
        let name = ServerName::try_from(host).expect("a name");
        self.client(alpn).connect(name, stream).await.expect("a handshake")
    }

    /// Sends these bytes to the proxy, and reads the answer.
    async fn answer(&self, bytes: &str) -> crate::support::Answer {
        let mut conn = Conn::to(self.proxy).await.expect("connect");
        conn.send(bytes).await.expect("send");
        conn.answer().await.expect("an answer")
    }
}

fn with_proxy(yaml: &str, more: &str) -> String {
    let ca = "ca: { cert: ca.pem, key: ca.key }";
    format!("forward: {{ listen: 127.0.0.1:0, {ca}{more} }}\n{yaml}")
}

fn get(target: &str, host: &str, more: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n{more}\r\n")
}

/// A vendor over TLS on `localhost`, and its authority.
async fn vendor() -> (Upstream, Authority) {
    let authority = Authority::new();
    (Upstream::tls(authority.server("localhost", DEFAULT_VERSIONS, None)).await, authority)
}

/// A configuration with that vendor.
fn before(vendor: &Upstream, authority: &Authority) -> String {
    format!(
        "workers: 1
upstreams:
  vendor:
    url: https://localhost:{}
    ca: '{}'
    connect_timeout: 1m
    headers: {{ request: {{ set: {{ authorization: key }} }} }}
limiters: {{ two: {{ algorithm: sliding_window, rate: 2/h }} }}
routes:
- {{ name: limited, suffix: /limited, limiters: [two] }}
- {{ name: all, suffix: \"*\" }}
",
        vendor.address().port(),
        authority.file()
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_in_a_tunnel_take_the_way_of_all_others() {
    let (vendor, authority) = vendor().await;
    let forward = Forward::start(&before(&vendor, &authority), "").await;
    let host = format!("localhost:{}", vendor.address().port());
    let mut conn = Conn::over(forward.open(&host, &["http/1.1"]).await);
    let fields = "Proxy-Connection: keep-alive\r\nProxy-Authorization: Basic eDp5\r\nX-Mine: 1\r\n";
    for (path, status) in [("/limited", 200), ("/limited", 200), ("/limited", 429), ("/a?b", 200)] {
        conn.send(get(path, &host, fields)).await.expect("send");
        let answer = conn.answer().await.expect("an answer");
        assert_eq!(answer.status, status, "{answer:?}");
    }
    let calls = vendor.calls();
    assert_eq!(
        calls.iter().map(|call| &*call.target).collect::<Vec<_>>(),
        ["/limited", "/limited", "/a?b"]
    );
    let head: &Head = &calls[2].head;
    assert_eq!((head.get("authorization"), head.get("x-mine")), (Some("key"), Some("1")));
    assert_eq!((head.get("proxy-connection"), head.get("proxy-authorization")), (None, None));
    assert_eq!((head.get("host"), head.get("x-forwarded-proto")), (Some(&*host), Some("https")));
    forward.gateway.until_counted("limited", "passed", 2).await;
    forward.gateway.until_counted("limited", "refused", 1).await;
    assert_eq!(forward.gateway.line("/a").await["route"], "all");
    let end = forward.gateway.metric("paceway_certificate_expiry_timestamp_seconds", &[]).await;
    assert!(end > 1_795_000_000.0, "{end}");
}

/// Keys and routes could not tell it from the requests of other hosts.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_in_a_tunnel_names_its_host() {
    let (vendor, authority) = vendor().await;
    let forward = Forward::start(&before(&vendor, &authority), "").await;
    let host = format!("localhost:{}", vendor.address().port());
    let mut conn = Conn::over(forward.open(&host, &["http/1.1"]).await);
    conn.send("GET /limited HTTP/1.0\r\n\r\n").await.expect("send");
    assert_eq!(conn.answer().await.expect("an answer").status, 400);
    assert_eq!(vendor.calls().len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_keeps_its_certificate_and_speaks_both_versions() {
    let (vendor, authority) = vendor().await;
    let forward = Forward::start(&before(&vendor, &authority), "").await;
    let host = format!("localhost:{}", vendor.address().port());
    let mut shown = Vec::new();
    for (alpn, chosen) in [(&["h2", "http/1.1"][..], &b"h2"[..]), (&["http/1.1"], b"http/1.1")] {
        let tls = forward.open(&host, alpn).await;
        let (_, session) = tls.get_ref();
        assert_eq!(session.alpn_protocol(), Some(chosen));
        shown.push(session.peer_certificates().expect("a chain")[0].clone().into_owned());
    }
    assert_eq!(shown[0], shown[1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_whole_url_finds_the_upstream_with_its_base_path() {
    let upstream = Upstream::ok().await;
    let base = format!("http://{}/v2", upstream.address());
    let yaml = format!(
        "upstream: {base}\nroutes: [{{ name: x, suffix: /x }}, {{ suffix: /, methods: [GET] }}]\n"
    );
    let forward = Forward::start(&yaml, "").await;
    let host = upstream.address().to_string();
    let fields = "Proxy-Authorization: Basic eDp5\r\nProxy-Connection: keep-alive\r\n";
    let mut conn = Conn::to(forward.proxy).await.expect("connect");
    for (path, status) in
        [("/v2/x?q", 200), ("/v2/y", 404), ("/v2x", 403), ("/x", 403), ("/v2", 200), ("/v2?q", 200)]
    {
        conn.send(get(&format!("http://{host}{path}"), &host, fields)).await.expect("send");
        let answer = conn.answer().await.expect("an answer");
        assert_eq!(answer.status, status, "{path}: {answer:?}");
    }
    let calls = upstream.calls();
    assert_eq!(
        calls.iter().map(|call| &*call.target).collect::<Vec<_>>(),
        ["/v2/x?q", "/v2", "/v2?q"]
    );
    assert_eq!(calls[0].head.get("proxy-authorization"), None);
}

/// Keys have the path after the base path, whichever way a request comes.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_the_same_by_both_ways() {
    let upstream = Upstream::ok().await;
    let yaml = format!(
        "upstream: {}/v2
limiters: {{ each: {{ algorithm: sliding_window, rate: 1/h, key: '{{path}}' }} }}
routes: [{{ suffix: \"*\", limiters: [each] }}]
",
        upstream.url()
    );
    let forward = Forward::start(&yaml, "").await;
    let host = upstream.address().to_string();
    for (path, status) in [("/x", 200), ("/y", 200), ("/y", 429)] {
        let url = format!("http://{host}/v2{path}");
        assert_eq!(forward.answer(&get(&url, &host, "")).await.status, status, "{path}");
    }
    assert_eq!(forward.gateway.get("/x").await.status, 429);
    assert_eq!(forward.gateway.get("/z").await.status, 200);
    let calls: Vec<_> = upstream.calls().into_iter().map(|call| call.target).collect();
    assert_eq!(calls, ["/v2/x", "/v2/y", "/v2/z"]);
}

/// A client of the gateway's own address gets a path of the gateway; one of the proxy asks for the upstream's own URL.
#[rstest]
#[case::whole_url(false)]
#[case::tunnel(true)]
#[tokio::test(flavor = "multi_thread")]
async fn a_redirect_keeps_the_url_of_the_upstream(#[case] is_tunnel: bool) {
    let upstream = Upstream::start(|call| {
        let host = call.head.get("host").expect("a host");
        reply("302 Found", &[("Location", &format!("http://{host}/v2/next"))], "")
    })
    .await;
    let (host, url) = (upstream.address().to_string(), upstream.url());
    let yaml = format!(
        "upstreams: {{ v: {{ url: \"{url}/v2\", headers: {{ response: {{ replace: {{ location: auto }} }} }} }} }}\n\
         routes: [{{ suffix: \"*\" }}]\n"
    );
    let forward = Forward::start(&yaml, "").await;
    let answer = if is_tunnel {
        let mut conn = Conn::over(forward.connect(&host).await);
        conn.send(get("/v2/x", &host, "")).await.expect("send");
        conn.answer().await.expect("an answer")
    } else {
        forward.answer(&get(&format!("http://{host}/v2/x"), &host, "")).await
    };
    let next = format!("http://{host}/v2/next");
    assert_eq!((answer.status, answer.head.get("location")), (302, Some(&*next)));
}

/// Programs of this machine may send it in clear text; from another machine it comes through CONNECT.
#[rstest]
#[case::this_machine("", 200)]
#[case::another_machine("PROXY TCP4 192.0.2.1 198.51.100.1 5000 443\r\n", 400)]
#[tokio::test(flavor = "multi_thread")]
async fn an_https_url_without_connect_is_for_this_machine(
    #[case] header: &str,
    #[case] status: u16,
) {
    let (vendor, authority) = vendor().await;
    let keys =
        if header.is_empty() { "" } else { "proxy_protocol: on\ntrusted_proxies: [127.0.0.1]\n" };
    let forward = Forward::start(&format!("{keys}{}", before(&vendor, &authority)), "").await;
    let host = format!("localhost:{}", vendor.address().port());
    let request = get(&format!("https://{host}/a?b"), &host, "");
    let answer = forward.answer(&[header, &request].concat()).await;
    assert_eq!(answer.status, status, "{answer:?}");
    let calls: Vec<_> = vendor.calls().into_iter().map(|call| call.target).collect();
    let sent: &[&str] = if status == 200 { &["/a?b"] } else { &[] };
    assert_eq!(calls, sent);
    assert!(status == 200 || answer.text().contains("comes through CONNECT"), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_websocket_goes_through_a_tunnel_in_clear_text() {
    let upstream = Upstream::raw(|mut conn| async move {
        let asked = conn.head().await.expect("a head").expect("a request");
        assert_eq!(asked.get("upgrade"), Some("echo"));
        let switched =
            "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n";
        conn.send(switched).await.expect("send");
        while let Ok(Some(bytes)) = conn.some().await {
            conn.send(bytes).await.expect("send");
        }
    })
    .await;
    let yaml = format!("upstream: {}\nroutes: [{{ suffix: \"*\" }}]\n", upstream.url());
    let forward = Forward::start(&yaml, "").await;
    let host = upstream.address().to_string();
    let mut conn = Conn::over(forward.connect(&host).await);
    conn.send(get("/", &host, "Connection: upgrade\r\nUpgrade: echo\r\n")).await.expect("send");
    let head = conn.head().await.expect("a head").expect("an answer");
    assert!(head.start.starts_with("HTTP/1.1 101"), "{head:?}");
    conn.send("hello").await.expect("send");
    assert_eq!(conn.until("hello").await.expect("an echo"), "hello");
}

/// A reload leaves the listener and the authority, and the new upstreams can be reached.
#[tokio::test(flavor = "multi_thread")]
async fn a_reload_changes_the_hosts() {
    let (one, other) =
        (Upstream::ok().await, Upstream::start(|_| reply("200 OK", &[], "other")).await);
    let routes = "routes: [{ suffix: \"*\" }]\n";
    let forward = Forward::start(&format!("upstream: {}\n{routes}", one.url()), "").await;
    let ask = || {
        let host = other.address().to_string();
        let request = get(&format!("http://{host}/"), &host, "");
        let forward = &forward;
        async move { forward.answer(&request).await }
    };
    assert_eq!(ask().await.status, 403);
    forward.reload(&format!("upstream: {}\n{routes}", other.url()), "").await;
    let answer = eventually("the new upstream answers", async || {
        let answer = ask().await;
        (answer.status == 200).then_some(answer)
    });
    assert_eq!(answer.await.text(), "other");
}
