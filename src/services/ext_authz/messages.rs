//! The messages of Envoy's external authorization, version 3, as far as the gateway reads and writes them. Unknown fields are
//! skipped. The tags are those of `envoy/service/auth/v3/external_auth.proto` and the files that it names.

use super::super::unary::AddedHeader;
use prost::Message;
use std::collections::HashMap;

/// A question: `envoy.service.auth.v3.CheckRequest`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct CheckRequest {
    #[prost(message, optional, tag = "1")]
    pub(super) attributes: Option<AttributeContext>,
}

/// The description of a request: `envoy.service.auth.v3.AttributeContext`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct AttributeContext {
    #[prost(message, optional, tag = "1")]
    pub(super) source: Option<AttributePeer>,
    #[prost(message, optional, tag = "4")]
    pub(super) request: Option<AttributeRequest>,
}

/// The client that Envoy has the request from, or for which a proxy before Envoy speaks.
#[derive(Clone, PartialEq, Message)]
pub(super) struct AttributePeer {
    #[prost(message, optional, tag = "1")]
    pub(super) address: Option<PeerAddress>,
}

/// `envoy.config.core.v3.Address`; addresses of other kinds, such as pipes, are skipped.
#[derive(Clone, PartialEq, Message)]
pub(super) struct PeerAddress {
    #[prost(message, optional, tag = "1")]
    pub(super) socket: Option<PeerSocket>,
}

/// `envoy.config.core.v3.SocketAddress`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct PeerSocket {
    #[prost(string, tag = "2")]
    pub(super) address: String,
}

/// The request, whatever its protocol.
#[derive(Clone, PartialEq, Message)]
pub(super) struct AttributeRequest {
    #[prost(message, optional, tag = "2")]
    pub(super) http: Option<HttpAttributes>,
}

/// The request, as HTTP has it.
#[derive(Clone, PartialEq, Message)]
pub(super) struct HttpAttributes {
    #[prost(string, tag = "2")]
    pub(super) method: String,
    /// Without `encode_raw_headers`: fields of one name are joined by commas.
    #[prost(map = "string, string", tag = "3")]
    pub(super) headers: HashMap<String, String>,
    /// The path and the query.
    #[prost(string, tag = "4")]
    pub(super) path: String,
    #[prost(string, tag = "5")]
    pub(super) host: String,
    /// With `with_request_body`; `raw_body` has it with `pack_as_bytes`.
    #[prost(string, tag = "11")]
    pub(super) body: String,
    #[prost(bytes = "bytes", tag = "12")]
    pub(super) raw_body: bytes::Bytes,
    /// With `encode_raw_headers`, in place of `headers`.
    #[prost(message, optional, tag = "13")]
    pub(super) header_map: Option<RawHeaders>,
}

/// `envoy.config.core.v3.HeaderMap`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct RawHeaders {
    #[prost(message, repeated, tag = "1")]
    pub(super) headers: Vec<RawHeader>,
}

/// `envoy.config.core.v3.HeaderValue`, whose value may be any bytes.
#[derive(Clone, PartialEq, Message)]
pub(super) struct RawHeader {
    #[prost(string, tag = "1")]
    pub(super) key: String,
    #[prost(string, tag = "2")]
    pub(super) value: String,
    #[prost(bytes = "bytes", tag = "3")]
    pub(super) raw_value: bytes::Bytes,
}

/// The answer: `envoy.service.auth.v3.CheckResponse`. It has one of the two responses.
#[derive(Clone, PartialEq, Message)]
pub(super) struct CheckResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) status: Option<RpcStatus>,
    #[prost(message, optional, tag = "2")]
    pub(super) denied: Option<DeniedResponse>,
    #[prost(message, optional, tag = "3")]
    pub(super) ok: Option<OkResponse>,
}

/// `google.rpc.Status`: 0 lets the request pass.
#[derive(Clone, PartialEq, Message)]
pub(super) struct RpcStatus {
    #[prost(int32, tag = "1")]
    pub(super) code: i32,
}

/// The response of Envoy to a request that is denied.
#[derive(Clone, PartialEq, Message)]
pub(super) struct DeniedResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) status: Option<HttpStatusCode>,
    #[prost(message, repeated, tag = "2")]
    pub(super) headers: Vec<HeaderOption>,
    #[prost(string, tag = "3")]
    pub(super) body: String,
}

/// `envoy.type.v3.HttpStatus`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct HttpStatusCode {
    #[prost(int32, tag = "1")]
    pub(super) code: i32,
}

/// The changes to a request that passes, and to its response.
#[derive(Clone, PartialEq, Message)]
pub(super) struct OkResponse {
    /// For the application.
    #[prost(message, repeated, tag = "2")]
    pub(super) headers: Vec<HeaderOption>,
    /// A header of the caller that the application must not believe.
    #[prost(string, repeated, tag = "5")]
    pub(super) headers_to_remove: Vec<String>,
    /// For the caller.
    #[prost(message, repeated, tag = "6")]
    pub(super) response_headers_to_add: Vec<HeaderOption>,
}

/// `envoy.config.core.v3.HeaderValueOption`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct HeaderOption {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<AddedHeader>,
    /// 0 appends, 2 replaces.
    #[prost(int32, tag = "3")]
    pub(super) append_action: i32,
}
