//! A pipelined connection to one Redis server, made again whenever it is lost. Never sends a call twice, keeps none for
//! a server that is away, and gives up a connection whose oldest call has no answer.

use super::{
    ConnectError, Markers, identity,
    resp::{self, Parsed, Value},
};
use crate::store::StoreError;
use parking_lot::Mutex;
use std::{
    collections::VecDeque,
    fmt, io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf},
    net::{
        TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{oneshot, watch},
    task::AbortHandle,
    time::{Instant, interval, sleep, timeout},
};

/// A connection whose oldest call is this old is dead.
pub(super) const UNRESPONSIVE: Duration = Duration::from_secs(2);
pub(super) const RECONNECT: Duration = Duration::from_millis(200);
/// Calls without an answer, and bytes that the socket does not take yet. Who calls one after the other, as group commit
/// does, meets neither.
const MOST_CALLS: usize = 1024;
const MOST_UNSENT: usize = 16 * 1024 * 1024;
/// Of the buffer for replies; a larger reply makes it grow while it lasts.
const BUFFER: usize = 16 * 1024;

/// Where a server is, and who asks.
#[derive(Clone)]
pub(super) struct Address {
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) user: Option<String>,
    pub(super) password: Option<String>,
    pub(super) database: Option<u8>,
}

/// A connection. Dropped, it ends.
pub(super) struct Link {
    shared: Arc<Shared>,
    status: watch::Receiver<Status>,
    task: AbortHandle,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Status {
    Up,
    Away(ConnectError),
}

#[derive(Default)]
struct Shared(Mutex<State>);

#[derive(Default)]
struct State {
    /// None while it is away.
    to: Option<OwnedWriteHalf>,
    /// What the socket has not taken yet.
    unsent: Vec<u8>,
    /// The calls that are to be answered, oldest first.
    calls: VecDeque<Call>,
    /// Of the task that reads, for when there is something unsent.
    reader: Option<Waker>,
}

struct Call {
    since: Instant,
    reply: oneshot::Sender<Result<Value, StoreError>>,
}

// === impl Link ===

impl Link {
    /// Connects in the background of the current runtime.
    pub(super) fn open(address: Address, markers: Arc<Markers>) -> Self {
        let shared = Arc::<Shared>::default();
        let away = Status::Away(ConnectError::Unreachable("no answer in time".into()));
        let (say, status) = watch::channel(away);
        let task = tokio::spawn(keep(address, markers, shared.clone(), say)).abort_handle();
        Self { shared, status, task }
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
        let known = |status: &Status| !matches!(status, Status::Away(ConnectError::Unreachable(_)));
        let waited = timeout(limit, status.wait_for(known)).await;
        drop(waited);
        let now = status.borrow().clone();
        match now {
            Status::Up => Ok(()),
            Status::Away(why) => Err(why),
        }
    }

    /// Sends a command, and waits for its reply.
    ///
    /// # Errors
    ///
    /// [`StoreError::NotConnected`] when it was not sent. An error that the server says is a [`Value`].
    pub(super) async fn call(&self, command: &[u8]) -> Result<Value, StoreError> {
        let answer = self.send(command)?;
        let gone = || StoreError::Unreachable("the connection is given up".into());
        answer.await.unwrap_or_else(|_| Err(gone()))
    }

    fn send(
        &self,
        command: &[u8],
    ) -> Result<oneshot::Receiver<Result<Value, StoreError>>, StoreError> {
        let mut state = self.shared.0.lock();
        let State { to: Some(to), unsent, calls, .. } = &mut *state else {
            return Err(StoreError::NotConnected);
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
        calls.push_back(Call { since: Instant::now(), reply });
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

// === impl Address ===

impl Address {
    /// A new connection, ready for commands.
    async fn connect(&self) -> Result<TcpStream, ConnectError> {
        let mut stream = TcpStream::connect((&*self.host, self.port)).await?;
        stream.set_nodelay(true)?;
        let mut commands = Vec::new();
        match (&self.user, &self.password) {
            (Some(user), Some(password)) => {
                commands.push(resp::command(&[b"AUTH", user.as_bytes(), password.as_bytes()]));
            }
            (None, Some(password)) => {
                commands.push(resp::command(&[b"AUTH", password.as_bytes()]));
            }
            (_, None) => {}
        }
        if let Some(database) = self.database {
            commands.push(resp::command(&[b"SELECT", database.to_string().as_bytes()]));
        }
        for command in commands {
            stream.write_all(&command).await?;
            match read_one(&mut stream).await? {
                Value::Error(error) => return Err(ConnectError::Refused(error)),
                Value::Line(_) => {}
                _ => return Err(no_redis().into()),
            }
        }
        Ok(stream)
    }
}

/// The one reply that is on its way.
pub(super) async fn read_one(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Value> {
    let mut bytes = Vec::new();
    loop {
        match resp::parse(&bytes).map_err(|_| no_redis())? {
            Parsed::Reply(value, length) if length == bytes.len() => return Ok(value),
            Parsed::Reply(..) => return Err(no_redis()),
            Parsed::Needs(_) if stream.read_buf(&mut bytes).await? == 0 => return Err(closed()),
            Parsed::Needs(_) => {}
        }
    }
}

impl From<io::Error> for ConnectError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::InvalidData => Self::Refused(error.to_string()),
            _ => Self::Unreachable(error.to_string()),
        }
    }
}

fn no_redis() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "it does not speak as a Redis server does")
}

fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection")
}

fn silent() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "a call has no answer")
}

/// Connects, and again when the connection is lost, until the link is dropped.
async fn keep(
    address: Address,
    markers: Arc<Markers>,
    shared: Arc<Shared>,
    say: watch::Sender<Status>,
) {
    loop {
        let connected = timeout(UNRESPONSIVE, met(&address, &markers)).await;
        let connected = connected.unwrap_or_else(|_| Err(silent().into()));
        let why = match connected {
            Err(why) => why,
            Ok(stream) => {
                let (mut from, to) = stream.into_split();
                shared.0.lock().to = Some(to);
                say.send_replace(Status::Up);
                let error = serve(&mut from, &shared).await;
                tracing::debug!(%error, "a connection to the store is lost");
                shared.lose(&error);
                ConnectError::Unreachable(error.to_string())
            }
        };
        let away = Status::Away(why);
        say.send_if_modified(|status| {
            let is_new = *status != away;
            // Requests say that it cannot be reached; that it can and refuses us would be told by nobody.
            if is_new && let Status::Away(error @ ConnectError::Refused(_)) = &away {
                tracing::warn!(%error, "the store");
            }
            *status = away.clone();
            is_new
        });
        sleep(RECONNECT).await;
    }
}

/// A new connection, and the markers know where it leads to: before the first call goes there.
async fn met(address: &Address, markers: &Markers) -> Result<TcpStream, ConnectError> {
    let mut stream = address.connect().await?;
    if let Some(run) = identity::run_of(&mut stream).await? {
        // One server has all lanes.
        markers.meet("", &run, |_| true);
    }
    Ok(stream)
}

/// Until the connection ends: why.
async fn serve(from: &mut OwnedReadHalf, shared: &Shared) -> io::Error {
    let mut reader = Reader { buffer: vec![0; BUFFER], filled: 0, needs: 1 };
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

/// Bytes that came, and are no whole reply yet.
struct Reader {
    buffer: Vec<u8>,
    filled: usize,
    /// With fewer bytes there is no reply.
    needs: usize,
}

// === impl Reader ===

impl Reader {
    /// Hands on all replies that are there; resolves when there will be no more.
    fn poll(
        &mut self,
        from: &mut OwnedReadHalf,
        cx: &mut Context<'_>,
        mut hand_on: impl FnMut(Value) -> bool,
    ) -> Poll<io::Error> {
        loop {
            let mut buffer = ReadBuf::new(&mut self.buffer[self.filled..]);
            match Pin::new(&mut *from).poll_read(cx, &mut buffer) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(error)) => return Poll::Ready(error),
                Poll::Ready(Ok(())) if buffer.filled().is_empty() => return Poll::Ready(closed()),
                Poll::Ready(Ok(())) => self.filled += buffer.filled().len(),
            }
            if let Err(error) = self.hand_on(&mut hand_on) {
                return Poll::Ready(error);
            }
        }
    }

    fn hand_on(&mut self, hand_on: &mut impl FnMut(Value) -> bool) -> io::Result<()> {
        let mut done = 0;
        while self.filled - done >= self.needs {
            match resp::parse(&self.buffer[done..self.filled]).map_err(|_| no_redis())? {
                Parsed::Needs(length) => self.needs = length,
                Parsed::Reply(value, length) => {
                    (done, self.needs) = (done + length, 1);
                    // Nobody asked for that.
                    if !hand_on(value) {
                        return Err(no_redis());
                    }
                }
            }
        }
        self.buffer.copy_within(done..self.filled, 0);
        self.filled -= done;
        let room = if self.needs > BUFFER / 2 { self.needs + BUFFER } else { BUFFER };
        if self.buffer.len() != room {
            self.buffer.resize(room, 0);
            self.buffer.shrink_to(room);
        }
        Ok(())
    }
}

// === impl Shared ===

impl Shared {
    /// The next reply is the oldest call's; false when there is none.
    fn answer(&self, value: Value) -> bool {
        let call = self.0.lock().calls.pop_front();
        // Who called may have left.
        call.map(|call| call.reply.send(Ok(value))).is_some()
    }

    fn oldest(&self) -> Option<Instant> {
        self.0.lock().calls.front().map(|call| call.since)
    }

    /// Writes what is left to write, if the socket takes it.
    fn write(&self, cx: &mut Context<'_>) -> io::Result<()> {
        let State { to, unsent, reader, .. } = &mut *self.0.lock();
        if let Some(to) = to {
            while !unsent.is_empty() {
                match Pin::new(&mut *to).poll_write(cx, unsent) {
                    Poll::Ready(sent) => drop(unsent.drain(..sent?)),
                    Poll::Pending => break,
                }
            }
        }
        if !reader.as_ref().is_some_and(|reader| reader.will_wake(cx.waker())) {
            *reader = Some(cx.waker().clone());
        }
        Ok(())
    }

    /// Whether what was sent has been done is unknown.
    fn lose(&self, error: &io::Error) {
        let State { calls, .. } = std::mem::take(&mut *self.0.lock());
        for call in calls {
            let error = match error.kind() {
                io::ErrorKind::InvalidData => StoreError::Protocol,
                _ => StoreError::Unreachable(error.to_string()),
            };
            // Who called may have left.
            drop(call.reply.send(Err(error)));
        }
    }
}
