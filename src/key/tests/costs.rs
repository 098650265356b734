//! The costs of requests: numbers in their parts, and reserves that are settled.

use super::*;
use std::sync::Arc;

#[rstest]
#[case::number(b"5", Ok(5))]
#[case::all(b"500", Ok(500))]
#[case::leading_zeros(b"0005", Ok(5))]
#[case::zero(b"0", Ok(0))]
#[case::above(b"501", Err("`501`"))]
#[case::negative(b"-1", Err("`-1`"))]
#[case::plus(b"+1", Err("`+1`"))]
#[case::fraction(b"1.5", Err("`1.5`"))]
#[case::nan(b"NaN", Err("`NaN`"))]
#[case::empty(b"", Err("``"))]
#[case::dash(b"-", Err("`-`"))]
#[case::huge(
    b"99999999999999999999999999999999999999",
    Err("`99999999999999999999999999999999...`")
)]
#[case::odd(b"\xe9`\t", Err("`???`"))]
fn reads_costs_from_headers(#[case] value: &[u8], #[case] expected: Result<i64, &str>) {
    let request = request("/", &[("x-cost", value)]);
    let cost = Cost::parse("{header.x-cost}").expect("a cost");
    let expected = expected.map_err(|value| {
        format!(
            "the cost {value} in `{{header.x-cost}}` is not between 0 and 500, the most that the limiter `a` gives at once"
        )
    });
    assert_eq!(cost.of(&parts(&request), 500, "a"), expected);
}

#[test]
fn a_missing_cost_is_one() {
    let request = request("/", &[]);
    let cost = Cost::parse("{header.x-cost}").expect("a cost");
    assert_eq!(cost.of(&parts(&request), 500, "a"), Ok(1));
    assert_eq!(Cost::parse("7").expect("a cost").of(&parts(&request), 500, "a"), Ok(7));
}

#[rstest]
#[case::zero("0", "is no cost")]
#[case::negative("-5", "is negative")]
#[case::fraction("1.5", "is not a number")]
#[case::word("many", "is not a number")]
#[case::huge("9223372036854775808", "is not a number")]
#[case::two_parts("{header.a}{header.b}", "has no `+` before `{header.b}`")]
#[case::credential("{header.cookie}", "is a credential")]
#[case::unknown("{cost}", "has the unknown part")]
#[case::client("{client_ip}", "is never a number")]
#[case::host("{host}", "is never a number")]
#[case::method("{method}", "is never a number")]
#[case::path("{path}", "is never a number")]
fn refuses_texts_that_are_no_cost(#[case] text: &str, #[case] reason: &str) {
    let error = Cost::parse(text).expect_err("no cost");
    assert!(error.starts_with(reason), "{error}");
}

#[test]
fn a_reserve_that_is_settled_is_at_least_one() {
    for (named, is_settled, expected) in
        [("0", true, 1), ("0", false, 0), ("5", true, 5), ("99999999999999999999", true, 500)]
    {
        let settle = || Arc::new(TrueCost::parse_answer("{response.header.x}").expect("a part"));
        let cost = Cost::Reserved(Box::new(ReservedCost {
            reserve: Reserve::Sum(Sum::parse_request("{header.x-cost}").expect("a reserve")),
            default: Some(7),
            settle: is_settled.then(settle),
        }));
        let request = request("/", &[("x-cost", named.as_bytes())]);
        assert_eq!(cost.of(&parts(&request), 500, "a"), Ok(expected), "{named}");
    }
}

proptest! {
    #[test]
    fn a_cost_is_never_out_of_bounds(value in prop::collection::vec(0x20..0x7f_u8, 0..8), most in 1..1000_i64) {
        let request = request("/", &[("x-cost", &value)]);
        let cost = Cost::parse("{header.x-cost}").expect("a cost").of(&parts(&request), most, "a");
        prop_assert!(cost.is_err_and(|reason| reason.len() < 200) || cost_in(&value, most));
    }
}

fn cost_in(value: &[u8], most: i64) -> bool {
    let number: Option<i64> = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
    number.is_some_and(|number| (0..=most).contains(&number))
}
