//! One worker's connections to one upstream: kept while idle, made when there is none. The newest idle one is used
//! first, so that those too many grow old and are closed.

use super::{
    Chain, Connection, Site, Target, Timeouts, UpstreamError,
    balance::{Address, Chosen, Fault},
    connect::{ConnectError, open},
    connection::Wire,
    h1::H1,
    h2::H2,
    shelf::Shelves,
    sockets::Socket,
};
use crate::log::{Permit, Throttle};
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
pub struct Upstream(Arc<Inner>);

struct Inner {
    site: Arc<Site>,
    /// Idle connections at most.
    keeps: usize,
    shelves: Mutex<Shelves>,
    /// Connections there are or that are being made.
    open: AtomicUsize,
    /// How long the last connection took to make, µs.
    connecting: AtomicU64,
}

/// Where the connection for a request comes from.
enum Next {
    Ready(Connection),
    Connect(Arc<Address>, Option<Chosen>),
    /// There is no address, or no other.
    Nowhere,
}

/// A connection that is being made, and since when.
#[derive(Debug)]
pub struct Ahead {
    made: oneshot::Receiver<Result<Connection, UpstreamError>>,
    since: Instant,
}

/// How connections are made for a request.
#[derive(Clone, Copy)]
struct Making {
    /// An idle connection will do.
    may_reuse: bool,
    /// An upstream's only address that cannot be reached is connected to again until `connect_timeout` after this. `None`:
    /// it is tried once.
    since: Option<Instant>,
}

/// Counts a connection in [`Inner::open`].
pub(super) struct Counted(Weak<Inner>, #[expect(dead_code, reason = "dropped with it")] Socket);

// === impl Upstream ===

impl Upstream {
    /// Connects nowhere yet. Must be called on the runtime that will use it, one of `workers`.
    pub fn new(site: Arc<Site>, workers: NonZeroUsize) -> Self {
        let keeps = match site.settings.pool_size {
            0 => 0,
            size => (size / workers).max(1),
        };
        let inner = Arc::new(Inner {
            shelves: Mutex::new(Shelves::new(site.group.clone())),
            site,
            keeps,
            open: AtomicUsize::new(0),
            connecting: AtomicU64::new(0),
        });
        tokio::spawn(sweep(Arc::downgrade(&inner)));
        let pool = Arc::downgrade(&inner);
        inner.site.settings.sockets.share(move || {
            let shed = pool.upgrade().and_then(|inner| inner.shelves.lock().shed());
            shed.is_some()
        });
        Self(inner)
    }

    /// How long it may take.
    pub fn timeouts(&self) -> Timeouts {
        self.0.site.settings.timeouts
    }

    pub(super) fn site(&self) -> &Site {
        &self.0.site
    }

    pub(super) fn target_of(&self, address: &Address) -> &Target {
        &self.0.site.settings.targets[address.target]
    }

    /// How long before its slot a request should take a connection, so that it is ready by then.
    pub fn lead(&self) -> Duration {
        let took = Duration::from_micros(self.0.connecting.load(Relaxed));
        (took * 2).clamp(LEAD.0, LEAD.1)
    }

    /// An idle connection, if there is one and no choice between addresses.
    pub fn idle(&self) -> Option<Connection> {
        let mut shelves = self.0.shelves.lock();
        let Shelves { group, all } = &mut *shelves;
        let [only] = &*group.load().addresses else { return None };
        let shelf = all.iter_mut().find(|shelf| Arc::ptr_eq(&shelf.address, only))?;
        let (wire, address) = shelf.take(self.0.site.settings.timeouts.idle, true)?;
        Some(Connection { wire, address, chosen: None, upstream: self.clone() })
    }

    /// A connection: an idle one, or a new one. An address that cannot be reached is passed over for the next; the only
    /// one is tried again for as long as `connect_timeout` lasts, as after a restart of the upstream.
    ///
    /// # Errors
    ///
    /// [`UpstreamError::Connect`], [`UpstreamError::ConnectTimeout`], [`UpstreamError::TlsTimeout`].
    pub async fn connection(&self) -> Result<Connection, UpstreamError> {
        match self.next(&[], true) {
            Next::Ready(connection) => Ok(connection),
            next => Box::pin(self.begin(next, Making::since(Instant::now()))).await,
        }
    }

    /// Begins to make a connection when none is there nor being made. Whoever drops the receiver leaves it to the
    /// others. It is tried once: no request needs it yet.
    pub fn connect_ahead(&self) -> Option<Ahead> {
        // Where none is kept, one that nobody needs would be for nothing.
        if self.0.open.load(Relaxed) != 0 || self.0.keeps == 0 {
            return None;
        }
        let (made, ahead) = oneshot::channel();
        let upstream = self.clone();
        tokio::spawn(async move {
            let next = upstream.next(&[], true);
            let once = Making { may_reuse: true, since: None };
            if let Err(Ok(connection)) = made.send(upstream.begin(next, once).await) {
                connection.recycle();
            }
        });
        Some(Ahead { made: ahead, since: Instant::now() })
    }

    /// The connection that was begun ahead, or another one.
    ///
    /// # Errors
    ///
    /// [`UpstreamError::Connect`], [`UpstreamError::ConnectTimeout`].
    pub async fn connection_ahead(&self, ahead: Ahead) -> Result<Connection, UpstreamError> {
        let Ahead { made, since } = ahead;
        match made.await {
            Ok(Err(UpstreamError::Connect(_))) => {
                let next = self.next(&[], true);
                Box::pin(self.begin(next, Making::since(since))).await
            }
            Ok(made) => made,
            // The task that makes it has ended with its runtime.
            Err(_) => self.connection().await,
        }
    }

    /// A new connection, to the address of an old one if it can be reached.
    pub(super) async fn fresh(&self, last: &Arc<Address>) -> Result<Connection, UpstreamError> {
        let making = Making { may_reuse: false, ..Making::since(Instant::now()) };
        let group = self.0.site.group.load_full();
        if group.contains(last) {
            return self.make(last.clone(), group.again(last), making).await;
        }
        self.begin(self.next(&[], false), making).await
    }

    async fn begin(&self, next: Next, making: Making) -> Result<Connection, UpstreamError> {
        match next {
            Next::Ready(connection) => Ok(connection),
            Next::Connect(address, chosen) => self.make(address, chosen, making).await,
            Next::Nowhere => self.first(making).await,
        }
    }

    /// The first connection of all, as soon as an address is known.
    async fn first(&self, making: Making) -> Result<Connection, UpstreamError> {
        self.0.site.first_address(self.timeouts().connect).await?;
        match self.next(&[], making.may_reuse) {
            Next::Ready(connection) => Ok(connection),
            Next::Connect(address, chosen) => self.make(address, chosen, making).await,
            Next::Nowhere => Err(UpstreamError::ConnectTimeout),
        }
    }

    /// The connection for a request that could not reach some addresses. `may_reuse` allows an idle one.
    fn next(&self, tried: &[Arc<Address>], may_reuse: bool) -> Next {
        let mut shelves = self.0.shelves.lock();
        let Shelves { group, all } = &mut *shelves;
        let group = group.load();
        let (address, chosen) = match &*group.addresses {
            [only] if tried.is_empty() => (only, None),
            [_] | [] => return Next::Nowhere,
            _ => match group.choose(Instant::now(), tried) {
                Some(chosen) => (&chosen.address.clone(), Some(chosen)),
                None => return Next::Nowhere,
            },
        };
        let shelf = all.iter_mut().find(|shelf| Arc::ptr_eq(&shelf.address, address));
        let limit = self.0.site.settings.timeouts.idle;
        let (wire, address) = match shelf.and_then(|shelf| shelf.take(limit, may_reuse)) {
            Some(taken) => taken,
            None => return Next::Connect(address.clone(), chosen),
        };
        Next::Ready(Connection { wire, address, chosen, upstream: self.clone() })
    }

    /// A new connection, to this address or another.
    async fn make(
        &self,
        mut address: Arc<Address>,
        mut chosen: Option<Chosen>,
        making: Making,
    ) -> Result<Connection, UpstreamError> {
        let site = &self.0.site;
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
                    site.reached(&address);
                    return Ok(Connection { wire, address, chosen, upstream: self.clone() });
                }
                // The address has no part in it.
                Ok(Err(error)) if error.is_own() => {
                    if let Some(Permit { suppressed }) = OUT_OF_FILES.permit() {
                        let upstream = &*site.settings.name;
                        let error = Chain(&error);
                        tracing::warn!(upstream, %error, suppressed, "out of file descriptors");
                    }
                    return Err(UpstreamError::Connect(Box::new(error)));
                }
                Ok(Err(error)) => {
                    let is_tcp = matches!(error, ConnectError::Tcp(..));
                    (UpstreamError::Connect(Box::new(error)), is_tcp)
                }
                Err(_) if in_handshake.load(Relaxed) => (UpstreamError::TlsTimeout, false),
                Err(_) => (UpstreamError::ConnectTimeout, false),
            };
            site.failed(&address, chosen.as_mut(), Fault::Unreachable, &error);
            // Where there is a choice, others are tried instead.
            if chosen.is_none()
                && is_tcp
                && let Some((pause, end)) = &mut again
                && Instant::now() + *pause < *end
            {
                sleep(*pause).await;
                *pause = PAUSE.1.min(2 * *pause);
                limit_now = end.saturating_duration_since(Instant::now());
                match self.next(&[], making.may_reuse) {
                    Next::Ready(connection) => return Ok(connection),
                    Next::Connect(other, choice) => {
                        if choice.is_some() {
                            limit_now = limit;
                        }
                        (address, chosen) = (other, choice);
                        continue;
                    }
                    Next::Nowhere => return Err(error),
                }
            }
            drop(chosen);
            tried.push(address);
            limit_now = limit;
            if Instant::now() >= until {
                return Err(error);
            }
            (address, chosen) = match self.next(&tried, making.may_reuse) {
                Next::Ready(connection) => return Ok(connection),
                Next::Connect(address, chosen) => (address, chosen),
                Next::Nowhere => return Err(error),
            };
        }
    }

    async fn connect(
        &self,
        address: &Arc<Address>,
        in_handshake: &AtomicBool,
    ) -> Result<Wire, ConnectError> {
        if !self.0.site.settings.http2 {
            return self.connect_now(address, in_handshake).await;
        }
        let making = self.0.shelves.lock().of(address).making.clone();
        // Others may be making what we can share. What they make of HTTP/1.1 they keep for themselves.
        let _turn = match self.0.site.is_old.load(Relaxed) {
            false => Some(making.lock().await),
            true => None,
        };
        let line = self.0.shelves.lock().of(address).stream();
        match line {
            Some(stream) => Ok(Wire::Many(stream)),
            None => self.connect_now(address, in_handshake).await,
        }
    }

    async fn connect_now(
        &self,
        address: &Arc<Address>,
        in_handshake: &AtomicBool,
    ) -> Result<Wire, ConnectError> {
        let site = &self.0.site;
        let socket = site.settings.sockets.take().ok_or(ConnectError::TooMany)?;
        self.0.open.fetch_add(1, Relaxed);
        let counted = Counted(Arc::downgrade(&self.0), socket);
        let started = Instant::now();
        let (stream, http2) = open(site, address, in_handshake).await?;
        let failed = |error| ConnectError::Http(address.sockets[0], error);
        let wire = if http2 {
            let line = H2::over(stream, counted).await.map_err(failed)?;
            let first = line.first();
            self.0.shelves.lock().of(address).lines.push(line);
            Wire::Many(first)
        } else {
            if site.settings.http2 && !site.is_old.swap(true, Relaxed) {
                let upstream = &*site.settings.name;
                tracing::info!(upstream, "does not choose HTTP/2, and is spoken to in HTTP/1.1");
            }
            let limit = self.timeouts().response;
            Wire::One(H1::over(stream, limit, counted))
        };
        let took = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.0.connecting.store(took, Relaxed);
        Ok(wire)
    }
}

impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Upstream").field(&self.0.site).finish()
    }
}

/// Keeps a connection whose response has ended for the next request.
pub(super) fn keep(upstream: &Upstream, mut wire: Box<H1>, address: Arc<Address>) {
    if wire.rest() {
        upstream.0.shelves.lock().put(wire, address, upstream.0.keeps);
    }
}

/// Closes what is idle for too long or leads nowhere, as long as the upstream is in use.
async fn sweep(inner: Weak<Inner>) {
    let mut tick = interval(Duration::from_secs(1));
    loop {
        tick.tick().await;
        let Some(inner) = inner.upgrade() else { return };
        let limit = inner.site.settings.timeouts.idle;
        let limit = if inner.keeps == 0 { Duration::ZERO } else { limit };
        inner.shelves.lock().sweep(limit);
    }
}

// === impl Counted ===

impl Drop for Counted {
    fn drop(&mut self) {
        if let Some(inner) = self.0.upgrade() {
            inner.open.fetch_sub(1, Relaxed);
        }
    }
}

// === impl Making ===

impl Making {
    fn since(since: Instant) -> Self {
        Self { may_reuse: true, since: Some(since) }
    }
}
