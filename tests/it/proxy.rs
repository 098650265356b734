//! The parts of messages that pass through the gateway, in both directions, and those that do not.

mod paths;
mod streams;

use crate::support::{Answer, Conn, Gateway, Reply, Upstream, closed, reached, reply, request};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rstest::rstest;
use std::{net::SocketAddr, sync::Arc};
use tokio_rustls::rustls::{ServerConfig, crypto::aws_lc_rs, pki_types::PrivateKeyDer};

/// Starts a gateway without limiters, which forwards every request to `upstream`.
async fn before(upstream: &Upstream) -> Gateway {
    before_url(&upstream.url()).await
}

async fn before_url(url: &str) -> Gateway {
    Gateway::start(&format!("upstream: {url}\nroutes: [{{ name: all, suffix: \"*\" }}]\n")).await
}

/// Writes bytes to a new connection, and reads the answer to them.
async fn exchange(address: SocketAddr, bytes: impl AsRef<[u8]>) -> Answer {
    let mut conn = Conn::to(address).await.expect("connect");
    conn.send(bytes).await.expect("send");
    conn.answer().await.expect("a whole answer")
}

#[rstest]
#[case::host("GET / HTTP/1.1\r\nHost: api.internal:8080\r\n", "api.internal:8080")]
#[case::absolute_target("GET http://a.example/ HTTP/1.1\r\nHost: b.example\r\n", "a.example")]
#[tokio::test(flavor = "multi_thread")]
async fn the_upstream_gets_its_own_host_and_forwarding_headers(
    #[case] start: &str,
    #[case] asked: &str,
) {
    let upstream = Upstream::ok().await;
    let gateway = before(&upstream).await;
    let lies = "X-Forwarded-For: 6.6.6.6\r\nX-Forwarded-For: 7.7.7.7\r\nX-Forwarded-Proto: https\r\n\
                X-Forwarded-Host: evil.example\r\nForwarded: for=6.6.6.6\r\n";
    let nominated = "Connection: X-Forwarded-For, X-Forwarded-Host, X-Forwarded-Proto\r\n";
    for fields in ["", lies, nominated] {
        let answer = exchange(gateway.listen, format!("{start}{fields}\r\n")).await;
        assert_eq!(answer.status, 200);
    }
    let calls = upstream.calls();
    assert_eq!(calls.len(), 3);
    for head in calls.iter().map(|call| &call.head) {
        assert_eq!(head.all("host"), [upstream.address().to_string()]);
        assert_eq!(head.all("x-forwarded-for"), ["127.0.0.1"]);
        assert_eq!(head.all("x-forwarded-proto"), ["http"]);
        assert_eq!(head.all("x-forwarded-host"), [asked]);
        assert_eq!(head.all("forwarded"), [""; 0]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn hop_by_hop_headers_are_removed_and_others_pass() {
    let upstream = Upstream::start(|_| {
        let fields = [
            ("Connection", "X-Internal, keep-alive"),
            ("X-Internal", "1"),
            ("Keep-Alive", "timeout=5"),
            ("Proxy-Authenticate", "Basic"),
            ("Upgrade", "h2c"),
            ("Set-Cookie", "a=1"),
            ("Set-Cookie", "b=2"),
            ("Server", "origin/1"),
            ("X-RateLimit-Remaining", "17"),
        ];
        reply("200 As You Like It", &fields, "ok")
    })
    .await;
    let gateway = before(&upstream).await;
    let bytes = request(
        "GET",
        "/",
        &[
            ("Connection", "keep-alive, X-Secret"),
            ("X-Secret", "1"),
            ("Keep-Alive", "timeout=5"),
            ("Proxy-Connection", "keep-alive"),
            ("Proxy-Authorization", "Basic abc"),
            ("TE", "trailers"),
            ("Upgrade", "h2c"),
            ("Authorization", "Bearer abc"),
            ("Cookie", "a=1"),
            ("X-Many", "1"),
            ("X-Many", "2"),
        ],
    );
    let answer = exchange(gateway.listen, bytes).await;

    let call = &upstream.calls()[0];
    let mut names: Vec<_> = call.head.fields.iter().map(|(name, _)| name.as_str()).collect();
    names.sort();
    let expected = [
        "authorization",
        "connection",
        "cookie",
        "host",
        "te",
        "via",
        "x-forwarded-for",
        "x-forwarded-host",
        "x-forwarded-port",
        "x-forwarded-proto",
        "x-many",
        "x-many",
        "x-request-id",
    ];
    assert_eq!(names, expected, "nothing more, such as a user agent or an accepted encoding");
    assert_eq!(call.head.get("authorization"), Some("Bearer abc"));
    assert_eq!(call.head.all("x-many"), ["1", "2"]);
    assert_eq!((call.head.get("connection"), call.head.get("te")), (Some("te"), Some("trailers")));

    assert_eq!(answer.head.start, "HTTP/1.1 200 As You Like It");
    for gone in ["connection", "x-internal", "keep-alive", "proxy-authenticate", "upgrade"] {
        assert_eq!(answer.head.all(gone), [""; 0], "{gone}");
    }
    assert_eq!(answer.head.all("set-cookie"), ["a=1", "b=2"]);
    assert_eq!(answer.field("server"), Some("origin/1"));
    assert_eq!(answer.field("x-ratelimit-remaining"), Some("17"));
    assert_eq!(answer.field("paceway-origin"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn redirects_are_not_followed_and_bodies_not_decoded() {
    // Not valid gzip: a gateway that unpacked it would fail.
    let packed = b"\x1f\x8b\x08\x00garbage\xff\x00";
    let upstream = Upstream::start(|call| match call.target.as_str() {
        "/moved" => reply("302 Found", &[("Location", "/elsewhere")], "over there"),
        _ => {
            let head = "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 13\r\n\r\n";
            Reply { bytes: [head.as_bytes(), packed].concat(), ..Reply::default() }
        }
    })
    .await;
    let gateway = before(&upstream).await;
    let moved = gateway.get("/moved").await;
    assert_eq!((moved.status, moved.text().as_str()), (302, "over there"));
    assert_eq!(moved.field("location"), Some("/elsewhere"));
    let gzip = gateway.get("/packed").await;
    assert_eq!(gzip.field("content-encoding"), Some("gzip"));
    assert_eq!(gzip.body, packed);
    assert_eq!(upstream.calls().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_to_the_upstream_are_used_again() {
    let upstream = Upstream::ok().await;
    let gateway = Gateway::start(&format!(
        "workers: 1\nupstream: {}\nroutes: [{{ suffix: \"*\" }}]\n",
        upstream.url()
    ))
    .await;
    for _ in 0..100 {
        assert_eq!(gateway.get("/").await.status, 200);
    }
    // One, and few more where a request came before the last one's connection was back, or was idle for
    // long because the machine stalled.
    let connections = upstream.connections();
    assert!((1..=10).contains(&connections), "{connections} connections for 100 requests");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_the_upstream_closed_is_not_used_again() {
    let seen = closed();
    let noticed = seen.clone();
    // Closes after each response without announcing it, and reports when the gateway has seen that.
    let upstream = Upstream::raw(move |mut conn| {
        let noticed = noticed.clone();
        async move {
            // A connection may be made ahead and never used.
            let Ok(Some(_)) = conn.head().await else { return };
            let answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
            conn.send(answer).await.expect("send");
            conn.close_write().await.expect("the end");
            conn.rest().await;
            noticed.add_permits(1);
        }
    })
    .await;
    let gateway = before(&upstream).await;
    for _ in 0..20 {
        assert_eq!(gateway.get("/").await.status, 200);
        reached(&seen, "the gateway closes its end").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_429_of_the_upstream_passes_and_names_its_origin() {
    let upstream = Upstream::start(|_| {
        reply("429 Too Many Requests", &[("Retry-After", "7"), ("X-Own", "1")], "slow down")
    })
    .await;
    let gateway = before(&upstream).await;
    let answer = gateway.get("/").await;
    assert_eq!((answer.status, answer.text().as_str()), (429, "slow down"));
    assert_eq!(answer.field("retry-after"), Some("7"));
    assert_eq!(answer.field("x-own"), Some("1"));
    assert_eq!(answer.field("paceway-origin"), Some("upstream"));
    let labels = [("upstream", "default")];
    assert_eq!(gateway.metric("paceway_upstream_throttled_total", &labels).await, 1.0);
    assert_eq!(gateway.count("all", "passed").await, 1.0, "we did not refuse it");
}

/// A certificate for 127.0.0.1 and that of the authority that signed it, in PEM.
fn certificate() -> (ServerConfig, String) {
    let mut authority = CertificateParams::new([]).expect("parameters");
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority_key = KeyPair::generate().expect("a key");
    let root = authority.self_signed(&authority_key).expect("a certificate").pem();
    let key = KeyPair::generate().expect("a key");
    let own = CertificateParams::new(["127.0.0.1".to_owned()]).expect("parameters");
    let issuer = Issuer::new(authority, authority_key);
    let own = own.signed_by(&key, &issuer).expect("a certificate");
    let provider = Arc::new(aws_lc_rs::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(
            vec![own.der().clone()],
            PrivateKeyDer::try_from(key.serialize_der()).expect("a key"),
        )
        .expect("a certificate for its key");
    (config, root)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_https_upstream_is_checked_with_the_systems_authorities() {
    let (tls, root) = certificate();
    let upstream = Upstream::tls(tls).await;
    let yaml = format!("upstream: https://{}\nroutes: [{{ suffix: \"*\" }}]\n", upstream.address());
    let dir = tempfile::tempdir().expect("a directory");
    let start = async |name: &str, authorities: &str| {
        let file = dir.path().join(name);
        std::fs::write(&file, authorities).expect("a file");
        let file = file.to_str().expect("a readable path").to_owned();
        Gateway::start_with(&yaml, &[("SSL_CERT_FILE".to_owned(), file)]).await
    };
    let gateway = start("root.pem", &root).await;
    assert_eq!(gateway.get("/secret?a=b").await.text(), "ok");
    let call = &upstream.calls()[0];
    assert_eq!(call.target, "/secret?a=b");
    assert_eq!(call.head.get("host"), Some(&*upstream.address().to_string()));

    let (_, other_root) = certificate();
    let suspicious = start("other.pem", &other_root).await;
    let answer = suspicious.get("/secret").await;
    assert_eq!((answer.status, answer.problem().as_str()), (502, "upstream-unreachable"));
    assert_eq!(upstream.calls().len(), 1, "nothing was sent to an unknown server");
}

#[rstest]
#[case::before_the_response("")]
#[case::in_the_middle_of_it("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nfirst")]
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_ends_its_upstream_call(#[case] sent: &'static str) {
    let (asked, ended) = (closed(), closed());
    let (has_asked, has_ended) = (asked.clone(), ended.clone());
    let upstream = Upstream::raw(move |mut conn| {
        let (asked, ended) = (has_asked.clone(), has_ended.clone());
        async move {
            let Ok(Some(_)) = conn.head().await else { return };
            conn.send(sent).await.expect("send");
            asked.add_permits(1);
            conn.rest().await;
            ended.add_permits(1);
        }
    })
    .await;
    let gateway = before(&upstream).await;
    let mut conn = gateway.ask("/", &[]).await;
    reached(&asked, "the upstream has the call").await;
    if !sent.is_empty() {
        conn.until("first").await.expect("the first piece");
    }
    drop(conn);
    reached(&ended, "the upstream sees the end of its connection").await;
    if sent.is_empty() {
        assert_eq!(gateway.line("/").await["outcome"], "cancelled");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_http_1_0_client_is_served_and_its_connection_closed() {
    let upstream = Upstream::start(|_| Reply {
        bytes: b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nall\r\n0\r\n\r\n"
            .to_vec(),
        ..Reply::default()
    })
    .await;
    let gateway = before(&upstream).await;
    let mut conn = gateway.connect().await;
    conn.send("GET /old HTTP/1.0\r\n\r\n").await.expect("send");
    let text = String::from_utf8(conn.rest().await).expect("text");
    assert!(text.starts_with("HTTP/1.0 200 OK\r\n"), "{text}");
    assert!(text.ends_with("\r\n\r\nall"), "an old client knows no chunks: {text}");
    assert_eq!(upstream.calls()[0].head.start, "GET /old HTTP/1.1");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_expects_100_continue_gets_it() {
    let upstream =
        Upstream::start(|call| reply("200 OK", &[], &String::from_utf8_lossy(&call.body))).await;
    let gateway = before(&upstream).await;
    let mut conn = gateway.connect().await;
    let fields = [("Expect", "100-continue"), ("Content-Length", "4")];
    conn.send(request("PUT", "/", &fields)).await.expect("send");
    conn.until("HTTP/1.1 100 Continue\r\n\r\n").await.expect("the go-ahead");
    conn.send("data").await.expect("send");
    let answer = conn.answer().await.expect("an answer");
    assert_eq!((answer.status, answer.text().as_str()), (200, "data"));
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_of_one_connection_are_answered_in_order() {
    let upstream = Upstream::start(|call| reply("200 OK", &[], &call.target)).await;
    let gateway = before(&upstream).await;
    let mut conn = gateway.connect().await;
    let pipelined: String = (0..20).map(|i| request("GET", &format!("/{i}"), &[])).collect();
    conn.send(pipelined).await.expect("send");
    for i in 0..20 {
        assert_eq!(conn.answer().await.expect("an answer").text(), format!("/{i}"));
    }
    gateway.until_counted("all", "passed", 20).await;
}
