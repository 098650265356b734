use super::{difference::ALL, *};
use proptest::prelude::*;
use rstest::rstest;

#[rstest]
#[case::plain("/v2/search", "/v2/search")]
#[case::root("/", "/")]
#[case::empty("", "/")]
#[case::double("//v2///search", "/v2/search")]
#[case::trailing("/v2/search/", "/v2/search")]
#[case::dot("/v2/./search/.", "/v2/search")]
#[case::dot_dot("/v2/x/../search", "/v2/search")]
#[case::above_root("/../../search", "/search")]
#[case::escaped_dots("/v2/x/%2e%2E/search", "/v2/search")]
#[case::unreserved("/v2/%73e%61rch", "/v2/search")]
#[case::sub_delims("/a%40b%3A", "/a@b:")]
#[case::parameters("/v2/search;x=1", "/v2/search")]
#[case::parameters_within("/v2;a/search;b;c", "/v2/search")]
#[case::parameters_on_dots("/v2/x/..;a/search", "/v2/search")]
#[case::slash_is_data("/v2%2fsearch", "/v2%2Fsearch")]
#[case::percent_is_data("/%2573earch", "/%2573earch")]
#[case::semicolon_is_data("/search%3bx", "/search%3Bx")]
#[case::nul("/search%00", "/search%00")]
#[case::backslash("/v2\\search", "/v2/search")]
#[case::broken_escape("/%zz/%4", "/%25zz/%254")]
#[case::escape_of_an_escape("/%0%61", "/%250a")]
#[case::utf8("/caf%c3%a9", "/café")]
#[case::dots_in_names("/.well-known/a..b", "/.well-known/a..b")]
fn normalises_paths(#[case] path: &str, #[case] expected: &str) {
    assert_eq!(String::from_utf8_lossy(&normal(path)), expected);
}

#[rstest]
#[case::any("*", Ok(Suffix::Any))]
#[case::segments("/v2/search/", Ok(Suffix::Segments((*b"/v2/search").into())))]
#[case::escaped("/%73earch", Ok(Suffix::Segments((*b"/search").into())))]
#[case::characters(".json", Ok(Suffix::Characters((*b".json").into())))]
#[case::empty("", Err("is empty; write \"*\" for every path"))]
fn reads_suffixes(#[case] text: &str, #[case] expected: Result<Suffix, &'static str>) {
    assert_eq!(Suffix::parse(text), expected.map_err(Into::into));
}

#[rstest]
#[case::plain("/v2/search", &[])]
#[case::escapes_read_in_one_way("/caf%c3%a9/", &[])]
#[case::capitals("/V2/Search", &["/v2/search"])]
#[case::escaped_capitals("/%53earch", &["/search"])]
#[case::kelvins("/%e2%84%aaeys", &["/keys"])]
#[case::long_s("/\u{17f}earch", &["/search"])]
#[case::dots_and_spaces("/v2./search.%20", &["/v2./search", "/v2/search"])]
#[case::dots_alone("/search/...", &["/search"])]
#[case::dots_before_the_end("/search/..", &["/search"])]
#[case::a_line_end("/search%0a", &["/search"])]
#[case::a_nul("/search%00.json", &["/search"])]
#[case::a_nul_before_dots("/a/b%00/..", &["/a/b%00", "/a/b"])]
#[case::a_wide_nul("/search%u0000x", &["/search\0x", "/search"])]
#[case::an_escape_of_an_escaped_nul("/search%2500", &[])]
#[case::semicolon("/a;x/b", &["/a;x/b"])]
#[case::escaped_slashes("/a%2fb%5cc", &["/a/b/c", "/a/b\\c"])]
#[case::empty_before_dots("/a//..", &["/a"])]
#[case::backslash("/x/a\\b/..", &["/x", "/x/a/b", "/x/a\\b"])]
#[case::escaped_dots("/a/%2e%2e/..", &["/a", "/a/.."])]
#[case::percent_u("/%u0061%u002fb", &["/a/b"])]
fn lists_further_readings_of_a_path(#[case] path: &str, #[case] expected: &[&str]) {
    let normal = normal(path);
    let mut all: Vec<String> = Vec::new();
    for (reading, _) in Paths::default().readings(path) {
        let text = String::from_utf8(reading).unwrap();
        if text.as_bytes() != &*normal && !all.contains(&text) {
            all.push(text);
        }
    }
    assert_eq!(all, expected);
}

#[rstest]
#[case::separator(Paths::new(Some(true), None, None), "/a%2Fb", "/a/b")]
#[case::folded(Paths::new(None, Some(true), None), "/A%2Fb", "/a%2fb")]
#[case::stripped(Paths::new(None, None, Some(true)), "/a./B.", "/a/B")]
#[case::plain(Paths::new(Some(false), Some(false), Some(false)), "/A./b%2fc.", "/A./b%2Fc.")]
fn each_known_origin_has_one_normal_form(
    #[case] paths: Paths,
    #[case] path: &str,
    #[case] expected: &str,
) {
    assert_eq!(String::from_utf8_lossy(&paths.normal(path)), expected);
    let strict = Paths::new(Some(false), Some(false), Some(false));
    let others: Vec<_> = strict.readings(path).map(|(reading, _)| reading).collect();
    assert!(others.iter().all(|other| *other == *strict.normal(path)), "{others:?}");
}

#[rstest]
#[case::as_it_is("/v2/a", "/v2/a")]
#[case::capitals("/V2/A", "/v2/a")]
#[case::dots("/v2./a.", "/v2/a")]
#[case::a_slash_is_data("/v2%2fa", "/v2%2fa")]
fn keys_have_one_form_for_all_spellings(#[case] path: &str, #[case] expected: &str) {
    assert_eq!(String::from_utf8_lossy(&Paths::default().key_form(path)), expected);
}

/// One request must not cost as much as thousands: what [`Paths::is_legible`] accepts has at most 128 readings, and all of
/// them together read at most 64 KiB of path.
#[rstest]
#[case::semicolons(";x/")]
#[case::slashes("a%2fb/")]
#[case::dots("./")]
#[case::dots_before_dots("a/..%2e/")]
#[case::nuls("%00/")]
#[case::wide("%u002e/")]
#[case::all("A;x\\%2f..%2e//. %0a%00%u002f/")]
fn the_work_for_a_path_is_bounded(#[case] unit: &str) {
    let paths = Paths::default();
    for times in [1, 2, 4, 8, 32, 128, 512, 2048] {
        let path = format!("/{}", unit.repeat(times));
        if !paths.is_legible(&path) {
            continue;
        }
        let readings = paths.readings(&path).count();
        assert!(readings <= 128, "{readings} readings of {path}");
        assert!(readings * path.len() <= 64 << 10, "{readings} readings of {} bytes", path.len());
    }
    let longest = format!("/{}", unit.repeat(8192 / unit.len()));
    let is_refused = !paths.is_legible(&longest);
    assert!(is_refused || paths.readings(&longest).count() <= 8, "{unit}");
}

/// A path in another spelling, which many origins read as the plain one. The last two disguises are those of whole paths alone.
pub(crate) fn disguise(segments: &[String], disguises: &[u8]) -> String {
    let disguised = segments.iter().zip(disguises).map(|(s, disguise)| match disguise {
        0 => format!("//{s}"),
        1 => format!("/./{s}"),
        2 => format!("/x/../{s}"),
        3 => format!("/%2e/{s};a=b"),
        4 => s.bytes().fold("/".to_owned(), |all, byte| format!("{all}%{byte:02x}")),
        5 => format!("/{s}/y/%2E%2e"),
        6 => format!("\\{s}"),
        _ => format!("/{s}/"),
    });
    disguised.collect()
}

proptest! {
    #[test]
    fn readings_are_few_and_no_longer_than_the_path(path in "/[a-cA./\\\\;%0-9ef]{0,24}") {
        let all: Vec<_> = Paths::default().readings(&path).map(|(reading, _)| reading).collect();
        prop_assert!(all.len() < 1 << ALL.count_ones());
        // A percent sign that begins no escape is written as one.
        prop_assert!(all.iter().all(|reading| reading.len() <= 3 * path.len()));
        prop_assert!(all.iter().all(|reading| reading[0] == b'/'));
    }

    #[test]
    fn normalising_twice_changes_nothing(path in "/[a-c./\\\\;%0-9ef]{0,24}") {
        let once = normal(&path).into_owned();
        let once = String::from_utf8_lossy(&once).into_owned();
        prop_assert_eq!(normal(&once), once.as_bytes());
    }

    #[test]
    fn the_fast_path_agrees_with_full_normalisation(path in "(/[a-c.]{0,3}){1,5}") {
        let slow = normal(&format!("{path};")).into_owned();
        prop_assert_eq!(normal(&path).into_owned(), slow);
    }

    /// Spellings that origins commonly serve as one: each step of a disguise changes nothing.
    #[test]
    fn disguised_paths_have_one_normal_form(
        segments in prop::collection::vec("[a-z]{1,4}", 1..5),
        disguises in prop::collection::vec(0..8u8, 5),
    ) {
        let plain: String = segments.iter().map(|segment| format!("/{segment}")).collect();
        let disguised = disguise(&segments, &disguises);
        prop_assert_eq!(normal(&disguised), normal(&plain));
    }
}
