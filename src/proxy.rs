//! The way of a request: validate ─▶ route ─▶ limit ─▶ upstream, and the answer at the end. `Proxy::answer` has all of its
//! steps.

mod access_line;
mod accounts;
mod arrival;
mod attempt;
mod body;
mod budget;
mod client;
mod client_head;
mod connecting;
mod current;
mod destination;
mod drain;
mod exchange;
mod following;
mod forward;
mod interim;
mod kept_body;
mod outgoing;
mod pumped_body;
mod quota_left;
mod read_ahead;
mod reading;
mod record;
mod refusal;
mod remaining;
mod request_id;
mod request_json;
mod resend;
mod respond;
mod retry;
mod service;
mod settling;
mod websocket;
mod tunnel;
mod tunnel_record;
mod upgrade;
mod validate;

pub(crate) use accounts::PACEWAY_ACCOUNT;
pub use arrival::Arrival;
pub(crate) use attempt::Attempt;
pub use body::{Body, BodyError};
pub use budget::budget;
pub(crate) use budget::deadline;
pub use client::{Client, ClientConnection};
pub use current::CurrentProxy;
pub use destination::ForwardConnection;
pub(crate) use exchange::{Exchange, Routed};
pub(crate) use outgoing::spoilt;
pub(crate) use record::Record;
pub(crate) use request_id::X_REQUEST_ID;
pub use request_json::json_body;
pub use respond::Ending;
pub(crate) use respond::{Replied, put_head};
#[cfg(fuzzing)]
pub use settling::fuzzing;
pub(crate) use tunnel_record::{TunnelBytes, TunnelRecord};

use crate::{
    answer::Failure,
    config::{Config, Service},
    limit,
    plan::{CheckOwner, Plan, RoutePolicy, WorkerCounters},
    store::{Check, Store},
    upstream::{Pool, headers::HeaderFlags},
};
use drain::Drain;
use http::{HeaderValue, Request, Response, StatusCode};
use reading::OthersWaiting;
use request_id::RequestIds;
use std::{
    net::IpAddr,
    pin::pin,
    sync::{Arc, atomic::Ordering::Relaxed},
};
use tokio::time::Instant;
use tunnel::Tunnels;

/// The data plane of one worker: it serves requests by the limits and to the upstreams of its plan. Clones share it.
#[derive(Debug, Clone)]
pub struct Proxy(Arc<Inner>);

/// The parts of a proxy. The proxy that replaces another one has its store, tunnels, ids and drain.
#[derive(Debug)]
struct Inner {
    /// The configuration made ready, which all workers share.
    plan: Arc<Plan>,
    /// The index of this worker among those of the plan.
    worker: usize,
    /// This worker's connection to the store of the limiters.
    store: Arc<dyn Store>,
    /// This worker's connections, by index of the upstream.
    upstreams: Vec<Pool>,
    tunnels: Tunnels,
    ids: Arc<RequestIds>,
    drain: Arc<Drain>,
}

// === impl Proxy ===

impl Proxy {
    /// The data plane of one of the workers of `plan`.
    pub fn new(
        plan: Arc<Plan>,
        worker: usize,
        store: Arc<dyn Store>,
        upstreams: Vec<Pool>,
    ) -> Self {
        let (tunnels, ids, drain) = (Tunnels::new(), RequestIds::new().into(), Arc::default());
        Self(Arc::new(Inner { plan, worker, store, upstreams, tunnels, ids, drain }))
    }

    /// The plan by which it serves.
    pub(crate) fn plan(&self) -> &Plan {
        &self.0.plan
    }

    /// The store of its limiters.
    pub(crate) fn store(&self) -> &Arc<dyn Store> {
        &self.0.store
    }

    /// Where this worker counts.
    pub(crate) fn counters(&self) -> &WorkerCounters {
        &self.0.plan.counters[self.0.worker]
    }

    /// Where this worker counts the requests that `service` decides; `None` if the plan does not have the service.
    pub(crate) fn service_counters(&self, service: Service) -> Option<&WorkerCounters> {
        let own = self.0.plan.services.iter().find(|own| own.service == service)?;
        Some(&own.workers[self.0.worker])
    }

    /// The id of a request: its own, or a new one.
    pub(crate) fn request_id<B>(&self, request: &mut Request<B>) -> HeaderValue {
        let seen = HeaderFlags::of(request.headers());
        self.0.ids.of(request.headers_mut(), seen)
    }

    /// Serves a request of `client`: every step from the request to its answer, in order. A future that is dropped on the way
    /// (the client is gone, say) refunds what it took, and the request is counted and logged as cancelled.
    ///
    /// The request stays where it is: it is 250 bytes, which each call that takes it over would copy. The head of the answer
    /// is put into `head`, for the same reason.
    pub(crate) async fn answer(
        &self,
        client: &Arc<Client>,
        arrival: &mut Arrival,
        head: &mut Response<()>,
    ) -> Replied {
        let mut exchange = Exchange::open(self, client, arrival);
        let outcome = match exchange.route() {
            Ok(mut routed) => {
                let others = OthersWaiting::default();
                let forwarded = pin!(exchange.forward(&mut routed, head, &others));
                client.unless_left_alone(forwarded, &others).await
            }
            Err(failure) => Err(failure),
        };
        exchange.finish(outcome, head)
    }

    /// Counts the permits with which a request is sent. `indices` are those of its checks among those of the route; `None` if
    /// it has all of them.
    #[inline]
    pub(crate) fn count_permits(
        &self,
        policy: &RoutePolicy,
        checks: &[Check],
        indices: Option<&[usize]>,
    ) {
        for (i, check) in checks.iter().enumerate() {
            // A limiter with several rates has a check for each.
            let owner = policy.owner(indices.map_or(i, |indices| indices[i]));
            if let CheckOwner { limiter, rate: 0 } = owner {
                let cost = u64::try_from(check.cost).unwrap_or_default();
                self.counters().limiters[limiter].permits.fetch_add(cost, Relaxed);
            }
        }
        let plan = &self.0.plan;
        let heard = &plan.heard[policy.upstream];
        heard.remaining.sends(checks, || plan.micros(Instant::now()));
    }

    /// Refuses a request as long as `limits_from` has not added a limiter of its route.
    ///
    /// # Errors
    ///
    /// [`Failure::MissingLimiter`] with the names of the limiters.
    pub(crate) fn require_limiters(&self, policy: &RoutePolicy) -> Result<(), Failure> {
        let Some(names) = &policy.missing else { return Ok(()) };
        let every = self.0.plan.config.limits_from.as_ref().map(|from| from.every);
        let retry_after = limit::micros(every.unwrap_or_default());
        Err(Failure::MissingLimiter { names: names.clone(), retry_after })
    }

    /// Begins the drain, which closes all connections at `end`. A request that waits for a later slot gets 503 at once.
    pub fn drain(&self, end: Instant) {
        self.0.drain.begin(end);
    }

    /// Resolves when no tunnel is open any more.
    pub async fn tunnels_ended(&self) {
        self.0.tunnels.ended().await;
    }

    /// Ends all WebSockets with a close frame.
    pub fn close_tunnels(&self) {
        self.0.tunnels.close();
    }

    /// Cuts all tunnels.
    pub fn cut_tunnels(&self) {
        self.0.tunnels.cut();
    }

    /// Counts and logs what was no request; it was answered with `status`.
    pub fn unparsed(&self, client: IpAddr, status: StatusCode) {
        record::unparsed(&self.0.plan, self.counters(), client, status);
    }
}

// === impl Inner ===

impl Inner {
    /// The proxy that replaces this one.
    fn next(&self, plan: Arc<Plan>, upstreams: Vec<Pool>) -> Self {
        let Self { worker, store, tunnels, ids, drain, .. } = self;
        let (store, tunnels) = (store.clone(), tunnels.clone());
        Self {
            plan,
            worker: *worker,
            store,
            upstreams,
            tunnels,
            ids: ids.clone(),
            drain: drain.clone(),
        }
    }
}

/// Checks a message by its content alone, whatever connection it came on.
///
/// # Errors
///
/// The failure that the gateway answers with.
pub fn validate<B>(config: &Config, request: &Request<B>) -> Result<(), Failure> {
    let seen = HeaderFlags::of(request.headers());
    validate::message(config, request, seen)?;
    validate::demands(&config.limits, request, seen)
}
