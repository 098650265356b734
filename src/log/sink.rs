//! Writes lines to stdout and stderr. A separate thread writes each stream, so that a full pipe with a stalled reader stops
//! no worker. The lines that wait for the reader are bounded in bytes; a line that does not fit is dropped and counted.

use memchr::memchr_iter;
use parking_lot::{Condvar, Mutex};
use std::{
    fs::File,
    io::{self, ErrorKind, Write},
    mem,
    os::fd::AsFd,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};
use tokio::time::Instant;

/// Bytes of buffer that a stream keeps after a write. A larger buffer returns its memory to the system.
const KEPT: usize = 64 << 10;
/// Pause before the thread writes again to a stream that was full. Only a stream that another process has made non-blocking
/// reports this; any other blocks the thread.
const AGAIN: Duration = Duration::from_millis(10);

/// One of the two streams of the process to which lines are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogStream {
    /// Carries access lines, one for each request, as `access_log` says.
    Stdout,
    /// Carries events, such as a store that fails, at the levels that `PACEWAY_LOG` names.
    Stderr,
}

/// Takes lines for one stream without ever waiting for its reader.
#[derive(Debug)]
pub struct Sink(Arc<StreamQueue>);

#[derive(Debug)]
struct StreamQueue {
    state: Mutex<QueuedLines>,
    /// Notified when a line is added while the thread is idle.
    filled: Condvar,
    /// Notified when every line is written.
    emptied: Condvar,
    /// Bytes of lines that may wait for the thread. Lines above this are dropped.
    most: usize,
    /// Lines since the start that were not written, because they did not fit or the stream failed.
    dropped: AtomicU64,
}

#[derive(Debug, Default)]
struct QueuedLines {
    /// Whole lines that the thread has not taken yet, at most `most` bytes.
    lines: Vec<u8>,
    /// Lines dropped since the last log line that reported how many.
    unreported: u64,
    is_writing: bool,
}

static SINKS: [OnceLock<Sink>; 2] = [const { OnceLock::new() }; 2];

/// Waits until both streams have taken all lines, but no longer than `limit`, because a reader may have stalled for good.
pub fn flush(limit: Duration) {
    let until = Instant::now() + limit;
    for sink in SINKS.iter().filter_map(OnceLock::get) {
        sink.flush(until);
    }
}

// === impl LogStream ===

impl LogStream {
    /// Both streams, in the order of their file descriptors.
    pub const ALL: [Self; 2] = [Self::Stdout, Self::Stderr];

    /// The value of the label `stream` in `paceway_log_lines_dropped_total`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }

    /// Returns the sink of this stream. The first call starts its thread.
    ///
    /// # Errors
    ///
    /// The system's error, if it gives no file descriptor or no thread.
    pub fn sink(self) -> io::Result<&'static Sink> {
        let cell = &SINKS[self as usize];
        match cell.get() {
            Some(sink) => Ok(sink),
            None => {
                let sink = self.start()?;
                Ok(cell.get_or_init(|| sink))
            }
        }
    }

    /// Returns how many lines of this stream were dropped since the start.
    pub fn dropped(self) -> u64 {
        SINKS[self as usize].get().map_or(0, |sink| sink.0.dropped.load(Relaxed))
    }

    /// Writes a message. If the stream has a sink, the message follows the lines in it, and the call waits no longer than
    /// `limit` for the reader. Otherwise the call writes to the stream itself.
    pub fn say(self, message: &str, limit: Duration) {
        let line = format!("{message}\n");
        if let Some(sink) = SINKS[self as usize].get() {
            sink.put(line.as_bytes());
            return flush(limit);
        }
        // An error means that the stream is closed, so that it cannot be reported either.
        let _ = match self {
            Self::Stdout => io::stdout().write_all(line.as_bytes()),
            Self::Stderr => io::stderr().write_all(line.as_bytes()),
        };
    }

    /// Bytes of lines that may wait for the thread; the thread holds as many again while it writes them. 5,000 requests a
    /// second make about 1 MB/s of access lines, so stdout has room for 4 s. Events are few, so stderr needs less.
    fn most(self) -> usize {
        match self {
            Self::Stdout => 4 << 20,
            Self::Stderr => 512 << 10,
        }
    }

    fn start(self) -> io::Result<Sink> {
        // A descriptor of its own: with `io::stderr` this thread would hold its lock while the reader stalls, and block every
        // other thread that writes there.
        let file = match self {
            Self::Stdout => io::stdout().as_fd().try_clone_to_owned(),
            Self::Stderr => io::stderr().as_fd().try_clone_to_owned(),
        };
        Sink::start(self.name(), self.most(), File::from(file?))
    }
}

// === impl Sink ===

impl Sink {
    fn start(
        name: &'static str,
        most: usize,
        mut to: impl Write + Send + 'static,
    ) -> io::Result<Self> {
        let shared = Arc::new(StreamQueue {
            state: Mutex::default(),
            filled: Condvar::new(),
            emptied: Condvar::new(),
            most,
            dropped: AtomicU64::new(0),
        });
        let own = shared.clone();
        let run = move || own.run(name, &mut to);
        thread::Builder::new().name(format!("log-{name}")).spawn(run)?;
        Ok(Self(shared))
    }

    /// Adds a whole line, or drops and counts it if it would exceed the bound of waiting bytes.
    fn put(&self, line: &[u8]) {
        let mut state = self.0.state.lock();
        if state.lines.len() + line.len() > self.0.most {
            state.unreported += 1;
            self.0.dropped.fetch_add(1, Relaxed);
            return;
        }
        let is_idle = state.lines.is_empty() && !state.is_writing;
        state.lines.extend_from_slice(line);
        drop(state);
        if is_idle {
            self.0.filled.notify_one();
        }
    }

    fn flush(&self, until: Instant) {
        let mut state = self.0.state.lock();
        let left = until.saturating_duration_since(Instant::now());
        let is_unwritten = |state: &mut QueuedLines| state.is_writing || !state.lines.is_empty();
        self.0.emptied.wait_while_for(&mut state, is_unwritten, left);
    }
}

/// Each call of `write` takes one whole line, as the formatters of `tracing_subscriber` write it.
impl Write for &Sink {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.put(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

// === impl StreamQueue ===

impl StreamQueue {
    /// Writes lines as they are added, until the process ends.
    fn run(&self, stream: &'static str, to: &mut impl Write) {
        let mut batch = Vec::new();
        loop {
            let mut state = self.state.lock();
            state.is_writing = false;
            if state.lines.is_empty() {
                self.emptied.notify_all();
            }
            self.filled.wait_while(&mut state, |state| state.lines.is_empty());
            mem::swap(&mut state.lines, &mut batch);
            let lines = mem::take(&mut state.unreported);
            state.is_writing = true;
            drop(state);
            if lines > 0 {
                // The buffer is empty now, so this line fits into it, and it appears where the others are missing.
                tracing::warn!(stream, lines, "log lines were dropped: their reader is too slow");
            }
            let unwritten = write_all(to, &batch);
            if !unwritten.is_empty() {
                // A closed pipe or a full disk is only counted, because a log line about it could not be written either.
                let lines = memchr_iter(b'\n', unwritten).count();
                self.dropped.fetch_add(u64::try_from(lines).unwrap_or(u64::MAX), Relaxed);
            }
            batch.clear();
            batch.shrink_to(KEPT);
        }
    }
}

/// Writes `bytes` until the stream fails, and returns the bytes that it did not take.
fn write_all<'b>(to: &mut impl Write, mut bytes: &'b [u8]) -> &'b [u8] {
    while !bytes.is_empty() {
        match to.write(bytes) {
            Ok(0) => break,
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => thread::sleep(AGAIN),
            Err(_) => break,
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    const LONG: Duration = Duration::from_secs(30);

    /// A stream whose reader takes one write for each message in `gate`, and none before.
    struct Stalled {
        gate: mpsc::Receiver<()>,
        written: Arc<Mutex<Vec<u8>>>,
    }

    impl Write for Stalled {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.gate.recv().map_err(|_| ErrorKind::BrokenPipe)?;
            self.written.lock().extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_beyond_the_bound_are_dropped_whole_and_counted() {
        let (open, gate) = mpsc::channel();
        let written = Arc::<Mutex<Vec<u8>>>::default();
        let stalled = Stalled { gate, written: written.clone() };
        let sink = Sink::start("test", 10, stalled).expect("a thread");
        sink.put(b"first\n");
        // The thread takes the first line and is stuck with it.
        while !sink.0.state.lock().is_writing {
            thread::yield_now();
        }
        for line in [b"aaaa\n", b"bbbb\n", b"cccc\n"] {
            sink.put(line);
        }
        sink.flush(Instant::now() + Duration::from_millis(1));
        assert_eq!(sink.0.dropped.load(Relaxed), 1);
        open.send(()).expect("a thread");
        open.send(()).expect("a thread");
        sink.flush(Instant::now() + LONG);
        assert_eq!(*written.lock(), b"first\naaaa\nbbbb\n");
    }

    #[test]
    fn lines_that_cannot_be_written_are_counted_and_hold_nothing_up() {
        let (open, gate) = mpsc::channel();
        drop(open);
        let sink = Sink::start("test", 100, Stalled { gate, written: Arc::default() });
        let sink = sink.expect("a thread");
        sink.put(b"one\ntwo\n");
        sink.flush(Instant::now() + LONG);
        assert_eq!(sink.0.dropped.load(Relaxed), 2);
    }
}
