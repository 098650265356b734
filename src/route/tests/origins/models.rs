//! Models of real origins. Each is written down from the origin's own sources, without use of our code: the segments by which
//! it looks up a resource, or `None` if it refuses the request.

/// The segments by which each origin looks up a resource.
pub(super) fn origins(path: &str) -> [(&'static str, Option<Vec<String>>); 19] {
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
