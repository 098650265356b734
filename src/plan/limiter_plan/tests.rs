use super::*;
use crate::plan::Plan;
use rstest::rstest;
use std::{path::Path, time::Duration};

fn plan(limiter: &str, charge: &str) -> Plan {
    let text = format!(
        "upstream: http://a\nlimiters: {{ x: {limiter} }}\n\
         routes:\n- {{ suffix: /1, limiters: [{charge}], max_wait: 2s }}\n"
    );
    let config = Config::parse(&text, "test", Path::new("."), &|_| None).expect("a config");
    Plan::new(config, false)
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
