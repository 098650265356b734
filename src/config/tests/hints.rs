//! What a newcomer gets wrong, and that one message says how to put it right.

use super::{mistakes, parse};
use rstest::rstest;

/// The only message for a limiter `a`; `@` stands before the place that it names.
#[rstest]
#[case::key(
    "{ rate: 5/s, key: @{header.x-shop} }",
    "limiters.a.key: needs quotes: `\"{header.x-shop}\"`"
)]
#[case::key_of_more(
    "{ rate: 5/s, key: @{ client_ip: host } }",
    "limiters.a.key: must be a single value; a template needs quotes"
)]
#[case::double_braces(
    "{ rate: 5/s, key: @'{{client_ip}}:{{host}}' }",
    "limiters.a.key: `{{client_ip}}:{{host}}` has double braces; parts stand in single ones: `{client_ip}:{host}`"
)]
#[case::variable(
    "{ rate: 5/s, key: @'${client_ip}' }",
    "limiters.a.key: `${client_ip}` is a variable, and none of this name is set; did you mean `{client_ip}`?"
)]
#[case::variable_with_a_name(
    "{ rate: 5/s, key: @'x-${header.x-shop}' }",
    "limiters.a.key: `${header.x-shop}` is a variable, and none of this name is set; did you mean `{header.x-shop}`?"
)]
#[case::another_variable(
    "{ rate: 5/s, key: @'${NOPE}-{client_ip}' }",
    "limiters.a.key: the environment variable `NOPE` is not set; set it, or write `${NOPE:-default}`"
)]
fn one_message_for_a_limiter(#[case] text: &str, #[case] message: &str) {
    let text = format!("limiters: {{ a: {text} }}");
    let column = text.find('@').expect("a mark") + 1;
    assert_eq!(mistakes(&text.replace('@', "")), [format!("test.yaml:3:{column}: {message}")]);
}

/// The only message for a route; `@` stands before the place that it names.
#[rstest]
#[case::cost(
    "suffix: /a, limiters: [{ limiter: a, cost: @{header.x-cost} }]",
    "routes[0].limiters[0].cost: needs quotes: `\"{header.x-cost}\"`"
)]
fn one_message_for_a_route(#[case] route: &str, #[case] message: &str) {
    let route = format!("- {{ {route} }}");
    let column = route.find('@').expect("a mark") + 1;
    let route = route.replace('@', "");
    let text = format!("upstream: http://a\nlimiters: {{ a: 5/s, b: 5/s }}\nroutes:\n{route}\n");
    let error = parse(&text).expect_err("must be refused").to_string();
    assert_eq!(error, format!("test.yaml:4:{column}: {message}"));
}

#[rstest]
#[case::star("routes: [{ suffix: * }]", Some("*"))]
#[case::star_in_a_block("routes:\n- suffix: *", Some("*"))]
#[case::star_and_more("routes:\n- suffix: *.json # all", Some("*.json"))]
#[case::star_in_a_list("routes: [{ suffix: /a, methods: [*] }]", Some("*"))]
#[case::part_in_a_map(
    "limiters: { a: { rate: 5/s, key: shop-{client_ip} } }",
    Some("shop-{client_ip}")
)]
#[case::part_and_more("limiters:\n  a:\n    key: {header.x-a}:{host}", Some("{header.x-a}:{host}"))]
#[case::double_braces("limiters:\n  a:\n    key: {{client_ip}}", Some("{client_ip}"))]
#[case::variable("limiters: { a: { key: ${client_ip} } }", Some("{client_ip}"))]
#[case::other("a: [", None)]
#[case::star_in_quotes("routes: [{ suffix: '*' ]", None)]
#[case::star_in_a_comment("routes: [{ suffix: /a ] # not *", None)]
#[case::other_braces("routes: [{ suffix: /a }}]", None)]
fn what_is_not_yaml_for_want_of_quotes(#[case] text: &str, #[case] wanted: Option<&str>) {
    let error = parse(text).expect_err("must be refused").to_string();
    assert_eq!(error.lines().count(), 1, "{error}");
    let hint = wanted.map(|wanted| format!("; it needs quotes: `\"{wanted}\"`"));
    match hint {
        Some(hint) => assert!(error.ends_with(&hint), "{error}"),
        None => assert!(!error.contains("quotes"), "{error}"),
    }
}
