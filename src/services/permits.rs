//! The permits of programs: how a call names, takes, renews and releases them, and the JSON of a decision. For
//! `services.decisions` and for the admin side.

use crate::{
    algorithm::{Grant, Level, Micros, concurrency::Ticket},
    limit::{LeasedPermit, Reservation},
    plan::LimiterPlan,
    store::{Check, Source, Store, StoreError},
};
use http::{HeaderMap, HeaderValue, header::HOST, uri::Authority};
use serde_json::{Value, json};
use std::{net::IpAddr, sync::Arc};

/// Returns the checks with which a limiter is asked about one bucket. A person may have typed the `key`.
///
/// # Errors
///
/// A sentence for the program: the cost is none that the limiter gives, or the key is missing or too much.
pub(crate) fn checks(
    plan: &LimiterPlan,
    key: Option<&str>,
    cost: i64,
) -> Result<Vec<Check>, String> {
    let own = plan.limiter.key.as_ref().zip(key).map(|(template, key)| template.canonical(key));
    let capacity = plan.capacity(own.as_deref());
    if !(1..=capacity).contains(&cost) {
        return Err(format!("`cost` must be between 1 and {capacity}"));
    }
    match (&plan.limiter.key, key) {
        (None, None) | (Some(_), Some(_)) => Ok(plan.checks(own.as_deref(), cost).collect()),
        (Some(template), None) => Err(format!(
            "this limiter has a bucket for each `{}`; name one, as `key` in the body or in /limiters/{}/keys/KEY",
            template.text(),
            plan.limiter.name
        )),
        (None, Some(_)) => Err("this limiter has one bucket for all; give no key".into()),
    }
}

/// The name of a concurrency permit, by which a program renews and releases it.
pub(crate) fn lease_name(Grant { whole: gateway, ticks: number, .. }: Grant) -> String {
    format!("{gateway}-{number}")
}

/// The permit that a program names by the `lease` that it was given: its [`lease_name`].
///
/// # Errors
///
/// A sentence for the program.
pub(crate) fn find_permit(
    plan: &LimiterPlan,
    key: Option<&str>,
    lease: &str,
) -> Result<LeasedPermit, String> {
    let check = checks(plan, key, 1)?.into_iter().find(Check::is_lease);
    let check = check.ok_or("only a concurrency limiter has leases")?;
    let ids = lease.split_once('-').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    let fits = |id: &i64| (0..1 << 53).contains(id);
    let (gateway, number) = ids
        .filter(|(gateway, number)| fits(gateway) && fits(number))
        .ok_or("`lease` is not what `acquire` gave")?;
    Ok(LeasedPermit { check, grant: Ticket { gateway, number, deadline: 0 }.grant() })
}

/// Extends a permit by its lease, and writes the answer.
///
/// # Errors
///
/// Those of the store.
pub(crate) async fn renew(permit: LeasedPermit, store: &dyn Store) -> Result<Value, StoreError> {
    let renewed = store.renew(Source::Shared, &permit.check, permit.grant).get().await?;
    Ok(json!({ "renewed": renewed }))
}

/// Ends a permit, and writes the answer.
pub(crate) fn release(permit: LeasedPermit, store: &Arc<dyn Store>) -> Value {
    permit.release(store, Source::Shared);
    json!({ "released": true })
}

/// Permits that a program uses from now on.
pub(crate) struct GivenPermits {
    /// The decision as JSON.
    pub(crate) answer: Value,
    /// The concurrency permits among them.
    pub(crate) leases: Vec<LeasedPermit>,
}

/// Gives a program its permits, of which the limiter `name` bound, at once or after the `wait`.
pub(crate) fn give(name: &str, wait: Micros, reservation: &mut Reservation) -> GivenPermits {
    let (limit, level) = (reservation.bound().algorithm.limit(), reservation.level);
    let mut answer = describe(name, None, wait, limit, level);
    let leases = reservation.hand_over();
    if let Some(LeasedPermit { check, grant }) = leases.first() {
        answer["lease"] = lease_name(*grant).into();
        answer["lease_ms"] = (check.algorithm.lease().unwrap_or_default() / 1000).into();
    }
    GivenPermits { answer, leases }
}

/// Writes the decision on a call for which no limiter counts now: `limiter` gives all of its permits.
pub(crate) fn give_uncounted(limiter: &LimiterPlan, limit: i64) -> Value {
    let level = Level { remaining: limit, ..Level::default() };
    describe(&limiter.limiter.name, None, 0, limit, level)
}

/// Writes the figures of a decision. `limited` is the time in µs after which to ask again, `None` if permits were given.
pub(crate) fn describe(
    name: &str,
    limited: Option<Micros>,
    wait: Micros,
    limit: i64,
    level: Level,
) -> Value {
    json!({
        "limiter": name,
        "limited": limited.is_some(),
        "wait_ms": if limited.is_some() { 0.0 } else { millis(wait) },
        "limit": limit,
        "remaining": level.remaining,
        "retry_after_ms": millis(limited.unwrap_or_default()),
        "reset_after_ms": millis(level.reset_after),
    })
}

/// A span of µs in ms, as JSON has it.
pub(crate) fn millis(micros: Micros) -> f64 {
    micros as f64 / 1000.0
}

/// Returns the message of the JSON parser in the words of JSON, and without the text that it quotes from the body, which may be
/// a credential.
pub(crate) fn in_plain_words(said: &str) -> String {
    const TYPES: [(&str, &str); 6] = [
        ("expected u64", "expected a whole number"),
        ("expected i64", "expected a whole number"),
        ("expected a boolean", "expected `true` or `false`"),
        ("expected a sequence", "expected a list"),
        ("type: sequence", "type: list"),
        ("into the target type", "as this call"),
    ];
    let said = match (said.find('"'), said.rfind('"')) {
        (Some(start), Some(end)) if start < end => {
            format!("{}\"***\"{}", &said[..start], &said[end + 1..])
        }
        _ => said.to_owned(),
    };
    let said = TYPES.iter().fold(said, |said, (theirs, plain)| said.replace(theirs, plain));
    // The name of a structure is followed by the place.
    match said.split_once("expected struct ") {
        Some((before, after)) => {
            let place = after.split_once(' ').map_or("", |(_, place)| place);
            format!("{before}expected a map {place}").trim_end().to_owned()
        }
        None => said,
    }
}

/// The first `Host` that is neither an IP address nor `localhost`. A web page whose name resolves to this address sends it (DNS
/// rebinding). A request without `Host` comes from no browser.
pub(crate) fn foreign_host(headers: &HeaderMap) -> Option<String> {
    let is_own = |value: &&HeaderValue| {
        let Ok(authority) = Authority::try_from(value.as_bytes()) else { return false };
        let host = authority.host();
        let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        host.eq_ignore_ascii_case("localhost") || address.unwrap_or(host).parse::<IpAddr>().is_ok()
    };
    let foreign = headers.get_all(HOST).iter().find(|value| !is_own(value))?;
    Some(String::from_utf8_lossy(foreign.as_bytes()).into_owned())
}
