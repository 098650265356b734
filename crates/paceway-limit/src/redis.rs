//! Redis as the shared store of a process: found, checked, connected, and kept known to the other processes. Decides
//! nothing itself.
//!
//! [`connect`] is all that a program needs. [`RedisSettings`] is for a program with another prefix or time-out.

pub use crate::store::redis::ConnectError;

use crate::{
    algorithm::Micros,
    handle::StoreHandle,
    store::{
        Backend, Check, StoreError,
        batch::StoreMetrics,
        failover::{Failover, Process},
        health::{Health, HealthMetrics, Pace, PaceMetrics},
        redis::{Claim, Epochs, Groups, RedisStore, RedisUrl},
    },
};
use metrics::Counter;
use std::{
    sync::{Arc, Weak},
    time::Duration,
};
use tokio::sync::watch;

/// How long a start waits for a server: 2 s.
const PROBE: Duration = Duration::from_secs(2);

/// How long a process waits for the store to receive that it ends, or, on a Cluster, that it begins.
const GOODBYE: Duration = Duration::from_millis(500);

/// How a process uses a Redis that it shares with others.
///
/// ```
/// use paceway_limit::redis::RedisSettings;
/// use std::time::Duration;
///
/// let settings = RedisSettings::new("redis://127.0.0.1:6379")?
///     .prefix("billing") // the first part of every key
///     .timeout(Duration::from_millis(20)) // of one call of Redis
///     .processes(3); // at least so many share each limit
/// # Ok::<(), paceway_limit::redis::SetupError>(())
/// ```
#[derive(Debug, Clone)]
pub struct RedisSettings {
    url: RedisUrl,
    prefix: String,
    timeout: Duration,
    processes: i64,
    name: Option<String>,
    clock: Option<Micros>,
}

/// Why a program cannot use its Redis at all.
///
/// ```
/// use paceway_limit::redis::RedisSettings;
///
/// let error = RedisSettings::new("http://127.0.0.1:6379").unwrap_err();
/// assert!(error.to_string().contains("is not a scheme for a store"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SetupError {
    /// The URL is not understood. The text does not quote it, because it may hold a password.
    #[error("the URL of the store is wrong: {0}")]
    Url(String),
    /// The server answers and refuses this process: wrong credentials, no such database, too old.
    #[error(transparent)]
    Connect(#[from] ConnectError),
}

/// A store on the Redis at `url`, which several processes share. Calls of one process travel together (group commit), at
/// most one call at a time is under way, and while Redis is away each limit does what it declares for that
/// ([`Limit::without_store`](crate::Limit::without_store)).
///
/// Schemes are `redis://`, `rediss://` (TLS, with the feature `tls`), `unix:`, `redis-sentinel://` and `redis-cluster://`. A
/// Redis that does not answer is no error: the process works without it until it comes back.
///
/// On a Redis Cluster the `group` of a [`Limiter`](crate::Limiter::all) is the hash tag of its states, so it decides their
/// node. A gateway records which tag is in use for each limiter and refuses to count one under two tags. This store keeps no
/// such record: if one process declares a limit in the group `a` and another one in the group `b`, each group grants the
/// whole limit.
///
/// It runs on the current tokio runtime, and so must all callers of its limiters.
///
/// ```
/// use paceway_limit::{Limit, Limiter, Rate, redis};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // With a Redis on this port every process has 30 calls a second together; without one, each of them has its share.
/// let store = redis::connect("redis://127.0.0.1:6379").await?;
/// let limiter = Limiter::new(Limit::token_bucket("vendor", Rate::per_second(30), 10), store)?;
/// limiter.acquire(1).await?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// [`SetupError`].
pub async fn connect(url: &str) -> Result<StoreHandle, SetupError> {
    RedisSettings::new(url)?.connect().await
}

/// The knowledge that all connections of one process to its Redis share: the epoch of its data, its health, and the other
/// processes. The gateway makes one for all of its workers, [`connect`] one for its only store.
#[derive(Debug, Clone)]
#[doc(hidden)]
pub struct RedisProcess {
    url: RedisUrl,
    /// The first part of every key.
    prefix: String,
    epochs: Arc<Epochs>,
    /// The hash tags of the limiters in a Cluster.
    groups: Option<Arc<Groups>>,
    /// Shared by all connections.
    process: Arc<Process>,
    /// Whether some limiter counts calls at a time, so that calls may wait for a notification.
    notified: watch::Receiver<bool>,
}

/// The metrics of a [`RedisProcess`].
#[doc(hidden)]
pub struct RedisMetrics {
    pub health: HealthMetrics,
    pub pace: PaceMetrics,
    /// Losses of data.
    pub losses: Counter,
}

// === impl RedisSettings ===

impl RedisSettings {
    /// The settings of [`connect`]: the prefix `paceway`, calls of up to 50 ms, and at least one process.
    ///
    /// # Errors
    ///
    /// [`SetupError::Url`].
    pub fn new(url: &str) -> Result<Self, SetupError> {
        let url = RedisUrl::parse(url).map_err(SetupError::Url)?;
        let timeout = Duration::from_millis(50);
        Ok(Self { url, prefix: "paceway".into(), timeout, processes: 1, name: None, clock: None })
    }

    /// The first part of every key, `paceway` unless declared. Processes with another prefix share nothing.
    #[must_use]
    pub fn prefix(self, prefix: &str) -> Self {
        Self { prefix: prefix.into(), ..self }
    }

    /// How long a call of Redis may take, 50 ms unless declared. Measured round trips of a slower Redis raise it, up to
    /// 500 ms.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// The least number of processes that share each limit, 1 unless declared. A process that starts while Redis is away
    /// cannot count the others: its share of a limit is that of one among so many.
    #[must_use]
    pub fn processes(self, processes: u32) -> Self {
        Self { processes: processes.into(), ..self }
    }

    /// Connects, in the background if Redis does not answer.
    ///
    /// # Errors
    ///
    /// [`SetupError::Connect`] when the server refuses this process.
    pub async fn connect(self) -> Result<StoreHandle, SetupError> {
        let metrics = RedisMetrics {
            health: HealthMetrics::noop(),
            pace: PaceMetrics::noop(),
            losses: Counter::noop(),
        };
        let process = RedisProcess::open(&self, metrics, watch::channel(true).1, None).await?;
        let (_, none) = watch::channel([].into());
        let store = process.with_recovery(StoreMetrics::noop(), none).await?;
        Ok(StoreHandle::new(Arc::new(store), &self.prefix))
    }

    /// The settings of a gateway, whose configuration has checked them.
    #[doc(hidden)]
    pub fn of(url: RedisUrl, prefix: &str, timeout: Duration, processes: i64) -> Self {
        Self { url, prefix: prefix.into(), timeout, processes, name: None, clock: None }
    }

    /// The name of this gateway, which no other one has at the same time. Its next life has it, too, and so replaces this
    /// one if it dies.
    #[doc(hidden)]
    #[must_use]
    pub fn named(self, name: Option<String>) -> Self {
        Self { name, ..self }
    }

    /// The clock of this machine, µs since 1970, for decisions without the store before it has ever said its own.
    #[doc(hidden)]
    #[must_use]
    pub fn clock(self, now: Micros) -> Self {
        Self { clock: Some(now), ..self }
    }
}

// === impl RedisProcess ===

impl RedisProcess {
    /// Asks the server what a start needs to know, and makes this process known to the others. A server that does not
    /// answer is away until it does. `notified` becomes true when a limiter counts calls at a time. `claims` are the hash
    /// tags of the limiters in a Cluster.
    ///
    /// # Errors
    ///
    /// [`ConnectError::Refused`].
    pub async fn open(
        settings: &RedisSettings,
        metrics: RedisMetrics,
        notified: watch::Receiver<bool>,
        claims: Option<Vec<Claim>>,
    ) -> Result<Self, ConnectError> {
        let RedisSettings { url, prefix, timeout, processes, name, clock } = settings;
        let pace = Pace::new(*timeout, metrics.pace);
        let mut health = Health::new(metrics.health, pace);
        if let (Some(name), Some(health)) = (name, Arc::get_mut(&mut health)) {
            health.id = format!("{}@{name}", health.id).into();
        }
        if let Some(now) = clock {
            health.note_clock(*now);
        }
        let process = Process::new(prefix, health);
        process.health.expect(*processes);
        match RedisStore::probe(url, prefix, PROBE).await {
            Ok(warnings) => {
                for warning in warnings {
                    tracing::warn!(store = %url, warning, "store");
                }
            }
            Err(error @ ConnectError::Refused(_)) => return Err(error),
            Err(ConnectError::Unreachable(why)) => {
                process.health.open(&StoreError::Unreachable(why))
            }
        }
        let epochs = Epochs::reporting(prefix, metrics.losses, &process.health);
        let claims = claims.filter(|_| url.is_cluster());
        let groups = claims.map(|claims| Groups::new(prefix, claims));
        if process.health.is_closed() {
            let script = RedisStore::open(url, &epochs)?;
            // It answered a moment ago; if it does not now, each connection reports it. A server of a Cluster may be away
            // alone.
            let limit = if script.placement().has_many_servers() { GOODBYE } else { PROBE };
            if script.connected(limit).await.is_ok() {
                process.introduce(&script, limit).await;
                if let Some(groups) = &groups {
                    // Before the first request: none is refused because the hash tags in use are not known yet.
                    script.with_groups(groups.clone()).claim_groups().await;
                }
            }
        }
        Ok(Self { url: url.clone(), prefix: prefix.clone(), epochs, groups, process, notified })
    }

    /// Tells the other processes that this one has decided its last request, so that they need not miss it.
    pub async fn leave(&self) {
        self.process.leave(GOODBYE).await;
    }

    /// The health of the store as this process knows it.
    pub fn health(&self) -> Arc<Health> {
        self.process.health.clone()
    }

    /// A store of the current runtime, connected if it can be.
    ///
    /// # Errors
    ///
    /// Certificates that cannot be used.
    pub async fn store(&self, metrics: StoreMetrics) -> Result<Failover, ConnectError> {
        let script = self.script(false).await?;
        Ok(Failover::new(script, metrics, self.process.clone()))
    }

    /// The one store of the process that sends its heartbeats, and charges the server when it is back. `looked` are
    /// the limiters with one state, as they are now.
    ///
    /// # Errors
    ///
    /// Certificates that cannot be used.
    pub async fn with_recovery(
        &self,
        metrics: StoreMetrics,
        looked: watch::Receiver<Arc<[Check]>>,
    ) -> Result<Failover, ConnectError> {
        let script = self.script(true).await?;
        let health = &self.process.health;
        script.receive_pauses(&self.prefix, &health.pauses, &health.id);
        Ok(Failover::with_recovery(script, metrics, self.process.clone(), looked))
    }

    async fn script(&self, recovers: bool) -> Result<Arc<RedisStore>, ConnectError> {
        let mut script = RedisStore::open(&self.url, &self.epochs)?;
        if let Some(groups) = &self.groups {
            script = script.with_groups(groups.clone());
            if recovers {
                tokio::spawn(script.clone().keep_groups());
            }
        }
        // It answered a moment ago.
        if self.process.health.is_closed()
            && let Err(error) = script.connected(PROBE).await
        {
            self.process.health.open(&StoreError::Unreachable(error.to_string()));
        }
        let script = Arc::new(script);
        tokio::spawn(receive_calls(Arc::downgrade(&script), self.notified.clone()));
        Ok(script)
    }
}

/// Subscribes to notifications as soon as a limiter needs them.
async fn receive_calls(script: Weak<RedisStore>, mut notified: watch::Receiver<bool>) {
    if notified.wait_for(|notified| *notified).await.is_ok()
        && let Some(script) = script.upgrade()
    {
        script.receive_calls();
    }
}
