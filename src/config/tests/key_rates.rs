//! Limiters whose keys have rates of their own: written ones, and those that answers name.

use super::{limiters::limiter, parse};
use rstest::rstest;

/// Other rates of some keys keep the burst and the margin of their limiter.
#[test]
fn keys_may_have_other_rates() {
    let rates = |text: &str| {
        let limiter = limiter(text);
        let of = |key: &str| {
            let limiter = limiter.of_key(Some(key));
            format!("{} {}", limiter.rates[0], limiter.capacity())
        };
        ["acme", "plus-1", "other"].map(of)
    };
    let keyed = "key: '{header.x-shop}', rates: { acme: 20/s, 'plus-*': 600/min }";
    assert_eq!(rates(&format!("{{ rate: 2/s, {keyed} }}")), ["20/s 20", "600/min 600", "2/s 2"]);
    let burst = format!("{{ rate: 2/s, burst: 7, {keyed} }}");
    assert_eq!(rates(&burst), ["20/s 7", "600/min 7", "2/s 7"]);
    let window =
        limiter(&format!("{{ algorithm: sliding_window, rate: 2/s, margin: 30ms, {keyed} }}"));
    assert_eq!(window.of_key(Some("acme")).algorithms[0].margin(), 30_000);
    // A request can cost what each of its keys can give.
    assert_eq!((window.least_capacity(), window.greatest_capacity()), (2, 600));
    // A key that is a credential is written as requests bring it, and kept as its hash.
    let secret =
        limiter("{ rate: 2/s, key: '{header.authorization}', rates: { 'Bearer x': 20/s } }");
    let key = secret.key.as_ref().map(|key| key.canonical("Bearer x"));
    assert_eq!(secret.of_key(key.as_deref()).rates[0].count, 20);
    assert_eq!(secret.of_key(Some("Bearer x")).rates[0].count, 2);
}

#[rstest]
#[case::no_key("{ rate: 2/s, rates: { a: 20/s } }", "limiters.a.rates: needs a `key`")]
#[case::a_list(
    "{ rate: [2/s, 9/min], key: '{header.x}', rates: { a: 20/s } }",
    "limiters.a.rates: needs a limiter with one `rate`"
)]
#[case::a_learned_rate(
    "{ rate: auto, start: 2/s, key: '{header.x}', rates: { a: 20/s } }",
    "limiters.a.rates: cannot go with a rate or a margin that is learned"
)]
#[case::no_rate("{ rate: 2/s, key: '{header.x}', rates: { a: 20 } }", "limiters.a.rates.a: ")]
#[case::a_list_of_rates(
    "{ rate: 2/s, key: '{header.x}', rates: { a: [2/s] } }",
    "limiters.a.rates.a: "
)]
#[case::no_map("{ rate: 2/s, key: '{header.x}', rates: 20/s }", "limiters.a.rates: ")]
#[case::two_spellings(
    "{ rate: 2/s, key: '{header.x}', rates: { 'a b': 20/s, 'a%20b': 9/s } }",
    "names a key that has a rate already"
)]
#[case::a_pattern_of_credentials(
    "{ rate: 2/s, key: '{header.authorization}', rates: { 'Bearer x*': 20/s } }",
    "limiters.a.rates.***: is a pattern, and the keys of this limiter are credentials"
)]
#[case::concurrency(
    "{ algorithm: concurrency, max: 2, key: '{header.x}', rates: { a: 20/s } }",
    "limiters.a.rates: belongs to algorithm"
)]
#[case::elsewhere_without_a_key(
    "{ rate: 9/s, rates_from: { file: a.yaml } }",
    "limiters.a.rates_from: needs a `key`"
)]
#[case::a_file_and_a_database(
    "{ rate: 9/s, key: '{header.x}', rates_from: { file: a.yaml, url: 'postgres://b' } }",
    "limiters.a.rates_from.url: cannot go with `file`"
)]
#[case::no_source(
    "{ rate: 9/s, key: '{header.x}', rates_from: { every: 9s } }",
    "limiters.a.rates_from.file: is missing, as in `file: shops.yaml`; or write `url` and `query` of a database"
)]
#[case::no_query(
    "{ rate: 9/s, key: '{header.x}', rates_from: { url: 'postgres://b' } }",
    "limiters.a.rates_from.query: is missing, as in `query: select shop as key, rate from shops`"
)]
#[case::no_database(
    "{ rate: 9/s, key: '{header.x}', rates_from: { url: 'http://b', query: q } }",
    "limiters.a.rates_from.url: is no URL of a database"
)]
#[case::a_file_alone(
    "{ rate: 9/s, key: '{header.x}', rates_from: a.yaml }",
    "limiters.a.rates_from: must be a map of `key: value` lines"
)]
#[case::a_cost_above_a_key(
    "{ rate: 9/s, key: '{header.x}', rates: { a: 2/s } }",
    "routes[0].limiters[0].cost"
)]
fn mistakes_in_rates_of_keys_have_a_cure(#[case] limiter: &str, #[case] expected: &str) {
    let text = format!(
        "upstream: http://a\nlimiters: {{ a: {limiter} }}\n\
         routes: [{{ suffix: /, limiters: [{{ limiter: a, cost: 5 }}] }}]\n"
    );
    let said = parse(&text).expect_err("must be refused").to_string();
    assert!(said.contains(expected), "{said}");
}

#[rstest]
#[case::the_defaults("{ rate: 5/s, learn: limit }", Some([50_000_000, 50_000_000_000]))]
#[case::bounds("{ rate: 5/s, learn: limit, min: 1/min, max: 20/s }", Some([16_666_666, 20_000_000_000]))]
#[case::a_leaky_bucket("{ algorithm: leaky_bucket, rate: 5/s, learn: limit }", Some([50_000_000, 50_000_000_000]))]
#[case::nothing("5/s", None)]
fn the_bounds_of_a_named_rate(#[case] text: &str, #[case] expected: Option<[i64; 2]>) {
    assert_eq!(limiter(text).learn.map(|own| [own.min, own.max]), expected);
}

#[rstest]
#[case::a_word("{ rate: 5/s, learn: rate }", "limiters.a.learn: `rate`")]
#[case::a_window(
    "{ algorithm: sliding_window, rate: 5/s, learn: limit }",
    "limiters.a.learn: belongs to algorithm token_bucket or leaky_bucket"
)]
#[case::places(
    "{ algorithm: concurrency, max: 5, learn: limit }",
    "limiters.a.learn: belongs to algorithm token_bucket or leaky_bucket"
)]
#[case::refusals(
    "{ rate: auto, start: 5/s, learn: limit }",
    "limiters.a.learn: cannot go with a rate or a margin that refusals teach; keep one of the two"
)]
#[case::a_list(
    "{ rate: [5/s, 9/min], learn: limit }",
    "limiters.a.learn: needs a limiter with one `rate`; write a limiter for each of the list"
)]
#[case::below_min(
    "{ rate: 5/s, learn: limit, min: 6/s }",
    "limiters.a.learn: needs a `rate` from `min` to `max`"
)]
#[case::above_max(
    "{ rate: 5/s, learn: limit, max: 4/s }",
    "limiters.a.learn: needs a `rate` from `min` to `max`"
)]
#[case::a_start(
    "{ rate: 5/s, learn: limit, start: 4/s }",
    "limiters.a.start: belongs to `rate: auto`"
)]
#[case::a_bound_alone("{ rate: 5/s, min: 4/s }", "limiters.a.min: belongs to `rate: auto`")]
fn mistakes_in_a_named_rate_have_a_cure(#[case] limiter: &str, #[case] expected: &str) {
    let text =
        format!("upstream: http://a\nlimiters: {{ a: {limiter} }}\nroutes: [{{ suffix: / }}]\n");
    let said = parse(&text).expect_err("must be refused").to_string();
    assert!(said.contains(expected), "{said}");
}

/// A request is compared with each pattern, so that there are few.
#[test]
fn rates_have_a_hundred_patterns() {
    let text = |count: usize| {
        let rates: Vec<_> = (0..count).map(|i| format!("'k{i}-*': 5/s")).collect();
        let rates = rates.join(", ");
        format!(
            "upstream: http://a\nroutes: [{{ suffix: / }}]\n\
             limiters: {{ a: {{ rate: 2/s, key: '{{header.x}}', rates: {{ {rates} }} }} }}\n"
        )
    };
    assert_eq!(parse(&text(100)).expect("a config").limiters[0].key_rates.len(), 100);
    let said = parse(&text(101)).expect_err("must be refused").to_string();
    assert!(said.contains("rates.k100-*: is one pattern too many; there may be 100"), "{said}");
}
