//! Upstreams over TLS: which certificates the gateway believes, and which one it shows.

use crate::support::{Authority, Conn, Gateway, Upstream, eventually, self_signed, showing};
use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, IsCa};
use rstest::rstest;
use serde_json::Value;
use std::{fs, path::Path, sync::Arc};
use tokio::net::TcpStream;
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        DEFAULT_VERSIONS, SupportedProtocolVersion,
        version::{TLS12, TLS13},
    },
};

fn write(dir: &Path, name: &str, text: &str) -> String {
    let file = dir.join(name);
    fs::write(&file, text).expect("a file");
    file.to_str().expect("a readable path").to_owned()
}

fn config(upstream: &Upstream, more: &str) -> String {
    // The default of 2 s is short for a handshake on a busy machine.
    let patient = if more.contains("connect_timeout") { "" } else { ", connect_timeout: 1m" };
    format!(
        "workers: 1
upstreams: {{ vendor: {{ url: \"https://{}\"{more}{patient} }} }}
routes: [{{ name: all, suffix: \"*\" }}]
",
        upstream.address()
    )
}

/// The log's reason why a connection cannot be made.
async fn why(gateway: &Gateway) -> String {
    let events = eventually("it is said", async || {
        let is_meant = |event: &Value| event["level"] == "WARN" && event["upstream"] == "vendor";
        let events: Vec<_> = gateway.events().into_iter().filter(is_meant).collect();
        (!events.is_empty()).then_some(events)
    })
    .await;
    assert_eq!(events.len(), 1, "said once: {events:?}");
    events[0]["error"].as_str().expect("a reason").to_owned()
}

#[rstest]
#[case::both(DEFAULT_VERSIONS)]
#[case::tls_1_2(&[&TLS12])]
#[case::tls_1_3(&[&TLS13])]
#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_of_a_configured_authority_is_trusted(
    #[case] versions: &[&'static SupportedProtocolVersion],
) {
    let (dir, authority) = (tempfile::tempdir().expect("a directory"), Authority::new());
    let upstream = Upstream::tls(authority.server("127.0.0.1", versions, None)).await;
    let ca = write(dir.path(), "ca.pem", &authority.pem);
    let gateway = Gateway::start(&config(&upstream, &format!(", ca: \"{ca}\""))).await;
    for _ in 0..3 {
        assert_eq!(gateway.get("/").await.text(), "ok");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_of_another_authority_is_refused_and_logged() {
    let (dir, authority) = (tempfile::tempdir().expect("a directory"), Authority::new());
    let upstream = Upstream::tls(authority.server("127.0.0.1", DEFAULT_VERSIONS, None)).await;
    let ca = write(dir.path(), "ca.pem", &Authority::new().pem);
    let gateway = Gateway::start(&config(&upstream, &format!(", ca: \"{ca}\""))).await;
    for _ in 0..3 {
        let answer = gateway.get("/").await;
        assert_eq!((answer.status, answer.problem().as_str()), (502, "upstream-unreachable"));
    }
    assert!(why(&gateway).await.contains("invalid peer certificate"));
    assert!(upstream.calls().is_empty(), "nothing was sent to an unknown server");
}

fn unchanged(_: &mut CertificateParams) {}

fn expired(params: &mut CertificateParams) {
    params.not_after = rcgen::date_time_ymd(2020, 1, 1);
}

fn of_clients(params: &mut CertificateParams) {
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
}

fn of_servers(params: &mut CertificateParams) {
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
}

fn of_nobody_else(params: &mut CertificateParams) {
    params.is_ca = IsCa::ExplicitNoCa;
}

#[rstest]
#[case::its_own("127.0.0.1", unchanged, true)]
#[case::that_signs_no_others("127.0.0.1", of_nobody_else, true)]
#[case::of_servers("127.0.0.1", of_servers, true)]
#[case::of_clients("127.0.0.1", of_clients, false)]
#[case::of_another_name("127.0.0.2", unchanged, false)]
#[case::of_the_past("127.0.0.1", expired, false)]
#[tokio::test(flavor = "multi_thread")]
async fn a_self_signed_certificate_is_trusted_as_its_own_authority(
    #[case] name: &str,
    #[case] change: fn(&mut CertificateParams),
    #[case] is_believed: bool,
) {
    let dir = tempfile::tempdir().expect("a directory");
    let own = self_signed(name, change);
    let upstream = Upstream::tls(showing(&own)).await;
    let ca = write(dir.path(), "ca.pem", &own.0);
    let gateway = Gateway::start(&config(&upstream, &format!(", ca: \"{ca}\""))).await;
    assert_eq!(gateway.get("/").await.status, if is_believed { 200 } else { 502 });
    // Another one of the same name is another one.
    let other = Upstream::tls(showing(&self_signed(name, change))).await;
    let gateway = Gateway::start(&config(&other, &format!(", ca: \"{ca}\""))).await;
    assert_eq!(gateway.get("/").await.status, 502);
    assert!(other.calls().is_empty());
}

#[rstest]
#[case::of_the_certificate("api.test", true)]
#[case::another("other.test", false)]
#[case::an_address("127.0.0.9", false)]
#[tokio::test(flavor = "multi_thread")]
async fn the_certificate_must_have_the_configured_name(
    #[case] name: &str,
    #[case] is_believed: bool,
) {
    let (dir, authority) = (tempfile::tempdir().expect("a directory"), Authority::new());
    let upstream = Upstream::tls(authority.server("api.test", DEFAULT_VERSIONS, None)).await;
    let ca = write(dir.path(), "ca.pem", &authority.pem);
    let more = format!(", ca: \"{ca}\", server_name: {name}");
    let gateway = Gateway::start(&config(&upstream, &more)).await;
    let answer = gateway.get("/").await;
    assert_eq!(answer.status, if is_believed { 200 } else { 502 });
    if is_believed {
        let host = upstream.address().to_string();
        assert_eq!(upstream.calls()[0].head.get("host"), Some(&*host), "Host stays the URL's");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_that_requests_a_client_certificate_gets_the_current_one() {
    let (dir, authority) = (tempfile::tempdir().expect("a directory"), Authority::new());
    let clients = Authority::new();
    let server = authority.server("127.0.0.1", DEFAULT_VERSIONS, Some(&clients));
    let upstream = Upstream::tls(server).await;
    let ca = write(dir.path(), "ca.pem", &authority.pem);
    // A certificate of another authority, at first.
    let (wrong, key) = Authority::new().sign("gateway.test");
    let cert = write(dir.path(), "cert.pem", &wrong);
    let key = write(dir.path(), "key.pem", &key);
    let more = format!(", ca: \"{ca}\", client_cert: {{ cert: \"{cert}\", key: \"{key}\" }}");
    let gateway = Gateway::start(&config(&upstream, &more)).await;
    assert_eq!(gateway.get("/").await.status, 502);

    // A certificate without its key, as between two writes: the old pair stays.
    let (right, right_key) = clients.sign("gateway.test");
    write(dir.path(), "cert.pem", &right);
    let unusable = "the certificates for it have changed and cannot be used: the old ones stay";
    eventually("it is said that they do not fit", async || {
        assert_eq!(gateway.get("/").await.status, 502);
        gateway.events().iter().any(|event| event["message"] == unusable).then_some(())
    })
    .await;
    write(dir.path(), "key.pem", &right_key);
    assert_eq!(gateway.until_answered("/", 200).await.text(), "ok");
    let said = |message: &str| gateway.events().iter().filter(|e| e["message"] == message).count();
    eventually("the change is said", async || {
        (said("the certificates for it have changed") == 1).then_some(())
    })
    .await;
    assert_eq!(said(unusable), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_that_requires_a_client_certificate_fails_without_one() {
    let (dir, authority) = (tempfile::tempdir().expect("a directory"), Authority::new());
    let server = authority.server("127.0.0.1", DEFAULT_VERSIONS, Some(&Authority::new()));
    let upstream = Upstream::tls(server).await;
    let ca = write(dir.path(), "ca.pem", &authority.pem);
    let gateway = Gateway::start(&config(&upstream, &format!(", ca: \"{ca}\""))).await;
    for _ in 0..3 {
        assert_eq!(gateway.get("/").await.status, 502);
    }
    assert!(upstream.calls().is_empty());
    // With TLS 1.3 the upstream says so after the handshake.
    let error = why(&gateway).await;
    assert!(error.contains("CertificateRequired"), "{error}");
}

/// An upstream over TLS whose connections end as `says_so`: with the notice that TLS has for it, or without.
async fn ending(authority: &Authority, says_so: bool) -> (std::net::SocketAddr, impl Drop + use<>) {
    let server = authority.server("127.0.0.1", DEFAULT_VERSIONS, None);
    let acceptor = TlsAcceptor::from(Arc::new(server));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("its address");
    let serve = async move |stream: TcpStream| {
        let Ok(stream) = acceptor.accept(stream).await else { return };
        let mut conn = Conn::over(stream);
        let Ok(Some(_)) = conn.head().await else { return };
        conn.send("HTTP/1.1 200 OK\r\n\r\nall of it").await.expect("send");
        if says_so {
            conn.close_write().await.expect("the end");
        }
    };
    let task = tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            serve(stream).await;
        }
    });
    (address, AbortOnDrop(task))
}

struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[rstest]
#[case::said(true)]
#[case::cut_off(false)]
#[tokio::test(flavor = "multi_thread")]
async fn a_body_without_a_length_is_complete_only_after_close_notify(#[case] says_so: bool) {
    let (dir, authority) = (tempfile::tempdir().expect("a directory"), Authority::new());
    let (address, _task) = ending(&authority, says_so).await;
    let ca = write(dir.path(), "ca.pem", &authority.pem);
    let gateway = Gateway::start(&format!(
        "upstreams: {{ vendor: {{ url: \"https://{address}\", ca: \"{ca}\" }} }}
routes: [{{ suffix: \"*\" }}]
"
    ))
    .await;
    let answer = gateway.ask("/", &[]).await.answer().await;
    assert_eq!(answer.is_ok(), says_so, "{answer:?}");
    if let Ok(answer) = answer {
        assert_eq!(answer.text(), "all of it");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clear_text_upstream_with_an_https_url_is_a_502() {
    let upstream = Upstream::raw(|mut conn| async move {
        let _ = conn.send("HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n").await;
    })
    .await;
    let (dir, authority) = (tempfile::tempdir().expect("a directory"), Authority::new());
    let ca = write(dir.path(), "ca.pem", &authority.pem);
    let gateway = Gateway::start(&config(&upstream, &format!(", ca: \"{ca}\""))).await;
    let answer = gateway.get("/").await;
    assert_eq!((answer.status, answer.problem().as_str()), (502, "upstream-unreachable"));
    assert!(why(&gateway).await.contains("no TLS with"));
}

/// Over TLS, one that speaks the protocol that was chosen, and says which. Others are in order of its preference.
async fn choosing(
    authority: &Authority,
    offers: &[&str],
) -> (std::net::SocketAddr, impl Drop + use<>) {
    let mut server = authority.server("127.0.0.1", DEFAULT_VERSIONS, None);
    server.alpn_protocols = offers.iter().map(|name| name.as_bytes().to_vec()).collect();
    let acceptor = TlsAcceptor::from(Arc::new(server));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("its address");
    let task = tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else { return };
                let chosen = stream.get_ref().1.alpn_protocol().map(<[u8]>::to_vec);
                if chosen.as_deref() == Some(b"h2") {
                    let mut wire = h2::server::handshake(stream).await.expect("a handshake");
                    while let Some(Ok((request, mut respond))) = wire.accept().await {
                        let scheme = request.uri().scheme_str().unwrap_or_default();
                        let body = format!("h2 {scheme}");
                        let response = http::Response::new(());
                        let mut stream = respond.send_response(response, false).expect("sent");
                        stream.send_data(body.into(), true).expect("sent");
                    }
                    return;
                }
                let mut conn = Conn::over(stream);
                while let Ok(Some(_)) = conn.head().await {
                    let chosen = String::from_utf8_lossy(chosen.as_deref().unwrap_or(b"none"));
                    let length = chosen.len();
                    let answer =
                        format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{chosen}");
                    if conn.send(answer).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    (address, AbortOnDrop(task))
}

#[rstest]
#[case::of_both(true, &["h2", "http/1.1"], "h2 https")]
#[case::of_an_old_one(true, &["http/1.1"], "http/1.1")]
#[case::of_one_that_does_not_choose(true, &[], "none")]
#[case::when_it_is_not_asked_for(false, &["h2", "http/1.1"], "http/1.1")]
#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_over_tls_chooses_http_2_when_it_is_offered(
    #[case] http2: bool,
    #[case] offers: &[&str],
    #[case] expected: &str,
) {
    let (dir, authority) = (tempfile::tempdir().expect("a directory"), Authority::new());
    let (address, _task) = choosing(&authority, offers).await;
    let ca = write(dir.path(), "ca.pem", &authority.pem);
    let gateway = Gateway::start(&format!(
        "upstreams: {{ vendor: {{ url: \"https://{address}\", ca: \"{ca}\", http2: {http2} }} }}
routes: [{{ suffix: \"*\" }}]
"
    ))
    .await;
    for _ in 0..5 {
        assert_eq!(gateway.get("/").await.text(), expected);
    }
    let old = "does not choose HTTP/2, and is spoken to in HTTP/1.1";
    let said = || gateway.events().iter().filter(|event| event["message"] == old).count();
    match http2 && !expected.starts_with("h2") {
        true => eventually("it is said", async || (said() == 1).then_some(())).await,
        false => assert_eq!(said(), 0),
    }
}

/// The protocol that an upstream chooses is known once it is connected, and only then what a request needs on it.
#[rstest]
#[case::a_body_without_a_length("", "GET", "Transfer-Encoding: chunked", "5\r\nhello\r\n0\r\n\r\n")]
#[case::trailers("connection: te", "GET", "TE: trailers", "")]
#[case::an_upgrade("upgrade: websocket", "GET", "Connection: Upgrade\r\nUpgrade: websocket", "")]
#[case::an_expectation(
    "expect: 100-continue",
    "POST",
    "Expect: 100-continue\r\nContent-Length: 5",
    "hello"
)]
#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_that_does_not_choose_http_2_gets_http_1(
    #[case] told: &str,
    #[case] method: &str,
    #[case] fields: &str,
    #[case] body: &str,
) {
    let (dir, authority) = (tempfile::tempdir().expect("a directory"), Authority::new());
    let upstream = Upstream::tls(authority.server("127.0.0.1", DEFAULT_VERSIONS, None)).await;
    let ca = write(dir.path(), "ca.pem", &authority.pem);
    let gateway = Gateway::start(&config(&upstream, &format!(", ca: \"{ca}\", http2: true"))).await;
    // The first one finds it out, the second one knows.
    for count in 1..=2 {
        let mut conn = gateway.connect().await;
        let head = format!("{method} / HTTP/1.1\r\nHost: a\r\n{fields}\r\n\r\n");
        conn.send(head + body).await.expect("send");
        assert_eq!(conn.answer().await.expect("an answer").status, 200);
        let call = upstream.calls().pop().expect("a call");
        assert_eq!((upstream.calls().len(), upstream.connections()), (count, 1));
        let expected = if body.is_empty() { "" } else { "hello" };
        assert_eq!(String::from_utf8_lossy(&call.body), expected);
        if let Some((name, value)) = told.split_once(": ") {
            assert_eq!(call.head.get(name), Some(value));
        }
    }
}

/// A port that accepts and says nothing is another fault than one that accepts nothing.
#[tokio::test(flavor = "multi_thread")]
async fn an_unanswered_handshake_is_reported_as_such() {
    let upstream = Upstream::raw(|conn| async move {
        std::future::pending::<()>().await;
        drop(conn);
    })
    .await;
    let gateway = Gateway::start(&config(&upstream, ", connect_timeout: 300ms")).await;
    let answer = gateway.get("/").await;
    assert_eq!(answer.status, 504);
    let detail = answer.json()["detail"].as_str().expect("a detail").to_owned();
    assert!(
        detail.contains("accepted a connection and did not answer the TLS handshake"),
        "{detail}"
    );
    assert_eq!(why(&gateway).await, detail);
}
