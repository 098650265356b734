//! The dashboard's page and its files. They show nothing by themselves; the page asks the others with the token that the
//! operator enters.

use super::page_error::PageError;
use axum::{
    extract::Path,
    http::{
        HeaderName, HeaderValue, StatusCode,
        header::{
            CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, VARY,
            X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
        },
    },
    response::IntoResponse,
};

/// Nothing is loaded from elsewhere, no text becomes code, and no other page can frame this one.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
    connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
    require-trusted-types-for 'script'; trusted-types 'none'";

const INDEX: &str = include_str!("page/index.html");

/// The name, the type and the content of each file.
static FILES: [(&str, &str, &str); FILE_COUNT] = [
    ("style.css", CSS, include_str!("page/style.css")),
    ("icon.svg", "image/svg+xml", include_str!("page/icon.svg")),
    ("main.js", JS, include_str!("page/main.js")),
    ("actions.js", JS, include_str!("page/actions.js")),
    ("chart.js", JS, include_str!("page/chart.js")),
    ("client.js", JS, include_str!("page/client.js")),
    ("config.js", JS, include_str!("page/config.js")),
    ("dom.js", JS, include_str!("page/dom.js")),
    ("facts.js", JS, include_str!("page/facts.js")),
    ("format.js", JS, include_str!("page/format.js")),
    ("keys.js", JS, include_str!("page/keys.js")),
    ("limiters.js", JS, include_str!("page/limiters.js")),
    ("menu.js", JS, include_str!("page/menu.js")),
    ("requests.js", JS, include_str!("page/requests.js")),
    ("routes.js", JS, include_str!("page/routes.js")),
    ("series.js", JS, include_str!("page/series.js")),
    ("store.js", JS, include_str!("page/store.js")),
    ("summary.js", JS, include_str!("page/summary.js")),
    ("tenants.js", JS, include_str!("page/tenants.js")),
    ("timeline.js", JS, include_str!("page/timeline.js")),
    ("upstreams.js", JS, include_str!("page/upstreams.js")),
];
const FILE_COUNT: usize = 21;
const JS: &str = "text/javascript; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";

/// The page itself.
pub(super) fn index() -> impl IntoResponse {
    (security(), [(VARY, "accept")], shown("text/html; charset=utf-8", INDEX))
}

/// A file of the page.
pub(super) async fn file(Path(name): Path<String>) -> Result<impl IntoResponse, PageError> {
    let found = FILES.iter().find(|(own, ..)| *own == name);
    let (_, kind, content) =
        found.ok_or_else(|| PageError(StatusCode::NOT_FOUND, "there is no such file".into()))?;
    Ok((security(), shown(kind, content)))
}

/// A restarted gateway may be another version, whose files differ.
fn shown(kind: &'static str, content: &'static str) -> impl IntoResponse {
    ([(CONTENT_TYPE, kind), (CACHE_CONTROL, "no-cache")], content)
}

fn security() -> [(HeaderName, HeaderValue); 4] {
    [
        (CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY)),
        (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (X_FRAME_OPTIONS, HeaderValue::from_static("DENY")),
        (REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn every_file_of_the_page_is_served() {
        let names = fs::read_dir("src/admin/page").expect("the directory").flatten();
        let names: Vec<_> =
            names.map(|entry| entry.file_name().into_string().expect("a name")).collect();
        assert_eq!(names.len(), FILES.len() + 1);
        for name in names.iter().filter(|name| *name != "index.html") {
            assert!(FILES.iter().any(|(own, ..)| own == name), "{name}");
        }
    }
}
