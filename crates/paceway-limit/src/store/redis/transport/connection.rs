//! A pipelined connection to one Redis server, made again whenever it is lost. Never sends a call twice and keeps none for
//! a server that is away: its callers get an error at once.

use super::{
    super::{
        identity::{self, ServerRun},
        reason::ConnectError,
        url::Endpoint,
    },
    access::{Access, ask},
    destination::Destination,
    functions::{Functions, Sent},
    session::{RedisTask, Session, UNRESPONSIVE, given_up},
};
use crate::{
    log::{Permit, Throttle},
    store::StoreError,
};
use parking_lot::Mutex;
use redis::{Cmd, Value};
use std::{fmt, io, sync::Arc, time::Duration};
use tokio::{
    sync::{Notify, watch},
    task::AbortHandle,
    time::{Instant, sleep, timeout},
};

/// The pause between two attempts to connect.
pub(in crate::store::redis) const RECONNECT: Duration = Duration::from_millis(200);
/// A server may refuse each connection in other words.
static REFUSED: Throttle = Throttle::new();

/// Called for each new connection with the server that it leads to, and with the run of that server if it says one.
pub(in crate::store::redis) type Met = Arc<dyn Fn(&Endpoint, Option<&ServerRun>) + Send + Sync>;

/// A connection that is kept up until it is dropped.
pub(in crate::store::redis) struct RedisConnection {
    current: Arc<Current>,
    status: watch::Receiver<ConnectionStatus>,
    /// Notified when the connection is to be replaced.
    renew: Arc<Notify>,
    task: AbortHandle,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum ConnectionStatus {
    /// The first attempt has not ended.
    New,
    Up,
    Away(ConnectError),
}

/// The connection as it is now.
#[derive(Default)]
struct Current(Mutex<CurrentSession>);

#[derive(Default)]
struct CurrentSession {
    /// `None` while the server is away.
    session: Option<Arc<Session>>,
    /// Why the server is away, or was the last time.
    why: Option<Arc<str>>,
}

// === impl RedisConnection ===

impl RedisConnection {
    /// Connects in the background of the current runtime.
    pub(in crate::store::redis) fn open(
        access: Arc<Access>,
        destination: Destination,
        met: Met,
    ) -> Self {
        let current = Arc::<Current>::default();
        let (say, status) = watch::channel(ConnectionStatus::New);
        let renew = Arc::<Notify>::default();
        let kept = keep(access, destination, met, current.clone(), say, renew.clone());
        Self { current, status, renew, task: tokio::spawn(kept).abort_handle() }
    }

    /// Whether the server is connected to now.
    pub(in crate::store::redis) fn is_connected(&self) -> bool {
        self.current.0.lock().session.is_some()
    }

    /// Resolves when the server is connected to.
    ///
    /// # Errors
    ///
    /// Why it is not, after `limit`; at once when the server refuses us.
    pub(in crate::store::redis) async fn connected(
        &self,
        limit: Duration,
    ) -> Result<(), ConnectError> {
        let mut status = self.status.clone();
        let known = |status: &ConnectionStatus| {
            !matches!(
                status,
                ConnectionStatus::New | ConnectionStatus::Away(ConnectError::Unreachable(_))
            )
        };
        let waited = timeout(limit, status.wait_for(known)).await;
        drop(waited);
        let now = status.borrow().clone();
        match now {
            ConnectionStatus::Up => Ok(()),
            ConnectionStatus::New => Err(ConnectError::Unreachable("no answer in time".into())),
            ConnectionStatus::Away(why) => Err(why),
        }
    }

    /// Resolves when the first attempt to connect has ended, one way or the other.
    pub(in crate::store::redis) async fn tried(&self) {
        // When its task is gone, so are the attempts.
        let _ = self.status.clone().wait_for(|status| *status != ConnectionStatus::New).await;
    }

    /// Whether the server may be lost: it is not connected to, or a command has had no reply for `limit`.
    pub(in crate::store::redis) fn ails(&self, limit: Duration) -> bool {
        self.current.0.lock().session.as_ref().is_none_or(|session| session.is_late(limit))
    }

    /// Ends the connection, or the attempt to make one, and makes another.
    pub(in crate::store::redis) fn renew(&self) {
        self.renew.notify_one();
    }

    /// Ends the connection and all calls on it for good, because another server has its place.
    pub(in crate::store::redis) fn give_up(&self) {
        let why = "another server has taken its place";
        self.current.lose(StoreError::Unreachable(why.into()), why);
        self.task.abort();
    }

    /// Sends a command once and waits for its reply; an error of the server is a [`Value::ServerError`].
    ///
    /// # Errors
    ///
    /// As of [`Self::send`].
    pub(in crate::store::redis) async fn call(&self, command: &Cmd) -> Result<Value, StoreError> {
        self.session()?.call(command, false).await
    }

    /// Has a command or the decision script executed once, and waits for its reply. With `is_asking` also for keys of a
    /// slot that is still moving here.
    ///
    /// # Errors
    ///
    /// [`StoreError::Away`], [`StoreError::NotConnected`] or [`StoreError::Timeout`] when the command was not sent. After
    /// any other error it is unknown whether the server has executed it.
    pub(in crate::store::redis) async fn send(
        &self,
        sent: Sent<'_>,
        is_asking: bool,
    ) -> Result<Value, StoreError> {
        let session = self.session()?;
        match sent {
            Sent::Command(command) => session.call(command, is_asking).await,
            Sent::Script(write) => session.run(write, is_asking).await,
        }
    }

    fn session(&self) -> Result<Arc<Session>, StoreError> {
        let current = self.current.0.lock();
        match &current.session {
            Some(session) if session.is_open() => Ok(session.clone()),
            _ => Err(current.why.clone().map_or(StoreError::NotConnected, StoreError::Away)),
        }
    }
}

impl Drop for RedisConnection {
    fn drop(&mut self) {
        self.current.lose(given_up(), "it is given up");
        self.task.abort();
    }
}

impl fmt::Debug for RedisConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisConnection")
            .field("connected", &self.is_connected())
            .finish_non_exhaustive()
    }
}

/// Connects, and again whenever the connection is lost, until the [`RedisConnection`] is dropped.
async fn keep(
    access: Arc<Access>,
    destination: Destination,
    met: Met,
    current: Arc<Current>,
    say: watch::Sender<ConnectionStatus>,
    renew: Arc<Notify>,
) {
    loop {
        let mut pause = RECONNECT;
        let connected = tokio::select! {
            connected = timeout(UNRESPONSIVE, connect(&access, &destination, &met)) => connected,
            () = renew.notified() => continue,
        };
        let silent = || ConnectError::Unreachable(format!("{destination}: no answer in time"));
        let why = match connected.unwrap_or_else(|_| Err(silent())) {
            Err(why) => {
                current.0.lock().why = Some(why.to_string().into());
                why
            }
            Ok((session, mut driver, endpoint)) => {
                current.0.lock().session = Some(session.clone());
                say.send_replace(ConnectionStatus::Up);
                let since = Instant::now();
                let error = tokio::select! {
                    error = session.ends(&mut driver) => error,
                    () = renew.notified() => io::Error::other("it answers later than its siblings"),
                    () = destination.has_left(&access, &endpoint) => {
                        io::Error::other("the Sentinels name another server")
                    }
                };
                tracing::debug!(%error, server = %endpoint, "a connection to the store is lost");
                let text = format!("{endpoint}: {error}");
                let told = match error.kind() {
                    io::ErrorKind::InvalidData => StoreError::Protocol,
                    _ => StoreError::Unreachable(text.clone()),
                };
                current.lose(told, &text);
                if since.elapsed() >= RECONNECT {
                    // It worked, and may work again at once.
                    pause = Duration::ZERO;
                }
                ConnectError::Unreachable(text)
            }
        };
        report(&say, why);
        sleep(pause).await;
    }
}

/// Notes that the server is away. A refusal is logged: requests report that a server cannot be reached, but not that it
/// can and refuses us.
fn report(say: &watch::Sender<ConnectionStatus>, why: ConnectError) {
    let away = ConnectionStatus::Away(why);
    say.send_if_modified(|status| {
        let is_new = *status != away;
        if is_new
            && let ConnectionStatus::Away(error @ ConnectError::Refused(_)) = &away
            && let Some(Permit { suppressed }) = REFUSED.permit()
        {
            tracing::warn!(%error, suppressed, "the store");
        }
        *status = away;
        is_new
    });
}

/// Makes a connection, and asks which run of which server it leads to, and whether that keeps functions, before the first
/// call is sent on it.
async fn connect(
    access: &Access,
    destination: &Destination,
    met: &Met,
) -> Result<(Arc<Session>, RedisTask, Endpoint), ConnectError> {
    let (mut stream, endpoint) = destination.connect(access).await?;
    let run = identity::read(&ask(&mut stream, &endpoint, &[identity::INFO]).await?);
    met(&endpoint, run.as_ref());
    let functions = Functions::find(access, &mut stream, &endpoint).await?;
    let started = Session::start(stream, functions).await;
    let failed = |error| ConnectError::Unreachable(format!("{endpoint}: {error}"));
    let (session, driver) = started.map_err(failed)?;
    Ok((session, driver, endpoint))
}

// === impl Current ===

impl Current {
    /// Whether the commands in progress have been executed is unknown: their callers get `error`, and later calls `why`.
    fn lose(&self, error: StoreError, why: &str) {
        let lost = CurrentSession { session: None, why: Some(why.into()) };
        let before = std::mem::replace(&mut *self.0.lock(), lost);
        if let Some(session) = before.session {
            session.end(error);
        }
    }
}
