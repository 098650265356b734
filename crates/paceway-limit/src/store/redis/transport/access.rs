//! Makes a connection to one server of the store: socket, TLS, login and database. Sends no command of a limiter.

use super::{
    super::{
        reason::{ConnectError, failure, refusal},
        tls::Tls,
        url::{Endpoint, Login, RedisUrl},
    },
    dial::dial,
    frames::{Frames, Malformed},
    messages::{command, words},
    stream::{RedisStream, closed},
};
use crate::store::health::ScriptedServers;
use redis::Value;
use std::{io, sync::Arc};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
};

/// The login, the database and the settings for TLS, which are the same for all servers of a store.
pub(in crate::store::redis) struct Access {
    pub(in crate::store::redis) login: Login,
    database: Option<u8>,
    tls: Option<Tls>,
    /// Whether servers are asked for functions.
    pub(super) uses_functions: bool,
    pub(super) scripted: Arc<ScriptedServers>,
}

// === impl Access ===

impl Access {
    /// Reads the certificates that the URL's settings for TLS name. Servers that keep no functions are noted in `scripted`.
    ///
    /// # Errors
    ///
    /// When a certificate or key cannot be read.
    pub(in crate::store::redis) fn new(
        url: &RedisUrl,
        scripted: Arc<ScriptedServers>,
    ) -> Result<Self, ConnectError> {
        Ok(Self {
            login: url.login.clone(),
            database: url.database,
            tls: url.tls.as_deref().map(Tls::new).transpose()?,
            uses_functions: url.uses_functions,
            scripted,
        })
    }

    pub(in crate::store::redis) fn is_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Makes a connection to the server at `endpoint` that is ready for commands.
    pub(in crate::store::redis) async fn connect(
        &self,
        endpoint: &Endpoint,
    ) -> Result<RedisStream, ConnectError> {
        let mut stream = self.open(endpoint).await?;
        log_in(&mut stream, endpoint, &self.login).await?;
        if let Some(database) = self.database {
            let database = database.to_string();
            let select = [b"SELECT".as_slice(), database.as_bytes()];
            if let Value::ServerError(error) = ask(&mut stream, endpoint, &select).await? {
                return Err(refusal(endpoint, &self.login, &words(&error)));
            }
        }
        Ok(stream)
    }

    /// Opens a socket on which nothing has been sent except a TLS handshake.
    pub(super) async fn open(&self, endpoint: &Endpoint) -> Result<RedisStream, ConnectError> {
        let failed = |error| failure(endpoint, &error);
        let (host, stream) = match endpoint {
            Endpoint::Unix(path) => {
                return Ok(Box::new(UnixStream::connect(path).await.map_err(failed)?));
            }
            Endpoint::Tcp { host, port } => (host, dial(host, *port).await.map_err(failed)?),
        };
        match &self.tls {
            Some(tls) => tls.connect(host, stream, endpoint).await,
            None => Ok(Box::new(stream)),
        }
    }
}

/// Sends `AUTH` if the URL has a password.
pub(super) async fn log_in(
    stream: &mut RedisStream,
    endpoint: &Endpoint,
    login: &Login,
) -> Result<(), ConnectError> {
    let said = match (&login.user, &login.password) {
        (Some(user), Some(password)) => {
            ask(stream, endpoint, &[b"AUTH", user.as_bytes(), password.as_bytes()]).await?
        }
        (None, Some(password)) => ask(stream, endpoint, &[b"AUTH", password.as_bytes()]).await?,
        (_, None) => return Ok(()),
    };
    match said {
        Value::Okay | Value::SimpleString(_) => Ok(()),
        Value::ServerError(error) => Err(refusal(endpoint, login, &words(&error))),
        _ => Err(failure(endpoint, &no_redis())),
    }
}

/// Sends one command and returns the reply, on a connection that carries nothing else yet; an error of the server is a
/// [`Value::ServerError`].
pub(in crate::store::redis) async fn ask(
    stream: &mut RedisStream,
    endpoint: &Endpoint,
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
    asked.await.map_err(|error: io::Error| failure(endpoint, &error))
}

/// Makes an error from the first bytes of a server that does not speak RESP2. It never quotes them: a server may repeat our
/// password.
fn stranger(bytes: &[u8], why: Malformed) -> io::Error {
    /// The first bytes of a TLS alert record, and those of servers that listen where Redis was expected. A web server that
    /// takes our command for HTTP/0.9 answers with HTML alone.
    const TLS: &[u8] = &[0x15, 0x03];
    const OTHERS: [(&[u8], &str); 5] = [
        (b"HTTP/", "an HTTP server"),
        (b"<", "an HTTP server"),
        (b"SSH-", "an SSH server"),
        (b"220", "a mail or FTP server"),
        (b"ERROR\r\n", "a memcached server"),
    ];
    let other = OTHERS.iter().find(|(start, _)| bytes.starts_with(start));
    let words = match (other, why) {
        _ if bytes.starts_with(TLS) => "it speaks TLS: write rediss:// in place of redis://".into(),
        (Some((_, what)), _) => {
            format!("it is {what}, not a Redis server; correct the host or the port in the URL")
        }
        (None, Malformed::Foreign) => format!("{why}; correct the host or the port in the URL"),
        (None, _) => return why.into(),
    };
    io::Error::new(io::ErrorKind::InvalidData, words)
}

/// The error of a server whose reply no Redis server sends to this command.
pub(super) fn no_redis() -> io::Error {
    Malformed::Foreign.into()
}
