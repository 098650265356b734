//! Envoy's rate limit service: a call describes a request by descriptors, and the answer comes when the slot has come. Each
//! descriptor that the configuration matches has the limiters and the budget of its entry, which is a route without paths.

#[cfg(fuzzing)]
pub(super) mod fuzzing;
mod messages;

use super::{
    ServiceCall,
    slot::describe_lease,
    unary::{AddedHeader, UnaryMethod, answer_call, text},
};
use crate::{
    algorithm::Level,
    answer::{Failure, Policy, Quota, grpc},
    config::{Rate, ServiceListener},
    key::{Descriptor, Parts},
    limit::{self, Reservation},
    plan::{Plan, PolicyChecks, RoutePolicy, Unpayable},
    proxy::{Attempt, Client, Proxy, Record, Replied, budget},
    upstream::Upload,
};
use http::{HeaderMap, Request, Response, StatusCode};
use messages::{
    CurrentLimit, DescriptorStatus, RateLimitCode, RateLimitDescriptor, RateLimitRequest,
    RateLimitResponse,
};
use std::time::Duration;

/// The only method. A question has at most 64 KiB.
const SHOULD_RATE_LIMIT: UnaryMethod = UnaryMethod {
    path: "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
    message: "RateLimitRequest",
    most: 64 << 10,
};
/// The most descriptors of a question that are decided. Envoy sends some.
const MOST_DESCRIPTORS: usize = 64;
/// The headers of a refusal that the caller gets.
const PASSED_ON: [&str; 3] = ["retry-after", "ratelimit", "ratelimit-policy"];

/// The decision on one descriptor.
struct DescriptorVerdict {
    status: DescriptorStatus,
    /// The permits of a descriptor that is granted; `None` if it takes none.
    reservation: Option<Reservation>,
    /// The headers of a refusal.
    refusal: Option<HeaderMap>,
}

/// A call of Envoy, without its body.
#[derive(Clone, Copy)]
struct DescribedCall<'p> {
    proxy: &'p Proxy,
    client: &'p Client,
    head: &'p Request<()>,
}

/// Decides the descriptors of a call of Envoy.
pub(super) async fn serve(
    call: ServiceCall<'_>,
    listener: &ServiceListener,
    head: &mut Response<()>,
) -> Replied {
    let (client, is_call) = (call.client, grpc::is_call(&call.arrival.request));
    answer_call(client, is_call, decide_all(call, listener), head).await
}

async fn decide_all(
    mut call: ServiceCall<'_>,
    listener: &ServiceListener,
) -> Result<RateLimitResponse, Failure> {
    let asked: RateLimitRequest = call.read_message(listener, SHOULD_RATE_LIMIT).await?;
    if asked.descriptors.len() > MOST_DESCRIPTORS {
        return Err(Failure::BadRequest("there are more than 64 descriptors".into()));
    }
    let ServiceCall { service, proxy, counters, client, arrival } = call;
    let plan = proxy.plan();
    let hits = u64::from(asked.hits_addend.max(1));
    let id = proxy.request_id(&mut arrival.request);
    let call = DescribedCall { proxy, client, head: &head_of(&arrival.request) };
    let (mut answer, mut granted) = (RateLimitResponse::default(), Vec::new());
    answer.overall_code = RateLimitCode::Ok.into();
    for descriptor in &asked.descriptors {
        let pairs = || descriptor.entries.iter().map(|entry| (&*entry.key, &*entry.value));
        let Some(rule) = plan.config.descriptors.iter().find(|rule| rule.takes(pairs)) else {
            // No limiter is for it.
            answer.statuses.push(DescriptorStatus::ok());
            continue;
        };
        let mut record = Record::new(proxy, client, id.clone(), call.head);
        record.serves(service, counters);
        record.route = Some(rule.route);
        let hits = descriptor.hits_addend.as_ref().map_or(hits, |own| own.value);
        let verdict = match call.decide(&mut record, rule.route, descriptor, hits).await {
            Ok(verdict) => verdict,
            Err(failure) => {
                record.refusal(&failure, true);
                return Err(failure);
            }
        };
        answer.statuses.push(verdict.status);
        let Some(refusal) = verdict.refusal else {
            granted.push((record, verdict.reservation));
            continue;
        };
        answer.overall_code = RateLimitCode::OverLimit.into();
        answer.response_headers_to_add.extend(added(&refusal, &PASSED_ON));
    }
    if answer.overall_code == i32::from(RateLimitCode::Ok) {
        for (mut record, reservation) in granted {
            record.note_sent();
            record.note_answer(StatusCode::OK);
            let leases = reservation.map(|own| hand_over(plan, own)).unwrap_or_default();
            answer.request_headers_to_add.extend(leases);
        }
    }
    // The permits of the others are refunded when one is refused.
    Ok(answer)
}

/// Uses permits that Envoy may give back, except concurrency permits: it returns the headers that describe these.
fn hand_over(plan: &Plan, mut reservation: Reservation) -> Vec<AddedHeader> {
    let left = reservation.hand_over();
    let rates = 0..reservation.checks().len();
    rates.filter_map(|i| reservation.settlement(i)).for_each(|own| plan.taken_permits.keep(own));
    let leases = left.iter().filter_map(|permit| describe_lease(plan, permit));
    let added = leases.filter_map(|lease| {
        Some(AddedHeader { key: "paceway-lease".into(), value: text(&lease)? })
    });
    added.collect()
}

// === impl DescribedCall ===

impl<'p> DescribedCall<'p> {
    /// Gives back what earlier descriptors took of the same buckets.
    fn give_back(
        &self,
        policy: &RoutePolicy,
        parts: &Parts<'_>,
        hits: u64,
        rate: Option<Rate>,
    ) -> Result<(), Unpayable> {
        let plan = self.proxy.plan();
        let checks = policy.descriptor_checks(&plan.limiters, parts, hits.min(1), rate)?;
        let hits = i64::try_from(hits).unwrap_or(i64::MAX);
        for check in checks.iter().flat_map(|own| own.checks.iter()) {
            plan.taken_permits.give_back(&check.key, check.cost.saturating_mul(hits));
        }
        Ok(())
    }

    /// Answers a descriptor whose hits no limiter ever gives. An error would let the request pass in Envoy.
    fn refuse_always(
        &self,
        record: &mut Record<'_>,
        unpayable: Unpayable,
        rate: Option<Rate>,
    ) -> DescriptorVerdict {
        let Unpayable { limiter, why } = unpayable;
        record.refusal(&Failure::BadRequest(why.into()), true);
        let policy = limiter.map(|limiter| {
            let policy = self.proxy.plan().limiters[limiter].policy(0, "", Level::default());
            Policy { quota: own_quota(policy.quota, rate), ..policy }
        });
        let status = status(RateLimitCode::OverLimit, policy.as_ref(), 0, Duration::ZERO);
        DescriptorVerdict::refuse(status, HeaderMap::new())
    }

    fn parts<'a>(&'a self, descriptor: Descriptor<'a>) -> Parts<'a> {
        let (config, head) = (&self.proxy.plan().config, self.head);
        Parts {
            client_ip: self.client.client_ip(head.headers(), &config.trusted_proxies),
            host: None,
            method: head.method(),
            uri: head.uri(),
            headers: head.headers(),
            body: None,
            body_length: None,
            paths: config.paths,
            template: None,
            descriptor: Some(descriptor),
            account: None,
        }
    }

    /// Decides one descriptor, and waits for its slot.
    async fn decide(
        &self,
        record: &mut Record<'p>,
        route: usize,
        descriptor: &RateLimitDescriptor,
        hits: u64,
    ) -> Result<DescriptorVerdict, Failure> {
        let Self { proxy, head, .. } = *self;
        let plan = proxy.plan();
        let policy = &plan.policies[proxy.counters().direct[route].policy];
        proxy.require_limiters(policy)?;
        let pairs: Vec<_> =
            descriptor.entries.iter().map(|entry| (&*entry.key, &*entry.value)).collect();
        let parts = self.parts(Descriptor(&pairs));
        let pass = || DescriptorVerdict::pass(DescriptorStatus::ok(), None);
        let rate = match &descriptor.limit {
            Some(own) if policy.has_limiters() => match own.rate() {
                Some(rate) => Some(rate),
                None => {
                    let why = "`limit` of a descriptor allows no request in a unit of time".into();
                    return Ok(self.refuse_always(record, Unpayable { limiter: None, why }, None));
                }
            },
            _ => None,
        };
        if descriptor.is_negative_hits {
            let given = self.give_back(policy, &parts, hits, rate);
            return Ok(given.map_or_else(|why| self.refuse_always(record, why, rate), |()| pass()));
        }
        let asked = policy.descriptor_checks(&plan.limiters, &parts, hits, rate);
        let PolicyChecks { checks, policy } = match asked {
            Ok(Some(checks)) => checks,
            Ok(None) => return Ok(pass()),
            Err(why) => return Ok(self.refuse_always(record, why, rate)),
        };
        let budget = budget(policy.max_wait, policy.max_wait_cap, head.headers());
        let attempt = Attempt::first(proxy, record, route, policy, &checks, budget);
        let reservation = match attempt.pace().await {
            Ok(reservation) => reservation,
            Err(failure) => return refuse_for(failure, record, rate),
        };
        let owner = policy.owner(reservation.bound_by);
        let level = reservation.level;
        let mut policy =
            plan.limiters[owner.limiter].policy(owner.rate, &reservation.bound().key, level);
        policy.quota = own_quota(policy.quota, rate);
        let until = limit::duration(level.reset_after);
        let status = status(RateLimitCode::Ok, Some(&policy), level.remaining, until);
        Ok(DescriptorVerdict::pass(status, Some(reservation)))
    }
}

/// Answers a descriptor that its limiters refuse.
///
/// # Errors
///
/// A failure that is no refusal of a limiter.
fn refuse_for(
    mut failure: Failure,
    record: &mut Record<'_>,
    rate: Option<Rate>,
) -> Result<DescriptorVerdict, Failure> {
    if let Failure::Limited { policy, .. }
    | Failure::Throttled { policy, .. }
    | Failure::Paused { policy, .. } = &mut failure
    {
        policy.quota = own_quota(policy.quota, rate);
    }
    let response = record.refusal(&failure, false);
    if response.status() != StatusCode::TOO_MANY_REQUESTS {
        return Err(failure);
    }
    let until = failure.retry_after().map(limit::duration).unwrap_or_default();
    let (policy, remaining) = failure.limited().unzip();
    let status = status(RateLimitCode::OverLimit, policy, remaining.unwrap_or_default(), until);
    Ok(DescriptorVerdict::refuse(status, response.into_parts().0.headers))
}

/// The quota that an answer shows: the rate of the descriptor, if it has one of its own.
fn own_quota(quota: Quota, rate: Option<Rate>) -> Quota {
    rate.map_or(quota, Quota::Rate)
}

// === impl DescriptorVerdict ===

impl DescriptorVerdict {
    fn pass(status: DescriptorStatus, reservation: Option<Reservation>) -> Self {
        Self { status, reservation, refusal: None }
    }

    fn refuse(status: DescriptorStatus, headers: HeaderMap) -> Self {
        Self { status, reservation: None, refusal: Some(headers) }
    }
}

/// The head of a call, which several tasks could read, as its body could not.
fn head_of(request: &Request<Upload>) -> Request<()> {
    let mut head = Request::new(());
    *head.method_mut() = request.method().clone();
    *head.uri_mut() = request.uri().clone();
    *head.version_mut() = request.version();
    head.headers_mut().clone_from(request.headers());
    head
}

fn status(
    code: RateLimitCode,
    policy: Option<&Policy>,
    remaining: i64,
    until: Duration,
) -> DescriptorStatus {
    let current_limit = policy.and_then(|policy| match policy.quota {
        Quota::Rate(rate) => Some(CurrentLimit::new(&policy.name, rate)),
        Quota::Concurrency(_) => None,
    });
    DescriptorStatus {
        code: code.into(),
        current_limit,
        limit_remaining: u32::try_from(remaining.max(0)).unwrap_or(u32::MAX),
        duration_until_reset: Some(until.into()),
    }
}

/// The headers of these names, as Envoy adds them.
fn added(headers: &HeaderMap, names: &[&str]) -> Vec<AddedHeader> {
    let one =
        |name: &&str| Some(AddedHeader { key: (*name).into(), value: text(headers.get(*name)?)? });
    names.iter().filter_map(one).collect()
}
