//! A request between accounts: it is sent with the one whose slot is the earliest, and moves when the vendor rejects that, when
//! the call fails, or when the address cannot be reached. A refusal moves it by the rules of retries, which are not here.

use super::RequestAccounts;
use crate::{
    answer::Failure,
    limit::{self, Callee},
    metrics::MoveReason,
    proxy::{
        Body, Exchange, Routed,
        connecting::FirstConnection,
        interim::ClientSide,
        outgoing::{Outgoing, Received},
        read_ahead::ReadAhead,
        reading::PendingRead,
    },
    store::Checks,
};
use http::Response;

// === impl Exchange ===

impl<'a> Exchange<'a> {
    /// Forwards a request as [`Self::forward`] does, with the account whose slot is the earliest.
    #[cold]
    pub(in crate::proxy) async fn forward_among<'h>(
        &mut self,
        routed: &mut Routed<'a>,
        checks: Option<&'h Checks>,
        mut accounts: Box<RequestAccounts<'h>>,
        read: Option<Box<PendingRead>>,
        answer: &mut Response<()>,
    ) -> Result<Body, Failure>
    where
        'a: 'h,
    {
        let proxy = self.proxy;
        let (since, pools) = (self.record.started, &proxy.0.upstreams);
        let main = &pools[routed.policy.upstream];
        let mut is_first = true;
        let (reservation, connection, upstream) = loop {
            let own = accounts.upstream().map_or(main, |own| &pools[own]);
            let mut pool = FirstConnection::new(own, since, since + routed.budget)
                .among(Some(accounts.pools(pools)))
                .leaving();
            let connected = match checks {
                Some(checks) => {
                    let attempt = self.first_attempt(routed, checks, read.as_deref());
                    let attempt = if is_first { attempt } else { attempt.again() };
                    let mut attempt = attempt.among(accounts.for_attempt());
                    let paced = limit::pace(&proxy.0.store, checks, &mut attempt, &mut pool).await;
                    paced.map(|(reservation, connection)| (Some(reservation), connection))
                }
                None => pool.ready().await.map(|connection| (None, connection)),
            };
            accounts.take(self.record.account);
            self.record.account = accounts.chosen();
            self.record.end_wait_connecting(pool.connecting);
            self.record.connected(pool.made);
            match connected {
                Ok((reservation, connection)) => break (reservation, connection, pool.upstream()),
                // The permits are given back, and the others may be reached.
                Err(Failure::Upstream(failure)) => {
                    let store = &proxy.0.store;
                    if !accounts.leave_unreachable() && accounts.try_another(store).await.is_err() {
                        return Err(Failure::Upstream(failure));
                    }
                    is_first = false;
                }
                Err(failure) => return Err(failure),
            }
        };
        let client = ClientSide::of(self.client, &self.arrival.request);
        let own = accounts.checks().or(checks);
        let mut outgoing = Outgoing::new(own, upstream, client, since, read);
        outgoing.reservation = reservation;
        outgoing.accounts = Some(accounts);
        self.send(routed, &mut outgoing, connection, answer).await
    }

    /// Reads an answer that may reject the account of the request, and leaves the account then. `None` if it stays.
    #[cold]
    pub(in crate::proxy) async fn leave_account(
        &mut self,
        routed: &Routed<'_>,
        outgoing: &mut Outgoing<'_>,
        received: &mut Received,
    ) -> Option<MoveReason> {
        let status = received.head.status();
        let config = outgoing.accounts.as_ref()?.config;
        if config.park.needs_body(status, received.head.headers()) {
            received.hold(&mut self.record, &self.proxy.0.plan.kept).await;
        }
        let body = received.read_ahead.as_ref().and_then(ReadAhead::whole);
        let is_rejected = config.park.meets(status, received.head.headers(), body);
        let (store, accounts) = (&self.proxy.0.store, outgoing.accounts.as_mut()?);
        if is_rejected {
            tracing::debug!(
                upstream = self.upstream_config(routed).name,
                account = accounts.label().and_then(|label| label.to_str().ok()),
                status = status.as_u16(),
                "the upstream rejects an account"
            );
            accounts.park(&**store, status);
            return Some(MoveReason::Parked);
        }
        accounts.succeed(store);
        accounts.spills(status).then_some(MoveReason::Failed)
    }

    /// Prepares a request for another account. Returns false if it has to stay: it cannot be sent twice, or no other is open.
    ///
    /// # Errors
    ///
    /// [`Failure::AccountsParked`] if its account was the last one.
    pub(in crate::proxy) async fn move_account(
        &mut self,
        routed: &Routed<'_>,
        outgoing: &mut Outgoing<'_>,
        received: &mut Received,
        reason: MoveReason,
    ) -> Result<bool, Failure> {
        let attempts = self.throttle(routed).retry.attempts.get();
        let may_repeat = reason == MoveReason::Parked || self.is_repeatable();
        if self.record.attempts >= attempts || !may_repeat || !outgoing.extras.replay.is_kept() {
            return Ok(false);
        }
        let status = received.head.status();
        received.hold(&mut self.record, &self.proxy.0.plan.kept).await;
        if !received.is_over() {
            return Ok(false);
        }
        let Some(accounts) = &mut outgoing.accounts else { return Ok(false) };
        let before = (accounts.closed, accounts.left);
        if reason == MoveReason::Failed {
            accounts.spill(status);
        }
        accounts.count_move(reason);
        if !accounts.leave() {
            if reason == MoveReason::Failed {
                (accounts.closed, accounts.left) = before;
                return Ok(false);
            }
            Box::pin(accounts.try_another(&self.proxy.0.store)).await?;
        }
        let Some(body) = outgoing.extras.replay.take().await else { return Ok(false) };
        *self.arrival.request.body_mut() = body;
        outgoing.reservation = None;
        Ok(true)
    }
}
