use crate::{
    algorithm::fair::Priority,
    config::Config,
    key::{Descriptor, Parts},
    path::Paths,
    plan::{Plan, question},
    store::Question,
};
use http::Request;
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

/// The values of a request that names neither an account nor a descriptor.
fn parts_of(request: &Request<()>) -> Parts<'_> {
    Parts {
        client_ip: [10, 0, 0, 1].into(),
        host: None,
        method: request.method(),
        uri: request.uri(),
        headers: request.headers(),
        body: None,
        body_length: None,
        paths: Paths::default(),
        template: None,
        descriptor: None,
        account: None,
    }
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

/// Envoy asks about several calls at once, by parts that are its own.
#[test]
fn a_descriptor_is_charged_a_sum_for_each_hit() {
    let text = "upstream: http://a\nroutes: [{ suffix: '*' }]\nservices: { envoy_rate_limit: 127.0.0.1:1 }\nlimiters: { a: 500/s }\n\
                descriptors: [{ match: { n: '*' }, limiters: [{ limiter: a, cost: '1 + 2*{descriptor.n}' }] }]";
    let config = Config::parse(text, "test", Path::new("."), &|_| None).expect("a config");
    let plan = Plan::new(config, false);
    let request = Request::new(());
    let charged = |n: &str, hits| {
        let descriptor = Some(Descriptor(&[("n", n)]));
        let parts = Parts { descriptor, ..parts_of(&request) };
        let checks = plan.policies[1].descriptor_checks(&plan.limiters, &parts, hits, None);
        checks.map(|own| own.map(|own| own.checks[0].cost)).map_err(|unpayable| unpayable.why)
    };
    assert_eq!(charged("7", 3), Ok(Some(45)));
    let refused = charged("x", 1).expect_err("no number");
    assert!(refused.starts_with("the cost `x` in `{descriptor.n}` is not between 0 and 500"));
}

/// A policy is kept for each set of limiters at which a request can cost nothing.
#[test]
fn a_sum_with_a_number_is_never_zero() {
    let charge = |cost| format!("limiters: [{{ limiter: x, cost: '{cost}' }}]");
    let [one, other] = ["2*{query.n}", "1 + {query.n}"].map(charge);
    let one = plan([&format!("upstream: a, {one}"), &format!("upstream: a, {other}")]);
    let sets: Vec<_> = one.policies.iter().map(|policy| policy.without.len()).collect();
    assert_eq!(sets, [1, 0]);
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

/// A plan with two accounts and two workers.
fn account_plan(limiters: &str, limits: &str) -> Plan {
    let text = format!(
        "workers: 2\nupstreams:\n  a: {{ url: http://a, accounts: [{{ name: one, quota: q, after: 1s }}, {{ name: two }}] }}\n\
         limiters: {{ {limiters} }}\nroutes:\n- {{ suffix: '*', limiters: [{limits}] }}\n"
    );
    let config = Config::parse(&text, "test", Path::new("."), &|_| None).expect("a config");
    Plan::new(config, false)
}

#[rstest]
#[case::name("x: { rate: 5/s, key: '{account}' }", "x")]
#[case::quota("x: { rate: [5/s, 9/min], key: 'at-{account.quota}' }", "{ limiter: x, cost: 3 }")]
#[case::one_of_all("x: { rate: 5/s, key: '{account}' }, y: 5/s", "x, y")]
fn accounts_have_the_question_that_each_request_would_ask(
    #[case] limiters: &str,
    #[case] limits: &str,
) {
    let plan = account_plan(limiters, limits);
    let [one, other] = &plan.counters[..] else { panic!("two workers") };
    let Some(Question::Ways(own)) = one.fixed_question(0) else { panic!("a question") };
    let Some(Question::Ways(its)) = other.fixed_question(0) else { panic!("a question") };
    assert!(!Arc::ptr_eq(own, its), "each worker has its own");
    let accounts = plan.config.upstreams[0].accounts.as_ref().expect("accounts");
    let request = Request::new(());
    let asked = question(accounts, |names| {
        let parts = Parts { account: Some(names), ..parts_of(&request) };
        let checks = plan.policies[0].checks(&plan.limiters, Priority::Normal, || parts)?;
        Ok::<_, String>(checks.map(|own| own.checks))
    });
    let Ok(Some(Question::Ways(asked))) = asked else { panic!("a question") };
    assert_eq!((&**own, &**its), (&*asked, &*asked));
}

#[rstest]
#[case::header("x: { rate: 5/s, key: '{account}:{header.x-shop}' }", "x")]
#[case::cost("x: { rate: 5/s, key: '{account}' }", "{ limiter: x, cost: '{header.x-cost}' }")]
#[case::rates_of_keys("x: { rate: 5/s, key: '{account}', rates: { one: 2/s } }", "x")]
#[case::learned("x: { algorithm: sliding_window, rate: 5/s, margin: auto, key: '{account}' }", "x")]
fn requests_with_accounts_ask_more_than_their_names(#[case] limiters: &str, #[case] limits: &str) {
    let plan = account_plan(limiters, limits);
    assert!(plan.counters[0].fixed_question(0).is_none());
}
