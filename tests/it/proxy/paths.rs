//! Paths, and the routes that they choose.

use super::{before, before_url, exchange};
use crate::support::{Gateway, Upstream};
use rstest::rstest;

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
async fn the_base_path_is_prepended(#[case] base: &str) {
    let upstream = Upstream::ok().await;
    let gateway = before_url(&format!("{}{base}", upstream.url())).await;
    for target in ["/", "/a//b?c=d", "/../e", "http://other.example/f?g"] {
        assert_eq!(gateway.get(target).await.status, 200);
    }
    let targets: Vec<_> = upstream.calls().into_iter().map(|call| call.target).collect();
    assert_eq!(targets, ["/v2/", "/v2/a//b?c=d", "/v2/../e", "/v2/f?g"]);
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
    let gateway = Gateway::before(
        &upstream,
        "limiters: { search: 1/day }
routes: [{ suffix: /search, limiters: [search] }, { suffix: \"*\" }]
",
    )
    .await;
    assert_eq!(gateway.get("/search").await.status, 200);
    assert_eq!(gateway.get(target).await.status, 429, "{target}");
    assert_eq!(gateway.get("/research").await.status, 200, "and no other is caught");
    assert_eq!(upstream.calls().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_without_a_route_is_a_404_and_not_sent() {
    let upstream = Upstream::ok().await;
    let gateway = Gateway::before(&upstream, "routes: [{ suffix: /search }]\n").await;
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
