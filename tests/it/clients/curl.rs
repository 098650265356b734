//! curl between a client's files and the gateway.

use super::{before, origin, run, secured};
use crate::support::Upstream;
use rstest::rstest;
use serde_json::Value;
use std::{fs, process::Command};

fn curl(args: &[&str]) -> Command {
    let mut command = Command::new("curl");
    command.args(["-sS", "--max-time", "30", "--noproxy", "*"]).args(args);
    command
}

#[rstest]
#[case::http_1_0(&["--http1.0"], "1", "GET")]
#[case::http_1_1(&["--http1.1"], "1.1", "GET")]
#[case::http_2(&["--http2-prior-knowledge"], "2", "GET")]
#[case::post(&["-d", "a=1"], "1.1", "POST")]
#[case::put_chunked(&["-X", "PUT", "-H", "Transfer-Encoding: chunked", "-d", "a=1"], "1.1", "PUT")]
#[case::expect(&["-H", "Expect: 100-continue", "-d", "a=1"], "1.1", "POST")]
#[case::expect_over_http_2(&["--http2-prior-knowledge", "-H", "Expect: 100-continue", "-d", "a=1"], "2", "POST")]
#[tokio::test(flavor = "multi_thread")]
async fn curl_gets_an_answer(#[case] args: &[&str], #[case] version: &str, #[case] method: &str) {
    let origin = origin().await;
    let gateway = before(&origin.url()).await;
    let url = format!("http://{}/a/../b?c={{d}}", gateway.listen);
    let shape = ["-w", "\n%{http_version} %{http_code}", "--path-as-is", "-g"];
    let seen = run(curl(&[args, &shape, &[&url]].concat())).await;
    let (body, status) = seen.rsplit_once('\n').expect("two lines");
    assert_eq!(status, format!("{version} 200"));
    let told: Value = serde_json::from_str(body).expect("JSON");
    assert_eq!(
        (told["method"].as_str(), told["target"].as_str()),
        (Some(method), Some("/a/../b?c={d}"))
    );
    assert_eq!(told["body"], if method == "GET" { "" } else { "a=1" });
}

/// Up and down again, over each version and over TLS.
#[rstest]
#[case::http_1_1(&["--http1.1"], false)]
#[case::http_2(&["--http2-prior-knowledge"], false)]
#[case::http_1_1_over_tls(&["--http1.1"], true)]
#[case::http_2_over_tls(&["--http2"], true)]
#[tokio::test(flavor = "multi_thread")]
async fn curl_uploads_a_file(#[case] args: &[&str], #[case] tls: bool) {
    let origin = origin().await;
    let (gateway, dir) = match tls {
        true => secured(&format!("upstream: {}", origin.url())).await.keep(),
        false => (before(&origin.url()).await, None),
    };
    let scratch = tempfile::tempdir().expect("a directory");
    let file = scratch.path().join("upload");
    let text: String = (0..100_000).map(|i| format!("{i}\n")).collect();
    fs::write(&file, &text).expect("a file");
    let scheme = if tls { "https" } else { "http" };
    let url = format!("{scheme}://localhost:{}/up", gateway.listen.port());
    let ca = dir.as_ref().map(|dir| dir.path().join("ca.pem").display().to_string());
    let ca = ca.as_deref().map_or(vec![], |ca| vec!["--cacert", ca]);
    let file = file.display().to_string();
    let seen = run(curl(&[args, &ca, &["-4", "-T", &file, &url]].concat())).await;
    let told: Value = serde_json::from_str(&seen).expect("JSON");
    assert_eq!(told["method"], "PUT");
    assert!(told["body"] == text.as_str(), "the body differs");
}

/// A refused upload costs nothing: curl waits for `100 Continue` and gets 429.
#[tokio::test(flavor = "multi_thread")]
async fn curl_does_not_send_a_refused_upload() {
    let origin = Upstream::ok().await;
    let gateway = before(&origin.url()).await;
    let url = format!("http://{}/test.Echo/Limited", gateway.listen);
    assert_eq!(run(curl(&[&url])).await, "ok");
    let scratch = tempfile::NamedTempFile::new().expect("a file");
    fs::write(scratch.path(), "x".repeat(1 << 20)).expect("a file");
    let body = format!("@{}", scratch.path().display());
    let wanted = ["-H", "Expect: 100-continue", "--expect100-timeout", "30", "-o", "/dev/null"];
    let shape = ["-w", "%{http_code} %{size_upload}", "--data-binary", &body];
    let seen = run(curl(&[&wanted[..], &shape, &[&url]].concat())).await;
    assert_eq!(seen, "429 0");
    assert_eq!(origin.calls().len(), 1);
}
