//! Tests texts that are not YAML, because a value lacks its quotes or a line its indentation, and anchors.

use super::parse;
use ::http::Method;
use rstest::rstest;

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
#[case::path_in_a_map("routes:\n- { path: /a/{id}/b, limiters: [] }", Some("/a/{id}/b"))]
#[case::path_at_an_end("routes: [{path: /a/{*rest}}]", Some("/a/{*rest}"))]
#[case::double_braces("limiters:\n  a:\n    key: {{client_ip}}", Some("{client_ip}"))]
#[case::variable("limiters: { a: { key: ${client_ip} } }", Some("{client_ip}"))]
#[case::another_variable("store: { url: ${X} }", Some("${X}"))]
#[case::variable_at_an_end("limiters: { a: { rate: ${RATE}}}", Some("${RATE}"))]
#[case::variable_in_a_list("redact: [a, ${X}]", Some("${X}"))]
#[case::variable_in_a_url(
    "store: { url: redis://:${P}@r:6379/0, prefix: p }",
    Some("redis://:${P}@r:6379/0")
)]
#[case::address("listen: [::]:8080\nadmin: 127.0.0.1:9", Some("[::]:8080"))]
#[case::address_alone("admin: [::1]:8080", Some("[::1]:8080"))]
#[case::other("a: [", None)]
#[case::one_line_without_a_colon("limiters:\n  a 5/s\n  b: 5/s", None)]
#[case::star_in_quotes("routes: [{ suffix: '*' ]", None)]
#[case::star_in_a_comment("routes: [{ suffix: /a ] # not *", None)]
#[case::other_braces("routes: [{ suffix: /a }}]", None)]
fn a_value_without_quotes_is_reported_with_the_quoted_form(
    #[case] text: &str,
    #[case] wanted: Option<&str>,
) {
    let error = parse(text).expect_err("must be refused").to_string();
    assert_eq!(error.lines().count(), 1, "{error}");
    let hint = wanted.map(|wanted| format!("; it needs quotes: `\"{wanted}\"`"));
    match hint {
        Some(hint) => assert!(error.ends_with(&hint), "{error}"),
        None => assert!(!error.contains("quotes") && !error.contains("indent"), "{error}"),
    }
}

/// Checks the only message for lines that are not indented like their siblings. `@` marks the place that it names.
#[rstest]
#[case::less("limiters:\n    a: 5/s\n  @b: 5/s")]
#[case::further("limiters:\n  a: 5/s\n    b@: 5/s")]
#[case::further_after_a_comment("limiters:\n  a: 5/s\n# of b\n\n    @b: 5/s")]
#[case::less_in_a_list("limiters:\n- a: 5/s\n @b: 5/s")]
#[case::further_in_a_list("limiters:\n- a: 5/s\n    b@: { rate: 5/s }")]
#[case::another_dash("limiters:\n  - a: 5/s\n @- b: 5/s")]
#[case::a_dash_among_keys("limiters:\n  a: 5/s\n  - @b: 5/s")]
#[case::tab("limiters:\n\t@a: 5/s")]
#[case::tab_after_a_value("limiters:\n  a: 5/s\n@\tb: 5/s")]
fn reports_one_mistake_for_wrong_indentation(#[case] text: &str) {
    let before = &text[..text.find('@').expect("a mark")];
    let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
    let place = format!("test.yaml:{}:{column}: ", before.matches('\n').count() + 1);
    let error = parse(&text.replace('@', "")).expect_err("must be refused").to_string();
    assert!(error.starts_with(&place), "{error}");
    assert!(error.ends_with("; indent this line like its siblings, with spaces"), "{error}");
}

#[test]
fn anchors_work_and_do_not_explode() {
    let text = "upstream: http://a\nroutes:\n- { suffix: /a, methods: &m [GET] }\n- { suffix: /b, methods: *m }\n";
    assert_eq!(parse(text).expect("a config").routes[1].methods, [Method::GET, Method::HEAD]);
    let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for i in 1..10 {
        let aliases = vec![format!("*a{}", i - 1); 10].join(", ");
        bomb.push_str(&format!("a{i}: &a{i} [{aliases}]\n"));
    }
    let error = parse(&bomb).expect_err("must be refused").to_string();
    assert!(error.contains("too large: this alias stands for 111111 values"), "{error}");
    assert!(error.ends_with("use fewer aliases of aliases"), "{error}");
}
