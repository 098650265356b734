//! Unary gRPC calls to a service: reads the one message of a call and writes the one of its answer. Decides nothing.

use super::{ServiceCall, reply, token::has_token};
use crate::{
    answer::{Failure, grpc},
    config::ServiceListener,
    proxy::{Body, Client, Ending, Replied, spoilt},
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
pub(super) async fn answer_call(
    client: &Client,
    is_call: bool,
    answer: impl Future<Output = Result<impl Message, Failure>>,
    head: &mut Response<()>,
) -> Replied {
    if !is_call {
        return reply(Failure::NoRoute.response(), head);
    }
    match client.unless_left(pin!(answer)).await {
        Ok(answer) => {
            head.headers_mut().insert(CONTENT_TYPE, grpc::GRPC);
            Replied { body: Body::unary(encode(&answer)), ending: Ending::Open }
        }
        Err(failure) => reply(failure.grpc_response(), head),
    }
}

// === impl ServiceCall ===

impl ServiceCall<'_> {
    /// Reads the message of a call to the only method of a service.
    ///
    /// # Errors
    ///
    /// [`Failure::Unauthorized`] without the token, [`Failure::NoRoute`] for another method, [`Failure::BadRequest`] for
    /// another message, and those of a body that breaks a rule.
    pub(super) async fn read_message<M: Message + Default>(
        &mut self,
        listener: &ServiceListener,
        method: UnaryMethod,
    ) -> Result<M, Failure> {
        let plan = self.proxy.plan();
        self.arrival.accept_body(&plan.config, None, self.client);
        let request = &mut self.arrival.request;
        if let Some(token) = &listener.token
            && !has_token(request.headers(), token)
        {
            return Err(Failure::Unauthorized);
        }
        if request.uri().path() != method.path || *request.method() != Method::POST {
            return Err(Failure::NoRoute);
        }
        let body = request.body_mut().read_ahead(method.most, &plan.kept).await;
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
