//! A change of the configuration gives rates of a limiter other states. No permit is granted a second time for it.

use crate::support::{Gateway, Redis, Upstream, eventually};
use rstest::rstest;
use serde_json::Value;

fn yaml(store: &str, upstream: &Upstream, rule: &str, route: &str) -> String {
    format!(
        "store: {store}\nupstream: {}\nlimiters:\n  a: {rule}\n  other: 1000/s\nroutes:\n\
         - {{ suffix: '*', limiters: [{route}], max_wait: 3s }}\n",
        upstream.url()
    )
}

const WINDOW: &str = "{ algorithm: sliding_window, rate: 5/min }";

async fn ask(gateway: &Gateway) -> u16 {
    let mut conn = gateway.ask("/", &[("X-Shop", "acme")]).await;
    conn.answer().await.expect("an answer").status
}

/// Uses up what the `first` file grants in a minute, and expects that the last of the `changed` ones grants nothing in it.
async fn is_used_up_after(store: &str, first: [&str; 2], changed: &[[&str; 2]]) {
    let upstream = Upstream::ok().await;
    let gateway = Gateway::start(&yaml(store, &upstream, first[0], first[1])).await;
    for _ in 0..5 {
        assert_eq!(ask(&gateway).await, 200, "{first:?}");
    }
    assert_eq!(ask(&gateway).await, 429, "{first:?}");
    for [rule, route] in changed {
        gateway.rewrite(&yaml(store, &upstream, rule, route));
        assert_eq!(gateway.reload().await.status, 200, "{rule} {route}");
    }
    assert_eq!(ask(&gateway).await, 429, "{store} {first:?} {changed:?}");
}

#[rstest]
#[case::a_shorter_rate(WINDOW, "{ algorithm: sliding_window, rate: [4/s, 5/min] }")]
#[case::a_longer_rate(WINDOW, "{ algorithm: sliding_window, rate: [5/min, 100/h] }")]
#[case::both(WINDOW, "{ algorithm: sliding_window, rate: [4/s, 5/min, 100/h] }")]
#[case::no_longer_rate("{ algorithm: sliding_window, rate: [5/min, 100/h] }", WINDOW)]
#[case::no_shorter_rate("{ algorithm: sliding_window, rate: [4/s, 5/min] }", WINDOW)]
#[case::another_longer_rate(
    "{ algorithm: sliding_window, rate: [5/min, 100/h] }",
    "{ algorithm: sliding_window, rate: [5/min, 100/d] }"
)]
#[case::another_period(WINDOW, "{ algorithm: sliding_window, rate: 5/2min }")]
#[case::a_bucket_with_another_rate("5/min", "[5/min, 100/h]")]
#[case::another_algorithm(WINDOW, "{ algorithm: fixed_window, rate: 5/min }")]
#[case::a_key(WINDOW, "{ algorithm: sliding_window, rate: 5/min, key: '{header.x-shop}' }")]
#[case::a_key_and_a_rate(
    WINDOW,
    "{ algorithm: sliding_window, rate: [4/s, 5/min], key: '{header.x-shop}' }"
)]
#[case::a_rate_of_a_key(
    "{ algorithm: sliding_window, rate: 5/min, key: '{header.x-shop}' }",
    "{ algorithm: sliding_window, rate: [4/s, 5/min], key: '{header.x-shop}' }"
)]
#[tokio::test(flavor = "multi_thread")]
async fn used_permits_count_after_a_change(#[case] before: &str, #[case] after: &str) {
    let redis = Redis::start();
    for store in ["memory".to_owned(), redis.url()] {
        is_used_up_after(&store, [before, "a"], &[[after, "a"]]).await;
    }
}

/// A state from before a change has the name that its rate has again.
#[rstest]
#[case::a_window("algorithm: sliding_window")]
#[case::a_fixed_window("algorithm: fixed_window")]
#[case::a_bucket("algorithm: token_bucket")]
#[tokio::test(flavor = "multi_thread")]
async fn used_permits_count_after_a_change_and_back(#[case] algorithm: &str) {
    let with = |rest: &str| format!("{{ {algorithm}, {rest} }}");
    let [plain, list] = ["rate: 5/d", "rate: [5/s, 5/d]"].map(with);
    let keyed = with("rate: 5/d, key: '{header.x-shop}'");
    let instance = with("rate: 5/d, scope: instance");
    let off = with("rate: 5/d, mode: 'off'");
    let calls = "{ algorithm: concurrency, max: 9 }".to_owned();
    let ways = [
        vec![&plain, &list, &plain],
        vec![&list, &plain, &list],
        vec![&plain, &instance, &plain],
        vec![&plain, &keyed, &plain],
        vec![&plain, &keyed, &list, &plain],
        vec![&plain, &list, &instance],
        vec![&plain, &off, &list],
        vec![&plain, &list, &off, &plain],
        vec![&plain, &calls, &list],
        vec![&plain, &list, &plain, &list, &instance, &plain],
    ];
    for way in ways {
        let files: Vec<_> = way.into_iter().map(|rule| [rule.as_str(), "a"]).collect();
        let redis = Redis::start();
        for store in ["memory", &redis.url()] {
            is_used_up_after(store, files[0], &files[1..]).await;
        }
    }
}

/// The limiters of a request had one name in common, so that company renamed the states in memory.
#[tokio::test(flavor = "multi_thread")]
async fn a_reload_that_names_two_limiters_together_forgets_nothing() {
    for route in ["a, other", "other, a"] {
        is_used_up_after("memory", [WINDOW, "a"], &[[WINDOW, route]]).await;
        is_used_up_after("memory", [WINDOW, route], &[[WINDOW, "a"]]).await;
    }
}

/// Gateways with the old and the new file run side by side, in either order.
#[rstest]
#[case::a_longer_rate("{ algorithm: sliding_window, rate: [5/min, 100/h] }")]
#[case::another_period("{ algorithm: sliding_window, rate: 10/2min }")]
#[tokio::test(flavor = "multi_thread")]
async fn gateways_with_files_that_differ_count_together(#[case] other: &str) {
    for rules in [[WINDOW, other], [other, WINDOW]] {
        let (redis, upstream) = (Redis::start(), Upstream::ok().await);
        let start = async |rule| Gateway::start(&yaml(&redis.url(), &upstream, rule, "a")).await;
        let (first, second) = (start(rules[0]).await, start(rules[1]).await);
        for _ in 0..2 {
            assert_eq!((ask(&first).await, ask(&second).await), (200, 200), "{rules:?}");
        }
        // The fifth permit of the minute, and no sixth under the rule of a minute.
        let strict = if rules[0] == WINDOW || !other.contains("2min") { &first } else { &second };
        assert_eq!((ask(strict).await, ask(strict).await), (200, 429), "{rules:?}");
    }
}

/// The store does not say what each bucket of the other key has used.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_forgets_used_permits_is_logged() {
    let upstream = Upstream::ok().await;
    let keyed = "{ algorithm: sliding_window, rate: 5/min, key: '{header.x-shop}' }";
    let gateway = Gateway::start(&yaml("memory", &upstream, keyed, "a")).await;
    gateway.rewrite(&yaml("memory", &upstream, &keyed.replace("x-shop", "x-user"), "a"));
    assert_eq!(gateway.reload().await.status, 200);
    let is_meant = |line: &Value| line["limiter"] == "a";
    let line = eventually("the line", async || gateway.events().into_iter().find(is_meant)).await;
    assert!(line["message"].as_str().is_some_and(|said| said.contains("new states")), "{line}");
}
