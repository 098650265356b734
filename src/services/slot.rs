//! The slot of a request that another proxy forwards: waits for it, and writes what the proxy learns.

use super::permits::lease_name;
use crate::{
    answer::{Failure, PACEWAY_ORIGIN},
    limit::{self, LeasedPermit},
    plan::Plan,
    proxy::{Attempt, Exchange, PACEWAY_ACCOUNT, Record, Routed, X_REQUEST_ID},
    store::Question,
    upstream::headers,
};
use http::{HeaderMap, HeaderName, HeaderValue};

/// A concurrency permit that the request holds from now on.
pub(super) static PACEWAY_LEASE: HeaderName = HeaderName::from_static("paceway-lease");

/// The headers that a proxy receives with the slot of a request.
pub(super) struct SlotHeaders {
    /// For the caller: how long the request waited, and with which account it is sent.
    pub(super) answer: HeaderMap,
    /// For the request: its concurrency permits, and the credentials of its account.
    pub(super) request: HeaderMap,
    /// Headers of the request that are credentials of other accounts.
    pub(super) removed: Vec<HeaderName>,
}

/// Waits for the slot of a request, and spends it.
///
/// # Errors
///
/// Those of the data plane, and [`Failure::BadRequest`] for a header that some programs read as one of a limiter.
pub(super) async fn take_slot<'a>(
    exchange: &mut Exchange<'a>,
    routed: &mut Routed<'a>,
) -> Result<SlotHeaders, Failure> {
    let own: Option<Question>;
    let mut accounts = None;
    let checks = match routed.fixed {
        Some(checks) => Some(checks),
        None => {
            // The program that asks forwards the request, so that nothing can be removed from it.
            let headers = exchange.arrival.request.headers();
            if let Some(name) = headers::alike(headers, &routed.policy.read_headers).next() {
                let why =
                    format!("a limiter reads a header that `{name}` is taken for by some programs");
                return Err(Failure::BadRequest(why.into()));
            }
            own = exchange.checks(routed).await?;
            exchange.check_rest().await?;
            accounts = exchange.open_accounts(routed, own.as_ref()).await?;
            own.as_ref().map(Question::first)
        }
    };
    let proxy = exchange.proxy;
    let mut leases = Vec::new();
    if let Some(checks) = checks {
        let (record, policy) = (&mut exchange.record, routed.policy);
        let attempt = Attempt::first(proxy, record, routed.route, policy, checks, routed.budget);
        let attempt = attempt.among(accounts.as_ref().and_then(|accounts| accounts.for_attempt()));
        let reservation = attempt.pace().await?;
        proxy.count_permits(policy, reservation.checks(), None);
        leases = reservation.leave();
    }
    exchange.record.note_sent();
    let mut slot = SlotHeaders::of(&exchange.record, proxy.plan(), &leases);
    if let Some(mut accounts) = accounts {
        accounts.take(exchange.record.account);
        exchange.record.account = accounts.chosen();
        slot.answer.extend(accounts.label().map(|own| (PACEWAY_ACCOUNT.clone(), own.clone())));
        accounts.add_headers(&mut slot.request);
        let names = accounts.names().iter();
        slot.removed = names.filter(|name| !slot.request.contains_key(*name)).cloned().collect();
    }
    Ok(slot)
}

// === impl SlotHeaders ===

impl SlotHeaders {
    /// The headers for a request whose slot has come, and that holds these permits from then on.
    fn of(record: &Record<'_>, plan: &Plan, leases: &[LeasedPermit]) -> Self {
        let (mut answer, mut request) = (HeaderMap::new(), HeaderMap::new());
        answer.insert(PACEWAY_ORIGIN, HeaderValue::from_static("gateway"));
        answer.insert(&X_REQUEST_ID, record.id.clone());
        record.tell(&mut answer);
        for lease in leases.iter().filter_map(|permit| describe_lease(plan, permit)) {
            request.append(&PACEWAY_LEASE, lease);
        }
        Self { answer, request, removed: Vec::new() }
    }

    /// All of them in one answer, for a proxy that chooses by their names.
    pub(super) fn all(self) -> HeaderMap {
        let mut all = self.answer;
        all.extend(self.request);
        all
    }
}

/// Describes a concurrency permit, so that a program can renew and release it: the limiter, the lease, the key if there is
/// one, and the time until the lease expires.
pub(super) fn describe_lease(plan: &Plan, permit: &LeasedPermit) -> Option<HeaderValue> {
    let LeasedPermit { check, grant } = permit;
    let (limiter, key) = plan.owner(&check.key)?;
    let mut text = format!("{}; lease=\"{}\"", limiter.limiter.name, lease_name(*grant));
    if let Some(key) = key {
        text.push_str(&format!("; key=\"{}\"", quotable(key)));
    }
    let seconds = limit::duration(check.algorithm.lease().unwrap_or_default()).as_secs_f64();
    text.push_str(&format!("; expires={seconds:.3}"));
    HeaderValue::from_str(&text).ok()
}

/// A text as a quoted string of a header (RFC 9651 section 3.3.3). Names of states hold letters of ASCII alone.
fn quotable(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"")
}
