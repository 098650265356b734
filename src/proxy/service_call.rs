//! A call to a service as every service treats it: its token, and its end when its client leaves. Decides nothing.

use super::Client;
use crate::{answer::Failure, config::AdminToken};
use http::{HeaderMap, HeaderName};
use std::{
    future::{Future, poll_fn},
    pin::pin,
    task::Poll,
};

/// The token of the service. `Authorization` is the caller's own.
static PACEWAY_TOKEN: HeaderName = HeaderName::from_static("paceway-token");

/// Whether a call has exactly one token, and that is the configured `token`.
pub(super) fn has_token(headers: &HeaderMap, token: &AdminToken) -> bool {
    let mut all = headers.get_all(&PACEWAY_TOKEN).iter();
    matches!((all.next(), all.next()), (Some(own), None) if token.is(own.as_bytes()))
}

/// Waits for the answer of a call unless its client leaves.
pub(super) async fn unless_left<T>(
    client: &Client,
    answer: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let (mut answer, mut leaves) = (pin!(answer), pin!(client.leaves()));
    poll_fn(|cx| match answer.as_mut().poll(cx) {
        Poll::Pending => leaves.as_mut().poll(cx).map(|()| Err(Failure::ClientLeft)),
        answer => answer,
    })
    .await
}
