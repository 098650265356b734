use super::*;
use crate::path::normal;
use proptest::prelude::*;
use rstest::rstest;

fn template(text: &str) -> PathTemplate {
    PathTemplate::parse(text, &Paths::default()).expect("a template")
}

#[rstest]
#[case::one_segment("/channels/{channel}", "/channels/5", Some("channel=5"))]
#[case::within("/channels/{c}/messages/{m}", "/channels/5/messages/7", Some("c=5 m=7"))]
#[case::too_short("/channels/{c}/messages/{m}", "/channels/5/messages", None)]
#[case::too_long("/channels/{c}", "/channels/5/messages", None)]
#[case::not_within("/channels/{c}", "/v2/channels/5", None)]
#[case::rest("/files/{*rest}", "/files/a/b/c", Some("rest=a/b/c"))]
#[case::rest_is_one_segment_or_more("/files/{*rest}", "/files", None)]
#[case::all("/{*rest}", "/a", Some("rest=a"))]
#[case::all_but_the_root("/{*rest}", "/", None)]
#[case::root("/", "/", Some(""))]
#[case::root_alone("/", "/a", None)]
#[case::beginning("/bot{id}/send", "/bot12/send", Some("id=12"))]
#[case::beginning_alone("/bot{id}/send", "/bot/send", None)]
#[case::another_beginning("/bot{id}/send", "/robot/send", None)]
#[case::braces("/{{a}}/{b}", "/{a}/x", Some("b=x"))]
#[case::slash_at_the_end("/a/{b}/", "/a/x", Some("b=x"))]
#[case::two_slashes("/a//{b}", "/a/x", Some("b=x"))]
#[case::escaped("/%61/{b}", "/a/x", Some("b=x"))]
#[case::escaped_slash("/a%2fb/{c}", "/a%2Fb/x", Some("c=x"))]
#[case::case_of_keys("/A/{b}", "/A/X", Some("b=x"))]
fn a_template_matches_paths_and_finds_values(
    #[case] text: &str,
    #[case] path: &str,
    #[case] expected: Option<&str>,
) {
    let template = template(text);
    assert_eq!(template.matches(path.as_bytes()), expected.is_some());
    let value = |name| template.value(name, path, &Paths::default());
    let found = template.matches(path.as_bytes()).then(|| {
        let values = template.names().iter().filter_map(|name| Some((name, value(name)?)));
        let all = values.map(|(name, value)| format!("{name}={}", String::from_utf8_lossy(&value)));
        all.collect::<Vec<_>>().join(" ")
    });
    assert_eq!(found.as_deref(), expected);
}

#[rstest]
#[case::no_slash("a/{b}", "must begin with `/`: it is compared with the whole path of a request")]
#[case::query("/a?b", "holds one of ? # ; \\ or a control character")]
#[case::not_last("/{*rest}/a", "has a segment after `{*...}`")]
#[case::rest_after_characters("/a{*rest}", "has characters before `{*...}`")]
#[case::characters_after("/{a}.json", "has characters after `{a}` in its segment")]
#[case::two_in_a_segment("/{a}{b}", "has characters after `{a}` in its segment")]
#[case::open("/{a", "has a `{` without its `}`")]
#[case::open_over_segments("/{a/b}", "has a `{` without its `}`")]
#[case::close("/a}", "has a `}` without its `{`")]
#[case::no_name("/{}", "has the parameter `{}`; a name holds letters")]
#[case::no_name_of_the_rest("/{*}", "has the parameter `{}`; a name holds letters")]
#[case::bad_name("/{a.b}", "has the parameter `{a.b}`; a name holds letters")]
#[case::twice("/{a}/{a}", "has two parameters `{a}`")]
#[case::stars(
    "/*/{a}*",
    "may not hold `*`: a path is compared as written; one segment is `{name}`"
)]
#[case::dots("/a/../{b}", "can never match: paths are compared without segments such as `..`")]
fn refuses_wrong_templates_with_a_reason(#[case] text: &str, #[case] expected: &str) {
    let reason = PathTemplate::parse(text, &Paths::default()).expect_err("a mistake");
    assert!(reason.starts_with(expected), "{reason}");
}

#[rstest]
#[case("/a/{x}", "/a/{y}", Relation::Same)]
#[case("/a/b", "/a/{y}", Relation::MoreLiteral)]
#[case("/a/{x}", "/a/{*y}", Relation::MoreLiteral)]
#[case("/a/{x}/b", "/{*y}", Relation::MoreLiteral)]
#[case("/bot{x}", "/{y}", Relation::MoreLiteral)]
#[case("/bot{x}", "/b{y}", Relation::MoreLiteral)]
#[case("/bot5", "/bot{y}", Relation::MoreLiteral)]
#[case("/a/{x}", "/{y}/b", Relation::Crossing)]
#[case("/a/{*x}", "/{y}/b/c", Relation::Crossing)]
#[case("/{x}/{*y}", "/{*z}", Relation::MoreLiteral)]
#[case("/a/{x}", "/a/{x}/b", Relation::Apart)]
#[case("/a/{*x}", "/a", Relation::Apart)]
#[case("/a/{x}", "/b/{x}", Relation::Apart)]
#[case("/bot{x}", "/bot", Relation::Apart)]
fn compares_two_templates(#[case] one: &str, #[case] other: &str, #[case] expected: Relation) {
    let (one, other) = (template(one), template(other));
    let reverse = match expected {
        Relation::MoreLiteral => Relation::LessLiteral,
        same => same,
    };
    assert_eq!((one.relation(&other), other.relation(&one)), (expected, reverse));
}

fn templates() -> impl Strategy<Value = String> {
    let segment = prop::sample::select(vec!["a", "b", "{}", "b{}"]);
    let rest = prop::option::of(Just("{*}"));
    (prop::collection::vec(segment, 1..4), rest).prop_map(|(segments, rest)| {
        let named = segments.iter().chain(rest.iter()).enumerate();
        named.map(|(i, segment)| format!("/{}", segment.replace('}', &format!("p{i}}}")))).collect()
    })
}

/// Some origins cut spaces off, so that a segment of spaces alone has no value, in any spelling.
#[rstest]
#[case::alone("/v2/%20")]
#[case::parameters("/v2/%20;")]
#[case::before_a_slash("/v2/%20/")]
#[case::with_a_dot("/v2/%20.")]
fn spaces_alone_do_not_match_a_parameter(#[case] path: &str) {
    let paths = Paths::default().with_dot_segments();
    assert_eq!(template("/v2/{x}").value("x", path, &paths), None);
}

#[rstest]
#[case("/v2/a%20")]
#[case("/v2/a%20;b")]
#[case("/v2/a.%20")]
fn spaces_at_the_end_are_no_part_of_a_value(#[case] path: &str) {
    let paths = Paths::default().with_dot_segments();
    let value = template("/v2/{x}").value("x", path, &paths);
    assert_eq!(value.as_deref(), Some(&b"a"[..]));
}

proptest! {
    /// A template matches the paths and finds the values that matchit does.
    #[test]
    fn templates_match_as_in_matchit(text in templates(), path in "(/[ab]{1,2}){1,4}") {
        let mut router = matchit::Router::new();
        router.insert(text.as_str(), ()).expect("its syntax");
        let own = template(&text);
        let values = own.captures(path.as_bytes());
        let theirs = router.at(&path).ok();
        let theirs = theirs.map(|found| {
            let all = found.params.iter().map(|(_, value)| value.as_bytes().to_vec());
            all.collect::<Vec<_>>()
        });
        // It lets a parameter be empty after characters, as `x` of `b{x}` in `/b`.
        let theirs = theirs.filter(|values| values.iter().all(|value| !value.is_empty()));
        let values = values.map(|all| all.into_iter().map(<[u8]>::to_vec).collect::<Vec<_>>());
        prop_assert_eq!(values, theirs);
    }

    /// The relation of two templates is that of the paths that they match.
    #[test]
    fn a_more_literal_template_matches_fewer_paths(
        texts in [templates(), templates()],
        path in "(/[ab]{1,2}){1,4}",
    ) {
        let [one, other] = texts.map(|text| template(&text));
        let [first, second] = [&one, &other].map(|template| template.matches(path.as_bytes()));
        match one.relation(&other) {
            Relation::Apart => prop_assert!(!(first && second)),
            Relation::Same => prop_assert_eq!(first, second),
            Relation::MoreLiteral => prop_assert!(!first || second),
            Relation::LessLiteral => prop_assert!(!second || first),
            Relation::Crossing => {}
        }
    }

    /// All spellings of a path that have one normal form give one value.
    #[test]
    fn all_spellings_of_a_path_give_one_value(
        segment in "([a-c.;0-9]|%20|%[2-7][0-9A-Fa-f]){1,8}",
        mark in "[;/]{0,2}",
        has_templates: bool,
    ) {
        let paths = Paths::default();
        let paths = if has_templates { paths.with_dot_segments() } else { paths };
        let spelling = format!("//v2/./{segment}{mark}");
        let plain = String::from_utf8_lossy(&normal(&spelling)).into_owned();
        let template = template("/v2/{x}");
        let value = |path: &str| template.value("x", path, &paths).map(std::borrow::Cow::into_owned);
        // Only the route of another reading has a value otherwise.
        prop_assume!(template.captures(&paths.key_form(&spelling)).is_some());
        prop_assert_eq!(value(&spelling), value(&plain.replace(' ', "%20")));
    }
}
