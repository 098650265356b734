use crate::{config::Config, plan::Plan};
use rstest::rstest;
use std::{path::Path, sync::Arc};

fn plan(routes: [&str; 2]) -> Plan {
    let text = format!(
        "workers: 2\nupstreams:\n  a: http://a\n  b: http://b\n\
         limiters:\n  x: {{ rate: 1/s }}\n  y: {{ rate: 1/s }}\n\
         routes:\n- {{ suffix: /1, {} }}\n- {{ suffix: /2, {} }}\n",
        routes[0], routes[1]
    );
    let config = Config::parse(&text, "test", Path::new("."), &|_| None).expect("a config");
    Plan::new(config, false)
}

#[rstest]
#[case::same("upstream: a, limiters: [x], max_wait: 2s", 1)]
#[case::fewer_may_wait("upstream: a, limiters: [x], max_wait: 2s, max_waiting: 7", 2)]
#[case::before_others("upstream: a, limiters: [x], max_wait: 2s, priority: high", 2)]
#[case::tells_more("upstream: a, limiters: [x], max_wait: 2s, ratelimit_headers: all", 2)]
#[case::longer("upstream: a, limiters: [x], max_wait: 3s", 2)]
#[case::longer_for_who_asks("upstream: a, limiters: [x], max_wait: 2s, max_wait_cap: 90s", 2)]
#[case::other_upstream("upstream: b, limiters: [x], max_wait: 2s", 2)]
#[case::other_limiter("upstream: a, limiters: [y], max_wait: 2s", 2)]
#[case::other_headers(
    "upstream: a, limiters: [x], max_wait: 2s, headers: { response: { remove: [Server] } }",
    2
)]
fn routes_share_equal_policies(#[case] other: &str, #[case] expected: usize) {
    let plan = plan(["upstream: a, limiters: [x], max_wait: 2s", other]);
    let of_the_second = plan.counters[0].direct[1].policy;
    assert_eq!((plan.policies.len(), of_the_second), (expected, expected - 1));
}

#[test]
fn each_worker_has_its_own_checks() {
    let plan = plan(["upstream: a, limiters: [x]", "upstream: a"]);
    let [one, other] = &plan.counters[..] else { panic!("two workers") };
    assert_eq!(one.fixed, other.fixed);
    let (own, its) = (one.fixed[0].as_ref(), other.fixed[0].as_ref());
    assert!(!Arc::ptr_eq(own.expect("checks"), its.expect("checks")));
    assert_eq!(one.fixed[1], None);
}
