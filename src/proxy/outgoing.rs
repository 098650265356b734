//! A request on its way to the upstream, and what came back. Sends nothing itself.

use super::{
    accounts::RequestAccounts, interim::ClientSide, read_ahead::ReadAhead, reading::PendingRead,
};
use crate::{
    answer::Failure,
    limit::Reservation,
    store::Checks,
    upstream::{Answered, Pool, RequestExtras, UploadControl, UploadError, UpstreamError},
};
use http::{Response, StatusCode};
use std::time::Duration;
use tokio::time::Instant;

/// A request on its way to the upstream: all that its attempts share, and what the attempt under way holds.
pub(super) struct Outgoing<'h> {
    /// The questions to its limiters; `None` if nothing limits it.
    pub(super) checks: Option<&'h Checks>,
    /// The permits of the attempt under way.
    pub(super) reservation: Option<Reservation>,
    /// The connections to its upstream.
    pub(super) upstream: &'h Pool,
    pub(super) extras: RequestExtras<'h>,
    pub(super) client: ClientSide<'h>,
    pub(super) times: AttemptTimes,
    /// The rest of what a read needs that may cost nothing; `None` for nearly all requests.
    pub(super) read: Option<Box<PendingRead>>,
    /// The accounts with which it may be sent; `None` for most requests.
    pub(super) accounts: Option<Box<RequestAccounts<'h>>>,
}

/// The upstream's answer to one attempt, as far as it has come.
pub(super) struct Received {
    pub(super) head: Response<()>,
    pub(super) answered: Answered,
    /// The start of the body, if it was read ahead.
    pub(super) read_ahead: Option<ReadAhead>,
}

/// The times of the attempt under way.
#[derive(Clone, Copy)]
pub(super) struct AttemptTimes {
    /// The instant at which the request was sent. It moves by the time in which nothing was asked of the upstream.
    pub(super) sent: Instant,
    /// The time from then to the head of the answer.
    pub(super) took: Duration,
}

// === impl Outgoing ===

impl<'h> Outgoing<'h> {
    /// A request that was received at `since` and waits for its slot.
    #[inline(always)]
    pub(super) fn new(
        checks: Option<&'h Checks>,
        upstream: &'h Pool,
        client: ClientSide<'h>,
        since: Instant,
        read: Option<Box<PendingRead>>,
    ) -> Self {
        let times = AttemptTimes { sent: since, took: Duration::ZERO };
        let (reservation, extras) = (None, RequestExtras::none());
        let accounts = None;
        Self { checks, reservation, upstream, extras, client, times, read, accounts }
    }

    /// The reason why there is no answer. If nothing was sent, the permits are refunded.
    pub(super) fn fail(&mut self, error: UpstreamError) -> Failure {
        let reservation = self.reservation.take();
        if let Some(fault) = self.client.upload.as_ref().and_then(UploadControl::error) {
            return spoilt(fault);
        }
        if error.is_unsent()
            && let Some(reservation) = reservation
        {
            reservation.refund();
        }
        Failure::Upstream(error)
    }
}

/// The failure of a request whose body broke, grew too large or stalled, or whose client left within it.
pub(crate) fn spoilt(fault: UploadError) -> Failure {
    match fault {
        UploadError::Malformed => Failure::Malformed(fault.to_string().into()),
        UploadError::Unclear(_) => Failure::BadRequest(fault.to_string().into()),
        UploadError::TooLarge => Failure::TooLarge(
            StatusCode::PAYLOAD_TOO_LARGE,
            "the body is larger than it may be".into(),
        ),
        UploadError::Trailers => Failure::TooLarge(
            StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            "the trailers are larger than headers may be".into(),
        ),
        UploadError::Slow => Failure::BodyTimeout,
        UploadError::NoRoom => Failure::TooManyBodies,
        UploadError::ClientGone | UploadError::Unwanted => Failure::ClientLeft,
    }
}
