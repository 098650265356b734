//! `RateLimit` and `RateLimit-Policy`: structured fields (RFC 9651) of draft-ietf-httpapi-ratelimit-headers. Drafts 03 to 10
//! differ in their form, and all of them are in use.

use sfv::{BareItem, Dictionary, List, ListEntry, Parameters, Parser};
use std::time::Duration;

/// A quota in one of the two fields.
#[derive(Debug, Default)]
pub(super) struct StructuredQuota {
    /// `"default"` of `"default";r=50;t=30`; empty in the drafts without names.
    pub(super) name: String,
    pub(super) limit: Option<u64>,
    pub(super) remaining: Option<u64>,
    pub(super) window: Option<Duration>,
    pub(super) reset: Option<Duration>,
    /// Whether `qu` says that it counts something else than requests, such as `content-bytes`.
    pub(super) is_of_other_unit: bool,
}

/// The longest field that is read, and the most quotas of one.
const MAX_LENGTH: usize = 4096;
const MAX_QUOTAS: usize = 16;

/// Reads a `RateLimit` field: `"default";r=50;t=30` (drafts 08 to 10), or `limit=100, remaining=50, reset=5` (06, 07).
pub(super) fn limits(field: &str) -> Vec<StructuredQuota> {
    let named = items(field, |quota, parameters| {
        quota.remaining = whole(parameters.get("r"));
        quota.reset = seconds(parameters.get("t"));
        quota.limit = whole(parameters.get("q"));
        quota.window = seconds(parameters.get("w"));
    });
    if named.iter().any(|quota| quota.remaining.is_some()) {
        named
    } else {
        members(field).into_iter().collect()
    }
}

/// Whether a quota named `name` can be added to a `RateLimit` or `RateLimit-Policy` field: the field is a list of named quotas
/// (drafts 08 to 10), and none of them has that name.
pub(crate) fn has_room_for(field: &str, name: &str) -> bool {
    let is_other = |entry: &ListEntry| {
        let ListEntry::Item(item) = entry else { return false };
        matches!(&item.bare_item, BareItem::String(own) if own.as_str() != name)
    };
    let list: Option<List> =
        (field.len() <= MAX_LENGTH).then(|| Parser::new(field).parse().ok()).flatten();
    list.is_some_and(|list| list.iter().all(is_other))
}

/// Reads a `RateLimit-Policy` field: `"burst";q=100;w=60` (drafts 08 to 10), or `100;w=60` (before).
pub(super) fn policies(field: &str) -> Vec<StructuredQuota> {
    items(field, |quota, parameters| {
        quota.limit = whole(parameters.get("q")).or(quota.limit);
        quota.window = seconds(parameters.get("w"));
    })
}

/// Reads a list of items with parameters. The name of each is a string or a token; a number is its limit.
fn items(field: &str, read: impl Fn(&mut StructuredQuota, &Parameters)) -> Vec<StructuredQuota> {
    if field.len() > MAX_LENGTH {
        return Vec::new();
    }
    let list: List = Parser::new(field).parse().unwrap_or_default();
    let quota = |entry: &ListEntry| {
        let ListEntry::Item(item) = entry else { return None };
        let mut quota = StructuredQuota::default();
        match &item.bare_item {
            BareItem::String(name) => quota.name = name.as_str().to_owned(),
            BareItem::Token(name) => quota.name = name.as_str().to_owned(),
            number => quota.limit = Some(whole(Some(number))?),
        }
        read(&mut quota, &item.params);
        let unit = item.params.get("qu");
        quota.is_of_other_unit = unit.is_some_and(|unit| !is_requests(unit));
        Some(quota)
    };
    list.iter().take(MAX_QUOTAS).filter_map(quota).collect()
}

/// Reads a dictionary of one quota.
fn members(field: &str) -> Option<StructuredQuota> {
    if field.len() > MAX_LENGTH {
        return None;
    }
    let members: Dictionary = Parser::new(field).parse().ok()?;
    let value = |name: &str| match members.get(name)? {
        ListEntry::Item(item) => Some(&item.bare_item),
        ListEntry::InnerList(_) => None,
    };
    Some(StructuredQuota {
        limit: whole(value("limit")),
        remaining: Some(whole(value("remaining"))?),
        reset: seconds(value("reset")),
        ..StructuredQuota::default()
    })
}

/// Whether a quota unit is that of requests, which is also the one of a quota without a unit.
fn is_requests(unit: &BareItem) -> bool {
    match unit {
        BareItem::String(unit) => unit.as_str() == "requests",
        BareItem::Token(unit) => unit.as_str() == "requests",
        _ => false,
    }
}

fn whole(value: Option<&BareItem>) -> Option<u64> {
    u64::try_from(i64::from(value?.as_integer()?)).ok()
}

fn seconds(value: Option<&BareItem>) -> Option<Duration> {
    whole(value).map(Duration::from_secs)
}
