//! Compares our readings with those of real origins. Each origin is written down from its own sources, without use of our
//! code: the segments by which it looks up a resource, or `None` if it refuses the request. We may find more readings of a
//! path than the origins have, never fewer.

use super::*;
use proptest::prelude::*;
use std::sync::LazyLock;

/// Decodes all that is an escape; `None` where something is none and the origin minds.
fn unescape(path: &str, lenient: bool) -> Option<String> {
    let (mut out, mut rest) = (Vec::new(), path.as_bytes());
    while let Some((&byte, after)) = rest.split_first() {
        let code = after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let code = code.filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
        match (byte, code.and_then(|digits| u8::from_str_radix(digits, 16).ok())) {
            (b'%', Some(code)) => {
                out.push(code);
                rest = &after[2..];
            }
            (b'%', None) if !lenient => return None,
            _ => {
                out.push(byte);
                rest = after;
            }
        }
    }
    Some(String::from_utf8_lossy(&out).into_owned())
}

/// Splits, drops `.` and takes `..` back; `None` above the root where the origin minds.
fn resolve(path: &str, empties_vanish: bool, above_root: bool) -> Option<Vec<String>> {
    let mut out: Vec<String> = Vec::new();
    for segment in path.split('/').skip(1) {
        match segment {
            "." => {}
            "" if empties_vanish => {}
            ".." => {
                if out.pop().is_none() && !above_root {
                    return None;
                }
            }
            _ => out.push(segment.to_owned()),
        }
    }
    Some(out)
}

fn split(path: &str) -> Vec<String> {
    path.split('/').map(str::to_owned).collect()
}

/// nginx 1.27, ngx_http_parse_complex_uri: decodes, then slashes merge and dots resolve; `\` and `;` are data.
fn nginx(path: &str) -> Option<Vec<String>> {
    let path = unescape(path, false).filter(|path| !path.contains('\0'))?;
    resolve(&path, true, false)
}

/// Apache 2.4, ap_normalize_path and ap_unescape_url: an escaped slash is a 404, slashes merge.
fn apache(path: &str) -> Option<Vec<String>> {
    if path.to_ascii_lowercase().contains("%2f") {
        return None;
    }
    let path = unescape(path, false).filter(|path| !path.contains('\0'))?;
    resolve(&path, true, false)
}

/// Tomcat 10, CoyoteAdapter: parameters go from each segment, then escapes are decoded, then dots resolve.
/// `lax`: with encodedSolidusHandling=decode and allowBackslash.
fn tomcat(path: &str, lax: bool) -> Option<Vec<String>> {
    let plain = path.split('/').map(|segment| segment.split(';').next().unwrap_or_default());
    let plain = plain.collect::<Vec<_>>().join("/");
    if !lax && plain.to_ascii_lowercase().contains("%2f") {
        return None;
    }
    let mut path = unescape(&plain, false).filter(|path| !path.contains('\0'))?;
    if path.contains('\\') {
        if !lax {
            return None;
        }
        path = path.replace('\\', "/");
    }
    resolve(&path, true, false)
}

/// Node with `new URL(request.url, base)` (WHATWG URL): `\` separates, escaped dots are dots, empty segments stay;
/// then the router decodes each segment.
fn node(path: &str) -> Option<Vec<String>> {
    let dots = path.replace("%2e", ".").replace("%2E", ".");
    let mut out: Vec<String> = Vec::new();
    // An escaped dot is one only where nothing else is in its segment.
    for (segment, dotted) in path.split(['/', '\\']).zip(dots.split(['/', '\\'])).skip(1) {
        match dotted {
            "." => {}
            ".." => drop(out.pop()),
            _ => out.push(segment.to_owned()),
        }
    }
    out.iter().map(|segment| unescape(segment, true)).collect()
}

/// Go's net/http: decoded as a whole, then path.Clean.
fn go(path: &str) -> Option<Vec<String>> {
    resolve(&unescape(path, false)?, true, true)
}

/// gunicorn, uvicorn and Django: decoded as a whole, dots are data.
fn wsgi(path: &str) -> Option<Vec<String>> {
    Some(split(&unescape(path, true)?))
}

/// Werkzeug before a WSGI application: slashes merge.
fn werkzeug(path: &str) -> Option<Vec<String>> {
    Some(wsgi(path)?.into_iter().filter(|segment| !segment.is_empty()).collect())
}

/// Express: no more than it is, each segment decoded.
fn express(path: &str) -> Option<Vec<String>> {
    split(path).iter().map(|segment| unescape(segment, true)).collect()
}

/// IIS, http.sys: `%u` escapes too, `\` separates, slashes merge.
fn iis(path: &str) -> Option<Vec<String>> {
    let plain = path.replace("%u002f", "/").replace("%u002e", ".").replace("%u005c", "\\");
    let plain = plain.replace("%u0073", "s");
    let path = unescape(&plain, false)?.replace('\\', "/");
    resolve(&path, true, true)
}

/// RFC 3986 section 5.2.4 as written, unreserved characters decoded first (6.2.2.2).
fn rfc3986(path: &str) -> Option<Vec<String>> {
    let path = unescape_unreserved(path);
    resolve(&path, false, true)
}

/// Java's URI.normalize and the like: dots resolve as they are written, then escapes are decoded.
fn java(path: &str) -> Option<Vec<String>> {
    let segments = resolve(path, true, true)?;
    segments.iter().map(|segment| unescape(segment, true)).collect()
}

/// Envoy with normalize_path and merge_slashes, escaped slashes as they are.
fn envoy(path: &str) -> Option<Vec<String>> {
    let path = unescape_unreserved(path).replace('\\', "/");
    resolve(&path, false, false).map(|all| all.into_iter().filter(|s| !s.is_empty()).collect())
}

fn lower(segments: Vec<String>) -> Vec<String> {
    segments.iter().map(|segment| segment.to_lowercase()).collect()
}

/// nginx with `location ~* /search$`: PCRE folds case, and its `$` matches before a line feed at the end.
fn nginx_regex(path: &str) -> Option<Vec<String>> {
    let path = nginx(path)?.join("/").to_lowercase();
    let path = path.strip_suffix('\n').map(str::to_owned).unwrap_or(path);
    Some(path.split('/').map(str::to_owned).collect())
}

/// Caddy 2, MatchPath: decoded, in small letters, dots and spaces at the end cut off, then path.Clean.
fn caddy(path: &str) -> Option<Vec<String>> {
    let path = unescape(path, false)?.to_lowercase();
    resolve(path.trim_end_matches(['.', ' ']), true, true)
}

/// Starlette, Route: decoded as a whole by the server, then `^/search$` of Python's re, whose `$` matches before a line
/// feed at the end.
fn starlette(path: &str) -> Option<Vec<String>> {
    let path = unescape(path, true)?;
    Some(split(path.strip_suffix('\n').unwrap_or(&path)))
}

/// Express with its defaults: patterns have the flag `i`.
fn express_folding(path: &str) -> Option<Vec<String>> {
    express(path).map(lower)
}

/// PHP with PATH_INFO: the path is decoded as a whole, and looked up in any case.
fn php(path: &str) -> Option<Vec<String>> {
    wsgi(path).map(lower)
}

/// IIS before files: Windows drops dots and spaces at the end of each name.
fn windows(path: &str) -> Option<Vec<String>> {
    let trimmed = |segment: String| segment.trim_end_matches(['.', ' ']).to_lowercase();
    iis(path).map(|segments| segments.into_iter().map(trimmed).collect())
}

fn unescape_unreserved(path: &str) -> String {
    let mut out = path.to_owned();
    for (escape, plain) in [("%2e", "."), ("%2E", "."), ("%73", "s"), ("%76", "v"), ("%6a", "j")] {
        out = out.replace(escape, plain);
    }
    out
}

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
/// such as `;`, which other origins read differently: such a path is limited as its normal form is.
fn serves(table: &Table, routes: &[config::Route], segments: Vec<String>) -> Option<usize> {
    let length = wanted(segments.clone());
    if length > 0 {
        let is_wanted = |route: &config::Route| match &route.path {
            PathRule::Suffix(suffix) => suffix.len() == length,
            PathRule::Template(_) => false,
        };
        return routes.iter().position(is_wanted);
    }
    if segments.iter().any(|segment| segment.contains([';', '\\'])) {
        return None;
    }
    table.find(&Method::GET, None, &spelt(&segments))
}

/// The plain spelling of a path.
fn spelt(segments: &[String]) -> String {
    let escape = |segment: &String| {
        let escaped = segment.replace('%', "%25").replace('/', "%2F");
        let escaped = escaped.replace('?', "%3F").replace('#', "%23");
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
fn spellings(#[case] path: &str, #[case] expected: Result<usize, ()>) {
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
fn the_stricter_route(#[case] path: &str, #[case] expected: usize) {
    let (table, routes) = &TABLES[1];
    let covers = |one: usize, other: usize| routes[one].covers(&routes[other]);
    assert_eq!(table.find_covering(&Method::GET, None, path, covers), Ok(Some(expected)));
}

/// The segments by which each origin looks up a resource.
fn origins(path: &str) -> [(&'static str, Option<Vec<String>>); 19] {
    [
        ("nginx, regex", nginx_regex(path)),
        ("Caddy", caddy(path)),
        ("Starlette", starlette(path)),
        ("Express, folding", express_folding(path)),
        ("PHP", php(path)),
        ("Windows", windows(path)),
        ("nginx", nginx(path)),
        ("Apache", apache(path)),
        ("Tomcat", tomcat(path, false)),
        ("Tomcat, lax", tomcat(path, true)),
        ("Node", node(path)),
        ("Go", go(path)),
        ("WSGI", wsgi(path)),
        ("Werkzeug", werkzeug(path)),
        ("Express", express(path)),
        ("IIS", iis(path)),
        ("RFC 3986", rfc3986(path)),
        ("Java", java(path)),
        ("Envoy", envoy(path)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    #[test]
    fn no_spelling_gets_past_the_limiters_of_the_path_that_an_origin_serves(
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
    fn no_spelling_gets_past_the_limiters_and_the_buckets_of_a_template(
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
