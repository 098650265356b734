//! Finds the server that a connection leads to: the one of the URL, or the master that Sentinels name. Sends no command of
//! a limiter.

use super::{
    super::{
        reason::{ConnectError, failure, refusal},
        url::{Endpoint, Login, RedisUrl, Servers},
    },
    access::{Access, ask, log_in, no_redis},
    messages::words,
    stream::RedisStream,
};
use redis::Value;
use std::{
    fmt,
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::time::{sleep, timeout};

/// A Sentinel that has not answered within 500 ms is passed over for the next one.
const SENTINEL: Duration = Duration::from_millis(500);
/// The Sentinels are asked once a second whether they still name the master that is connected to.
const WATCH: Duration = Duration::from_secs(1);

/// The server that a connection leads to: always the same one, or the master that Sentinels name.
#[derive(Clone)]
pub(in crate::store::redis) enum Destination {
    Server(Endpoint),
    Master(Arc<Sentinels>),
}

/// The Sentinels that know which server is the master.
pub(in crate::store::redis) struct Sentinels {
    endpoints: Vec<Endpoint>,
    master: String,
    login: Login,
    /// The position of the Sentinel that has answered last and is asked first.
    first: AtomicUsize,
}

// === impl Destination ===

impl Destination {
    /// Returns the destination of a URL; `None` for a Cluster, which has many.
    pub(in crate::store::redis) fn of(url: &RedisUrl) -> Option<Self> {
        match &*url.servers {
            Servers::One(endpoint) => Some(Self::Server(endpoint.clone())),
            Servers::Sentinels { endpoints, master, login } => {
                Some(Self::Master(Arc::new(Sentinels {
                    endpoints: endpoints.clone(),
                    master: master.clone(),
                    login: login.clone(),
                    first: AtomicUsize::new(0),
                })))
            }
            Servers::Cluster(_) => None,
        }
    }

    /// Makes a connection that is ready for commands, and returns the address that it leads to.
    pub(in crate::store::redis) async fn connect(
        &self,
        access: &Access,
    ) -> Result<(RedisStream, Endpoint), ConnectError> {
        match self {
            Self::Server(endpoint) => Ok((access.connect(endpoint).await?, endpoint.clone())),
            Self::Master(sentinels) => sentinels.connect(access).await,
        }
    }

    /// Resolves when the Sentinels name another server than the one at `endpoint`; never for a server without Sentinels.
    pub(in crate::store::redis) async fn has_left(&self, access: &Access, endpoint: &Endpoint) {
        match self {
            Self::Server(_) => pending().await,
            Self::Master(sentinels) => loop {
                sleep(WATCH).await;
                // While no Sentinel answers, the connection stays.
                if sentinels.named(access).await.is_ok_and(|named| named != *endpoint) {
                    return;
                }
            },
        }
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Server(endpoint) => endpoint.fmt(f),
            Self::Master(sentinels) => {
                write!(f, "the master `{}`, or its Sentinels", sentinels.master)
            }
        }
    }
}

// === impl Sentinels ===

impl Sentinels {
    /// Asks one Sentinel after the other, until one names a server that says itself that it is the master.
    async fn connect(&self, access: &Access) -> Result<(RedisStream, Endpoint), ConnectError> {
        let mut why = None;
        let first = self.first.load(Relaxed);
        for i in 0..self.endpoints.len() {
            let i = (first + i) % self.endpoints.len();
            // If this attempt is given up meanwhile, the next one begins with the next Sentinel.
            self.first.store(i + 1, Relaxed);
            let asked = timeout(SENTINEL, self.ask(access, &self.endpoints[i])).await;
            let asked = asked.unwrap_or_else(|_| {
                Err(ConnectError::Unreachable(format!("{}: no answer in time", self.endpoints[i])))
            });
            let found = match asked {
                Ok(endpoint) => master(access, endpoint).await,
                Err(error) => Err(error),
            };
            match found {
                Ok(found) => {
                    self.first.store(i, Relaxed);
                    return Ok(found);
                }
                // A refusal says more than the silence of another Sentinel.
                Err(error @ ConnectError::Refused(_)) => why = Some(error),
                Err(error) => why = why.or(Some(error)),
            }
        }
        Err(why.unwrap_or(ConnectError::Refused("it names no Sentinel".into())))
    }

    /// Returns the address of the master, from the first Sentinel that answers.
    async fn named(&self, access: &Access) -> Result<Endpoint, ConnectError> {
        let mut why = ConnectError::Unreachable("no Sentinel answers".into());
        let first = self.first.load(Relaxed);
        for i in 0..self.endpoints.len() {
            let endpoint = &self.endpoints[(first + i) % self.endpoints.len()];
            match timeout(SENTINEL, self.ask(access, endpoint)).await {
                Ok(Ok(named)) => return Ok(named),
                Ok(Err(error)) => why = error,
                Err(_) => {}
            }
        }
        Err(why)
    }

    /// Asks the Sentinel at `endpoint` for the address of the master.
    async fn ask(&self, access: &Access, endpoint: &Endpoint) -> Result<Endpoint, ConnectError> {
        let mut stream = access.open(endpoint).await?;
        log_in(&mut stream, endpoint, &self.login).await?;
        let question = [b"SENTINEL".as_slice(), b"get-master-addr-by-name", self.master.as_bytes()];
        let said = ask(&mut stream, endpoint, &question).await?;
        match &said {
            Value::Array(parts) => match &parts[..] {
                [Value::BulkString(host), Value::BulkString(port)] => {
                    let port = str::from_utf8(port).ok().and_then(|port| port.parse().ok());
                    let host = str::from_utf8(host).ok();
                    let told =
                        host.zip(port).and_then(|(host, port)| Endpoint::at(host, port, endpoint));
                    told.ok_or_else(|| failure(endpoint, &no_redis()))
                }
                _ => Err(failure(endpoint, &no_redis())),
            },
            Value::Nil => Err(ConnectError::Refused(format!(
                "the Sentinel at {endpoint} knows no master `{}`: write the name that its `sentinel monitor` has",
                self.master
            ))),
            Value::ServerError(error) => {
                let words = words(error);
                Err(if words.contains("unknown command") {
                    ConnectError::Refused(format!(
                        "{endpoint} is no Sentinel: name Sentinels, whose port is 26379 as a rule, or write redis://"
                    ))
                } else {
                    refusal(endpoint, &self.login, &words)
                })
            }
            _ => Err(failure(endpoint, &no_redis())),
        }
    }
}

/// Connects to the server at `endpoint`, which must call itself a master: after a failover a Sentinel may name it before it is
/// one.
async fn master(
    access: &Access,
    endpoint: Endpoint,
) -> Result<(RedisStream, Endpoint), ConnectError> {
    let mut stream = access.connect(&endpoint).await?;
    match ask(&mut stream, &endpoint, &[b"ROLE"]).await? {
        Value::Array(parts) => match parts.first() {
            Some(Value::BulkString(role)) if role == b"master" => Ok((stream, endpoint)),
            _ => Err(ConnectError::Unreachable(format!(
                "{endpoint}, which the Sentinels name, is not the master"
            ))),
        },
        Value::ServerError(error) => Err(refusal(&endpoint, &access.login, &words(&error))),
        _ => Err(failure(&endpoint, &no_redis())),
    }
}
