//! The forward proxy: its authority, its list of hosts, and proxies on the way to upstreams.

use super::parse;
use crate::{
    config::{Config, ConfigError},
    tls::NewAuthority,
};
use rstest::rstest;
use std::fs;

/// Reads `forward` in a directory with an authority, and a certificate of a server.
fn with(forward: &str) -> Result<Config, ConfigError> {
    with_more(forward, "")
}

/// The same with `more` keys.
fn with_more(forward: &str, more: &str) -> Result<Config, ConfigError> {
    let directory = tempfile::tempdir().expect("a directory");
    let put = |name: &str, text: &str| fs::write(directory.path().join(name), text).expect("write");
    let own = NewAuthority::make(1).expect("an authority");
    put("ca.pem", &own.certificate);
    put("ca.key", &own.key);
    let made = rcgen::generate_simple_self_signed(["a.example".to_owned()]).expect("a certificate");
    put("a.pem", &made.cert.pem());
    put("a.key", &made.signing_key.serialize_pem());
    let text =
        format!("forward: {forward}\n{more}\nupstream: http://a\nroutes: [{{ suffix: '*' }}]\n");
    Config::parse(&text, "test.yaml", directory.path(), &|_| None)
}

const OWN: &str = "ca: { cert: ca.pem, key: ca.key }";

#[test]
fn other_hosts_are_refused_by_default() {
    let config = with(&format!("{{ listen: 127.0.0.1:8888, {OWN} }}")).expect("a config");
    let forward = config.forward.expect("a proxy");
    assert_eq!((forward.listen.port(), forward.allow.len()), (8888, 0));
}

#[rstest]
#[case::no_address("OWN", "forward.listen: is missing, as in `listen: 127.0.0.1:8888`")]
#[case::no_authority(
    "listen: 127.0.0.1:1",
    "forward.ca: is missing: the authority that clients trust, as in `ca: { cert: ca.pem, key: ca.key }`; `paceway ca` makes one"
)]
#[case::an_address_in_use(
    "listen: 127.0.0.1:8080, OWN",
    "forward.listen: the same address as `listen`; the forward proxy needs its own"
)]
#[case::no_list(
    "listen: 127.0.0.1:1, OWN, others: tunnel",
    "forward.allow: names no host that `others: tunnel` may reach, as in `allow: [\"*.example\"]`"
)]
#[case::a_list_for_nothing(
    "listen: 127.0.0.1:1, OWN, allow: [a]",
    "forward.allow: is for `others: tunnel`; with `others: refuse` no other host is reached"
)]
#[case::no_host(
    "listen: 127.0.0.1:1, OWN, others: tunnel, allow: [a, 'http://b']",
    "forward.allow[1]: `http://b` is no host such as `api.example`, `*.example`, `10.0.0.7:8443` or `*`"
)]
fn a_mistake_says_its_cure(#[case] keys: &str, #[case] said: &str) {
    let error = with(&format!("{{ {} }}", keys.replace("OWN", OWN))).expect_err("a mistake");
    let told: Vec<_> =
        error.mistakes.iter().map(|one| format!("{}: {}", one.path, one.reason)).collect();
    assert_eq!(told, [said]);
}

#[test]
fn a_certificate_of_a_server_is_no_authority() {
    let keys = "{ listen: 127.0.0.1:1, ca: { cert: a.pem, key: a.key } }";
    let error = with(keys).expect_err("a mistake").to_string();
    assert!(
        error
            .contains("a.pem: holds a certificate that may sign no others; `paceway ca` makes one"),
        "{error}"
    );
}

#[test]
fn the_summary_has_its_address() {
    let config = with(&format!("{{ listen: 127.0.0.1:8888, {OWN} }}")).expect("a config");
    let summary = config.summary();
    assert!(summary.ends_with(", forward proxy on 127.0.0.1:8888"), "{summary}");
}

/// Certificates of callers guard `listen` alone.
#[test]
fn a_proxy_that_needs_no_certificate_is_warned_of() {
    let tls = "cert: a.pem, key: a.key";
    for (listen, tls, is_warned) in [
        ("0.0.0.0:8888", format!("tls: {{ {tls}, client_ca: ca.pem }}"), true),
        ("127.0.0.1:8888", format!("tls: {{ {tls}, client_ca: ca.pem }}"), false),
        ("0.0.0.0:8888", format!("tls: {{ {tls} }}"), false),
    ] {
        let config = with_more(&format!("{{ listen: '{listen}', {OWN} }}"), &tls);
        let warnings = config.expect("a config").warnings();
        let said =
            "`tls.client_ca` does not apply to `forward.listen`: everyone who reaches 0.0.0.0:8888";
        let is_said = warnings.iter().any(|warning| warning.starts_with(said));
        assert_eq!(is_said, is_warned, "{listen} {warnings:?}");
    }
}

#[test]
fn a_wide_tunnel_for_other_hosts_is_warned_of() {
    for (listen, allow, is_warned) in [
        ("0.0.0.0:8888", "'*.example'", true),
        ("0.0.0.0:8888", "a.example", false),
        ("127.0.0.1:8888", "'*'", false),
    ] {
        let config =
            with(&format!("{{ listen: '{listen}', {OWN}, others: tunnel, allow: [{allow}] }}"));
        let warnings = config.expect("a config").warnings();
        let said = "everyone who reaches 0.0.0.0:8888 can open tunnels to hosts";
        assert_eq!(
            warnings.iter().any(|warning| warning.starts_with(said)),
            is_warned,
            "{warnings:?}"
        );
    }
}

#[rstest]
#[case::no_scheme(
    "proxy.corp:3128",
    "it has no scheme; write http://HOST:PORT, or http://USER:PASSWORD@HOST:PORT"
)]
#[case::another(
    "socks5://me:secret@proxy.corp:1080",
    "only proxies that are spoken to over http:// are known; write http://HOST:PORT, or http://USER:PASSWORD@HOST:PORT"
)]
#[case::no_port(
    "http://me:secret@proxy.corp",
    "write http://HOST:PORT, or http://USER:PASSWORD@HOST:PORT"
)]
fn the_url_of_a_proxy_is_never_quoted(#[case] url: &str, #[case] reason: &str) {
    let text = format!(
        "upstreams: {{ v: {{ url: http://a, via: '{url}' }} }}\nroutes: [{{ suffix: '*' }}]\n"
    );
    let told = parse(&text).expect_err("a mistake").to_string();
    let said = format!("upstreams.v.via: is not the URL of a proxy: {reason}");
    assert!(told.ends_with(&said), "{told}");
}

#[test]
fn a_password_in_clear_text_is_warned_of() {
    let text = "upstreams: { v: { url: http://a, via: 'http://me:secret@proxy.corp:3128' } }\nroutes: [{ suffix: '*' }]\n";
    let config = parse(text).expect("a config");
    let warnings = config.warnings().join("\n");
    assert!(
        warnings.contains("`upstreams.v.via` looks secret") && !warnings.contains("me:"),
        "{warnings}"
    );
    assert!(!format!("{:?}", config.upstreams).contains("secret"));
}
