//! Programs that read the variables of a proxy, each of which is paced without a change. `make test` installs them.

use super::{Vendor, exec, text};
use rstest::rstest;

const PYTHON: &str = "target/clients/python/bin/python";

const REQUESTS: &str = "
import requests, sys
with requests.Session() as session:
    for i in range(8):
        answer = session.get(sys.argv[1] + '/x')
        assert answer.text == 'ok', answer
";
const HTTPX: &str = "
import httpx, sys
with httpx.Client(http2=True) as client:
    for i in range(8):
        answer = client.get(sys.argv[1] + '/x')
        assert answer.text == 'ok' and answer.http_version == 'HTTP/2', answer
";
const URLLIB: &str = "
import sys, urllib.request
for i in range(8):
    assert urllib.request.urlopen(sys.argv[1] + '/x').read() == b'ok'
";
const FETCH: &str = "
(async () => {
  const calls = [...Array(8)].map(() => fetch(process.argv[1] + '/x'));
  for (const answer of await Promise.all(calls)) {
    if ((await answer.text()) !== 'ok') process.exit(1);
  }
  process.exit(0);
})();
";
const HTTPS: &str = "
const https = require('node:https');
let left = 8;
for (let i = 0; i < 8; i++) {
  https.get(process.argv[1] + '/x', (answer) => {
    answer.resume().on('end', () => --left || process.exit(answer.statusCode === 200 ? 0 : 1));
  });
}
";
const AXIOS: &str = "
const axios = require('axios');
(async () => {
  const calls = [...Array(8)].map(() => axios.get(process.argv[1] + '/x'));
  for (const answer of await Promise.all(calls)) {
    if (answer.data !== 'ok') process.exit(1);
  }
  process.exit(0);
})();
";
const NODE: &str = "PATH=\"$PATH:$PWD/target/clients/python/bin\" NODE_PATH=target/clients/node_modules exec node -e \"$0\" \"$1\"";

#[rstest]
#[case::curl(&["sh", "-c", "for i in 1 2 3 4 5 6 7 8; do curl -sSf $0/x; done", "URL"])]
#[case::curl_at_once(&["sh", "-c", "curl -sSfZ \"$0/x?[1-8]\"", "URL"])]
#[case::curl_over_http_1(&["sh", "-c", "curl -sSf --http1.1 \"$0/x?[1-8]\"", "URL"])]
#[case::requests(&[PYTHON, "-c", REQUESTS, "URL"])]
#[case::httpx(&[PYTHON, "-c", HTTPX, "URL"])]
#[case::urllib(&[PYTHON, "-c", URLLIB, "URL"])]
#[case::fetch_of_node(&["sh", "-c", NODE, FETCH, "URL"])]
#[case::https_of_node(&["sh", "-c", NODE, HTTPS, "URL"])]
#[case::axios(&["sh", "-c", NODE, AXIOS, "URL"])]
#[tokio::test(flavor = "multi_thread")]
async fn a_program_is_paced(#[case] command: &[&str]) {
    let vendor = Vendor::start().await;
    let url = vendor.url();
    let command: Vec<_> =
        command.iter().map(|word| if *word == "URL" { &*url } else { word }).collect();
    let ended = exec(&vendor, &["--limit", "5/s"], &command).await;
    assert!(ended.status.success(), "{}{}", text(&ended.stdout), text(&ended.stderr));
    vendor.assert_paced(8);
}

/// git and cargo ask for what this vendor does not have, and reach it through the proxy.
#[rstest]
#[case::git(&["git", "ls-remote", "URL/repository"], "/repository/info/refs?service=git-upload-pack")]
#[case::cargo(&["cargo", "search", "x", "--registry", "vendor"], "/index/config.json")]
#[tokio::test(flavor = "multi_thread")]
async fn a_tool_reaches_the_vendor(#[case] command: &[&str], #[case] asked: &str) {
    let vendor = Vendor::start().await;
    let url = vendor.url();
    let command: Vec<_> = command.iter().map(|word| word.replace("URL", &url)).collect();
    let command: Vec<_> = command.iter().map(String::as_str).collect();
    let home = tempfile::tempdir().expect("a directory");
    let index = format!("CARGO_REGISTRIES_VENDOR_INDEX=sparse+{url}/index/");
    let home = format!("CARGO_HOME={}", home.path().display());
    let ended =
        exec(&vendor, &["--limit", "5/s"], &[&["env", &index, &home], &command[..]].concat()).await;
    let targets: Vec<_> = vendor.upstream.calls().into_iter().map(|call| call.target).collect();
    assert!(targets.iter().any(|target| target == asked), "{targets:?} {ended:?}");
}
