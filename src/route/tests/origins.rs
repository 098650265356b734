//! Compares our readings with those of real origins (`models`). We may find more readings of a path than the origins have,
//! never fewer.

mod models;

use super::*;
use models::origins;
use proptest::prelude::*;
use std::sync::LazyLock;

/// How many bytes of its suffix the route of these segments has, by no more than its definition.
fn wanted(mut segments: Vec<String>) -> usize {
    // Slashes too many make no other resource.
    segments.retain(|segment| !segment.is_empty());
    let Some((last, before)) = segments.split_last() else { return 0 };
    let before = before.last().map_or("", String::as_str);
    match (before, last.as_str()) {
        ("search", "x") => "/search/x".len(),
        ("v2", "search") => "/v2/search".len(),
        (_, "search") => "/search".len(),
        (_, last) if last.ends_with("s.json") => "s.json".len(),
        _ => 0,
    }
}

const PIECES: [&str; 43] = [
    "SEARCH",
    "seArch",
    "%53earch",
    "V2",
    "s.JSON",
    "X",
    ".",
    "%20",
    "%0a",
    "%2Fsearch",
    "search.",
    "/",
    "/",
    "/",
    "//",
    "\\",
    "%2f",
    "%2F",
    "%5c",
    "search",
    "search",
    "%73earch",
    "v2",
    "%762",
    "s.json",
    "s%2ejson",
    "s.%6ason",
    "x",
    ".",
    "..",
    "..",
    "%2e",
    "%2e%2E",
    "..",
    ";",
    ";x",
    "%3b",
    "%00",
    "%25",
    "%u002f",
    "%u0073earch",
    "é",
    "%c3%a9",
];

/// The limiters of four routes. In the first list each route has one; in the second list a route with a longer suffix also has
/// those of the routes with shorter ones.
const LIMITERS: [[&str; 4]; 2] = [["a", "b", "c", "d"], ["a, b, c, d", "b, d", "c, d", "d"]];

static TABLES: LazyLock<Vec<(Table, Vec<config::Route>)>> = LazyLock::new(|| {
    let tables = LIMITERS.iter().map(|[v2, search, json, any]| {
        let text = format!(
            "upstream: http://a\nlimiters: {{ a: 1/s, b: 1/s, c: 1/s, d: 1/s }}\nroutes:\n\
             - {{ suffix: /v2/search, limiters: [{v2}] }}\n- {{ suffix: /search, limiters: [{search}] }}\n\
             - {{ suffix: s.json, limiters: [{json}] }}\n- {{ suffix: /x/..., name: free }}\n\
             - {{ suffix: /x/;x, name: free too }}\n- {{ suffix: \"*\", limiters: [{any}] }}\n"
        );
        let text = text.replace("/x/;x", "/search/x").replace("/x/...", "/x/search/x");
        let config = Config::parse(&text, "test", Path::new("."), &|_| None).expect("a config");
        (Table::new(&config.routes, config.paths), config.routes)
    });
    tables.collect()
});

/// Finds the route of the segments that an origin sees. `None` for segments that no route names and that hold characters
/// such as `;`, which other origins read differently: such a path is limited as its normal form is. The same holds for dot
/// segments that an origin leaves as they are ([`Paths::with_dot_segments`]): to Starlette `/v2/./search` is no `/v2/search`.
fn serves(table: &Table, routes: &[config::Route], segments: Vec<String>) -> Option<usize> {
    if segments.iter().any(|segment| [".", ".."].contains(&&**segment)) {
        return None;
    }
    let length = wanted(segments.clone());
    if length > 0 {
        let is_wanted = |route: &config::Route| match &route.path {
            PathRule::Suffix(suffix) => suffix.len() == length,
            PathRule::Template(_) | PathRule::Descriptor => false,
        };
        return routes.iter().position(is_wanted);
    }
    if segments.iter().any(|segment| segment.contains([';', '\\'])) {
        return None;
    }
    table.find(&Method::GET, None, &spelt(&segments))
}

/// The plain spelling of a path, as a client can send it: no request line has a space within its path.
fn spelt(segments: &[String]) -> String {
    let escape = |segment: &String| {
        let escaped = segment.replace('%', "%25").replace('/', "%2F");
        let escaped = escaped.replace('?', "%3F").replace('#', "%23").replace(' ', "%20");
        escaped.replace('\0', "%00").replace('\n', "%0A")
    };
    segments.iter().map(|segment| format!("/{}", escape(segment))).collect()
}

/// Routes with templates. In the first list each has a limiter of its own; in the second list all have one limiter, whose key
/// is a parameter of the path.
const TEMPLATE_LIMITERS: [[&str; 5]; 2] = [["a", "b", "c", "d", "e"], ["k", "k", "d", "k", "e"]];

static TEMPLATE_TABLES: LazyLock<Vec<(Table, Config)>> = LazyLock::new(|| {
    let configs = TEMPLATE_LIMITERS.iter().map(|[within, one, literal, rest, any]| {
        let text = format!(
            "upstream: http://a\nlimiters: {{ a: 1/s, b: 1/s, c: 1/s, d: 1/s, e: 1/s, \
             k: {{ rate: 1/s, key: '{{path.id}}' }} }}\nroutes:\n\
             - {{ path: '/v2/{{id}}/search', limiters: [{within}] }}\n\
             - {{ path: '/v2/{{id}}', limiters: [{one}] }}\n\
             - {{ path: '/v2/search', limiters: [{literal}] }}\n\
             - {{ path: '/x/{{*id}}', limiters: [{rest}] }}\n\
             - {{ suffix: \"*\", limiters: [{any}] }}\n"
        );
        let config = Config::parse(&text, "test", Path::new("."), &|_| None).expect("a config");
        (Table::new(&config.routes, config.paths), config)
    });
    configs.collect()
});

/// The route of a path among those of [`TEMPLATE_TABLES`], by no more than its definition.
fn of_templates(segments: &[String]) -> usize {
    let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
    match &segments[..] {
        ["v2", "search"] => 2,
        ["v2", _] => 1,
        ["v2", _, "search"] => 0,
        ["x", _, ..] => 3,
        _ => 4,
    }
}

#[rstest]
#[case::parameters("/v2/search;x=1", Ok(0))]
#[case::parameters_and_slash("/search/;x", Ok(1))]
#[case::backslash("/x\\search", Ok(1))]
#[case::dots("/x/../search/.", Ok(1))]
#[case::empty("//v2//search//", Ok(0))]
#[case::escaped_slash("/x%2fx", Ok(5))]
#[case::escaped_slash_before_a_suffix("/v2%2fsearch", Err(()))]
#[case::capitals("/x/SearcH", Err(()))]
#[case::capitals_before_a_suffix("/V3/search", Ok(1))]
#[case::capitals_elsewhere("/x/Research", Ok(5))]
#[case::dot_at_the_end("/search.", Err(()))]
#[case::line_end("/search%0a", Err(()))]
#[case::dots_after_an_empty_segment("/search//..", Err(()))]
#[case::dots_behind_parameters("/search/;/..", Err(()))]
#[case::a_longer_suffix_of_another_reading("/a/search/x/search/x//..//..//..", Ok(1))]
#[case::an_end_of_parameters("/x;s.json", Err(()))]
fn finds_one_route_for_all_readings_or_none(
    #[case] path: &str,
    #[case] expected: Result<usize, ()>,
) {
    let (table, routes) = &TABLES[0];
    let covers = |one: usize, other: usize| routes[one].covers(&routes[other]);
    let found = table.find_covering(&Method::GET, None, path, covers);
    assert_eq!(found.map(|route| route.expect("a route")).map_err(|_| ()), expected);
}

/// Where one of the routes has all limiters of the others, it is the one.
#[rstest]
#[case::dots_after_an_empty_segment("/search//..", 1)]
#[case::dots_behind_parameters("/v2/search/;/..", 0)]
#[case::an_end_of_parameters("/x;s.json", 2)]
#[case::escaped_slash("/v2%2fsearch", 0)]
#[case::capitals("/x/SEARCH", 1)]
#[case::capitals_of_characters("/x/aS.JSON", 2)]
#[case::dots_and_spaces("/V2/search.%20", 0)]
#[case::line_end("/search%0a", 1)]
#[case::line_end_before_dots("/search%0a/.", 1)]
fn ambiguous_paths_take_the_stricter_route(#[case] path: &str, #[case] expected: usize) {
    let (table, routes) = &TABLES[1];
    let covers = |one: usize, other: usize| routes[one].covers(&routes[other]);
    assert_eq!(table.find_covering(&Method::GET, None, path, covers), Ok(Some(expected)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    #[test]
    fn no_spelling_evades_the_limiters_of_the_served_path(
        pieces in prop::collection::vec(prop::sample::select(&PIECES[..]), 1..10),
    ) {
        let path = format!("/{}", pieces.concat());
        let origins = origins(&path);
        for (table, routes) in TABLES.iter() {
            let covers = |one: usize, other: usize| routes[one].covers(&routes[other]);
            let Ok(found) = table.find_covering(&Method::GET, None, &path, covers) else { continue };
            let found = found.expect("a route");
            for (origin, segments) in &origins {
                let Some(segments) = segments else { continue };
                let Some(serves) = serves(table, routes, segments.clone()) else { continue };
                prop_assert!(covers(found, serves), "{path}: {origin} sees {segments:?}");
            }
        }
    }

    #[test]
    fn no_spelling_evades_the_limiters_and_buckets_of_a_template(
        pieces in prop::collection::vec(prop::sample::select(&PIECES[..]), 1..10),
    ) {
        let path = format!("/{}", pieces.concat());
        let origins = origins(&path);
        for (table, config) in TEMPLATE_TABLES.iter() {
            let routes = &config.routes;
            let covers = |one: usize, other: usize| routes[one].covers(&routes[other]);
            let find = |path: &str| table.find_covering(&Method::GET, None, path, covers);
            let bucket = |route: usize, path: &str| {
                let template = routes[route].path.template().filter(|_| routes[route].captures)?;
                Some(template.value("id", path, &config.paths)?.into_owned())
            };
            let Ok(found) = find(&path) else { continue };
            let found = found.expect("a route");
            for (origin, segments) in &origins {
                let Some(mut segments) = segments.clone() else { continue };
                segments.retain(|segment| !segment.is_empty());
                // Keys have the normal form of such segments.
                if segments.iter().any(|segment| segment.contains([';', '\\'])) {
                    continue;
                }
                let serves = of_templates(&segments);
                // No plain spelling has dot segments. Without a template for them, the normal form decides.
                let is_dots = |segment: &String| matches!(segment.as_str(), "." | "..");
                if serves == 4 && segments.iter().any(is_dots) {
                    continue;
                }
                prop_assert!(covers(found, serves), "{path}: {origin} sees {segments:?}");
                // These two models decode no more than they need for suffixes.
                let is_decoded = !matches!(*origin, "RFC 3986" | "Envoy")
                    || !segments.iter().any(|segment| segment.contains('%'));
                let plain = spelt(&segments);
                if is_decoded
                    && find(&plain) == Ok(Some(serves)) {
                    let (own, its) = (bucket(found, &path), bucket(serves, &plain));
                    prop_assert_eq!(own, its, "{}: {} sees {:?}", path, origin, segments);
                }
            }
        }
    }
}
