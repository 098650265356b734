mod origins;

use super::*;
use crate::config::Config;
use rstest::rstest;
use std::path::Path;

fn table(routes: &str) -> (Table, Vec<String>) {
    let text = format!("upstream: http://a\nroutes:\n{routes}");
    let config = Config::parse(&text, "test", Path::new("."), &|_| None).expect("a config");
    let names = config.routes.iter().map(|route| route.name.clone()).collect();
    (Table::new(&config.routes), names)
}

const ROUTES: &str = r#"
- { suffix: "/search" }
- { suffix: "/flights/search" }
- { suffix: ".json" }
- { suffix: "s/all.json" }
- { suffix: "/", name: root }
- { suffix: "/orders", name: read, methods: [GET, HEAD] }
- { suffix: "/orders", name: get, methods: [GET] }
- { suffix: "/orders", name: internal, host: Api.Internal }
- { suffix: "/orders", name: any }
- { suffix: "*", name: rest, methods: [GET, POST, PUT] }
"#;

#[rstest]
#[case::suffix("GET", "", "/v2/search", Some("/search"))]
#[case::longest_suffix("GET", "", "/v2/flights/search", Some("/flights/search"))]
#[case::segment_boundary("GET", "", "/research", Some("rest"))]
#[case::not_within("GET", "", "/search/x", Some("rest"))]
#[case::characters("GET", "", "/v2/a.json", Some(".json"))]
#[case::longer_characters("GET", "", "/v2/cars/all.json", Some("s/all.json"))]
#[case::root("GET", "", "/", Some("root"))]
#[case::root_spelt_otherwise("GET", "", "/a/..//", Some("root"))]
#[case::fewer_methods_win("GET", "", "/orders", Some("get"))]
#[case::method("HEAD", "", "/orders", Some("read"))]
#[case::no_method_fits("DELETE", "", "/orders", Some("any"))]
#[case::host_wins("GET", "api.INTERNAL", "/orders", Some("internal"))]
#[case::other_host("GET", "api.other", "/orders", Some("get"))]
#[case::spelling("GET", "", "//v2/%73earch/;x", Some("/search"))]
#[case::nothing("DELETE", "", "/x", None)]
fn finds(
    #[case] method: &str,
    #[case] host: &str,
    #[case] path: &str,
    #[case] expected: Option<&str>,
) {
    let (table, names) = table(ROUTES);
    let method = Method::from_bytes(method.as_bytes()).expect("a method");
    let host = Some(host).filter(|host| !host.is_empty());
    let found = table.find(&method, host, path);
    assert_eq!(found.map(|i| names[i].as_str()), expected);
}

#[test]
fn two_branches_are_one_cache_line() {
    assert_eq!(size_of::<Option<Branch>>(), 32);
}

#[rstest]
#[case("api.example", "api.example")]
#[case("api.example:8080", "api.example")]
#[case("[::1]:8080", "[::1]")]
#[case("[::1]", "[::1]")]
fn hosts_without_port(#[case] authority: &str, #[case] host: &str) {
    assert_eq!(host_of(authority), host);
}
