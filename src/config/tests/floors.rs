//! Tests `floors` of limiters.

use super::{limiters::with, mistakes, parse, schema::verdicts};
use crate::algorithm::fair::{Floor, Floors, Priority};
use rstest::rstest;

#[test]
fn reads_permits_and_percentages_of_floors() {
    let limiter = "{ rate: 30/s, burst: 10, floors: { high: 25%, normal: 4 } }";
    let config = with(&format!("a: {limiter}"), &["limiters: [a], max_wait: 1s"]);
    let floors = config.limiters[0].floors;
    assert_eq!(floors, Floors { high: Some(Floor::Percent(25)), normal: Some(Floor::Permits(4)) });
    let kept = Priority::ALL.map(|priority| floors.kept_from(priority, 10));
    assert_eq!(kept, [0, 3, 4], "a part of a permit counts as one");
    // All of its requests are in one order, without another priority.
    assert!(config.limiters[0].has_turns);
}

#[rstest]
#[case::permits("rate: 5/s, floors: { high: 2 }", true)]
#[case::percent("rate: 5/s, floors: { high: 20% }", true)]
#[case::space("rate: 5/s, floors: { high: 20 % }", true)]
#[case::both("rate: 5/s, floors: { high: 1, normal: '40%' }", true)]
#[case::nothing("rate: 5/s, floors: ~", true)]
#[case::list("rate: [5/s, 100/min], floors: { high: 20% }", true)]
#[case::concurrency("algorithm: concurrency, max: 5, floors: { high: 1 }", true)]
#[case::calendar(
    "algorithm: fixed_window, rate: 50/day, resets: '00:00 UTC', spread: even, floors: { high: 10% }",
    true
)]
#[case::word("rate: 5/s, floors: { high: many }", false)]
#[case::zero("rate: 5/s, floors: { high: 0 }", false)]
#[case::all("rate: 5/s, floors: { high: 100% }", false)]
#[case::of_low("rate: 5/s, floors: { low: 1 }", false)]
#[case::scalar("rate: 5/s, floors: 20%", false)]
fn schema_and_parser_agree_on_floors(#[case] limiter: &str, #[case] is_right: bool) {
    let text = format!(
        "upstream: http://a\nlimiters: {{ a: {{ {limiter} }} }}\nroutes: [{{ suffix: /a, limiters: [a] }}]\n"
    );
    assert_eq!(verdicts(&text), (is_right, is_right), "{text}");
}

#[rstest]
#[case::scalar("rate: 5/s, floors: 20%", "must be a map, as in `floors: { high: 20% }`")]
#[case::low("rate: 5/s, floors: { low: 1 }", "no request has a lower priority")]
#[case::word("rate: 5/s, floors: { high: a fifth }", "is no floor; a floor is a number of permits")]
#[case::too_much(
    "rate: 5/s, burst: 2, floors: { high: 2 }",
    "keeps back 2 of 2 permits, so that requests of lower priorities never pass; write a smaller floor or a greater `burst`"
)]
#[case::too_much_for_a_key(
    "rate: 50/s, key: '{host}', rates: { a: 5/s }, floors: { high: 9 }",
    "keeps back 9 of 5 permits"
)]
#[case::places(
    "algorithm: concurrency, max: 2, floors: { normal: 2 }",
    "write a smaller floor or a greater `max`"
)]
#[case::learned("rate: auto, start: 5/s, floors: { high: 1 }", "cannot go with `rate: auto`")]
#[case::spaced("algorithm: leaky_bucket, rate: 5/s, floors: { high: 1 }", "floors")]
#[case::other_name("rate: 5/s, floor: { high: 1 }", "did you mean `floors`?")]
fn a_wrong_floor_has_a_reason(#[case] limiter: &str, #[case] expected: &str) {
    let text = format!("upstream: http://a\nlimiters: {{ a: {{ {limiter} }} }}\n");
    let found = mistakes(&text).join("\n");
    assert!(found.contains(expected), "{found}");
}

#[rstest]
#[case::used("rate: 5/s, floors: { high: 1 }", "priority: high", "")]
#[case::unused(
    "rate: 5/s, floors: { high: 1 }",
    "priority: low",
    "no request takes the permits that `floors` of the limiter `a` keep"
)]
#[case::window(
    "algorithm: sliding_window, rate: 5/s, floors: { high: 1 }",
    "priority: high",
    "requests of lower priorities use at most 4 of the 5 permits of a window"
)]
#[case::few(
    "rate: 5/s, burst: 2, floors: { high: 1 }",
    "priority: high",
    "finds none in some moments; write `burst: 4` or more"
)]
#[case::few_for_its_rate(
    "rate: 24/s, burst: 4, floors: { high: 1 }",
    "priority: high",
    "finds none in some moments; write `burst: 6` or more"
)]
#[case::observes(
    "rate: 5/s, mode: observe, floors: { high: 1 }",
    "priority: high",
    "a limiter in mode `observe` refuses no request"
)]
fn floors_that_have_no_effect_give_a_warning(
    #[case] limiter: &str,
    #[case] route: &str,
    #[case] expected: &str,
) {
    let text = format!(
        "upstream: http://a\nlimiters: {{ a: {{ {limiter} }} }}\n\
         routes: [{{ suffix: /a, limiters: [a], {route} }}, {{ suffix: /b, limiters: [a], max_wait: 60s }}]\n"
    );
    let warnings = parse(&text).expect("a config").warnings().join("\n");
    assert_eq!(warnings.contains("floors"), !expected.is_empty(), "{warnings}");
    assert!(warnings.contains(expected), "{warnings}");
}

/// Permits of `concurrency` are used up by the calls of a batch for as long as these take.
#[rstest]
#[case::no_floor("max: 4", "[a, c]", "[a, c]", true)]
#[case::a_floor("max: 4, floors: { high: 1 }", "[a, c]", "[a, c]", false)]
#[case::of_the_batch_alone("max: 4", "[a]", "[a, c]", false)]
#[case::of_users_alone("max: 4", "[a, c]", "[a]", false)]
#[case::observes("max: 4, mode: observe", "[a, c]", "[a, c]", false)]
fn a_floor_with_concurrency_that_has_none_gives_a_warning(
    #[case] calls: &str,
    #[case] users: &str,
    #[case] batch: &str,
    #[case] is_warned: bool,
) {
    for (floor, user, other) in [("high", "high", "normal"), ("normal", "normal", "low")] {
        let text = format!(
            "upstream: http://a\nlimiters: {{ a: {{ rate: 5/s, floors: {{ {floor}: 1 }} }}, \
             c: {{ algorithm: concurrency, {calls} }} }}\nroutes: \
             [{{ suffix: /a, limiters: {users}, priority: {user}, max_wait: 1s }}, \
             {{ suffix: /b, limiters: {batch}, priority: {other}, max_wait: 60s }}]\n"
        );
        let warnings = parse(&text).expect("a config").warnings().join("\n");
        let said = format!(
            "have all permits of `c`, which its routes need, too; write `floors: {{ {floor}: 1 }}` there"
        );
        assert_eq!(warnings.contains(&said), is_warned, "{warnings}");
    }
}
