//! What changes in the headers on the way, in both directions. Everything not named here passes as it is.

use super::UpstreamError;
use http::{
    HeaderMap, HeaderName, HeaderValue, Response, StatusCode, Version,
    header::{
        CONNECTION, CONTENT_LENGTH, FORWARDED, HOST, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE,
        TRANSFER_ENCODING, UPGRADE,
    },
};

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// Meant for one connection only (RFC 9110 section 7.6.1), and what clients and proxies misuse as such.
static HOP_BY_HOP: [HeaderName; 7] = [
    KEEP_ALIVE,
    PROXY_CONNECTION,
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// What an operator changes in headers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules {
    /// Of requests.
    pub request: Edits,
    /// Of responses.
    pub response: Edits,
}

/// Changes in the headers of a message.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Edits {
    /// These go.
    pub remove: Vec<HeaderName>,
    /// Each replaces all of its name.
    pub set: Vec<(HeaderName, HeaderValue)>,
    /// Each stands behind those of its name.
    pub add: Vec<(HeaderName, HeaderValue)>,
}

// === impl Edits ===

impl Edits {
    /// Removes, then sets, then adds.
    pub fn apply(&self, headers: &mut HeaderMap) {
        for name in &self.remove {
            headers.remove(name);
        }
        for (name, value) in &self.set {
            headers.insert(name, value.clone());
        }
        for (name, value) in &self.add {
            headers.append(name, value.clone());
        }
    }
}

/// Removes what was meant for the connection it came on: the fixed names, and those that `Connection`
/// nominates (RFC 9110 section 7.6.1).
pub fn remove_hop_by_hop(headers: &mut HeaderMap) {
    // Most messages have none: one look at each name is cheaper than a search for each of ours.
    let ours = |name: &HeaderName| *name == CONNECTION || HOP_BY_HOP.contains(name);
    if !headers.keys().any(ours) {
        return;
    }
    if headers.contains_key(CONNECTION) {
        let nominated: Vec<HeaderName> = headers
            .get_all(CONNECTION)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .filter_map(|name| name.trim().parse().ok())
            // What delimits or routes a message is not the client's to take away.
            .filter(|name| *name != HOST && *name != CONTENT_LENGTH)
            .collect();
        for name in nominated {
            headers.remove(name);
        }
        headers.remove(CONNECTION);
    }
    if headers.contains_key(TRANSFER_ENCODING) {
        // It overrides a length, which must not outlive it (RFC 9112 section 6.3).
        headers.remove(CONTENT_LENGTH);
    }
    for name in &HOP_BY_HOP {
        headers.remove(name);
    }
}

/// Removes from the trailers of a request what an upstream that takes them for headers (RFC 9110 section 6.5.1) would
/// believe to be ours.
pub fn remove_from_trailers(trailers: &mut HeaderMap) {
    remove_hop_by_hop(trailers);
    for name in
        [HOST, CONTENT_LENGTH, FORWARDED, X_FORWARDED_FOR, X_FORWARDED_HOST, X_FORWARDED_PROTO]
    {
        trailers.remove(name);
    }
}

/// Refuses what no request of ours can be answered with, and makes the rest an answer of this connection's
/// version: an upgrade nobody asked for, lengths that differ or are none (RFC 9112 section 6.3), also where no
/// body follows.
///
/// # Errors
///
/// [`UpstreamError::Invalid`].
pub fn check_response<B>(
    response: &mut Response<B>,
    upgrade_asked: bool,
) -> Result<(), UpstreamError> {
    if response.status() == StatusCode::SWITCHING_PROTOCOLS && !upgrade_asked {
        return Err(UpstreamError::Invalid("an upgrade that was not asked for"));
    }
    *response.version_mut() = Version::HTTP_11;
    let mut lengths = response.headers().get_all(CONTENT_LENGTH).iter();
    let Some(first) = lengths.next() else { return Ok(()) };
    let number = first.to_str().ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    if number.is_none_or(|text| text.parse::<u64>().is_err()) {
        return Err(UpstreamError::Invalid("a length that is none"));
    }
    let (mut twice, mut differ) = (false, false);
    for other in lengths {
        (twice, differ) = (true, differ || other != first);
    }
    if differ {
        return Err(UpstreamError::Invalid("two lengths"));
    }
    if twice {
        let first = first.clone();
        response.headers_mut().insert(CONTENT_LENGTH, first);
    }
    Ok(())
}

/// Turns a client's headers into those for the upstream. What is said of the client is replaced, unless the
/// peer is a proxy that is trusted: then its address is added to X-Forwarded-For, and the rest stays.
pub fn to_upstream(
    headers: &mut HeaderMap,
    peer: &HeaderValue,
    is_trusted: bool,
    asked_host: Option<HeaderValue>,
    upstream_host: &HeaderValue,
) {
    remove_hop_by_hop(headers);
    headers.remove(FORWARDED);
    if !is_trusted || !headers.contains_key(X_FORWARDED_HOST) {
        match asked_host.or_else(|| headers.get(HOST).cloned()) {
            Some(host) => drop(headers.insert(X_FORWARDED_HOST, host)),
            None => drop(headers.remove(X_FORWARDED_HOST)),
        }
    }
    headers.insert(HOST, upstream_host.clone());
    let through = if is_trusted { through(headers, peer) } else { None };
    headers.insert(X_FORWARDED_FOR, through.unwrap_or_else(|| peer.clone()));
    if !is_trusted || !headers.contains_key(X_FORWARDED_PROTO) {
        headers.insert(X_FORWARDED_PROTO, HeaderValue::from_static("http"));
    }
}

/// The way that a trusted proxy tells, with the proxy at its end; `None` when it tells nothing.
fn through(headers: &HeaderMap, peer: &HeaderValue) -> Option<HeaderValue> {
    let told = headers.get_all(X_FORWARDED_FOR).iter().filter(|told| !told.is_empty());
    let mut way = told.fold(Vec::new(), |mut way, told| {
        way.extend([told.as_bytes(), b", "].concat());
        way
    });
    if way.is_empty() {
        return None;
    }
    way.extend(peer.as_bytes());
    HeaderValue::from_bytes(&way).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(of: &[(&'static str, &'static str)]) -> HeaderMap {
        let pairs = of.iter();
        pairs.map(|(n, v)| (HeaderName::from_static(n), HeaderValue::from_static(v))).collect()
    }

    #[test]
    fn hop_by_hop_and_nominated_headers_go_the_rest_stays() {
        let mut got = headers(&[
            ("connection", "close, X-Mine"),
            ("keep-alive", "timeout=5"),
            ("te", "gzip"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "h2c"),
            ("x-mine", "1"),
            ("x-other", "2"),
        ]);
        remove_hop_by_hop(&mut got);
        assert_eq!(got, headers(&[("x-other", "2")]));
    }

    #[test]
    fn a_length_beside_a_transfer_coding_goes_with_it() {
        let mut got = headers(&[("content-length", "3"), ("transfer-encoding", "chunked")]);
        remove_hop_by_hop(&mut got);
        assert_eq!(got, headers(&[]));
    }

    #[test]
    fn a_nominated_host_or_length_stays() {
        let mut got = headers(&[
            ("connection", "host, content-length"),
            ("host", "a"),
            ("content-length", "3"),
        ]);
        remove_hop_by_hop(&mut got);
        assert_eq!(got, headers(&[("host", "a"), ("content-length", "3")]));
    }

    #[test]
    fn what_a_trusted_proxy_says_stays_with_its_address_behind() {
        let mut got = headers(&[
            ("host", "api.internal"),
            ("x-forwarded-for", "6.6.6.6, 203.0.113.9"),
            ("x-forwarded-proto", "https"),
        ]);
        got.append("x-forwarded-for", HeaderValue::from_static("10.0.0.2"));
        let (peer, host) = (HeaderValue::from_static("10.0.0.1"), HeaderValue::from_static("up"));
        to_upstream(&mut got, &peer, true, None, &host);
        let expected = headers(&[
            ("host", "up"),
            ("x-forwarded-for", "6.6.6.6, 203.0.113.9, 10.0.0.2, 10.0.0.1"),
            ("x-forwarded-proto", "https"),
            ("x-forwarded-host", "api.internal"),
        ]);
        assert_eq!(got, expected);
    }

    #[test]
    fn what_a_client_says_of_itself_is_replaced() {
        let mut got = headers(&[
            ("host", "api.internal:8080"),
            ("x-forwarded-for", "6.6.6.6"),
            ("x-forwarded-proto", "https"),
            ("x-forwarded-host", "evil"),
            ("forwarded", "for=6.6.6.6"),
        ]);
        let (client, host) = (HeaderValue::from_static("10.0.0.1"), HeaderValue::from_static("up"));
        to_upstream(&mut got, &client, false, None, &host);
        let expected = headers(&[
            ("host", "up"),
            ("x-forwarded-for", "10.0.0.1"),
            ("x-forwarded-proto", "http"),
            ("x-forwarded-host", "api.internal:8080"),
        ]);
        assert_eq!(got, expected);
    }
}
