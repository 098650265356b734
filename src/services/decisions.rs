//! Decisions for programs that call a vendor themselves, over HTTP and JSON: a call names its limiters and gets the permits of
//! all of them or of none. A call that waits takes the way of a request on the data plane.

mod calls;
mod taken;

use super::{
    ServiceCall,
    permits::{self, GivenPermits, foreign_host, in_plain_words},
    token::has_token,
};
use crate::{
    algorithm::Level,
    answer::{Failure, PACEWAY_ORIGIN},
    config::{DecisionsConfig, Mode},
    key::is_json,
    limit,
    plan::{CheckOwner, KEPT_FOR, KeptReservation, Plan},
    proxy::{Attempt, Body, Exchange, Replied, spoilt},
    store::{Check, Checks, Turn},
    suggest::suggest,
    upstream::{KeptBytes, Upload},
};
use bytes::Bytes;
use calls::{AcquireCall, PermitsAsked};
use http::{
    HeaderValue, Method, Request, Response, StatusCode,
    header::{CACHE_CONTROL, CONTENT_TYPE},
};
use serde::de::DeserializeOwned;
use serde_json::Value;
use smallvec::SmallVec;
use std::{pin::pin, sync::Arc, time::Duration};
use tokio::time::Instant;

/// The description of all calls, in OpenAPI 3.1.
const OPENAPI: &str = include_str!("decisions/openapi.json");
/// The most bytes of a call, 16 KiB: eight limiters with the longest keys fit.
const MOST: usize = 16 << 10;
/// The most limiters of a call. Each of them is asked in one atomic step of the store.
const MOST_LIMITERS: usize = 8;
const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// The answer to a call that is no error.
enum ProgramAnswer {
    Done(Value),
    /// The limiters refuse: a decision, and no error.
    Limited(Value, Failure),
    Document,
}

/// The permits of a call.
struct AskedPermits {
    checks: Checks,
    /// For each check the index of its limiter and of its rate there.
    owners: SmallVec<[CheckOwner; 1]>,
}

/// Serves a call of a program.
pub(super) async fn serve(
    call: ServiceCall<'_>,
    config: &DecisionsConfig,
    head: &mut Response<()>,
) -> Replied {
    let client = call.client;
    let mut exchange = call.open();
    let answer = client.unless_left(pin!(answer_call(&mut exchange, config))).await;
    match answer {
        Ok(ProgramAnswer::Done(answer)) => {
            exchange.finish(Ok(write_json(answer.to_string().into(), head)), head)
        }
        Ok(ProgramAnswer::Document) => {
            let document = Bytes::from_static(OPENAPI.as_bytes());
            exchange.finish(Ok(write_json(document, head)), head)
        }
        Ok(ProgramAnswer::Limited(answer, failure)) => {
            exchange.record.failed(&failure, StatusCode::OK);
            exchange.end(write_json(answer.to_string().into(), head), head, false)
        }
        Err(failure) => exchange.finish(Err(failure), head),
    }
}

async fn answer_call(
    exchange: &mut Exchange<'_>,
    config: &DecisionsConfig,
) -> Result<ProgramAnswer, Failure> {
    let (proxy, plan) = (exchange.proxy, exchange.proxy.plan());
    exchange.validate()?;
    let headers = exchange.arrival.request.headers();
    match &config.listener.token {
        Some(token) if !has_token(headers, token) => return Err(Failure::Unauthorized),
        Some(_) => {}
        None => {
            if let Some(host) = foreign_host(headers) {
                return Err(bad(format!(
                    "the host `{host}` is neither an IP address nor `localhost`; ask this service by its address, or \
                     set its `token`"
                )));
            }
        }
    }
    exchange.arrival.accept_body(&plan.config, None, exchange.client);
    let request = &mut exchange.arrival.request;
    let call = (request.method().clone(), request.uri().path().to_owned());
    let answer = match (&call.0, &*call.1) {
        (&Method::GET, "/openapi.json") => return Ok(ProgramAnswer::Document),
        (&Method::POST, "/v1/acquire") => {
            let asked = read(request, &plan.kept).await?;
            return acquire(exchange, asked).await;
        }
        (&Method::POST, "/v1/refund") => taken::refund(proxy, read(request, &plan.kept).await?)?,
        (&Method::POST, "/v1/settle") => taken::settle(proxy, read(request, &plan.kept).await?)?,
        (&Method::POST, "/v1/renew") => {
            let call = read(request, &plan.kept).await?;
            let renewed = permits::renew(taken::permit(plan, call)?, &**proxy.store()).await;
            renewed.map_err(Failure::Store)?
        }
        (&Method::POST, "/v1/release") => {
            let permit = taken::permit(plan, read(request, &plan.kept).await?)?;
            permits::release(permit, proxy.store())
        }
        _ => return Err(Failure::NoRoute),
    };
    Ok(ProgramAnswer::Done(answer))
}

/// Takes the permits of a call, at once or after the wait that it allows.
async fn acquire(exchange: &mut Exchange<'_>, call: AcquireCall) -> Result<ProgramAnswer, Failure> {
    let (proxy, plan) = (exchange.proxy, exchange.proxy.plan());
    let route = plan.config.decisions_route().ok_or(Failure::NoRoute)?;
    exchange.record.route = Some(route);
    let own = &plan.policies[proxy.counters().direct[route].policy];
    let budget = Duration::from_millis(call.max_wait_ms).min(own.max_wait_cap);
    let AskedPermits { checks, owners } = AskedPermits::of(&call, plan)?;
    if checks.is_empty() {
        // None of its limiters counts now.
        let limiter = &plan.limiters[find_limiter(plan, &call.limiters[0].limiter)?];
        exchange.record.note_sent();
        let mut answer = permits::give_uncounted(limiter, limiter.limiter.capacity());
        answer["waited_ms"] = 0.0.into();
        return Ok(ProgramAnswer::Done(answer));
    }
    let policy = own.for_call(owners);
    let allowed = if call.wait { budget } else { Duration::ZERO };
    let attempt = Attempt::first(proxy, &mut exchange.record, route, &policy, &checks, allowed);
    let taken = if call.wait { attempt.pace().await } else { attempt.promise(budget).await };
    let waited = permits::millis(limit::micros(exchange.record.wait));
    let mut reservation = match taken {
        Ok(reservation) => reservation,
        Err(failure) => {
            let Some(mut answer) = describe_refusal(&failure, plan, &checks) else {
                return Err(failure);
            };
            answer["waited_ms"] = waited.into();
            return Ok(ProgramAnswer::Limited(answer, failure));
        }
    };
    exchange.record.note_sent();
    proxy.count_permits(&policy, reservation.checks(), None);
    let left = reservation.at.saturating_duration_since(Instant::now());
    let wait = if call.wait { 0 } else { limit::micros(left) };
    let name = &plan.limiters[policy.limiter(reservation.bound_by)].limiter.name;
    let GivenPermits { mut answer, leases: permits } = permits::give(name, wait, &mut reservation);
    answer["waited_ms"] = waited.into();
    answer["reservation"] =
        plan.kept_reservations.keep(KeptReservation { reservation, permits }).into();
    answer["kept_ms"] = u64::try_from(KEPT_FOR.as_millis()).unwrap_or(u64::MAX).into();
    Ok(ProgramAnswer::Done(answer))
}

/// Writes the refusal of the limiters as a decision; `None` for a failure that is no refusal.
fn describe_refusal(failure: &Failure, plan: &Plan, checks: &Checks) -> Option<Value> {
    let (refusing, remaining) = failure.limited()?;
    let limiter = plan.limiters.iter().find(|own| own.limiter.name == refusing.name);
    let limit = limiter.map_or(checks[0].algorithm.limit(), |own| own.limiter.capacity());
    let retry_after = failure.retry_after().unwrap_or_default();
    let level = Level { remaining, ..Level::default() };
    let mut answer = permits::describe(&refusing.name, Some(retry_after), 0, limit, level);
    // The store does not say it about a refusal.
    answer.as_object_mut().map(|answer| answer.remove("reset_after_ms"));
    Some(answer)
}

/// The index of the limiter that a call names.
fn find_limiter(plan: &Plan, name: &str) -> Result<usize, Failure> {
    let all = &plan.limiters;
    all.iter().position(|plan| plan.limiter.name == name).ok_or_else(|| {
        let known = all.iter().map(|plan| plan.limiter.name.as_str());
        let hint = suggest(name, known)
            .unwrap_or_else(|| "`GET /limiters` on the admin side lists all".into());
        // A name that is none may be a credential in the wrong place.
        let is_name = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        bad(if name.len() <= 64 && name.chars().all(is_name) {
            format!("the configuration has no limiter `{name}`; {hint}")
        } else {
            format!("`limiter` is no name of a limiter; {hint}")
        })
    })
}

// === impl AskedPermits ===

impl AskedPermits {
    /// The checks of a call. Limiters that do not count now are left out. Only a call that waits here takes turns: it
    /// confirms its slot, and a program that waits by itself cannot.
    fn of(call: &AcquireCall, plan: &Plan) -> Result<Self, Failure> {
        check_number(call.limiters.len())?;
        let (mut asked, mut owners) = (Vec::<Check>::new(), SmallVec::new());
        for PermitsAsked { limiter, key, cost } in &call.limiters {
            let index = find_limiter(plan, limiter)?;
            let own = &plan.limiters[index];
            if own.limiter.rates.is_empty() && *cost != 1 {
                return Err(bad(format!(
                    "`{limiter}` counts calls, each as one; leave `cost` out"
                )));
            }
            let checks = permits::checks(own, key.as_deref(), *cost);
            let checks = checks.map_err(|why| bad(format!("`{limiter}`: {why}")))?;
            if own.limiter.mode == Mode::Off || !plan.config.limiting {
                continue;
            }
            for (rate, check) in checks.into_iter().enumerate() {
                if asked.iter().any(|other| other.key == check.key) {
                    return Err(bad(format!("`limiters` names a bucket of `{limiter}` twice")));
                }
                let turn = (call.wait && own.limiter.has_turns).then(Turn::of_nobody);
                asked.push(Check { turn, ..check });
                owners.push(CheckOwner { limiter: index, rate });
            }
        }
        Ok(Self { checks: asked.into(), owners })
    }
}

fn check_number(limiters: usize) -> Result<(), Failure> {
    if (1..=MOST_LIMITERS).contains(&limiters) {
        Ok(())
    } else {
        Err(bad(format!("`limiters` must have 1 to {MOST_LIMITERS} entries")))
    }
}

/// Reads the body of a call. Only `application/json` is taken, which no web page may send to another origin unasked.
async fn read<T: DeserializeOwned>(
    request: &mut Request<Upload>,
    bound: &Arc<KeptBytes>,
) -> Result<T, Failure> {
    let kind = request.headers().get(CONTENT_TYPE);
    if !kind.is_some_and(|kind| is_json(kind.as_bytes())) {
        return Err(bad("send JSON, with `Content-Type: application/json`"));
    }
    let body = request.body_mut().read_ahead(MOST, bound).await.map_err(spoilt)?;
    let mut json = serde_json::Deserializer::from_slice(&body);
    let call = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let (path, said) = (error.path().to_string(), error.inner().to_string());
        match path.as_str() {
            "." => said,
            path => format!("`{path}`: {said}"),
        }
    });
    let call = call.and_then(|call| json.end().map(|()| call).map_err(|error| error.to_string()));
    call.map_err(|said| {
        let why = mistake_in_shape(&body).map(str::to_owned);
        bad(why.unwrap_or_else(|| in_plain_words(&said)))
    })
}

/// The mistake in the shape of a body that is JSON.
fn mistake_in_shape(body: &[u8]) -> Option<&'static str> {
    let Value::Object(call) = serde_json::from_slice(body).ok()? else {
        return Some("the body is a map, as in `{\"limiters\": [{\"limiter\": \"search\"}]}`");
    };
    match call.get("limiters")? {
        Value::Array(entries) if entries.iter().all(Value::is_object) => None,
        Value::Array(_) => {
            Some("in `limiters` each entry is a map, as in `[{\"limiter\": \"search\"}]`")
        }
        _ => Some("`limiters` is a list of maps, as in `[{\"limiter\": \"search\"}]`"),
    }
}

/// Puts the headers of an answer in JSON into `head`, and makes the body.
fn write_json(body: Bytes, head: &mut Response<()>) -> Body {
    let headers = head.headers_mut();
    headers.insert(CONTENT_TYPE, JSON);
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(PACEWAY_ORIGIN, HeaderValue::from_static("gateway"));
    Body::whole(body)
}

fn bad(why: impl Into<String>) -> Failure {
    Failure::BadRequest(why.into().into())
}
