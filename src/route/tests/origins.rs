//! What origins make of a path, each written down from its own sources and by nobody who knows ours: the segments that
//! it looks a resource up by, or `None` where it refuses the request. Ours may see more in a path, never less.

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

/// Java's URI.normalize and the like: dots resolve as they stand, then escapes are decoded.
fn java(path: &str) -> Option<Vec<String>> {
    let segments = resolve(path, true, true)?;
    segments.iter().map(|segment| unescape(segment, true)).collect()
}

/// Envoy with normalize_path and merge_slashes, escaped slashes as they are.
fn envoy(path: &str) -> Option<Vec<String>> {
    let path = unescape_unreserved(path).replace('\\', "/");
    resolve(&path, false, false).map(|all| all.into_iter().filter(|s| !s.is_empty()).collect())
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
    // A slash at the end makes no other resource.
    segments.retain({
        let last = segments.iter().rposition(|segment| !segment.is_empty());
        let mut i = 0;
        move |_| {
            i += 1;
            last.is_some_and(|last| i <= last + 1)
        }
    });
    let Some((last, before)) = segments.split_last() else { return 0 };
    let before = before.last().map_or("", String::as_str);
    match (before, last.as_str()) {
        ("v2", "search") => "/v2/search".len(),
        (_, "search") => "/search".len(),
        (_, last) if last.ends_with("s.json") => "s.json".len(),
        _ => 0,
    }
}

const PIECES: [&str; 32] = [
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

static TABLE: LazyLock<(Table, Vec<String>)> = LazyLock::new(|| {
    table(
        "- { suffix: /v2/search }\n- { suffix: /search }\n- { suffix: s.json }\n- { suffix: \"*\" }",
    )
});

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn no_spelling_gets_past_the_route_of_the_path_that_an_origin_serves(
        pieces in prop::collection::vec(prop::sample::select(&PIECES[..]), 1..10),
    ) {
        let path = format!("/{}", pieces.concat());
        let (table, names) = &*TABLE;
        let found = table.find(&Method::GET, None, &path).expect("a route");
        let found = if names[found] == "*" { 0 } else { names[found].len() };
        let origins: [(&str, Option<Vec<String>>); 13] = [
            ("nginx", nginx(&path)),
            ("Apache", apache(&path)),
            ("Tomcat", tomcat(&path, false)),
            ("Tomcat, lax", tomcat(&path, true)),
            ("Node", node(&path)),
            ("Go", go(&path)),
            ("WSGI", wsgi(&path)),
            ("Werkzeug", werkzeug(&path)),
            ("Express", express(&path)),
            ("IIS", iis(&path)),
            ("RFC 3986", rfc3986(&path)),
            ("Java", java(&path)),
            ("Envoy", envoy(&path)),
        ];
        for (origin, segments) in origins {
            let Some(segments) = segments else { continue };
            let wanted = wanted(segments.clone());
            prop_assert!(found >= wanted, "{path}: {origin} sees {segments:?}");
        }
    }
}
