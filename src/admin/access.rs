//! The access to the admin side: refuses a request that may not read a page, or may not change anything. It reads no body.

use super::{
    AdminParts,
    page_error::PageError,
    pages::{ASSETS, accepts},
};
use crate::{
    config::{AdminConfig, AdminRead},
    log::{Permit, Throttle},
    services::permits::foreign_host,
};
use axum::{
    Extension, Json,
    extract::{ConnectInfo, Request, State},
    http::{
        HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri,
        header::{AUTHORIZATION, HOST, ORIGIN, WWW_AUTHENTICATE},
    },
    middleware::Next,
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};
use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

/// The pages that every client may read: probes and scrapers have no token, and use the names of services.
const OPEN: [&str; 3] = ["/metrics", "/healthz", "/readyz"];

/// The page whose answer never ends. A web page elsewhere could use up the viewers that it may have.
const EVENTS: &str = "/events";

/// The end of the page that computes for a while and changes nothing, although it has a body.
const ESTIMATE: &str = "/estimate";

/// The most characters of the reason that an operator gives for a change.
pub(super) const MOST_REASON: usize = 500;

/// The header by which a browser says which page made a request.
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// The sender of an admin request that was let through, as the log and overrides name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Operator {
    address: IpAddr,
    has_token: bool,
    /// Whether it may change something, if it is no page of another origin.
    may_change: bool,
    /// The reason of the change, if the query has one: `?reason=vendor%20asked`.
    reason: Option<Box<str>>,
}

/// Lets a request through to its page, with its [`Operator`] as an extension, or answers it.
pub(super) async fn guard(
    State(parts): State<Arc<AdminParts>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    mut request: Request,
    next: Next,
) -> Response {
    let address = peer.ip().to_canonical();
    // A reload may have brought another token.
    let plan = parts.live.plan();
    let judged =
        judge(&plan.config.admin, address, request.method(), request.uri(), request.headers());
    drop(plan);
    match judged {
        Ok(mut operator) => {
            operator.reason = request.uri().query().and_then(reason);
            request.extensions_mut().insert(operator);
            next.run(request).await
        }
        Err(PageError(status, why)) => {
            log_refusal(address, request.method(), &why);
            let mut answer = PageError(status, why).into_response();
            if status == StatusCode::UNAUTHORIZED {
                let scheme = HeaderValue::from_static("Bearer realm=\"paceway\"");
                answer.headers_mut().insert(WWW_AUTHENTICATE, scheme);
            }
            answer
        }
    }
}

/// Shows whether this client may change something, and whether it sent the token.
pub(super) async fn show_access(
    State(parts): State<Arc<AdminParts>>,
    Extension(operator): Extension<Operator>,
) -> Json<Value> {
    let needs_token = parts.live.plan().config.admin.token.is_some();
    Json(json!({
        "needs_token": needs_token,
        "has_token": operator.has_token,
        "may_change": operator.may_change,
    }))
}

fn log_refusal(address: IpAddr, method: &Method, why: &str) {
    static LINES: Throttle = Throttle::new();
    if let Some(Permit { suppressed }) = LINES.permit() {
        tracing::warn!(%address, %method, why, suppressed, "an admin request is refused");
    }
}

/// Decides on one request from `address`. A method that is not known to read counts as a change.
fn judge(
    access: &AdminConfig,
    address: IpAddr,
    method: &Method,
    uri: &Uri,
    headers: &HeaderMap,
) -> Result<Operator, PageError> {
    let is_estimate = *method == Method::POST && uri.path().ends_with(ESTIMATE);
    let is_change = !is_estimate && ![Method::GET, Method::HEAD, Method::OPTIONS].contains(method);
    let is_open = !is_change && OPEN.contains(&uri.path());
    // The dashboard asks for the token itself.
    let is_form = !is_change
        && (uri.path().starts_with(ASSETS) || uri.path() == "/" && accepts(headers, "text/html"));
    let forbidden = |why: String| PageError(StatusCode::FORBIDDEN, why);
    if (is_estimate || uri.path() == EVENTS) && is_of_another_page(headers) {
        return Err(forbidden("a page of another origin may not use this page".into()));
    }
    let mut operator =
        Operator { address, has_token: false, may_change: address.is_loopback(), reason: None };
    let Some(token) = &access.token else {
        // A web page whose name resolves to this address sends its requests here (DNS rebinding). Its browser writes the
        // name of the page into `Host`, and the address of the page into `Origin`.
        if !is_open && let Some(host) = foreign_host(headers) {
            return Err(forbidden(format!(
                "the host `{host}` is neither an IP address nor `localhost`; ask this side by its address, or set \
                 `admin.token`"
            )));
        }
        if is_change && is_of_another_page(headers) {
            return Err(forbidden(
                "a page of another origin may change nothing without `admin.token`".into(),
            ));
        }
        if is_change && !address.is_loopback() {
            return Err(forbidden(
                "without `admin.token`, only programs on the gateway's own host may change anything".into(),
            ));
        }
        return Ok(operator);
    };
    operator.has_token = bearer(headers).is_some_and(|text| token.is(text));
    operator.may_change = operator.has_token;
    match is_change || (access.read == AdminRead::Token && !is_open && !is_form) {
        true if !operator.has_token => Err(PageError(
            StatusCode::UNAUTHORIZED,
            "send the `admin.token` of the configuration, as in `Authorization: Bearer TOKEN`"
                .into(),
        )),
        _ => Ok(operator),
    }
}

/// The reason that a query gives for a change, up to 500 characters. One with control characters is none.
fn reason(query: &str) -> Option<Box<str>> {
    let (_, text) = form_urlencoded::parse(query.as_bytes()).find(|(name, _)| name == "reason")?;
    let text: String = text.trim().chars().take(MOST_REASON).collect();
    (!text.is_empty() && !text.chars().any(char::is_control)).then(|| text.into())
}

/// The token of a request with exactly one `Authorization`, whose scheme is `Bearer`.
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let mut all = headers.get_all(AUTHORIZATION).iter();
    let (value, None) = (all.next()?.as_bytes(), all.next()) else { return None };
    let (scheme, text) = value.split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then(|| text.trim_ascii())
}

/// Whether a browser says that the request was made by a page of another address than this one. `none` is an address that an
/// operator has typed.
fn is_of_another_page(headers: &HeaderMap) -> bool {
    let is_other_site = |site: &HeaderValue| site != "same-origin" && site != "none";
    if headers.get_all(SEC_FETCH_SITE).iter().any(is_other_site) {
        return true;
    }
    headers.get_all(ORIGIN).iter().any(|origin| {
        let place = origin.to_str().ok().and_then(|origin| Some(origin.split_once("://")?.1));
        let host = headers.get(HOST).and_then(|host| host.to_str().ok());
        place.is_none_or(|place| host != Some(place))
    })
}

// === impl Operator ===

impl Operator {
    /// Writes the line of the log about a change that was made. `key` is shown as pages show it.
    pub(super) fn log(&self, change: &'static str, limiter: Option<&str>, key: Option<&str>) {
        tracing::info!(by = %self, limiter, key, reason = self.reason.as_deref(), "{change}");
    }

    /// The same for a change of an account.
    pub(super) fn log_account(&self, change: &'static str, upstream: &str, account: &str) {
        tracing::info!(by = %self, upstream, account, reason = self.reason.as_deref(), "{change}");
    }
}

impl fmt::Display for Operator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.has_token {
            write!(f, "{} with the token", self.address)
        } else {
            write!(f, "{}", self.address)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::AdminToken;
    use rstest::rstest;

    fn status(
        (token, read): (Option<&str>, AdminRead),
        address: &str,
        (method, path): (Method, &'static str),
        fields: &[(&'static str, &'static str)],
    ) -> u16 {
        let listen = ([127, 0, 0, 1], 0).into();
        let access = AdminConfig { listen, token: token.map(AdminToken::new), read };
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(*name, HeaderValue::from_static(value));
        }
        let address: IpAddr = address.parse().expect("an address");
        match judge(&access, address.to_canonical(), &method, &Uri::from_static(path), &headers) {
            Ok(operator) => {
                assert_eq!(operator.address, address.to_canonical());
                200
            }
            Err(PageError(status, why)) => {
                assert!(!why.contains("hunter2"), "{why}");
                status.as_u16()
            }
        }
    }

    const GET: Method = Method::GET;
    const PUT: Method = Method::PUT;
    const POST: Method = Method::POST;

    #[rstest]
    #[case::loopback("127.0.0.1", PUT, "/limiting", &[("host", "127.0.0.1:9090")], 200)]
    #[case::whole_loopback("127.8.0.1", PUT, "/limiting", &[("host", "LOCALHOST")], 200)]
    #[case::ipv6("::1", PUT, "/limiting", &[("host", "[::1]:9090")], 200)]
    #[case::mapped("::ffff:127.0.0.1", PUT, "/limiting", &[("host", "127.0.0.1")], 200)]
    #[case::elsewhere("10.0.0.7", PUT, "/limiting", &[("host", "10.0.0.1:9090")], 403)]
    #[case::mapped_elsewhere("::ffff:10.0.0.7", PUT, "/limiting", &[], 403)]
    #[case::unknown_method("10.0.0.7", Method::TRACE, "/limiters", &[], 403)]
    #[case::reads("10.0.0.7", GET, "/limiters", &[("host", "10.0.0.1:9090")], 200)]
    #[case::no_host("127.0.0.1", PUT, "/limiting", &[], 200)]
    #[case::rebound("127.0.0.1", PUT, "/limiting", &[("host", "evil.example:9090")], 403)]
    #[case::rebound_read("127.0.0.1", GET, "/limiters", &[("host", "evil.example")], 403)]
    #[case::ends_like_it("127.0.0.1", PUT, "/limiting", &[("host", "a.localhost")], 403)]
    #[case::empty_host("127.0.0.1", PUT, "/limiting", &[("host", "")], 403)]
    #[case::two_hosts("127.0.0.1", PUT, "/limiting", &[("host", "::1"), ("host", "a")], 403)]
    #[case::scraped("10.0.0.7", GET, "/metrics", &[("host", "gateway-1:9090")], 200)]
    #[case::probed("10.0.0.7", GET, "/readyz", &[("host", "gateway-1:9090")], 200)]
    #[case::other_page("127.0.0.1", PUT, "/limiting", &[("host", "127.0.0.1"), ("origin", "https://a")], 403)]
    #[case::file_page("127.0.0.1", PUT, "/limiting", &[("host", "127.0.0.1"), ("origin", "null")], 403)]
    #[case::other_site("127.0.0.1", PUT, "/limiting", &[("host", "127.0.0.1"), ("sec-fetch-site", "cross-site")], 403)]
    #[case::other_port("127.0.0.1", PUT, "/limiting", &[("host", "127.0.0.1"), ("sec-fetch-site", "same-site")], 403)]
    #[case::same_page("127.0.0.1", PUT, "/limiting", &[("host", "127.0.0.1"), ("sec-fetch-site", "same-origin")], 200)]
    #[case::link("127.0.0.1", GET, "/", &[("host", "127.0.0.1"), ("sec-fetch-site", "cross-site")], 200)]
    #[case::other_viewer("127.0.0.1", GET, "/events", &[("host", "127.0.0.1"), ("sec-fetch-site", "cross-site")], 403)]
    #[case::viewer("127.0.0.1", GET, "/events", &[("host", "127.0.0.1"), ("sec-fetch-site", "same-origin")], 200)]
    #[case::rebound_page("127.0.0.1", GET, "/", &[("host", "evil.example")], 403)]
    #[case::estimates("10.0.0.7", POST, "/limiters/a/estimate", &[("host", "10.0.0.1:9090")], 200)]
    #[case::acquires("10.0.0.7", POST, "/limiters/a/acquire", &[("host", "10.0.0.1:9090")], 403)]
    #[case::other_estimate("127.0.0.1", POST, "/limiters/a/estimate", &[("host", "127.0.0.1"), ("origin", "https://a")], 403)]
    #[case::rebound_estimate("127.0.0.1", POST, "/limiters/a/estimate", &[("host", "evil.example")], 403)]
    #[case::own_page("127.0.0.1", PUT, "/limiting", &[("host", "127.0.0.1:1"), ("origin", "http://127.0.0.1:1")], 200)]
    fn checks_access_without_a_token(
        #[case] address: &str,
        #[case] method: Method,
        #[case] path: &'static str,
        #[case] fields: &[(&'static str, &'static str)],
        #[case] expected: u16,
    ) {
        assert_eq!(status((None, AdminRead::Open), address, (method, path), fields), expected);
    }

    #[test]
    fn a_query_parameter_gives_the_reason() {
        for (query, expected) in [
            ("reason=vendor%20asked+it%21", Some("vendor asked it!")),
            ("a=b&reason=%c3%a4", Some("\u{e4}")),
            ("reason=", None),
            ("reason=%0a", None),
            ("reason=a%0ab", None),
            ("other=a", None),
        ] {
            assert_eq!(reason(query).as_deref(), expected, "{query}");
        }
        let long = format!("reason={}", "a".repeat(501));
        assert_eq!(reason(&long).map(|text| text.len()), Some(MOST_REASON));
    }

    #[rstest]
    #[case::missing(PUT, "/limiting", &[], [401, 401])]
    #[case::right(PUT, "/limiting", &[("authorization", "Bearer hunter2")], [200, 200])]
    #[case::small_letters(PUT, "/limiting", &[("authorization", "bearer  hunter2 ")], [200, 200])]
    #[case::wrong(PUT, "/limiting", &[("authorization", "Bearer hunter")], [401, 401])]
    #[case::longer(PUT, "/limiting", &[("authorization", "Bearer hunter22")], [401, 401])]
    #[case::other_scheme(PUT, "/limiting", &[("authorization", "Basic hunter2")], [401, 401])]
    #[case::scheme_alone(PUT, "/limiting", &[("authorization", "Bearer")], [401, 401])]
    #[case::two(PUT, "/limiting", &[("authorization", "Bearer hunter2"), ("authorization", "Bearer a")], [401, 401])]
    #[case::reads(GET, "/limiters", &[("host", "gateway-1")], [200, 401])]
    #[case::reads_with_it(GET, "/limiters", &[("authorization", "Bearer hunter2")], [200, 200])]
    #[case::scraped(GET, "/metrics", &[], [200, 200])]
    #[case::probed(Method::HEAD, "/healthz", &[], [200, 200])]
    #[case::asks_for_it(GET, "/", &[("accept", "text/html,*/*")], [200, 200])]
    #[case::lists_pages(GET, "/", &[("accept", "*/*")], [200, 401])]
    #[case::its_files(GET, "/assets/main.js", &[], [200, 200])]
    #[case::changes_nothing_there(PUT, "/", &[], [401, 401])]
    #[case::estimates(POST, "/limiters/a/estimate", &[], [200, 401])]
    #[case::acquires(POST, "/limiters/a/acquire", &[], [401, 401])]
    #[case::other_estimate(POST, "/limiters/a/estimate", &[("authorization", "Bearer hunter2"), ("origin", "http://a")], [403, 403])]
    #[case::follows(GET, "/events", &[], [200, 401])]
    #[case::other_viewer(GET, "/events", &[("authorization", "Bearer hunter2"), ("origin", "http://a")], [403, 403])]
    #[case::no_page_of_that_name(GET, "/metrics/", &[], [200, 401])]
    fn checks_access_with_a_token(
        #[case] method: Method,
        #[case] path: &'static str,
        #[case] fields: &[(&'static str, &'static str)],
        #[case] expected: [u16; 2],
    ) {
        // An address of the host itself has no other rights than any other.
        for address in ["127.0.0.1", "10.0.0.7"] {
            let judged = [AdminRead::Open, AdminRead::Token].map(|read| {
                status((Some("hunter2"), read), address, (method.clone(), path), fields)
            });
            assert_eq!(judged, expected, "{address}");
        }
    }
}
