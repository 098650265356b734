//! The body of a request from which a key or a cost is read. It is read before any limiter is asked, as far as its parts
//! are, and sent as it came.

use super::{Exchange, Routed, outgoing::spoilt};
use crate::{
    answer::Failure,
    json::{JsonFault, JsonScanner, JsonValues},
    key::BodyParts,
    upstream::JsonReading,
};
use http::{
    HeaderMap, HeaderValue, StatusCode,
    header::{CONTENT_ENCODING, CONTENT_TYPE, EXPECT},
};
use http_body::Body as _;
use memchr::memmem;

// === impl Exchange ===

impl Exchange<'_> {
    /// Reads the parts of the body that limiters need, whatever its type says: some upstreams read JSON without looking at
    /// the type. `None` without a body.
    ///
    /// # Errors
    ///
    /// 413 if a part is not within `limits.json_body` and has no default, the failures of [`check_type`], and those
    /// of a body that breaks a rule.
    #[cold]
    pub(super) async fn read_json(
        &mut self,
        routed: &mut Routed<'_>,
    ) -> Result<Option<JsonValues>, Failure> {
        let (plan, request) = (&self.proxy.0.plan, &mut self.arrival.request);
        let Some(parts) = &routed.policy.body else { return Ok(None) };
        if routed.upgrade.is_some() || request.body().is_end_stream() {
            return Ok(None);
        }
        check_type(request.headers())?;
        let most = plan.config.limits.json_body;
        let (bound, line) = (&plan.kept, &*plan.large_bodies);
        let reading = JsonReading { pointers: &parts.pointers, most, bound, line };
        let values = request.body_mut().read_json(reading).await.map_err(spoilt)?;
        if routed.is_expected {
            // The client was asked for the body already.
            request.headers_mut().remove(EXPECT);
            routed.is_expected = false;
        }
        check_missed(parts, &values, most)?;
        Ok(Some(values))
    }

    /// Takes the rest of a body that was read in part, if another program forwards it: nothing else would look at it.
    ///
    /// # Errors
    ///
    /// Those of a body that breaks a rule.
    pub(crate) async fn check_rest(&mut self) -> Result<(), Failure> {
        self.arrival.request.body_mut().check_rest().await.map_err(spoilt)
    }
}

/// The values in a whole body from which keys and costs are read, of which at most `most` bytes are read for them; `None` if
/// it is empty.
///
/// # Errors
///
/// As [`Exchange::read_json`].
pub fn json_body(
    headers: &HeaderMap,
    body: &[u8],
    parts: &BodyParts,
    most: usize,
) -> Result<Option<JsonValues>, Failure> {
    if body.is_empty() {
        return Ok(None);
    }
    check_type(headers)?;
    let unclear = |fault: JsonFault| Failure::BadRequest(fault.to_string().into());
    let (within, beyond) = body.split_at(body.len().min(most));
    let mut scanner = JsonScanner::new(&parts.pointers);
    scanner.feed(within).map_err(unclear)?;
    let at_bound = (!beyond.is_empty()).then(|| scanner.values());
    scanner.feed(beyond).and_then(|()| scanner.end()).map_err(unclear)?;
    let values = at_bound.unwrap_or_else(|| scanner.values());
    check_missed(parts, &values, most)?;
    Ok(Some(values))
}

/// Refuses a body whose parts were not all within its first `most` bytes, if they have no default.
fn check_missed(parts: &BodyParts, values: &JsonValues, most: usize) -> Result<(), Failure> {
    let Some(missed) = parts.missed(values) else { return Ok(()) };
    let of = missed.text();
    let why = format!(
        "a limiter reads `{of}`, which is not in the first {most} bytes of the body (`limits.json_body`)"
    );
    Err(Failure::TooLarge(StatusCode::PAYLOAD_TOO_LARGE, why.into()))
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
