//! Answers that are kept and confirmed: a 304 that the vendor does not count gives each caller the whole answer.

use super::{ask, saved};
use crate::support::{Answer, Call, Gateway, Reply, Upstream, eventually, reply, store};
use parking_lot::Mutex;
use rstest::rstest;
use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};
use tokio::task::JoinSet;

/// A pretend GitHub: each URL has a version, a 304 is free, and everything else counts.
#[derive(Debug, Default)]
pub(super) struct GitHub {
    versions: Mutex<HashMap<String, usize>>,
    counted: AtomicUsize,
}

impl GitHub {
    fn answer(&self, call: &Call) -> Reply {
        let version = *self.versions.lock().entry(call.target.clone()).or_insert(1);
        let tag = format!("W/\"{version}\"");
        let fields: [(&str, &str); 4] = [
            ("ETag", &tag),
            ("Cache-Control", "private, max-age=60, s-maxage=60"),
            ("Vary", "Accept, Authorization, Cookie, X-GitHub-OTP"),
            ("Content-Type", "application/json; charset=utf-8"),
        ];
        if call.head.get("if-none-match") == Some(&tag) {
            return reply("304 Not Modified", &fields, "");
        }
        self.counted.fetch_add(1, Relaxed);
        reply("200 OK", &fields, &format!("{{\"version\":{version}}}"))
    }

    fn change(&self, target: &str) {
        *self.versions.lock().entry(target.to_owned()).or_insert(1) += 1;
    }
}

async fn start(upstream: &Upstream, store: &str, keys: &str) -> Gateway {
    Gateway::start(&format!(
        "upstreams: {{ github: {{ url: '{}', throttle: {{ style: github }}, {keys} }} }}\n{store}\naccess_log: json\n\
         limiters: {{ hourly: {{ algorithm: sliding_window, rate: 5000/hour }} }}\n\
         routes: [{{ name: all, suffix: '*', max_wait: 10s, limiters: [hourly] }}]\n",
        upstream.url()
    ))
    .await
}

async fn get(gateway: &Gateway, target: &str, fields: &[(&str, &str)]) -> Answer {
    ask(gateway, "GET", target, fields).await.answer().await.expect("an answer")
}

const TOKEN: [(&str, &str); 1] = [("Authorization", "Bearer a")];

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_confirmed_answer_is_whole_and_free(#[values(false, true)] is_redis: bool) {
    let (github, (_redis, store)) = (Arc::new(GitHub::default()), store(is_redis));
    let shown = github.clone();
    let upstream = Upstream::start(move |call: &Call| shown.answer(call)).await;
    let gateway = start(&upstream, &store, "revalidate: on").await;
    for _ in 0..5 {
        let answer = get(&gateway, "/repos", &TOKEN).await;
        assert_eq!((answer.status, answer.text().as_str()), (200, "{\"version\":1}"));
        assert_eq!(answer.field("etag"), Some("W/\"1\""));
        assert_eq!(answer.field("content-length"), Some("13"));
    }
    github.change("/repos");
    for _ in 0..2 {
        assert_eq!(get(&gateway, "/repos", &TOKEN).await.text(), "{\"version\":2}");
    }
    let asked: Vec<_> = upstream.calls();
    assert_eq!(asked.len(), 7, "the vendor is asked each time");
    assert_eq!(asked[6].head.get("if-none-match"), Some("W/\"2\""));
    eventually("the refunds", async || {
        (gateway.limiter("hourly").await["level"] == 4998).then_some(())
    })
    .await;
    assert_eq!(saved(&gateway, "revalidate").await, 5.0);
    let lines = gateway.access();
    let saved = lines.iter().filter(|line| line["saved_by"] == "revalidate").count();
    assert_eq!(saved, 5, "{lines:?}");
}

/// 20 pollers on 50 URLs that rarely change take at most 3 % of the permits that they would take without.
#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_of_pollers_takes_few_permits() {
    const POLLERS: usize = 20;
    const URLS: usize = 50;
    const ROUNDS: usize = 4;
    let github = Arc::new(GitHub::default());
    let shown = github.clone();
    let upstream = Upstream::start(move |call: &Call| shown.answer(call)).await;
    let gateway = Arc::new(start(&upstream, "", "revalidate: { memory: 1MiB }").await);
    let mut pollers = JoinSet::new();
    for poller in 0..POLLERS {
        let (gateway, github) = (gateway.clone(), github.clone());
        pollers.spawn(async move {
            for round in 0..ROUNDS {
                for i in 0..URLS {
                    // Each begins elsewhere, as pollers do.
                    let url = format!("/repos/{}", (i + poller * 7) % URLS);
                    let answer = get(&gateway, &url, &TOKEN).await;
                    assert!(answer.status == 200 && answer.text().contains("version"));
                    if poller == 0 && i == 0 && round > 0 {
                        github.change(&url);
                    }
                }
            }
        });
    }
    pollers.join_all().await;
    let (polls, counted) = (POLLERS * URLS * ROUNDS, github.counted.load(Relaxed));
    assert!(counted * 100 <= polls * 3, "{counted} of {polls}");
    eventually("the refunds", async || {
        (gateway.limiter("hourly").await["level"] == 5000 - counted).then_some(())
    })
    .await;
}

/// The kept answers of an upstream are those of all its routes, and a reload leaves them.
#[tokio::test(flavor = "multi_thread")]
async fn a_reload_keeps_the_answers() {
    let github = Arc::new(GitHub::default());
    let upstream = Upstream::start(move |call: &Call| github.answer(call)).await;
    let gateway = start(&upstream, "", "revalidate: on").await;
    get(&gateway, "/repos", &TOKEN).await;
    let text = std::fs::read_to_string(gateway.file()).expect("the file");
    gateway.rewrite(&text.replace("5000/hour", "4000/hour"));
    assert_eq!(gateway.reload().await.status, 200);
    get(&gateway, "/repos", &TOKEN).await;
    assert_eq!(upstream.calls()[1].head.get("if-none-match"), Some("W/\"1\""));
}

/// Another host may have other answers with the same tag.
#[rstest]
#[case::of_the_upstream("revalidate: on", "")]
#[case::of_the_route("", "revalidate: on,")]
#[tokio::test(flavor = "multi_thread")]
async fn a_reload_that_changes_the_address_forgets_the_answers(
    #[case] of_upstream: &str,
    #[case] of_route: &str,
) {
    let start = || {
        let github = GitHub::default();
        Upstream::start(move |call: &Call| github.answer(call))
    };
    let (one, other) = (start().await, start().await);
    let file = |url: &str| {
        format!(
            "upstreams: {{ github: {{ url: '{url}', {of_upstream} }} }}\n\
             routes: [{{ suffix: '*', {of_route} }}]\n"
        )
    };
    let gateway = Gateway::start(&file(&one.url())).await;
    get(&gateway, "/repos", &TOKEN).await;
    gateway.rewrite(&file(&other.url()));
    assert_eq!(gateway.reload().await.status, 200);
    for is_kept in [false, true] {
        assert_eq!(get(&gateway, "/repos", &TOKEN).await.text(), "{\"version\":1}");
        let calls = other.calls();
        assert_eq!(calls[calls.len() - 1].head.get("if-none-match").is_some(), is_kept);
    }
}
