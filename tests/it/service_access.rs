//! The access to services: each speaks TLS, asks for a certificate and for its token. curl asks, which speaks HTTP/2, too.

use crate::support::{Authority, Gateway, service_address};
use rstest::rstest;
use tokio::process::Command;

/// The status of a call, `grpc` and the number for one of gRPC; `None` if there was no answer.
async fn status(url: &str, arguments: &[&str]) -> Option<String> {
    let mut curl = Command::new("curl");
    curl.args(["-s", "--max-time", "20", "-o", "/dev/null", "-D", "-", "-H", "Prefer: wait=0"]);
    let output = curl.args(arguments).arg(url).output().await.expect("curl");
    let head = String::from_utf8_lossy(&output.stdout).to_lowercase();
    if !output.status.success() {
        return None;
    }
    let grpc = head.lines().find_map(|line| line.strip_prefix("grpc-status: "));
    let http = head.split_whitespace().nth(1).map(str::to_owned);
    grpc.map(|status| format!("grpc {}", status.trim())).or(http)
}

/// A call of gRPC with nothing in its body has no message: its own error, after the token was found right.
#[rstest]
#[case::forward_auth("forward_auth", "/search", false, ["401", "200"])]
#[case::decisions("decisions", "/openapi.json", false, ["401", "200"])]
#[case::ext_authz(
    "ext_authz",
    "/envoy.service.auth.v3.Authorization/Check",
    true,
    ["grpc 16", "grpc 13"]
)]
#[case::envoy_rate_limit(
    "envoy_rate_limit",
    "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
    true,
    ["grpc 16", "grpc 13"]
)]
#[tokio::test(flavor = "multi_thread")]
async fn each_service_has_tls_client_certificates_and_a_token(
    #[case] service: &str,
    #[case] path: &str,
    #[case] is_grpc: bool,
    #[case] expected: [&str; 2],
) {
    let authority = Authority::new();
    let (cert, key) = authority.files("localhost");
    let (own, own_key) = authority.files("caller");
    let ca = authority.file();
    let gateway = Gateway::start(&format!(
        "services:\n  {service}:\n    listen: 127.0.0.1:0\n    token: hunter2\n    \
         tls: {{ cert: {cert}, key: {key}, client_ca: {ca} }}\nupstream: http://127.0.0.1:9\nlimiters: {{ search: 5/s }}\n\
         routes: [{{ suffix: '*', limiters: [search], max_wait: 0 }}]\n"
    ))
    .await;
    let port = service_address(&gateway, service).port();
    let url = format!("https://localhost:{port}{path}");
    let grpc =
        ["-X", "POST", "--http2", "-H", "Content-Type: application/grpc", "-H", "TE: trailers"];
    let kind = if is_grpc { &grpc[..] } else { &[] };
    let trust = ["--cacert", &ca, "--connect-to", &format!("localhost:{port}:127.0.0.1:{port}")];
    let shown = ["--cert", &own, "--key", &own_key];
    let clear = url.replace("https", "http");
    assert_eq!(status(&clear, &[&trust[..], kind].concat()).await, None, "clear text");
    assert_eq!(status(&url, &[&trust[..], kind].concat()).await, None, "no certificate");
    let known = [&trust[..], &shown, kind].concat();
    for (token, expected) in [("hunter", expected[0]), ("hunter2", expected[1])] {
        let token = format!("Paceway-Token: {token}");
        let status = status(&url, &[&known[..], &["-H", &token]].concat()).await;
        assert_eq!(status.as_deref(), Some(expected), "{token}");
    }
}
