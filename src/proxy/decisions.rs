//! Decisions for programs that call a vendor themselves, over HTTP and JSON: a call names its limiters and gets the permits of
//! all of them or of none. A call that waits takes the way of a request on the data plane.

mod calls;
mod taken;

use super::{
    Arrival, Body, Client, Ending, Exchange, Proxy, attempt::Attempt, forward::spoilt,
    record::Record, respond, service_token::has_token, validate,
};
use crate::{
    algorithm::{Level, Micros},
    answer::{Failure, PACEWAY_ORIGIN},
    config::{DecisionsConfig, Mode, Service},
    decision,
    key::is_json,
    limit::{self, Admission, AlwaysReady, Caller as _, Reservation},
    plan::{KEPT_FOR, KeptReservation, LimiterPlan, WorkerCounters},
    store::{Check, Checks, Decision, Turn},
    suggest::suggest,
    upstream::{KeptBytes, RequestBody, Upload, UploadLimits, headers::HeaderFlags},
};
use bytes::Bytes;
use calls::{AcquireCall, PermitsAsked};
use http::{
    HeaderValue, Method, Request, Response, StatusCode, Version,
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

/// The limiters of a call: the checks, and for each the index of its limiter and of its rate there.
type Asked = (Checks, SmallVec<[(usize, usize); 1]>);

// === impl Proxy ===

impl Proxy {
    /// Serves a call of a program. A future that is dropped while the call waits refunds what it took.
    pub(super) async fn decisions(
        &self,
        (config, counters): (&DecisionsConfig, &WorkerCounters),
        client: &Arc<Client>,
        Arrival { request, body }: &mut Arrival,
    ) -> (Response<Body>, Ending) {
        let is_http2 = request.version() == Version::HTTP_2;
        let seen = HeaderFlags::of(request.headers());
        let id = self.0.ids.of(request.headers_mut(), seen);
        let record = Record::new(self, client, id, request);
        let mut exchange = Exchange { record, client, is_http2, is_grpc: false, closes: false };
        exchange.record.serves(Service::Decisions, counters);
        let call = (request, body);
        let answer =
            client.unless_left(pin!(self.call_answer(&mut exchange, config, call, seen))).await;
        match answer {
            Ok(ProgramAnswer::Done(answer)) => {
                respond::finish_call(Ok(of_json(answer.to_string().into())), &mut exchange)
            }
            Ok(ProgramAnswer::Document) => {
                let document = of_json(Bytes::from_static(OPENAPI.as_bytes()));
                respond::finish_call(Ok(document), &mut exchange)
            }
            Ok(ProgramAnswer::Limited(answer, failure)) => {
                exchange.record.failed(&failure, StatusCode::OK);
                let (parts, body) = of_json(answer.to_string().into()).into_parts();
                let mut head = Response::from_parts(parts, ());
                let (body, ending) = respond::ended((body, &mut head), &mut exchange, false);
                (head.map(|()| body), ending)
            }
            Err(failure) => respond::finish_call(Err(failure), &mut exchange),
        }
    }

    async fn call_answer(
        &self,
        exchange: &mut Exchange<'_>,
        config: &DecisionsConfig,
        (request, incoming): (&mut Request<Upload>, &mut Option<RequestBody>),
        seen: HeaderFlags,
    ) -> Result<ProgramAnswer, Failure> {
        let plan = &self.0.plan;
        let limits = &plan.config.limits;
        validate::request(exchange.client, (limits, &plan.config.paths), request, seen)?;
        validate::demands(limits, request, seen)?;
        match &config.listener.token {
            Some(token) if !has_token(request.headers(), token) => {
                return Err(Failure::Unauthorized);
            }
            None => {
                if let Some(host) = decision::foreign_host(request.headers()) {
                    return Err(bad(format!(
                        "the host `{host}` is neither an IP address nor `localhost`; ask this service by its address, or \
                         set its `token`"
                    )));
                }
            }
            Some(_) => {}
        }
        if let Some(incoming) = incoming.take() {
            let patience = plan.config.client.body_timeout;
            let limits = UploadLimits { limit: None, patience, trailers: limits.header_bytes };
            *request.body_mut() =
                Upload::new(incoming, exchange.is_http2, limits, &exchange.client.boundary);
        }
        let call = (request.method().clone(), request.uri().path().to_owned());
        match (&call.0, &*call.1) {
            (&Method::GET, "/openapi.json") => Ok(ProgramAnswer::Document),
            (&Method::POST, "/v1/acquire") => {
                let asked = read(request, &plan.kept).await?;
                self.acquire(exchange, asked).await
            }
            (&Method::POST, "/v1/refund") => self.refunded(read(request, &plan.kept).await?),
            (&Method::POST, "/v1/settle") => self.settled(read(request, &plan.kept).await?),
            (&Method::POST, "/v1/renew") => {
                let call = read(request, &plan.kept).await?;
                self.renewed(call).await
            }
            (&Method::POST, "/v1/release") => self.released(read(request, &plan.kept).await?),
            _ => Err(Failure::NoRoute),
        }
    }

    /// Takes the permits of a call, at once or after the wait that it allows.
    async fn acquire(
        &self,
        exchange: &mut Exchange<'_>,
        call: AcquireCall,
    ) -> Result<ProgramAnswer, Failure> {
        let plan = &*self.0.plan;
        let route = plan.config.decisions_route().ok_or(Failure::NoRoute)?;
        exchange.record.route = Some(route);
        let own = &plan.policies[self.own().direct[route].policy];
        let budget = Duration::from_millis(call.max_wait_ms).min(own.max_wait_cap);
        let (checks, owners) = self.asked(&call.limiters, call.wait)?;
        let Some(first) = checks.first() else {
            // None of its limiters counts now.
            let limiter = self.limiter(&call.limiters[0].limiter)?.1;
            let limit = limiter.limiter.capacity();
            let level = Level { remaining: limit, ..Level::default() };
            exchange.record.sent();
            let mut answer = decision::shown(&limiter.limiter.name, None, 0, limit, level);
            answer["waited_ms"] = 0.0.into();
            return Ok(ProgramAnswer::Done(answer));
        };
        let (limit_of_one, policy) = (first.algorithm.limit(), own.for_call(owners));
        let (way, mut callee) = ((route, &policy), AlwaysReady::default());
        let allowed = if call.wait { budget } else { Duration::ZERO };
        let paced = {
            let mut attempt = Attempt::first(self, &mut exchange.record, way, &checks, allowed);
            if call.wait {
                let paced = limit::pace(&self.0.store, &checks, &mut attempt, &mut callee);
                paced.await.map(|(reservation, ())| reservation)
            } else {
                self.promised(&mut attempt, &checks, budget).await
            }
        };
        exchange.record.waited();
        let waited = limit::micros(exchange.record.wait);
        let mut reservation = match paced {
            Ok(reservation) => reservation,
            Err(failure) => {
                let Some((refusing, remaining)) = failure.limited() else { return Err(failure) };
                let limiter = plan.limiters.iter().find(|own| own.limiter.name == refusing.name);
                let limit = limiter.map_or(limit_of_one, |own| own.limiter.capacity());
                let retry_after = failure.retry_after().unwrap_or_default();
                let level = Level { remaining, ..Level::default() };
                let mut answer =
                    decision::shown(&refusing.name, Some(retry_after), 0, limit, level);
                // The store does not say it about a refusal.
                answer.as_object_mut().map(|answer| answer.remove("reset_after_ms"));
                answer["waited_ms"] = decision::millis(waited).into();
                return Ok(ProgramAnswer::Limited(answer, failure));
            }
        };
        exchange.record.sent();
        self.spent(&policy, reservation.checks(), None);
        let left =
            |at: Instant| -> Micros { limit::micros(at.saturating_duration_since(Instant::now())) };
        let wait = if call.wait { 0 } else { left(reservation.at) };
        let name = &plan.limiters[policy.limiter(reservation.bound_by)].limiter.name;
        let (limit, level) = (reservation.bound().algorithm.limit(), reservation.level);
        let mut answer = decision::shown(name, None, wait, limit, level);
        answer["waited_ms"] = decision::millis(waited).into();
        let permits = reservation.hand_over();
        if let Some((check, grant)) = permits.first() {
            decision::add_permit(&mut answer, check, *grant);
        }
        let kept = KeptReservation { reservation, permits };
        answer["reservation"] = plan.kept_reservations.keep(kept).into();
        answer["kept_ms"] = u64::try_from(KEPT_FOR.as_millis()).unwrap_or(u64::MAX).into();
        Ok(ProgramAnswer::Done(answer))
    }

    /// Asks once for permits whose instant comes within `budget`, and does not wait for it: the program does.
    async fn promised(
        &self,
        attempt: &mut Attempt<'_, '_>,
        checks: &Checks,
        budget: Duration,
    ) -> Result<Reservation, Failure> {
        // A place in a queue is only of use to a call that waits.
        let budget = if checks.iter().any(Check::is_lease) { Duration::ZERO } else { budget };
        match limit::ask(&self.0.store, checks, budget).await {
            Ok(Admission::Granted(reservation)) => match reservation.paused() {
                None => {
                    attempt.granted(&reservation);
                    Ok(reservation)
                }
                Some(covering) => {
                    drop(reservation);
                    Err(attempt.refused(Decision::paused(covering.index, covering.left())))
                }
            },
            Ok(Admission::Refused(decision)) => Err(attempt.refused(decision)),
            Ok(Admission::Queued(_)) => Err(Failure::QueueFull { retry_after: 0 }),
            Err(error) => Err(attempt.undecided(error)),
        }
    }

    /// The checks of a call. Limiters that do not count now are left out. Only a call that `waits` here takes turns: it
    /// confirms its slot, and a program that waits by itself cannot.
    fn asked(&self, limiters: &[PermitsAsked], waits: bool) -> Result<Asked, Failure> {
        check_number(limiters.len())?;
        let mut asked: (Vec<Check>, SmallVec<_>) = Default::default();
        for PermitsAsked { limiter, key, cost } in limiters {
            let (index, plan) = self.limiter(limiter)?;
            if plan.limiter.rates.is_empty() && *cost != 1 {
                return Err(bad(format!(
                    "`{limiter}` counts calls, each as one; leave `cost` out"
                )));
            }
            let checks = decision::checks(plan, key.as_deref(), *cost);
            let checks = checks.map_err(|why| bad(format!("`{limiter}`: {why}")))?;
            if plan.limiter.mode == Mode::Off || !self.0.plan.config.limiting {
                continue;
            }
            for (rate, check) in checks.into_iter().enumerate() {
                if asked.0.iter().any(|other| other.key == check.key) {
                    return Err(bad(format!("`limiters` names a bucket of `{limiter}` twice")));
                }
                let turn = (waits && plan.limiter.has_turns).then(Turn::of_nobody);
                asked.0.push(Check { turn, ..check });
                asked.1.push((index, rate));
            }
        }
        Ok((asked.0.into(), asked.1))
    }

    fn limiter(&self, name: &str) -> Result<(usize, &LimiterPlan), Failure> {
        let all = &self.0.plan.limiters;
        let found = all.iter().enumerate().find(|(_, plan)| plan.limiter.name == name);
        found.ok_or_else(|| {
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
        bad(why.unwrap_or_else(|| decision::in_plain_words(&said)))
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

fn of_json(body: Bytes) -> Response<Body> {
    let mut response = Response::new(Body::whole(body));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, JSON);
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(PACEWAY_ORIGIN, HeaderValue::from_static("gateway"));
    response
}

fn bad(why: impl Into<String>) -> Failure {
    Failure::BadRequest(why.into().into())
}
