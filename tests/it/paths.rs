//! Routes for whole paths: their limiters, the buckets of their parameters, and what `explain` says of them.

use crate::support::{Gateway, Upstream, paceway};
use std::fs;

const ROUTES: &str = "limiters: { channel: { rate: 1/hour, key: '{path.channel}' }, pins: 1/hour }
routes:
- { path: '/channels/{channel}/messages/{message}', name: message, limiters: [channel] }
- { path: '/channels/{channel}/messages/pins', name: pins, limiters: [pins] }
- { suffix: '*' }
";

/// A channel has one bucket, whatever the spelling of its path. A spelling of which that is not certain is refused.
#[tokio::test(flavor = "multi_thread")]
async fn a_parameter_has_one_bucket_for_all_spellings() {
    let upstream = Upstream::ok().await;
    let gateway = Gateway::start(&format!("upstream: {}\n{ROUTES}", upstream.url())).await;
    for path in ["/channels/5/messages/1", "/channels/6/messages/1", "/channels/5/messages/pins"] {
        assert_eq!(gateway.get(path).await.status, 200, "{path}");
    }
    for path in [
        "/channels/5/messages/2",
        "/channels/%35/messages/3/",
        "//channels/x/../5/./messages/4",
        "/channels/5;x/messages/5",
        "/channels/5./messages/6",
        "/channels/6/messages/pins",
    ] {
        assert_eq!(gateway.get(path).await.status, 429, "{path}");
    }
    for path in [
        "/CHANNELS/5/messages/2",
        "/channels%2f5/messages/2",
        "/channels/x%2f..%2f5/messages/2",
        "/channels/%u0035/messages/2",
        "/channels/5/messages/%2e%2e/messages/2%00x/..",
    ] {
        let answer = gateway.get(path).await;
        assert!([400, 429].contains(&answer.status), "{path}: {answer:?}");
    }
    assert_eq!(gateway.get("/v2/channels/5/messages/2").await.status, 200, "no whole path");
}

#[test]
fn explain_shows_the_path_and_its_parameters() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("gateway.yaml");
    fs::write(&file, format!("upstream: http://a\n{ROUTES}")).expect("a file");
    let file = file.display().to_string();
    let output = paceway(&["explain", &file, "GET", "/channels/%35/messages/pins?x=1"]);
    let out = String::from_utf8_lossy(&output.stdout);
    let words = out.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in [
        "route pins (routes[1]): the most literal path that matches is /channels/{channel}/messages/pins",
        "not message (routes[0]): its path is less literal",
        "not * (routes[2]): a whole path outranks a suffix",
        "{path.channel} is 5",
    ] {
        assert!(words.contains(part), "{part}: {output:?}");
    }
}
