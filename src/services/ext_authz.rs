//! Envoy's filter `ext_authz` over gRPC: the attributes of a call describe a request, and the answer comes when the slot of that
//! request has come. The route, its limiters and the loop that waits are those of the data plane.

#[cfg(fuzzing)]
pub(super) mod fuzzing;
mod messages;

use super::{
    ServiceCall,
    original::origin_form,
    slot::{PACEWAY_LEASE, SlotHeaders, take_slot},
    unary::{AddedHeader, UnaryMethod, answer_call, text},
};
use crate::{
    answer::{Failure, grpc},
    config::{Config, ServiceListener},
    proxy::{Arrival, Client, Replied, deadline},
};
use axum::body::Body as FullBody;
use bytes::Bytes;
use http::{
    HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri,
    header::{
        CONNECTION, CONTENT_LENGTH, EXPECT, HOST, MAX_FORWARDS, TE, TRANSFER_ENCODING, UPGRADE,
    },
};
use messages::{
    CheckRequest, CheckResponse, DeniedResponse, HeaderOption, HttpAttributes, HttpStatusCode,
    OkResponse, RpcStatus,
};
use std::{net::IpAddr, sync::Arc};

/// The only method. A question has at most 256 KiB, with its body and headers.
const CHECK: UnaryMethod = UnaryMethod {
    path: "/envoy.service.auth.v3.Authorization/Check",
    message: "CheckRequest",
    most: 256 << 10,
};
/// The fields that say how a message was framed on the connection to Envoy. They say nothing about the description.
const FRAMING: [HeaderName; 8] =
    [CONNECTION, CONTENT_LENGTH, EXPECT, HOST, MAX_FORWARDS, TE, TRANSFER_ENCODING, UPGRADE];
/// `OVERWRITE_IF_EXISTS_OR_ADD`: the caller may have sent a header of the name.
const REPLACE: i32 = 2;
/// Envoy's word that it sent only the beginning of a body, with `allow_partial_message`.
const PARTIAL_BODY: &str = "x-envoy-auth-partial-body";

/// Decides the request that a call of Envoy describes.
pub(super) async fn serve(
    call: ServiceCall<'_>,
    listener: &ServiceListener,
    head: &mut Response<()>,
) -> Replied {
    let (client, is_call) = (call.client, grpc::is_call(&call.arrival.request));
    answer_call(client, is_call, check(call, listener), head).await
}

async fn check(
    mut call: ServiceCall<'_>,
    listener: &ServiceListener,
) -> Result<CheckResponse, Failure> {
    let asked: CheckRequest = call.read_message(listener, CHECK).await?;
    let deadline = deadline(call.arrival.request.headers());
    let attributes = asked.attributes.unwrap_or_default();
    let source = attributes.source.and_then(|peer| peer.address?.socket?.address.parse().ok());
    let described = attributes.request.and_then(|request| request.http).unwrap_or_default();
    let client = described_client(call.client, source, &call.proxy.plan().config);
    let mut arrival = Arrival::new(restore(described)?);
    let headers = arrival.request.headers();
    let whole = headers.get_all(PARTIAL_BODY).iter().all(|value| value == "false");
    let call = ServiceCall { client: &client, arrival: &mut arrival, ..call };
    let mut exchange = call.open();
    let slot = match exchange.route() {
        // A limiter would read other values than the application, which gets the whole body.
        Ok(routed) if routed.policy.is_special && !whole => Err(Failure::TooLarge(
            StatusCode::PAYLOAD_TOO_LARGE,
            "a limiter reads the body, and Envoy sent only its beginning".into(),
        )),
        Ok(mut routed) => {
            routed.budget = deadline.map_or(routed.budget, |left| routed.budget.min(left));
            take_slot(&mut exchange, &mut routed).await
        }
        Err(failure) => Err(failure),
    };
    Ok(match slot {
        Ok(slot) => {
            exchange.record.note_answer(StatusCode::OK);
            allow(&slot)
        }
        Err(failure) => deny(exchange.record.refusal(&failure, false)),
    })
}

/// The client of a request that Envoy describes: the one that it names, if Envoy is one of `trusted_proxies`. A source
/// without an IP address, such as a pipe, has no `X-Forwarded-For` that is believed.
fn described_client(client: &Arc<Client>, source: Option<IpAddr>, config: &Config) -> Arc<Client> {
    match source {
        _ if !client.is_trusted => client.clone(),
        Some(ip) => Arc::new(client.for_client(ip, &config.trusted_proxies)),
        None => Arc::new(client.for_client(client.ip, &[])),
    }
}

/// Makes the request that the attributes describe.
fn restore(http: HttpAttributes) -> Result<Request<FullBody>, Failure> {
    let bad = |why: &'static str| Failure::BadRequest(why.into());
    let body: Bytes = if http.raw_body.is_empty() { http.body.into() } else { http.raw_body };
    let mut request = Request::new(FullBody::from(body));
    *request.method_mut() = Method::from_bytes(http.method.as_bytes())
        .map_err(|_| bad("the attributes name no method"))?;
    let target = Uri::try_from(http.path).map_err(|_| bad("the attributes name no target"))?;
    *request.uri_mut() =
        origin_form(target).ok_or_else(|| bad("the attributes name no path"))?.into();
    let headers = request.headers_mut();
    let mut add = |name: &str, value: &[u8]| {
        // Envoy writes the method, the path and the host of HTTP/2 as fields, too.
        if name.starts_with(':') {
            return Ok(());
        }
        let name = HeaderName::from_bytes(name.as_bytes());
        let value = HeaderValue::from_bytes(value);
        let (Ok(name), Ok(value)) = (name, value) else {
            return Err(bad("a header of the attributes is no field of HTTP"));
        };
        if !FRAMING.contains(&name) {
            headers
                .try_append(name, value)
                .map_err(|_| bad("the attributes have too many headers"))?;
        }
        Ok(())
    };
    http.headers.iter().try_for_each(|(name, value)| add(name, value.as_bytes()))?;
    for field in http.header_map.iter().flat_map(|all| &all.headers) {
        let raw = &field.raw_value;
        add(&field.key, if raw.is_empty() { field.value.as_bytes() } else { raw })?;
    }
    if !http.host.is_empty() {
        let host = HeaderValue::try_from(http.host);
        request.headers_mut().insert(HOST, host.map_err(|_| bad("the host is no host of HTTP"))?);
    }
    Ok(request)
}

/// The answer to a request whose slot has come. Its concurrency permits and its account are for the application, all else for the
/// caller.
fn allow(slot: &SlotHeaders) -> CheckResponse {
    let SlotHeaders { answer, request, removed } = slot;
    let lease = (!request.contains_key(&PACEWAY_LEASE)).then_some(&PACEWAY_LEASE);
    let ok = OkResponse {
        headers_to_remove: removed.iter().chain(lease).map(HeaderName::to_string).collect(),
        headers: options(request.iter()),
        response_headers_to_add: options(answer.iter()),
    };
    CheckResponse { status: Some(RpcStatus { code: 0 }), denied: None, ok: Some(ok) }
}

/// The answer to a request that is refused, or that breaks a rule: the one of the data plane.
fn deny(response: Response<Bytes>) -> CheckResponse {
    let (head, body) = response.into_parts();
    let fields = head.headers.iter().filter(|(name, _)| *name != CONTENT_LENGTH);
    let denied = DeniedResponse {
        status: Some(HttpStatusCode { code: head.status.as_u16().into() }),
        headers: options(fields),
        body: String::from_utf8_lossy(&body).into_owned(),
    };
    let code = grpc::code(head.status).into();
    CheckResponse { status: Some(RpcStatus { code }), denied: Some(denied), ok: None }
}

fn options<'h>(
    headers: impl Iterator<Item = (&'h HeaderName, &'h HeaderValue)>,
) -> Vec<HeaderOption> {
    let options = headers.filter_map(|(name, value)| {
        let header = AddedHeader { key: name.to_string(), value: text(value)? };
        Some(HeaderOption { header: Some(header), append_action: REPLACE })
    });
    options.collect()
}

#[cfg(test)]
mod tests;
