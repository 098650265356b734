//! The origin of a URL: scheme, host and port, in the form in which origins are compared (RFC 6454 section 4). Resolves no
//! name.

use super::{target::Target, target::has_valid_port};
use http::uri::Authority;
use std::{fmt, net::IpAddr};

/// The origin of a URL.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct UrlOrigin {
    /// Whether the scheme is `https`; otherwise it is `http`.
    pub is_https: bool,
    /// The host in small letters, without a final dot, and an IPv6 address without its brackets.
    pub host: Box<str>,
    /// The port, also if the URL has that of its scheme and does not name it.
    pub port: u16,
}

// === impl UrlOrigin ===

impl UrlOrigin {
    /// Reads `host[:port]`; `None` if it is something else.
    pub fn of(is_https: bool, authority: &str) -> Option<Self> {
        let authority: Authority = authority.parse().ok()?;
        if authority.as_str().contains('@') || !has_valid_port(&authority) {
            return None;
        }
        let host = authority.host();
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let host = bare.unwrap_or(host.strip_suffix('.').unwrap_or(host));
        if host.is_empty() {
            return None;
        }
        let host = match host.parse::<IpAddr>() {
            // One address has several spellings.
            Ok(ip) => ip.to_string(),
            Err(_) => host.to_ascii_lowercase(),
        };
        let port = authority.port_u16().unwrap_or(if is_https { 443 } else { 80 });
        Some(Self { is_https, host: host.into(), port })
    }

    /// The origin that a target leads to.
    pub fn of_target(target: &Target) -> Option<Self> {
        Self::of(target.is_https(), target.origin.authority()?.as_str())
    }

    /// The host and port as a CONNECT names them.
    pub fn host_and_port(&self) -> String {
        let brackets = if self.host.contains(':') { ["[", "]"] } else { ["", ""] };
        format!("{}{}{}:{}", brackets[0], self.host, brackets[1], self.port)
    }

    /// The same host and port with the other scheme.
    pub fn with_scheme(&self, is_https: bool) -> Self {
        Self { is_https, ..self.clone() }
    }
}

impl fmt::Display for UrlOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scheme, default) = if self.is_https { ("https", 443) } else { ("http", 80) };
        let brackets = if self.host.contains(':') { ["[", "]"] } else { ["", ""] };
        write!(f, "{scheme}://{}{}{}", brackets[0], self.host, brackets[1])?;
        if self.port == default { Ok(()) } else { write!(f, ":{}", self.port) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::default_port(true, "api.example", Some("https://api.example"))]
    #[case::named_port(true, "api.example:443", Some("https://api.example"))]
    #[case::other_port(false, "api.example:443", Some("http://api.example:443"))]
    #[case::case_and_dot(true, "API.Example.:8443", Some("https://api.example:8443"))]
    #[case::ip4(false, "127.0.0.1:80", Some("http://127.0.0.1"))]
    #[case::ip6(true, "[0:0::1]:8443", Some("https://[::1]:8443"))]
    #[case::credentials(true, "a@b", None)]
    #[case::port_0(true, "a:0", None)]
    #[case::large_port(true, "a:65536", None)]
    #[case::path(true, "a/b", None)]
    #[case::nothing(true, "", None)]
    fn spellings_of_one_origin_are_equal(
        #[case] is_https: bool,
        #[case] authority: &str,
        #[case] expected: Option<&str>,
    ) {
        let origin = UrlOrigin::of(is_https, authority).map(|origin| origin.to_string());
        assert_eq!(origin.as_deref(), expected);
    }
}
