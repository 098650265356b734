//! Tests mistakes that newcomers make: each gets one message, which says what to write instead.

use super::{mistakes, parse};
use rstest::rstest;

/// Checks the only message for a limiter `a`. `@` in the text marks the place that the message names.
#[rstest]
#[case::key(
    "{ rate: 5/s, key: @{header.x-shop} }",
    "limiters.a.key: needs quotes: `\"{header.x-shop}\"`"
)]
#[case::key_of_more(
    "{ rate: 5/s, key: @{ client_ip: host } }",
    "limiters.a.key: must be a single value; a template needs quotes"
)]
#[case::double_braces(
    "{ rate: 5/s, key: @'{{client_ip}}:{{host}}' }",
    "limiters.a.key: `{{client_ip}}:{{host}}` has double braces; write parts in single ones: `{client_ip}:{host}`"
)]
#[case::variable(
    "{ rate: 5/s, key: @'${client_ip}' }",
    "limiters.a.key: `${client_ip}` is a variable, and none of this name is set; did you mean `{client_ip}`?"
)]
#[case::variable_with_a_name(
    "{ rate: 5/s, key: @'x-${header.x-shop}' }",
    "limiters.a.key: `${header.x-shop}` is a variable, and none of this name is set; did you mean `{header.x-shop}`?"
)]
#[case::variable_of_nginx(
    "{ rate: 5/s, key: @$http_x_shop }",
    "limiters.a.key: `$http_x_shop` names no part of the request; this part of a request is written `{header.x-shop}`"
)]
#[case::another_variable(
    "{ rate: 5/s, key: @'${NOPE}-{client_ip}' }",
    "limiters.a.key: the environment variable `NOPE` is not set; set it, or write `${NOPE:-default}`"
)]
#[case::rates_in_quotes(
    "{ rate: @'5/s, 100/min' }",
    "limiters.a.rate: `5/s, 100/min` holds several rates; write a list without quotes: `[5/s, 100/min]`"
)]
#[case::list_in_quotes(
    "@'[5/s, 100/min]'",
    "limiters.a: `[5/s, 100/min]` holds several rates; write a list without quotes: `[5/s, 100/min]`"
)]
#[case::two_slashes(
    "@5/s/s",
    "limiters.a: `5/s/s` has more than one `/`; write COUNT/PERIOD, as in 5/s or 10/250ms"
)]
#[case::empty_period("@5/", "limiters.a: `5/` needs a unit after the `/`, as in 5/s or 10/250ms")]
#[case::fraction("@1.5/s", "limiters.a: `1.5/s` is not a whole number; write `3/2s`")]
#[case::fraction_of_a_second(
    "@0.5/10s",
    "limiters.a: `0.5/10s` is not a whole number; write `1/20s`"
)]
#[case::fraction_of_a_period(
    "@5/1.5s",
    "limiters.a: `5/1.5s` is not a whole number; write `5/1500ms`"
)]
#[case::thousand("@1k/s", "limiters.a: `1k/s` is not a whole number; write `1000/s`")]
#[case::underscore("@1_000/s", "limiters.a: `1_000/s` is not a whole number; write `1000/s`")]
#[case::comma("@'1,000/s'", "limiters.a: `1,000/s` is not a whole number; write `1000/s`")]
#[case::another_comma("@'1,5/s'", "limiters.a: `1,5/s` is not a whole number")]
#[case::no_number("@/s", "limiters.a: `/s` needs a whole number")]
#[case::week("@5/week", "limiters.a: `5/week` has the unknown unit `week`; write `5/7d`")]
#[case::two_months(
    "@5/2months",
    "limiters.a: `5/2months` has the unknown unit `months`; write `5/60d`"
)]
#[case::a_rate_in_words("@5rps", "limiters.a: `5rps` is not a rate; write `5/s`")]
#[case::a_minute_in_words("@300 rpm", "limiters.a: `300 rpm` is not a rate; write `300/min`")]
#[case::a_rate_of_nginx("@5r/s", "limiters.a: `5r/s` is not a whole number; write `5/s`")]
#[case::per("@5 per minute", "limiters.a: `5 per minute` is not a rate; write `5/min`")]
#[case::from_the_environment(
    "@'${SET}sek'",
    "limiters.a: `${SET}sek` (`6380sek`) is not a rate; write COUNT/PERIOD, as in 5/s, 300/min or 10/250ms"
)]
#[case::unit_from_the_environment(
    "@'5/${SECRET}'",
    "limiters.a: `5/${SECRET}` (`5/hunter2`) has the unknown unit `hunter2`; use ms, s, min, h (hour) or d (day)"
)]
#[case::month_of_a_window(
    "{ algorithm: fixed_window, rate: @100/month }",
    "limiters.a.rate: `100/month` has the unknown unit `month`; a month of the calendar needs `resets`, as in `resets: \"00:00 UTC\"`; `100/30d` is 30 days, counted from 1970-01-01"
)]
#[case::week_of_a_window(
    "{ algorithm: fixed_window, rate: @100/week }",
    "limiters.a.rate: `100/week` has the unknown unit `week`; write `100/7d`"
)]
#[case::capital("@5/S", "limiters.a: `5/S` has the unknown unit `S`; write `5/s`")]
#[case::plural("@5/seconds", "limiters.a: `5/seconds` has the unknown unit `seconds`; write `5/s`")]
#[case::too_long(
    "@5/year, b: 1/s",
    "limiters.a: `5/year` has the unknown unit `year`; write `5/365d`"
)]
#[case::max_with_a_unit(
    "{ algorithm: concurrency, max: @4/s }",
    "limiters.a.max: `4/s` is a rate, and this is a count without a unit: `4`"
)]
#[case::burst_with_a_unit(
    "{ rate: 5/s, burst: @5/s }",
    "limiters.a.burst: `5/s` is a rate, and this is a count without a unit: `5`"
)]
#[case::burst_in_thousands(
    "{ rate: 5/s, burst: @1k }",
    "limiters.a.burst: `1k` is not a whole number; write `1000`"
)]
#[case::fraction_of_a_margin(
    "{ algorithm: sliding_window, rate: 5/s, margin: @1.5s }",
    "limiters.a.margin: `1.5s` is not a whole number; write `1500ms`"
)]
#[case::missing("5/s, @b: ", "limiters.b: is missing its rate, as in `search: 5/s`")]
#[case::null("5/s, @b: ~", "limiters.b: is missing its rate, as in `search: 5/s`")]
#[case::type_(
    "{ rate: 5/s, @type: sliding_window, margin: 1s }",
    "limiters.a.type: unknown key `type`; did you mean `algorithm`?"
)]
#[case::misspelt_algorithm(
    "{ rate: 5/s, algorithm: @slidng_window, margin: 1s }",
    "limiters.a.algorithm: `slidng_window` is no algorithm; did you mean `sliding_window`?"
)]
#[case::limit(
    "{ @limit: 5/s }",
    "limiters.a.limit: unknown key `limit`; did you mean `rate` or `max`?"
)]
#[case::limit_at_a_time(
    "{ algorithm: concurrency, @limit: 4 }",
    "limiters.a.limit: unknown key `limit`; did you mean `rate` or `max`?"
)]
#[case::misspelt_rate("{ @rat: 5/s }", "limiters.a.rat: unknown key `rat`; did you mean `rate`?")]
#[case::period(
    "{ rate: 5/s, @period: 1s }",
    "limiters.a.period: unknown key `period`; a period is a part of the rate, as in `rate: 5/s`"
)]
#[case::wait_of_a_route(
    "{ rate: 5/s, @max_wait: 2s }",
    "limiters.a.max_wait: unknown key `max_wait`; it belongs to the route"
)]
#[case::cost_of_a_route(
    "{ rate: 5/s, @cost: 2 }",
    "limiters.a.cost: unknown key `cost`; it belongs to the route, as in `limiters: [{ limiter: a, cost: 5 }]`"
)]
#[case::keys_of_a_bucket(
    "{ rate: 5/s, @colour: red }",
    "limiters.a.colour: unknown key `colour`; known here: algorithm, rate, burst, key, rates, rates_from, learn, fair, floors, scope, mode, on_failure, on_loss"
)]
#[case::keys_of_a_window(
    "{ algorithm: sliding_window, rate: 5/s, @colour: red }",
    "limiters.a.colour: unknown key `colour`; known here: algorithm, rate, margin, key, rates, rates_from, fair, floors, scope, mode, on_failure, on_loss"
)]
#[case::keys_of_concurrency(
    "{ algorithm: concurrency, max: 4, @colour: red }",
    "limiters.a.colour: unknown key `colour`; known here: algorithm, max, lease, key, fair, floors, scope, mode, on_failure, on_loss"
)]
#[case::map_in_a_list(
    "[@{ rate: 5/s, burst: 2 }, 100/min]",
    "limiters.a[0]: must be a rate alone, as in [5/s, 100/min]; in a list each rate's burst is its own count"
)]
#[case::scope(
    "{ rate: 5/s, scope: @clusters }",
    "limiters.a.scope: `clusters` is not one of cluster, instance; did you mean `cluster`?"
)]
#[case::mode(
    "{ rate: 5/s, mode: @enforced }",
    "limiters.a.mode: `enforced` is not one of enforce, observe, off; did you mean `enforce`?"
)]
fn reports_one_mistake_in_a_limiter_with_a_hint(#[case] text: &str, #[case] message: &str) {
    let text = format!("limiters: {{ a: {text} }}");
    let column = text.find('@').expect("a mark") + 1;
    assert_eq!(mistakes(&text.replace('@', "")), [format!("test.yaml:3:{column}: {message}")]);
}

/// Checks the only message for a route. `@` in the text marks the place that the message names.
#[rstest]
#[case::cost(
    "suffix: /a, limiters: [{ limiter: a, cost: @{header.x-cost} }]",
    "routes[0].limiters[0].cost: needs quotes: `\"{header.x-cost}\"`"
)]
#[case::cost_that_is_no_number(
    "suffix: /a, limiters: [{ limiter: a, cost: @'{client_ip}' }]",
    "routes[0].limiters[0].cost: `{client_ip}` is never a number; a cost comes from a part such as `{header.x-cost}`"
)]
#[case::fraction_of_a_wait(
    "suffix: /a, max_wait: @0.5h",
    "routes[0].max_wait: `0.5h` is not a whole number; write `30min`"
)]
#[case::capital_of_a_wait(
    "suffix: /a, max_wait: @2S",
    "routes[0].max_wait: `2S` has the unknown unit `S`; write `2s`"
)]
#[case::a_wait_in_words(
    "suffix: /a, max_wait: @forever",
    "routes[0].max_wait: `forever` is no duration; write `2s`, `500ms` or `1min`"
)]
#[case::negative_wait("suffix: /a, max_wait: @-2s", "routes[0].max_wait: `-2s` is negative")]
#[case::rate_of_a_limiter(
    "suffix: /a, @rate: 5/s",
    "routes[0].rate: unknown key `rate`; it belongs to a limiter under `limiters:` at the top, which the route names"
)]
#[case::prefix(
    "@prefix: /a",
    "routes[0].prefix: unknown key `prefix`; a route matches the end of a path, as in `suffix: /search` for /search and /v2/search, or a whole path, as in `path: \"/v2/shops/{shop}\"`; all paths below /v2 are `path: \"/v2/{*rest}\"`"
)]
#[case::retries_of_an_upstream(
    "suffix: /a, @retries: 3",
    "routes[0].retries: unknown key `retries`; it is written at the upstream, as `throttle: { retry: { attempts: 3 } }`"
)]
#[case::timeout_of_an_upstream(
    "suffix: /a, @timeout: 3s",
    "routes[0].timeout: unknown key `timeout`; it is `upstreams.NAME.response_timeout`"
)]
#[case::misspelt_suffix(
    "@sufix: /a",
    "routes[0].sufix: unknown key `sufix`; did you mean `suffix`?"
)]
#[case::rate_as_a_limiter(
    "suffix: /a, limiters: [@5/s]",
    "routes[0].limiters[0]: `5/s` is a rate; write it under `limiters:` at the top, as in `NAME: 5/s`, and its name here"
)]
#[case::short_cost(
    "suffix: /a, limiters: [@{ a: 2 }]",
    "routes[0].limiters[0]: a cost is written `{ limiter: a, cost: 2 }`"
)]
#[case::short_cost_of_the_request(
    "suffix: /a, limiters: [@{ a: '{header.x-cost}' }]",
    "routes[0].limiters[0]: a cost is written `{ limiter: a, cost: 5 }`"
)]
#[case::name_of_a_limiter(
    "suffix: /a, limiters: [{ @name: a, cost: 5 }]",
    "routes[0].limiters[0].name: unknown key `name`; write it as in `{ limiter: a, cost: 5 }`"
)]
#[case::costs_by_name(
    "suffix: /a, limiters: @{ a: 5 }",
    "routes[0].limiters: must be a list, as in `[a, { limiter: b, cost: 5 }]`"
)]
#[case::no_list("suffix: /a, limiters: @a", "routes[0].limiters: must be a list: `[a]`")]
fn reports_one_mistake_in_a_route_with_a_hint(#[case] route: &str, #[case] message: &str) {
    let route = format!("- {{ {route} }}");
    let column = route.find('@').expect("a mark") + 1;
    let route = route.replace('@', "");
    let text = format!("upstream: http://a\nlimiters: {{ a: 5/s, b: 5/s }}\nroutes:\n{route}\n");
    let error = parse(&text).expect_err("must be refused").to_string();
    assert_eq!(error, format!("test.yaml:4:{column}: {message}"));
}

/// Checks the only message for a file that has everything except the upstream.
#[rstest]
#[case::wait_of_a_route(
    "max_wait: 2s\nroutes: [{ suffix: /a }]",
    "2:1: max_wait: unknown key `max_wait`; it belongs to a route: `routes: [{ ..., max_wait: 2s }]`"
)]
#[case::retries_of_an_upstream(
    "retry: 3\nroutes: [{ suffix: /a }]",
    "2:1: retry: unknown key `retry`; it is written at the upstream, as `throttle: { retry: { attempts: 3 } }`"
)]
#[case::limiter(
    "limiter: { a: 5/s }\nroutes: [{ suffix: /a, limiters: [a] }]",
    "2:1: limiter: unknown key `limiter`; did you mean `limiters`?"
)]
#[case::rate_limits(
    "rate_limits: { a: 5/s }\nroutes: [{ suffix: /a, limiters: [a], max_wait: 50% }]",
    "2:1: rate_limits: unknown key `rate_limits`; did you mean `limiters`?"
)]
#[case::list_of_limiters(
    "limiters: [{ a: 5/s }, { b: 5/s }]\nroutes: [{ suffix: /a, limiters: [a, b] }]",
    "2:11: limiters: must be a map of `NAME: RATE` lines; take the `-` before them away"
)]
#[case::route("route: [{ suffix: /a }]", "2:1: route: unknown key `route`; did you mean `routes`?")]
#[case::routes_by_name(
    "routes: { a: { suffix: /a } }",
    "2:9: routes: must be a list, each route after a `-`, as in `- { suffix: /search, limiters: [search] }`"
)]
fn reports_one_mistake_in_a_file(#[case] text: &str, #[case] message: &str) {
    let error = parse(&format!("upstream: http://a\n{text}\n")).expect_err("must be refused");
    assert_eq!(error.to_string(), format!("test.yaml:{message}"));
}

#[test]
fn reports_one_mistake_for_a_misspelt_upstream() {
    let text = "upstrems: { v: http://a }\nroutes: [{ suffix: /a, upstream: v }]\n";
    let error = parse(text).expect_err("must be refused").to_string();
    let message = "test.yaml:1:1: upstrems: unknown key `upstrems`; did you mean `upstreams`?";
    assert_eq!(error, message);
}

#[rstest]
#[case::a_port(
    ":8080",
    "`:8080` names no IP; write `0.0.0.0:8080` for all addresses of this machine, `127.0.0.1:8080` for itself alone"
)]
#[case::a_number(
    "8080",
    "`8080` names no IP; write `0.0.0.0:8080` for all addresses of this machine, `127.0.0.1:8080` for itself alone"
)]
#[case::a_name(
    "localhost:8080",
    "`localhost:8080` is no address, which has an IP in place of a name; write `127.0.0.1:8080`"
)]
#[case::no_brackets("'::1'", "`::1` names no port; write it as in `\"[::1]:8080\"`")]
#[case::no_port("10.0.0.1", "`10.0.0.1` names no port; write it as in `10.0.0.1:8080`")]
fn reports_one_mistake_in_an_address(#[case] text: &str, #[case] message: &str) {
    assert_eq!(mistakes(&format!("listen: {text}")), [format!("test.yaml:3:9: listen: {message}")]);
}

#[rstest]
#[case::two_keys_in_a_line(
    "limiters:\n  a: rate: 5/s",
    "two keys in one line; write `a: { rate: 5/s }`, or the second one below the first, further in"
)]
#[case::merge_key(
    "limiters:\n  a: &a { rate: 5/s }\n  b: { <<: *a, burst: 2 }",
    "limiters.b.<<: merge keys (`<<`) are not read; write the keys out, or give the whole value an anchor (`&a`) and use it with `*a`"
)]
#[case::merge_key_of_all(
    "limiters:\n  a: &a { rate: 5/s }\n  <<: *a",
    "limiters.<<: merge keys (`<<`) are not read; write the keys out, or give the whole value an anchor (`&a`) and use it with `*a`"
)]
#[case::credentials("upstreams:\n  v: https://user:hunter2@api.example/v2?key=hunter2", "")]
fn reports_one_mistake_and_the_remedy(#[case] text: &str, #[case] message: &str) {
    let all = mistakes(text);
    assert!(!all.join("\n").contains("hunter2"), "{all:?}");
    if !message.is_empty() {
        assert_eq!(all.len(), 1, "{all:?}");
        assert!(all[0].ends_with(&format!(": {message}")), "{all:?}");
    }
}

/// `/a` is limited, and in another case it is another route, limited otherwise.
#[rstest]
#[case::not_known(
    "",
    Some("routes[1]: differs from routes[0] in line 5 only in upper and lower case")
)]
#[case::told_apart("fold_case: off", None)]
#[case::folded(
    "fold_case: on",
    Some("routes[1]: matches the same requests as routes[0] in line 5")
)]
fn warns_of_routes_that_differ_only_in_case(#[case] paths: &str, #[case] message: Option<&str>) {
    let text = format!(
        "upstream: http://a\npaths: {{ {paths} }}\nlimiters: {{ a: 5/s, b: 5/s }}\nroutes:\n\
         - {{ suffix: /a, limiters: [a] }}\n- {{ suffix: /A, limiters: [b] }}\n"
    );
    let error = parse(&text).err().map(|error| error.to_string());
    match message {
        Some(message) => assert!(error.as_ref().is_some_and(|e| e.contains(message)), "{error:?}"),
        None => assert_eq!(error, None),
    }
}
