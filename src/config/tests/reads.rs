//! Tests `share` and `revalidate`.

use super::{parse, schema::verdicts};
use crate::config::KeptMemory;
use rstest::rstest;

#[rstest]
#[case::on("share: on", true)]
#[case::off("share: off", true)]
#[case::nothing("share: ~", true)]
#[case::headers("share: { by: [accept, X-Shop] }", true)]
#[case::no_headers("share: { by: [] }", true)]
#[case::empty("share: {}", true)]
#[case::word("share: always", false)]
#[case::list("share: [accept]", false)]
#[case::one("share: { by: accept }", false)]
#[case::no_name("share: { by: ['a b'] }", false)]
#[case::unknown("share: { header: [a] }", false)]
#[case::kept("revalidate: on", true)]
#[case::not_kept("revalidate: off", true)]
#[case::memory("revalidate: { memory: 8MiB }", true)]
#[case::size("revalidate: 64MiB", false)]
fn schema_and_parser_agree_on_reads(#[case] key: &str, #[case] is_right: bool) {
    let route = format!(
        "upstream: http://a\nlimiters: {{ a: 5/s }}\nroutes: [{{ suffix: /a, limiters: [a], max_wait: 1s, {key} }}]\n"
    );
    assert_eq!(verdicts(&route), (is_right, is_right), "{route}");
    if key.starts_with("revalidate") {
        let upstream =
            format!("upstreams: {{ a: {{ url: http://a, {key} }} }}\nroutes: [{{ suffix: /a }}]\n");
        assert_eq!(verdicts(&upstream), (is_right, is_right), "{upstream}");
    }
}

#[test]
fn a_route_has_its_own_memory_or_that_of_its_upstream() {
    let text = "upstreams: { a: { url: http://a, revalidate: on } }\nroutes:\n\
                - { suffix: /a }\n- { suffix: /b, revalidate: { memory: 1MiB } }\n- { suffix: /c, revalidate: off }\n";
    let config = parse(text).expect("a configuration");
    let memory: Vec<_> = config.routes.iter().map(|route| route.revalidate).collect();
    let of = |bytes, is_of_upstream| Some(KeptMemory { bytes, is_of_upstream });
    assert_eq!(memory, [of(64 << 20, true), of(1 << 20, false), None]);
}

#[test]
fn names_the_place_of_a_wrong_value() {
    let text = "upstream: http://a\nroutes: [{ suffix: /a, share: [accept] }]\n";
    let said = parse(text).expect_err("a mistake").to_string();
    let reason = "must be `on`, `off` or a map, as in `share: { by: [accept] }`";
    assert!(said.contains(reason) && said.contains("routes[0].share"), "{said}");
}

#[rstest]
#[case::size("revalidate: 8MiB", "or a map, as in `revalidate: { memory: 8MiB }`")]
#[case::word("revalidate: always", "or a map, as in `revalidate: { memory: 64MiB }`")]
#[case::header("share: accept", "or a map, as in `share: { by: [accept] }`")]
#[case::yes("share: yes", "`yes` is not one of on, off; did you mean `on`?\n")]
#[case::no("share: No", "`No` is not one of on, off; did you mean `off`?\n")]
fn a_mistake_says_the_right_form(#[case] key: &str, #[case] form: &str) {
    let text = format!("upstream: http://a\nroutes: [{{ suffix: /a, {key} }}]\n");
    let said = format!("{}\n", parse(&text).expect_err("a mistake"));
    assert!(said.contains(form), "{said}");
}

#[test]
fn a_memory_has_at_least_64_kib() {
    let of = |bytes| {
        parse(&format!(
            "upstream: http://a\nroutes: [{{ suffix: /a, revalidate: {{ memory: {bytes} }} }}]\n"
        ))
    };
    assert!(of("64KiB").is_ok());
    assert!(of("63KiB").expect_err("a mistake").to_string().contains("must be at least 64KiB"));
}

/// Without a wait no read joins another one.
#[test]
fn warns_of_a_route_that_shares_and_never_waits() {
    let text = |wait| {
        format!(
            "upstream: http://a\nlimiters: {{ a: 5/s }}\nroutes: [{{ suffix: /a, limiters: [a], share: on, {wait} }}]\n"
        )
    };
    let warnings = |wait| parse(&text(wait)).expect("a configuration").warnings();
    assert!(warnings("max_wait: 1s").is_empty());
    let said = warnings("max_wait: 0");
    assert!(said.iter().any(|said| said.contains("`share` of the route `/a`")), "{said:?}");
}
