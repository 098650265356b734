//! The store that gateways share: one Lua script on a Redis server. The only file that names the driver.
//!
//! Decisions go over a connection of our own (`link`), which costs a fraction of what the driver does. The driver
//! is asked where that does not count: at the start, and to be called to places. What it would do on its own and must
//! not, as the link does not: send a command twice (`max_command_attempts` is 1), wait for ever (`unresponsive`).

mod answer;
mod call;
mod link;
mod presence;
mod resp;

use super::{
    BoxFuture, Entry, Reply, StoreError,
    batch::{Beat, Script},
    calls::Calls,
};
use crate::algorithm::SCRIPT;
use call::Call;
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
use link::{Address, Link, RECONNECT, UNRESPONSIVE};
use std::{fmt, sync::Arc, time::Duration};
use tokio::{sync::broadcast::error::RecvError, time::sleep};

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
    link: Arc<Link>,
    /// By which the server knows the script.
    hash: Arc<str>,
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

    fn address(&self) -> Result<Address, ConnectError> {
        let Config { username, password, database, .. } = &self.0;
        let mut servers = self.0.server.hosts().into_iter();
        let server = servers.next().ok_or(ConnectError::Refused("no server".into()))?;
        Ok(Address {
            // An IPv6 address stands in brackets in a URL only.
            host: server.host.trim_matches(['[', ']']).to_owned(),
            port: server.port,
            user: username.clone(),
            password: password.clone(),
            database: *database,
        })
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
    /// When the URL names no server.
    pub fn open(url: &RedisUrl) -> Result<Self, ConnectError> {
        let link = Arc::new(Link::open(url.address()?));
        let hash = LuaScript::from_lua(SCRIPT).sha1().to_string().into();
        Ok(Self { link, hash, calls: Arc::default() })
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
        let caller = self.link.clone();
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
    /// Why it does not: after `limit`, or when the server refuses us. It is still tried.
    pub async fn connected(&self, limit: Duration) -> Result<(), ConnectError> {
        self.link.connected(limit).await
    }

    /// Whether there is a connection now.
    pub fn is_connected(&self) -> bool {
        self.link.is_connected()
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
            Ok::<_, ConnectError>(policy.unwrap_or_default())
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
        let call = Call::new(now, entries);
        let said = match self.link.call(&call.command("EVALSHA", &self.hash)).await? {
            // The server has forgotten the script and has executed nothing.
            resp::Value::Error(error) if error.starts_with("NOSCRIPT") => {
                self.link.call(&call.command("EVAL", SCRIPT)).await?
            }
            said => said,
        };
        match said {
            resp::Value::Error(error) => Err(StoreError::Refused(error)),
            said => call.read(&said).ok_or(StoreError::Protocol),
        }
    }
}

impl Script for RedisStore {
    fn calls(&self) -> &Arc<Calls> {
        &self.calls
    }

    fn lane<'k>(&self, _: &'k str) -> &'k str {
        // One server has all keys.
        ""
    }

    fn run(&self, entries: Arc<Vec<Entry>>) -> BoxFuture<Result<Vec<Reply>, StoreError>> {
        let store = self.clone();
        Box::pin(async move { store.run_at(None, &entries).await })
    }

    fn beat(&self, key: Arc<str>, id: Arc<str>) -> BoxFuture<Result<Beat, StoreError>> {
        let store = self.clone();
        Box::pin(async move { store.say_alive(&key, &id).await })
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
async fn can_call(listener: &Client, caller: &Link, channel: &str) -> Result<(), Error> {
    listener.subscribe(channel).await?;
    // No ticket has this number.
    let publish = resp::command(&[b"PUBLISH", channel.as_bytes(), b"0"]);
    match caller.call(&publish).await {
        Ok(resp::Value::Number(0)) => Err(Error::new(ErrorKind::Auth, "NOPERM to subscribe")),
        Ok(resp::Value::Error(error)) => Err(Error::new(ErrorKind::Auth, error)),
        Ok(_) | Err(StoreError::NotConnected) => Ok(()),
        Err(error) => Err(Error::new(ErrorKind::IO, error.to_string())),
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

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("redis://redis", "redis", 6379, None, None, None)]
    #[case("redis://10.0.0.1:7000/3", "10.0.0.1", 7000, None, None, Some(3))]
    #[case("redis://:p%40ss@[::1]:7000", "::1", 7000, None, Some("p@ss"), None)]
    #[case("redis://ann:secret@redis:7000/0", "redis", 7000, Some("ann"), Some("secret"), Some(0))]
    fn the_address_of_a_url(
        #[case] url: &str,
        #[case] host: &str,
        #[case] port: u16,
        #[case] user: Option<&str>,
        #[case] password: Option<&str>,
        #[case] database: Option<u8>,
    ) {
        let address = RedisUrl::parse(url).expect("a URL").address().expect("a server");
        assert_eq!((&*address.host, address.port), (host, port));
        assert_eq!((address.user.as_deref(), address.password.as_deref()), (user, password));
        assert_eq!(address.database, database);
    }
}
