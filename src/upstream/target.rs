//! Reads the URL of an upstream and says where it leads: scheme, host, port and base path. Resolves no name.

use http::{
    HeaderValue, Uri,
    uri::{Authority, PathAndQuery},
};
use smallvec::SmallVec;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// One URL of an upstream. An upstream with several URLs has one target for each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The origin that connections are made to, `http://host:port` or `https://host:port`, without a path.
    pub origin: Uri,
    /// The `Host` field of requests to this target: host and port as the URL writes them.
    pub host: HeaderValue,
    /// The path that is put before the path of every request: empty, or `/v2` without a slash at its end.
    pub base: String,
}

// === impl Target ===

impl Default for Target {
    fn default() -> Self {
        Self {
            origin: Uri::from_static("http://localhost"),
            host: HeaderValue::from_static("localhost"),
            base: String::new(),
        }
    }
}

impl Target {
    /// Reads `http[s]://host[:port][/base/path]`, as the key `upstream` of the configuration writes it.
    ///
    /// # Errors
    ///
    /// The reason why the URL cannot be used, worded to follow the quoted URL: "names no host".
    pub fn parse(url: &str) -> Result<Self, String> {
        let Some((scheme, rest)) = url.split_once("://") else { return Err(no_scheme(url)) };
        let uri: Uri = url.parse().map_err(|_| "is no URL, as in https://api.example/v2")?;
        let scheme = match scheme {
            "http" | "https" => scheme,
            // `h2c` and `grpc` are HTTP/2 in clear text.
            "ws" | "h2c" | "grpc" => return Err(other_scheme(scheme, "http", rest)),
            _ => return Err(other_scheme(scheme, "https", rest)),
        };
        let authority = uri.authority().ok_or("names no host")?;
        if authority.as_str().contains('@') {
            return Err("holds credentials, which the upstream would never see; write them as a header of an entry under \
                        upstreams: set headers.request.set.authorization"
                .into());
        }
        if !has_valid_port(authority) {
            return Err("has a port that is 0 or above 65535".into());
        }
        if authority.host().contains(['$', '%', '{', '<']) {
            return Err("has no valid host".into());
        }
        if authority.host().is_empty() {
            return Err("names no host".into());
        }
        if uri.query().is_some() {
            return Err("has a query; only a base path can be put before requests".into());
        }
        let base = uri.path().trim_end_matches('/').to_owned();
        let origin = Uri::builder().scheme(scheme).authority(authority.clone()).path_and_query("/");
        Ok(Self {
            origin: origin.build().map_err(|_| "is no URL")?,
            host: HeaderValue::from_str(authority.as_str()).map_err(|_| "has no valid host")?,
            base,
        })
    }

    /// Whether the scheme of the URL is `https`, so that its connections speak TLS.
    pub fn is_https(&self) -> bool {
        self.origin.scheme_str() == Some("https")
    }

    /// The target of a request for `path`: the `base` path, then the path and query as the client sent them. `None` if the
    /// two together are no valid target, because they are too long.
    pub fn uri_below(base: &str, path: Option<&PathAndQuery>) -> Option<Uri> {
        let root = PathAndQuery::from_static("/");
        let path = path.unwrap_or(&root);
        // `*` means the server itself, whatever the base path is (RFC 9112 section 3.2.4).
        if base.is_empty() || path.as_str() == "*" {
            return Some(Uri::from(path.clone()));
        }
        // An absolute target may have a query and no path.
        let slash = if path.as_str().starts_with('/') { "" } else { "/" };
        let joined = [base, slash, path.as_str()].concat();
        PathAndQuery::try_from(joined).ok().map(Uri::from)
    }

    /// Whether connections to this target arrive at a socket of this host that listens on `listen`. A name that DNS resolves
    /// is not looked at.
    pub fn leads_to(&self, listen: SocketAddr) -> bool {
        let arrives = |own: &SocketAddr| {
            if listen.ip().is_unspecified() {
                own.ip().is_loopback() || own.ip().is_unspecified()
            } else {
                own.ip() == listen.ip()
            }
        };
        let sockets = self.fixed_sockets().unwrap_or_default();
        listen.port() != 0 && self.port() == listen.port() && sockets.iter().any(arrives)
    }

    /// The host as DNS and certificates name it: an IPv6 address without its brackets.
    pub(crate) fn host_name(&self) -> &str {
        let host = self.origin.host().unwrap_or_default();
        host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
    }

    /// The port of the URL; 443 for `https` and 80 for `http` if the URL names none.
    pub(super) fn port(&self) -> u16 {
        let default = if self.is_https() { 443 } else { 80 };
        self.origin.port_u16().unwrap_or(default)
    }

    /// The addresses of a host that needs no DNS: an IP address, or both loopback addresses for `localhost` (RFC 6761
    /// section 6.3). `None` if a DNS server has to be asked.
    pub(super) fn fixed_sockets(&self) -> Option<SmallVec<[SocketAddr; 2]>> {
        let name = self.host_name();
        let at = |ip| SocketAddr::new(ip, self.port());
        if let Ok(ip) = name.parse::<IpAddr>() {
            return Some([at(ip)].into_iter().collect());
        }
        let local = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
        let is_local = name.trim_end_matches('.').eq_ignore_ascii_case("localhost");
        is_local.then(|| local.map(at).into_iter().collect())
    }
}

/// The reason for a URL without a scheme, with the URL to write if it begins with a host.
fn no_scheme(url: &str) -> String {
    let is_host = |c: char| c.is_ascii_alphanumeric() || "-._:/[]".contains(c);
    let begins = url.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '[');
    // A word alone is more likely the name of something else.
    let is_likely = begins && url.contains(['.', ':', '/', '[']) && url.chars().all(is_host);
    if is_likely {
        format!("has no scheme; write `https://{url}` or `http://{url}`")
    } else {
        "is no URL, as in https://api.example/v2".into()
    }
}

fn other_scheme(scheme: &str, meant: &str, rest: &str) -> String {
    if rest.contains('@') {
        format!("is no http:// or https:// URL, but `{scheme}://`")
    } else {
        format!("is no http:// or https:// URL; write `{meant}://{rest}`")
    }
}

/// Whether the authority names no port, or one from 1 to 65535. `Authority::port` has none for a greater number.
pub(crate) fn has_valid_port(authority: &Authority) -> bool {
    let port = authority.as_str().rsplit_once(':').map_or("", |(_, port)| port);
    port.is_empty() || port.ends_with(']') || port.parse::<u16>().is_ok_and(|port| port > 0)
}
