//! The body of a request from which a key or a cost is read. It is read before any limiter is asked, and sent as it came.
//! Refuses requests of limiters that are not there.

use super::{Proxy, Routed, forward::spoilt};
use crate::{answer::Failure, key::is_json, limit, plan::RoutePolicy, upstream::UploadError};
use bytes::Bytes;
use http::{
    HeaderMap, StatusCode,
    header::{CONTENT_ENCODING, CONTENT_TYPE, EXPECT},
};

/// The most bytes of such a body, 64 KiB.
const MOST: usize = 64 << 10;

// === impl Proxy ===

impl Proxy {
    /// Refuses a request of a limiter that is missing. Otherwise reads its body, because a key or a cost is a part of it.
    ///
    /// # Errors
    ///
    /// 503 if a limiter is missing, and those of [`Self::read_json`].
    #[cold]
    pub(super) async fn before_limits(
        &self,
        routed: &mut Routed<'_>,
    ) -> Result<Option<Bytes>, Failure> {
        self.not_missing(routed.policy)?;
        self.read_json(routed).await
    }

    /// Refuses a request as long as `limits_from` has not added a limiter of its route.
    ///
    /// # Errors
    ///
    /// [`Failure::MissingLimiter`] with the names of the limiters.
    pub(super) fn not_missing(&self, policy: &RoutePolicy) -> Result<(), Failure> {
        let Some(names) = &policy.missing else { return Ok(()) };
        let every = self.0.plan.config.limits_from.as_ref().map(|from| from.every);
        let retry_after = limit::micros(every.unwrap_or_default());
        Err(Failure::MissingLimiter { names: names.clone(), retry_after })
    }

    /// Reads the body if it can be JSON, and returns it. A request without such a body has none of the parts.
    ///
    /// # Errors
    ///
    /// 413 for a body of more than 64 KiB, and the failures of a body that breaks a rule.
    async fn read_json(&self, routed: &mut Routed<'_>) -> Result<Option<Bytes>, Failure> {
        if routed.upgrade.is_some() || !may_be_json(routed.request.headers()) {
            return Ok(None);
        }
        let body = match routed.request.body_mut().read_ahead(MOST, &self.0.plan.kept).await {
            Ok(body) => body,
            Err(UploadError::TooLarge) => return Err(too_large()),
            Err(fault) => return Err(spoilt(fault)),
        };
        if routed.is_expected {
            // The client was asked for the body already.
            routed.request.headers_mut().remove(EXPECT);
            routed.is_expected = false;
        }
        Ok(Some(body))
    }
}

/// The body of a request from which keys and costs are read; `None` if it cannot be JSON.
///
/// # Errors
///
/// 413 for a body of more than 64 KiB.
pub fn json_body<'b>(headers: &HeaderMap, body: &'b [u8]) -> Result<Option<&'b [u8]>, Failure> {
    match may_be_json(headers) {
        true if body.len() > MOST => Err(too_large()),
        is_read => Ok(is_read.then_some(body)),
    }
}

fn too_large() -> Failure {
    let why = "the body is larger than 64 KiB, the most that is read for a limiter";
    Failure::TooLarge(StatusCode::PAYLOAD_TOO_LARGE, why.into())
}

/// Whether a message with these headers can have a JSON body that is not compressed. Many clients name no type.
fn may_be_json(headers: &HeaderMap) -> bool {
    !headers.contains_key(CONTENT_ENCODING)
        && headers.get(CONTENT_TYPE).is_none_or(|of| is_json(of.as_bytes()))
}
