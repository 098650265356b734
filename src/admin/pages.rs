//! The list of pages, at `/`. It shows no state.

use axum::{
    Json,
    http::{HeaderMap, header::ACCEPT},
    response::{IntoResponse, Response},
};
use serde_json::json;

/// The methods of each page, its path, and a short description.
const PAGES: [(&str, &str, &str); 13] = [
    ("GET", "/metrics", "metrics for Prometheus"),
    ("GET", "/healthz", "200 while the process lives"),
    ("GET", "/readyz", "200 when the gateway can serve, otherwise 503 with the reasons"),
    ("POST", "/reload", "reads the configuration again"),
    ("GET", "/limiters", "the state of every limiter"),
    ("GET, DELETE", "/limiters/NAME", "the state of one limiter; DELETE resets it"),
    ("PUT, DELETE", "/limiters/NAME/override", "another rate or mode, or a pause, on all gateways"),
    ("GET, PUT, DELETE", "/limiting", "switches limiting off or on, on all gateways"),
    ("GET, DELETE", "/limiters/NAME/keys", "the keys that are in use; DELETE resets all of them"),
    ("GET, DELETE", "/limiters/NAME/keys/KEY", "the same for one key of a limiter"),
    ("POST", "/limiters/NAME/acquire", "takes permits without a request to the gateway"),
    ("POST", "/limiters/NAME/renew", "renews a lease that acquire gave"),
    ("POST", "/limiters/NAME/release", "releases a lease that acquire gave"),
];

/// Lists the pages, as JSON if the request accepts `application/json`, otherwise as text.
pub(super) async fn index(headers: HeaderMap) -> Response {
    let mut accepted = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    if accepted.any(|value| value.contains("application/json")) {
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
