//! The store that gateways share: one Lua script on one Redis server, on the master that Sentinels name, or on the nodes of a
//! Cluster. Decides nothing itself: the script does, and `store/batch` and `store/failover` around it handle outages.

mod alike;
mod answer;
mod call;
mod claims;
mod cluster;
mod copy;
mod epoch;
mod groups;
mod identity;
mod info;
mod library;
mod modules;
mod note;
mod presence;
mod probe;
mod reason;
mod scan;
mod slot_migration;
mod slots;
mod subscriber;
#[cfg(feature = "tls")]
mod tls;
#[cfg(not(feature = "tls"))]
#[path = "redis/no_tls.rs"]
mod tls;
mod topic;
mod transport;
mod url;
mod wire;

pub use epoch::Epochs;
pub use groups::{Claim, Groups};
pub use reason::ConnectError;
#[cfg(fuzzing)]
pub use transport::fuzzing;
pub use url::RedisUrl;

use super::{
    Backend, Beat, BoxFuture, Checks, Entry, Heartbeat, Note, NoteChange, Pauses, Placement, Reply,
    ScanPlace, ScanStep, StateCopy, StoreError, calls::Calls,
};
use crate::log::{Permit, Throttle};
use answer::ScriptReply;
use call::ScriptCall;
use cluster::RedisCluster;
use note::KnownNotes;
use parking_lot::Mutex;
use redis::{Cmd, Value};
use sha1::{Digest, Sha1};
use std::{
    fmt::{self, Write},
    sync::Arc,
    time::Duration,
};
use subscriber::Subscriber;
use topic::Topic;
use transport::{Access, Destination, RedisConnection, Sent, command, words};
use url::{Endpoint, Servers};

/// Sentinels may name another master for each connection.
static MASTERS: Throttle = Throttle::new();

/// The Redis servers of a store, and one pipelined connection to each that has keys.
#[derive(Clone)]
pub struct RedisStore {
    servers: Connected,
    epochs: Arc<Epochs>,
    /// The hash tags of limiters in a Cluster, where a limiter with another tag is closed.
    groups: Option<Arc<Groups>>,
    /// The database of the states.
    database: u8,
    calls: Arc<Calls>,
    notes: Arc<KnownNotes>,
}

#[derive(Clone)]
enum Connected {
    One(Arc<One>),
    Cluster(Arc<RedisCluster>),
}

/// One server: always the same, or the one that Sentinels name now.
struct One {
    connection: RedisConnection,
    subscribers: Mutex<Vec<Subscriber>>,
    access: Arc<Access>,
    target: Destination,
}

// === impl RedisStore ===

impl RedisStore {
    /// Connects in the background of the current runtime, and again whenever a connection is lost. `epochs` are those
    /// of the process.
    ///
    /// # Errors
    ///
    /// Certificates that cannot be used.
    pub fn open(url: &RedisUrl, epochs: &Arc<Epochs>) -> Result<Self, ConnectError> {
        let access = Arc::new(Access::new(url, epochs.scripted.clone())?);
        let servers = match (Destination::of(url), &*url.servers) {
            (None, Servers::Cluster(seeds)) => {
                Connected::Cluster(Arc::new(RedisCluster::open(access, seeds.clone(), epochs)))
            }
            (None, _) => return Err(ConnectError::Refused("no server".into())),
            (Some(target), _) => {
                let known = epochs.clone();
                // One server has all lanes, also after the Sentinels have named another.
                let is_named = matches!(target, Destination::Master(_));
                let met = Arc::new(move |place: &Endpoint, run: Option<&_>| {
                    if is_named
                        && known.is_another(&place.to_string())
                        && let Some(Permit { suppressed }) = MASTERS.permit()
                    {
                        tracing::info!(server = %place, suppressed, "the store has another master");
                    }
                    run.into_iter().for_each(|run| known.meet("", run, |_| true));
                });
                let connection = RedisConnection::open(access.clone(), target.clone(), met);
                Connected::One(Arc::new(One {
                    connection,
                    subscribers: Mutex::default(),
                    access,
                    target,
                }))
            }
        };
        Ok(Self {
            servers,
            epochs: epochs.clone(),
            groups: None,
            database: url.database.unwrap_or(0),
            calls: Arc::default(),
            notes: Arc::default(),
        })
    }

    /// Subscribes to the tickets that the servers call when a concurrency permit is free, for as long as the store lives.
    pub fn receive_calls(&self) {
        self.listen(Topic::Calls(self.calls.clone()));
    }

    /// Subscribes to the pauses of states whose keys begin with `prefix`, and puts them into `pauses`, for as long as the
    /// store lives. The subscription shows other gateways that the gateway with this `id` lives.
    pub fn receive_pauses(&self, prefix: &str, pauses: &Arc<Pauses>, id: &Arc<str>) {
        pauses.set_hears(false);
        let (prefix, pauses, id) = (prefix.into(), pauses.clone(), id.clone());
        self.listen(Topic::News { prefix, database: self.database, pauses, id });
    }

    fn listen(&self, topic: Topic) {
        match &self.servers {
            Connected::One(one) => {
                let subscriber = Subscriber::open(one.access.clone(), one.target.clone(), topic);
                one.subscribers.lock().push(subscriber);
            }
            Connected::Cluster(cluster) => cluster.listen(topic),
        }
    }

    /// Resolves when the server is connected to. In a Cluster that is every node, or at least one of them after `limit`.
    ///
    /// # Errors
    ///
    /// Why it is not: after `limit`, or at once when a server refuses us. Connecting continues nevertheless.
    pub async fn connected(&self, limit: Duration) -> Result<(), ConnectError> {
        match &self.servers {
            Connected::One(one) => one.connection.connected(limit).await,
            Connected::Cluster(cluster) => cluster.connected(limit).await,
        }
    }

    /// Whether the server is connected to now; in a Cluster, every node that has slots.
    pub fn is_connected(&self) -> bool {
        match &self.servers {
            Connected::One(one) => one.connection.is_connected(),
            Connected::Cluster(cluster) => cluster.is_connected(),
        }
    }

    /// Checks the servers of `url` over a connection of its own, and returns warnings for the operator. Writes and deletes
    /// two keys whose names begin with `prefix`.
    ///
    /// # Errors
    ///
    /// [`ConnectError::Unreachable`] when no server answers within `limit`; [`ConnectError::Refused`] when one refuses the
    /// login or a command that limiters need.
    pub async fn probe(
        url: &RedisUrl,
        prefix: &str,
        limit: Duration,
    ) -> Result<Vec<String>, ConnectError> {
        probe::probe(url, prefix, limit).await
    }

    /// Asks the servers that have reported their runs how many keys they have evicted.
    async fn ask_for_evicted(&self) {
        match &self.servers {
            Connected::One(one) if self.epochs.knows("") => {
                let said = one.connection.call(&command(&[identity::INFO])).await;
                if let Some(run) = said.ok().as_ref().and_then(identity::read) {
                    self.epochs.look("", &run, |_| true);
                }
            }
            Connected::One(_) => {}
            Connected::Cluster(cluster) => cluster.ask_for_evicted(&self.epochs).await,
        }
    }

    /// Sends a command to the server that has `key` and waits for its reply. It is executed once at most.
    async fn call(&self, key: &str, command: &Cmd) -> Result<Value, StoreError> {
        self.send(key, Sent::Command(command)).await
    }

    async fn send(&self, key: &str, sent: Sent<'_>) -> Result<Value, StoreError> {
        match &self.servers {
            Connected::One(one) => one.connection.send(sent, false).await,
            // Boxed, so that the future of a call to a single server stays small.
            Connected::Cluster(cluster) => Box::pin(cluster.send(key, sent)).await,
        }
    }

    /// Executes `entries` in order at `now`, in µs since 1970, or at the server's time if that is `None`.
    ///
    /// # Errors
    ///
    /// When the call was not sent, was refused or has had no reply. In the last case the server may have executed it.
    pub async fn run_at(
        &self,
        now: Option<i64>,
        entries: &[Entry],
    ) -> Result<Vec<Reply>, StoreError> {
        let Some(first) = entries.first() else { return Ok(Vec::new()) };
        // In a Cluster all entries of a call have one hash tag.
        let key = first.checks().first().map_or("", |check| &*check.key);
        let lane = self.placement().lane(key);
        match self.run_together(now, lane, entries).await {
            // Boxed: slots move seldom, and never on a single server.
            Err(StoreError::Refused(words)) if reason::is_split(&words) => {
                Box::pin(self.run_split(now, lane, entries)).await
            }
            result => result,
        }
    }

    /// Executes all entries in one call, which reads the epoch, too.
    async fn run_together(
        &self,
        now: Option<i64>,
        lane: &str,
        entries: &[Entry],
    ) -> Result<Vec<Reply>, StoreError> {
        let expected = self.epochs.expected(lane);
        let call = ScriptCall::new(now, self.epochs.key(lane), expected, entries);
        let reply = self.execute(&call).await?;
        if let Some(epoch) = reply.epoch {
            self.epochs.learn(lane, expected, epoch);
        }
        if now.is_none() {
            self.epochs.see(lane, reply.now);
        }
        Ok(reply.replies)
    }

    /// Sends a call of the script, and reads its reply.
    async fn execute(&self, call: &ScriptCall<'_>) -> Result<ScriptReply, StoreError> {
        let write = |by: &str, script: &str| call.command(by, script, self.database);
        match self.send(call.epoch(), Sent::Script(&write)).await? {
            Value::ServerError(error) => Err(StoreError::Refused(words(&error))),
            said => call.read(&said).ok_or(StoreError::Protocol),
        }
    }
}

impl Backend for RedisStore {
    fn calls(&self) -> &Arc<Calls> {
        &self.calls
    }

    fn placement(&self) -> Placement {
        match &self.servers {
            Connected::One(_) => Placement::OneServer,
            Connected::Cluster(cluster) => {
                Placement::ManyServers { one_answers: cluster.answers() }
            }
        }
    }

    fn renew(&self) {
        // A connection to a node of a Cluster has no sibling that it could be compared with.
        if let Connected::One(one) = &self.servers {
            one.connection.renew();
        }
    }

    fn run(&self, entries: Arc<Vec<Entry>>) -> BoxFuture<Result<Vec<Reply>, StoreError>> {
        let store = self.clone();
        Box::pin(async move { store.run_in_use(&entries).await })
    }

    fn beat(&self, heartbeat: Heartbeat) -> BoxFuture<Result<Beat, StoreError>> {
        let store = self.clone();
        Box::pin(async move { store.say_alive(&heartbeat).await })
    }

    fn exchange(
        &self,
        key: Arc<str>,
        change: Option<NoteChange>,
    ) -> BoxFuture<Result<Note, StoreError>> {
        let store = self.clone();
        Box::pin(async move { store.exchange_note(&key, change.as_ref()).await })
    }

    fn scan(&self, prefix: Arc<str>, place: ScanPlace) -> BoxFuture<Result<ScanStep, StoreError>> {
        let store = self.clone();
        Box::pin(async move { store.scan_names(&prefix, place).await })
    }

    fn copy_states(&self, checks: Checks) -> BoxFuture<Result<StateCopy, StoreError>> {
        let store = self.clone();
        Box::pin(async move { store.copy_at(None, &checks).await })
    }

    fn inspect(&self) -> BoxFuture<()> {
        let store = self.clone();
        Box::pin(async move { store.ask_for_evicted().await })
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore").finish_non_exhaustive()
    }
}

/// Returns the hash by which a server knows a script or a text: its SHA-1 in hexadecimal digits.
fn hash(script: &str) -> String {
    Sha1::digest(script).iter().fold(String::new(), |mut hash, byte| {
        // Writing into a `String` does not fail.
        let _ = write!(hash, "{byte:02x}");
        hash
    })
}

#[cfg(test)]
mod tests {
    /// As `redis-cli script load 'return 1'` says.
    #[test]
    fn hashes_a_script_as_redis_does() {
        assert_eq!(super::hash("return 1"), "e0e1f9fabfc9d4800c877a703b823ac0578ff8db");
    }
}
