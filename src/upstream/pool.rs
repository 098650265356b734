//! One worker's pool of connections to one upstream. It hands out an idle connection or makes one; the newest idle one is
//! used first, so that surplus connections grow old and are closed.

mod idle;
mod make;
pub(super) mod state;

use super::{
    cluster::{Cluster, Timeouts},
    connection::Connection,
    error::UpstreamError,
    exchange::Resend,
    sockets::CloseIdle,
    target::Target,
};
use idle::IdleConnections;
use make::{ConnectPolicy, ConnectionSource, begin, find_source, make};
use state::PoolState;
use std::{
    fmt,
    num::NonZeroUsize,
    sync::{Arc, Weak, atomic::Ordering::Relaxed},
    time::Duration,
};
use tokio::{
    sync::oneshot,
    time::{Instant, interval},
};

/// The connections of one worker to one upstream. Clones share them.
#[derive(Clone)]
pub struct Pool(Arc<PoolState>);

/// A connection that is being made before a request needs it.
#[derive(Debug)]
pub struct PendingConnection {
    made: oneshot::Receiver<Result<Connection, UpstreamError>>,
    since: Instant,
}

// === impl Pool ===

impl Pool {
    /// Makes an empty pool for one of `workers`, without a connection. Must be called on the runtime of that worker, as it
    /// spawns the task that closes idle connections.
    pub fn new(cluster: Arc<Cluster>, workers: NonZeroUsize) -> Self {
        let state = PoolState::new(cluster, workers);
        tokio::spawn(sweep(Arc::downgrade(&state)));
        let weak: Weak<PoolState> = Arc::downgrade(&state);
        let shared: Weak<dyn CloseIdle> = weak;
        state.cluster.settings.sockets.share(shared);
        Self(state)
    }

    /// The time-outs of the upstream.
    pub fn timeouts(&self) -> Timeouts {
        self.0.timeouts()
    }

    /// The target that a connection of this pool leads to.
    pub fn target_of(&self, connection: &Connection) -> &Target {
        self.0.target_of(&connection.address)
    }

    /// The time before its slot at which a request should take a connection, so that it is ready by then: twice as long
    /// as the last connection took to make.
    pub fn lead(&self) -> Duration {
        self.0.lead()
    }

    /// Takes a connection that is idle `now`; `None` if none is, or if the upstream has several addresses to choose from.
    pub fn idle(&self, now: Instant) -> Option<Connection> {
        let mut idle = self.0.idle.lock();
        let IdleConnections { group, by_address } = &mut *idle;
        let [only] = &*group.load().addresses else { return None };
        let known = by_address.iter_mut().find(|known| Arc::ptr_eq(&known.address, only))?;
        let (wire, address) = known.take(now, self.timeouts().idle, true)?;
        Some(Connection { wire, address, picked: None, pool: self.0.clone() })
    }

    /// Takes an idle connection, or makes one. An address that cannot be reached is passed over for the next; the only
    /// address is tried again until `connect_timeout` is over, so that calls outlast a restart of the upstream. Where it has
    /// been away for longer than that, a request that may wait until `until` waits no longer.
    ///
    /// # Errors
    ///
    /// [`UpstreamError::Connect`], [`UpstreamError::Via`], [`UpstreamError::ConnectTimeout`] or
    /// [`UpstreamError::TlsTimeout`] if no address could be connected to.
    pub async fn connection(&self, until: Instant) -> Result<Connection, UpstreamError> {
        self.connection_by(|| ConnectPolicy::since(Instant::now(), until)).await
    }

    /// Takes an idle connection, or makes one by this policy.
    async fn connection_by(
        &self,
        policy: impl FnOnce() -> ConnectPolicy,
    ) -> Result<Connection, UpstreamError> {
        match find_source(&self.0, &[], true) {
            ConnectionSource::Ready(connection) => Ok(connection),
            next => Box::pin(begin(&self.0, next, policy())).await,
        }
    }

    /// Takes a connection as [`Self::connection`] does, or the one that was begun `ahead`, for a caller that has another upstream to
    /// call: an address that refuses is not tried again.
    ///
    /// # Errors
    ///
    /// As [`Self::connection`].
    pub async fn connection_once(
        &self,
        ahead: Option<PendingConnection>,
    ) -> Result<Connection, UpstreamError> {
        if let Some(PendingConnection { made, .. }) = ahead
            && let Ok(made) = made.await
        {
            return made;
        }
        self.connection_by(|| ConnectPolicy::ONCE).await
    }

    /// Begins to make a connection if the pool has none, open or being made. A caller that drops the result leaves the
    /// connection to other requests. It is tried once, as no request needs it yet.
    pub fn connect_ahead(&self) -> Option<PendingConnection> {
        // A pool that keeps no idle connection would close one that no request takes at once.
        if self.0.open.load(Relaxed) != 0 || self.0.keeps == 0 || self.0.is_dead() {
            return None;
        }
        let (made, ahead) = oneshot::channel();
        let pool = self.0.clone();
        tokio::spawn(async move {
            let next = find_source(&pool, &[], true);
            if let Err(Ok(connection)) = made.send(begin(&pool, next, ConnectPolicy::ONCE).await) {
                connection.recycle();
            }
        });
        Some(PendingConnection { made: ahead, since: Instant::now() })
    }

    /// Waits for a connection that [`Self::connect_ahead`] began. If its one attempt was refused, connecting is tried
    /// again until `connect_timeout` after it began.
    ///
    /// # Errors
    ///
    /// [`UpstreamError::Connect`], [`UpstreamError::Via`], [`UpstreamError::ConnectTimeout`] or
    /// [`UpstreamError::TlsTimeout`] if no address could be connected to.
    pub async fn connection_ahead(
        &self,
        pending: PendingConnection,
        until: Instant,
    ) -> Result<Connection, UpstreamError> {
        let PendingConnection { made, since } = pending;
        match made.await {
            Ok(Err(error)) if error.is_unconnected() => {
                let next = find_source(&self.0, &[], true);
                Box::pin(begin(&self.0, next, ConnectPolicy::since(since, until))).await
            }
            Ok(made) => made,
            // The task that makes it has ended with its runtime.
            Err(_) => self.connection(until).await,
        }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pool").field(&self.0.cluster).finish()
    }
}

// === impl Resend ===

impl Resend {
    /// The time before its slot at which the next attempt should take a connection.
    pub fn lead(&self) -> Duration {
        self.pool.lead()
    }

    /// Makes a fresh connection for the second attempt, to the same address if it can be reached. An idle one will not
    /// do: the upstream may be closing all of them.
    ///
    /// # Errors
    ///
    /// [`UpstreamError::Connect`], [`UpstreamError::Via`], [`UpstreamError::ConnectTimeout`] or
    /// [`UpstreamError::TlsTimeout`] if no address could be connected to.
    pub async fn connection(&self, until: Instant) -> Result<Connection, UpstreamError> {
        let Self { pool, address, .. } = self;
        let since = ConnectPolicy::since(Instant::now(), until);
        let fresh = ConnectPolicy { may_reuse: false, ..since };
        let group = pool.cluster.group.load_full();
        if group.contains(address) {
            return make(pool, address.clone(), group.pick_again(address), fresh).await;
        }
        begin(pool, find_source(pool, &[], false), fresh).await
    }
}

/// Closes connections that have been idle for too long, or whose address DNS no longer returns, once a second for as long
/// as the pool exists.
async fn sweep(pool: Weak<PoolState>) {
    let mut tick = interval(Duration::from_secs(1));
    loop {
        tick.tick().await;
        let Some(pool) = pool.upgrade() else { return };
        let limit = if pool.keeps == 0 { Duration::ZERO } else { pool.timeouts().idle };
        pool.idle.lock().sweep(limit);
    }
}
