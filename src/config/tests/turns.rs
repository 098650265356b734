//! Tests `fair` of limiters and `priority` of routes.

use super::{limiters::with, mistakes, parse, schema::verdicts};
use crate::{
    algorithm::{Rule, fair::Priority},
    config::{Config, PriorityRule},
};
use rstest::rstest;

const FAIR: &str =
    "{ rate: 5/s, fair: { by: '{header.x-team}', weights: { checkout: 4, 'a b': 2 } } }";

fn turns(config: &Config) -> Vec<bool> {
    config.limiters.iter().map(|limiter| limiter.has_turns).collect()
}

#[test]
fn reads_tenants_and_weights_of_fair() {
    let config = with(&format!("a: {FAIR}"), &["limiters: [a], max_wait: 1s"]);
    let fair = config.limiters[0].fair.as_ref().expect("fair");
    assert_eq!(fair.by.text(), "{header.x-team}");
    // A weight counts for the name as a request brings it.
    let weights = ["checkout", "a%20b", "batch", "-"].map(|tenant| fair.weight(tenant));
    assert_eq!((weights, fair.weights.len()), ([4, 2, 1, 1], 2));
    let none = with("a: { rate: 5/s, fair: ~ }", &["limiters: [a], max_wait: 1s"]);
    assert_eq!(none.limiters[0].fair, None);
}

/// The names of tenants that are credentials are kept as hashes alone, also where the file has them in clear text.
#[test]
fn secret_tenants_are_hashes() {
    let text = "a: { rate: 5/s, fair: { by: '{header.authorization}', weights: { 'Bearer hunter2': 4 } } }";
    let config = with(text, &["limiters: [a], max_wait: 1s"]);
    let fair = config.limiters[0].fair.as_ref().expect("fair");
    assert!(fair.by.is_secret());
    assert_eq!(fair.weight(&fair.by.canonical("Bearer hunter2")), 4);
    assert!(fair.weights.keys().all(|name| name.starts_with('#')), "{:?}", fair.weights);
    let wrong = "limiters: { a: { rate: 5/s, fair: { by: '{header.authorization}', weights: { hunter2: 0 } } } }";
    assert!(mistakes(wrong).iter().all(|line| !line.contains("hunter2")), "{:?}", mistakes(wrong));
    let twice = wrong.replace("hunter2: 0", "hunter2: 1, hunter2: '${NONE}'");
    assert!(
        mistakes(&twice).iter().all(|line| !line.contains("hunter2")),
        "{:?}",
        mistakes(&twice)
    );
    let twice = "limiters: { a: { rate: 5/s, key: '{header.authorization}', rates: { hunter2: 1/s, hunter2: 2/s } } }";
    assert!(mistakes(twice).iter().all(|line| !line.contains("hunter2")), "{:?}", mistakes(twice));
}

#[test]
fn all_requests_of_a_limiter_take_turns_if_one_route_has_a_priority() {
    let config = with(
        &format!("a: 5/s, b: 5/s, c: {FAIR}, d: {{ rate: 5/s, mode: observe }}, e: 5/s"),
        &[
            "limiters: [a, b], max_wait: 1s",
            "limiters: [b, d], priority: low, max_wait: 1s",
            "limiters: [c, e], priority: normal, max_wait: 1s",
        ],
    );
    assert_eq!(turns(&config), [false, true, true, false, false]);
    // The limiters of the upstream are those of each of its routes.
    let config = parse(
        "upstreams: { v: { url: 'http://a', limiters: [a] } }\nlimiters: { a: 5/s }\n\
         routes: [{ suffix: /1 }, { suffix: /2, priority: rfc9218 }]\n",
    );
    assert_eq!(turns(&config.expect("a config")), [true]);
}

#[rstest]
#[case::high("high", PriorityRule::High, Some(Priority::High))]
#[case::normal("normal", PriorityRule::Normal, Some(Priority::Normal))]
#[case::low("low", PriorityRule::Low, Some(Priority::Low))]
#[case::urgency("rfc9218", PriorityRule::Rfc9218, None)]
#[case::nothing("~", PriorityRule::Normal, Some(Priority::Normal))]
#[case::header(
    "'{header.X-Priority}'",
    PriorityRule::Header(http::HeaderName::from_static("x-priority")),
    None
)]
fn reads_priorities(
    #[case] text: &str,
    #[case] expected: PriorityRule,
    #[case] fixed: Option<Priority>,
) {
    let config = with("a: 5/s", &[&format!("limiters: [a], priority: {text}, max_wait: 1s")]);
    assert_eq!(config.routes[0].priority, expected);
    assert_eq!(expected.fixed(), fixed);
}

#[rstest]
#[case::no_map(
    "fair: '{header.x-team}'",
    "test.yaml:3:35: limiters.a.fair: must be a map, as in `fair: { by: \"{header.x-team}\" }`"
)]
#[case::no_tenant(
    "fair: { weights: { a: 4 } }",
    "test.yaml:3:35: limiters.a.fair.by: is missing, as in `by: \"{header.x-team}\"`"
)]
#[case::no_template(
    "fair: { by: client_ip }",
    "test.yaml:3:41: limiters.a.fair.by: `client_ip` names no part of the request; did you mean `{client_ip}`?"
)]
#[case::no_quotes(
    "fair: { by: {header.x-team} }",
    "test.yaml:3:41: limiters.a.fair.by: needs quotes: `\"{header.x-team}\"`"
)]
#[case::unknown_key(
    "fair: { by: '{client_ip}', weight: { a: 4 } }",
    "test.yaml:3:56: limiters.a.fair.weight: unknown key `weight`; did you mean `weights`?"
)]
#[case::a_weight_of_zero(
    "fair: { by: '{client_ip}', weights: { a: 0 } }",
    "test.yaml:3:70: limiters.a.fair.weights.a: `0` must be at least 1"
)]
#[case::a_negative_weight(
    "fair: { by: '{client_ip}', weights: { a: -4 } }",
    "test.yaml:3:70: limiters.a.fair.weights.a: `-4` is negative; it must be at least 1"
)]
#[case::a_weight_too_many(
    "fair: { by: '{client_ip}', weights: { a: 1001 } }",
    "test.yaml:3:70: limiters.a.fair.weights.a: `1001` must be at most 1000"
)]
#[case::a_list(
    "fair: { by: '{client_ip}', weights: [4] }",
    "test.yaml:3:65: limiters.a.fair.weights: must be a map of `key: value` lines"
)]
#[case::one_tenant_twice(
    "fair: { by: '{header.x}', weights: { 'a b': 4, 'a%20b': 1 } }",
    "test.yaml:3:76: limiters.a.fair.weights.a%20b: names a tenant that has a weight already"
)]
#[case::elsewhere(
    "weights: { a: 4 }",
    "test.yaml:3:29: limiters.a.weights: unknown key `weights`; weights are written `fair: { by: \"{header.x-team}\", weights: { NAME: 4 } }`"
)]
fn a_wrong_fair_has_a_place_and_a_reason(#[case] keys: &str, #[case] expected: &str) {
    let found = mistakes(&format!("limiters: {{ a: {{ rate: 5/s, {keys} }} }}"));
    assert!(found.iter().any(|line| line == expected), "{found:?}\n{expected}");
    let text = format!(
        "upstream: http://a\nroutes: [{{ suffix: \"*\" }}]\nlimiters: {{ a: {{ rate: 5/s, {keys} }} }}\n"
    );
    // A schema knows no spellings of one name.
    let is_right = keys.contains("%20");
    assert_eq!(verdicts(&text), (is_right, false), "{keys}");
}

#[test]
fn a_limiter_has_1024_weights() {
    let text = |weights: usize| {
        let weights: Vec<_> = (0..weights).map(|i| format!("t{i}: 2")).collect();
        let weights = weights.join(", ");
        format!(
            "upstream: http://a\nroutes: [{{ suffix: \"*\" }}]\n\
             limiters: {{ a: {{ rate: 5/s, fair: {{ by: '{{client_ip}}', weights: {{ {weights} }} }} }} }}\n"
        )
    };
    assert_eq!(verdicts(&text(1024)), (true, true));
    assert_eq!(verdicts(&text(1025)), (false, false));
}

#[rstest]
#[case::unknown(
    "urgent",
    "`urgent` is no priority; a priority is high, normal or low, or rfc9218, or a header of trusted callers, as in `\"{header.x-priority}\"`"
)]
#[case::near("hihg", "`hihg` is no priority; did you mean `high`?")]
#[case::number("7", "`7` is no priority; a priority is high")]
#[case::other_part("'{query.p}'", "`{query.p}` names no header; a priority is high")]
#[case::no_name("'{header.}'", "`{header.}` names no header; a priority is high")]
#[case::more("'{header.a}{header.b}'", "names no header; a priority is high")]
#[case::no_quotes("{header.p}", "needs quotes: `\"{header.p}\"`")]
fn a_wrong_priority_has_a_reason(#[case] text: &str, #[case] expected: &str) {
    let text = format!("upstream: http://a\nroutes: [{{ suffix: /a, priority: {text} }}]\n");
    let found = parse(&text).expect_err("a mistake").to_string();
    assert!(found.starts_with("test.yaml:2:34: routes[0].priority: "), "{found}");
    assert!(found.contains(expected), "{found}");
    assert_eq!(verdicts(&text), (false, false));
}

#[rstest]
#[case::fair(FAIR, "", true)]
#[case::no_weights("{ rate: 5/s, fair: { by: '{client_ip}', weights: ~ } }", "", true)]
#[case::nothing("{ rate: 5/s, fair: ~ }", "priority: ~", true)]
#[case::concurrency("{ algorithm: concurrency, max: 4, fair: { by: '{host}' } }", "", true)]
#[case::variables(
    "{ rate: 5/s, fair: { by: '{client_ip}', weights: { a: '${MISSING:-4}' } } }",
    "",
    true
)]
#[case::no_tenant("{ rate: 5/s, fair: {} }", "", false)]
#[case::word("{ rate: 5/s, fair: { by: '{client_ip}', weights: { a: many } } }", "", false)]
#[case::priority("5/s", "priority: high", true)]
#[case::header("5/s", "priority: '{header.x-priority}'", true)]
#[case::capitals("5/s", "priority: High", false)]
#[case::at_the_limiter("{ rate: 5/s, priority: high }", "", false)]
#[case::at_the_route("5/s", "fair: { by: '{host}' }", false)]
fn schema_and_parser_agree_on_fair(
    #[case] limiter: &str,
    #[case] route: &str,
    #[case] is_right: bool,
) {
    let text = format!(
        "upstream: http://a\nlimiters: {{ a: {limiter} }}\nroutes: [{{ suffix: /a, limiters: [a], {route} }}]\n"
    );
    assert_eq!(verdicts(&text), (is_right, is_right));
}

/// `fair`, or the priority of a route, gives the permits of a concurrency limiter an order.
#[rstest]
#[case::fair("max: 4, fair: { by: '{host}' }", "max_wait: 1s", true)]
#[case::a_priority("max: 4", "priority: high", true)]
#[case::none("max: 4", "max_wait: 1s", false)]
#[case::observes("max: 4, mode: observe, fair: { by: '{host}' }", "max_wait: 1s", false)]
fn permits_are_handed_over_in_turns(
    #[case] limiter: &str,
    #[case] route: &str,
    #[case] expected: bool,
) {
    let config = parse(&format!(
        "upstream: http://a\nlimiters: {{ a: {{ algorithm: concurrency, {limiter} }} }}\n\
         routes: [{{ suffix: /a, limiters: [a], {route} }}]\n"
    ))
    .expect("a config");
    let [Rule::Permits(rule)] = &*config.limiters[0].algorithms else { panic!("no concurrency") };
    assert_eq!(rule.takes_turns(), expected);
}

#[test]
fn a_tenant_can_be_a_parameter_of_the_path() {
    let text = |path: &str| {
        format!(
            "upstream: http://a\nlimiters: {{ a: {{ rate: 5/s, fair: {{ by: '{{path.shop}}' }} }} }}\n\
             routes: [{{ {path}, limiters: [a], max_wait: 1s }}]\n"
        )
    };
    let config = parse(&text("path: '/shops/{shop}'")).expect("a config");
    assert!(config.routes[0].captures);
    let error = parse(&text("suffix: /shops")).expect_err("no parameter").to_string();
    assert!(error.contains("charges `a`, which uses `{path.shop}`"), "{error}");
}

#[rstest]
#[case::waits("a: FAIR", "limiters: [a], max_wait: 1s", &[])]
#[case::waits_on_demand("a: FAIR", "limiters: [a], max_wait_cap: 1s", &[])]
#[case::never_waits(
    "a: FAIR",
    "limiters: [a], max_wait: 0",
    &["`fair` of the limiter `a` shares nothing: no route that uses it has a `max_wait`"]
)]
#[case::observes(
    "a: { rate: 5/s, mode: observe, fair: { by: '{host}' } }",
    "limiters: [a], max_wait: 1s",
    &["`fair` of the limiter `a` shares nothing: a limiter in mode `observe` holds no request"]
)]
#[case::concurrency(
    "a: { algorithm: concurrency, max: 4, fair: { by: '{host}' } }",
    "limiters: [a], max_wait: 1s",
    &[]
)]
#[case::no_limiters(
    "a: 5/s",
    "priority: high",
    &[
        "no route and no upstream uses the limiter `a`",
        "`priority` of the route `/0` changes nothing",
        "no route has a limiter, so nothing is limited"
    ]
)]
#[case::nobody_is_trusted(
    "a: 5/s",
    "limiters: [a], max_wait: 1s, priority: rfc9218",
    &["every request of the route `/0` has the priority `normal`"]
)]
#[case::priority("a: 5/s", "limiters: [a], max_wait: 1s, priority: low", &[])]
fn warns_of_fair_without_effect(
    #[case] limiters: &str,
    #[case] route: &str,
    #[case] expected: &[&str],
) {
    let warnings = with(&limiters.replace("FAIR", FAIR), &[route]).warnings();
    assert_eq!(warnings.len(), expected.len(), "{warnings:?}");
    for (warning, expected) in warnings.iter().zip(expected) {
        assert!(warning.starts_with(expected), "{warning}");
    }
}
