//! The parts of messages that pass through the gateway, in both directions, and those that do not.

use crate::support::{
    Answer, Conn, Gateway, PATIENCE, Reply, Upstream, eventually, reached, reply, request,
};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rstest::rstest;
use std::{net::SocketAddr, sync::Arc};
use tokio::sync::Semaphore;
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

fn closed() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(0))
}

#[rstest]
#[case::plain("/search", "/search")]
#[case::query("/search?q=a&&b=%20c&q=", "/search?q=a&&b=%20c&q=")]
#[case::empty_query("/search?", "/search?")]
#[case::query_with_a_url("/r?u=http://x/../y?z", "/r?u=http://x/../y?z")]
#[case::escapes("/a%2fb%2Fc%41%zz%", "/a%2fb%2Fc%41%zz%")]
#[case::slashes("//a///b//", "//a///b//")]
#[case::dot_segments("/a/./b/../c/%2e%2E/..", "/a/./b/../c/%2e%2E/..")]
#[case::above_the_root("/../../a", "/../../a")]
#[case::parameters("/a;x=1/b;y", "/a;x=1/b;y")]
#[case::reserved("/a:b@c!$&'()*+,=", "/a:b@c!$&'()*+,=")]
#[case::root("/", "/")]
#[case::absolute("http://other.example:81/a//b?c", "/a//b?c")]
#[case::absolute_without_a_path("http://other.example", "/")]
#[tokio::test(flavor = "multi_thread")]
async fn the_path_arrives_as_it_was_sent(#[case] sent: &str, #[case] arrives: &str) {
    let upstream = Upstream::ok().await;
    let gateway = before(&upstream).await;
    assert_eq!(gateway.get(sent).await.status, 200);
    let calls = upstream.calls();
    assert_eq!((calls.len(), calls[0].target.as_str()), (1, arrives));
}

#[rstest]
#[case::without_a_slash("/v2")]
#[case::with_one("/v2/")]
#[tokio::test(flavor = "multi_thread")]
async fn the_base_path_stands_before_the_path(#[case] base: &str) {
    let upstream = Upstream::ok().await;
    let gateway = before_url(&format!("{}{base}", upstream.url())).await;
    for target in ["/", "/a//b?c=d", "/../e", "http://other.example/f?g"] {
        assert_eq!(gateway.get(target).await.status, 200);
    }
    let targets: Vec<_> = upstream.calls().into_iter().map(|call| call.target).collect();
    assert_eq!(targets, ["/v2/", "/v2/a//b?c=d", "/v2/../e", "/v2/f?g"]);
}

#[rstest]
#[case::host("GET / HTTP/1.1\r\nHost: api.internal:8080\r\n", "api.internal:8080")]
#[case::absolute_target("GET http://a.example/ HTTP/1.1\r\nHost: b.example\r\n", "a.example")]
#[tokio::test(flavor = "multi_thread")]
async fn the_upstream_has_its_own_host_and_is_told_who_asked_for_what(
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
async fn what_was_meant_for_one_hop_stays_there_and_the_rest_passes() {
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
async fn a_response_streams() {
    let go_on = closed();
    let gate = go_on.clone();
    let upstream = Upstream::raw(move |mut conn| {
        let gate = gate.clone();
        async move {
            conn.head().await.expect("a request");
            let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n";
            conn.send(head).await.expect("send");
            reached(&gate, "the client has seen the first piece").await;
            conn.send("6\r\nsecond\r\n0\r\n\r\n").await.expect("send");
        }
    })
    .await;
    let gateway = before(&upstream).await;
    let mut conn = gateway.ask("/", &[]).await;
    conn.until("first").await.expect("the first piece, while the second is not sent");
    go_on.add_permits(1);
    let rest = conn.until("0\r\n\r\n").await.expect("the rest");
    assert!(rest.contains("second"), "{rest}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_streams() {
    let arrived = closed();
    let seen = arrived.clone();
    let upstream = Upstream::raw(move |mut conn| {
        let seen = seen.clone();
        async move {
            conn.until("first").await.expect("the first piece, while the second is not sent");
            seen.add_permits(1);
            conn.until("second").await.expect("the second piece");
            conn.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await.expect("send");
        }
    })
    .await;
    let gateway = before(&upstream).await;
    let mut conn = Conn::to(gateway.listen).await.expect("connect");
    conn.send(request("POST", "/", &[("Transfer-Encoding", "chunked")])).await.expect("send");
    conn.send("5\r\nfirst\r\n").await.expect("send");
    reached(&arrived, "the upstream has the first piece").await;
    conn.send("6\r\nsecond\r\n0\r\n\r\n").await.expect("send");
    assert_eq!(conn.answer().await.expect("an answer").status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn large_bodies_pass_both_ways_unchanged() {
    let upstream = Upstream::start(|call| {
        let mut reply = reply("200 OK", &[], "");
        let length = call.body.len();
        reply.bytes = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n").into_bytes();
        reply.bytes.extend(&call.body);
        reply
    })
    .await;
    let gateway = before(&upstream).await;
    // No two pieces of it are alike.
    let mut state = 1_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_le_bytes()
    };
    let body: Vec<u8> = (0..5 << 20).flat_map(|_| next()).collect();
    assert_eq!(body.len(), 20 << 20);
    // A client that shares nothing with the rest of these tests.
    let client = reqwest::Client::builder().no_proxy().timeout(PATIENCE).build().expect("a client");
    let answer = client.post(format!("http://{}/", gateway.listen)).body(body.clone());
    let answer = answer.send().await.expect("an answer");
    assert_eq!(answer.status(), 200);
    let echoed = answer.bytes().await.expect("a whole body");
    assert!(echoed == body, "{} bytes came back and differ", echoed.len());
    assert!(upstream.calls()[0].body == body);
}

#[tokio::test(flavor = "multi_thread")]
async fn responses_without_a_body_leave_the_connection_in_step() {
    let upstream = Upstream::start(|call| match (call.method.as_str(), call.target.as_str()) {
        ("HEAD", _) => Reply {
            bytes: b"HTTP/1.1 200 OK\r\nContent-Length: 1234\r\n\r\n".to_vec(),
            ..Reply::default()
        },
        (_, "/204") => {
            Reply { bytes: b"HTTP/1.1 204 No Content\r\n\r\n".to_vec(), ..Reply::default() }
        }
        (_, "/304") => Reply {
            bytes: b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\nETag: \"x\"\r\n\r\n"
                .to_vec(),
            ..Reply::default()
        },
        _ => Reply::ok(),
    })
    .await;
    let gateway = before(&upstream).await;
    let mut conn = Conn::to(gateway.listen).await.expect("connect");
    for (method, target, status, body) in [
        ("HEAD", "/", 200, ""),
        ("GET", "/204", 204, ""),
        ("GET", "/304", 304, ""),
        ("GET", "/", 200, "ok"),
        ("HEAD", "/", 200, ""),
        ("GET", "/", 200, "ok"),
    ] {
        conn.send(request(method, target, &[])).await.expect("send");
        let answer = conn.answer_to(method).await.expect("a whole answer");
        assert_eq!((answer.status, answer.text().as_str()), (status, body), "{method} {target}");
        if method == "HEAD" {
            assert_eq!(answer.field("content-length"), Some("1234"));
        }
        if status == 304 {
            assert_eq!(answer.field("etag"), Some("\"x\""));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_ends_with_its_connection_is_complete() {
    let upstream = Upstream::start(|_| Reply::raw("HTTP/1.1 200 OK\r\n\r\nall of it")).await;
    let gateway = before(&upstream).await;
    assert_eq!(gateway.get("/").await.text(), "all of it");
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_followed_or_unpacked() {
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
async fn the_upstreams_own_429_passes_and_says_whose_it_is() {
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
async fn a_client_that_leaves_takes_its_upstream_call_along(#[case] sent: &'static str) {
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

#[rstest]
#[case::escaped("/%73earch")]
#[case::escaped_twice_over("/%73%65%61%72%63%68")]
#[case::double_slash("//search")]
#[case::trailing_slash("/search/")]
#[case::trailing_slashes("/search///")]
#[case::parameters("/search;x")]
#[case::parameters_and_slash("/search;x=1/;y")]
#[case::dot("/./search")]
#[case::dot_behind("/search/.")]
#[case::escaped_dot("/%2e/search")]
#[case::dot_dot("/x/../search")]
#[case::dot_dot_behind("/search/x/..")]
#[case::escaped_dot_dot("/x/%2e%2E/search")]
#[case::above_the_root("/../search")]
#[case::dot_dot_with_parameters("/x/..;y/search")]
#[case::query("/search?x")]
#[case::query_with_a_path("/search?/other")]
#[case::longer("/v2/flights/search")]
#[case::absolute("http://other.example/search")]
#[case::absolute_disguised("http://other.example//x/..//%73earch;y?z")]
#[tokio::test(flavor = "multi_thread")]
async fn no_spelling_of_a_path_escapes_its_limiter(#[case] target: &str) {
    let upstream = Upstream::ok().await;
    let gateway = Gateway::start(&format!(
        "upstream: {}
limiters: {{ search: 1/day }}
routes: [{{ suffix: /search, limiters: [search] }}, {{ suffix: \"*\" }}]
",
        upstream.url()
    ))
    .await;
    assert_eq!(gateway.get("/search").await.status, 200);
    assert_eq!(gateway.get(target).await.status, 429, "{target}");
    assert_eq!(gateway.get("/research").await.status, 200, "and no other is caught");
    assert_eq!(upstream.calls().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_route_it_is_a_404_and_the_upstream_hears_nothing() {
    let upstream = Upstream::ok().await;
    let gateway =
        Gateway::start(&format!("upstream: {}\nroutes: [{{ suffix: /search }}]\n", upstream.url()))
            .await;
    for target in ["/", "/other", "/research", "/search/x"] {
        let answer = gateway.get(target).await;
        assert_eq!((answer.status, answer.problem().as_str()), (404, "no-route"), "{target}");
        assert_eq!(answer.field("retry-after"), None);
    }
    assert_eq!(upstream.calls().len(), 0);
    assert_eq!(gateway.count("-", "no_route").await, 4.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn routes_are_chosen_by_suffix_host_and_method() {
    let (a, b) = (Upstream::ok().await, Upstream::ok().await);
    let gateway = Gateway::start(&format!(
        "upstreams: {{ a: \"{}\", b: \"{}/b\" }}
routes:
  - {{ name: all, suffix: \"*\", upstream: a }}
  - {{ name: posts, suffix: \"*\", methods: [POST, PUT], upstream: b }}
  - {{ name: internal, suffix: \"*\", host: API.internal, upstream: b }}
  - {{ name: flights, suffix: /flights/search, upstream: b }}
  - {{ name: search, suffix: /search, upstream: a }}
  - {{ name: json, suffix: .json, upstream: b }}
",
        a.url(),
        b.url()
    ))
    .await;
    let cases = [
        ("GET", "/x", "any.example", "all"),
        ("POST", "/x", "any.example", "posts"),
        ("GET", "/x", "api.INTERNAL:8080", "internal"),
        ("GET", "http://api.internal/x", "any.example", "internal"),
        ("POST", "/v2/flights/search", "any.example", "flights"),
        ("GET", "/v2/search", "api.internal", "search"),
        ("GET", "/x/y.json", "any.example", "json"),
    ];
    for (method, target, host, route) in cases {
        let bytes =
            format!("{method} {target} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\n\r\n");
        let before = gateway.count(route, "passed").await;
        assert_eq!(exchange(gateway.listen, bytes).await.status, 200);
        assert_eq!(gateway.count(route, "passed").await, before + 1.0, "{method} {target} {host}");
    }
    assert_eq!((a.calls().len(), b.calls().len()), (2, 5));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_client_is_served_and_its_connection_closed() {
    let upstream = Upstream::start(|_| Reply {
        bytes: b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nall\r\n0\r\n\r\n"
            .to_vec(),
        ..Reply::default()
    })
    .await;
    let gateway = before(&upstream).await;
    let mut conn = Conn::to(gateway.listen).await.expect("connect");
    conn.send("GET /old HTTP/1.0\r\n\r\n").await.expect("send");
    let text = String::from_utf8(conn.rest().await).expect("text");
    assert!(text.starts_with("HTTP/1.0 200 OK\r\n"), "{text}");
    assert!(text.ends_with("\r\n\r\nall"), "an old client knows no chunks: {text}");
    assert_eq!(upstream.calls()[0].head.start, "GET /old HTTP/1.1");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_waits_for_a_go_ahead_gets_it() {
    let upstream =
        Upstream::start(|call| reply("200 OK", &[], &String::from_utf8_lossy(&call.body))).await;
    let gateway = before(&upstream).await;
    let mut conn = Conn::to(gateway.listen).await.expect("connect");
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
    let mut conn = Conn::to(gateway.listen).await.expect("connect");
    let pipelined: String = (0..20).map(|i| request("GET", &format!("/{i}"), &[])).collect();
    conn.send(pipelined).await.expect("send");
    for i in 0..20 {
        assert_eq!(conn.answer().await.expect("an answer").text(), format!("/{i}"));
    }
    eventually("all are counted", async || {
        (gateway.count("all", "passed").await == 20.0).then_some(())
    })
    .await;
}
