//! The limiters of a route: what a request costs, and how long it may wait.

use super::{charged, limiters::with, parse};
use crate::key::Cost;
use rstest::rstest;
use std::time::Duration;

#[test]
fn the_cost_on_a_route_overrides_the_default() {
    let config = parse(
        "upstreams: { v: { url: 'http://a', limiters: [{ limiter: a, cost: 2 }, b] } }\n\
         limiters: { a: 5/s, b: 5/s, c: 5/s }\n\
         routes:\n\
         - { suffix: /0 }\n\
         - { suffix: /1, limiters: [c, { limiter: a, cost: '{header.x-cost}' }, { limiter: b, cost: 5 }] }\n",
    )
    .expect("a config");
    let costs = |route: usize| {
        let charges = config.routes[route].limiters.iter();
        charges.map(|charge| charge.cost.clone()).collect::<Vec<_>>()
    };
    assert_eq!(
        (charged(&config.routes[0]), costs(0)),
        (vec![0, 1], vec![Cost::Fixed(2), Cost::ONE])
    );
    let template = Cost::parse("{header.x-cost}").expect("a cost");
    assert_eq!(charged(&config.routes[1]), [2, 0, 1]);
    assert_eq!(costs(1), [Cost::ONE, template, Cost::Fixed(5)]);
}

#[rstest]
#[case::above(
    "{ limiter: a, cost: @6 }",
    "routes[0].limiters[0].cost: a cost of 6 is more than `a` can ever give at once, which is 5"
)]
#[case::above_one_of_a_list(
    "{ limiter: l, cost: @4 }",
    "routes[0].limiters[0].cost: a cost of 4 is more than `l` can ever give at once, which is 3"
)]
#[case::zero(
    "{ limiter: a, cost: @0 }",
    "routes[0].limiters[0].cost: `0` is no cost; a cost is a whole number, at least 1, or a part such as `{header.x-cost}`"
)]
#[case::negative(
    "{ limiter: a, cost: @-1 }",
    "routes[0].limiters[0].cost: `-1` is negative; a cost is a whole number, at least 1, or a part such as `{header.x-cost}`"
)]
#[case::word(
    "{ limiter: a, cost: @lots }",
    "routes[0].limiters[0].cost: `lots` is not a number that can be a cost; a cost is a whole number, at least 1, or a part such as `{header.x-cost}`"
)]
#[case::template(
    "{ limiter: a, cost: @'{header}' }",
    "routes[0].limiters[0].cost: `{header}` has the part `{header}`, which needs the name of a header, as in `{header.x-shop}`"
)]
#[case::concurrency(
    "{ limiter: c, cost: @2 }",
    "routes[0].limiters[0].cost: a concurrency limiter counts requests, each as one; leave the cost out"
)]
#[case::concurrency_by_template(
    "{ limiter: c, cost: @'{query.n}' }",
    "routes[0].limiters[0].cost: a concurrency limiter counts requests, each as one; leave the cost out"
)]
#[case::unknown(
    "{ limiter: @aa, cost: 2 }",
    "routes[0].limiters[0].limiter: `aa` is no limiter; did you mean `a`?"
)]
#[case::no_limiter(
    "@{ cost: 2 }",
    "routes[0].limiters[0].limiter: is missing: the name of the limiter that is charged"
)]
#[case::misspelt(
    "{ limiter: a, @costs: 2 }",
    "routes[0].limiters[0].costs: unknown key `costs`; did you mean `cost`?"
)]
#[case::twice(
    "a, @{ limiter: a, cost: 2 }",
    "routes[0].limiters[1]: named twice; a request is charged once per limiter"
)]
fn reports_one_mistake_in_a_charge(#[case] charge: &str, #[case] message: &str) {
    let route = format!("  - {{ suffix: /a, limiters: [{charge}] }}");
    let column = route.find('@').expect("a mark") + 1;
    let text = format!(
        "upstream: http://a\nlimiters: {{ a: 5/s, l: [3/s, 20/min], c: {{ algorithm: concurrency, max: 4 }} }}\n\
         routes:\n{}\n",
        route.replace('@', "")
    );
    let error = parse(&text).expect_err("must be refused").to_string();
    assert_eq!(error, format!("test.yaml:4:{column}: {message}"));
}

/// The gateway keeps a policy for each set of limiters at which a request can cost nothing.
#[test]
fn few_costs_of_a_route_can_be_zero() {
    let route = |cost: &str| {
        let name = |i: usize| format!("l{i}");
        let limiters: Vec<_> = (0..7).map(|i| format!("{}: 5/s", name(i))).collect();
        let charges: Vec<_> =
            (0..7).map(|i| format!("{{ limiter: {}, cost: '{cost}' }}", name(i))).collect();
        let (limiters, charges) = (limiters.join(", "), charges.join(", "));
        format!(
            "upstream: http://a\nlimiters: {{ {limiters} }}\nroutes: [{{ suffix: /a, limiters: [{charges}] }}]"
        )
    };
    let error = parse(&route("2*{query.n}")).expect_err("must be refused").to_string();
    let expected =
        "has more than 6 costs that can be 0; a number makes one greater, as in `1 + {query.n}`";
    assert!(error.ends_with(expected), "{error}");
    assert!(parse(&route("1 + 2*{query.n}")).is_ok());
}

#[rstest]
#[case::half("a: 5/s", "[a]", "50%", 500)]
#[case::of_the_slowest("a: 5/s, b: 60/min", "[a, b]", "50%", 30_000)]
#[case::of_a_list("a: [3/s, 20/min]", "[a]", "10%", 6_000)]
#[case::of_what_is_enforced("a: 5/s, b: { rate: 60/min, mode: observe }", "[a, b]", "100%", 1_000)]
#[case::not_of_concurrency(
    "a: 5/s, b: { algorithm: concurrency, max: 1 }",
    "[a, b]",
    "100%",
    1_000
)]
#[case::of_equals_the_shorter("a: 60/min, b: 1/s", "[a, b]", "100%", 1_000)]
#[case::more_than_a_period("a: 5/s", "[a]", "10000%", 100_000)]
#[case::never_above_an_hour("a: 5/day", "[a]", "50%", 3_600_000)]
fn a_wait_in_percent_is_a_part_of_the_period(
    #[case] limiters: &str,
    #[case] used: &str,
    #[case] wait: &str,
    #[case] millis: u64,
) {
    let route = format!("limiters: {used}, max_wait: {wait}, max_wait_cap: 10000%");
    let route = with(limiters, &[&route]).routes.remove(0);
    assert_eq!(route.max_wait, Duration::from_millis(millis));
    assert!(route.max_wait_cap >= route.max_wait);
}

#[test]
fn a_wait_in_percent_counts_the_limiters_of_the_upstream() {
    let text = "upstreams: { v: { url: 'http://a', limiters: [a] } }\nlimiters: { a: 6/min }\n\
                routes: [{ suffix: /a, max_wait: 1% }]\n";
    assert_eq!(parse(text).expect("a config").routes[0].max_wait, Duration::from_millis(600));
}
