use super::*;
use crate::plan::Plan;
use rstest::rstest;
use std::{path::Path, time::Duration};

fn config(limiter: &str, charge: &str) -> Config {
    let text = format!(
        "upstream: http://a\nlimiters: {{ x: {limiter} }}\n\
         routes:\n- {{ suffix: /1, limiters: [{charge}], max_wait: 2s }}\n"
    );
    Config::parse(&text, "test", Path::new("."), &|_| None).expect("a config")
}

fn plan(limiter: &str, charge: &str) -> Plan {
    Plan::new(config(limiter, charge), false)
}

#[rstest]
#[case::fast("1000/s", "x", true)]
#[case::slower("999/s", "x", false)]
#[case::fast_by_the_minute("60000/min", "x", true)]
#[case::window("{ algorithm: sliding_window, rate: 1000/s }", "x", false)]
#[case::observed("{ rate: 1000/s, mode: observe }", "x", false)]
#[case::in_turns("{ rate: 1000/s, fair: { by: \"{header.Shop}\" } }", "x", false)]
#[case::learned("{ rate: auto, start: 2000/s, max: 5000/s }", "x", false)]
#[case::a_quarter("1000/s", "{ limiter: x, cost: 250 }", true)]
#[case::more_than_a_quarter("1000/s", "{ limiter: x, cost: 251 }", false)]
#[case::any_cost("1000/s", "{ limiter: x, cost: \"{header.Cost}\" }", false)]
fn fast_buckets_give_blocks(#[case] limiter: &str, #[case] charge: &str, #[case] gives: bool) {
    let plan = plan(limiter, charge);
    assert_eq!(plan.limiters[0].checks(None, 1).map(|it| it.blocks).collect::<Vec<_>>(), [gives]);
}

/// Envoy may name another rate for a descriptor; that one decides.
#[rstest]
#[case("1000/s", 10, false)]
#[case("10/s", 1000, true)]
fn another_rate_decides_whether_a_bucket_gives_blocks(
    #[case] limiter: &str,
    #[case] count: u64,
    #[case] gives: bool,
) {
    let rate = Rate { count, period: Duration::from_secs(1) };
    let checks = plan(limiter, "x").limiters[0].checks_at(rate, None, 1);
    assert_eq!(checks.iter().map(|it| it.blocks).collect::<Vec<_>>(), [gives]);
}

fn with(before: &Plan, limiter: &str) -> Plan {
    before.next(config(limiter, "x"))
}

fn asked(plan: &Plan) -> Vec<String> {
    let of_algorithm = |check: Check| {
        let (_, name) = check.key.split_once("}:").expect("a tag");
        format!("{name} {}", check.algorithm.limit())
    };
    plan.limiters[0].checks(Some("k"), 1).map(of_algorithm).collect()
}

/// The permits that were used before count for as long as the old rule and its waiting requests reach, and for the time in which other
/// gateways get the new file.
#[tokio::test(start_paused = true)]
async fn former_states_are_checked_until_their_permits_expire() {
    let window = |rest: &str| format!("{{ algorithm: sliding_window, {rest} }}");
    let key = "key: '{header.x-shop}'";
    let first = plan(&window("rate: 20/s"), "x");
    let keyed = window(&format!("rate: [5/100ms, 30/s], {key}"));
    let second = with(&first, &keyed);
    // By the rule that has the period now.
    assert_eq!(asked(&second), ["S:x/100ms:k 5", "S:x:k 30", "S:x 30"]);
    assert!(!second.limiters[0].forgets);
    tokio::time::advance(Duration::from_millis(7_900)).await;
    let third = with(&second, &keyed);
    assert_eq!(asked(&third).len(), 3);
    tokio::time::advance(Duration::from_millis(100)).await;
    assert!(third.former_until().is_some_and(|until| until <= Instant::now()));
    let fourth = with(&third, &keyed);
    assert_eq!(asked(&fourth), ["S:x/100ms:k 5", "S:x:k 30"]);
    assert_eq!(fourth.former_until(), None);
    assert!(with(&fourth, &window("rate: 20/s")).limiters[0].forgets);
}

/// The name of the limiter passes to another rate, which has to wait for the state.
#[tokio::test(start_paused = true)]
async fn a_renamed_rate_waits_for_the_former_state() {
    let window = |rates: &str| format!("{{ algorithm: sliding_window, rate: {rates} }}");
    let enforced = |plan: &Plan| -> Vec<bool> {
        plan.limiters[0].checks.iter().map(|check| check.enforce).collect()
    };
    let first = plan(&window("500/min"), "x");
    let second = with(&first, &window("[5/s, 500/min]"));
    assert_eq!(asked(&second), ["S:x/1s:k 5", "S:x/1min:k 500", "S:x:k 500"]);
    // A reload of another part does not end it.
    assert_eq!(asked(&with(&second, &window("[5/s, 500/min]"))), asked(&second));
    tokio::time::advance(Duration::from_secs(67)).await;
    let third = with(&second, &window("[5/s, 500/min]"));
    assert_eq!(asked(&third)[..2], ["S:x:k 5", "S:x/1min:k 500"]);
    tokio::time::advance(Duration::from_secs(67)).await;
    let fourth = with(&third, &window("[5/s, 500/min]"));
    assert_eq!(asked(&fourth), ["S:x:k 5", "S:x/1min:k 500"]);
    // The state of a second does not know a minute.
    let back = with(&fourth, &window("500/min"));
    assert_eq!(asked(&back), ["S:x:k 500", "S:x/1min:k 500"]);
    assert_eq!(enforced(&back), [false, true]);
    assert_eq!(enforced(&with(&back, &window("500/min"))), [false, true]);
    tokio::time::advance(Duration::from_secs(67)).await;
    let end = with(&back, &window("500/min"));
    assert_eq!((asked(&end), enforced(&end)), (vec!["S:x:k 500".to_owned()], vec![true]));
}

/// A limiter that is off, counts calls alone or is missing for one reload knows what it has granted.
#[rstest]
#[case::off("x: { algorithm: sliding_window, rate: 500/min, mode: 'off' }")]
#[case::off_as_a_list("x: { algorithm: sliding_window, rate: [5/s, 500/min], mode: 'off' }")]
#[case::calls("x: { algorithm: concurrency, max: 5 }")]
#[case::absent("y: 5/s")]
#[tokio::test(start_paused = true)]
async fn a_returning_limiter_checks_its_former_states(#[case] between: &str) {
    let text =
        format!("upstream: http://a\nlimiters: {{ {between} }}\nroutes: [{{ suffix: /1 }}]\n");
    let between = Config::parse(&text, "test", Path::new("."), &|_| None).expect("a config");
    let list = "{ algorithm: sliding_window, rate: [5/s, 500/min] }";
    let has_former = |before: &Plan| {
        let plan = with(before, list);
        let found = asked(&plan).iter().position(|state| state == "S:x:k 500");
        found.is_some_and(|state| plan.limiters[0].checks[state].enforce)
    };
    let first = plan("{ algorithm: sliding_window, rate: 500/min }", "x");
    let without = first.next(between.clone()).next(between.clone());
    assert!(has_former(&without));
    tokio::time::advance(Duration::from_secs(67)).await;
    assert!(without.former_until().is_some_and(|until| until <= Instant::now()));
    let later = without.next(between);
    assert_eq!(later.former_until(), None);
    assert!(!has_former(&later));
}

/// A limiter that only observed has counted, too.
#[test]
fn a_former_observed_state_is_enforced_with_its_limiter() {
    let first = plan("{ algorithm: sliding_window, rate: 500/min, mode: observe }", "x");
    let second = with(&first, "{ algorithm: sliding_window, rate: [5/s, 500/min] }");
    assert_eq!(asked(&second)[2], "S:x:k 500");
    assert!(second.limiters[0].checks[2].enforce);
}

/// A rate that is removed ends at once, and one that takes its place does not begin unused.
#[test]
fn a_removed_rate_ends_and_a_replaced_one_does_not() {
    let first = plan("{ algorithm: sliding_window, rate: [5/s, 1000/h] }", "x");
    let removed = with(&first, "{ algorithm: sliding_window, rate: 5/s }");
    assert_eq!(asked(&removed), ["S:x:k 5"]);
    let replaced = with(&first, "{ algorithm: sliding_window, rate: [5/s, 300/30min] }");
    assert_eq!(asked(&replaced), ["S:x:k 5", "S:x/30min:k 300", "S:x/1h:k 1000"]);
    let other = with(&first, "{ algorithm: fixed_window, rate: [5/s, 1000/h] }");
    assert_eq!(asked(&other), ["F:x:k 5", "F:x/1h:k 1000", "S:x:k 5", "S:x/1h:k 1000"]);
}

/// The hash tag of a Cluster decides which states one call can ask.
#[test]
fn in_a_cluster_former_states_on_other_servers_are_not_checked() {
    let of = |limiter: &str| {
        let text = format!(
            "upstream: http://a\nstore: redis-cluster://r\nlimiters: {{ x: {limiter} }}\n\
             routes: [{{ suffix: /1, limiters: [x] }}]\n"
        );
        Config::parse(&text, "test", Path::new("."), &|_| None).expect("a config")
    };
    let before = Plan::new(of("20/s"), false);
    let keyed = before.next(of("{ rate: 20/s, key: '{header.x-shop}' }"));
    assert_eq!((keyed.limiters[0].checks.len(), keyed.limiters[0].forgets), (1, true));
    let list = before.next(of("[5/100ms, 20/s]"));
    assert_eq!((list.limiters[0].checks.len(), list.limiters[0].forgets), (2, false));
}

/// A key with a rate of its own has the state that it would have without it, so that a change keeps its level.
#[test]
fn keys_with_other_rates_keep_their_states() {
    let limiter = |rates: &str| {
        format!("{{ algorithm: sliding_window, rate: 20/s, key: '{{header.x-shop}}'{rates} }}")
    };
    let first = plan(&limiter(""), "x");
    let second = with(&first, &limiter(", rates: { k: 3/min, 'l-*': 900/h }"));
    assert_eq!((asked(&first), asked(&second)), (vec!["S:x:k 20".into()], vec!["S:x:k 3".into()]));
    let limits = ["k", "l-1", "m"].map(|key| {
        let check = second.limiters[0].checks(Some(key), 1).next().expect("a check");
        (check.algorithm.limit(), check.period / 1_000_000)
    });
    assert_eq!(limits, [(3, 60), (900, 3_600), (20, 1)]);
}
