//! Decisions for programs that forward their requests themselves: another proxy describes a request, and the answer is 200
//! when the slot of that request has come. The route, its limiters and the loop that waits are those of the data plane.

use super::{ServiceCall, original, slot::take_slot, token::has_token};
use crate::{
    answer::Failure,
    config::ForwardAuthConfig,
    proxy::{Body, Replied},
};
use http::{HeaderName, HeaderValue, Response, StatusCode};
use std::pin::pin;

/// The status of a denial that has another one for the sake of the proxy.
static PACEWAY_STATUS: HeaderName = HeaderName::from_static("paceway-status");

/// Decides the request that a call describes.
pub(super) async fn serve(
    call: ServiceCall<'_>,
    config: &ForwardAuthConfig,
    head: &mut Response<()>,
) -> Replied {
    let (client, request) = (call.client, &mut call.arrival.request);
    let described = match &config.listener.token {
        Some(token) if !has_token(request.headers(), token) => Err(Failure::Unauthorized),
        _ => original::restore(request, config),
    };
    let mut exchange = call.open();
    let outcome = match described.and_then(|()| exchange.route()) {
        Ok(mut routed) => client.unless_left(pin!(take_slot(&mut exchange, &mut routed))).await,
        Err(failure) => Err(failure),
    };
    let outcome = outcome.map(|slot| {
        *head.headers_mut() = slot.all();
        Body::empty()
    });
    let replied = exchange.finish(outcome, head);
    set_denied_status(config, head);
    replied
}

/// Gives a denial the status that its proxy passes on, as the configuration says.
fn set_denied_status(config: &ForwardAuthConfig, head: &mut Response<()>) {
    let own = head.status();
    if let Some(status) = config.denied_status.filter(|_| own != StatusCode::OK) {
        *head.status_mut() = status;
        head.headers_mut().insert(&PACEWAY_STATUS, HeaderValue::from(own.as_u16()));
    }
}
