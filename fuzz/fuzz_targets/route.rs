//! The table of routes: it finds the same route as a look at every route, also for a disguised path.
#![no_main]

use http::Method;
use libfuzzer_sys::fuzz_target;
use paceway::{
    config::{Config, Route},
    path::{PathRule, Suffix, normal},
    route::{Table, host_of},
};
use std::{cmp::Reverse, path::Path, sync::LazyLock};

const ROUTES: &str = "upstream: http://a\nroutes:
- { suffix: /search }
- { suffix: /search, methods: [GET], name: get }
- { suffix: /search, methods: [GET, POST], name: get-post }
- { suffix: /search, host: a.example, name: a }
- { suffix: /search, host: a.example, methods: [GET], name: a-get }
- { suffix: /v2/search }
- { suffix: /v2/search, host: b.example, name: b }
- { suffix: /a/b/c }
- { suffix: /b/c, methods: [PUT] }
- { suffix: /c }
- { suffix: / }
- { suffix: .json }
- { suffix: search.json, methods: [POST] }
- { suffix: h }
- { suffix: c/d }
- { suffix: /%2f }
- { path: '/a/{x}/c/{*y}' }
- { path: '/{x}/search', host: b.example, name: x }
- { suffix: '*', methods: [DELETE] }
- { suffix: '*', host: '[::1]', name: six }
";

static FOUND: LazyLock<(Vec<Route>, Table)> = LazyLock::new(|| {
    let config = Config::parse(ROUTES, "routes", Path::new("."), &|_| None).expect("a config");
    let table = Table::new(&config.routes, config.paths);
    (config.routes, table)
});

fuzz_target!(|data: &[u8]| {
    let Some((choices, rest)) = data.split_at_checked(2) else { return };
    let Ok(text) = std::str::from_utf8(rest) else { return };
    let methods = [Method::GET, Method::POST, Method::PUT, Method::DELETE, Method::HEAD];
    let method = &methods[usize::from(choices[0]) % methods.len()];
    let (authority, path) = text.split_once('\n').unwrap_or(("", text));
    let fixed = ["a.example", "B.example:80", "[::1]", "[::1]:8080", "other"];
    let host = match choices[1] % 8 {
        0 => None,
        n @ 1..=5 => Some(host_of(fixed[usize::from(n) - 1])),
        _ => Some(host_of(authority)),
    };
    let (routes, table) = &*FOUND;
    let found = table.find(method, host, path);
    assert_eq!(found, slowly(routes, method, host, path), "{method} {host:?} {path:?}");
    if path.starts_with('/') {
        let disguised = format!("/.{};x", path.replace('/', "//"));
        // The normal form removes the `.`, the empty segments and the parameters of this disguise.
        assert_eq!(found, table.find(method, host, &disguised), "{path:?} as {disguised:?}");
    }
});

/// Follows the rule of the documentation, word by word.
fn slowly(routes: &[Route], method: &Method, host: Option<&str>, path: &str) -> Option<usize> {
    let path = normal(path);
    let matches = |route: &Route| {
        (route.methods.is_empty() || route.methods.contains(method))
            && route
                .host
                .as_ref()
                .is_none_or(|own| host.is_some_and(|h| h.eq_ignore_ascii_case(own)))
            && match &route.path {
                // `/` matches the root path alone.
                PathRule::Suffix(Suffix::Segments(bytes)) if **bytes == *b"/" => *path == *b"/",
                rule => rule.takes(&path),
            }
    };
    let rank = |route: &Route| {
        // Among suffixes of equal length, whole segments come first, because they match fewer paths.
        let suffix = match &route.path {
            PathRule::Suffix(suffix) => {
                Some((Reverse(suffix.len()), !matches!(suffix, Suffix::Segments(_))))
            }
            // No path matches both templates here.
            PathRule::Template(_) | PathRule::Descriptor => None,
        };
        let methods = (route.methods.is_empty(), route.methods.len());
        (suffix, route.host.is_none(), methods)
    };
    let found = routes.iter().enumerate().filter(|(_, route)| matches(route));
    found.min_by_key(|(_, route)| rank(route)).map(|(i, _)| i)
}
