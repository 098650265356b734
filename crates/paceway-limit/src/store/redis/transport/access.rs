//! Makes a connection to a server of the store: Sentinels, if the URL names them, then socket, TLS, login and database.
//! Sends no command of a limiter.

use super::{
    super::{
        reason::{ConnectError, failure, refusal},
        url::{Endpoint, Login, RedisUrl, Servers},
    },
    dial::dial,
    frames::{Frames, Malformed},
    messages::{command, words},
    stream::{RedisStream, closed},
};
use crate::tls::client::{Chain, ClientTls, Connector};
use redis::Value;
use std::{
    fmt,
    future::pending,
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
    time::{sleep, timeout},
};

/// A Sentinel that has not answered within 500 ms is passed over for the next one.
const SENTINEL: Duration = Duration::from_millis(500);
/// The Sentinels are asked once a second whether they still name the master that is connected to.
const WATCH: Duration = Duration::from_secs(1);

/// The login, the database and the settings for TLS, which are the same for all servers of a store.
pub(in crate::store::redis) struct Access {
    pub(in crate::store::redis) login: Login,
    database: Option<u8>,
    tls: Option<Tls>,
}

struct Tls {
    settings: ClientTls,
    connector: Connector,
}

/// The server that a connection leads to: always the same one, or the master that Sentinels name.
#[derive(Clone)]
pub(in crate::store::redis) enum Destination {
    Server(Endpoint),
    Master(Arc<Sentinels>),
}

/// The Sentinels that know which server is the master.
pub(in crate::store::redis) struct Sentinels {
    places: Vec<Endpoint>,
    master: String,
    login: Login,
    /// The position of the Sentinel that has answered last and is asked first.
    first: AtomicUsize,
}

// === impl Access ===

impl Access {
    /// Reads the certificates that the URL's settings for TLS name.
    ///
    /// # Errors
    ///
    /// When a certificate or key cannot be read.
    pub(in crate::store::redis) fn new(url: &RedisUrl) -> Result<Self, ConnectError> {
        let tls = url.tls.as_ref().map(|settings| {
            let connector = Connector::new(settings, &[], &mut None);
            let connector = connector.map_err(|e| ConnectError::Refused(Chain(&e).to_string()))?;
            Ok(Tls { settings: (**settings).clone(), connector })
        });
        Ok(Self { login: url.login.clone(), database: url.database, tls: tls.transpose()? })
    }

    pub(in crate::store::redis) fn is_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Makes a connection to the server at `place` that is ready for commands.
    pub(in crate::store::redis) async fn connect(
        &self,
        place: &Endpoint,
    ) -> Result<RedisStream, ConnectError> {
        let mut stream = self.open(place).await?;
        log_in(&mut stream, place, &self.login).await?;
        if let Some(database) = self.database {
            let database = database.to_string();
            let select = [b"SELECT".as_slice(), database.as_bytes()];
            if let Value::ServerError(error) = ask(&mut stream, place, &select).await? {
                return Err(refusal(place, &self.login, &words(&error)));
            }
        }
        Ok(stream)
    }

    /// Opens a socket on which nothing has been sent except a TLS handshake.
    async fn open(&self, place: &Endpoint) -> Result<RedisStream, ConnectError> {
        let failed = |error| failure(place, &error);
        let (host, stream) = match place {
            Endpoint::Unix(path) => {
                return UnixStream::connect(path).await.map(RedisStream::Unix).map_err(failed);
            }
            Endpoint::Tcp { host, port } => (host, dial(host, *port).await.map_err(failed)?),
        };
        let Some(Tls { settings, connector }) = &self.tls else {
            return Ok(RedisStream::Tcp(stream));
        };
        let name = settings.name_of(host);
        let name = name.map_err(|error| ConnectError::Refused(Chain(&error).to_string()))?;
        let connector = connector.current("the store");
        let stream = connector.connect(name, stream).await.map_err(failed)?;
        Ok(RedisStream::Tls(Box::new(stream)))
    }
}

// === impl Destination ===

impl Destination {
    /// Returns the destination of a URL; `None` for a Cluster, which has many.
    pub(in crate::store::redis) fn of(url: &RedisUrl) -> Option<Self> {
        match &*url.servers {
            Servers::One(place) => Some(Self::Server(place.clone())),
            Servers::Sentinels { places, master, login } => {
                Some(Self::Master(Arc::new(Sentinels {
                    places: places.clone(),
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
            Self::Server(place) => Ok((access.connect(place).await?, place.clone())),
            Self::Master(sentinels) => sentinels.connect(access).await,
        }
    }

    /// Resolves when the Sentinels name another server than the one at `place`; never for a server without Sentinels.
    pub(in crate::store::redis) async fn has_left(&self, access: &Access, place: &Endpoint) {
        match self {
            Self::Server(_) => pending().await,
            Self::Master(sentinels) => loop {
                sleep(WATCH).await;
                // While no Sentinel answers, the connection stays.
                if sentinels.named(access).await.is_ok_and(|named| named != *place) {
                    return;
                }
            },
        }
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Server(place) => place.fmt(f),
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
        for i in 0..self.places.len() {
            let i = (first + i) % self.places.len();
            // If this attempt is given up meanwhile, the next one begins with the next Sentinel.
            self.first.store(i + 1, Relaxed);
            let asked = timeout(SENTINEL, self.ask(access, &self.places[i])).await;
            let asked = asked.unwrap_or_else(|_| {
                Err(ConnectError::Unreachable(format!("{}: no answer in time", self.places[i])))
            });
            let found = match asked {
                Ok(place) => master(access, place).await,
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
        for i in 0..self.places.len() {
            let place = &self.places[(first + i) % self.places.len()];
            match timeout(SENTINEL, self.ask(access, place)).await {
                Ok(Ok(named)) => return Ok(named),
                Ok(Err(error)) => why = error,
                Err(_) => {}
            }
        }
        Err(why)
    }

    /// Asks the Sentinel at `place` for the address of the master.
    async fn ask(&self, access: &Access, place: &Endpoint) -> Result<Endpoint, ConnectError> {
        let mut stream = access.open(place).await?;
        log_in(&mut stream, place, &self.login).await?;
        let question = [b"SENTINEL".as_slice(), b"get-master-addr-by-name", self.master.as_bytes()];
        let said = ask(&mut stream, place, &question).await?;
        match &said {
            Value::Array(parts) => match &parts[..] {
                [Value::BulkString(host), Value::BulkString(port)] => {
                    let port = str::from_utf8(port).ok().and_then(|port| port.parse().ok());
                    let host = str::from_utf8(host).ok();
                    let told =
                        host.zip(port).and_then(|(host, port)| Endpoint::at(host, port, place));
                    told.ok_or_else(|| failure(place, &no_redis()))
                }
                _ => Err(failure(place, &no_redis())),
            },
            Value::Nil => Err(ConnectError::Refused(format!(
                "the Sentinel at {place} knows no master `{}`: write the name that its `sentinel monitor` has",
                self.master
            ))),
            Value::ServerError(error) => {
                let words = words(error);
                Err(match words.contains("unknown command") {
                    true => ConnectError::Refused(format!(
                        "{place} is no Sentinel: name Sentinels, whose port is 26379 as a rule, or write redis://"
                    )),
                    false => refusal(place, &self.login, &words),
                })
            }
            _ => Err(failure(place, &no_redis())),
        }
    }
}

/// Connects to the server at `place`, which must call itself a master: after a failover a Sentinel may name it before it is
/// one.
async fn master(access: &Access, place: Endpoint) -> Result<(RedisStream, Endpoint), ConnectError> {
    let mut stream = access.connect(&place).await?;
    match ask(&mut stream, &place, &[b"ROLE"]).await? {
        Value::Array(parts) => match parts.first() {
            Some(Value::BulkString(role)) if role == b"master" => Ok((stream, place)),
            _ => Err(ConnectError::Unreachable(format!(
                "{place}, which the Sentinels name, is not the master"
            ))),
        },
        Value::ServerError(error) => Err(refusal(&place, &access.login, &words(&error))),
        _ => Err(failure(&place, &no_redis())),
    }
}

async fn log_in(
    stream: &mut RedisStream,
    place: &Endpoint,
    login: &Login,
) -> Result<(), ConnectError> {
    let said = match (&login.user, &login.password) {
        (Some(user), Some(password)) => {
            ask(stream, place, &[b"AUTH", user.as_bytes(), password.as_bytes()]).await?
        }
        (None, Some(password)) => ask(stream, place, &[b"AUTH", password.as_bytes()]).await?,
        (_, None) => return Ok(()),
    };
    match said {
        Value::Okay | Value::SimpleString(_) => Ok(()),
        Value::ServerError(error) => Err(refusal(place, login, &words(&error))),
        _ => Err(failure(place, &no_redis())),
    }
}

/// Sends one command and returns the reply, on a connection that carries nothing else yet; an error of the server is a
/// [`Value::ServerError`].
pub(in crate::store::redis) async fn ask(
    stream: &mut RedisStream,
    place: &Endpoint,
    words: &[&[u8]],
) -> Result<Value, ConnectError> {
    let asked = async {
        stream.write_all(&command(words).get_packed_command()).await?;
        stream.flush().await?;
        let (mut frames, mut bytes, mut read) = (Frames::new(), Vec::new(), 0);
        while read == 0 || !frames.is_between() {
            if stream.read_buf(&mut bytes).await? == 0 {
                return Err(closed());
            }
            read += frames.advance(&bytes[read..]).map_err(|why| stranger(&bytes, why))?;
        }
        // A second reply belongs to no command.
        if read < bytes.len() {
            return Err(no_redis());
        }
        redis::parse_redis_value(&bytes).map_err(|_| no_redis())
    };
    asked.await.map_err(|error: io::Error| failure(place, &error))
}

/// Makes an error from the first bytes of a server that does not speak RESP2.
fn stranger(bytes: &[u8], why: Malformed) -> io::Error {
    /// The first bytes of a TLS alert record.
    const TLS: &[u8] = &[0x15, 0x03];
    match bytes {
        _ if bytes.starts_with(TLS) => {
            let what = "it speaks TLS: write rediss:// in place of redis://";
            io::Error::new(io::ErrorKind::InvalidData, what)
        }
        _ if bytes.starts_with(b"HTTP/") => {
            io::Error::new(io::ErrorKind::InvalidData, "it is an HTTP server, not a Redis server")
        }
        _ => why.into(),
    }
}

fn no_redis() -> io::Error {
    Malformed::Foreign.into()
}
