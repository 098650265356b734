//! A request as it came from its client, before any rule has been applied to it.

use super::Client;
use crate::{
    config::Config,
    upstream::{RequestBody, Upload, UploadLimits},
};
use bytes::Bytes;
use http::{Request, Version};
use http_body::Body;
use std::error::Error;

/// A request as it came from its client. It stays in one place until it is answered.
pub struct Arrival {
    /// Its head. The body is empty until the request is known to be valid.
    pub(crate) request: Request<Upload>,
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

    /// Makes the body that comes from `client` the body of the request, of at most `limit` bytes.
    pub(crate) fn accept_body(&mut self, config: &Config, limit: Option<u64>, client: &Client) {
        if let Some(incoming) = self.body.take() {
            let patience = config.client.body_timeout;
            let limits = UploadLimits { limit, patience, trailers: config.limits.header_bytes };
            let is_h2 = self.request.version() == Version::HTTP_2;
            *self.request.body_mut() = Upload::new(incoming, is_h2, limits, &client.boundary);
        }
    }
}
