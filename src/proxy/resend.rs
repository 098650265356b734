//! The second attempt of a request without an answer, on a fresh connection, with permits of its own if the upstream may
//! have counted the first one.

use super::{Proxy, Routed, attempt::Attempt, connecting::SecondConnection, record::Record};
use crate::{
    answer::Failure,
    limit::{self, Callee, Reservation},
    upstream::{
        Answered, Connection, Replay, Resend, Upload, UpstreamError, headers::AddedHeaders,
    },
};
use http::{HeaderMap, Response, StatusCode};
use tokio::time::Instant;

// === impl Proxy ===

impl Proxy {
    /// Sends a request once more. If the upstream may have counted the first attempt, permits of its own are taken
    /// first: an upstream that counts a call and then closes the connection would see more calls than the law allows.
    /// `started` moves by the time in which nothing was asked of the upstream.
    pub(super) async fn send_again(
        &self,
        record: &mut Record<'_>,
        routed: &mut Routed<'_>,
        reservation: Option<&Reservation>,
        again: Resend,
        (added, replay, started, inform, answer): (
            &mut AddedHeaders<'_>,
            &mut Replay<Upload>,
            &mut Instant,
            &(impl Fn(StatusCode, HeaderMap) + Sync),
            &mut Response<()>,
        ),
    ) -> Result<Answered, UpstreamError> {
        let failed_at = Instant::now();
        let connection = self.second_connection(record, routed, reservation, &again).await;
        record.waited();
        let connection = match connection {
            Ok(connection) => connection,
            Err(Failure::Upstream(error)) => return Err(again.unconnected(error)),
            Err(_) => return Err(again.unpaid()),
        };
        let now = Instant::now();
        // If the upstream has seen nothing of the request, the second attempt gets no time of its own.
        let from = if again.is_seen() { now } else { *started };
        *started += now - failed_at;
        record.sent_on(&connection, routed.request.headers_mut());
        again.send(connection, routed.request, added, (from, replay), inform, answer).await
    }

    /// A fresh connection for a second attempt that is paid for.
    async fn second_connection(
        &self,
        record: &mut Record<'_>,
        routed: &Routed<'_>,
        first: Option<&Reservation>,
        again: &Resend,
    ) -> Result<Connection, Failure> {
        let (mut fresh, until) = (None, record.started + routed.budget);
        if !again.is_seen() || first.is_none() {
            let connection = again.connection(until).await.map_err(Failure::Upstream)?;
            // Connecting may have taken so long that the slot is over: sent now, the request would add to those of later slots.
            if !first.is_some_and(Reservation::is_late) {
                return Ok(connection);
            }
            fresh = Some(connection);
        }
        let (checks, indices) = first.map(Reservation::for_another_attempt).unwrap_or_default();
        let upstream = &self.0.upstreams[routed.policy.upstream];
        let mut pool = SecondConnection { upstream, again, fresh, until };
        if checks.is_empty() {
            return pool.ready().await;
        }
        let way = (routed.route, routed.policy);
        let asked = (&checks, &indices[..]);
        let mut attempt = Attempt::second(self, record, way, asked, routed.budget);
        let paced = limit::pace(&self.0.store, &checks, &mut attempt, &mut pool).await;
        let (mut reservation, connection) = paced?;
        reservation.spend();
        self.spent(routed.policy, reservation.checks(), Some(&indices));
        Ok(connection)
    }
}
