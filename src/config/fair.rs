//! The turns of requests that wait for one limiter, as the configuration says them: the tenants of `fair` with their
//! weights, and the priority of a request. Decides no turn.

use crate::{
    algorithm::fair::{NO_TENANT, Priority},
    key::{Parts, Template, only_field},
};
use http::{HeaderMap, HeaderName, HeaderValue};
use sfv::{BareItem, Dictionary, ListEntry, Parser};
use std::collections::BTreeMap;

/// The names of the priorities, the highest first.
pub const PRIORITIES: [(&str, Priority); 3] =
    [("high", Priority::High), ("normal", Priority::Normal), ("low", Priority::Low)];

const PRIORITY: HeaderName = HeaderName::from_static("priority");
/// The longest `Priority` field that is read. A browser sends `u=1, i`.
const MAX_PRIORITY: usize = 256;

/// `fair` of a limiter: its slots are shared among the tenants that wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FairSharing {
    /// The template that assigns requests to tenants.
    pub by: Template,
    /// The weights of tenants by name, in the form that [`Template::fill`] gives a name. All others have weight 1.
    pub weights: BTreeMap<String, i64>,
}

/// `priority` of a route.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub enum PriorityRule {
    /// `normal`, which a route without `priority` has.
    #[default]
    Normal,
    /// `high`: before all others.
    High,
    /// `low`: after all others.
    Low,
    /// The name of a priority in this header, from trusted callers.
    Header(HeaderName),
    /// The urgency of the `Priority` field (RFC 9218), from trusted callers.
    Rfc9218,
}

/// The name of a priority in the configuration, in metrics and on pages.
pub fn priority_name(priority: Priority) -> &'static str {
    let named = PRIORITIES.iter().find(|(_, own)| *own == priority);
    named.map_or("normal", |(name, _)| name)
}

// === impl FairSharing ===

impl FairSharing {
    /// The tenant of a request.
    ///
    /// # Errors
    ///
    /// Those of [`Template::fill`].
    pub fn tenant(&self, parts: &Parts<'_>) -> Result<String, String> {
        let tenant = self.by.fill(parts)?;
        Ok(if tenant.is_empty() { no_tenant() } else { tenant })
    }

    /// The weight of a tenant that [`Self::tenant`] has returned.
    pub fn weight(&self, tenant: &str) -> i64 {
        self.weights.get(tenant).copied().unwrap_or(1)
    }
}

/// The tenant of requests at a limiter that shares nothing.
pub(super) fn no_tenant() -> String {
    NO_TENANT.to_owned()
}

// === impl PriorityRule ===

impl PriorityRule {
    /// The priority of every request of the route; `None` if a request says its own.
    pub fn fixed(&self) -> Option<Priority> {
        match self {
            Self::Normal => Some(Priority::Normal),
            Self::High => Some(Priority::High),
            Self::Low => Some(Priority::Low),
            Self::Header(_) | Self::Rfc9218 => None,
        }
    }

    /// The priority of a request with these headers. Only a trusted caller can claim one; every other request, and one whose
    /// claim has no sense, is `normal`.
    ///
    /// # Errors
    ///
    /// A message for the caller, if the header comes more than once: a proxy that adds a field of its own to that of its
    /// caller leaves two.
    pub fn of(&self, headers: &HeaderMap, is_trusted: bool) -> Result<Priority, String> {
        let claimed = match self {
            Self::Header(name) => {
                only_field(headers, name)?.filter(|_| is_trusted).and_then(|value| {
                    let value = value.as_bytes().trim_ascii();
                    let is_it =
                        |(name, _): &&(&str, _)| value.eq_ignore_ascii_case(name.as_bytes());
                    PRIORITIES.iter().find(is_it).map(|(_, priority)| *priority)
                })
            }
            Self::Rfc9218 if is_trusted => urgency(headers),
            rule => rule.fixed(),
        };
        Ok(claimed.unwrap_or(Priority::Normal))
    }
}

/// The priority by the urgency `u` of RFC 9218 section 4.1, from 0 to 7: the default is 3, and 7 is for background work.
fn urgency(headers: &HeaderMap) -> Option<Priority> {
    let fields: Vec<_> = headers.get_all(PRIORITY).iter().map(HeaderValue::as_bytes).collect();
    if fields.iter().map(|field| field.len()).sum::<usize>() > MAX_PRIORITY {
        return None;
    }
    let field = fields.join(&b", "[..]);
    let field = Parser::new(&field).parse::<Dictionary>().ok()?;
    let ListEntry::Item(item) = field.get("u")? else { return None };
    let BareItem::Integer(urgency) = item.bare_item else { return None };
    match i64::from(urgency) {
        0..=2 => Some(Priority::High),
        5..=7 => Some(Priority::Low),
        // A value out of range has no effect (section 4).
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::background("u=7", Priority::Low)]
    #[case::low("u=5", Priority::Low)]
    #[case::below_the_default("u=4", Priority::Normal)]
    #[case::default("u=3", Priority::Normal)]
    #[case::high("u=2", Priority::High)]
    #[case::browser("u=1, i", Priority::High)]
    #[case::most("u=0", Priority::High)]
    #[case::above("u=8", Priority::Normal)]
    #[case::below("u=-1", Priority::Normal)]
    #[case::a_fraction("u=1.0", Priority::Normal)]
    #[case::a_word("u=high", Priority::Normal)]
    #[case::incremental_alone("i", Priority::Normal)]
    #[case::the_last_counts("u=0, u=7", Priority::Low)]
    #[case::broken("u=", Priority::Normal)]
    #[case::empty("", Priority::Normal)]
    fn an_urgency_is_a_priority(#[case] field: &'static str, #[case] expected: Priority) {
        let headers = HeaderMap::from_iter([(PRIORITY, HeaderValue::from_static(field))]);
        assert_eq!(PriorityRule::Rfc9218.of(&headers, true), Ok(expected));
        assert_eq!(PriorityRule::Rfc9218.of(&headers, false), Ok(Priority::Normal));
        assert_eq!(PriorityRule::Low.of(&headers, true), Ok(Priority::Low));
    }

    #[rstest]
    #[case::high("high", Priority::High)]
    #[case::capitals(" LOW ", Priority::Low)]
    #[case::normal("normal", Priority::Normal)]
    #[case::unknown("urgent", Priority::Normal)]
    #[case::empty("", Priority::Normal)]
    #[case::a_list("high, low", Priority::Normal)]
    fn a_header_of_a_trusted_caller_is_a_priority(
        #[case] value: &'static str,
        #[case] expected: Priority,
    ) {
        let name = HeaderName::from_static("x-priority");
        let headers = HeaderMap::from_iter([(name.clone(), HeaderValue::from_static(value))]);
        let rule = PriorityRule::Header(name);
        assert_eq!(rule.of(&headers, true), Ok(expected));
        assert_eq!(rule.of(&headers, false), Ok(Priority::Normal));
        assert_eq!(rule.of(&HeaderMap::new(), true), Ok(Priority::Normal));
    }

    #[test]
    fn refuses_a_header_of_a_priority_that_comes_twice() {
        let name = HeaderName::from_static("x-priority");
        let mut headers = HeaderMap::new();
        for value in ["high", "low"] {
            headers.append(&name, HeaderValue::from_static(value));
        }
        for is_trusted in [true, false] {
            assert!(PriorityRule::Header(name.clone()).of(&headers, is_trusted).is_err());
        }
    }
}
