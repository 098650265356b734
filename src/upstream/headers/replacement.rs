//! Replaces the beginnings of a header's values, so that a `Location` of the upstream leads the caller to the gateway.
//! Follows no redirect.

use crate::upstream::Target;
use http::HeaderValue;

/// The replacements for the values of one header. The longest beginning that matches is replaced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replacement {
    /// Whether they follow from the URLs of the upstream.
    pub is_auto: bool,
    /// The longest first.
    pub prefixes: Vec<ReplacedPrefix>,
}

/// The beginning of a value, and the text in its place.
///
/// A beginning that contains `://` or starts with `/` is that of a URL. It stands for whole segments: `https://a.example`
/// and `https://a.example/` are the same, and match neither `https://a.example.org` nor `https://a.example@b.example`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplacedPrefix {
    /// As the configuration writes it.
    pub from: String,
    /// As the configuration writes it.
    pub to: HeaderValue,
}

// === impl Replacement ===

impl Replacement {
    /// The replacements of the configuration.
    pub fn new(mut prefixes: Vec<ReplacedPrefix>) -> Self {
        prefixes.sort_by_key(|prefix| std::cmp::Reverse(prefix.start().len()));
        Self { is_auto: false, prefixes }
    }

    /// Replaces the URLs of an upstream by paths of the gateway: `https://api.example/v2/a` by `/a` if the upstream is
    /// `https://api.example/v2`. A client resolves such a path with the URL that it has asked for (RFC 9110 section
    /// 10.2.2), so that no `Host` has to be believed. Another scheme is another URL: a redirect from http to https would
    /// otherwise lead to itself.
    pub fn of_targets(targets: &[Target]) -> Self {
        let mut prefixes: Vec<ReplacedPrefix> = Vec::new();
        let mut replace = |from: String| {
            if prefixes.iter().all(|known| known.from != from) {
                prefixes.push(ReplacedPrefix { from, to: HeaderValue::from_static("/") });
            }
        };
        for target in targets {
            let (scheme, default) = if target.is_https() { ("https", 443) } else { ("http", 80) };
            let host = target.origin.host().unwrap_or_default();
            let port = target.origin.port_u16().unwrap_or(default);
            let base = &target.base;
            let mut authorities = vec![format!("{host}:{port}")];
            if port == default {
                authorities.push(host.to_owned());
            }
            for authority in authorities {
                replace(format!("{scheme}://{authority}{base}"));
                replace(format!("//{authority}{base}"));
            }
            if !base.is_empty() {
                replace(base.clone());
            }
        }
        Self { is_auto: true, ..Self::new(prefixes) }
    }

    /// The value with its beginning replaced, and with each URL replaced that follows a `<`, as in `Link` (RFC 8288).
    /// `None` if nothing matches.
    pub(super) fn apply(&self, value: &HeaderValue) -> Option<HeaderValue> {
        let bytes = value.as_bytes();
        let mut is_sensitive = value.is_sensitive();
        let (mut out, mut copied) = (Vec::new(), 0);
        let links = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'<').map(|(i, _)| i + 1);
        for start in std::iter::once(0).chain(links) {
            let rest = &bytes[start..];
            let found = self.prefixes.iter().filter(|prefix| start == 0 || prefix.is_url());
            let found = found.filter_map(|prefix| Some((prefix, prefix.matched(rest)?))).next();
            let Some((prefix, length)) = found else { continue };
            out.extend_from_slice(&bytes[copied..start]);
            prefix.write(&rest[length..], &mut out);
            copied = start + length;
            is_sensitive |= prefix.to.is_sensitive();
        }
        if copied == 0 && out.is_empty() {
            return None;
        }
        out.extend_from_slice(&bytes[copied..]);
        let mut new = HeaderValue::from_bytes(&out).ok()?;
        new.set_sensitive(is_sensitive);
        Some(new)
    }
}

// === impl ReplacedPrefix ===

impl ReplacedPrefix {
    fn is_url(&self) -> bool {
        self.from.starts_with('/') || self.from.contains("://")
    }

    /// The bytes that a value begins with.
    fn start(&self) -> &[u8] {
        if self.is_url() {
            self.from.trim_end_matches('/').as_bytes()
        } else {
            self.from.as_bytes()
        }
    }

    /// The length of the beginning of `value` that is replaced; `None` if the value begins with something else.
    fn matched(&self, value: &[u8]) -> Option<usize> {
        let start = self.start();
        let (head, rest) = value.split_at_checked(start.len())?;
        // Scheme and host have no case (RFC 3986 section 6.2.2.1).
        let authority = start.windows(2).position(|pair| pair == b"//").map_or(0, |slashes| {
            let path = start[slashes + 2..].iter().position(|byte| *byte == b'/');
            path.map_or(start.len(), |path| slashes + 2 + path)
        });
        let is_same = head[..authority].eq_ignore_ascii_case(&start[..authority])
            && head[authority..] == start[authority..];
        let ends = !self.is_url()
            || match rest {
                // `//host` and what browsers take for it name another host.
                [b'/', next @ ..] => !start.is_empty() || !is_second_slash(next),
                [] | [b'?' | b'#' | b'>', ..] => !start.is_empty(),
                _ => false,
            };
        (is_same && ends).then_some(start.len())
    }

    /// Writes the text in place of this beginning, before the `rest` of the value.
    fn write(&self, rest: &[u8], out: &mut Vec<u8>) {
        let to = self.to.as_bytes();
        if !self.is_url() {
            return out.extend_from_slice(to);
        }
        let to = to.strip_suffix(b"/").unwrap_or(to);
        out.extend_from_slice(to);
        match rest {
            // `//b.example` would lead the client to another host, `/.//b.example` is a path.
            [b'/', next @ ..] if to.is_empty() && is_second_slash(next) => out.extend(b"/."),
            [b'/', ..] => {}
            _ if to.is_empty() => out.push(b'/'),
            _ => {}
        }
    }
}

/// Whether a `/` before `rest` begins the name of a host: browsers take `\` for `/`, and skip tabs.
fn is_second_slash(rest: &[u8]) -> bool {
    matches!(rest, [b'/' | b'\\' | b'\t', ..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn replaced(by: &Replacement, value: &str) -> Option<String> {
        let value = HeaderValue::from_str(value).expect("a value");
        by.apply(&value).map(|new| new.to_str().expect("text").to_owned())
    }

    #[rstest]
    #[case::path("https://api.example/v2/a?b=c#d", "/a?b=c#d")]
    #[case::port("https://api.example:443/v2/a", "/a")]
    #[case::case_of_the_host("HTTPS://API.example/v2/A", "/A")]
    #[case::base_alone("https://api.example/v2", "/")]
    #[case::query("https://api.example/v2?a=b", "/?a=b")]
    #[case::no_scheme("//api.example/v2/a", "/a")]
    #[case::no_host("/v2/a", "/a")]
    #[case::second_address("https://b.example:8443/v3/a", "/a")]
    #[case::another_host("https://api.example/v2//b.example/a", "/.//b.example/a")]
    #[case::as_browsers_read_it("https://api.example/v2/\\b.example/a", "/./\\b.example/a")]
    #[case::with_a_tab("/v2/\t/b.example", "/./\t/b.example")]
    #[case::links(
        "<https://api.example/v2/a?page=2>; rel=\"next\", <https://api.example/v2>; rel=\"first\", <https://c.example/>",
        "</a?page=2>; rel=\"next\", </>; rel=\"first\", <https://c.example/>"
    )]
    #[case::other_scheme("http://api.example/v2/a", "")]
    #[case::other_port("https://api.example:8443/v2/a", "")]
    #[case::other_path("https://api.example/v22", "")]
    #[case::other_case_of_the_path("https://api.example/V2/a", "")]
    #[case::other_host("https://api.example.org/v2/a", "")]
    #[case::user("https://api.example@b.example/v2/a", "")]
    #[case::later("https://c.example/?to=https://api.example/v2/a", "")]
    #[case::relative("a/b", "")]
    #[case::outside("/login", "")]
    #[case::nothing("", "")]
    fn urls_of_the_upstream_become_paths(#[case] value: &str, #[case] expected: &str) {
        let urls = ["https://api.example/v2", "https://b.example:8443/v3/"];
        let targets = urls.map(|url| Target::parse(url).expect("a URL"));
        let by = Replacement::of_targets(&targets);
        assert_eq!(replaced(&by, value).unwrap_or_default(), expected);
    }

    fn prefix((from, to): &(&str, &'static str)) -> ReplacedPrefix {
        ReplacedPrefix { from: (*from).to_owned(), to: HeaderValue::from_static(to) }
    }

    #[rstest]
    #[case::url("https://a.example/", "https://gw/x/", "https://a.example/b", "https://gw/x/b")]
    #[case::slash_of_one("https://a.example/", "https://gw", "https://a.example/b", "https://gw/b")]
    #[case::slash_of_other(
        "https://a.example",
        "https://gw/",
        "https://a.example/b",
        "https://gw/b"
    )]
    #[case::host_alone("https://a.example/", "https://gw/", "https://a.example", "https://gw")]
    #[case::longest("https://a.example/v2/", "/new/", "https://a.example/v2/b", "/new/b")]
    #[case::added_path("/", "/api/", "/b", "/api/b")]
    #[case::added_path_to_a_host("/", "/api/", "//b.example/c", "")]
    #[case::added_path_to_text("/", "/api/", "b", "")]
    #[case::text(
        "0; url=https://a.example/",
        "0; url=/",
        "0; url=https://a.example/b",
        "0; url=/b"
    )]
    #[case::removed("Basic ", "", "Basic realm=x", "realm=x")]
    #[case::all_removed("secret", "", "secret", "")]
    fn a_configured_prefix_is_replaced(
        #[case] from: &str,
        #[case] to: &'static str,
        #[case] value: &str,
        #[case] expected: &str,
    ) {
        let by =
            Replacement::new(vec![prefix(&("https://a.example/", "/old/")), prefix(&(from, to))]);
        let by = if from == "https://a.example/" || from == "https://a.example" {
            Replacement::new(vec![prefix(&(from, to))])
        } else {
            by
        };
        assert_eq!(replaced(&by, value).unwrap_or_default(), expected);
    }

    #[test]
    fn a_secret_replacement_makes_a_secret_value() {
        let mut secret = prefix(&("https://a.example", "https://b.example"));
        secret.to.set_sensitive(true);
        let by = Replacement::new(vec![secret]);
        let value = |text| by.apply(&HeaderValue::from_static(text)).expect("a value");
        assert!(value("https://a.example/x").is_sensitive());
        assert!(value("<https://a.example/x>").is_sensitive());
    }
}
