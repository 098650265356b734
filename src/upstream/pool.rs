//! One worker's connections to one upstream: kept while idle, made when there is none. The newest idle one is used
//! first, so that those too many grow old and are closed.

mod idle;

use super::{
    Chain, Cluster, Connection, Target, Timeouts, UpstreamError,
    balance::{Address, AddressFailure, PickedAddress},
    connect::{OpenError, open},
    connection::Wire,
    h1::H1Connection,
    h2::H2Session,
    sockets::Socket,
};
use crate::log::{Permit, Throttle};
use idle::IdleConnections;
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::{
    fmt,
    num::NonZeroUsize,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::{
    sync::oneshot,
    time::{Instant, interval, sleep, timeout},
};

/// Bounds of how long before its slot a request takes a connection.
const LEAD: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// Time-outs for connecting that one request may spend on several addresses.
const ATTEMPTS: u32 = 3;
static OUT_OF_FILES: Throttle = Throttle::new();

/// Pauses before an upstream's only address is connected to again: at first, and at most. It doubles with each attempt, so
/// that a `connect_timeout` of 2 s has 8 of them. A restart on the same machine takes a fraction of a second.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(400));

/// An upstream as one worker sees it. Clones share the connections.
#[derive(Clone)]
pub struct Pool(Arc<Inner>);

struct Inner {
    cluster: Arc<Cluster>,
    /// Idle connections at most.
    keeps: usize,
    idle: Mutex<IdleConnections>,
    /// Connections there are or that are being made.
    open: AtomicUsize,
    /// How long the last connection took to make, µs.
    connecting: AtomicU64,
}

/// Where the connection for a request comes from.
enum Candidate {
    Ready(Connection),
    Connect(Arc<Address>, Option<PickedAddress>),
    /// There is no address, or no other.
    Nowhere,
}

/// A connection that is being made, and since when.
#[derive(Debug)]
pub struct PendingConnection {
    made: oneshot::Receiver<Result<Connection, UpstreamError>>,
    since: Instant,
}

/// How connections are made for a request.
#[derive(Clone, Copy)]
struct ConnectPolicy {
    /// An idle connection will do.
    may_reuse: bool,
    /// An upstream's only address that cannot be reached is connected to again until `connect_timeout` after this. `None`:
    /// it is tried once.
    since: Option<Instant>,
}

/// Counts a connection in [`Inner::open`].
pub(super) struct OpenConnection(
    Weak<Inner>,
    #[expect(dead_code, reason = "dropped with it")] Socket,
);

// === impl Pool ===

impl Pool {
    /// Connects nowhere yet. Must be called on the runtime that will use it, one of `workers`.
    pub fn new(cluster: Arc<Cluster>, workers: NonZeroUsize) -> Self {
        let keeps = match cluster.settings.pool_size {
            0 => 0,
            size => (size / workers).max(1),
        };
        let inner = Arc::new(Inner {
            idle: Mutex::new(IdleConnections::new(cluster.group.clone())),
            cluster,
            keeps,
            open: AtomicUsize::new(0),
            connecting: AtomicU64::new(0),
        });
        tokio::spawn(sweep(Arc::downgrade(&inner)));
        let pool = Arc::downgrade(&inner);
        inner.cluster.settings.sockets.share(move || {
            let shed = pool.upgrade().and_then(|inner| inner.idle.lock().shed());
            shed.is_some()
        });
        Self(inner)
    }

    /// How long it may take.
    pub fn timeouts(&self) -> Timeouts {
        self.0.cluster.settings.timeouts
    }

    pub(super) fn cluster(&self) -> &Cluster {
        &self.0.cluster
    }

    pub(super) fn target_of(&self, address: &Address) -> &Target {
        &self.0.cluster.settings.targets[address.target]
    }

    /// How long before its slot a request should take a connection, so that it is ready by then.
    pub fn lead(&self) -> Duration {
        let took = Duration::from_micros(self.0.connecting.load(Relaxed));
        (took * 2).clamp(LEAD.0, LEAD.1)
    }

    /// An idle connection, if there is one and no choice between addresses.
    pub fn idle(&self) -> Option<Connection> {
        let mut idle = self.0.idle.lock();
        let IdleConnections { group, all } = &mut *idle;
        let [only] = &*group.load().addresses else { return None };
        let connections =
            all.iter_mut().find(|connections| Arc::ptr_eq(&connections.address, only))?;
        let (wire, address) = connections.take(self.0.cluster.settings.timeouts.idle, true)?;
        Some(Connection { wire, address, picked: None, upstream: self.clone() })
    }

    /// A connection: an idle one, or a new one. An address that cannot be reached is passed over for the next; the only
    /// one is tried again for as long as `connect_timeout` lasts, as after a restart of the upstream.
    ///
    /// # Errors
    ///
    /// [`UpstreamError::Connect`], [`UpstreamError::ConnectTimeout`], [`UpstreamError::TlsTimeout`].
    pub async fn connection(&self) -> Result<Connection, UpstreamError> {
        match self.next(&[], true) {
            Candidate::Ready(connection) => Ok(connection),
            next => Box::pin(self.begin(next, ConnectPolicy::since(Instant::now()))).await,
        }
    }

    /// Begins to make a connection when none is there nor being made. Whoever drops the receiver leaves it to the
    /// others. It is tried once: no request needs it yet.
    pub fn connect_ahead(&self) -> Option<PendingConnection> {
        // Where none is kept, one that nobody needs would be for nothing.
        if self.0.open.load(Relaxed) != 0 || self.0.keeps == 0 {
            return None;
        }
        let (made, ahead) = oneshot::channel();
        let upstream = self.clone();
        tokio::spawn(async move {
            let next = upstream.next(&[], true);
            let once = ConnectPolicy { may_reuse: true, since: None };
            if let Err(Ok(connection)) = made.send(upstream.begin(next, once).await) {
                connection.recycle();
            }
        });
        Some(PendingConnection { made: ahead, since: Instant::now() })
    }

    /// The connection that was begun ahead, or another one.
    ///
    /// # Errors
    ///
    /// [`UpstreamError::Connect`], [`UpstreamError::ConnectTimeout`].
    pub async fn connection_ahead(
        &self,
        ahead: PendingConnection,
    ) -> Result<Connection, UpstreamError> {
        let PendingConnection { made, since } = ahead;
        match made.await {
            Ok(Err(UpstreamError::Connect(_))) => {
                let next = self.next(&[], true);
                Box::pin(self.begin(next, ConnectPolicy::since(since))).await
            }
            Ok(made) => made,
            // The task that makes it has ended with its runtime.
            Err(_) => self.connection().await,
        }
    }

    /// A new connection, to the address of an old one if it can be reached.
    pub(super) async fn fresh(&self, last: &Arc<Address>) -> Result<Connection, UpstreamError> {
        let making = ConnectPolicy { may_reuse: false, ..ConnectPolicy::since(Instant::now()) };
        let group = self.0.cluster.group.load_full();
        if group.contains(last) {
            return self.make(last.clone(), group.again(last), making).await;
        }
        self.begin(self.next(&[], false), making).await
    }

    async fn begin(
        &self,
        next: Candidate,
        making: ConnectPolicy,
    ) -> Result<Connection, UpstreamError> {
        match next {
            Candidate::Ready(connection) => Ok(connection),
            Candidate::Connect(address, picked) => self.make(address, picked, making).await,
            Candidate::Nowhere => self.first(making).await,
        }
    }

    /// The first connection of all, as soon as an address is known.
    async fn first(&self, making: ConnectPolicy) -> Result<Connection, UpstreamError> {
        self.0.cluster.first_address(self.timeouts().connect).await?;
        match self.next(&[], making.may_reuse) {
            Candidate::Ready(connection) => Ok(connection),
            Candidate::Connect(address, picked) => self.make(address, picked, making).await,
            Candidate::Nowhere => Err(UpstreamError::ConnectTimeout),
        }
    }

    /// The connection for a request that could not reach some addresses. `may_reuse` allows an idle one.
    fn next(&self, tried: &[Arc<Address>], may_reuse: bool) -> Candidate {
        let mut idle = self.0.idle.lock();
        let IdleConnections { group, all } = &mut *idle;
        let group = group.load();
        let (address, picked) = match &*group.addresses {
            [only] if tried.is_empty() => (only, None),
            [_] | [] => return Candidate::Nowhere,
            _ => match group.choose(Instant::now(), tried) {
                Some(picked) => (&picked.address.clone(), Some(picked)),
                None => return Candidate::Nowhere,
            },
        };
        let connections =
            all.iter_mut().find(|connections| Arc::ptr_eq(&connections.address, address));
        let limit = self.0.cluster.settings.timeouts.idle;
        let (wire, address) =
            match connections.and_then(|connections| connections.take(limit, may_reuse)) {
                Some(taken) => taken,
                None => return Candidate::Connect(address.clone(), picked),
            };
        Candidate::Ready(Connection { wire, address, picked, upstream: self.clone() })
    }

    /// A new connection, to this address or another.
    async fn make(
        &self,
        mut address: Arc<Address>,
        mut picked: Option<PickedAddress>,
        making: ConnectPolicy,
    ) -> Result<Connection, UpstreamError> {
        let cluster = &self.0.cluster;
        let limit = self.timeouts().connect;
        let until = Instant::now() + limit * ATTEMPTS;
        let mut again = making.since.map(|since| (PAUSE.0, since + limit));
        let mut limit_now = limit;
        let mut tried = SmallVec::<[Arc<Address>; 4]>::new();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let in_handshake = AtomicBool::new(false);
            let connecting = self.connect(&address, &in_handshake);
            let (error, is_tcp) = match timeout(limit_now.min(left), connecting).await {
                Ok(Ok(wire)) => {
                    cluster.reached(&address);
                    return Ok(Connection { wire, address, picked, upstream: self.clone() });
                }
                // The address has no part in it.
                Ok(Err(error)) if error.is_own() => {
                    if let Some(Permit { suppressed }) = OUT_OF_FILES.permit() {
                        let upstream = &*cluster.settings.name;
                        let error = Chain(&error);
                        tracing::warn!(upstream, %error, suppressed, "out of file descriptors");
                    }
                    return Err(UpstreamError::Connect(Box::new(error)));
                }
                Ok(Err(error)) => {
                    let is_tcp = matches!(error, OpenError::Tcp(..));
                    (UpstreamError::Connect(Box::new(error)), is_tcp)
                }
                Err(_) if in_handshake.load(Relaxed) => (UpstreamError::TlsTimeout, false),
                Err(_) => (UpstreamError::ConnectTimeout, false),
            };
            cluster.failed(&address, picked.as_mut(), AddressFailure::Unreachable, &error);
            // Where there is a choice, others are tried instead.
            if picked.is_none()
                && is_tcp
                && let Some((pause, end)) = &mut again
                && Instant::now() + *pause < *end
            {
                sleep(*pause).await;
                *pause = PAUSE.1.min(2 * *pause);
                limit_now = end.saturating_duration_since(Instant::now());
                match self.next(&[], making.may_reuse) {
                    Candidate::Ready(connection) => return Ok(connection),
                    Candidate::Connect(other, choice) => {
                        if choice.is_some() {
                            limit_now = limit;
                        }
                        (address, picked) = (other, choice);
                        continue;
                    }
                    Candidate::Nowhere => return Err(error),
                }
            }
            drop(picked);
            tried.push(address);
            limit_now = limit;
            if Instant::now() >= until {
                return Err(error);
            }
            (address, picked) = match self.next(&tried, making.may_reuse) {
                Candidate::Ready(connection) => return Ok(connection),
                Candidate::Connect(address, picked) => (address, picked),
                Candidate::Nowhere => return Err(error),
            };
        }
    }

    async fn connect(
        &self,
        address: &Arc<Address>,
        in_handshake: &AtomicBool,
    ) -> Result<Wire, OpenError> {
        if !self.0.cluster.settings.http2 {
            return self.connect_now(address, in_handshake).await;
        }
        let making = self.0.idle.lock().of(address).making.clone();
        // Others may be making what we can share. What they make of HTTP/1.1 they keep for themselves.
        let _turn = match self.0.cluster.is_old.load(Relaxed) {
            false => Some(making.lock().await),
            true => None,
        };
        let line = self.0.idle.lock().of(address).stream();
        match line {
            Some(stream) => Ok(Wire::Http2(stream)),
            None => self.connect_now(address, in_handshake).await,
        }
    }

    async fn connect_now(
        &self,
        address: &Arc<Address>,
        in_handshake: &AtomicBool,
    ) -> Result<Wire, OpenError> {
        let cluster = &self.0.cluster;
        let socket = cluster.settings.sockets.take().ok_or(OpenError::TooMany)?;
        self.0.open.fetch_add(1, Relaxed);
        let counted = OpenConnection(Arc::downgrade(&self.0), socket);
        let started = Instant::now();
        let (stream, http2) = open(cluster, address, in_handshake).await?;
        let failed = |error| OpenError::Http(address.sockets[0], error);
        let wire = if http2 {
            let line = H2Session::over(stream, counted).await.map_err(failed)?;
            let first = line.first();
            self.0.idle.lock().of(address).lines.push(line);
            Wire::Http2(first)
        } else {
            if cluster.settings.http2 && !cluster.is_old.swap(true, Relaxed) {
                let upstream = &*cluster.settings.name;
                tracing::info!(upstream, "does not choose HTTP/2, and is spoken to in HTTP/1.1");
            }
            let limit = self.timeouts().response;
            Wire::Http1(H1Connection::over(stream, limit, counted))
        };
        let took = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.0.connecting.store(took, Relaxed);
        Ok(wire)
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pool").field(&self.0.cluster).finish()
    }
}

/// Keeps a connection whose response has ended for the next request.
pub(super) fn keep(upstream: &Pool, mut wire: Box<H1Connection>, address: Arc<Address>) {
    if wire.rest() {
        upstream.0.idle.lock().put(wire, address, upstream.0.keeps);
    }
}

/// Closes what is idle for too long or leads nowhere, as long as the upstream is in use.
async fn sweep(inner: Weak<Inner>) {
    let mut tick = interval(Duration::from_secs(1));
    loop {
        tick.tick().await;
        let Some(inner) = inner.upgrade() else { return };
        let limit = inner.cluster.settings.timeouts.idle;
        let limit = if inner.keeps == 0 { Duration::ZERO } else { limit };
        inner.idle.lock().sweep(limit);
    }
}

// === impl OpenConnection ===

impl Drop for OpenConnection {
    fn drop(&mut self) {
        if let Some(inner) = self.0.upgrade() {
            inner.open.fetch_sub(1, Relaxed);
        }
    }
}

// === impl ConnectPolicy ===

impl ConnectPolicy {
    fn since(since: Instant) -> Self {
        Self { may_reuse: true, since: Some(since) }
    }
}
