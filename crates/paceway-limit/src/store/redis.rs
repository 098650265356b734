//! The store that gateways share: one Lua script on Redis servers, over connections of our own (`link`). One server, the
//! one that Sentinels name, or the nodes of a Cluster.

mod answer;
mod apart;
mod call;
mod cluster;
mod connect;
mod dial;
mod ear;
#[cfg(fuzzing)]
pub mod fuzzing;
mod groups;
mod identity;
mod info;
mod link;
mod marker;
mod presence;
mod probe;
mod reader;
mod reason;
mod resp;
mod slots;
mod stream;
mod url;

pub use groups::{Claim, Groups};
pub use marker::Markers;
pub use url::RedisUrl;

use super::{
    BoxFuture, Entry, Reply, StoreError,
    batch::{Beat, Script},
    calls::Calls,
    hash_tag,
};
use crate::{
    algorithm::SCRIPT,
    log::{Permit, Throttle},
};
use call::Call;
use cluster::Cluster;
use connect::{Access, Target};
use ear::Ear;
use link::Link;
use marker::Marker;
use resp::Value;
use sha1::{Digest, Sha1};
use std::{
    fmt::{self, Write},
    sync::{Arc, OnceLock},
    time::Duration,
};
use url::{Place, Servers};

/// Sentinels may name another server at each connection.
static MASTERS: Throttle = Throttle::new();

/// The Redis servers of a store, and one pipelined connection to each that has keys.
#[derive(Clone)]
pub struct RedisStore {
    servers: Connected,
    markers: Arc<Markers>,
    /// In a Cluster: which limiters may be decided on.
    groups: Option<Arc<Groups>>,
    /// By which the servers know the script.
    hash: Arc<str>,
    calls: Arc<Calls>,
}

#[derive(Clone)]
enum Connected {
    One(Arc<One>),
    Cluster(Arc<Cluster>),
}

/// One server, whichever it is now.
struct One {
    link: Link,
    ear: OnceLock<Ear>,
    access: Arc<Access>,
    target: Target,
}

/// Why a Redis server cannot be used at all.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// Nobody answers there: perhaps later.
    #[error("it cannot be reached: {0}")]
    Unreachable(String),
    /// It answers and will not serve us: wrong credentials, no such database, too old.
    #[error("it refuses us: {0}")]
    Refused(String),
}

// === impl RedisStore ===

impl RedisStore {
    /// Connects in the background of the current runtime, and again whenever a connection is lost. `markers` are those
    /// of the process.
    ///
    /// # Errors
    ///
    /// Certificates that cannot be used.
    pub fn open(url: &RedisUrl, markers: &Arc<Markers>) -> Result<Self, ConnectError> {
        let access = Arc::new(Access::new(url)?);
        let servers = match (Target::of(url), &*url.servers) {
            (None, Servers::Cluster(seeds)) => {
                Connected::Cluster(Arc::new(Cluster::open(access, seeds.clone(), markers)))
            }
            (None, _) => return Err(ConnectError::Refused("no server".into())),
            (Some(target), _) => {
                let known = markers.clone();
                // One server has all lanes, whichever the Sentinels name.
                let is_named = matches!(target, Target::Master(_));
                let met = Arc::new(move |place: &Place, run: Option<&_>| {
                    if is_named
                        && known.is_another(&place.to_string())
                        && let Some(Permit { suppressed }) = MASTERS.permit()
                    {
                        tracing::info!(server = %place, suppressed, "the store has another master");
                    }
                    run.into_iter().for_each(|run| known.meet("", run, |_| true));
                });
                let link = Link::open(access.clone(), target.clone(), met);
                Connected::One(Arc::new(One { link, ear: OnceLock::new(), access, target }))
            }
        };
        let (markers, hash) = (markers.clone(), hash(SCRIPT).into());
        Ok(Self { servers, markers, groups: None, hash, calls: Arc::default() })
    }

    /// From now on hears who is called to a place, for as long as the store lives.
    pub fn hear_calls(&self) {
        match &self.servers {
            Connected::One(one) => {
                let ear = || Ear::open(one.access.clone(), one.target.clone(), self.calls.clone());
                one.ear.get_or_init(ear);
            }
            Connected::Cluster(cluster) => cluster.hear(&self.calls),
        }
    }

    /// Resolves when the first connection stands; of a Cluster, those to all servers, or to some after `limit`.
    ///
    /// # Errors
    ///
    /// Why it does not: after `limit`, or when the server refuses us. It is still tried.
    pub async fn connected(&self, limit: Duration) -> Result<(), ConnectError> {
        match &self.servers {
            Connected::One(one) => one.link.connected(limit).await,
            Connected::Cluster(cluster) => cluster.connected(limit).await,
        }
    }

    /// Whether there is a connection now; of a Cluster, to each server that has slots.
    pub fn is_connected(&self) -> bool {
        match &self.servers {
            Connected::One(one) => one.link.is_connected(),
            Connected::Cluster(cluster) => cluster.is_connected(),
        }
    }

    /// Connects once and asks what a start needs to know; returns what the operator should be warned of. `prefix` is the
    /// first part of every key: two with it are written and deleted.
    ///
    /// # Errors
    ///
    /// [`ConnectError`].
    pub async fn probe(
        url: &RedisUrl,
        prefix: &str,
        limit: Duration,
    ) -> Result<Vec<String>, ConnectError> {
        probe::probe(url, prefix, limit).await
    }

    /// Asks the servers that have said which run they are what they have evicted since.
    async fn ask_for_evicted(&self) {
        match &self.servers {
            Connected::One(one) if self.markers.knows("") => {
                let said = one.link.call(&identity::command()).await;
                if let Some(run) = said.ok().as_ref().and_then(identity::read) {
                    self.markers.look("", &run, |_| true);
                }
            }
            Connected::One(_) => {}
            Connected::Cluster(cluster) => cluster.ask_for_evicted(&self.markers).await,
        }
    }

    /// Sends a command to the server that has `key`, once, and waits for its reply.
    async fn call(&self, key: &str, command: &[u8]) -> Result<Value, StoreError> {
        match &self.servers {
            Connected::One(one) => one.link.call(command).await,
            // Boxed, so that a call to a single server takes no room for it.
            Connected::Cluster(cluster) => Box::pin(cluster.call(key, command)).await,
        }
    }

    /// Executes `entries` in order at `now` (µs since 1970; `None`: the server's clock).
    ///
    /// # Errors
    ///
    /// When nothing is known of any entry.
    pub async fn run_at(
        &self,
        now: Option<i64>,
        entries: &[Entry],
    ) -> Result<Vec<Reply>, StoreError> {
        let Some(first) = entries.first() else { return Ok(Vec::new()) };
        // All have one hash tag, where that matters.
        let key = first.checks().first().map_or("", |check| &*check.key);
        let lane = self.lane(key);
        match self.run_together(now, lane, entries).await {
            // Boxed: slots seldom move, and never on a single server.
            Err(StoreError::Refused(words)) if apart::are_apart(&words) => {
                Box::pin(self.run_apart(now, lane, entries)).await
            }
            result => result,
        }
    }

    /// All in one call, and the marker with them.
    async fn run_together(
        &self,
        now: Option<i64>,
        lane: &str,
        entries: &[Entry],
    ) -> Result<Vec<Reply>, StoreError> {
        let expected = self.markers.expected(lane);
        let call = Call::new(now, self.markers.key(lane), expected, entries);
        let (replies, marker) = self.execute(&call).await?;
        if let Some(marker) = marker {
            self.markers.learn(lane, expected, marker);
        }
        Ok(replies)
    }

    /// Sends a call of the script; what it says, and the marker when it is not the one expected.
    async fn execute(&self, call: &Call<'_>) -> Result<(Vec<Reply>, Option<Marker>), StoreError> {
        let key = call.marker();
        let said = match self.call(key, &call.command("EVALSHA", &self.hash)).await? {
            // The server has forgotten the script and has executed nothing.
            Value::Error(error) if error.starts_with("NOSCRIPT") => {
                self.call(key, &call.command("EVAL", SCRIPT)).await?
            }
            said => said,
        };
        match said {
            Value::Error(error) => Err(StoreError::Refused(error)),
            said => call.read(&said).ok_or(StoreError::Protocol),
        }
    }
}

impl Script for RedisStore {
    fn calls(&self) -> &Arc<Calls> {
        &self.calls
    }

    fn lane<'k>(&self, key: &'k str) -> &'k str {
        match self.servers {
            // One server has all keys.
            Connected::One(_) => "",
            Connected::Cluster(_) => hash_tag(key),
        }
    }

    fn has_many_servers(&self) -> bool {
        matches!(self.servers, Connected::Cluster(_))
    }

    fn renew(&self) {
        // Of a Cluster each link has a server of its own: they are no siblings.
        if let Connected::One(one) = &self.servers {
            one.link.renew();
        }
    }

    fn answers(&self) -> bool {
        matches!(&self.servers, Connected::Cluster(cluster) if cluster.answers())
    }

    fn run(&self, entries: Arc<Vec<Entry>>) -> BoxFuture<Result<Vec<Reply>, StoreError>> {
        let store = self.clone();
        Box::pin(async move { store.run_in_use(&entries).await })
    }

    fn beat(
        &self,
        key: Arc<str>,
        id: Arc<str>,
        alone: bool,
    ) -> BoxFuture<Result<Beat, StoreError>> {
        let store = self.clone();
        Box::pin(async move { store.say_alive(&key, &id, alone).await })
    }

    fn leave(&self, key: Arc<str>, id: Arc<str>) -> BoxFuture<Result<(), StoreError>> {
        let store = self.clone();
        Box::pin(async move { store.say_goodbye(&key, &id).await })
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

/// By which a server knows a script.
fn hash(script: &str) -> String {
    Sha1::digest(script).iter().fold(String::new(), |mut hash, byte| {
        // Into a text that always succeeds.
        let _ = write!(hash, "{byte:02x}");
        hash
    })
}

#[cfg(test)]
mod tests {
    /// As `redis-cli script load 'return 1'` says.
    #[test]
    fn hash_of_a_script() {
        assert_eq!(super::hash("return 1"), "e0e1f9fabfc9d4800c877a703b823ac0578ff8db");
    }
}
