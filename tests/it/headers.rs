//! The headers that the gateway changes, both ways, and those that it leaves alone.

use crate::support::{Answer, Gateway, Head, Reply, Upstream, reply, request};
use rstest::rstest;

/// A gateway with these keys beside its only upstream's URL, and these lines at the root.
async fn before(upstream: &Upstream, keys: &str, root: &str) -> Gateway {
    let url = upstream.url();
    Gateway::start(&format!(
        "{root}\nupstreams: {{ vendor: {{ url: \"{url}\"{keys} }} }}\nroutes: [{{ name: all, suffix: \"*\" }}]\n"
    ))
    .await
}

async fn exchange(gateway: &Gateway, bytes: impl AsRef<[u8]>) -> Answer {
    let mut conn = gateway.connect().await;
    conn.send(bytes).await.expect("send");
    conn.answer().await.expect("a whole answer")
}

/// The head that the upstream got for a GET with these fields.
async fn arrived(upstream: &Upstream, gateway: &Gateway, fields: &[(&str, &str)]) -> Head {
    assert_eq!(exchange(gateway, request("GET", "/", fields)).await.status, 200);
    upstream.calls().pop().expect("a call").head
}

const TOLD: [(&str, &str); 5] = [
    ("X-Forwarded-For", "203.0.113.9, 10.0.0.9"),
    ("X-Forwarded-Proto", "https"),
    ("X-Forwarded-Host", "shop.example"),
    ("X-Forwarded-Port", "443"),
    ("Forwarded", "for=203.0.113.9;proto=https, for=10.0.0.9"),
];

#[tokio::test(flavor = "multi_thread")]
async fn forwarding_headers_of_an_untrusted_client_are_replaced() {
    let upstream = Upstream::ok().await;
    let gateway = before(&upstream, "", "").await;
    let mut lies = TOLD.to_vec();
    let names = [
        "X-Real-IP",
        "True-Client-IP",
        "CF-Connecting-IP",
        "Client-IP",
        "X_Real_IP",
        "X_Forwarded_For",
        "X.Forwarded.For",
    ];
    lies.extend(names.map(|name| (name, "6.6.6.6")));
    let head = arrived(&upstream, &gateway, &lies).await;
    assert_eq!(head.all("x-forwarded-for"), ["127.0.0.1"]);
    assert_eq!(head.all("x-forwarded-proto"), ["http"]);
    assert_eq!(head.all("x-forwarded-host"), ["localhost"]);
    assert_eq!(head.all("x-forwarded-port"), [gateway.listen.port().to_string()]);
    assert_eq!(head.all("forwarded"), [""; 0]);
    for name in names {
        assert_eq!(head.all(&name.to_ascii_lowercase()), [""; 0], "{name}");
    }
}

/// RFC 9110 section 7.6.2: with 0 the gateway is the last recipient, and no limiter is asked.
#[tokio::test(flavor = "multi_thread")]
async fn max_forwards_is_counted_down_and_zero_ends_at_the_gateway() {
    let upstream = Upstream::ok().await;
    let gateway = Gateway::before(
        &upstream,
        "limiters: { a: { rate: 1/h, burst: 1 } }\n\
         routes: [{ name: all, suffix: \"*\", limiters: [a], max_wait: 0 }]\n",
    )
    .await;
    for _ in 0..3 {
        let answer = exchange(&gateway, request("OPTIONS", "/", &[("Max-Forwards", "0")])).await;
        assert_eq!(answer.status, 204);
        let allowed = answer.field("allow").expect("a field");
        assert!(allowed.contains("OPTIONS"), "{allowed}");
        assert_eq!(answer.field("paceway-origin"), Some("gateway"));
    }
    assert!(upstream.calls().is_empty());
    let answer = exchange(&gateway, request("OPTIONS", "/", &[("Max-Forwards", "3")])).await;
    assert_eq!(answer.status, 200);
    assert_eq!(upstream.calls()[0].head.all("max-forwards"), ["2"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_with_a_comma_is_refused() {
    let upstream = Upstream::ok().await;
    let gateway = before(&upstream, "", "").await;
    for bytes in [
        "GET / HTTP/1.1\r\nHost: a.example,b.example\r\n\r\n",
        "GET http://a.example,b.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n",
    ] {
        assert_eq!(exchange(&gateway, bytes).await.status, 400, "{bytes}");
    }
    assert!(upstream.calls().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn forwarding_headers_of_a_trusted_proxy_are_kept_and_extended() {
    let upstream = Upstream::ok().await;
    let gateway = before(&upstream, "", "trusted_proxies: [127.0.0.0/8]").await;
    let head = arrived(&upstream, &gateway, &TOLD).await;
    assert_eq!(head.all("x-forwarded-for"), ["203.0.113.9, 10.0.0.9, 127.0.0.1"]);
    assert_eq!(head.all("x-forwarded-proto"), ["https"]);
    assert_eq!(head.all("x-forwarded-host"), ["shop.example"]);
    assert_eq!(head.all("x-forwarded-port"), ["443"]);
    assert_eq!(head.all("forwarded"), [""; 0]);
}

#[rstest]
#[case::nobody("", TOLD[4].1, &[OWN])]
#[case::a_trusted_proxy("trusted_proxies: [127.0.0.0/8]", TOLD[4].1, &[TOLD[4].1, OWN])]
#[case::an_open_quote("trusted_proxies: [127.0.0.0/8]", "for=\"203.0.113.9", &[OWN])]
#[tokio::test(flavor = "multi_thread")]
async fn forwarded_is_sent_where_it_is_configured(
    #[case] root: &str,
    #[case] told: &str,
    #[case] expected: &[&str],
) {
    let upstream = Upstream::ok().await;
    let gateway = before(&upstream, ", forwarded: on", root).await;
    let head = arrived(&upstream, &gateway, &[("Forwarded", told)]).await;
    assert_eq!(head.all("forwarded"), expected);
}

const OWN: &str = "for=127.0.0.1;host=localhost;proto=http";

#[rstest]
#[case::a_field("GET / HTTP/1.1\r\nHost: Shop.example:81\r\n\r\n", "Shop.example:81")]
#[case::a_url("GET http://a.example/ HTTP/1.1\r\nHost: b.example\r\n\r\n", "a.example")]
#[tokio::test(flavor = "multi_thread")]
async fn the_clients_host_can_be_preserved(#[case] bytes: &str, #[case] host: &str) {
    let upstream = Upstream::ok().await;
    let gateway = before(&upstream, ", preserve_host: true", "").await;
    assert_eq!(exchange(&gateway, bytes).await.status, 200);
    assert_eq!(upstream.calls()[0].head.all("host"), [host]);
}

/// A page of another origin reads neither the status nor `Retry-After` without them.
#[tokio::test(flavor = "multi_thread")]
async fn the_gateways_own_answers_have_the_headers_that_the_operator_gives_them() {
    let upstream = Upstream::ok().await;
    let down = format!("http://127.0.0.1:{}", crate::support::free_port());
    let gateway = Gateway::start(&format!(
        "upstreams:
  vendor: {{ url: {}, headers: {{ own: {{ set: {{ access-control-allow-origin: \"*\", x-both: upstream }} }} }} }}
  down: {{ url: {down}, connect_timeout: 100ms }}
limiters: {{ search: 1/h }}
routes:
- {{ name: preflight, suffix: /search, methods: [OPTIONS], upstream: vendor }}
- {{ suffix: /search, upstream: vendor, limiters: [search], headers: {{ own: {{ set: {{ x-both: route }}, add: {{ vary: Origin }} }} }} }}
- {{ suffix: /down, upstream: down, headers: {{ own: {{ add: {{ vary: Origin }} }} }} }}
- {{ suffix: /none, upstream: vendor, limiters: [search], headers: {{ response: {{ set: {{ x-a: b }} }} }} }}
",
        upstream.url()
    ))
    .await;
    let passed = gateway.get("/search").await;
    assert_eq!((passed.status, passed.field("x-both")), (200, None), "the upstream's own answer");
    let refused = gateway.get("/search").await;
    assert_eq!(refused.status, 429);
    assert_eq!(refused.field("access-control-allow-origin"), Some("*"));
    assert_eq!((refused.field("x-both"), refused.field("vary")), (Some("route"), Some("Origin")));
    for kept in ["retry-after", "ratelimit", "paceway-origin", "x-request-id"] {
        assert!(refused.field(kept).is_some(), "{kept}");
    }
    let failed = gateway.get("/down").await;
    assert_eq!((failed.status, failed.field("vary")), (502, Some("Origin")));
    assert_eq!(gateway.get("/none").await.field("x-a"), None, "`response` is the upstream's");
    for _ in 0..3 {
        let preflight = exchange(&gateway, request("OPTIONS", "/search", &[])).await;
        assert_eq!(preflight.status, 200, "a preflight takes no permit");
    }
    let grpc = crate::grpc::answer(&gateway, crate::grpc::call("/search")).await;
    assert_eq!(
        (grpc.status().as_u16(), &grpc.headers()["grpc-status"]),
        (200, &"8".parse().unwrap())
    );
    assert_eq!(grpc.headers()["access-control-allow-origin"], "*");
}

#[rstest]
#[case::too_large("Content-Length", "5", 413)]
#[case::expecting("Expect", "x", 417)]
#[tokio::test(flavor = "multi_thread")]
async fn refusals_by_limits_of_a_route_have_the_headers_of_the_route(
    #[case] name: &str,
    #[case] value: &str,
    #[case] status: u16,
) {
    let gateway = Gateway::start(
        "upstream: http://127.0.0.1:9\nlimits: { body: 4 }\nroutes:\n\
         - { suffix: \"*\", headers: { own: { set: { access-control-allow-origin: \"*\" } } } }\n",
    )
    .await;
    let answer = exchange(&gateway, request("POST", "/", &[(name, value)])).await;
    assert_eq!((answer.status, answer.field("access-control-allow-origin")), (status, Some("*")));
}

#[tokio::test(flavor = "multi_thread")]
async fn configured_header_changes_come_last() {
    let upstream = Upstream::start(|_| {
        reply("200 OK", &[("Server", "origin"), ("X-Many", "1"), ("X-Internal", "1")], "ok")
    })
    .await;
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("key");
    std::fs::write(&file, "s3cret").expect("a file");
    let gateway = Gateway::start(&format!(
        "upstreams:
  vendor:
    url: {}
    headers:
      request:
        set: {{ x-api-key: \"${{file:{}}}\", x-both: upstream, via: mine }}
        remove: [cookie, x-forwarded-for]
      response: {{ remove: [server], set: {{ x-both: upstream }} }}
routes:
  - suffix: /x
    headers:
      request: {{ set: {{ x-both: route }}, add: {{ x-many: \"2\" }} }}
      response: {{ add: {{ x-many: \"2\" }}, set: {{ x-both: route }}, remove: [x-internal] }}
",
        upstream.url(),
        file.display()
    ))
    .await;
    let fields = [("X-Api-Key", "theirs"), ("Cookie", "a=1"), ("X-Many", "1")];
    let answer = exchange(&gateway, request("GET", "/x", &fields)).await;
    let head = &upstream.calls()[0].head;
    for (name, values) in [
        ("x-api-key", &["s3cret"][..]),
        ("x-both", &["route"]),
        ("x-many", &["1", "2"]),
        ("via", &["mine"]),
        ("cookie", &[]),
        ("x-forwarded-for", &[]),
    ] {
        assert_eq!(head.all(name), values, "{name}");
    }
    assert_eq!(answer.head.all("server"), [""; 0]);
    assert_eq!(answer.head.all("x-internal"), [""; 0]);
    assert_eq!(answer.head.all("x-both"), ["route"]);
    assert_eq!(answer.head.all("x-many"), ["1", "2"]);
    let own = exchange(&gateway, request("GET", "/nowhere", &[])).await;
    assert_eq!((own.status, own.head.all("x-both").len()), (404, 0), "no rule is for our answers");
}

/// Redirects, and every other status that has such a header, lead the caller to the gateway.
#[rstest]
#[case("301 Moved Permanently", 301)]
#[case("302 Found", 302)]
#[case("307 Temporary Redirect", 307)]
#[case("308 Permanent Redirect", 308)]
#[case("201 Created", 201)]
#[tokio::test(flavor = "multi_thread")]
async fn a_location_leads_to_the_gateway(#[case] status: &'static str, #[case] code: u16) {
    let upstream = Upstream::start(move |call| {
        let host = call.head.get("host").expect("a host");
        let url = |path: &str| format!("http://{host}{path}");
        match call.target.as_str() {
            "/plain" => reply(status, &[("Location", &url("/v2/new"))], ""),
            "/v2/old" => {
                let link =
                    format!("<{}>; rel=\"next\", <http://c.example/v2/>", url("/v2/new?page=2"));
                let fields = [
                    ("Location", &*url("/v2/new?a=b#c")),
                    ("Content-Location", "/v2/new"),
                    ("Link", &link),
                    ("X-Where", "at home"),
                ];
                reply(status, &fields, "")
            }
            "/v2/away" => reply(status, &[("Location", "http://c.example/v2/new")], ""),
            "/v2/new?a=b" => reply("200 OK", &[], "here"),
            _ => reply("404 Not Found", &[], ""),
        }
    })
    .await;
    let gateway = Gateway::start(&format!(
        "upstreams:
  vendor:
    url: {}/v2
    headers: {{ response: {{ replace: {{ location: auto, content-location: auto, link: auto }} }} }}
  plain: {{ url: {} }}
routes:
  - {{ suffix: /plain, upstream: plain }}
  - {{ suffix: \"*\", upstream: vendor, headers: {{ response: {{ replace: {{ x-where: {{ at: \"not at\" }} }} }} }} }}
",
        upstream.url(),
        upstream.url()
    ))
    .await;
    let answer = gateway.get("/old").await;
    assert_eq!(answer.status, code);
    assert_eq!(answer.field("location"), Some("/new?a=b#c"));
    assert_eq!(answer.field("content-location"), Some("/new"));
    let link = "</new?page=2>; rel=\"next\", <http://c.example/v2/>";
    assert_eq!(answer.field("link"), Some(link));
    assert_eq!(answer.field("x-where"), Some("not at home"));
    let followed = gateway.get("/new?a=b").await;
    assert_eq!((followed.status, &*followed.body), (200, &b"here"[..]));
    let plain = gateway.get("/plain").await;
    assert_eq!(plain.field("location"), Some(&*format!("{}/v2/new", upstream.url())));
    let away = gateway.get("/away").await;
    assert_eq!(away.field("location"), Some("http://c.example/v2/new"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_passes_unchanged() {
    let upstream = Upstream::start(|call| {
        let head: &[u8] = match call.target.as_str() {
            "/old" => b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
            _ => {
                b"HTTP/1.1 203 Fine\r\nX: b\r\nSet-Cookie: a=1\r\nX: a\r\nSet-Cookie: b=2\r\nX: b\r\n\
                  Y: caf\xe9 \xc3\xa9\r\nDate: Thu, 01 Jan 1970 00:00:00 GMT\r\nVia: 1.1 cdn\r\n\
                  Connection: x-hop, content-length, host\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\n\
                  Proxy-Authenticate: x\r\nTrailer: Z\r\nContent-Length: 2\r\n\r\nok"
            }
        };
        Reply { bytes: head.to_vec(), ..Reply::default() }
    })
    .await;
    let gateway = before(&upstream, "", "").await;
    let mut conn = gateway.ask("/", &[("Connection", "close")]).await;
    let text = conn.rest().await;
    assert!(text.windows(8).any(|part| part == b"caf\xe9 \xc3\xa9\r"), "obs-text as it came");
    let answer = gateway.get("/").await;
    assert_eq!(answer.head.start, "HTTP/1.1 203 Fine");
    for (name, values) in [
        ("x", &["b", "a", "b"][..]),
        ("set-cookie", &["a=1", "b=2"]),
        ("date", &["Thu, 01 Jan 1970 00:00:00 GMT"]),
        ("via", &["1.1 cdn", "1.1 paceway"]),
        ("trailer", &["Z"]),
        ("content-length", &["2"]),
        ("connection", &[]),
        ("x-hop", &[]),
        ("keep-alive", &[]),
        ("proxy-authenticate", &[]),
        ("server", &[]),
        ("content-type", &[]),
    ] {
        assert_eq!(answer.head.all(name), values, "{name}");
    }
    let old = gateway.get("/old").await;
    assert_eq!(old.head.all("via"), ["1.0 paceway"]);
    assert_eq!(old.head.all("date").len(), 1, "who forwards it says when it came");
}
