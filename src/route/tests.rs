mod origins;

use super::*;
use crate::config::Config;
use rstest::rstest;
use std::path::Path;

fn table(routes: &str) -> (Table, Vec<String>) {
    let text = format!("upstream: http://a\nroutes:\n{routes}");
    let config = Config::parse(&text, "test", Path::new("."), &|_| None).expect("a config");
    let names = config.routes.iter().map(|route| route.name.clone()).collect();
    (Table::new(&config.routes, config.paths), names)
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
fn finds_routes_by_method_host_and_path(
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

const TEMPLATES: &str = r#"
- { path: "/channels/{channel}/messages/{message}", name: message }
- { path: "/channels/{channel}/messages/pins", name: pins, methods: [GET] }
- { path: "/channels/{channel}/{*rest}", name: channel }
- { path: "/channels/me/messages/{message}", name: mine, host: a.internal }
- { path: "/channels/me/messages/pins", name: my pins }
- { path: "/bot{token}/send", name: bot }
- { path: "/{name}/send", name: any bot, methods: [POST] }
- { path: "/", name: root }
- { suffix: "/pins", name: suffix }
- { suffix: "*", name: rest, methods: [GET] }
"#;

#[rstest]
#[case::template("GET", "", "/channels/5/messages/7", Some("message"))]
#[case::more_literal("GET", "", "/channels/5/messages/pins", Some("pins"))]
#[case::no_method_of_the_more_literal("PUT", "", "/channels/5/messages/pins", Some("message"))]
#[case::no_host_of_the_more_literal("GET", "b", "/channels/me/messages/7", Some("message"))]
#[case::host("GET", "A.internal", "/channels/me/messages/7", Some("mine"))]
#[case::rest("GET", "", "/channels/5/messages", Some("channel"))]
#[case::rest_of_many("GET", "", "/channels/5/a/b/pins", Some("channel"))]
#[case::longer_beginning("POST", "", "/bot5/send", Some("bot"))]
#[case::no_beginning("POST", "", "/bot/send", Some("any bot"))]
#[case::root("GET", "", "/", Some("root"))]
#[case::suffix("GET", "", "/channels/pins", Some("suffix"))]
#[case::no_whole_path("GET", "", "/v2/channels/5/messages/7", Some("rest"))]
#[case::spelling("GET", "", "/x/..//channels;a/%35/./messages/7/", Some("message"))]
#[case::asterisk("OPTIONS", "", "*", None)]
#[case::nothing("PUT", "", "/channels", None)]
fn finds_routes_with_templates(
    #[case] method: &str,
    #[case] host: &str,
    #[case] path: &str,
    #[case] expected: Option<&str>,
) {
    let (table, names) = table(TEMPLATES);
    let method = Method::from_bytes(method.as_bytes()).expect("a method");
    let host = Some(host).filter(|host| !host.is_empty());
    let found = table.find(&method, host, path);
    assert_eq!(found.map(|i| names[i].as_str()), expected);
    let covering = table.find_covering(&method, host, path, |one, other| one == other);
    assert_eq!(covering, Ok(found));
}

/// A path whose readings give different keys is refused: one of the two would be another bucket for the same resource.
#[rstest]
#[case::plain("", "/channels/5", Ok(Some("5")))]
#[case::another_case("", "/channels/ABC", Ok(Some("abc")))]
#[case::case_counts("fold_case: off", "/channels/ABC", Ok(Some("ABC")))]
#[case::dots_at_the_end("", "/channels/5.", Ok(Some("5")))]
#[case::line_end("", "/channels/5%0a", Ok(Some("5")))]
#[case::nul("", "/channels/5%00x", Ok(Some("5")))]
#[case::parameters("", "/channels/5;x", Ok(Some("5")))]
#[case::backslash("", "/channels\\5", Ok(Some("5")))]
#[case::dots("", "/channels/5/%2e%2e/6", Ok(Some("6")))]
#[case::slash("", "/channels/x%2f..%2f5", Err(()))]
#[case::slash_is_data("encoded_slash: data", "/channels/a%2fb", Ok(Some("a%2fb")))]
#[case::slash_separates("encoded_slash: separator", "/channels/x%2f..%2f5", Ok(Some("5")))]
#[case::slash_before_the_parameter("", "/channels%2f5", Err(()))]
#[case::wide_escape("", "/channels/%u0035", Err(()))]
#[case::of_another_route("", "/users/5", Ok(None))]
fn routes_need_readings_that_agree_on_their_keys(
    #[case] paths: &str,
    #[case] path: &str,
    #[case] expected: Result<Option<&str>, ()>,
) {
    let text = format!(
        "upstream: http://a\npaths: {{ {paths} }}\nlimiters: {{ a: {{ rate: 1/s, key: '{{path.id}}' }} }}\nroutes:\n\
         - {{ path: '/channels/{{id}}', limiters: [a] }}\n- {{ path: '/channels/{{id}}/{{more}}', limiters: [a] }}\n\
         - {{ suffix: \"*\" }}\n"
    );
    let config = Config::parse(&text, "test", Path::new("."), &|_| None).expect("a config");
    let table = Table::new(&config.routes, config.paths);
    let covers = |one: usize, other: usize| config.routes[one].covers(&config.routes[other]);
    let found = table.find_covering(&Method::GET, None, path, covers).map_err(|_| ());
    let value = found.map(|route| {
        let template = config.routes[route.expect("a route")].path.template()?;
        let value = template.value("id", path, &config.paths)?;
        Some(String::from_utf8_lossy(&value).into_owned())
    });
    assert_eq!(value.as_ref().map(Option::as_deref), expected.as_ref().map(|value| *value));
}

/// Two spellings that an origin may serve as one path get one limit, unless `paths` says that no origin does.
#[rstest]
#[case::as_written("", "/v2/getUser", Ok(Some(0)))]
#[case::another_case("", "/v2/GETUSER", Ok(Some(0)))]
#[case::escaped("", "/v2/%67%45TUser", Ok(Some(0)))]
#[case::small_letters("", "/v2/getuser", Ok(Some(0)))]
#[case::limited_otherwise("", "/Ten", Err(()))]
#[case::only_one_route("", "/SomethingElse", Ok(Some(2)))]
#[case::characters("", "/a.JSON", Ok(Some(3)))]
#[case::folded("fold_case: on", "/Ten", Ok(Some(1)))]
#[case::folded_suffix("fold_case: on", "/GetUser", Ok(Some(0)))]
#[case::not_folded("fold_case: off", "/Ten", Ok(Some(2)))]
#[case::slash("", "/v2%2fgetUser", Ok(Some(0)))]
#[case::slash_limited_otherwise("", "/v2%2ften", Err(()))]
#[case::separator("encoded_slash: separator", "/v2%2ften", Ok(Some(1)))]
#[case::data("encoded_slash: data", "/v2%2ften", Ok(Some(2)))]
#[case::dots("", "/v2/getUser.%20.", Ok(Some(0)))]
#[case::dots_limited_otherwise("", "/ten.", Err(()))]
#[case::strip("trailing_dots: strip", "/ten.", Ok(Some(1)))]
#[case::keep("trailing_dots: keep", "/ten.", Ok(Some(2)))]
#[case::line_end("", "/getUser%0a", Ok(Some(0)))]
fn paths_that_origins_serve_alike_find_one_route(
    #[case] paths: &str,
    #[case] path: &str,
    #[case] expected: Result<Option<usize>, ()>,
) {
    let text = format!(
        "upstream: http://a\npaths: {{ {paths} }}\nlimiters: {{ a: 1/s, b: 1/s, c: 1/s }}\nroutes:\n\
         - {{ suffix: /getUser, limiters: [a, b, c] }}\n- {{ suffix: /ten, limiters: [b] }}\n\
         - {{ suffix: \"*\", limiters: [c] }}\n- {{ suffix: .json, limiters: [a, c] }}\n"
    );
    let config = Config::parse(&text, "test", Path::new("."), &|_| None).expect("a config");
    let table = Table::new(&config.routes, config.paths);
    let covers = |one: usize, other: usize| config.routes[one].covers(&config.routes[other]);
    let found = table.find_covering(&Method::GET, None, path, covers);
    assert_eq!(found.map_err(|_| ()), expected, "{found:?}");
}

/// The reason of a refusal names the key under `paths` that would decide the path.
#[rstest]
#[case::case(
    "/Ten",
    "upper case: the configuration can say what the upstream does, with `fold_case: off`, or `on`"
)]
#[case::slash("/v2%2ften", "`encoded_slash: data`, or `separator`")]
#[case::dots("/ten.", "`trailing_dots: keep`, or `strip`")]
fn an_ambiguous_path_names_the_deciding_setting(#[case] path: &str, #[case] expected: &str) {
    let (table, _) = table("- { suffix: /ten }\n- { suffix: '*' }");
    let error = table.find_covering(&Method::GET, None, path, |one, other| one == other);
    let error = error.expect_err("it is read in two ways").to_string();
    assert!(error.contains(expected), "{error}");
}

#[rstest]
#[case::of_get("- { suffix: /a, methods: [GET] }\n- { suffix: '*' }", "/a")]
#[case::of_get_and_more("- { suffix: /a, methods: [GET, POST] }\n- { suffix: '*' }", "/a")]
#[case::named_by_another(
    "- { suffix: /a, methods: [GET] }\n- { suffix: /a, methods: [HEAD], name: b }",
    "b"
)]
#[case::named_for_another_path(
    "- { suffix: /a, methods: [GET] }\n- { suffix: '*', methods: [HEAD] }",
    "/a"
)]
#[case::of_post("- { suffix: /a, methods: [POST] }\n- { suffix: '*' }", "*")]
fn a_route_for_get_takes_head(#[case] routes: &str, #[case] expected: &str) {
    let (table, names) = table(routes);
    let found = table.find(&Method::HEAD, None, "/a");
    assert_eq!(found.map(|i| names[i].as_str()), Some(expected));
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
fn strips_the_port_of_a_host(#[case] authority: &str, #[case] host: &str) {
    assert_eq!(host_of(authority), host);
}
