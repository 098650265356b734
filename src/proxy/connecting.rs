//! The connection of an attempt, as the side that `limit::pace` makes ready: an idle one or a new one for the first attempt,
//! a fresh one for the second attempt after a connection that broke.

use super::accounts::AccountPools;
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
    /// The connections to the addresses of accounts, of which one is taken with the slot.
    accounts: Option<AccountPools<'a>>,
    /// The caller leaves an address that refuses for that of another account.
    is_left: bool,
    /// When the attempt began. A connection that was idle for long then is not taken.
    since: Instant,
    /// The end of the time that the request may wait.
    until: Instant,
    /// The connection that is being made while the store decides, if none was open.
    ahead: Option<PendingConnection>,
    /// The connection that was made last, or that failed.
    pub(super) made: Option<MadeConnection>,
    /// The slot of a request that waits.
    due: Option<Instant>,
    /// For how long the request waited for connections alone, its slot being there.
    pub(super) connecting: Connecting,
}

/// The time for which a request that could have been sent had no connection.
#[derive(Clone, Copy, Default)]
pub(super) struct Connecting {
    pub(super) total: Duration,
    /// The part of it since the request began to wait for a slot.
    pub(super) within_wait: Duration,
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
    pub(super) again: &'a Resend,
    pub(super) fresh: Option<Connection>,
    /// The end of the time that the request may wait.
    pub(super) until: Instant,
}

// === impl FirstConnection ===

impl<'a> FirstConnection<'a> {
    /// The connection of an attempt that began at `since` and may wait until `until`. Begins to connect if no connection is open,
    /// so that it is made while the store decides.
    pub(super) fn new(upstream: &'a Pool, since: Instant, until: Instant) -> Self {
        let (ahead, connecting) = (upstream.connect_ahead(), Connecting::default());
        let (accounts, is_left, made, due) = (None, false, None, None);
        Self { upstream, accounts, is_left, since, until, ahead, made, due, connecting }
    }

    /// Connects only shortly before the slot, which is not near.
    pub(super) fn later(upstream: &'a Pool, until: Instant) -> Self {
        let (since, connecting) = (Instant::now(), Connecting::default());
        let (accounts, is_left, ahead, made, due) = (None, false, None, None, None);
        Self { upstream, accounts, is_left, since, until, ahead, made, due, connecting }
    }

    /// Takes the connection from the addresses of the account that is taken.
    pub(super) fn among(self, accounts: Option<AccountPools<'a>>) -> Self {
        Self { accounts, ..self }
    }

    /// Tries an address that refuses once, if another account is open: the caller leaves it then.
    pub(super) fn leaving(self) -> Self {
        Self { is_left: true, ..self }
    }

    /// The upstream that is called.
    pub(super) fn upstream(&self) -> &'a Pool {
        self.upstream
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
        let began = Instant::now();
        let upstream = self.upstream;
        let accounts = self.accounts.filter(|_| self.is_left);
        let has_other = accounts.is_some_and(|accounts| accounts.has_other(upstream));
        let (from, connection) = match self.ahead.take() {
            // The call need not outlast a restart of this one.
            ahead if has_other => (began, upstream.connection_once(ahead).await),
            Some(ahead) => (self.since, self.upstream.connection_ahead(ahead, self.until).await),
            None => (began, self.upstream.connection(self.until).await),
        };
        let (is_made, now) = (connection.is_ok(), Instant::now());
        self.made = Some(MadeConnection { times: (from, now), is_made });
        // Until the slot, the request would have waited anyway.
        let alone = self.due.filter(|_| is_made).map_or(began, |due| due.max(began));
        let took = now.saturating_duration_since(alone);
        self.connecting.total += took;
        if self.due.is_some() {
            self.connecting.within_wait += took;
        }
        connection.map_err(Failure::Upstream)
    }

    fn put_back(&mut self, connection: Connection) {
        connection.recycle();
    }

    fn takes(&mut self, way: u8) {
        if let Some(accounts) = self.accounts {
            let upstream = accounts.of(way);
            if !std::ptr::eq(upstream, self.upstream) {
                (self.upstream, self.ahead) = (upstream, None);
            }
        }
    }

    fn waits(&mut self, time: Option<Duration>) {
        self.ahead = None;
        self.due = Some(Instant::now() + time.unwrap_or_default());
    }
}

// === impl SecondConnection ===

impl Callee for SecondConnection<'_> {
    type Ready = Connection;
    type Error = Failure;

    fn lead(&self) -> Duration {
        self.again.lead()
    }

    fn at_hand(&mut self) -> Option<Connection> {
        self.fresh.take()
    }

    async fn ready(&mut self) -> Result<Connection, Failure> {
        match self.fresh.take() {
            Some(connection) => Ok(connection),
            None => self.again.connection(self.until).await.map_err(Failure::Upstream),
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
