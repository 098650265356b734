//! Unary gRPC calls to a service: reads the one message of a call and writes the one of its answer. Decides nothing.

use super::{Arrival, Body, Client, Ending, Proxy, forward::spoilt, service_token::has_token};
use crate::{
    answer::{Failure, grpc},
    config::ServiceListener,
    upstream::{Upload, UploadLimits},
};
use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderValue, Method, Response, header::CONTENT_TYPE};
use prost::Message;
use std::{future::Future, pin::pin};

/// A method that a service has.
#[derive(Debug, Clone, Copy)]
pub(super) struct UnaryMethod {
    pub(super) path: &'static str,
    /// The name of its message, for callers that send something else.
    pub(super) message: &'static str,
    /// The most bytes of a message.
    pub(super) most: usize,
}

/// A header that Envoy adds: `envoy.config.core.v3.HeaderValue`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct AddedHeader {
    #[prost(string, tag = "1")]
    pub(super) key: String,
    #[prost(string, tag = "2")]
    pub(super) value: String,
}

/// Reads the one message of a unary call, which is not compressed; `None` if the bytes are none.
pub(super) fn decode<M: Message + Default>(body: &[u8]) -> Option<M> {
    let (head, message) = body.split_at_checked(5)?;
    let (flag, length) = head.split_first()?;
    let length = u32::from_be_bytes(length.try_into().ok()?);
    let is_whole = *flag == 0 && usize::try_from(length).ok()? == message.len();
    is_whole.then(|| M::decode(message).ok()).flatten()
}

/// Writes the one message of a unary answer.
pub(super) fn encode(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut body = BytesMut::with_capacity(5 + length);
    body.put_u8(0);
    body.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    // A buffer that grows has room for each message.
    let _ = message.encode(&mut body);
    body.freeze()
}

/// Answers a request to a gRPC service by `answer`, unless its client leaves. A request that `is_call` says is no gRPC call
/// gets 404.
pub(super) async fn answered(
    client: &Client,
    is_call: bool,
    answer: impl Future<Output = Result<impl Message, Failure>>,
) -> (Response<Body>, Ending) {
    if !is_call {
        return (Failure::NoRoute.response().map(Body::whole), Ending::Open);
    }
    match client.unless_left(pin!(answer)).await {
        Ok(answer) => {
            let mut response = Response::new(Body::unary(encode(&answer)));
            response.headers_mut().insert(CONTENT_TYPE, grpc::GRPC);
            (response, Ending::Open)
        }
        Err(failure) => (failure.grpc_response().map(Body::whole), Ending::Open),
    }
}

// === impl Proxy ===

impl Proxy {
    /// Reads the message of a call to the only method of a service.
    ///
    /// # Errors
    ///
    /// [`Failure::Unauthorized`] without the token, [`Failure::NoRoute`] for another method, [`Failure::BadRequest`] for
    /// another message, and those of a body that breaks a rule.
    pub(super) async fn called<M: Message + Default>(
        &self,
        (listener, method): (&ServiceListener, UnaryMethod),
        client: &Client,
        Arrival { request, body }: &mut Arrival,
    ) -> Result<M, Failure> {
        if let Some(incoming) = body.take() {
            let config = &self.0.plan.config;
            let patience = config.client.body_timeout;
            let limits =
                UploadLimits { limit: None, patience, trailers: config.limits.header_bytes };
            *request.body_mut() = Upload::new(incoming, true, limits, &client.boundary);
        }
        if let Some(token) = &listener.token
            && !has_token(request.headers(), token)
        {
            return Err(Failure::Unauthorized);
        }
        if request.uri().path() != method.path || *request.method() != Method::POST {
            return Err(Failure::NoRoute);
        }
        let body = request.body_mut().read_ahead(method.most, &self.0.plan.kept).await;
        let body = body.map_err(spoilt)?;
        decode(&body)
            .ok_or_else(|| Failure::BadRequest(format!("the body is no {}", method.message).into()))
    }
}

/// The value of a header as Envoy takes it; `None` if it is no text.
pub(super) fn text(value: &HeaderValue) -> Option<String> {
    value.to_str().ok().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::nothing(b"")]
    #[case::no_length(b"\0\0\0")]
    #[case::compressed(b"\x01\0\0\0\0")]
    #[case::less_than_its_length(b"\0\0\0\0\x01")]
    #[case::more_than_its_length(b"\0\0\0\0\0\x0a")]
    #[case::no_message(b"\0\0\0\0\x01\x0a")]
    fn refuses_bytes_that_are_no_message(#[case] body: &[u8]) {
        assert_eq!(decode::<AddedHeader>(body), None);
    }

    #[test]
    fn an_encoded_message_can_be_decoded() {
        let header = AddedHeader { key: "retry-after".into(), value: "2".into() };
        assert_eq!(decode(&encode(&header)), Some(header));
    }
}
