//! Further attempts of a request without an answer, each on a fresh connection, with permits of its own if the upstream may
//! have counted the one before.

use super::{Exchange, Routed, attempt::Attempt, connecting::SecondConnection, outgoing::Outgoing};
use crate::{
    answer::Failure,
    limit::{self, Callee, Reservation},
    upstream::{Answered, Connection, Resend, Sent, UpstreamError},
};
use http::{HeaderMap, Response, StatusCode};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// The most attempts of a request after its first. An upstream that takes 3 requests on each connection answers 30 that
/// come at once in 10 rounds.
const ATTEMPTS: u32 = 16;
/// The pause before a third attempt, and the longest one. It doubles with each attempt, so that an upstream that refuses
/// all streams is not flooded.
const PAUSE: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(200));

// === impl Exchange ===

impl Exchange<'_> {
    /// Sends a request again, a third and further time only within its budget. If the upstream may have counted an attempt,
    /// permits of its own are taken for the next: an upstream that counts a call and then closes the connection would see
    /// more calls than the law allows.
    pub(super) async fn resend(
        &mut self,
        routed: &Routed<'_>,
        outgoing: &mut Outgoing<'_>,
        mut again: Resend,
        answer: &mut Response<()>,
    ) -> Result<Answered, UpstreamError> {
        let (end, mut pause) = (self.record.started + routed.budget, PAUSE.0);
        let mut attempt = 1;
        loop {
            let failed_at = Instant::now();
            if attempt > 1 {
                sleep(pause).await;
                pause = PAUSE.1.min(2 * pause);
            }
            let first = outgoing.reservation.as_ref();
            let connection = self.second_connection(routed, first, &again).await;
            self.record.end_wait();
            let connection = match connection {
                Ok(connection) => connection,
                Err(Failure::Upstream(error)) => return Err(again.unconnected(error)),
                Err(_) => return Err(again.unpaid()),
            };
            let Outgoing { extras, client, times, .. } = &mut *outgoing;
            let now = Instant::now();
            // If the upstream has seen nothing of the request, the next attempt gets no time of its own.
            let from = if again.is_seen() { now } else { times.sent };
            times.sent += now - failed_at;
            let request = &mut self.arrival.request;
            self.record.sent_on(&connection, request.headers_mut());
            let inform = |status: StatusCode, headers: HeaderMap| client.inform(status, headers);
            match again.send(connection, request, extras, from, &inform, answer).await? {
                Sent::Answer(answered) => return Ok(answered),
                Sent::Resend(next) if attempt < ATTEMPTS && Instant::now() + pause < end => {
                    again = *next;
                    attempt += 1;
                }
                Sent::Resend(last) => return Err(last.given_up()),
            }
        }
    }

    /// A fresh connection for a second attempt that is paid for.
    async fn second_connection(
        &mut self,
        routed: &Routed<'_>,
        first: Option<&Reservation>,
        again: &Resend,
    ) -> Result<Connection, Failure> {
        let (mut fresh, until) = (None, self.record.started + routed.budget);
        if !again.is_seen() || first.is_none() {
            let connection = again.connection(until).await.map_err(Failure::Upstream)?;
            // Connecting may have taken so long that the slot is over: sent now, the request would add to those of later slots.
            if !first.is_some_and(Reservation::is_late) {
                return Ok(connection);
            }
            fresh = Some(connection);
        }
        let (checks, indices) = first.map(Reservation::for_another_attempt).unwrap_or_default();
        let proxy = self.proxy;
        let mut pool = SecondConnection { again, fresh, until };
        if checks.is_empty() {
            return pool.ready().await;
        }
        let (route, policy, budget) = (routed.route, routed.policy, routed.budget);
        let attempt = Attempt::first(proxy, &mut self.record, route, policy, &checks, budget);
        let mut attempt = attempt.again().with_indices(&indices);
        let paced = limit::pace(&proxy.0.store, &checks, &mut attempt, &mut pool).await;
        let (mut reservation, connection) = paced?;
        reservation.spend();
        proxy.count_permits(routed.policy, reservation.checks(), Some(&indices));
        Ok(connection)
    }
}
