//! Tests limiters in all their forms.

use super::{mistakes, parse, schema::verdicts};
use crate::{
    algorithm::{Rule, auto_margin::AutoMargin, gate::Bounds, nanohertz::nanohertz},
    config::{AutoRule, Config, LimitRow, LimiterConfig, Mode, Rate, Scope},
};
use rstest::rstest;

/// A config with one route for each list of limiters.
pub(super) fn with(limiters: &str, routes: &[&str]) -> Config {
    let mut text = format!("upstream: http://a\nlimiters: {{ {limiters} }}\nroutes:\n");
    for (i, route) in routes.iter().enumerate() {
        text.push_str(&format!("- {{ suffix: /{i}, {route} }}\n"));
    }
    parse(&text).expect("a config")
}

pub(super) fn limiter(text: &str) -> LimiterConfig {
    with(&format!("a: {text}"), &["limiters: [a]"]).limiters.remove(0)
}

#[rstest]
#[case::short("5/s", "T 5/s", 5)]
#[case::short_list("[3/s, 20/min]", "T 3/s 20/min", 3)]
#[case::sorted("{ rate: [20/min, 3/s, 100/hour] }", "T 3/s 20/min 100/h", 3)]
#[case::the_least("{ rate: [500/s, 20/min] }", "T 500/s 20/min", 20)]
#[case::burst("{ rate: 5/s, burst: 9 }", "T 5/s", 9)]
#[case::burst_of_a_list_of_one("{ rate: [5/s], burst: 9 }", "T 5/s", 9)]
#[case::sliding(
    "{ algorithm: sliding_window, rate: [3/s, 20/min], margin: 30ms }",
    "S 3/s 20/min",
    3
)]
#[case::fixed("{ algorithm: fixed_window, rate: [3/s, 20/min] }", "F 3/s 20/min", 3)]
#[case::month(
    "{ algorithm: fixed_window, rate: 10000 / month, resets: '00:00 America/Los_Angeles' }",
    "D 10000/month",
    10_000
)]
#[case::week(
    "{ algorithm: fixed_window, rate: 500/week, resets: 'sun 00:00 UTC', spread: even }",
    "D 500/7d",
    500
)]
#[case::day(
    "{ algorithm: fixed_window, rate: [24/24h], resets: '09:00 Europe/Berlin', spread: none }",
    "D 24/d",
    24
)]
#[case::warm_up("{ algorithm: warm_up, rate: 5/s, warm_up: 4s, cold_factor: 2.5 }", "W 5/s", 5)]
#[case::concurrency("{ algorithm: concurrency, max: 4, lease: 30s }", "C", 1)]
#[case::auto("{ rate: auto, start: 5/s, min: 1/min, max: 100/s }", "T 5/s", 1)]
#[case::auto_alone("{ rate: auto, start: 300/min }", "T 300/min", 1)]
#[case::auto_burst("{ rate: auto, start: 5/s, burst: 9 }", "T 5/s", 9)]
#[case::auto_window("{ algorithm: sliding_window, rate: auto, start: 5/s }", "S 5/s", 5_000)]
#[case::auto_leaky("{ algorithm: leaky_bucket, rate: auto, start: 5/s }", "L 5/s", 5)]
#[case::auto_margin("{ algorithm: sliding_window, rate: 20/s, margin: auto }", "S 20/s", 20)]
fn reads_every_form_of_a_limiter(
    #[case] text: &str,
    #[case] expected: &str,
    #[case] capacity: i64,
) {
    let limiter = limiter(text);
    let mut shown = char::from(limiter.algorithms[0].letter()).to_string();
    limiter.rates.iter().for_each(|rate| shown.push_str(&format!(" {rate}")));
    assert_eq!((shown.as_str(), limiter.capacity()), (expected, capacity));
    assert_eq!(limiter.algorithms.len(), limiter.rates.len().max(1));
}

#[test]
fn keys_of_a_limiter_become_its_rules() {
    let margin = |text: &str| limiter(text).algorithms[0].margin();
    assert_eq!(margin("{ algorithm: sliding_window, rate: 5/s, margin: 30ms }"), 30_000);
    assert_eq!(
        margin("{ algorithm: leaky_bucket, rate: 5/s, margin: 20ms, capacity: 10 }"),
        20_000
    );
    assert_eq!(margin("{ algorithm: sliding_window, rate: 5/s }"), 0);
    let held = limiter("{ algorithm: concurrency, max: 4 }");
    let [Rule::Permits(rule)] = &*held.algorithms else { panic!("not concurrency") };
    assert_eq!((rule.max(), rule.lease()), (4, 60_000_000));
    let limiter = limiter("{ rate: 5/s, key: '{header.x-shop}', scope: instance, mode: off }");
    assert_eq!((limiter.scope, limiter.mode), (Scope::Instance, Mode::Off));
    assert!(limiter.key.is_some());
}

#[test]
fn learned_rates_have_bounds() {
    let second = 1_000_000;
    let rule = |text: &str| limiter(text).auto;
    let [five, least, most] = [(5, second), (1, 60 * second), (100, second)]
        .map(|(count, period)| nanohertz(count, period));
    let bounds = Bounds { start: five, min: least, unit: second };
    let expected = |bounds, max| Some(AutoRule::Rate { bounds, max: Rate::per_second(max) });
    assert_eq!(rule("{ rate: auto, start: 5/s, min: 1/min, max: 100/s }"), expected(bounds, 100));
    let bounds = Bounds { min: five / 100, ..bounds };
    assert_eq!(rule("{ rate: auto, start: 5/s }"), expected(bounds, 5_000));
    let highest = limiter("{ rate: auto, start: 5/s, max: 100/s }").algorithms;
    let highest = highest[0].as_rate().map(|rule| (rule.rate(), rule.capacity()));
    assert_eq!(highest, Some((most, 1)));
    let margin = AutoRule::Margin(AutoMargin { most: second });
    let text = "{ algorithm: sliding_window, rate: [20/s, 100/min], margin: auto }";
    assert_eq!(rule(text), Some(margin));
    assert_eq!(rule("{ rate: 5/s }"), None);
}

/// The mark `@` is before the place that the message names.
#[rstest]
#[case::burst_of_a_window(
    "{ algorithm: sliding_window, rate: 5/s, burst: @5 }",
    "limiters.a.burst: belongs to algorithm token_bucket, and this limiter is a sliding_window"
)]
#[case::margin_of_the_default(
    "{ rate: 5/s, margin: @1s }",
    "limiters.a.margin: belongs to algorithm sliding_window or leaky_bucket, and this limiter is a token_bucket, the default"
)]
#[case::capacity(
    "{ rate: 5/s, algorithm: fixed_window, capacity: @1 }",
    "limiters.a.capacity: belongs to algorithm leaky_bucket, and this limiter is a fixed_window"
)]
#[case::warm_up_of_another(
    "{ rate: 5/s, warm_up: @1s }",
    "limiters.a.warm_up: belongs to algorithm warm_up, and this limiter is a token_bucket, the default"
)]
#[case::auto_without_a_start("@{ rate: auto }", "limiters.a.start: is missing, as in `start: 5/s`")]
#[case::resets_of_a_bucket(
    "{ rate: 5/d, resets: @'00:00 UTC' }",
    "limiters.a.resets: belongs to algorithm fixed_window, and this limiter is a token_bucket, the default"
)]
#[case::resets_without_a_zone(
    "{ algorithm: fixed_window, rate: 5/day, resets: @'09:00' }",
    "limiters.a.resets: `09:00` needs a time and a time zone, as in `00:00 UTC` or `00:00 America/Los_Angeles`"
)]
#[case::resets_of_an_unknown_zone(
    "{ algorithm: fixed_window, rate: 5/day, resets: @'09:00 Berlin' }",
    "limiters.a.resets: `09:00 Berlin` names the unknown time zone `Berlin`; did you mean `Europe/Berlin`?"
)]
#[case::resets_of_a_minute(
    "{ algorithm: fixed_window, rate: 5/min, resets: @'00:00 UTC' }",
    "limiters.a.resets: `00:00 UTC` needs a rate per hour, day, week or month, as in 5000/day"
)]
#[case::resets_of_a_list(
    "{ algorithm: fixed_window, rate: [5/min, 50/day], resets: @'00:00 UTC' }",
    "limiters.a.resets: needs one `rate`; write a limiter for each of the list"
)]
#[case::spread_without_an_end(
    "{ algorithm: fixed_window, rate: 5/day, spread: @even }",
    "limiters.a.spread: needs the end of the windows, as in `resets: \"00:00 UTC\"`"
)]
#[case::another_period_of_a_key(
    "{ algorithm: fixed_window, rate: 5/day, resets: '00:00 UTC', key: '{header.x}', rates: { @acme: 50/month } }",
    "limiters.a.rates.acme: 50/month has another period than the limiter, whose windows are those of a calendar"
)]
#[case::auto_of_a_fixed_window(
    "{ algorithm: fixed_window, rate: @auto }",
    "limiters.a.rate: `auto` is for token_bucket, sliding_window and leaky_bucket, and this limiter is a fixed_window"
)]
#[case::start_above_max(
    "{ rate: auto, start: @5/s, max: 4/s }",
    "limiters.a.start: 5/s is above `max`, 4/s"
)]
#[case::start_below_min(
    "{ rate: auto, start: @5/s, min: 6/s }",
    "limiters.a.start: 5/s is below `min`, 6/s"
)]
#[case::start_too_slow(
    "{ rate: auto, start: @1/366d }",
    "limiters.a.start: 1/366d is slower than the slowest rate that is learned, 1/11d"
)]
#[case::min_too_slow(
    "{ rate: auto, start: 5/s, min: @1/30d }",
    "limiters.a.min: 1/30d is slower than the slowest rate that is learned, 1/11d"
)]
#[case::start_without_auto(
    "{ rate: 5/s, start: @4/s }",
    "limiters.a.start: belongs to `rate: auto`, and this limiter has another rate"
)]
#[case::both_learned(
    "{ algorithm: sliding_window, rate: auto, start: 5/s, margin: @auto }",
    "limiters.a.margin: is learned from the same refusals as `rate: auto`; learn one of the two"
)]
#[case::max_without_its_algorithm(
    "{ max: @4 }",
    "limiters.a.max: belongs to algorithm concurrency, and this limiter is a token_bucket, the default"
)]
#[case::rate_of_concurrency(
    "{ algorithm: concurrency, max: 4, rate: @5/s }",
    "limiters.a.rate: belongs to the other algorithms; a concurrency limiter has `max` instead"
)]
#[case::no_max("@{ algorithm: concurrency }", "limiters.a.max: is missing, as in `max: 4`")]
#[case::max_zero("{ algorithm: concurrency, max: @0 }", "limiters.a.max: `0` must be at least 1")]
#[case::short_lease(
    "{ algorithm: concurrency, max: 4, lease: @500ms }",
    "limiters.a.lease: `500ms` must be at least 1s"
)]
#[case::long_lease(
    "{ algorithm: concurrency, max: 4, lease: @25h }",
    "limiters.a.lease: `25h` must be at most 1d"
)]
#[case::long_margin(
    "{ algorithm: leaky_bucket, rate: 5/s, margin: @2h }",
    "limiters.a.margin: `2h` must be at most 1h"
)]
#[case::negative_capacity(
    "{ algorithm: leaky_bucket, rate: 5/s, capacity: @-1 }",
    "limiters.a.capacity: `-1` is negative; it must be at least 1"
)]
#[case::no_warm_up(
    "@{ algorithm: warm_up, rate: 5/s }",
    "limiters.a.warm_up: is missing, as in `warm_up: 4s`"
)]
#[case::cold_factor_one(
    "{ algorithm: warm_up, rate: 5/s, warm_up: 4s, cold_factor: @1 }",
    "limiters.a.cold_factor: `1` must be a number above 1 and at most 100, as in 3 or 2.5"
)]
#[case::cold_factor_nan(
    "{ algorithm: warm_up, rate: 5/s, warm_up: 4s, cold_factor: @NaN }",
    "limiters.a.cold_factor: `NaN` must be a number above 1 and at most 100, as in 3 or 2.5"
)]
#[case::cold_factor_huge(
    "{ algorithm: warm_up, rate: 5/s, warm_up: 4s, cold_factor: @1000 }",
    "limiters.a.cold_factor: `1000` must be a number above 1 and at most 100, as in 3 or 2.5"
)]
#[case::list_of_a_leaky_bucket(
    "{ algorithm: leaky_bucket, rate: @[3/s, 20/min] }",
    "limiters.a.rate: is a list, and a leaky_bucket takes one rate; lists are for token_bucket, sliding_window and fixed_window"
)]
#[case::list_of_warm_up(
    "{ algorithm: warm_up, warm_up: 4s, rate: @[3/s, 20/min] }",
    "limiters.a.rate: is a list, and a warm_up takes one rate; lists are for token_bucket, sliding_window and fixed_window"
)]
#[case::burst_of_a_list(
    "{ rate: [3/s, 20/min], burst: @5 }",
    "limiters.a.burst: needs a single rate; in a list each rate's burst is its own count"
)]
#[case::no_rates("{ rate: @[] }", "limiters.a.rate: must hold 1 to 8 rates")]
#[case::no_rates_in_short("@[]", "limiters.a: must hold 1 to 8 rates")]
#[case::too_many_rates(
    "@[1/s, 2/2s, 3/3s, 4/4s, 5/5s, 6/6s, 7/7s, 8/8s, 9/9s]",
    "limiters.a: must hold 1 to 8 rates"
)]
#[case::one_period_twice(
    "[60/min, 3/s, @70/60s]",
    "limiters.a[2]: has the same period as 60/min; keep the stricter of the two"
)]
#[case::bad_rate_in_a_list(
    "{ rate: [3/s, @0/min] }",
    "limiters.a.rate[1]: `0/min` allows nothing; the count must be at least 1"
)]
#[case::slow_bucket(
    "{ rate: 1/day, burst: @1000000 }",
    "limiters.a: a bucket of 1000000 takes more than 70 years to fill at 1/d; lower `burst`"
)]
#[case::unknown_algorithm(
    "{ rate: 5/s, algorithm: @gcra }",
    "limiters.a.algorithm: `gcra` is no algorithm; there are: token_bucket, sliding_window, fixed_window, leaky_bucket, warm_up, concurrency"
)]
#[case::misspelt_scope(
    "{ rate: 5/s, scope: @world }",
    "limiters.a.scope: `world` is not one of cluster, instance"
)]
#[case::key(
    "{ rate: 5/s, key: @'{client-ip}' }",
    "limiters.a.key: `{client-ip}` has the unknown part `{client-ip}`; did you mean `{client_ip}`?"
)]
#[case::misspelt_key(
    "{ rate: 5/s, @cold_faktor: 3 }",
    "limiters.a.cold_faktor: unknown key `cold_faktor`; did you mean `cold_factor`?"
)]
fn reports_one_mistake_in_a_limiter(#[case] text: &str, #[case] message: &str) {
    let text = format!("limiters: {{ a: {text} }}");
    let column = text.find('@').expect("a mark") + 1;
    assert_eq!(mistakes(&text.replace('@', "")), [format!("test.yaml:3:{column}: {message}")]);
}

#[test]
fn all_mistakes_in_a_limiter_are_reported() {
    let all = mistakes("limiters: { a: { rate: 0/s, burst: 0, key: '', scope: x } }");
    assert_eq!(all.len(), 4, "{all:#?}");
    let all = mistakes("limiters: { a: { algorithm: warm_up } }");
    assert_eq!(all.len(), 2, "{all:#?}");
    let all =
        mistakes("limiters: { a: { algorithm: warm_up, rate: '${UNSET}', warm_up: '${UNSET}' } }");
    assert_eq!(all.len(), 2, "{all:#?}");
}

#[test]
fn a_part_of_a_key_that_came_from_outside_is_not_quoted() {
    let all = mistakes("limiters: { a: { rate: 5/s, key: '{${SECRET}}' } }").join("\n");
    assert!(all.contains("unknown part") && !all.contains("hunter2"), "{all}");
}

#[test]
fn a_mistake_in_a_limiter_is_reported_once() {
    let all = mistakes(
        "limiters: { a: 0/s }\nupstreams: ~\nx: &r { suffix: /a, limiters: [{ limiter: a, cost: 5 }], max_wait: 50% }",
    );
    assert_eq!(all.len(), 2, "the limiter, and the key `x`: {all:#?}");
}

#[test]
fn reads_trusted_networks() {
    let text = "trusted_proxies: [10.0.0.0/8, '::1', 192.0.2.7, 'fd00::/8', '::ffff:10.1.0.0/112']\n\
                limiting: off\nupstream: http://a\nroutes: [{ suffix: '*' }]\n";
    let config = parse(text).expect("a config");
    let shown: Vec<_> = config.trusted_proxies.iter().map(ToString::to_string).collect();
    assert_eq!(shown, ["10.0.0.0/8", "::1/128", "192.0.2.7/32", "fd00::/8", "10.1.0.0/16"]);
    assert!(config.warnings().is_empty());
}

#[rstest]
#[case::host_bits(
    "[10.1.2.3/8]",
    "19: trusted_proxies[0]: `10.1.2.3/8` has more address than its 8 bits; did you mean `10.0.0.0/8`?"
)]
#[case::name(
    "[proxy]",
    "19: trusted_proxies[0]: `proxy` is no network; write ADDRESS/BITS, as in 10.0.0.0/8 or fd00::/8, or an address"
)]
#[case::bits(
    "[10.0.0.0/33]",
    "19: trusted_proxies[0]: `10.0.0.0/33` is no network: write 0 to 32 bits after the `/`"
)]
#[case::mask(
    "['fd00::/ffff::']",
    "19: trusted_proxies[0]: `fd00::/ffff::` is no network: write 0 to 128 bits after the `/`"
)]
#[case::no_list("10.0.0.0/8", "18: trusted_proxies: must be a list: `[10.0.0.0/8]`")]
fn refuses_texts_that_are_no_network(#[case] text: &str, #[case] message: &str) {
    assert_eq!(mistakes(&format!("trusted_proxies: {text}")), [format!("test.yaml:3:{message}")]);
}

#[rstest]
#[case::lists("limiters: { a: [3/s, 20/min], b: { rate: [3/s], burst: 5 } }")]
#[case::sliding(
    "limiters: { a: { algorithm: sliding_window, rate: [3/s, 20/min], margin: 30ms } }"
)]
#[case::leaky("limiters: { a: { algorithm: leaky_bucket, rate: 5/s, capacity: 10, margin: 0 } }")]
#[case::warm_up(
    "limiters: { a: { algorithm: warm_up, rate: 5/s, warm_up: 4s, cold_factor: 2.5 } }"
)]
#[case::concurrency("limiters: { a: { algorithm: concurrency, max: 4, lease: 1min } }")]
#[case::keys(
    "limiters: { a: { rate: 5/s, key: 'x:{header.x-shop}{segment.2}', scope: instance } }"
)]
#[case::body_key("limiters: { a: { rate: 5/s, key: '{body./model}' } }")]
#[case::proxies("trusted_proxies: [10.0.0.0/8, '::1', '${SET:-10.0.0.1}']")]
fn schema_and_parser_accept_the_same_limiters(#[case] text: &str) {
    let text = format!("upstream: http://a\nroutes: [{{ suffix: \"*\" }}]\n{text}\n");
    let verdicts = verdicts(&text);
    assert!(verdicts.0, "the schema refuses");
    // `${SET}` is a port in these tests.
    assert!(verdicts.1 || text.contains("SET"), "{:?}", parse(&text));
}

#[rstest]
#[case::charges(
    "limiters: [a, { limiter: b, cost: 5 }, { limiter: c, cost: '{header.x-cost}' }], max_wait: 50%, max_wait_cap: 200%",
    true
)]
#[case::zero_cost("limiters: [{ limiter: a, cost: 0 }]", false)]
#[case::two_parts("limiters: [{ limiter: a, cost: '{host}{path}' }]", false)]
#[case::no_number("limiters: [{ limiter: a, cost: '{client_ip}' }]", false)]
#[case::no_percentage("limiters: [a], max_wait: 0%", false)]
fn schema_and_parser_agree_on_routes(#[case] route: &str, #[case] good: bool) {
    let text = format!(
        "upstream: http://a\nlimiters: {{ a: 5/s, b: 5/s, c: 5/s }}\nroutes: [{{ suffix: /a, {route} }}]\n"
    );
    assert_eq!(verdicts(&text), (good, good));
}

/// A share of permits that flow one by one may be a fraction in a period (`5/2s`); a share of a window is a whole number.
#[rstest]
#[case::whole("40/s", 2, true, "20/s")]
#[case::parts("5/s", 2, true, "5/2s")]
#[case::parts_in_lowest_terms("10/min", 4, true, "5/2min")]
#[case::windows("5/s", 2, false, "2/s")]
#[case::one_at_least("2/h", 3, true, "1/h")]
#[case::one_a_window_at_least("2/h", 3, false, "1/h")]
#[case::alone("7/250ms", 1, true, "7/250ms")]
#[case::of_nobody("7/s", 0, true, "7/s")]
fn a_share_of_a_rate_is_written_as_a_rate(
    #[case] rate: &str,
    #[case] gateways: u64,
    #[case] flows: bool,
    #[case] part: &str,
) {
    let yaml = format!(
        "upstream: http://a\nlimiters: {{ it: {rate} }}\nroutes: [{{ suffix: '*', limiters: [it] }}]\n"
    );
    let rates = &parse(&yaml).expect("a config").limiters[0].rates;
    assert_eq!(rates[0].share(gateways, flows).to_string(), part);
}

/// A name that the file does not have may be a row of `limits_from`. Without that key it is a mistake.
#[test]
fn a_limiter_may_be_a_row() {
    let text = |limits_from: &str| {
        format!(
            "{limits_from}\nlimiters: {{ search: 5/s }}\n\
             upstreams: {{ v: {{ url: http://a, limiters: [row, search], throttle: {{ pauses: [other, search] }} }} }}\n\
             routes:\n- {{ suffix: /a, limiters: [{{ limiter: serch, cost: 99 }}, row], max_wait: 50% }}\n- suffix: /b\n"
        )
    };
    let error = parse(&text("")).expect_err("must be refused").to_string();
    assert_eq!(error.lines().count(), 4, "{error}");
    let config = parse(&text("limits_from: { url: 'postgres://a', query: q }")).expect("a config");
    assert_eq!(config.upstreams[0].missing, ["row"]);
    assert_eq!(config.routes[0].missing, ["serch", "row"]);
    assert_eq!(config.routes[1].missing, ["row"]);
    assert!(config.routes[0].covers(&config.routes[1]));
    assert!(!config.routes[1].covers(&config.routes[0]));
    assert_eq!(
        config.missing_warnings(),
        [
            "upstreams.v.limiters[0]: the limiter `row` is not in the file: its requests get 503 until `limits_from` has \
             such a row",
            "upstreams.v.throttle.pauses[0]: the limiter `other` is not in the file: its requests get 503 until \
             `limits_from` has such a row",
            "routes[0].limiters[0].limiter: the limiter `serch` is not in the file (did you mean `search`?): its requests \
             get 503 until `limits_from` has such a row",
        ]
    );
    let row = |name: &str, rate: &str| LimitRow {
        name: name.into(),
        columns: vec![("rate".into(), rate.into())],
    };
    let rows = [row("row", "3/s"), row("serch", "99/s"), row("other", "1/s")];
    let whole = config.with_rows(&rows).expect("a config");
    assert!(whole.missing.is_empty() && whole.routes.iter().all(|route| route.missing.is_empty()));
    assert_eq!(whole.routes[0].limiters.len(), 3);
    let error = config.with_rows(&[row("serch", "98/s")]).expect_err("must be refused").to_string();
    assert!(error.contains("a cost of 99 is more than `serch` can ever give"), "{error}");
}
