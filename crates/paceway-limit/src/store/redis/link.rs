//! A pipelined connection to one Redis server, made again whenever it is lost. Never sends a call twice, keeps none for
//! a server that is away, and gives up a connection whose oldest call has no answer.

use super::{
    ConnectError,
    connect::{Access, Target, no_redis},
    identity::{self, Run},
    reader::Reader,
    reason,
    resp::Value,
    stream::{Incoming, Outgoing, Stream},
    url::Place,
};
use crate::{
    log::{Permit, Throttle},
    store::StoreError,
};
use parking_lot::Mutex;
use std::{
    collections::VecDeque,
    fmt, io,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};
use tokio::{
    sync::{Notify, oneshot, watch},
    task::AbortHandle,
    time::{Instant, interval, sleep, timeout},
};

/// A connection whose oldest call is this old is dead.
pub(super) const UNRESPONSIVE: Duration = Duration::from_secs(2);
pub(super) const RECONNECT: Duration = Duration::from_millis(200);
/// Calls without an answer, and bytes that the socket does not take yet. Who calls one after the other, as group commit
/// does, meets neither.
const MOST_CALLS: usize = 4096;
const MOST_UNSENT: usize = 16 * 1024 * 1024;
/// A server may refuse each connection in other words.
static REFUSED: Throttle = Throttle::new();

/// Told of each new connection where it leads to, and to which run of a server if that says so.
pub(super) type Met = Arc<dyn Fn(&Place, Option<&Run>) + Send + Sync>;

/// A connection. Dropped, it ends.
pub(super) struct Link {
    shared: Arc<Shared>,
    status: watch::Receiver<Status>,
    /// Told when it is to be made anew.
    renew: Arc<Notify>,
    task: AbortHandle,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Status {
    /// Nothing is known yet.
    New,
    Up,
    Away(ConnectError),
}

#[derive(Default)]
struct Shared(Mutex<State>);

#[derive(Default)]
struct State {
    /// None while it is away.
    to: Option<Outgoing>,
    /// What the socket has not taken yet.
    unsent: Vec<u8>,
    /// The calls that are to be answered, oldest first.
    calls: VecDeque<Call>,
    /// The server has said that it is the wrong one: what it was asked is answered, and nothing more is sent.
    leaving: bool,
    /// Of the task that reads, for when there is something unsent.
    reader: Option<Waker>,
    /// Why it is away, if it ever was.
    why: Option<Arc<str>>,
}

struct Call {
    since: Instant,
    reply: oneshot::Sender<Result<Value, StoreError>>,
}

// === impl Link ===

impl Link {
    /// Connects in the background of the current runtime.
    pub(super) fn open(access: Arc<Access>, target: Target, met: Met) -> Self {
        let shared = Arc::<Shared>::default();
        let (say, status) = watch::channel(Status::New);
        let renew = Arc::<Notify>::default();
        let kept = keep(access, target, met, shared.clone(), say, renew.clone());
        Self { shared, status, renew, task: tokio::spawn(kept).abort_handle() }
    }

    /// Whether there is a connection now.
    pub(super) fn is_connected(&self) -> bool {
        self.shared.0.lock().to.is_some()
    }

    /// Resolves when there is a connection.
    ///
    /// # Errors
    ///
    /// Why there is none, after `limit`; at once when the server refuses us.
    pub(super) async fn connected(&self, limit: Duration) -> Result<(), ConnectError> {
        let mut status = self.status.clone();
        let known = |status: &Status| {
            !matches!(status, Status::New | Status::Away(ConnectError::Unreachable(_)))
        };
        let waited = timeout(limit, status.wait_for(known)).await;
        drop(waited);
        let now = status.borrow().clone();
        match now {
            Status::Up => Ok(()),
            Status::New => Err(ConnectError::Unreachable("no answer in time".into())),
            Status::Away(why) => Err(why),
        }
    }

    /// Resolves when the first attempt to connect has ended, one way or the other.
    pub(super) async fn tried(&self) {
        // When its task is gone, so are the attempts.
        let _ = self.status.clone().wait_for(|status| *status != Status::New).await;
    }

    /// Whether it is of no use now: no connection, or a call that has no answer for so long.
    pub(super) fn ails(&self, limit: Duration) -> bool {
        let state = self.shared.0.lock();
        let oldest = state.calls.front().map(|call| call.since);
        state.to.is_none() || oldest.is_some_and(|since| since.elapsed() >= limit)
    }

    /// Ends the connection, or the attempt to make one, and makes another.
    pub(super) fn renew(&self) {
        self.renew.notify_one();
    }

    /// Ends it, and all calls on it.
    pub(super) fn give_up(&self) {
        self.task.abort();
        let why = "another server has taken its place";
        self.shared.lose(StoreError::Unreachable(why.into()), why);
    }

    /// Sends a command, and waits for its reply.
    ///
    /// # Errors
    ///
    /// [`StoreError::Away`] when it was not sent. An error that the server says is a [`Value`].
    pub(super) async fn call(&self, command: &[u8]) -> Result<Value, StoreError> {
        let answer = self.send(command, 1)?;
        Self::answer(answer).await
    }

    /// The same with another command directly before it, whose reply nobody is told.
    ///
    /// # Errors
    ///
    /// As of [`Self::call`].
    pub(super) async fn call_behind(
        &self,
        first: &[u8],
        command: &[u8],
    ) -> Result<Value, StoreError> {
        let answer = self.send(&[first, command].concat(), 2)?;
        Self::answer(answer).await
    }

    async fn answer(
        answer: oneshot::Receiver<Result<Value, StoreError>>,
    ) -> Result<Value, StoreError> {
        let gone = || StoreError::Unreachable("the connection is given up".into());
        answer.await.unwrap_or_else(|_| Err(gone()))
    }

    /// Commands of which each has a reply; that of the last one is told.
    fn send(
        &self,
        command: &[u8],
        replies: usize,
    ) -> Result<oneshot::Receiver<Result<Value, StoreError>>, StoreError> {
        let mut state = self.shared.0.lock();
        let State { to: Some(to), unsent, calls, leaving: false, .. } = &mut *state else {
            return Err(state.why.clone().map_or(StoreError::NotConnected, StoreError::Away));
        };
        if calls.len() >= MOST_CALLS || unsent.len() + command.len() > MOST_UNSENT {
            return Err(StoreError::Timeout);
        }
        let sent = match unsent.is_empty() {
            // Whatever error this is, the task that reads meets it too.
            true => to.try_write(command).unwrap_or(0),
            false => 0,
        };
        let (reply, answer) = oneshot::channel();
        let since = Instant::now();
        for _ in 1..replies {
            calls.push_back(Call { since, reply: oneshot::channel().0 });
        }
        calls.push_back(Call { since, reply });
        if sent < command.len() {
            unsent.extend_from_slice(&command[sent..]);
            let reader = state.reader.take();
            drop(state);
            reader.into_iter().for_each(Waker::wake);
        }
        Ok(answer)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("connected", &self.is_connected()).finish_non_exhaustive()
    }
}

fn silent() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "a call has no answer")
}

/// Connects, and again when the connection is lost, until the link is dropped.
async fn keep(
    access: Arc<Access>,
    target: Target,
    met: Met,
    shared: Arc<Shared>,
    say: watch::Sender<Status>,
    renew: Arc<Notify>,
) {
    loop {
        let mut pause = RECONNECT;
        let connected = tokio::select! {
            connected = timeout(UNRESPONSIVE, connect(&access, &target, &met)) => connected,
            () = renew.notified() => continue,
        };
        let silent = || ConnectError::Unreachable(format!("{target}: no answer in time"));
        let connected = connected.unwrap_or_else(|_| Err(silent()));
        let why = match connected {
            Err(why) => {
                shared.0.lock().why = Some(why.to_string().into());
                why
            }
            Ok((stream, place)) => {
                let (mut from, to) = stream.into_split();
                shared.0.lock().to = Some(to);
                say.send_replace(Status::Up);
                let since = Instant::now();
                let error = tokio::select! {
                    error = serve(&mut from, &shared) => error,
                    () = renew.notified() => io::Error::other("it answers later than its siblings"),
                    () = target.has_left(&access, &place) => {
                        io::Error::other("the Sentinels name another server")
                    }
                };
                tracing::debug!(%error, server = %place, "a connection to the store is lost");
                let text = format!("{place}: {error}");
                let told = match error.kind() {
                    io::ErrorKind::InvalidData => StoreError::Protocol,
                    _ => StoreError::Unreachable(text.clone()),
                };
                shared.lose(told, &text);
                if since.elapsed() >= RECONNECT {
                    // It worked, and may work again at once.
                    pause = Duration::ZERO;
                }
                ConnectError::Unreachable(text)
            }
        };
        let away = Status::Away(why);
        say.send_if_modified(|status| {
            let is_new = *status != away;
            // Requests say that it cannot be reached; that it can and refuses us would be told by nobody.
            if is_new
                && let Status::Away(error @ ConnectError::Refused(_)) = &away
                && let Some(Permit { suppressed }) = REFUSED.permit()
            {
                tracing::warn!(%error, suppressed, "the store");
            }
            *status = away.clone();
            is_new
        });
        sleep(pause).await;
    }
}

/// A new connection, of which is known where it leads to before the first call goes there.
async fn connect(
    access: &Access,
    target: &Target,
    met: &Met,
) -> Result<(Stream, Place), ConnectError> {
    let (mut stream, place) = target.connect(access).await?;
    let run = identity::run_of(&mut stream, &place).await?;
    met(&place, run.as_ref());
    Ok((stream, place))
}

/// Until the connection ends: why.
async fn serve(from: &mut Incoming, shared: &Shared) -> io::Error {
    let mut reader = Reader::new();
    // Not one a call: those are answered in time.
    let mut watch = interval(UNRESPONSIVE / 4);
    std::future::poll_fn(|cx| {
        if let Err(error) = shared.write(cx) {
            return Poll::Ready(error);
        }
        if let Poll::Ready(error) = reader.poll(from, cx, |value| shared.answer(value)) {
            return Poll::Ready(error);
        }
        // Behind the replies: it may be this process that stood still.
        while watch.poll_tick(cx).is_ready() {
            if shared.oldest().is_some_and(|since| since.elapsed() >= UNRESPONSIVE) {
                return Poll::Ready(silent());
            }
        }
        Poll::Pending
    })
    .await
}

// === impl Shared ===

impl Shared {
    /// The next reply is the oldest call's. An error when nobody asked for it, and behind the last one of a server that
    /// is the wrong one.
    fn answer(&self, value: Value) -> io::Result<()> {
        let mut state = self.0.lock();
        let call = state.calls.pop_front().ok_or_else(no_redis)?;
        if let Value::Error(words) = &value
            && reason::is_elsewhere(words)
        {
            state.leaving = true;
        }
        let is_over = state.leaving && state.calls.is_empty();
        drop(state);
        // Who called may have left.
        drop(call.reply.send(Ok(value)));
        if is_over { Err(io::Error::other("it is the wrong server now")) } else { Ok(()) }
    }

    fn oldest(&self) -> Option<Instant> {
        self.0.lock().calls.front().map(|call| call.since)
    }

    /// Writes what is left to write, if the socket takes it.
    fn write(&self, cx: &mut Context<'_>) -> io::Result<()> {
        let State { to, unsent, reader, .. } = &mut *self.0.lock();
        if let Some(to) = to {
            while !unsent.is_empty() {
                match to.poll_write(cx, unsent) {
                    Poll::Ready(sent) => drop(unsent.drain(..sent?)),
                    Poll::Pending => break,
                }
            }
            if let Poll::Ready(Err(error)) = to.poll_flush(cx) {
                return Err(error);
            }
        }
        if !reader.as_ref().is_some_and(|reader| reader.will_wake(cx.waker())) {
            *reader = Some(cx.waker().clone());
        }
        Ok(())
    }

    /// Whether what was sent has been done is unknown: its callers are told `error`, and those who come later `why`.
    fn lose(&self, error: StoreError, why: &str) {
        let state = State { why: Some(why.into()), ..State::default() };
        let State { calls, .. } = std::mem::replace(&mut *self.0.lock(), state);
        for call in calls {
            // Who called may have left.
            drop(call.reply.send(Err(error.clone())));
        }
    }
}
