//! The commands as a person or a script runs them: what they print, where, and how they end.

mod demo;
mod explain;
mod init;
mod run;

use crate::support::{Gateway, Upstream, paceway, paceway_in};
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};
use rstest::rstest;
use serde_json::Value;
use std::{fs, net::SocketAddr, process::Output};

/// The exit code, stdout and stderr of a command that has ended.
fn said(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// Runs a command in a directory with this `gateway.yaml`.
fn with_file(yaml: &str, args: &[&str], env: &[(&str, &str)]) -> (Option<i32>, String, String) {
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join("gateway.yaml"), yaml).expect("a file");
    said(&paceway_in(dir.path(), args, env))
}

const GOOD: &str = "upstream: https://api.vendor.example/v2
limiters:
  account: 500/min
  search: { rate: 5/s, burst: 10 }
routes:
  - { suffix: /search, limiters: [search, account], max_wait: 2s }
  - { name: rest, suffix: \"*\", limiters: [account], max_wait: 0 }
";

#[test]
fn check_summarises_a_valid_file_in_one_line() {
    let yaml = GOOD.replace("max_wait: 0", "max_wait: 2s");
    let (code, out, err) = with_file(&yaml, &["check", "gateway.yaml"], &[]);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    assert_eq!(out.lines().count(), 1, "{out}");
    assert!(out.starts_with("gateway.yaml: ok: 2 routes, 2 limiters, 1 upstream"), "{out}");
}

#[test]
fn the_examples_of_the_docs_are_good() {
    let dir = tempfile::tempdir().expect("a directory");
    let write = |file: &str, text: String| fs::write(dir.path().join(file), text).expect("a file");
    for folder in ["tls", "secrets"] {
        fs::create_dir(dir.path().join(folder)).expect("a folder");
    }
    for (name, key, is_ca) in [
        ("cert", "key.pem", IsCa::NoCa),
        ("other", "other.key", IsCa::NoCa),
        ("clients", "-", IsCa::Ca(BasicConstraints::Unconstrained)),
        ("vendor-ca", "-", IsCa::Ca(BasicConstraints::Unconstrained)),
    ] {
        let signing_key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new([format!("{name}.example")]).expect("a name");
        params.is_ca = is_ca;
        let cert = params.self_signed(&signing_key).expect("a certificate");
        write(&format!("tls/{name}.pem"), cert.pem());
        write(&format!("tls/{key}"), signing_key.serialize_pem());
    }
    write("secrets/vendor", "hunter2\n".into());
    let pages = [
        include_str!("../../docs/http.md"),
        include_str!("../../docs/quickstart.md"),
        include_str!("../../docs/compose.md"),
        include_str!("../../README.md"),
    ];
    let blocks = pages.iter().flat_map(|page| page.split("```yaml\n").skip(1));
    // A block that is not a whole configuration is a part of a file.
    let whole = blocks.map(|block| block.split("```").next().expect("an end"));
    let whole: Vec<_> = whole.filter(|block| block.contains("upstream")).collect();
    assert!(whole.len() > 12, "the examples are not found: {}", whole.len());
    for example in whole {
        write("gateway.yaml", example.into());
        let (code, out, err) = said(&paceway_in(dir.path(), &["check", "gateway.yaml"], &[]));
        // Some examples show other keys than limiters.
        let err = err
            .lines()
            .find(|line| !line.ends_with("no route has a limiter, so nothing is limited"));
        assert_eq!((code, err), (Some(0), None), "{example}{out}");
    }
}

#[test]
fn check_finds_every_mistake_at_once_each_with_place_key_reason_and_hint() {
    let yaml = "upstraem: https://api.vendor.example
limiters:
  account: 0/min
  search: { rate: 5/s, burst: -1, marign: 5ms }
routes:
  - { suffix: /search, limiters: [serach], max_wait: 2 }
  - { suffix: /search, limiters: [account] }
store: { url: redis://a, on_failure: shard }
";
    let (code, out, err) = with_file(yaml, &["check", "gateway.yaml"], &[]);
    assert_eq!((code, out.as_str()), (Some(2), ""));
    let expected = [
        ("gateway.yaml:1:1: upstraem: ", "did you mean `upstream`?"),
        ("gateway.yaml:3:12: limiters.account: ", "at least 1"),
        ("gateway.yaml:4:31: limiters.search.burst: ", "negative"),
        ("gateway.yaml:4:35: limiters.search.marign: ", "did you mean `margin`?"),
        ("gateway.yaml:6:35: routes[0].limiters[0]: ", "did you mean `search`?"),
        ("gateway.yaml:6:54: routes[0].max_wait: ", "needs a unit"),
        ("gateway.yaml:8:38: store.on_failure: ", "did you mean `share`?"),
    ];
    for (start, reason) in expected {
        let found = err.lines().any(|line| line.starts_with(start) && line.contains(reason));
        assert!(found, "no line {start}...{reason} in\n{err}");
    }
    // In the order of the file.
    let place = |line: &str| -> (usize, usize) {
        let mut numbers = line.split(':').skip(1).map(|n| n.parse().expect("a number"));
        (numbers.next().expect("a line"), numbers.next().expect("a column"))
    };
    let places: Vec<_> = err.lines().map(place).collect();
    assert!(places.is_sorted(), "{err}");
}

#[rstest]
#[case::no_yaml("upstream: [\n", "gateway.yaml:1:11: ", "not YAML")]
#[case::a_key_twice(
    "upstream: http://a\nupstream: http://b\nroutes: [{ suffix: \"*\" }]\n",
    "gateway.yaml:2:1: upstream: ",
    "written twice"
)]
#[case::nothing("", "gateway.yaml:1:1: upstream: ", "is missing")]
#[case::no_routes("upstream: http://a\n", "gateway.yaml:1:1: routes: ", "is missing")]
#[case::a_tie(
    "upstream: http://a\nroutes:\n  - { suffix: /a, name: x }\n  - { suffix: /%61, name: y }\n",
    "gateway.yaml:4:5: routes[1]: ",
    "routes[0] in line 3"
)]
#[case::an_unknown_upstream(
    "upstreams: { vendor: http://a }\nroutes:\n  - { suffix: /a, upstream: vendro }\n",
    "gateway.yaml:3:29: routes[0].upstream: ",
    "did you mean `vendor`?"
)]
#[case::one_period_twice(
    "upstream: http://a\nlimiters: { a: [3/s, 20/1s] }\nroutes: [{ suffix: \"*\" }]\n",
    "gateway.yaml:2:22: limiters.a[1]: ",
    "the same period as 3/s"
)]
#[case::a_key_of_another_algorithm(
    "upstream: http://a\nlimiters: { a: { rate: 3/s, margin: 30ms } }\nroutes: [{ suffix: \"*\" }]\n",
    "gateway.yaml:2:37: limiters.a.margin: ",
    "belongs to algorithm sliding_window or leaky_bucket"
)]
#[case::a_number_that_overflows(
    "upstream: http://a\nlimiters: { a: 99999999999999999999/s }\nroutes: [{ suffix: \"*\" }]\n",
    "gateway.yaml:2:16: limiters.a: ",
    "too large"
)]
#[case::nan(
    "upstream: http://a\nlimiters: { a: { rate: 5/s, burst: .nan } }\nroutes: [{ suffix: \"*\" }]\n",
    "gateway.yaml:2:36: limiters.a.burst: ",
    "whole number"
)]
#[case::a_variable_that_is_not_set(
    "upstream: ${PACEWAY_TEST_NOT_SET}\nroutes: [{ suffix: \"*\" }]\n",
    "gateway.yaml:1:11: ",
    "`PACEWAY_TEST_NOT_SET` is not set"
)]
#[case::a_file_that_is_not_there(
    "upstream: ${file:nothing.txt}\nroutes: [{ suffix: \"*\" }]\n",
    "gateway.yaml:1:11: ",
    "nothing.txt"
)]
#[case::an_odd_store(
    "store: http://a\nupstream: http://a\nroutes: [{ suffix: \"*\" }]\n",
    "gateway.yaml:1:8: store: ",
    "not a scheme"
)]
#[case::sentinels_of_nobody(
    "store: redis-sentinel://a\nupstream: http://a\nroutes: [{ suffix: \"*\" }]\n",
    "gateway.yaml:1:8: store: ",
    "the name that the Sentinels have"
)]
fn check_names_place_key_and_reason(#[case] yaml: &str, #[case] start: &str, #[case] reason: &str) {
    let (code, out, err) = with_file(yaml, &["check", "gateway.yaml"], &[]);
    assert_eq!((code, out.as_str()), (Some(2), ""), "{err}");
    let found = err.lines().any(|line| line.starts_with(start) && line.contains(reason));
    assert!(found, "no line {start}...{reason} in\n{err}");
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    for args in [&["check", "nothing.yaml"][..], &["run", "--config", "nothing.yaml"]] {
        let (code, out, err) = said(&paceway(args));
        assert_eq!((code, out.as_str()), (Some(2), ""));
        assert!(err.starts_with("nothing.yaml: cannot be read: "), "{err}");
    }
}

#[test]
fn values_from_environment_and_files_appear_in_no_message() {
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join("url"), "redis://:hunter2@redis:6379/0\n").expect("a file");
    let yaml = "store: ${file:url}
upstream: ${VENDOR:-http://fallback.example}
listen: ${LISTEN}
routes: [{ suffix: \"*\" }]
";
    let file = dir.path().join("gateway.yaml");
    fs::write(&file, yaml).expect("a file");
    let env = [("LISTEN", "127.0.0.1:18080")];
    let args = ["explain", "gateway.yaml", "GET", "/x"];
    let (code, out, _) = said(&paceway_in(dir.path(), &args, &env));
    assert_eq!(code, Some(0));
    assert!(out.contains("http://fallback.example/x"), "{out}");
    let check = ["check", "gateway.yaml"];
    let (code, out, err) = said(&paceway_in(dir.path(), &check, &env));
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains("redis at redis:6379") && out.contains("127.0.0.1:18080"), "{out}");
    assert!(!out.contains("hunter2"), "{out}");

    // Also where it is wrong.
    fs::write(dir.path().join("url"), "postgres://:hunter2@host").expect("a file");
    let env = [("LISTEN", "127.0.0.1"), ("VENDOR", "hunter4")];
    let (code, out, err) = said(&paceway_in(dir.path(), &check, &env));
    assert_eq!((code, out.as_str()), (Some(2), ""));
    assert_eq!(err.lines().count(), 3, "{err}");
    assert!(
        !err.contains("hunter") && err.contains("`${LISTEN}` (`127.0.0.1`) names no port"),
        "{err}"
    );
}

#[test]
fn check_reads_the_files_of_tls() {
    let yaml =
        "upstream: http://a\ntls: { cert: none.pem, key: none.key }\nroutes: [{ suffix: '*' }]\n";
    let (code, out, err) = with_file(yaml, &["check", "gateway.yaml"], &[]);
    assert_eq!((code, out.as_str()), (Some(2), ""));
    let lines: Vec<_> = err.lines().collect();
    assert_eq!(lines.len(), 2, "{err}");
    assert!(
        lines[0].starts_with("gateway.yaml:2:14: tls.cert: `none.pem` cannot be read"),
        "{err}"
    );
    assert!(lines[1].starts_with("gateway.yaml:2:29: tls.key: `none.key` cannot be read"), "{err}");
}

#[test]
fn schema_prints_a_json_schema() {
    let (code, out, err) = said(&paceway(&["schema"]));
    assert_eq!((code, err.as_str()), (Some(0), ""));
    let schema: Value = serde_json::from_str(&out).expect("JSON");
    assert!(schema["$schema"].as_str().is_some_and(|url| url.contains("json-schema.org")));
    let keys = schema["properties"].as_object().expect("properties");
    for key in ["listen", "admin", "store", "upstream", "upstreams", "limiters", "routes"] {
        assert!(keys.contains_key(key), "no {key}");
    }
    let validator = jsonschema::validator_for(&schema).expect("a valid schema");
    // A configuration in JSON is one in YAML.
    let good = serde_json::json!({
        "upstream": "https://api.vendor.example",
        "limiters": { "account": "500/min", "search": { "rate": "5/s", "burst": 10 } },
        "routes": [{ "suffix": "*", "limiters": ["account"], "max_wait": "2s" }],
    });
    assert!(validator.is_valid(&good));
    let (code, _, err) = with_file(&good.to_string(), &["check", "gateway.yaml"], &[]);
    assert_eq!(code, Some(0), "{err}");
    let mut bad = good.clone();
    bad["upstraem"] = true.into();
    assert!(!validator.is_valid(&bad));
}

#[rstest]
#[case::nothing(&[])]
#[case::an_unknown_command(&["walk"])]
#[case::an_unknown_option(&["run", "--fast"])]
#[case::a_missing_argument(&["check"])]
#[case::a_port_that_is_none(&["demo", "--port", "x"])]
fn a_wrong_usage_exits_with_2_and_a_message_on_stderr(#[case] args: &[&str]) {
    let (code, out, err) = said(&paceway(args));
    assert_eq!((code, out.as_str()), (Some(2), ""));
    assert!(err.contains("Usage: paceway") || err.contains("try '--help'"), "{err}");
}

#[test]
fn help_and_version_are_no_errors() {
    let (code, out, _) = said(&paceway(&["--help"]));
    assert_eq!(code, Some(0));
    for command in ["run", "check", "explain", "schema", "demo"] {
        assert!(out.contains(&format!("\n  {command} ")), "no {command} in\n{out}");
    }
    let (code, out, _) = said(&paceway(&["--version"]));
    assert_eq!((code, out.trim()), (Some(0), concat!("paceway ", env!("CARGO_PKG_VERSION"))));
}

#[test]
fn run_without_a_configuration_names_the_searched_files() {
    let dir = tempfile::tempdir().expect("a directory");
    let (code, out, err) = said(&paceway_in(dir.path(), &["run"], &[]));
    assert_eq!((code, out.as_str()), (Some(2), ""));
    for part in ["paceway.yaml", "config/paceway.yaml", "--config"] {
        assert!(err.contains(part), "{err}");
    }
}

#[test]
fn run_and_check_print_the_same_mistakes() {
    let yaml = "upstraem: http://a\nroutes: [{ suffix: \"*\" }]\n";
    let run = with_file(yaml, &["run", "--config", "gateway.yaml"], &[]);
    assert_eq!(run.0, Some(2));
    assert_eq!(run, with_file(yaml, &["check", "gateway.yaml"], &[]));
}

#[tokio::test(flavor = "multi_thread")]
async fn health_reports_whether_a_gateway_is_ready() {
    let upstream = Upstream::ok().await;
    let mut gateway = Gateway::before(&upstream, "routes: [{ suffix: \"*\" }]\n").await;
    let admin = gateway.admin.to_string();
    let (code, out, err) = said(&paceway(&["health", "--admin", &admin]));
    assert_eq!((code, out.as_str(), err.as_str()), (Some(0), "", ""));
    // Neither the data port nor another server is taken for it, and no call is forwarded for the question.
    for (port, why) in [
        (gateway.listen, "is the address for calls (`listen`)"),
        (upstream.address(), "is not the admin side of Paceway"),
    ] {
        let (code, out, err) = said(&paceway(&["health", "--admin", &port.to_string()]));
        assert_eq!((code, out.as_str()), (Some(1), ""));
        assert!(err.contains(why), "{err}");
        let calls = upstream.calls().len();
        assert_eq!(calls, usize::from(port == upstream.address()), "{port}");
    }
    gateway.signal("TERM");
    gateway.end().await;
    let (code, out, err) = said(&paceway(&["health", "--admin", &admin]));
    assert_eq!((code, out.as_str()), (Some(1), ""));
    assert!(err.starts_with("error: ") && err.contains(&admin), "{err}");
}

/// The address that `demo` prints in the line that begins with `start`.
fn address(out: &str, start: &str) -> SocketAddr {
    let line = out.lines().find(|line| line.starts_with(start)).expect("a line");
    let url = line.split("http://").nth(1).expect("an address");
    url.split(['/', ' ']).next().expect("an address").parse().expect("an address")
}
