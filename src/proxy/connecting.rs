//! The connection of an attempt, as the side that `limit::pace` makes ready: an idle one or a new one for the first attempt,
//! a fresh one for the second attempt after a connection that broke.

use crate::{
    answer::Failure,
    limit::Callee,
    upstream::{Connection, PendingConnection, Pool, Resend},
};
use std::time::Duration;
use tokio::time::Instant;

/// The upstream of a first attempt, as the side that is called.
pub(super) struct FirstConnection<'a> {
    upstream: &'a Pool,
    /// When the attempt began. A connection that was idle for long then is not taken.
    since: Instant,
    /// The connection that is being made while the store decides, if none was open.
    ahead: Option<PendingConnection>,
    /// The connection that was made last, or that failed.
    pub(super) made: Option<MadeConnection>,
}

/// A connection that was made, or that failed.
#[derive(Clone, Copy)]
pub(super) struct MadeConnection {
    /// When it was begun, and when it was ready.
    pub(super) times: (Instant, Instant),
    pub(super) is_made: bool,
}

/// The upstream of a second attempt, which takes a fresh connection.
pub(super) struct SecondConnection<'a> {
    pub(super) upstream: &'a Pool,
    pub(super) again: &'a Resend,
    pub(super) fresh: Option<Connection>,
}

// === impl FirstConnection ===

impl<'a> FirstConnection<'a> {
    /// The connection of an attempt that began at `since`. Begins to connect if no connection is open, so that it is made
    /// while the store decides.
    pub(super) fn new(upstream: &'a Pool, since: Instant) -> Self {
        Self { upstream, since, ahead: upstream.connect_ahead(), made: None }
    }

    /// Connects only shortly before the slot, which is not near.
    pub(super) fn later(upstream: &'a Pool) -> Self {
        Self { upstream, since: Instant::now(), ahead: None, made: None }
    }
}

impl Callee for FirstConnection<'_> {
    type Ready = Connection;
    type Error = Failure;

    fn lead(&self) -> Duration {
        self.upstream.lead()
    }

    fn at_hand(&mut self) -> Option<Connection> {
        self.upstream.idle(self.since)
    }

    async fn ready(&mut self) -> Result<Connection, Failure> {
        let (from, connection) = match self.ahead.take() {
            Some(ahead) => (self.since, self.upstream.connection_ahead(ahead).await),
            None => (Instant::now(), self.upstream.connection().await),
        };
        let is_made = connection.is_ok();
        self.made = Some(MadeConnection { times: (from, Instant::now()), is_made });
        connection.map_err(Failure::Upstream)
    }

    fn put_back(&mut self, connection: Connection) {
        connection.recycle();
    }

    fn waits(&mut self, _: Option<Duration>) {
        self.ahead = None;
    }
}

// === impl SecondConnection ===

impl Callee for SecondConnection<'_> {
    type Ready = Connection;
    type Error = Failure;

    fn lead(&self) -> Duration {
        self.upstream.lead()
    }

    fn at_hand(&mut self) -> Option<Connection> {
        self.fresh.take()
    }

    async fn ready(&mut self) -> Result<Connection, Failure> {
        match self.fresh.take() {
            Some(connection) => Ok(connection),
            None => self.again.connection().await.map_err(Failure::Upstream),
        }
    }

    fn put_back(&mut self, connection: Connection) {
        self.fresh = Some(connection);
    }

    /// The upstream may close a connection that is idle meanwhile.
    fn waits(&mut self, time: Option<Duration>) {
        if time.is_none_or(|time| !time.is_zero()) {
            self.fresh = None;
        }
    }
}
