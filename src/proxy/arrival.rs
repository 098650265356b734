//! A request as it came from its client, before any rule has been applied to it.

use crate::upstream::{RequestBody, Upload};
use bytes::Bytes;
use http::Request;
use http_body::Body;
use std::error::Error;

/// A request as it came from its client. It stays in one place until it is answered.
pub struct Arrival {
    /// Its head. The body is empty until the request is known to be valid.
    pub(super) request: Request<Upload>,
    /// The body that comes from the client; `None` if there is none.
    pub(super) body: Option<RequestBody>,
}

// === impl Arrival ===

impl Arrival {
    /// Takes a request over from a server.
    pub fn new<B>(request: Request<B>) -> Self
    where
        B: Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        let (head, body) = request.into_parts();
        let body = (!body.is_end_stream()).then(|| RequestBody::new(body));
        Self { request: Request::from_parts(head, Upload::default()), body }
    }
}
