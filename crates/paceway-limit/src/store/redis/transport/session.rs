//! One connection to one Redis server, on which redis-rs pairs commands with replies. Sends each command once, and ends
//! for good at the first error: which call a later reply belongs to would be a guess.

use super::{
    super::reason,
    bounded::{BoundedStream, Replies, Traffic},
    frames::Malformed,
    functions::Functions,
    messages::{command, words},
    stream::RedisStream,
};
use crate::store::StoreError;
use redis::{
    AsyncConnectionConfig, Cmd, Pipeline, RedisConnectionInfo, RedisError, Value,
    aio::MultiplexedConnection,
};
use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::{
    sync::{Notify, SetOnce},
    task::JoinSet,
    time::interval,
};

/// A connection is given up when a command has had no reply for 2 s: group commit waits for it, and a server that is
/// well answers within milliseconds.
pub(in crate::store::redis) const UNRESPONSIVE: Duration = Duration::from_secs(2);
/// Calls in progress on one connection, and the bytes of their commands. A lane of group commit makes one call at a
/// time, so it reaches neither.
const MOST_CALLS: usize = 4096;
const MOST_BYTES: usize = 16 * 1024 * 1024;
/// Room in the queue of redis-rs; a call that finds it full waits for the commands before it to be written.
const QUEUE: usize = 256;

/// A connection that takes calls until it ends.
pub(super) struct Session {
    redis: MultiplexedConnection,
    traffic: Arc<Traffic>,
    load: CallLoad,
    pub(super) functions: Functions,
    /// Set once, after which no call has a reply: the error of all calls in progress.
    ended: SetOnce<StoreError>,
    /// redis-rs has reported an error to a call.
    failed: Notify,
}

/// The calls in progress.
#[derive(Debug, Default)]
struct CallLoad {
    calls: AtomicUsize,
    bytes: AtomicUsize,
    /// The server has said that another one has its place: it gets no more calls.
    is_leaving: AtomicBool,
    /// Told when it is leaving and the last call has its reply.
    idle: Notify,
}

/// A call in progress, until it is dropped.
struct InProgress<'l> {
    load: &'l CallLoad,
    bytes: usize,
}

/// The task of redis-rs that writes commands and reads replies. Dropped, it ends, and so do the calls in progress.
pub(super) struct RedisTask(JoinSet<()>);

// === impl Session ===

impl Session {
    /// Starts on a connection that is logged in.
    ///
    /// # Errors
    ///
    /// Those of redis-rs, which sends nothing here and so has no reason to fail.
    pub(super) async fn start(
        stream: RedisStream,
        functions: Functions,
    ) -> Result<(Arc<Self>, RedisTask), RedisError> {
        let (stream, traffic) = BoundedStream::new(stream, Replies::Asked);
        // Time-outs are ours: `stalls` looks at the oldest command.
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(None)
            .set_connection_timeout(None)
            .set_pipeline_buffer_size(QUEUE);
        let (redis, driver) =
            MultiplexedConnection::new_with_config(&silent_start(), stream, config).await?;
        let mut tasks = JoinSet::new();
        tasks.spawn(driver);
        let (load, ended, failed) = (CallLoad::default(), SetOnce::new(), Notify::new());
        let session = Self { redis, traffic, load, functions, ended, failed };
        Ok((Arc::new(session), RedisTask(tasks)))
    }

    /// Whether calls are still sent.
    pub(super) fn is_open(&self) -> bool {
        !self.load.is_leaving.load(Relaxed)
    }

    /// Whether a command has had no reply for `limit`.
    pub(super) fn is_late(&self, limit: Duration) -> bool {
        self.traffic.oldest().is_some_and(|since| since.elapsed() >= limit)
    }

    /// Sends a command, with `is_asking` directly after `ASKING`, which counts for the next command alone, and waits for
    /// its reply; an error of the server is a [`Value::ServerError`].
    ///
    /// # Errors
    ///
    /// [`StoreError::Timeout`] when too much is in progress: the command was not sent. Otherwise why the connection
    /// ended: whether the server has executed the command is unknown.
    pub(super) async fn call(&self, sent: &Cmd, is_asking: bool) -> Result<Value, StoreError> {
        let _in_progress = self.load.enter(&self.traffic, length(sent))?;
        let mut redis = self.redis.clone();
        if !is_asking {
            let said = redis.send_packed_command(sent).await;
            return self.said(said).await;
        }
        let mut both = Pipeline::with_capacity(2);
        both.add_command(command(&[b"ASKING"])).add_command(sent.clone());
        let said = redis.send_packed_commands(&both, 0, 2).await;
        self.said(said.map(|mut replies| replies.pop().unwrap_or(Value::Nil))).await
    }

    async fn said(&self, said: Result<Value, RedisError>) -> Result<Value, StoreError> {
        match said {
            Ok(Value::ServerError(error)) => {
                if reason::is_elsewhere(&words(&error)) {
                    self.load.is_leaving.store(true, Relaxed);
                }
                Ok(Value::ServerError(error))
            }
            Ok(said) => Ok(said),
            Err(_) => {
                self.failed.notify_one();
                Err(self.ended.wait().await.clone())
            }
        }
    }

    /// Ends all calls in progress with `error`. The first reason counts.
    pub(super) fn end(&self, error: StoreError) {
        // An error when it has ended before.
        drop(self.ended.set(error));
    }

    /// Resolves when the connection has ended or is to be ended: why.
    pub(super) async fn ends(&self, driver: &mut RedisTask) -> io::Error {
        // redis-rs ends without an error of the stream only when it cannot read a reply.
        let why = || self.traffic.error().unwrap_or_else(|| Malformed::Foreign.into());
        tokio::select! {
            _ = driver.0.join_next() => why(),
            () = self.failed.notified() => why(),
            () = self.load.idle.notified() => io::Error::other("it is the wrong server now"),
            () = self.stalls() => io::Error::new(io::ErrorKind::TimedOut, "a call has no answer"),
        }
    }

    /// Resolves when a command has had no reply for [`UNRESPONSIVE`].
    async fn stalls(&self) {
        // One timer for the connection and not one for each call: calls are answered in time.
        let mut watch = interval(UNRESPONSIVE / 4);
        loop {
            watch.tick().await;
            if self.is_late(UNRESPONSIVE) {
                // It may be this process that was stopped: first the replies that have come are read.
                tokio::task::yield_now().await;
                tokio::task::yield_now().await;
                if self.is_late(UNRESPONSIVE) {
                    return;
                }
            }
            // The caller that saw the server leave may have left itself.
            if !self.is_open() && self.load.calls.load(Relaxed) == 0 {
                self.load.idle.notify_one();
            }
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.end(given_up());
    }
}

// === impl CallLoad ===

impl CallLoad {
    /// # Errors
    ///
    /// [`StoreError::Timeout`] when there is no room.
    fn enter(&self, traffic: &Traffic, bytes: usize) -> Result<InProgress<'_>, StoreError> {
        // Commands whose callers have left still wait for their replies.
        let calls = self.calls.load(Relaxed).max(traffic.unanswered());
        if calls >= MOST_CALLS || self.bytes.load(Relaxed) + bytes > MOST_BYTES {
            return Err(StoreError::Timeout);
        }
        self.calls.fetch_add(1, Relaxed);
        self.bytes.fetch_add(bytes, Relaxed);
        Ok(InProgress { load: self, bytes })
    }
}

impl Drop for InProgress<'_> {
    fn drop(&mut self) {
        let Self { load, bytes } = self;
        load.bytes.fetch_sub(*bytes, Relaxed);
        if load.calls.fetch_sub(1, Relaxed) == 1 && load.is_leaving.load(Relaxed) {
            load.idle.notify_one();
        }
    }
}

/// The error of calls on a connection that is dropped with its store.
pub(super) fn given_up() -> StoreError {
    StoreError::Unreachable("the connection is given up".into())
}

/// The settings with which redis-rs sends nothing of its own: the login has been done, and `CLIENT SETINFO` is an error
/// in a server older than Redis 7.2.
pub(in crate::store::redis) fn silent_start() -> RedisConnectionInfo {
    RedisConnectionInfo::default().set_skip_set_lib_name()
}

/// The bytes of a command's words.
fn length(command: &Cmd) -> usize {
    command
        .args_iter()
        .map(|word| if let redis::Arg::Simple(word) = word { word.len() } else { 0 })
        .sum()
}
