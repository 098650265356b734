//! Sums of numbers and parts, as costs, reserves and true costs are written.

use super::*;
use std::sync::Arc;

fn sum(text: &str) -> Sum<Template> {
    Sum::parse_request(text).unwrap_or_else(|reason| panic!("`{text}` {reason}"))
}

fn cost(text: &str) -> Cost {
    Cost::parse(text).unwrap_or_else(|reason| panic!("`{text}` {reason}"))
}

#[rstest]
#[case::number("5", "5")]
#[case::numbers("1 + 2+3", "6")]
#[case::part("{header.x-cost}", "{header.x-cost}")]
#[case::product("3*{header.x-pages}", "3*{header.x-pages}")]
#[case::factor_of_one("1*{query.n}", "{query.n}")]
#[case::tight("1+2*{query.n}+{query.m}", "1 + 2*{query.n} + {query.m}")]
#[case::wide("  {query.n} +  2 * {query.m} + 1 ", "1 + {query.n} + 2*{query.m}")]
#[case::a_sum_within_a_name("{query.a+b*c} + 1", "1 + {query.a+b*c}")]
#[case::the_most(
    "1+{query.a}+{query.a}+{query.a}+{query.a}+{query.a}+{query.a}+1000000000*{query.a}",
    "1 + {query.a} + {query.a} + {query.a} + {query.a} + {query.a} + {query.a} + 1000000000*{query.a}"
)]
fn reads_sums(#[case] text: &str, #[case] expected: &str) {
    assert_eq!(sum(text).to_string(), expected);
}

#[test]
fn a_sum_of_numbers_is_a_number() {
    assert_eq!(cost("2 + 3"), Cost::Fixed(5));
    assert_eq!((cost("2 + {query.n} + 3").least(), cost("{query.n}").least()), (5, 0));
    assert!(cost("2*{query.n}").may_be_zero() && !cost("1 + {query.n}").may_be_zero());
}

#[rstest]
#[case::too_many("1+1+1+1+1+1+1+1+{query.n}", "has 9 terms; a cost is a sum of at most 8")]
#[case::factor_of_zero(
    "0*{query.n}",
    "has the factor `0`; a factor is a whole number from 1 to 1000000000"
)]
#[case::large_factor("1000000001*{query.n}", "has the factor `1000000001`; a factor is")]
#[case::negative_factor("-1*{query.n}", "has the factor `-1`; a factor is")]
#[case::fraction("1.5*{query.n}", "has the factor `1.5`; a factor is")]
#[case::no_factor("*{query.n}", "has the factor ``; a factor is")]
#[case::two_factors("2*3*{query.n}", "has the factor `2*3`; a factor is")]
#[case::two_parts(
    "{query.n}*{query.m}",
    "multiplies two parts; a term is a number, a part, or a number times a part"
)]
#[case::numbers("2*3", "multiplies no part; a number is written as one")]
#[case::factor_behind(
    "{query.n} * 2",
    "has its factor after the part; write it as in `5*{query.n}`"
)]
#[case::no_plus("{query.n} {query.m}", "has no `+` before `{query.m}`; a cost is a sum, as in")]
#[case::minus("{query.n} - {query.m}", "has no `+` before `- {query.m}`; a cost is a sum, as in")]
#[case::no_star("2{query.n}", "has no `*` after `2`; a factor is written as in `5*{query.n}`")]
#[case::parenthesis("2*({query.n} + 1)", "has a parenthesis; give each part its own factor")]
#[case::plus_at_the_end("{query.n} +", "has a `+` without a term on each side of it")]
#[case::plus_at_the_start("+1", "has a `+` without a term on each side of it")]
#[case::two_pluses("1 ++ {query.n}", "has a `+` without a term on each side of it")]
#[case::open("1 + {query.n", "has a `{` without its `}`")]
#[case::open_twice("{query.n + {query.m}", "has a `{` without its `}`")]
#[case::closed("1 + query.n}", "has a `}` without its `{`")]
#[case::double("1 + {{query.n}}", "has double braces; write parts in single ones: `1 + {query.n}`")]
#[case::zero(
    "0 + {query.n}",
    "has the term `0`, which is no cost; a cost is a whole number, at least 1"
)]
#[case::negative("{query.n} + -1", "has the term `-1`, which is negative; a cost is")]
#[case::word(
    "{query.n} + many",
    "has the term `many`, which is not a number that can be a cost; a cost is"
)]
#[case::overflow("9223372036854775807 + 1", "has the term `1`, which makes the cost exceed 2^63")]
#[case::answer(
    "{response.body./n}",
    "is a part of the answer, which comes later; write it as `settle`"
)]
#[case::answer_within(
    "1 + {response.header.x}",
    "has the term `{response.header.x}`, which is a part of the answer"
)]
#[case::never_a_number(
    "1 + {host}",
    "has the term `{host}`, which is never a number; a cost comes from a part"
)]
#[case::credential(
    "1 + {header.cookie}",
    "has the term `{header.cookie}`, which is a credential; a cost comes"
)]
#[case::unknown(
    "1 + 2*{qeury.n}",
    "has the term `2*{qeury.n}`, which has the unknown part `{qeury.n}`; did you mean `{query.n}`?"
)]
fn a_wrong_sum_has_its_reason(#[case] text: &str, #[case] reason: &str) {
    let said = Cost::parse(text).expect_err("no cost");
    assert!(said.starts_with(reason), "{said}");
    assert_eq!(Sum::parse_request(text).expect_err("no reserve"), said);
}

#[rstest]
#[case::number("5")]
#[case::numbers("5 + 6")]
#[case::request("{body./n}")]
#[case::request_within("{response.header.x} + {header.x}")]
#[case::unknown("{response.status}")]
fn refuses_a_true_cost_without_a_part_of_the_answer(#[case] text: &str) {
    let reason = TrueCost::parse_answer(text).expect_err("no true cost");
    let cure =
        "is no part of an answer; write `{response.header.NAME}` or `{response.body./POINTER}`";
    assert!(reason.ends_with(cure), "{reason}");
}

/// A limiter that gives 500 permits at once. A part that is missing counts 1.
#[rstest]
#[case::sum("1 + 2*{header.x-n}", "7", Ok(15))]
#[case::product("3*{header.x-n}", "100", Ok(300))]
#[case::zero("3*{header.x-n}", "0", Ok(0))]
#[case::missing("1 + 3*{header.x-none} + {header.x-n}", "5", Ok(9))]
#[case::the_most("{header.x-n} + 1", "499", Ok(500))]
#[case::above(
    "{header.x-n} + 1",
    "500",
    Err("the cost `501` in `1 + {header.x-n}` is not between 0 and 500, ")
)]
#[case::word(
    "1 + 2*{header.x-n}",
    "five",
    Err("the cost `five` in `{header.x-n}` is not between 0 and 500, ")
)]
#[case::negative(
    "1 + 2*{header.x-n}",
    "-1",
    Err("the cost `-1` in `{header.x-n}` is not between 0 and 500, ")
)]
#[case::product_overflows(
    "1000000000*{header.x-n}",
    "9223372037",
    Err(
        "the cost of more than 9223372036854775807 in `1000000000*{header.x-n}` is not between 0 and 500, "
    )
)]
#[case::sum_overflows(
    "{header.x-n} + {header.x-n}",
    "9223372036854775807",
    Err(
        "the cost of more than 9223372036854775807 in `{header.x-n} + {header.x-n}` is not between 0 and 500, "
    )
)]
fn adds_up_a_request(#[case] text: &str, #[case] n: &str, #[case] expected: Result<i64, &str>) {
    let request = request("/", &[("x-n", n.as_bytes())]);
    let said = cost(text).of(&parts(&request), 500, "a");
    match expected {
        Ok(permits) => assert_eq!(said, Ok(permits)),
        Err(start) => {
            assert_eq!(said, Err(format!("{start}the most that the limiter `a` gives at once")));
        }
    }
}

/// A reserve is cut to what the limiter gives at once. `default` takes the place of each part that is missing or no number.
#[rstest]
#[case::sum("10 + 2*{header.x-n}", "7", Ok(24))]
#[case::missing("2*{header.x-none} + {header.x-n}", "5", Ok(85))]
#[case::word("1 + {header.x-n}", "five", Ok(41))]
#[case::cut("{header.x-n} + 1", "500", Ok(500))]
#[case::one_part_is_cut("{header.x-n}", "99999999999999999999", Ok(500))]
#[case::overflows(
    "2*{header.x-n}",
    "99999999999999999999",
    Err("the cost of more than 9223372036854775807 in `2*{header.x-n}`")
)]
fn adds_up_a_reserve(#[case] text: &str, #[case] n: &str, #[case] expected: Result<i64, &str>) {
    let request = request("/", &[("x-n", n.as_bytes())]);
    let cost = Cost::Reserved(Box::new(ReservedCost {
        reserve: Reserve::Sum(sum(text)),
        default: Some(40),
        settle: None,
    }));
    match (cost.of(&parts(&request), 500, "a"), expected) {
        (Err(said), Err(start)) => assert!(said.starts_with(start), "{said}"),
        (said, expected) => assert_eq!(said, expected.map_err(String::from)),
    }
}

/// Returns what the documents of an answer with the header `X-Cost: 7` say.
fn total(text: &str, documents: &[&str]) -> Option<i64> {
    let cost = Arc::new(TrueCost::parse_answer(text).expect("a true cost"));
    let head = request("/", &[("x-cost", b"7")]);
    let mut said = SaidCost::of_head(&cost, head.headers());
    documents.iter().for_each(|document| said.hear(document.as_bytes()));
    said.total()
}

#[rstest]
#[case::of_the_head("1 + 2*{response.header.x-cost}", &[], Some(15))]
#[case::of_the_body("{response.body./in} + 5*{response.body./out}", &[r#"{"in":3,"out":2}"#], Some(13))]
#[case::of_both("{response.header.x-cost} + {response.body./out}", &[r#"{"out":2}"#], Some(9))]
#[case::the_last_counts("{response.body./in} + {response.body./out}", &[r#"{"in":3,"out":2}"#, r#"{"in":9,"out":9}"#], Some(18))]
#[case::in_several_events("{response.body./in} + {response.body./out}", &[r#"{"in":3}"#, r#"{"out":1}"#, r#"{"out":2}"#, "{}"], Some(5))]
#[case::in_the_first_and_the_last(
    "{response.body./message/usage/in} + 5*{response.body./usage/out}",
    &[r#"{"message":{"usage":{"in":25,"out":1}}}"#, r#"{"usage":{"out":4}}"#, r#"{"usage":{"out":15}}"#],
    Some(100)
)]
#[case::a_part_is_missing("{response.body./in} + {response.body./out}", &[r#"{"in":3}"#], None)]
#[case::a_part_is_no_number("{response.body./in} + {response.body./out}", &[r#"{"in":3,"out":1.5}"#], None)]
#[case::a_header_is_missing("{response.header.x-none} + {response.body./out}", &[r#"{"out":2}"#], None)]
#[case::overflow("3*{response.body./n}", &[r#"{"n":4611686018427387904}"#], None)]
fn an_answer_says_its_cost_when_it_has_every_part(
    #[case] text: &str,
    #[case] documents: &[&str],
    #[case] expected: Option<i64>,
) {
    assert_eq!(total(text, documents), expected);
}

/// A term as it may be written.
fn term() -> impl Strategy<Value = String> {
    let part =
        prop::sample::select(&["{query.a+b}", "{header.x-n}", "{body./a/0}", "{path.id:int}"][..]);
    prop_oneof![
        (1..1000_i64).prop_map(|number| number.to_string()),
        part.clone().prop_map(str::to_owned),
        (1..=1_000_000_000_i64, part).prop_map(|(factor, part)| format!("{factor} * {part}")),
    ]
}

proptest! {
    /// A sum is printed as it can be read again.
    #[test]
    fn a_printed_sum_is_the_same_sum(terms in prop::collection::vec(term(), 1..=8)) {
        let sum = sum(&terms.join("+"));
        prop_assert_eq!(Sum::parse_request(&sum.to_string()), Ok(sum));
    }

    #[test]
    fn any_text_is_read_without_panic(text in "[{}*+0-9a-z./ é]{0,24}") {
        if let Ok(sum) = Sum::parse_request(&text) {
            prop_assert_eq!(Sum::parse_request(&sum.to_string()), Ok(sum));
        }
    }

    /// The total is that of integers without bounds, or none.
    #[test]
    fn a_total_never_wraps(factors in prop::collection::vec(1..=1_000_000_000_i64, 1..=7), value in 0..=i64::MAX) {
        let text: Vec<_> = factors.iter().map(|factor| format!("{factor}*{{header.x-n}}")).collect();
        let exact = factors.iter().map(|factor| i128::from(*factor) * i128::from(value)).sum::<i128>() + 1;
        let number = value.to_string();
        let request = request("/", &[("x-n", number.as_bytes())]);
        let said = cost(&format!("1 + {}", text.join(" + "))).of(&parts(&request), i64::MAX, "a");
        prop_assert_eq!(said.ok().map(i128::from), Some(exact).filter(|exact| *exact <= i128::from(i64::MAX)));
    }
}
