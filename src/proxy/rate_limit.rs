//! Envoy's rate limit service: a call describes a request by descriptors, and the answer comes when the slot has come. Each
//! descriptor that the configuration matches has the limiters and the budget of its entry, which is a route without paths.

mod messages;

use super::{
    Arrival, Body, Client, Ending, Proxy,
    attempt::Attempt,
    budget,
    record::Record,
    unary::{AddedHeader, UnaryMethod, answered, text},
};
use crate::{
    algorithm::Grant,
    answer::{Failure, Policy, Quota, grpc},
    config::{DescriptorRule, Rate, Service, ServiceListener},
    key::{Descriptor, Parts},
    limit::{self, AlwaysReady, Reservation},
    plan::{RoutePolicy, Unpayable, WorkerCounters},
    store::Check,
    upstream::{Upload, headers::HeaderFlags},
};
use http::{HeaderMap, Request, Response, StatusCode};
use messages::{
    CurrentLimit, DescriptorStatus, RateLimitCode, RateLimitDescriptor, RateLimitRequest,
    RateLimitResponse,
};
use std::{sync::Arc, time::Duration};

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
struct Decided {
    status: DescriptorStatus,
    /// The permits of a descriptor that is granted; `None` if it takes none.
    reservation: Option<Reservation>,
    /// The headers of a refusal.
    refusal: Option<HeaderMap>,
}

// === impl Proxy ===

impl Proxy {
    /// Answers a call of Envoy. A future that is dropped while the request waits refunds what it took.
    pub(super) async fn rate_limit(
        &self,
        (listener, counters): (&ServiceListener, &WorkerCounters),
        client: &Arc<Client>,
        arrival: &mut Arrival,
    ) -> (Response<Body>, Ending) {
        let is_call = grpc::is_call(&arrival.request);
        answered(client, is_call, self.answer_of(listener, counters, client, arrival)).await
    }

    async fn answer_of(
        &self,
        listener: &ServiceListener,
        counters: &WorkerCounters,
        client: &Arc<Client>,
        arrival: &mut Arrival,
    ) -> Result<RateLimitResponse, Failure> {
        let asked: RateLimitRequest =
            self.called((listener, SHOULD_RATE_LIMIT), client, arrival).await?;
        let request = &mut arrival.request;
        if asked.descriptors.len() > MOST_DESCRIPTORS {
            return Err(Failure::BadRequest("there are more than 64 descriptors".into()));
        }
        let hits = u64::from(asked.hits_addend.max(1));
        let seen = HeaderFlags::of(request.headers());
        let id = self.0.ids.of(request.headers_mut(), seen);
        let call = &head_of(request);
        let (mut answer, mut granted) = (RateLimitResponse::default(), Vec::new());
        answer.overall_code = RateLimitCode::Ok.into();
        for descriptor in &asked.descriptors {
            let rules = &self.0.plan.config.descriptors;
            let pairs = || descriptor.entries.iter().map(|entry| (&*entry.key, &*entry.value));
            let Some(rule) = rules.iter().find(|rule| rule.takes(pairs)) else {
                // No limiter is for it.
                answer.statuses.push(DescriptorStatus::ok());
                continue;
            };
            let mut record = Record::new(self, client, id.clone(), call);
            record.serves(Service::EnvoyRateLimit, counters);
            record.route = Some(rule.route);
            let own = descriptor.hits_addend.as_ref().map_or(hits, |own| own.value);
            let decided =
                self.descriptor(&mut record, (client, call), (rule, descriptor, own)).await;
            let Decided { status, reservation, refusal } = match decided {
                Ok(decided) => decided,
                Err(failure) => {
                    record.refusal(&failure, true);
                    return Err(failure);
                }
            };
            answer.statuses.push(status);
            let Some(refusal) = refusal else {
                granted.push((record, reservation));
                continue;
            };
            answer.overall_code = RateLimitCode::OverLimit.into();
            answer.response_headers_to_add.extend(added(&refusal, &PASSED_ON));
        }
        if answer.overall_code == i32::from(RateLimitCode::Ok) {
            for (mut record, reservation) in granted {
                record.sent();
                record.answered(StatusCode::OK);
                let left = reservation.map(|own| self.hand_over(own)).unwrap_or_default();
                let leases = left.iter().filter_map(|(check, grant)| self.lease(check, *grant));
                answer.request_headers_to_add.extend(leases.filter_map(|lease| {
                    Some(AddedHeader { key: "paceway-lease".into(), value: text(&lease)? })
                }));
            }
        }
        // The permits of the others are refunded when one is refused.
        Ok(answer)
    }

    /// Uses permits that Envoy may give back, except concurrency permits, which it returns.
    fn hand_over(&self, mut reservation: Reservation) -> Vec<(Check, Grant)> {
        let left = reservation.hand_over();
        let rates = 0..reservation.checks().len();
        rates
            .filter_map(|i| reservation.settlement(i))
            .for_each(|own| self.0.plan.taken_permits.keep(own));
        left
    }

    /// Gives back what earlier descriptors took of the same buckets.
    fn give_back(
        &self,
        policy: &RoutePolicy,
        parts: &Parts<'_>,
        hits: u64,
        rate: Option<Rate>,
    ) -> Result<(), Unpayable> {
        let plan = &*self.0.plan;
        let checks = policy.descriptor_checks(&plan.limiters, parts, (hits.min(1), rate))?;
        let hits = i64::try_from(hits).unwrap_or(i64::MAX);
        for check in checks.iter().flat_map(|(checks, _)| checks.iter()) {
            plan.taken_permits.give_back(&check.key, check.cost.saturating_mul(hits));
        }
        Ok(())
    }

    /// Answers a descriptor whose hits no limiter ever gives. An error would let the request pass in Envoy.
    fn never(&self, record: &mut Record<'_>, unpayable: Unpayable, rate: Option<Rate>) -> Decided {
        let Unpayable { limiter, why } = unpayable;
        record.refusal(&Failure::BadRequest(why.into()), true);
        let policy = limiter.map(|limiter| {
            let policy = self.0.plan.limiters[limiter].policy(0);
            Policy { quota: rate.map_or(policy.quota, Quota::Rate), ..policy }
        });
        let status = status(RateLimitCode::OverLimit, policy.as_ref(), 0, Duration::ZERO);
        Decided { status, reservation: None, refusal: Some(HeaderMap::new()) }
    }

    /// Decides one descriptor, and waits for its slot.
    async fn descriptor<'p>(
        &'p self,
        record: &mut Record<'p>,
        (client, call): (&Arc<Client>, &Request<()>),
        (rule, descriptor, hits): (&DescriptorRule, &RateLimitDescriptor, u64),
    ) -> Result<Decided, Failure> {
        let plan = &*self.0.plan;
        let policy = &plan.policies[self.own().direct[rule.route].policy];
        self.not_missing(policy)?;
        let pairs: Vec<_> =
            descriptor.entries.iter().map(|entry| (&*entry.key, &*entry.value)).collect();
        let parts = Parts {
            client_ip: client.client_ip(call.headers(), &plan.config.trusted_proxies),
            host: None,
            method: call.method(),
            uri: call.uri(),
            headers: call.headers(),
            body: None,
            paths: plan.config.paths,
            template: None,
            descriptor: Some(Descriptor(&pairs)),
        };
        let nothing =
            || Decided { status: DescriptorStatus::ok(), reservation: None, refusal: None };
        let rate = match &descriptor.limit {
            Some(own) if policy.has_limiters() => match own.rate() {
                Some(rate) => Some(rate),
                None => {
                    let why = "`limit` of a descriptor allows no request in a unit of time".into();
                    return Ok(self.never(record, Unpayable { limiter: None, why }, None));
                }
            },
            _ => None,
        };
        let own_quota = |quota| rate.map_or(quota, Quota::Rate);
        if descriptor.is_negative_hits {
            let given = self.give_back(policy, &parts, hits, rate);
            return Ok(given.map_or_else(|why| self.never(record, why, rate), |()| nothing()));
        }
        let (checks, policy) = match policy.descriptor_checks(&plan.limiters, &parts, (hits, rate))
        {
            Ok(Some(checks)) => checks,
            Ok(None) => return Ok(nothing()),
            Err(why) => return Ok(self.never(record, why, rate)),
        };
        let budget = budget(policy.max_wait, policy.max_wait_cap, call.headers());
        let paced = {
            let mut attempt = Attempt::first(self, record, (rule.route, policy), &checks, budget);
            limit::pace(&self.0.store, &checks, &mut attempt, &mut AlwaysReady::default()).await
        };
        record.waited();
        match paced {
            Ok((reservation, ())) => {
                let (limiter, place) = policy.owner(reservation.bound_by);
                let (level, mut policy) = (reservation.level, plan.limiters[limiter].policy(place));
                policy.quota = own_quota(policy.quota);
                let until = limit::duration(level.reset_after);
                let status = status(RateLimitCode::Ok, Some(&policy), level.remaining, until);
                Ok(Decided { status, reservation: Some(reservation), refusal: None })
            }
            Err(mut failure) => {
                if let Failure::Limited { policy, .. }
                | Failure::Throttled { policy, .. }
                | Failure::Paused { policy, .. } = &mut failure
                {
                    policy.quota = own_quota(policy.quota);
                }
                let response = record.refusal(&failure, false);
                if response.status() != StatusCode::TOO_MANY_REQUESTS {
                    return Err(failure);
                }
                let until = failure.retry_after().map(limit::duration).unwrap_or_default();
                let (policy, remaining) = failure.limited().unzip();
                let remaining = remaining.unwrap_or_default();
                let status = status(RateLimitCode::OverLimit, policy, remaining, until);
                let refusal = Some(response.into_parts().0.headers);
                Ok(Decided { status, reservation: None, refusal })
            }
        }
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
