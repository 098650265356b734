//! The store that gateways share: one Lua script on a Redis server. The only file that names the driver.
//!
//! What the driver would do on its own and must not: retry a charge (`max_command_attempts` is 1), keep calls
//! for a server that is away and send them when it is back (asked only while connected), wait for ever
//! (`batch` bounds every caller, `unresponsive` the connection).

use super::{BoxFuture, Checks, Decision, Entry, Reply, StoreError, batch::Script, calls::Calls};
use crate::algorithm::{
    Algorithm, Grant, Level, SCRIPT,
    concurrency::Ticket,
    reserve::{self, Queued},
};
use fred::{
    clients::Client,
    error::{Error, ErrorKind},
    interfaces::{ClientLike, EventInterface, LuaInterface, PubsubInterface},
    types::{
        Builder, Key, Value,
        config::{Config, ReconnectPolicy},
        scripts::Script as LuaScript,
    },
};
use std::{collections::HashMap, fmt, sync::Arc, time::Duration};
use tokio::{sync::broadcast::error::RecvError, time::sleep};

/// A connection whose oldest call is this old is dead.
const UNRESPONSIVE: Duration = Duration::from_secs(2);
const RECONNECT: Duration = Duration::from_millis(200);
/// So often in a row, and it is no accident.
const DENIED: u32 = 10;
/// Before a gateway's number: where the script calls its tickets.
const CHANNEL: &str = "paceway:call:";
/// A Redis URL. Its `Debug` hides the password.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisUrl(Config);

/// One pipelined connection to a Redis server.
#[derive(Clone)]
pub struct RedisStore {
    client: Client,
    script: LuaScript,
    calls: Arc<Calls>,
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

// === impl RedisUrl ===

impl RedisUrl {
    /// Reads `redis://[user:password@]host[:port][/database]`.
    ///
    /// # Errors
    ///
    /// What is wrong with it, without quoting it: it may hold a password.
    pub fn parse(url: &str) -> Result<Self, String> {
        let (scheme, rest) =
            url.split_once("://").ok_or("write `memory`, or a URL such as `redis://host:6379`")?;
        let config = match scheme {
            "redis" => {
                let authority = rest.split('/').next().unwrap_or_default();
                if authority.rsplit('@').next().is_none_or(str::is_empty) {
                    return Err("it names no host, as in `redis://host:6379`".into());
                }
                if let Some((_, database)) = rest.split_once('/')
                    && !database.is_empty()
                    && database.parse::<u8>().is_err()
                {
                    return Err("behind the last `/` stands a database number, 0 to 255".into());
                }
                Config::from_url(url).map_err(
                    |_| "it is not of the form `redis://[user:password@]host[:port][/database]`",
                )?
            }
            "rediss" | "unix" | "redis-cluster" | "redis-sentinel" => {
                return Err(format!("`{scheme}://` is not supported yet"));
            }
            _ => return Err(format!("`{scheme}://` is not a scheme for a store; use `redis://`")),
        };
        Ok(Self(config))
    }
}

impl fmt::Debug for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RedisUrl").field(&self.0.server).finish_non_exhaustive()
    }
}

impl fmt::Display for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let servers: Vec<_> = self.0.server.hosts().iter().map(ToString::to_string).collect();
        f.write_str(&servers.join(","))
    }
}

// === impl RedisStore ===

impl RedisStore {
    /// Connects in the background of the current runtime, and again whenever the connection is lost.
    ///
    /// # Errors
    ///
    /// When the URL makes no configuration.
    pub fn open(url: &RedisUrl) -> Result<Self, ConnectError> {
        let mut builder = builder(url, false);
        builder.set_policy(ReconnectPolicy::new_constant(0, millis(RECONNECT)));
        let client = builder.build().map_err(|error| refused(&error))?;
        drop(client.connect());
        Ok(Self { client, script: LuaScript::from_lua(SCRIPT), calls: Arc::default() })
    }

    /// Hears who is called to a place, on a connection of its own, for as long as the runtime lives. Calls that were
    /// lost while there was none are made up for: whoever waits asks again when there is one.
    ///
    /// # Errors
    ///
    /// When the URL makes no configuration.
    pub fn hear_calls(&self, url: &RedisUrl) -> Result<(), ConnectError> {
        let mut builder = builder(url, false);
        builder.set_policy(ReconnectPolicy::new_constant(0, millis(RECONNECT)));
        let client = builder.build().map_err(|error| refused(&error))?;
        let (mut connections, mut messages) = (client.reconnect_rx(), client.message_rx());
        drop(client.connect());
        let (calls, channel) = (self.calls.clone(), format!("{CHANNEL}{}", self.calls.gateway()));
        let caller = self.client.clone();
        tokio::spawn(async move {
            // The first connection is told like any other.
            let (mut is_new, mut failed) = (false, 0);
            loop {
                if is_new {
                    match can_call(&client, &caller, &channel).await {
                        Ok(()) => {
                            (is_new, failed) = (false, 0);
                            calls.call_all();
                        }
                        // Just made, a subscription may not be there yet.
                        Err(error) if error.details().starts_with("NOPERM") => {
                            failed += 1;
                            if failed == DENIED {
                                let error = error.details();
                                tracing::warn!(
                                    channel,
                                    error,
                                    "who waits for a place cannot be called"
                                );
                            }
                        }
                        // Tried again.
                        Err(_) => {}
                    }
                }
                tokio::select! {
                    message = messages.recv() => match message {
                        Ok(message) => calls.call(message.value.convert().unwrap_or_default()),
                        Err(RecvError::Lagged(_)) => calls.call_all(),
                        Err(RecvError::Closed) => return,
                    },
                    _ = connections.recv() => is_new = true,
                    () = sleep(RECONNECT), if is_new => {}
                }
            }
        });
        Ok(())
    }

    /// Resolves when the first connection stands.
    ///
    /// # Errors
    ///
    /// [`ConnectError::Unreachable`] when it does not within `limit`; it is still tried.
    pub async fn connected(&self, limit: Duration) -> Result<(), ConnectError> {
        let connected = tokio::time::timeout(limit, self.client.wait_for_connect()).await;
        let answer =
            connected.map_err(|_| ConnectError::Unreachable("no answer in time".into()))?;
        answer.map_err(|error| connect_error(&error))
    }

    /// Whether there is a connection now.
    pub fn is_connected(&self) -> bool {
        self.client.is_connected()
    }

    /// Connects once and asks what a start needs to know; returns what the operator should be warned of.
    ///
    /// # Errors
    ///
    /// [`ConnectError`].
    pub async fn probe(url: &RedisUrl, limit: Duration) -> Result<Vec<String>, ConnectError> {
        let mut builder = builder(url, true);
        builder.with_connection_config(|connection| connection.connection_timeout = limit);
        let client = builder.build().map_err(|error| refused(&error))?;
        let asked = async {
            let connection = client.init().await.map_err(|error| connect_error(&error))?;
            let policy: Result<Vec<String>, Error> = client
                .custom(
                    fred::cmd!("CONFIG"),
                    vec![Value::from("GET"), Value::from("maxmemory-policy")],
                )
                .await;
            let answer: Result<i64, Error> = client
                .eval("return #struct.pack('<i8', 1)", Vec::<Key>::new(), Vec::<Value>::new())
                .await;
            // Nobody is left to hear of it.
            let _ = client.quit().await;
            connection.abort();
            answer.map_err(|error| refused(&error))?;
            Ok(policy.unwrap_or_default())
        };
        let answer = tokio::time::timeout(limit, asked).await;
        let policy =
            answer.map_err(|_| ConnectError::Unreachable("no answer in time".into()))??;
        Ok(policy
            .get(1)
            .filter(|policy| *policy != "noeviction")
            .map(|policy| {
                format!("its maxmemory-policy is `{policy}`: an evicted key forgets its limit; set `noeviction`")
            })
            .into_iter()
            .collect())
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
        if !self.is_connected() {
            return Err(StoreError::NotConnected);
        }
        let Call { keys, args, names, .. } = Call::new(now, entries);
        let sent = self.client.evalsha(self.script.sha1().clone(), keys, args).await;
        let reply: Vec<i64> = match sent {
            // The server has forgotten the script and has executed nothing.
            Err(error) if error.details().starts_with("NOSCRIPT") => {
                let Call { keys, args, .. } = Call::new(now, entries);
                self.client.eval(SCRIPT, keys, args).await.map_err(store_error)?
            }
            sent => sent.map_err(store_error)?,
        };
        read(entries, &names, &reply).ok_or(StoreError::Protocol)
    }
}

impl Script for RedisStore {
    fn calls(&self) -> &Arc<Calls> {
        &self.calls
    }

    fn run(&self, entries: Vec<Entry>) -> BoxFuture<Result<Vec<Reply>, StoreError>> {
        let store = self.clone();
        Box::pin(async move { store.run_at(None, &entries).await })
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore").finish_non_exhaustive()
    }
}

fn builder(url: &RedisUrl, fail_fast: bool) -> Builder {
    let mut builder = Builder::from_config(Config { fail_fast, ..url.0.clone() });
    builder.with_connection_config(|connection| {
        connection.max_command_attempts = 1;
        connection.connection_timeout = UNRESPONSIVE;
        connection.internal_command_timeout = UNRESPONSIVE;
        connection.unresponsive.max_timeout = Some(UNRESPONSIVE);
        connection.unresponsive.interval = UNRESPONSIVE / 4;
        connection.tcp.nodelay = Some(true);
    });
    builder
}

fn millis(span: Duration) -> u32 {
    u32::try_from(span.as_millis()).unwrap_or(u32::MAX)
}

/// Hears `channel`, and sees that it is heard: the driver says nothing of a subscription that is denied.
async fn can_call(listener: &Client, caller: &Client, channel: &str) -> Result<(), Error> {
    listener.subscribe(channel).await?;
    // No ticket has this number.
    match caller.is_connected() {
        true if caller.publish::<i64, _, _>(channel, 0).await? == 0 => {
            Err(Error::new(ErrorKind::Auth, "NOPERM to subscribe"))
        }
        _ => Ok(()),
    }
}

fn refused(error: &Error) -> ConnectError {
    ConnectError::Refused(error.details().to_owned())
}

fn connect_error(error: &Error) -> ConnectError {
    match error.kind() {
        ErrorKind::IO | ErrorKind::Timeout | ErrorKind::Canceled | ErrorKind::Routing => {
            ConnectError::Unreachable(error.details().to_owned())
        }
        _ => refused(error),
    }
}

fn store_error(error: Error) -> StoreError {
    match error.kind() {
        ErrorKind::Timeout => StoreError::Timeout,
        ErrorKind::IO | ErrorKind::Canceled | ErrorKind::Routing => {
            StoreError::Unreachable(error.details().to_owned())
        }
        ErrorKind::Parse | ErrorKind::Protocol => StoreError::Protocol,
        _ => StoreError::Refused(error.details().to_owned()),
    }
}

/// The keys and arguments of one script call, as `reserve.lua` reads them.
struct Call {
    keys: Vec<Key>,
    names: Vec<Arc<str>>,
    numbers: HashMap<Arc<str>, i64>,
    args: Vec<Value>,
}

// === impl Call ===

impl Call {
    fn new(now: Option<i64>, entries: &[Entry]) -> Self {
        let args = vec![Value::Integer(now.unwrap_or(-1))];
        let mut call = Self { keys: Vec::new(), names: Vec::new(), numbers: HashMap::new(), args };
        entries.iter().for_each(|entry| call.push(entry));
        call
    }

    fn push(&mut self, entry: &Entry) {
        match entry {
            Entry::Decide { checks, budget, ticket } => {
                match ticket {
                    None => self.word("D"),
                    Some(Ticket { gateway, number, deadline }) => {
                        self.word("T");
                        [*gateway, *number, *deadline].into_iter().for_each(|n| self.number(n));
                    }
                }
                self.number(*budget);
                self.number(checks.len() as i64);
                for check in checks.iter() {
                    self.head(&check.key, &check.algorithm);
                    self.number(check.cost);
                    self.number(i64::from(check.enforce));
                    self.rule(&check.algorithm);
                }
            }
            Entry::GiveBack { check, grant } => {
                self.word("G");
                self.head(&check.key, &check.algorithm);
                for number in [check.cost, grant.whole, grant.ticks, grant.born, grant.aux] {
                    self.number(number);
                }
                self.rule(&check.algorithm);
            }
            Entry::Renew { check, grant } => {
                self.word("R");
                self.head(&check.key, &check.algorithm);
                self.number(grant.whole);
                self.number(grant.ticks);
                self.rule(&check.algorithm);
            }
            Entry::Forget { check } => {
                self.word("X");
                self.head(&check.key, &check.algorithm);
                self.rule(&check.algorithm);
            }
            Entry::Look { check } => {
                self.word("P");
                self.head(&check.key, &check.algorithm);
                self.rule(&check.algorithm);
            }
        }
    }

    fn head(&mut self, key: &Arc<str>, algorithm: &Algorithm) {
        self.key(key);
        self.number(algorithm.letter().into());
    }

    fn key(&mut self, key: &Arc<str>) {
        let next = self.keys.len() as i64 + 1;
        let number = *self.numbers.entry(key.clone()).or_insert(next);
        if number == next {
            self.keys.push(Key::from(key.as_ref()));
            self.names.push(key.clone());
        }
        self.number(number);
    }

    fn rule(&mut self, algorithm: &Algorithm) {
        algorithm.args().into_iter().for_each(|arg| self.number(arg));
    }

    fn word(&mut self, word: &'static str) {
        self.args.push(Value::from_static_str(word));
    }

    fn number(&mut self, number: i64) {
        self.args.push(Value::Integer(number));
    }
}

/// The script's flat reply; `None` when it is not one.
fn read(entries: &[Entry], keys: &[Arc<str>], reply: &[i64]) -> Option<Vec<Reply>> {
    let mut reply = reply.iter().copied();
    let mut replies = Vec::with_capacity(entries.len());
    for entry in entries {
        let code = reply.next()?;
        if code < 0 {
            let key = keys.get(usize::try_from(reply.next()? - 1).ok()?)?;
            replies.push(Reply::Failed(StoreError::Foreign(key.clone())));
            continue;
        }
        replies.push(match entry {
            Entry::Decide { checks, .. } => {
                Reply::Decision(read_decision(checks, code, &mut reply)?)
            }
            Entry::GiveBack { .. } if code == 2 => Reply::HandedOver,
            Entry::GiveBack { .. } | Entry::Renew { .. } | Entry::Forget { .. } => {
                Reply::Done(code == 1)
            }
            Entry::Look { .. } => Reply::Level(read_level(&mut reply)?),
        });
    }
    reply.next().is_none().then_some(replies)
}

fn read_decision(
    checks: &Checks,
    code: i64,
    reply: &mut impl Iterator<Item = i64>,
) -> Option<Decision> {
    let (at, retry_after) = (reply.next()?, reply.next()?);
    let bound_by = usize::try_from(reply.next()? - 1).ok().filter(|i| *i < checks.len())?;
    let level = read_level(reply)?;
    let queued = match code {
        2 => Some(Queued { deadline: reply.next()?, ask_after: reply.next()? }),
        _ => None,
    };
    let mut part = || {
        let at = reply.next()?;
        let grant = Grant {
            whole: reply.next()?,
            ticks: reply.next()?,
            born: reply.next()?,
            aux: reply.next()?,
        };
        Some(reserve::Part { at, grant })
    };
    let parts = match code {
        1 => Some((0..checks.len()).map(|_| part()).collect::<Option<_>>()?),
        _ => None,
    };
    let reserved = reserve::Reserved { at, retry_after, bound_by, level, parts, queued };
    Some(Decision::new(reserved))
}

fn read_level(reply: &mut impl Iterator<Item = i64>) -> Option<Level> {
    Some(Level { remaining: reply.next()?, next: reply.next()?, reset_after: reply.next()? })
}
