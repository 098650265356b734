//! The page at `/`: the dashboard, or the list of all pages. It shows no state.

use super::page;
use axum::{
    Json,
    http::{HeaderMap, header::ACCEPT},
    response::{IntoResponse, Response},
};
use serde_json::json;

/// The directory of the dashboard's files.
pub(super) const ASSETS: &str = "/assets/";

/// The methods of each page, its path, and a short description.
const PAGES: [(&str, &str, &str); 24] = [
    ("GET", "/metrics", "metrics for Prometheus"),
    ("GET", "/healthz", "200 while the process lives"),
    ("GET", "/readyz", "200 when the gateway can serve, otherwise 503 with the reasons"),
    ("POST", "/reload", "reads the configuration again"),
    ("GET", "/status", "all that the dashboard shows, as JSON"),
    ("GET", "/events", "the same once a second, as server-sent events"),
    ("GET", "/routes", "the requests of each route over 15 minutes"),
    ("GET", "/upstreams", "the addresses of each upstream, and its answers over 15 minutes"),
    ("GET", "/upstreams/NAME/accounts", "the state and the quotas of each account"),
    (
        "PUT, DELETE",
        "/upstreams/NAME/accounts/ACCOUNT/park",
        "parks an account, on all gateways; DELETE lets it be used again",
    ),
    ("GET", "/requests", "the last requests that were held or refused, with the reasons"),
    ("GET", "/access", "whether this client may change anything"),
    ("GET", "/limiters", "the state of every limiter"),
    ("GET, DELETE", "/limiters/NAME", "the state of one limiter; DELETE resets it"),
    ("PUT, DELETE", "/limiters/NAME/override", "another rate or mode, or a pause, on all gateways"),
    ("GET, PUT, DELETE", "/limiting", "switches limiting off or on, on all gateways"),
    ("GET, DELETE", "/limiters/NAME/keys", "the keys that are in use; DELETE resets all of them"),
    ("GET, DELETE", "/limiters/NAME/keys/KEY", "the same for one key of a limiter"),
    (
        "PUT, DELETE",
        "/limiters/NAME/keys/KEY/override",
        "another rate for one key, on all gateways",
    ),
    ("GET", "/limiters/NAME/tenants", "the tenants that wait, with weight, priority and grants"),
    ("POST", "/limiters/NAME/estimate", "when calls would be sent; takes no permits"),
    ("POST", "/limiters/NAME/acquire", "takes permits without a request to the gateway"),
    ("POST", "/limiters/NAME/renew", "renews a lease that acquire gave"),
    ("POST", "/limiters/NAME/release", "releases a lease that acquire gave"),
];

/// Whether `Accept` names this type.
pub(super) fn accepts(headers: &HeaderMap, kind: &str) -> bool {
    let mut values = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    values.any(|value| value.contains(kind))
}

/// The dashboard for a browser, which accepts `text/html`. Otherwise the list of pages, as JSON if the request accepts
/// `application/json`, or else as text.
pub(super) async fn index(headers: HeaderMap) -> Response {
    if accepts(&headers, "text/html") {
        return page::index().into_response();
    }
    if accepts(&headers, "application/json") {
        let page = |(methods, path, what): &(&str, &str, &str)| {
            let methods: Vec<_> = methods.split(", ").collect();
            json!({ "methods": methods, "path": path, "what": what })
        };
        return Json(json!({ "pages": PAGES.iter().map(page).collect::<Vec<_>>() }))
            .into_response();
    }
    let line =
        |(methods, path, what): &(&str, &str, &str)| format!("{methods:<16}  {path:<23}  {what}\n");
    let lines: String = PAGES.iter().map(line).collect();
    format!("Paceway, the admin side\n\n{lines}").into_response()
}
