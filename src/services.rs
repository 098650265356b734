//! The doors of other proxies and of programs. Each decides calls by the limiters of the data plane and by the loop in which
//! its requests wait, and forwards nothing.

mod decisions;
mod ext_authz;
mod forward_auth;
#[cfg(fuzzing)]
pub mod fuzzing;
mod original;
pub(crate) mod permits;
mod rate_limit;
mod slot;
mod token;
mod unary;

use crate::{
    answer::Failure,
    config::Service,
    plan::WorkerCounters,
    proxy::{Arrival, Body, Client, Ending, Exchange, Proxy, Replied, put_head},
};
use bytes::Bytes;
use http::Response;
use std::sync::Arc;

/// A call to a service.
struct ServiceCall<'a> {
    service: Service,
    proxy: &'a Proxy,
    counters: &'a WorkerCounters,
    client: &'a Arc<Client>,
    arrival: &'a mut Arrival,
}

/// Serves a call of another proxy or of a program. A future that is dropped while the call waits refunds what it took. The
/// head of the answer is put into `head`.
pub(crate) async fn serve_call(
    service: Service,
    proxy: &Proxy,
    client: &Arc<Client>,
    arrival: &mut Arrival,
    head: &mut Response<()>,
) -> Replied {
    // The port of a service is open only while the configuration has the service.
    match open_door(service, proxy, client, arrival, head).await {
        Some(replied) => replied,
        None => reply(Failure::NoRoute.response(), head),
    }
}

/// Passes a call on to its service; `None` if the configuration does not have the service.
async fn open_door(
    service: Service,
    proxy: &Proxy,
    client: &Arc<Client>,
    arrival: &mut Arrival,
    head: &mut Response<()>,
) -> Option<Replied> {
    let counters = proxy.service_counters(service)?;
    let call = ServiceCall { service, proxy, counters, client, arrival };
    let doors = &proxy.plan().config.services;
    Some(match service {
        Service::ForwardAuth => forward_auth::serve(call, doors.forward_auth.as_ref()?, head).await,
        Service::EnvoyRateLimit => {
            rate_limit::serve(call, doors.envoy_rate_limit.as_ref()?, head).await
        }
        Service::ExtAuthz => ext_authz::serve(call, doors.ext_authz.as_ref()?, head).await,
        Service::Decisions => decisions::serve(call, doors.decisions.as_ref()?, head).await,
    })
}

/// Answers a call that is no call of its service.
fn reply(response: Response<Bytes>, head: &mut Response<()>) -> Replied {
    Replied { body: Body::whole(put_head(response, head)), ending: Ending::Open }
}

// === impl ServiceCall ===

impl<'a> ServiceCall<'a> {
    /// Opens the exchange of a call that is itself the request, or has become it.
    fn open(self) -> Exchange<'a> {
        let Self { service, proxy, counters, client, arrival } = self;
        Exchange::open_for(service, counters, proxy, client, arrival)
    }
}
