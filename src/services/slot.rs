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

/// Waits for the slot of a request, and spends it. Returns the headers of the answer to the proxy. They describe the
/// concurrency permits that the request holds from then on.
///
/// # Errors
///
/// Those of the data plane, and [`Failure::BadRequest`] for a header that some programs read as one of a limiter.
pub(super) async fn take_slot<'a>(
    exchange: &mut Exchange<'a>,
    routed: &mut Routed<'a>,
) -> Result<HeaderMap, Failure> {
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
            accounts = exchange.open_accounts(routed.policy, own.as_ref()).await?;
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
    let mut headers = headers_of(&exchange.record, proxy.plan(), &leases);
    if let Some(mut accounts) = accounts {
        accounts.take(exchange.record.account);
        exchange.record.account = accounts.chosen();
        headers.extend(accounts.label().map(|label| (PACEWAY_ACCOUNT.clone(), label.clone())));
        accounts.add_headers(&mut headers);
    }
    Ok(headers)
}

/// The headers of the answer to a request whose slot has come.
fn headers_of(record: &Record<'_>, plan: &Plan, leases: &[LeasedPermit]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(PACEWAY_ORIGIN, HeaderValue::from_static("gateway"));
    headers.insert(&X_REQUEST_ID, record.id.clone());
    record.tell(&mut headers);
    for lease in leases.iter().filter_map(|permit| describe_lease(plan, permit)) {
        headers.append(&PACEWAY_LEASE, lease);
    }
    headers
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
