//! Lists the changes that a route and its upstream make to headers. Shows no secret.

use crate::{
    config::{Route, Upstream},
    upstream::headers::Replacement,
};
use http::{HeaderName, HeaderValue};
use std::borrow::Cow;

/// Lists the changes to headers in the order in which the gateway makes them.
pub(super) fn changes(upstream: &Upstream, route: &Route) -> Vec<String> {
    let mut all = Vec::new();
    let of_upstream = format!("of upstream {}", upstream.name);
    let (first, then) = (&upstream.headers, &route.headers);
    for (what, pair) in [
        ("request", [&first.request, &then.request]),
        ("response", [&first.response, &then.response]),
        ("own answer", [&first.own, &then.own]),
    ] {
        for (edits, from) in pair.into_iter().zip([&*of_upstream, "of the route"]) {
            let removed = edits.remove.iter().map(|name| format!("removes {name}"));
            let replaced = edits.replace.iter().flat_map(|(name, new)| replacements(name, new));
            let set =
                edits.set.iter().map(|(name, value)| format!("sets {name}: {}", shown(value)));
            let added =
                edits.add.iter().map(|(name, value)| format!("adds {name}: {}", shown(value)));
            all.extend(
                removed
                    .chain(replaced)
                    .chain(set)
                    .chain(added)
                    .map(|change| format!("{what} {change}, {from}")),
            );
        }
    }
    all
}

fn replacements(name: &HeaderName, replacement: &Replacement) -> Vec<String> {
    if replacement.is_auto {
        return vec![format!("replaces the upstream's URL in {name} by the gateway's")];
    }
    let all = replacement.prefixes.iter();
    all.map(|prefix| format!("replaces {} in {name} by {}", prefix.from, shown(&prefix.to)))
        .collect()
}

fn shown(value: &HeaderValue) -> Cow<'_, str> {
    if value.is_sensitive() { "***".into() } else { String::from_utf8_lossy(value.as_bytes()) }
}
