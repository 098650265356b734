//! Certificates, keys and authorities: which files are right, and what is said of those that are not.

use crate::config::{Config, ConfigError};
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};
use rstest::rstest;
use std::{fs, path::Path};

/// A directory with what a gateway is given.
struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Self {
        let files = Self(tempfile::tempdir().expect("a directory"));
        for name in ["a", "b"] {
            let key = KeyPair::generate().expect("a key");
            let params = CertificateParams::new(vec![format!("{name}.example")]).expect("names");
            let cert = params.self_signed(&key).expect("a certificate").pem();
            files.put(&format!("{name}.pem"), &cert);
            files.put(&format!("{name}.key"), &key.serialize_pem());
            files.put(&format!("{name}-both.pem"), &[cert, key.serialize_pem()].concat());
        }
        let mut params = CertificateParams::new(Vec::new()).expect("names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        files.put("ca.pem", &params.self_signed(&key).expect("a certificate").pem());
        files.put("mixed.pem", &[files.get("a.pem"), files.get("b.key")].concat());
        files.put("garbage.pem", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
        files.put("torn.pem", "-----BEGIN CERTIFICATE-----\nAA!A\n-----END CERTIFICATE-----\n");
        let locked =
            "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
        files.put("locked.key", locked);
        files.put("garbage.key", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n");
        files.put("empty.pem", "");
        files.put("large.pem", &"#".repeat((1 << 20) + 1));
        files
    }

    fn put(&self, name: &str, text: &str) {
        fs::write(self.0.path().join(name), text).expect("written");
    }

    fn get(&self, name: &str) -> String {
        fs::read_to_string(self.0.path().join(name)).expect("a file")
    }

    fn parse(&self, text: &str) -> Result<Config, ConfigError> {
        Config::parse(text, "test.yaml", self.0.path(), &|name| {
            (name == "FILE").then(|| "nowhere.pem".to_owned())
        })
    }

    fn at(&self, name: &str) -> std::path::PathBuf {
        self.0.path().join(name)
    }
}

const ROUTES: &str = "routes: [{ suffix: \"*\" }]\n";

#[test]
fn paths_of_certificates_are_relative_to_the_file() {
    let files = Files::new();
    let absolute = files.at("b.key").display().to_string();
    let config = files.parse(&format!(
        "upstreams:\n  v: {{ urls: ['https://a', 'https://b'], ca: ca.pem, client_cert: {{ cert: a.pem, key: a.key }}, server_name: v.example }}\n  \
         w: {{ url: 'https://a', client_cert: b-both.pem, server_name: 10.0.0.1 }}\n\
         tls: {{ cert: a.pem, key: ./a.key, client_ca: ca.pem, certificates: [{{ cert: b.pem, key: {absolute} }}, {{ cert: a-both.pem, key: a-both.pem }}] }}\n\
         routes: [{{ suffix: \"*\", upstream: v }}]\n"
    ));
    let config = config.expect("a config");
    let tls = config.tls.expect("certificates");
    let named: Vec<_> = tls.certificates.iter().map(|pair| (&*pair.cert, &*pair.key)).collect();
    let paths = ["a.pem", "./a.key", "b.pem", "b.key", "a-both.pem", "a-both.pem"]
        .map(|name| files.at(name));
    let expected: Vec<(&Path, &Path)> =
        paths.chunks(2).map(|pair| (&*pair[0], &*pair[1])).collect();
    assert_eq!(named, expected);
    assert_eq!(tls.client_ca, Some(files.at("ca.pem")));
    let (v, w) = (&config.upstreams[0].tls, &config.upstreams[1].tls);
    assert_eq!(
        (v.ca.as_deref(), v.server_name.as_deref()),
        (Some(&*files.at("ca.pem")), Some("v.example"))
    );
    assert_eq!(v.client_cert.as_ref().expect("a pair").key, files.at("a.key"));
    let both = w.client_cert.as_ref().expect("a pair");
    assert_eq!((&both.cert, &both.key), (&files.at("b-both.pem"), &files.at("b-both.pem")));
    assert_eq!((w.ca.as_ref(), w.server_name.as_deref()), (None, Some("10.0.0.1")));
}

/// The message names the file as any shell finds it, wherever the configuration was named from.
#[test]
fn a_missing_file_is_named_with_its_full_path() {
    let here = std::env::current_dir().expect("a directory");
    let file = here.join("tests/none.pem").display().to_string();
    let said = super::mistakes("tls: { cert: none.pem, key: none.pem }");
    assert!(
        said[0].contains(&format!("`none.pem` cannot be read as `{file}`: No such")),
        "{said:?}"
    );
}

#[rstest]
#[case::no_files("tls: @{}", "tls.cert: is missing, as in `cert: cert.pem`")]
#[case::no_key("tls: @{ cert: a.pem }", "tls.key: is missing, as in `key: key.pem`")]
#[case::switch(
    "tls: @on",
    "tls: must be a map of `key: value` lines, as in `tls: { cert: ..., key: ... }`"
)]
#[case::not_there(
    "tls: { cert: @none.pem, key: a.key }",
    "tls.cert: `none.pem` cannot be read as `DIR/none.pem`: No such file or directory (os error 2)"
)]
#[case::not_there_at_all(
    "tls: { cert: @/none/a.pem, key: a.key }",
    "tls.cert: `/none/a.pem` cannot be read: No such file or directory (os error 2)"
)]
#[case::from_outside(
    "tls: { cert: @'${FILE}', key: a.key }",
    "tls.cert: `${FILE}` cannot be read as `***`: No such file or directory (os error 2)"
)]
#[case::no_name("tls: { cert: @'', key: a.key }", "tls.cert: `` names no file")]
#[case::directory("tls: { cert: @., key: a.key }", "tls.cert: `.` is no file")]
#[case::device("tls: { cert: @/dev/zero, key: a.key }", "tls.cert: `/dev/zero` is no file")]
#[case::large("tls: { cert: @large.pem, key: a.key }", "tls.cert: `large.pem` is larger than 1MiB")]
#[case::empty(
    "tls: { cert: @empty.pem, key: a.key }",
    "tls.cert: `empty.pem` holds no certificate in PEM"
)]
#[case::torn(
    "tls: { cert: @torn.pem, key: a.key }",
    "tls.cert: `torn.pem` holds a certificate that is no PEM"
)]
#[case::garbage(
    "tls: { cert: @garbage.pem, key: a.key }",
    "tls.cert: `garbage.pem` holds a certificate that is no X.509"
)]
#[case::swapped(
    "tls: { cert: @a.key, key: a.pem }",
    "tls.cert: `a.key` holds no certificate in PEM"
)]
#[case::certificate_as_key(
    "tls: { cert: a.pem, key: @a.pem }",
    "tls.key: `a.pem` holds no private key in PEM"
)]
#[case::locked(
    "tls: { cert: a.pem, key: @locked.key }",
    "tls.key: `locked.key` holds a private key that is encrypted; decrypt it"
)]
#[case::odd_key(
    "tls: { cert: a.pem, key: @garbage.key }",
    "tls.key: `garbage.key` holds a private key of a kind that cannot be used"
)]
#[case::another_key(
    "tls: { cert: a.pem, key: @b.key }",
    "tls.key: `b.key` holds a key that is not the one of the certificate in `cert`"
)]
#[case::another_key_inside(
    "tls: { cert: mixed.pem, key: @mixed.pem }",
    "tls.key: `mixed.pem` holds a key that is not the one of the certificate in `cert`"
)]
#[case::more(
    "tls: { cert: a.pem, key: a.key, certificates: [{ cert: b.pem, key: @a.key }] }",
    "tls.certificates[0].key: `a.key` holds a key that is not the one of the certificate in `cert`"
)]
#[case::twice(
    "tls: { cert: a.pem, key: a.key, certificates: [@{ cert: a.pem, key: a.key }] }",
    "tls.certificates[0]: named twice"
)]
#[case::no_list(
    "tls: { cert: a.pem, key: a.key, certificates: @{ cert: b.pem, key: b.key } }",
    "tls.certificates: must be a list: [one, two]"
)]
#[case::authority(
    "tls: { cert: a.pem, key: a.key, client_ca: @a.key }",
    "tls.client_ca: `a.key` holds no certificate in PEM"
)]
#[case::odd_authority(
    "tls: { cert: a.pem, key: a.key, client_ca: @garbage.pem }",
    "tls.client_ca: `garbage.pem` holds no certificate that an authority can have"
)]
#[case::nginx(
    "tls: { @ssl_certificate: a.pem, key: a.key }",
    "tls.ssl_certificate: unknown key `ssl_certificate`; did you mean `cert`?"
)]
#[case::ca(
    "tls: { cert: a.pem, key: a.key, @ca: ca.pem }",
    "tls.ca: unknown key `ca`; did you mean `client_ca`?"
)]
#[case::versions(
    "tls: { cert: a.pem, key: a.key, @min_version: 1.3 }",
    "tls.min_version: unknown key `min_version`; TLS 1.2 and 1.3 and HTTP/1.1 and 2 are always offered"
)]
fn reports_one_mistake_in_certificates(#[case] text: &str, #[case] message: &str) {
    let files = Files::new();
    let column = text.find('@').expect("a mark") + 1;
    let text = format!("upstream: http://a\n{ROUTES}{}\n", text.replacen('@', "", 1));
    let error = files.parse(&text).expect_err("must be refused").to_string();
    let message = message.replace("DIR", &files.0.path().display().to_string());
    let expected = format!("test.yaml:3:{column}: {message}");
    // Without any file both are missing.
    assert!(error.lines().any(|line| line == expected), "{error}");
    assert_eq!(error.lines().count(), if text.contains("tls: {}") { 2 } else { 1 }, "{error}");
}

#[rstest]
#[case::ca_in_clear_text(
    "url: http://a, ca: @ca.pem",
    "ca: needs https, and the URL of this upstream begins with `http://`"
)]
#[case::cert_in_clear_text(
    "url: http://a, client_cert: @a-both.pem",
    "client_cert: needs https, and the URL of this upstream begins with `http://`"
)]
#[case::name_in_clear_text(
    "url: http://a, server_name: @a",
    "server_name: needs https, and the URL of this upstream begins with `http://`"
)]
#[case::ca("url: https://a, ca: @a.key", "ca: `a.key` holds no certificate in PEM")]
#[case::list_of_authorities("url: https://a, ca: @[ca.pem]", "ca: must be a single value")]
#[case::pair(
    "url: https://a, client_cert: { cert: a.pem, key: @b.key }",
    "client_cert.key: `b.key` holds a key that is not the one of the certificate in `cert`"
)]
#[case::no_key(
    "url: https://a, client_cert: @a.pem",
    "client_cert: `a.pem` holds no private key in PEM"
)]
#[case::mixed(
    "url: https://a, client_cert: @mixed.pem",
    "client_cert: `mixed.pem` holds a key that is not the one of its first certificate"
)]
#[case::key_missing(
    "url: https://a, client_cert: @{ cert: a.pem }",
    "client_cert.key: is missing, as in `key: key.pem`"
)]
#[case::name(
    "url: https://a, server_name: @'a:443'",
    "server_name: `a:443` is no host name; write it without scheme and port"
)]
#[case::tls(
    "url: https://a, @tls: { ca: ca.pem }",
    "tls: unknown key `tls`; an https:// URL speaks TLS; `ca`, `client_cert` and `server_name` are keys of the upstream itself"
)]
#[case::insecure(
    "url: https://a, @insecure_skip_verify: true",
    "insecure_skip_verify: unknown key `insecure_skip_verify`; certificates are always checked; name the authority of this one in `ca`"
)]
#[case::sni("url: https://a, @sni: b", "sni: unknown key `sni`; did you mean `server_name`?")]
#[case::cert(
    "url: https://a, @cert: a.pem",
    "cert: unknown key `cert`; the certificate for the upstream is written `client_cert: { cert: FILE, key: FILE }`"
)]
fn reports_one_mistake_in_the_tls_of_an_upstream(#[case] text: &str, #[case] message: &str) {
    let files = Files::new();
    let text = format!("upstreams: {{ v: {{ {text} }} }}");
    let column = text.find('@').expect("a mark") + 1;
    let text = format!("{}\n{ROUTES}", text.replacen('@', "", 1));
    let error = files.parse(&text).expect_err("must be refused").to_string();
    assert_eq!(error, format!("test.yaml:1:{column}: upstreams.v.{message}"));
}

#[test]
fn a_wrong_url_is_the_only_reported_tls_mistake() {
    let files = Files::new();
    let text = format!("upstreams: {{ v: {{ url: 'ftp://a', ca: ca.pem }} }}\n{ROUTES}");
    let error = files.parse(&text).expect_err("must be refused");
    assert_eq!(error.mistakes.len(), 1, "{error}");
}

#[rstest]
#[case::another_name("https://b.example", "", "own.pem", Some("it is not for `b.example`"))]
#[case::its_name("https://a.example", "", "own.pem", None)]
#[case::by_server_name("https://10.0.0.1", "server_name: a.example", "own.pem", None)]
#[case::an_authority("https://b.example", "", "ca.pem", None)]
#[case::one_of_several("https://a.example", "", "all.pem", None)]
#[case::without_names("https://a.example", "", "unnamed.pem", Some("no subjectAltName"))]
#[case::of_the_past("https://a.example", "", "expired.pem", Some("has expired"))]
#[case::signed_by_another("https://a.example", "", "signed.pem", Some("signs no others"))]
#[case::of_clients("https://a.example", "", "client.pem", Some("has another purpose"))]
#[case::of_a_store("rediss://a.example", "", "unnamed.pem", Some("no subjectAltName"))]
#[case::of_another_store("rediss://b.example", "", "unnamed.pem", None)]
#[case::of_a_store_of_another_name(
    "rediss://b.example",
    "server_name: a.example",
    "unnamed.pem",
    Some("no subjectAltName")
)]
fn a_file_of_authorities_that_cannot_work_is_warned_of(
    #[case] url: &str,
    #[case] more: &str,
    #[case] file: &str,
    #[case] warning: Option<&str>,
) {
    let files = Files::new();
    let put = |name: &str, sans: &[&str], change: fn(&mut CertificateParams)| {
        let sans: Vec<_> = sans.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(sans).expect("names");
        params.distinguished_name.push(rcgen::DnType::CommonName, "a.example");
        change(&mut params);
        let key = KeyPair::generate().expect("a key");
        files.put(name, &params.self_signed(&key).expect("a certificate").pem());
    };
    let is_ca =
        |params: &mut CertificateParams| params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    put("own.pem", &["a.example"], |_| {});
    put("unnamed.pem", &[], is_ca);
    put("expired.pem", &["a.example"], |params| {
        params.not_after = rcgen::date_time_ymd(2020, 1, 1)
    });
    files.put("all.pem", &[files.get("expired.pem"), files.get("own.pem")].concat());
    let (mut params, key) =
        (CertificateParams::new(Vec::new()).expect("names"), KeyPair::generate().expect("a key"));
    is_ca(&mut params);
    let issuer = rcgen::Issuer::new(params, KeyPair::generate().expect("a key"));
    let mut params = CertificateParams::new(vec!["a.example".to_owned()]).expect("names");
    params.distinguished_name.push(rcgen::DnType::CommonName, "a server");
    files.put("signed.pem", &params.signed_by(&key, &issuer).expect("a certificate").pem());
    put("client.pem", &["a.example"], |params| {
        params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth]
    });
    let is_store = url.starts_with("rediss");
    let (key, text) = if is_store {
        let store = format!("{{ url: '{url}', tls: {{ ca: {file}, {more} }} }}");
        ("store.tls", format!("store: {store}\nupstream: http://a\n{ROUTES}"))
    } else {
        let upstream = format!("{{ url: '{url}', ca: {file}, {more} }}");
        ("upstreams.v", format!("upstreams: {{ v: {upstream} }}\n{ROUTES}"))
    };
    let warnings = files.parse(&text).expect("a config").warnings();
    let found: Vec<_> = warnings.iter().filter(|said| said.contains("cannot work")).collect();
    assert_eq!(found.len(), usize::from(warning.is_some()), "{warnings:?}");
    for (said, meant) in found.iter().zip(warning) {
        let meant = meant.replace("it is", "its certificate is");
        let start = format!("`{key}.ca` cannot work: ");
        assert!(said.starts_with(&start) && said.contains(&meant), "{said}");
    }
}

/// Neither could be the certificate of a client.
#[rstest]
#[case::its_own(false)]
#[case::an_authority(true)]
fn client_ca_for_servers_alone_is_warned_of(#[case] is_ca: bool) {
    let files = Files::new();
    let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("names");
    params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth];
    if is_ca {
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    }
    let key = KeyPair::generate().expect("a key");
    files.put("s.pem", &params.self_signed(&key).expect("a certificate").pem());
    let warned = |file: &str| {
        let tls = format!("tls: {{ cert: a.pem, key: a.key, client_ca: {file} }}");
        let config = files.parse(&format!("{tls}\nupstream: http://a\n{ROUTES}"));
        let warnings = config.expect("a config").warnings();
        warnings
            .iter()
            .any(|said| said.contains("`tls.client_ca` cannot work: its certificate has"))
    };
    assert_eq!((warned("s.pem"), warned("ca.pem")), (true, false));
}
