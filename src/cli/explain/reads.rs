//! The sentences of `explain` about reads that may cost nothing.

use crate::{
    config::Route,
    reads::{has_condition, is_plain_read},
};
use http::{HeaderMap, Method};
use std::time::Duration;

/// Returns the sentences about a read of `route` that may wait for `wait`; none about other requests.
pub(super) fn lines(
    route: &Route,
    method: &Method,
    headers: &HeaderMap,
    wait: Duration,
) -> Vec<String> {
    let mut lines = Vec::new();
    if !is_plain_read(method, headers) {
        return lines;
    }
    if let Some(by) = route.share.as_ref().filter(|_| !wait.is_zero() && !route.limiters.is_empty())
    {
        let by = by.iter().map(|name| format!(", {name}"));
        let by: String = by.collect();
        lines.push(format!("identical ones that wait are one call, by URL, keys, credentials{by}"));
    }
    if route.revalidate.is_some() && *method == Method::GET && !has_condition(headers) {
        lines.push("a kept answer, if the upstream confirms it with a 304".to_owned());
    }
    lines
}
