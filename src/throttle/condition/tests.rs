use super::*;
use http::HeaderValue;
use rstest::rstest;
use serde_json::json;

fn condition(text: &str) -> Condition {
    Condition::parse(text).unwrap()
}

fn fields(fields: &[(&'static str, &'static str)]) -> HeaderMap {
    let field = |(name, value): &(&'static str, &'static str)| {
        (HeaderName::from_static(name), HeaderValue::from_static(value))
    };
    fields.iter().map(field).collect()
}

#[rstest]
#[case("429")]
#[case("503 with retry-after")]
#[case("403 with x-ratelimit-remaining=0")]
#[case("200 with json /errors/0/extensions/code=THROTTLED")]
#[case("403 with json /error/errors/*/reason=rateLimitExceeded and x-a")]
#[case("403 with json /message~\"secondary rate limit\"")]
#[case("403 with json /message~\"slow and steady\" and x-a~\"b\" and x-c=d")]
#[case("403 with json /message=\"slow and steady\" and x-a=secondary rate limit and x-b=\"a\";r=0")]
#[case("429 with json-version=2")]
#[case("429 with jsonp")]
fn a_condition_is_shown_as_it_was_written(#[case] text: &str) {
    assert_eq!(condition(text).to_string(), text);
}

#[rstest]
#[case("", "names no status")]
#[case("slow", "names no status")]
#[case("retry-after", "did you mean `429 with retry-after`?")]
#[case("4xx", "is a class of statuses; name each")]
#[case("429,503", "write each as an item")]
#[case("42", "200 to 599")]
#[case("600", "200 to 599")]
#[case("100", "200 to 599")]
#[case("-429", "names no status")]
#[case("200", "would take every answer of 200 OK for a refusal")]
#[case("503 if retry-after", "did you mean `with`?")]
#[case("503 retry-after", "has no `with`")]
#[case("503 with", "has no `with`")]
#[case("503 with retry after", "which is no header")]
#[case("403 with x-ratelimit-remaining<1", "can only ask for a value")]
#[case("403 with x-ratelimit-remaining: 0", "after a `=`")]
#[case("403 with x-ratelimit-remaining=", "has no value")]
#[case("403 with x-ratelimit-remaining==0", "has no value")]
#[case("403 with x-ratelimit-remaining~0", "as in `~\"rate limit\"`")]
#[case("403 with json /message~secondary", "as in `~\"rate limit\"`")]
#[case("403 with json /message~\"secondary", "in two quotes")]
#[case("403 with json /message~\"a\" b", "in two quotes")]
#[case("403 with x-a~\"\"", "write `with x-a`")]
#[case("403 with x-a=\"\"", "leave it out, as in `with x-a`")]
#[case("403 with json /message=\"secondary", "in two quotes, or in none")]
#[case("200 with json", "has no path after `json`")]
#[case("200 with jsOn", "has no path after `json`")]
#[case("200 with json errors[0].code=A", "did you mean `json /errors/0/code`?")]
#[case("200 with json $.error.code=A", "did you mean `json /error/code`?")]
#[case("200 with /errors/0=A", "`with json /errors/0`")]
#[case("200 with json /a~2b", "neither `~0`")]
fn a_wrong_condition_is_reported_with_the_remedy(#[case] text: &str, #[case] reason: &str) {
    let said = Condition::parse(text).unwrap_err();
    assert!(said.contains(reason), "{text}: {said}");
}

#[rstest]
#[case::status_alone("429", 429, &[], true)]
#[case::other_status("429", 503, &[], false)]
#[case::with_the_header("503 with retry-after", 503, &[("retry-after", "1")], true)]
#[case::without_the_header("503 with retry-after", 503, &[], false)]
#[case::value("403 with x-ratelimit-remaining=0", 403, &[("x-ratelimit-remaining", " 0 ")], true)]
#[case::other_value("403 with x-ratelimit-remaining=0", 403, &[("x-ratelimit-remaining", "10")], false)]
#[case::quotes("503 with retry-after=\"5\"", 503, &[("retry-after", "5")], true)]
#[case::quoted_and("429 with a=\"x and y\" and b", 429, &[("a", "x and y"), ("b", "")], true)]
#[case::case("429 with X-Scope=Global", 429, &[("x-scope", "global")], true)]
#[case::part("429 with x-reason~\"RATE limit\"", 429, &[("x-reason", "a rate limit of 5")], true)]
#[case::part_of_another("429 with x-reason~\"limit\"", 429, &[("x-reason", "lim it"), ("x-other", "limit")], false)]
#[case::part_and_another("429 with a~\"x and y\" and b", 429, &[("a", "-x and y-")], false)]
#[case::one_of_two("429 with a and b", 429, &[("a", "")], false)]
#[case::both("429 with a and b", 429, &[("a", ""), ("b", "")], true)]
fn conditions_match_heads(
    #[case] text: &str,
    #[case] status: u16,
    #[case] head: &[(&'static str, &'static str)],
    #[case] met: bool,
) {
    let status = StatusCode::from_u16(status).unwrap();
    assert_eq!(condition(text).is_met(status, &fields(head), None), met);
}

#[rstest]
#[case("/errors/0/extensions/code=THROTTLED", true)]
#[case("/errors/1/extensions/code=THROTTLED", false)]
#[case("/errors/*/extensions/code=SECOND", true)]
#[case("/errors/*/extensions/code=\"SECOND\"", true)]
#[case("/errors/*/extensions/code", true)]
#[case("/errors/*/extensions/code=THIRD", false)]
#[case("/errors/00/a", false)]
#[case("/errors/*/extensions/code~\"thro\"", true)]
#[case("/errors/1/extensions/code~\"thro\"", false)]
#[case("/a~1b~\".5\"", true)]
#[case("/nothing~\"null\"", false)]
#[case("/errors~\"code\"", false)]
#[case("/a~1b=1.5", true)]
#[case("/is=true", true)]
#[case("/nothing", false)]
#[case("/nothing=null", false)]
#[case("/errors", true)]
#[case("/errors=x", false)]
fn conditions_match_bodies(#[case] pointer: &str, #[case] met: bool) {
    let body = json!({
        "errors": [{"extensions": {"code": "THROTTLED"}}, {"extensions": {"code": "SECOND"}}],
        "a/b": 1.5, "is": true, "nothing": null,
    });
    let condition = condition(&format!("200 with json {pointer}"));
    let head = HeaderMap::new();
    assert_eq!(condition.is_met(StatusCode::OK, &head, Some(&body)), met);
    assert!(!condition.is_met(StatusCode::OK, &head, None));
    assert!(condition.asks_body(StatusCode::OK, &head));
}

#[test]
fn a_condition_that_never_decides_is_found() {
    assert!(condition("204 with json /a").never().is_some());
    assert!(condition("200 with json /a").never().is_none());
    for (wide, narrow) in [
        ("429", "429 with retry-after"),
        ("503 with a", "503 with a=1 and b"),
        ("200 with json /a", "200 with json /a=1"),
        ("200 with json /a", "200 with json /a~\"1\""),
        ("200 with json /a~\"LIMIT\"", "200 with json /a=a limit"),
        ("429 with a~\"limit\"", "429 with a~\"rate limit\" and b"),
    ] {
        assert!(condition(wide).covers(&condition(narrow)));
        assert!(!condition(narrow).covers(&condition(wide)));
    }
    assert!(!condition("503").covers(&condition("429")));
}

#[test]
fn a_misspelt_header_is_recognised() {
    let near = |text| condition(text).likely_header().map(|(_, near)| near);
    assert_eq!(near("503 with retry_after"), Some("retry-after"));
    assert_eq!(near("503 with x-ratelimit-remainig=0"), Some("x-ratelimit-remaining"));
    assert_eq!(near("503 with retry-after"), None);
    assert_eq!(near("503 with x-my-own"), None);
}
