//! Tests mistakes in a first file, and in one that was copied from another tool: each gets the cure in one message.

use super::parse;
use crate::config::utf8;
use rstest::rstest;

const ROUTES: &str = "routes: [{ suffix: '*', limiters: [a], max_wait: 1s }]\n";

/// Checks the only message for a file with a limiter `a` at its route.
#[rstest]
#[case::a_rate_of_another_gateway(
    "limiters: { a: { rps: 7 } }",
    "2:18: limiters.a.rps: unknown key `rps`; write `rate: 7/s`"
)]
#[case::a_rate_a_minute(
    "limiters: { a: { rpm: 300, burst: 5 } }",
    "2:18: limiters.a.rpm: unknown key `rpm`; write `rate: 300/min`"
)]
#[case::a_rate_from_outside(
    "limiters: { a: { rps: '${SECRET}' } }",
    "2:18: limiters.a.rps: unknown key `rps`; write `rate: 5/s`"
)]
#[case::a_list_of_names(
    "limiters:\n  - name: a\n    rate: 5/s",
    "3:3: limiters: must be a map of `NAME: RATE` lines; write `NAME:` in place of `- name: NAME`"
)]
#[case::a_list(
    "limiters:\n  - a: 5/x\n  - b: 5/s",
    "3:3: limiters: must be a map of `NAME: RATE` lines; take the `-` before them away"
)]
#[case::not_indented("limiters:\na: 5/s", "3:1: a: unknown key `a`; indent it below `limiters:`")]
#[case::no_break_space_after_a_colon(
    "limiters:\n  a:\u{a0}5/s",
    "3:5: this is a no-break space (U+00A0); write a plain space in its place"
)]
#[case::no_break_space_before_a_key(
    "limiters:\n\u{a0} a: 5/s",
    "3:1: this is a no-break space (U+00A0); write a plain space in its place"
)]
#[case::a_wide_colon("limiters:\n  a： 5/s", "3:4: `：` (U+FF1A) only looks like `:`; write `:`")]
#[case::a_wide_digit("limiters:\n  a: ５/s", "3:6: `５` (U+FF15) only looks like `5`; write `5`")]
#[case::a_long_dash(
    "limiters: { a: 5/s }\ntrusted_proxies:\n  – 10.0.0.0/8",
    "4:3: `–` (U+2013) only looks like `-`; write `-`"
)]
#[case::nothing_to_see(
    "limiters: { a: 5/s }\nlis\u{200b}ten: 127.0.0.1:1",
    "3:4: this character cannot be seen (U+200B); delete it"
)]
#[case::a_store_without_a_scheme(
    "limiters: { a: 5/s }\nstore: localhost:6379",
    "3:8: store: is not a store URL: write `memory`, or a URL such as `redis://localhost:6379`"
)]
#[case::a_store_by_its_kind(
    "limiters: { a: 5/s }\nstore: redis",
    "3:8: store: is not a store URL: write `memory`, or a URL such as `redis://host:6379`"
)]
#[case::a_store_with_a_password(
    "limiters: { a: 5/s }\nstore: user:hunter2@localhost:6379",
    "3:8: store: is not a store URL: write `memory`, or a URL such as `redis://host:6379`"
)]
#[case::a_port(
    "limiters: { a: 5/s }\nlisten: 127.0.0.1:80800",
    "3:9: listen: `127.0.0.1:80800` has a port above 65535"
)]
#[case::a_level(
    "limiters: { a: 5/s }\nlog: debug",
    "3:6: log: `debug` is a level; the level is that of the environment variable: `PACEWAY_LOG=debug`"
)]
#[case::a_level_by_name(
    "limiters: { a: 5/s }\nlog_level: debug",
    "3:1: log_level: unknown key `log_level`; the level is that of the environment variable: `PACEWAY_LOG=debug`"
)]
#[case::retries(
    "limiters: { a: 5/s }\nretries: 4",
    "3:1: retries: unknown key `retries`; it is written at the upstream, as `throttle: { retry: { attempts: 4 } }`"
)]
#[case::tls(
    "limiters: { a: 5/s }\ntls: true",
    "3:6: tls: must be a map of `key: value` lines, as in `tls: { cert: ..., key: ... }`"
)]
fn a_beginner_gets_one_message_with_the_cure(#[case] text: &str, #[case] message: &str) {
    let error = parse(&format!("upstream: http://v\n{text}\n{ROUTES}")).expect_err("a mistake");
    assert_eq!(error.to_string(), format!("test.yaml:{message}"));
}

/// Checks the only message for an upstream.
#[rstest]
#[case::no_scheme(
    "upstream: api.vendor.example",
    "1:11: upstream: `api.vendor.example` has no scheme; write `https://api.vendor.example` or `http://api.vendor.example`"
)]
#[case::a_host_and_a_path(
    "upstream: localhost:3000/v2",
    "1:11: upstream: `localhost:3000/v2` has no scheme; write `https://localhost:3000/v2` or `http://localhost:3000/v2`"
)]
#[case::another_scheme(
    "upstream: wss://a/x",
    "1:11: upstream: `wss://a/x` is no http:// or https:// URL; write `https://a/x`"
)]
#[case::a_port(
    "upstream: http://a:80800",
    "1:11: upstream: `http://a:80800` has a port that is 0 or above 65535"
)]
#[case::credentials(
    "upstreams: { v: { url: https://user:hunter2@a } }",
    "1:24: upstreams.v.url: `https://***@a` holds credentials, which the upstream would never see; write them as a header of an entry under upstreams: set headers.request.set.authorization"
)]
#[case::a_variable_of_a_shell(
    "upstream: $VENDOR_URL",
    "1:11: upstream: `$VENDOR_URL` is no URL, as in https://api.example/v2; a variable of the environment is written `\"${VENDOR_URL}\"`"
)]
#[case::a_variable_within_a_url(
    "upstream: https://$HOST/v2",
    "1:11: upstream: `https://$HOST/v2` has no valid host; a variable of the environment is written `\"${HOST}\"`"
)]
#[case::a_variable_of_kubernetes(
    "upstream: $(VENDOR_URL)",
    "1:11: upstream: `$(VENDOR_URL)` is no URL, as in https://api.example/v2; a variable of the environment is written `\"${VENDOR_URL}\"`"
)]
#[case::a_variable_of_windows(
    "upstream: %VENDOR_URL%",
    "1:11: a variable of the environment is written `\"${VENDOR_URL}\"`"
)]
#[case::a_template(
    "upstream: {{ .Values.url }}",
    "1:12: this looks like a template; render it first, and give Paceway the result"
)]
#[case::a_template_in_quotes(
    "upstream: '{{ .Values.url }}'",
    "1:11: upstream: `{{ .Values.url }}` is no URL, as in https://api.example/v2; this looks like a template; render it first, and give Paceway the result"
)]
#[case::a_template_of_a_workflow(
    "upstream: '${{ vars.URL }}'",
    "1:11: upstream: `${{ vars.URL }` is no name of an environment variable; this looks like a template; render it first, and give Paceway the result"
)]
#[case::a_block_of_a_template(
    "upstream: http://a\n{% if x %}",
    "2:2: this looks like a template; render it first, and give Paceway the result"
)]
#[case::a_header(
    "upstreams: { v: { url: http://a, headers: { x-id: 7 } } }",
    "1:45: upstreams.v.headers.x-id: unknown key `x-id`; write `headers: { request: { set: { x-id: ... } } }`, or `response`"
)]
#[case::a_header_of_requests(
    "upstreams: { v: { url: http://a, headers: { request: { x-id: 7 } } } }",
    "1:56: upstreams.v.headers.request.x-id: unknown key `x-id`; write `set: { x-id: ... }`, or `add`"
)]
#[case::retries(
    "upstreams: { v: { url: http://a, retries: 4 } }",
    "1:34: upstreams.v.retries: unknown key `retries`; it is written `throttle: { retry: { attempts: 4 } }`"
)]
#[case::retries_of_throttle(
    "upstreams: { v: { url: http://a, throttle: { retries: 4 } } }",
    "1:46: upstreams.v.throttle.retries: unknown key `retries`; attempts are written `retry: { attempts: 4 }`"
)]
#[case::a_list(
    "upstreams: [{ name: v, url: http://a }]",
    "1:12: upstreams: must be a map of `NAME: URL` lines, as in `upstreams: { default: https://api.example }`; more than a URL is `NAME: { url: ... }`"
)]
#[case::not_indented(
    "upstreams:\nv: http://a",
    "2:1: v: unknown key `v`; indent it below `upstreams:`"
)]
#[case::a_store_that_is_not_indented(
    "upstream: http://a\nstore:\nurl: redis://a",
    "3:1: url: unknown key `url`; indent it below `store:`"
)]
#[case::typographic_quotes(
    "upstream: http://a\nredact: [x]\nroutes: [{ suffix: “*” }]\n#",
    "3:20: `“` is a typographic quote (U+201C); write `\"*\"`"
)]
#[case::toml(
    "# mine\n\nlisten = \"127.0.0.1:8080\"\n[limiters]\nsearch = \"5/s\"\n#",
    "3:1: this looks like TOML, and a configuration is YAML: `listen = \"IP:PORT\"` is written `listen: IP:PORT`"
)]
#[case::a_file_of_variables(
    "listen=127.0.0.1:8080\n#",
    "1:1: this looks like TOML, and a configuration is YAML: `listen = \"IP:PORT\"` is written `listen: IP:PORT`"
)]
#[case::toml_of_tables(
    "[limiters]\nsearch = \"5/s\"\n#",
    "1:1: this looks like TOML, and a configuration is YAML: `listen = \"IP:PORT\"` is written `listen: IP:PORT`"
)]
fn a_mistake_at_an_upstream_gets_one_message_with_the_cure(
    #[case] text: &str,
    #[case] message: &str,
) {
    let rest = if text.ends_with('#') { "" } else { "\nroutes: [{ suffix: '*' }]\n" };
    let error = parse(&format!("{text}{rest}")).expect_err("a mistake").to_string();
    assert_eq!(error, format!("test.yaml:{message}"));
    assert!(!error.contains("hunter2"), "{error}");
}

#[test]
fn typographic_characters_in_comments_and_values_are_no_mistakes() {
    let text = "upstream: http://a # “*” –\nlimiters: { a: 5/x }\n\
                routes: [{ suffix: /“a”, limiters: [a], max_wait: 1s }]\n";
    let error = parse(text).expect_err("a mistake").to_string();
    assert_eq!(error.lines().count(), 1, "{error}");
    assert!(error.contains(":2:16: limiters.a: `5/x`"), "{error}");
}

#[rstest]
#[case::latin_1(b"a: 1\n# f\xfcr", "f:2:4: the byte 0xFC is not UTF-8; save the file as UTF-8")]
#[case::after_wide_letters(
    b"\xc3\xa4 \xe4",
    "f:1:3: the byte 0xE4 is not UTF-8; save the file as UTF-8"
)]
#[case::utf_16(b"\xff\xfea\0", "f:1:1: this is UTF-16; save the file as UTF-8")]
fn names_the_place_of_a_byte_that_is_not_utf_8(#[case] bytes: &[u8], #[case] message: &str) {
    assert_eq!(utf8("f", bytes.to_vec()).expect_err("a mistake").to_string(), message);
}

#[test]
fn a_message_lists_twenty_mistakes_and_counts_the_rest() {
    let limiters: String = (0..3_000).map(|i| format!("  l{i}: 5/x\n")).collect();
    let text = format!("upstream: http://a\nlimiters:\n{limiters}routes: [{{ suffix: '*' }}]\n");
    let error = parse(&text).expect_err("mistakes");
    assert_eq!(error.mistakes.len(), 3_000);
    let shown = error.to_string();
    assert_eq!(shown.lines().count(), 21);
    assert!(shown.ends_with("\ntest.yaml: and 2980 more"), "{shown}");
}
