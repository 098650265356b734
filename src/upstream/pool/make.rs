//! Makes connections for requests: picks an address, connects to it, and tries another one, or the same again, when that
//! fails. Sends no request.

use super::{idle::IdleConnections, state::PoolState};
use crate::{
    log::{Permit, Throttle},
    tls::client::Chain,
    upstream::{
        balance::{Address, AddressFailure, PickedAddress},
        connect::{OpenError, OpenProgress, OpenStep, late, open, other_end},
        connection::Connection,
        error::UpstreamError,
        h1::H1Connection,
        h2::H2Session,
        sockets::OpenConnection,
        wire::Wire,
    },
};
use smallvec::SmallVec;
use std::{
    pin::pin,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};
use tokio::{
    sync::oneshot,
    time::{Instant, sleep, timeout},
};

/// A request spends at most 3 × `connect_timeout` on connecting, however many addresses there are.
const ATTEMPTS: u32 = 3;
/// The first and the longest pause before the only address of an upstream is connected to again. The pause doubles with
/// each attempt, so a `connect_timeout` of 2 s has 8 of them. A restart on the same machine takes a fraction of a second.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(400));

/// How long requests wait for an HTTP/2 upstream to say how many streams it takes, which comes with its first bytes.
const SETTLING: Duration = Duration::from_secs(1);

static OUT_OF_FILES: Throttle = Throttle::new();

/// The place from which a request gets its connection.
pub(super) enum ConnectionSource {
    /// An idle connection, or a stream of a session.
    Ready(Connection),
    /// A new connection to this address.
    Connect(Arc<Address>, Option<PickedAddress>),
    /// No address is known, or all of them were tried.
    Nowhere,
}

/// The way in which a connection is made for a request.
#[derive(Clone, Copy)]
pub(super) struct ConnectPolicy {
    /// Whether an idle connection may be used.
    pub(super) may_reuse: bool,
    /// The only address of an upstream is connected to again until `connect_timeout` after this instant. `None` tries it
    /// once.
    pub(super) since: Option<Instant>,
    /// The end of the time that the request may wait. A dead address gets no more. `None`: no request waits.
    pub(super) until: Option<Instant>,
    /// The part of `connect_timeout` that the first attempt has no more, because the name took it.
    pub(super) spent: Duration,
}

/// Picks the connection or the address for a request that has `tried` some addresses in vain.
pub(super) fn find_source(
    pool: &Arc<PoolState>,
    tried: &[Arc<Address>],
    may_reuse: bool,
) -> ConnectionSource {
    let mut idle = pool.idle.lock();
    let IdleConnections { group, by_address } = &mut *idle;
    let group = group.load();
    let (address, picked) = match &*group.addresses {
        [only] if tried.is_empty() => (only, None),
        [_] | [] => return ConnectionSource::Nowhere,
        _ => match group.pick(Instant::now(), tried) {
            Some(picked) => (&picked.address.clone(), Some(picked)),
            None => return ConnectionSource::Nowhere,
        },
    };
    let known = by_address.iter_mut().find(|known| Arc::ptr_eq(&known.address, address));
    let limit = pool.timeouts().idle;
    match known.and_then(|known| known.take(Instant::now(), limit, may_reuse)) {
        Some((wire, address)) => {
            ConnectionSource::Ready(Connection { wire, address, picked, pool: pool.clone() })
        }
        None => ConnectionSource::Connect(address.clone(), picked),
    }
}

/// Makes the connection that `source` names. If no address is known yet, it waits for the first one.
pub(super) async fn begin(
    pool: &Arc<PoolState>,
    mut source: ConnectionSource,
    mut policy: ConnectPolicy,
) -> Result<Connection, UpstreamError> {
    if let ConnectionSource::Nowhere = source {
        let begun = Instant::now();
        pool.cluster.first_address(pool.timeouts().connect).await?;
        policy.spent = begun.elapsed();
        source = find_source(pool, &[], policy.may_reuse);
    }
    match source {
        ConnectionSource::Ready(connection) => Ok(connection),
        ConnectionSource::Connect(address, picked) => make(pool, address, picked, policy).await,
        ConnectionSource::Nowhere => Err(late(&pool.cluster, OpenStep::Tcp)),
    }
}

/// Makes a new connection, to this address if it can be reached, otherwise to another one.
pub(super) async fn make(
    pool: &Arc<PoolState>,
    mut address: Arc<Address>,
    mut picked: Option<PickedAddress>,
    policy: ConnectPolicy,
) -> Result<Connection, UpstreamError> {
    let limit = pool.timeouts().connect;
    let until = Instant::now() + limit * ATTEMPTS;
    let mut again = policy.since.map(|since| (PAUSE.0, since + limit));
    let mut limit_now = limit.saturating_sub(policy.spent);
    let mut tried = SmallVec::<[Arc<Address>; 4]>::new();
    loop {
        let begun = Instant::now();
        let left = until.saturating_duration_since(begun).min(limit_now);
        let is_trial = picked.as_ref().is_some_and(PickedAddress::is_on_trial);
        let is_dead = !is_trial && address.is_dead(begun, limit);
        let patience = policy.until.filter(|_| is_dead);
        let patience = patience.map(|until| until.saturating_duration_since(begun));
        let attempted = attempt_with(pool, &address, left, patience).await;
        if let (Some((_, end)), Some(patience)) = (&mut again, patience) {
            *end = (begun + patience).min(*end);
        }
        let FailedAttempt { error, at } = match attempted {
            Ok(wire) => return Ok(Connection { wire, address, picked, pool: pool.clone() }),
            Err(failed) => failed,
        };
        // The address has no part in it.
        if at == AttemptStep::Local {
            return Err(error);
        }
        pool.cluster.failed(&address, picked.as_mut(), AddressFailure::Unreachable, &error);
        // An upstream with several addresses is tried at another one instead.
        let mut left = None;
        if picked.is_none()
            && at == AttemptStep::Tcp
            && let Some((pause, end)) = &mut again
            && Instant::now() + *pause < *end
        {
            sleep(*pause).await;
            *pause = PAUSE.1.min(2 * *pause);
            left = Some(end.saturating_duration_since(Instant::now()));
        } else {
            drop(picked);
            tried.push(address);
            if Instant::now() >= until {
                return Err(error);
            }
        }
        let but = if left.is_some() { &[][..] } else { &tried[..] };
        (address, picked) = match find_source(pool, but, policy.may_reuse) {
            ConnectionSource::Ready(connection) => return Ok(connection),
            ConnectionSource::Connect(address, picked) => (address, picked),
            ConnectionSource::Nowhere => return Err(error),
        };
        limit_now = left.filter(|_| picked.is_none()).unwrap_or(limit);
    }
}

/// Connects to an address, which a request that waits has this `patience` with if it is dead.
async fn attempt_with(
    pool: &Arc<PoolState>,
    address: &Arc<Address>,
    limit: Duration,
    patience: Option<Duration>,
) -> Result<Wire, FailedAttempt> {
    match patience.map(|patience| patience.max(pool.lead())) {
        Some(patience) if patience < limit => attempt_briefly(pool, address, limit, patience).await,
        _ => attempt(pool, address, limit, &OpenProgress::default()).await,
    }
}

/// A failed attempt at one address.
struct FailedAttempt {
    error: UpstreamError,
    at: AttemptStep,
}

/// The step at which an attempt failed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AttemptStep {
    /// This process had no file descriptor for a socket.
    Local,
    /// The address refused the connection.
    Tcp,
    /// The address did not accept the connection in time.
    Silent,
    /// A later step: CONNECT, TLS or HTTP.
    Other,
}

/// Connects to a dead address within `limit`, and gives up sooner if it has accepted no connection within `patience`. One
/// attempt at a time then continues without its request, and shows an address that only takes longer to be alive.
async fn attempt_briefly(
    pool: &Arc<PoolState>,
    address: &Arc<Address>,
    limit: Duration,
    patience: Duration,
) -> Result<Wire, FailedAttempt> {
    let too_slow = || {
        let error = late(&pool.cluster, OpenStep::Tcp);
        Err(FailedAttempt { error, at: AttemptStep::Other })
    };
    let progress = Arc::<OpenProgress>::default();
    let mut attempted = pin!(async {
        let Some(probe) = address.probe() else {
            return attempt(pool, address, limit, &progress).await;
        };
        let (made, attempted) = oneshot::channel();
        let (pool, address, progress) = (pool.clone(), address.clone(), progress.clone());
        tokio::spawn(async move {
            let attempted = attempt(&pool, &address, limit, &progress).await;
            drop(probe);
            drop(made.send(attempted));
        });
        attempted.await.unwrap_or_else(|_| too_slow())
    });
    match timeout(patience, &mut attempted).await {
        Ok(attempted) => attempted,
        // It accepts connections, and is slow with a later step.
        Err(_) if *progress.lock() != OpenStep::Tcp => attempted.await,
        Err(_) => too_slow(),
    }
}

/// Connects to one address within `limit`. Notes each step in `progress`.
async fn attempt(
    pool: &Arc<PoolState>,
    address: &Arc<Address>,
    limit: Duration,
    progress: &OpenProgress,
) -> Result<Wire, FailedAttempt> {
    let begun = Instant::now();
    let (error, at) = match timeout(limit, connect(pool, address, progress)).await {
        Ok(Ok(wire)) => {
            pool.cluster.reached(address);
            return Ok(wire);
        }
        Ok(Err(error)) if error.is_own() => {
            if let Some(Permit { suppressed }) = OUT_OF_FILES.permit() {
                let upstream = &*pool.cluster.settings.name;
                let error = Chain(&error);
                tracing::warn!(upstream, %error, suppressed, "out of file descriptors");
            }
            (UpstreamError::Connect(Box::new(error)), AttemptStep::Local)
        }
        Ok(Err(error)) => {
            let is_tcp = error.of_tcp().is_some();
            let at = if is_tcp { AttemptStep::Tcp } else { AttemptStep::Other };
            (error.into(), at)
        }
        Err(_) => {
            let step = *progress.lock();
            let at = if step == OpenStep::Tcp { AttemptStep::Silent } else { AttemptStep::Other };
            (late(&pool.cluster, step), at)
        }
    };
    // One that accepts connections may be slow with a later step, and is not dead.
    if matches!(at, AttemptStep::Tcp | AttemptStep::Silent) {
        address.note_unreached(begun, Instant::now());
    }
    Err(FailedAttempt { error, at })
}

/// Connects to an address. With HTTP/2, requests that need a connection at the same time wait for one and share it.
async fn connect(
    pool: &Arc<PoolState>,
    address: &Arc<Address>,
    progress: &OpenProgress,
) -> Result<Wire, OpenError> {
    let cluster = &pool.cluster;
    if !cluster.settings.http2 {
        return connect_now(pool, address, progress).await;
    }
    let making = pool.idle.lock().of(address).making.clone();
    // An HTTP/1.1 connection cannot be shared, so nothing is gained by waiting for one.
    let turn = if cluster.is_http1.load(Relaxed) { None } else { Some(making.lock().await) };
    let unsettled = pool.idle.lock().of(address).unsettled_session();
    if let Some(session) = unsettled {
        // An upstream that says nothing has no further requests on this session.
        let _ = timeout(SETTLING, session.wait_until_settled()).await;
    }
    let (stream, takes_few) = {
        let mut idle = pool.idle.lock();
        let known = idle.of(address);
        (known.stream(), known.takes_few())
    };
    if let Some(stream) = stream {
        return Ok(Wire::Http2(stream));
    }
    let _turn = turn.filter(|_| !takes_few);
    connect_now(pool, address, progress).await
}

async fn connect_now(
    pool: &Arc<PoolState>,
    address: &Arc<Address>,
    progress: &OpenProgress,
) -> Result<Wire, OpenError> {
    let cluster = &pool.cluster;
    let socket = cluster.settings.sockets.take().await.ok_or(OpenError::TooMany)?;
    let guard = OpenConnection::new(&pool.open, socket);
    let started = Instant::now();
    let (stream, http2) = open(cluster, address, progress).await?;
    let failed = |error| {
        OpenError::Http(other_end(&cluster.settings, address.target, address.sockets[0]), error)
    };
    let wire = if http2 {
        let session = H2Session::over(stream, guard).await.map_err(failed)?;
        let first = session.first();
        pool.idle.lock().of(address).sessions.push(session);
        Wire::Http2(first)
    } else {
        if cluster.settings.http2 && !cluster.is_http1.swap(true, Relaxed) {
            let upstream = &*cluster.settings.name;
            tracing::info!(upstream, "does not choose HTTP/2, and is spoken to in HTTP/1.1");
        }
        Wire::Http1(H1Connection::over(stream, pool.timeouts().response, guard))
    };
    let took = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
    pool.connect_micros.store(took, Relaxed);
    Ok(wire)
}

// === impl ConnectPolicy ===

impl ConnectPolicy {
    /// An address that refuses is not tried again.
    pub(super) const ONCE: Self =
        Self { may_reuse: true, since: None, until: None, spent: Duration::ZERO };

    /// Uses an idle connection, or connects until `connect_timeout` after `since`, for a request that may wait until `until`.
    pub(super) fn since(since: Instant, until: Instant) -> Self {
        let spent = Duration::ZERO;
        Self { may_reuse: true, since: Some(since), until: Some(until), spent }
    }
}
