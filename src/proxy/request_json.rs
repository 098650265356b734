//! The body of a request from which a key or a cost is read. It is read before any limiter is asked, and sent as it came.

use super::{Exchange, Routed, forward::spoilt};
use crate::{answer::Failure, upstream::UploadError};
use bytes::Bytes;
use http::{
    HeaderMap, HeaderValue, StatusCode,
    header::{CONTENT_ENCODING, CONTENT_TYPE, EXPECT},
};
use http_body::Body as _;
use memchr::memmem;

/// The most bytes of such a body, 64 KiB.
const MOST: usize = 64 << 10;

// === impl Exchange ===

impl Exchange<'_> {
    /// Reads the body, whatever its type says: some upstreams read JSON without looking at the type. `None` without a body.
    ///
    /// # Errors
    ///
    /// 413 for a body of more than 64 KiB, the failures of [`check_type`], and those of a body that breaks a rule.
    #[cold]
    pub(super) async fn read_json(
        &mut self,
        routed: &mut Routed<'_>,
    ) -> Result<Option<Bytes>, Failure> {
        let request = &mut self.arrival.request;
        if routed.upgrade.is_some() || request.body().is_end_stream() {
            return Ok(None);
        }
        check_type(request.headers())?;
        let body = match request.body_mut().read_ahead(MOST, &self.proxy.0.plan.kept).await {
            Ok(body) => body,
            Err(UploadError::TooLarge) => return Err(too_large()),
            Err(fault) => return Err(spoilt(fault)),
        };
        if routed.is_expected {
            // The client was asked for the body already.
            request.headers_mut().remove(EXPECT);
            routed.is_expected = false;
        }
        Ok(Some(body))
    }
}

/// The body of a request from which keys and costs are read; `None` if it is empty.
///
/// # Errors
///
/// 413 for a body of more than 64 KiB, and those of [`check_type`].
pub fn json_body<'b>(headers: &HeaderMap, body: &'b [u8]) -> Result<Option<&'b [u8]>, Failure> {
    if body.is_empty() {
        return Ok(None);
    }
    check_type(headers)?;
    if body.len() > MOST { Err(too_large()) } else { Ok(Some(body)) }
}

fn too_large() -> Failure {
    let why = "the body is larger than 64 KiB, the most that is read for a limiter";
    Failure::TooLarge(StatusCode::PAYLOAD_TOO_LARGE, why.into())
}

/// Refuses a body that upstreams may read as something else than JSON in UTF-8: a compressed one, one with two types, one in
/// another character set, and a form, from which many frameworks fill the same parameters as from JSON.
///
/// # Errors
///
/// 400 with the reason.
fn check_type(headers: &HeaderMap) -> Result<(), Failure> {
    let refused = |why: &'static str| Err(Failure::BadRequest(why.into()));
    let codings = headers.get_all(CONTENT_ENCODING).iter();
    let mut codings = codings.flat_map(|of| of.as_bytes().split(|byte| *byte == b','));
    if !codings.all(|of| matches!(&*of.trim_ascii().to_ascii_lowercase(), b"" | b"identity")) {
        return refused("the body is compressed, and a limiter reads it: send it without a coding");
    }
    let mut types = headers.get_all(CONTENT_TYPE).iter();
    let of = types.next().map_or(&[][..], HeaderValue::as_bytes).to_ascii_lowercase();
    if types.next().is_some() {
        return refused("the body has two types, and a limiter reads it");
    }
    if memmem::find(&of, b"form").is_some() {
        return refused("the body is a form, and a limiter reads JSON");
    }
    let is_utf8 = |at: usize| {
        let after = of[at..].iter().skip("charset".len());
        let name = after.skip_while(|byte| matches!(byte, b' ' | b'\t' | b'=' | b'"' | b'\''));
        let name: Vec<u8> = name
            .copied()
            .take_while(|byte| byte.is_ascii_alphanumeric() || *byte == b'-')
            .collect();
        matches!(&*name, b"utf-8" | b"utf8" | b"us-ascii" | b"ascii")
    };
    if memmem::find_iter(&of, b"charset").all(is_utf8) {
        Ok(())
    } else {
        refused("the body is in another character set than UTF-8, and a limiter reads it")
    }
}
