//! A new connection to a server of the store: socket, TLS, login, database; by way of Sentinels where those say which
//! server it is. Sends no command of a limiter.

use super::{
    ConnectError,
    dial::dial,
    reason::{failure, refusal},
    resp::{self, Parsed, Value},
    stream::Stream,
    url::{Login, Place, RedisUrl, Servers},
};
use crate::tls::client::{Chain, ClientTls, Connector};
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

/// For one Sentinel, before the next is asked.
const SENTINEL: Duration = Duration::from_millis(500);
/// How often Sentinels are asked whether a master still is one.
const WATCH: Duration = Duration::from_secs(1);

/// How all servers of a store are connected to.
pub(super) struct Access {
    pub(super) login: Login,
    database: Option<u8>,
    tls: Option<Tls>,
}

struct Tls {
    settings: ClientTls,
    connector: Connector,
}

/// Which server a connection goes to.
#[derive(Clone)]
pub(super) enum Target {
    Server(Place),
    Master(Arc<Sentinels>),
}

/// Who knows which server is the master.
pub(super) struct Sentinels {
    places: Vec<Place>,
    master: String,
    login: Login,
    /// Who knew last time.
    first: AtomicUsize,
}

// === impl Access ===

impl Access {
    /// # Errors
    ///
    /// Certificates that cannot be used.
    pub(super) fn new(url: &RedisUrl) -> Result<Self, ConnectError> {
        let tls = url.tls.as_ref().map(|settings| {
            let connector = Connector::new(settings, &[], &mut None);
            let connector = connector.map_err(|e| ConnectError::Refused(Chain(&e).to_string()))?;
            Ok(Tls { settings: (**settings).clone(), connector })
        });
        Ok(Self { login: url.login.clone(), database: url.database, tls: tls.transpose()? })
    }

    pub(super) fn is_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// A connection that is ready for commands.
    pub(super) async fn connect(&self, place: &Place) -> Result<Stream, ConnectError> {
        let mut stream = self.open(place).await?;
        log_in(&mut stream, place, &self.login).await?;
        if let Some(database) = self.database {
            let database = database.to_string();
            let select = [b"SELECT".as_slice(), database.as_bytes()];
            if let Value::Error(words) = ask(&mut stream, place, &select).await? {
                return Err(refusal(place, &self.login, &words));
            }
        }
        Ok(stream)
    }

    /// A connection on which nothing has been said.
    async fn open(&self, place: &Place) -> Result<Stream, ConnectError> {
        let failed = |error| failure(place, &error);
        let (host, stream) = match place {
            Place::Unix(path) => {
                return UnixStream::connect(path).await.map(Stream::Unix).map_err(failed);
            }
            Place::Tcp { host, port } => (host, dial(host, *port).await.map_err(failed)?),
        };
        let Some(Tls { settings, connector }) = &self.tls else { return Ok(Stream::Tcp(stream)) };
        let name = settings.name_of(host);
        let name = name.map_err(|error| ConnectError::Refused(Chain(&error).to_string()))?;
        let connector = connector.current("the store");
        let stream = connector.connect(name, stream).await.map_err(failed)?;
        Ok(Stream::Tls(Box::new(stream)))
    }
}

// === impl Target ===

impl Target {
    /// Of a URL that names one server; `None` for a Cluster, which has many.
    pub(super) fn of(url: &RedisUrl) -> Option<Self> {
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

    /// A connection that is ready for commands, and whom it leads to.
    pub(super) async fn connect(&self, access: &Access) -> Result<(Stream, Place), ConnectError> {
        match self {
            Self::Server(place) => Ok((access.connect(place).await?, place.clone())),
            Self::Master(sentinels) => sentinels.connect(access).await,
        }
    }

    /// Resolves when a connection to `place` does not lead to the right server any more, as far as that can be known
    /// from others.
    pub(super) async fn has_left(&self, access: &Access, place: &Place) {
        match self {
            Self::Server(_) => pending().await,
            Self::Master(sentinels) => loop {
                sleep(WATCH).await;
                // While none of them answers, nothing is known.
                if sentinels.named(access).await.is_ok_and(|named| named != *place) {
                    return;
                }
            },
        }
    }
}

impl fmt::Display for Target {
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
    /// Asks one after the other, until one names a server that says itself that it is the master.
    async fn connect(&self, access: &Access) -> Result<(Stream, Place), ConnectError> {
        let mut why = None;
        let first = self.first.load(Relaxed);
        for i in 0..self.places.len() {
            let i = (first + i) % self.places.len();
            // Where this takes too long, the next attempt begins behind it.
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
                // What a Sentinel refuses says more than that another is away.
                Err(error @ ConnectError::Refused(_)) => why = Some(error),
                Err(error) => why = why.or(Some(error)),
            }
        }
        Err(why.unwrap_or(ConnectError::Refused("it names no Sentinel".into())))
    }

    /// Who is the master, says the first that answers.
    async fn named(&self, access: &Access) -> Result<Place, ConnectError> {
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

    /// Who is the master, says the Sentinel at `place`.
    async fn ask(&self, access: &Access, place: &Place) -> Result<Place, ConnectError> {
        let mut stream = access.open(place).await?;
        log_in(&mut stream, place, &self.login).await?;
        let words = [b"SENTINEL".as_slice(), b"get-master-addr-by-name", self.master.as_bytes()];
        let said = ask(&mut stream, place, &words).await?;
        match &said {
            Value::List(parts) => match &parts[..] {
                [Value::Bytes(host), Value::Bytes(port)] => {
                    let port = str::from_utf8(port).ok().and_then(|port| port.parse().ok());
                    let host = str::from_utf8(host).ok();
                    let told = host.zip(port).and_then(|(host, port)| Place::at(host, port, place));
                    told.ok_or_else(|| failure(place, &no_redis()))
                }
                _ => Err(failure(place, &no_redis())),
            },
            Value::Nothing => Err(ConnectError::Refused(format!(
                "the Sentinel at {place} knows no master `{}`: write the name that its `sentinel monitor` has",
                self.master
            ))),
            Value::Error(words) if words.contains("unknown command") => {
                Err(ConnectError::Refused(format!(
                    "{place} is no Sentinel: name Sentinels, whose port is 26379 as a rule, or write redis://"
                )))
            }
            Value::Error(words) => Err(refusal(place, &self.login, words)),
            _ => Err(failure(place, &no_redis())),
        }
    }
}

/// A connection to the server at `place`, which must be a master in its own eyes: a Sentinel may know it later than it.
async fn master(access: &Access, place: Place) -> Result<(Stream, Place), ConnectError> {
    let mut stream = access.connect(&place).await?;
    match ask(&mut stream, &place, &[b"ROLE"]).await? {
        Value::List(parts) => match parts.first() {
            Some(Value::Bytes(role)) if role == b"master" => Ok((stream, place)),
            _ => Err(ConnectError::Unreachable(format!(
                "{place}, which the Sentinels name, is not the master"
            ))),
        },
        Value::Error(words) => Err(refusal(&place, &access.login, &words)),
        _ => Err(failure(&place, &no_redis())),
    }
}

async fn log_in(stream: &mut Stream, place: &Place, login: &Login) -> Result<(), ConnectError> {
    let said = match (&login.user, &login.password) {
        (Some(user), Some(password)) => {
            ask(stream, place, &[b"AUTH", user.as_bytes(), password.as_bytes()]).await?
        }
        (None, Some(password)) => ask(stream, place, &[b"AUTH", password.as_bytes()]).await?,
        (_, None) => return Ok(()),
    };
    match said {
        Value::Line(_) => Ok(()),
        Value::Error(words) => Err(refusal(place, login, &words)),
        _ => Err(failure(place, &no_redis())),
    }
}

/// One command, and what is said to it, on a connection that nobody else uses.
pub(super) async fn ask(
    stream: &mut Stream,
    place: &Place,
    words: &[&[u8]],
) -> Result<Value, ConnectError> {
    let asked = async {
        stream.write_all(&resp::command(words)).await?;
        stream.flush().await?;
        let mut bytes = Vec::new();
        loop {
            match resp::parse(&bytes).map_err(|_| stranger(&bytes))? {
                Parsed::Reply(value, length) if length == bytes.len() => return Ok(value),
                Parsed::Reply(..) => return Err(no_redis()),
                Parsed::Needs(_) if stream.read_buf(&mut bytes).await? == 0 => return Err(closed()),
                Parsed::Needs(_) => {}
            }
        }
    };
    asked.await.map_err(|error: io::Error| failure(place, &error))
}

pub(super) fn no_redis() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "it does not speak as a Redis server does")
}

/// Who speaks like this.
fn stranger(bytes: &[u8]) -> io::Error {
    /// How an alert begins.
    const TLS: &[u8] = &[0x15, 0x03];
    match bytes {
        _ if bytes.starts_with(TLS) => {
            let what = "it speaks TLS: write rediss:// in place of redis://";
            io::Error::new(io::ErrorKind::InvalidData, what)
        }
        _ if bytes.starts_with(b"HTTP/") => {
            io::Error::new(io::ErrorKind::InvalidData, "it is an HTTP server, not a Redis server")
        }
        _ => no_redis(),
    }
}

pub(super) fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection")
}
