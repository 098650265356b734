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
        let names: Vec<_> = by.iter().map(|name| name.as_str()).collect();
        let names =
            if names.is_empty() { String::new() } else { format!(" and {}", names.join(", ")) };
        lines.push(format!(
            "identical ones that wait are one call; they agree in the URL, the keys, all credentials{names}"
        ));
    }
    if route.revalidate.is_some() && *method == Method::GET && !has_condition(headers) {
        let free = "a kept answer is sent if the upstream confirms it; it is asked each time";
        lines.push(free.to_owned());
    }
    lines
}
