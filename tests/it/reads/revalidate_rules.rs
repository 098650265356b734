//! Answers that are kept and answers that are not, and the callers that they are for.

use super::ask;
use crate::support::{Answer, Call, Gateway, Reply, Upstream, paceway_in, reply};
use rstest::rstest;

type Fields = &'static [(&'static str, &'static str)];

const TAG: (&str, &str) = ("ETag", "\"1\"");
const TOKEN: Fields = &[("Authorization", "Bearer a")];
const OLD: (&str, &str) = ("Last-Modified", "Tue, 16 Feb 2021 08:00:00 GMT");

/// A gateway before an upstream whose answers have these fields, and which confirms each condition.
async fn start(answer: Fields, body: usize, revalidate: &str) -> (Upstream, Gateway) {
    let body = "x".repeat(body);
    let upstream = Upstream::start(move |call: &Call| {
        let is_asked =
            ["if-none-match", "if-modified-since"].iter().any(|name| call.head.get(name).is_some());
        if is_asked {
            reply("304 Not Modified", answer, "")
        } else {
            reply("200 OK", answer, &body)
        }
    })
    .await;
    let lines =
        format!("routes: [{{ name: all, suffix: '*', revalidate: {revalidate} }}]\nlimiters: {{}}");
    let gateway = Gateway::before(&upstream, &lines).await;
    (upstream, gateway)
}

async fn get(gateway: &Gateway, target: &str, fields: Fields) -> Answer {
    ask(gateway, "GET", target, fields).await.answer().await.expect("an answer")
}

/// Whether the second of two reads asks the upstream to confirm the answer to the first.
async fn is_confirmed(answer: Fields, one: Fields, other: Fields) -> bool {
    let (upstream, gateway) = start(answer, 4, "on").await;
    for fields in [one, other] {
        let answer = get(&gateway, "/", fields).await;
        assert_eq!((answer.status, answer.text().as_str()), (200, "xxxx"));
    }
    let second = &upstream.calls()[1].head;
    second.get("if-none-match").is_some() || second.get("if-modified-since").is_some()
}

#[rstest]
#[case::tag(&[TAG], &[])]
#[case::date(&[OLD, ("Date", "Tue, 16 Feb 2021 08:00:01 GMT")], &[])]
#[case::no_cache(&[TAG, ("Cache-Control", "no-cache, max-age=0")], &[])]
#[case::private_of_a_token(&[TAG, ("Cache-Control", "private")], TOKEN)]
#[case::variant(&[TAG, ("Vary", "X-Kind")], &[("X-Kind", "a")])]
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_with_a_validator_is_kept(#[case] answer: Fields, #[case] request: Fields) {
    assert!(is_confirmed(answer, request, request).await);
}

/// Two tenants have answers with the same tag, and no `Vary` says so.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_is_kept_for_requests_with_the_same_headers() {
    assert!(!is_confirmed(&[TAG], &[("X-Tenant", "a")], &[("X-Tenant", "b")]).await);
    assert!(is_confirmed(&[TAG], &[("X-Tenant", "a")], &[("X-Tenant", "a")]).await);
    assert!(is_confirmed(&[TAG], &[("X-Request-Id", "1")], &[("X-Request-Id", "2")]).await);
}

#[rstest]
#[case::no_validator(&[("Content-Type", "text/plain")], &[])]
#[case::young(&[OLD, ("Date", "Tue, 16 Feb 2021 08:00:00 GMT")], &[])]
#[case::no_store(&[TAG, ("Cache-Control", "no-store")], &[])]
#[case::private(&[TAG, ("Cache-Control", "private")], &[])]
#[case::set_cookie(&[TAG, ("Set-Cookie", "a=1")], &[])]
#[case::vary_by_all(&[TAG, ("Vary", "*")], &[])]
#[case::request(&[TAG], &[("Cache-Control", "no-store")])]
#[tokio::test(flavor = "multi_thread")]
async fn some_answers_are_not_kept(#[case] answer: Fields, #[case] request: Fields) {
    assert!(!is_confirmed(answer, request, request).await);
}

#[rstest]
#[case::token(&[TAG], TOKEN, &[("Authorization", "Bearer b")])]
#[case::anonymous(&[TAG], TOKEN, &[])]
#[case::cookie(&[TAG], &[("Cookie", "id=a")], &[("Cookie", "id=b")])]
#[case::api_key(&[TAG], &[("X-Api-Key", "a")], &[("X-Api-Key", "b")])]
#[case::variant(&[TAG, ("Vary", "X-Kind")], &[("X-Kind", "a")], &[("X-Kind", "b")])]
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_is_kept_for_reads_that_agree(
    #[case] answer: Fields,
    #[case] one: Fields,
    #[case] other: Fields,
) {
    assert!(!is_confirmed(answer, one, other).await);
}

/// Such a body may be a part of the answer, and a 304 would confirm that part.
#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_ends_with_its_connection_is_not_kept() {
    let upstream =
        Upstream::start(|_| Reply::raw("HTTP/1.1 200 OK\r\nETag: \"1\"\r\n\r\nxxxx")).await;
    let gateway = Gateway::before(&upstream, "routes: [{ suffix: '*', revalidate: on }]").await;
    for _ in 0..2 {
        assert_eq!(get(&gateway, "/", &[]).await.text(), "xxxx");
    }
    assert_eq!(upstream.calls()[1].head.get("if-none-match"), None);
}

/// A client with a condition of its own gets what the upstream says to that, and so does one that asks for a part.
#[tokio::test(flavor = "multi_thread")]
async fn own_conditions_are_left_alone() {
    let (upstream, gateway) = start(&[TAG], 4, "on").await;
    get(&gateway, "/", &[]).await;
    let own = get(&gateway, "/", &[("If-None-Match", "\"9\"")]).await;
    assert_eq!((own.status, own.body.len()), (304, 0));
    assert_eq!(upstream.calls()[1].head.get("if-none-match"), Some("\"9\""));
    get(&gateway, "/", &[("Range", "bytes=0-1")]).await;
    assert_eq!(upstream.calls()[2].head.get("if-none-match"), None);
    let mut conn = ask(&gateway, "HEAD", "/", &[]).await;
    assert_eq!(conn.answer_to("HEAD").await.expect("an answer").status, 200);
    assert_eq!(upstream.calls()[3].head.get("if-none-match"), None);
}

/// An answer may have an eighth of the memory, and the one that was used longest ago leaves first.
#[tokio::test(flavor = "multi_thread")]
async fn the_memory_is_bounded() {
    let (upstream, gateway) = start(&[TAG], 8_000, "{ memory: 64KiB }").await;
    let is_kept = async |target: &str| {
        get(&gateway, target, &[]).await;
        let calls = upstream.calls();
        calls[calls.len() - 1].head.get("if-none-match").is_some()
    };
    for i in 0..5 {
        assert!(!is_kept(&format!("/{i}")).await);
        assert!(is_kept("/0").await, "/0 is used");
    }
    for i in 5..12 {
        assert!(!is_kept(&format!("/{i}")).await);
    }
    assert!(!is_kept("/1").await);
    let (upstream, gateway) = start(&[TAG], 8_193, "{ memory: 64KiB }").await;
    get(&gateway, "/", &[]).await;
    get(&gateway, "/", &[]).await;
    assert_eq!(upstream.calls()[1].head.get("if-none-match"), None);
}

/// A 304 brings the head up to date, and not the bytes.
#[tokio::test(flavor = "multi_thread")]
async fn a_304_updates_the_head() {
    let upstream = Upstream::start(|call: &Call| match call.head.get("if-none-match") {
        Some(_) => reply("304 Not Modified", &[TAG, ("X-Left", "8"), ("Content-Type", "x/y")], ""),
        None => {
            reply("200 OK", &[TAG, ("X-Left", "9"), ("X-Old", "1"), ("Content-Type", "a/b")], "it")
        }
    })
    .await;
    let gateway = Gateway::before(&upstream, "routes: [{ suffix: '*', revalidate: on }]").await;
    get(&gateway, "/", &[]).await;
    let answer = get(&gateway, "/", &[]).await;
    let fields = ["x-left", "x-old", "content-type"].map(|name| answer.field(name));
    assert_eq!(fields, [Some("8"), Some("1"), Some("a/b")]);
    assert_eq!((answer.status, answer.text().as_str()), (200, "it"));
}

/// `explain` says what happens to such a read.
#[test]
fn explain_names_both() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = "upstreams: { a: { url: http://127.0.0.1:1, revalidate: on } }\nlimiters: { c: 5/s }\n\
                routes: [{ suffix: '*', max_wait: 5s, share: { by: [accept] }, limiters: [c] }]\n";
    std::fs::write(dir.path().join("p.yaml"), file).expect("a file");
    let said = paceway_in(dir.path(), &["explain", "p.yaml", "GET", "/a"], &[]);
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(text.contains("reads      identical ones that wait are one call"), "{text}");
    assert!(text.contains("confirm"), "{text}");
    let said = paceway_in(dir.path(), &["explain", "p.yaml", "POST", "/a"], &[]);
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(!text.contains("one call"), "{text}");
}
