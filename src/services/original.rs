//! The request that another proxy asks about, as the call of that proxy describes it. Decides nothing.
//!
//! A caller can add headers to its request, and most proxies pass them on to the service: nginx does so with
//! `X-Forwarded-Uri` beside its own `X-Original-URI`. A call that says two things is therefore refused, so that no caller takes
//! the route of another request.

use crate::{
    answer::Failure,
    config::{ForwardAuthConfig, OriginalRequest},
};
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Uri,
    header::{HOST, MAX_FORWARDS},
    uri::PathAndQuery,
};

const FORWARDED_URI: HeaderName = HeaderName::from_static("x-forwarded-uri");
const FORWARDED_METHOD: HeaderName = HeaderName::from_static("x-forwarded-method");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const ORIGINAL_URI: HeaderName = HeaderName::from_static("x-original-uri");
const ORIGINAL_URL: HeaderName = HeaderName::from_static("x-original-url");
const ORIGINAL_METHOD: HeaderName = HeaderName::from_static("x-original-method");

/// Makes the call of a proxy the request that it describes: method, target and `Host` are then those of the original request,
/// and all other headers stay.
///
/// # Errors
///
/// [`Failure::BadRequest`] for a call that describes no request, or more than one.
pub(super) fn restore<B>(
    request: &mut Request<B>,
    config: &ForwardAuthConfig,
) -> Result<(), Failure> {
    // The proxy in front is no hop on which a request could end (RFC 9110 section 7.6.2).
    request.headers_mut().remove(MAX_FORWARDS);
    let headers = request.headers();
    let has = |names: &[HeaderName]| names.iter().any(|name| headers.contains_key(name));
    let is_forwarded = has(&[FORWARDED_URI]);
    let is_original = has(&[ORIGINAL_URI, ORIGINAL_URL]);
    let kind = match (config.original, is_forwarded, is_original) {
        (OriginalRequest::Auto, true, true) => {
            return refuse(
                "both X-Forwarded-Uri and X-Original-URI describe the request; set `original` of the service to the one \
                 that the proxy sends",
            );
        }
        (OriginalRequest::Auto, true, false) => OriginalRequest::Forwarded,
        (OriginalRequest::Auto, false, true) => OriginalRequest::Original,
        (OriginalRequest::Auto, false, false) => OriginalRequest::Target,
        (pinned, ..) => pinned,
    };
    let (target, host, method) = match kind {
        OriginalRequest::Forwarded => {
            let target = required(headers, &FORWARDED_URI)?;
            (target, single(headers, &FORWARDED_HOST)?, single(headers, &FORWARDED_METHOD)?)
        }
        OriginalRequest::Original => {
            let target = match (single(headers, &ORIGINAL_URI)?, single(headers, &ORIGINAL_URL)?) {
                (Some(_), Some(_)) => {
                    return refuse("both X-Original-URI and X-Original-URL describe the request");
                }
                (Some(one), None) | (None, Some(one)) => one,
                (None, None) => return refuse("the call has no X-Original-URI"),
            };
            (target, None, single(headers, &ORIGINAL_METHOD)?)
        }
        OriginalRequest::Target | OriginalRequest::Auto => {
            return itself(request, &config.path_prefix);
        }
    };
    let target = Uri::try_from(target.as_bytes());
    let target = target.map_err(|_| bad("the original target is no target of HTTP"))?;
    let own = request.uri().authority().map(|authority| authority.as_str());
    let own = own.and_then(|own| HeaderValue::from_str(own).ok());
    let named = target.authority().map(|authority| authority.as_str());
    let named = named.and_then(|named| HeaderValue::from_str(named).ok());
    let host = named.or_else(|| host.cloned()).or(own);
    if let Some(method) = method {
        let method = Method::from_bytes(method.as_bytes());
        *request.method_mut() = method.map_err(|_| bad("the original method is no method"))?;
    }
    set(request, origin_form(target), host)
}

/// The path and the query of a target; `None` for an authority alone. `http` keeps no path of `http://h#a`, which is that of the root
/// (RFC 9110 section 4.2.3).
pub(super) fn origin_form(target: Uri) -> Option<PathAndQuery> {
    let target = target.into_parts().path_and_query?;
    // It is written with the `/` that its text lacks.
    PathAndQuery::try_from(target.to_string()).ok()
}

/// Removes the prefix of a call that is itself the original request.
fn itself<B>(request: &mut Request<B>, prefix: &str) -> Result<(), Failure> {
    let own = request.uri().authority().map(|authority| authority.as_str());
    let host = own.and_then(|own| HeaderValue::from_str(own).ok());
    let target = origin_form(request.uri().clone());
    let target =
        match (target, prefix) {
            (target, "") => target,
            (Some(target), prefix) => {
                let rest = target.as_str().strip_prefix(prefix);
                let rest = match rest.and_then(|rest| rest.bytes().next()) {
                    None if rest.is_some() => Some("/".into()),
                    Some(b'?') => rest.map(|query| format!("/{query}")),
                    Some(b'/') => rest.map(str::to_owned),
                    _ => None,
                };
                let rest = rest.and_then(|rest| PathAndQuery::try_from(rest).ok());
                Some(rest.ok_or_else(|| {
                    bad("the path does not begin with `path_prefix` of the service")
                })?)
            }
            (None, _) => return refuse("the call has no path"),
        };
    set(request, target, host)
}

/// Replaces the target by one in origin-form, and `Host` if the host is known.
fn set<B>(
    request: &mut Request<B>,
    target: Option<PathAndQuery>,
    host: Option<HeaderValue>,
) -> Result<(), Failure> {
    let target = target.ok_or_else(|| bad("the original target has no path"))?;
    *request.uri_mut() = Uri::from(target);
    if let Some(host) = host {
        request.headers_mut().insert(HOST, host);
    }
    Ok(())
}

fn required<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Result<&'h HeaderValue, Failure> {
    single(headers, name)?
        .ok_or_else(|| Failure::BadRequest(format!("the call has no {name}").into()))
}

/// The value of a header that may occur once.
fn single<'h>(
    headers: &'h HeaderMap,
    name: &HeaderName,
) -> Result<Option<&'h HeaderValue>, Failure> {
    let mut all = headers.get_all(name).iter();
    match (all.next(), all.next()) {
        (first, None) => Ok(first),
        _ => Err(Failure::BadRequest(format!("the call has {name} twice").into())),
    }
}

fn refuse<T>(why: &'static str) -> Result<T, Failure> {
    Err(bad(why))
}

fn bad(why: &'static str) -> Failure {
    Failure::BadRequest(why.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ServiceListener;
    use rstest::rstest;

    const AUTO: OriginalRequest = OriginalRequest::Auto;

    /// The method, the target and the host that a call describes.
    fn read(
        original: OriginalRequest,
        path_prefix: &str,
        (method, target): (&str, &str),
        fields: &[(&str, &str)],
    ) -> Option<String> {
        let listener =
            ServiceListener { listen: ([127, 0, 0, 1], 0).into(), tls: None, token: None };
        let path_prefix = path_prefix.to_owned();
        let config = ForwardAuthConfig { listener, original, path_prefix, denied_status: None };
        let mut call = Request::builder().method(method).uri(target).header(HOST, "own");
        for (name, value) in fields {
            call = call.header(*name, *value);
        }
        let mut call = call.body(()).expect("a request");
        restore(&mut call, &config).ok()?;
        let host = call.headers().get(HOST).and_then(|host| host.to_str().ok());
        Some(format!("{} {} {}", call.method(), call.uri(), host.unwrap_or("-")))
    }

    #[rstest]
    #[case::traefik(
        &[("x-forwarded-method", "POST"), ("x-forwarded-uri", "/a?b=%2F"), ("x-forwarded-host", "h:1")],
        Some("POST /a?b=%2F h:1")
    )]
    #[case::forwarded_without_more(&[("x-forwarded-uri", "/a")], Some("GET /a own"))]
    #[case::nginx(&[("x-original-uri", "/a"), ("x-original-method", "PUT")], Some("PUT /a own"))]
    #[case::ingress_nginx(&[("x-original-url", "https://h/a?b"), ("x-original-method", "GET")], Some("GET /a?b h"))]
    #[case::absolute(&[("x-original-uri", "http://h/a")], Some("GET /a h"))]
    #[case::absolute_without_a_path(&[("x-original-uri", "http://h")], Some("GET / h"))]
    #[case::absolute_with_a_query_alone(&[("x-forwarded-uri", "http://h?a=b")], Some("GET /?a=b h"))]
    #[case::absolute_with_a_fragment_alone(&[("x-original-url", "http://h#a")], Some("GET / h"))]
    #[case::a_caller_of_nginx_names_a_host(&[("x-original-uri", "/a"), ("x-forwarded-host", "evil")], Some("GET /a own"))]
    #[case::a_caller_of_nginx_names_a_method(
        &[("x-original-uri", "/a"), ("x-original-method", "PUT"), ("x-forwarded-method", "GET")],
        Some("PUT /a own")
    )]
    #[case::envoy(&[("x-forwarded-method", "PUT")], Some("GET /auth own"))]
    #[case::two_kinds(&[("x-forwarded-uri", "/a"), ("x-original-uri", "/a")], None)]
    #[case::two_of_a_kind(&[("x-original-url", "/a"), ("x-original-uri", "/a")], None)]
    #[case::twice(&[("x-forwarded-uri", "/a"), ("x-forwarded-uri", "/b")], None)]
    #[case::no_target(&[("x-forwarded-uri", "")], None)]
    #[case::no_method(&[("x-forwarded-uri", "/a"), ("x-forwarded-method", "")], None)]
    #[case::a_space(&[("x-forwarded-uri", "/a b")], None)]
    fn reads_the_original_request_from_proxy_headers(
        #[case] fields: &[(&str, &str)],
        #[case] expected: Option<&str>,
    ) {
        assert_eq!(read(AUTO, "", ("GET", "/auth"), fields).as_deref(), expected);
    }

    #[rstest]
    #[case::forwarded(OriginalRequest::Forwarded, Some("GET /f own"))]
    #[case::original(OriginalRequest::Original, Some("GET /o own"))]
    #[case::target(OriginalRequest::Target, Some("GET /auth own"))]
    fn a_pinned_source_ignores_other_headers(
        #[case] original: OriginalRequest,
        #[case] expected: Option<&str>,
    ) {
        let fields = [("x-forwarded-uri", "/f"), ("x-original-uri", "/o")];
        assert_eq!(read(original, "", ("GET", "/auth"), &fields).as_deref(), expected);
    }

    #[rstest]
    #[case::a_path("/paceway/a/b?c", Some("POST /a/b?c own"))]
    #[case::nothing_more("/paceway", Some("POST / own"))]
    #[case::a_query("/paceway?c", Some("POST /?c own"))]
    #[case::the_root("/paceway/", Some("POST / own"))]
    #[case::longer("/paceways/a", None)]
    #[case::without("/a", None)]
    #[case::in_http_2("http://h/paceway/a", Some("POST /a h"))]
    fn strips_the_configured_prefix(#[case] target: &str, #[case] expected: Option<&str>) {
        assert_eq!(read(AUTO, "/paceway", ("POST", target), &[]).as_deref(), expected);
    }
}
