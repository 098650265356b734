//! Processes that end with this one, however it ends, and what they cost.

use crate::machine::{Cores, has};
use std::{
    fs::{self, File},
    future, io,
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{self, Child, Command, ExitStatus, Stdio},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::Poll,
    thread,
    time::{Duration, Instant},
};

/// The longest time that a process may take to start or to end: valgrind is slow and machines are busy.
const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(10);

/// The processes that run. The end of this program keeps the lock, so that no process starts and no result is judged
/// any more.
static RUNNING: Mutex<Vec<Shared>> = Mutex::new(Vec::new());
static STARTED: AtomicUsize = AtomicUsize::new(0);

type Shared = Arc<Mutex<Child>>;

/// A child process, which is killed when this value is dropped.
#[derive(Debug)]
pub struct Process {
    child: Shared,
    /// The file with everything that the process printed, errors too.
    output: PathBuf,
}

/// CPU time of one thread of a process.
#[derive(Debug)]
pub struct ThreadTime {
    pub name: String,
    pub nanos: u64,
}

/// When a signal asks this program to end, kills its children, removes `dir` and exits.
pub fn end_with_signals(dir: PathBuf) -> io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let entered = runtime.enter();
    let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
    let mut signals = kinds.into_iter().map(signal).collect::<io::Result<Vec<_>>>()?;
    drop(entered);
    thread::spawn(move || {
        runtime.block_on(future::poll_fn(|cx| {
            let came = signals.iter_mut().any(|signal| signal.poll_recv(cx).is_ready());
            if came { Poll::Ready(()) } else { Poll::Pending }
        }));
        let running = lock(&RUNNING);
        running.iter().for_each(|child| end(child));
        let _ = fs::remove_dir_all(&dir);
        process::exit(130);
    });
    Ok(())
}

// === impl Process ===

impl Process {
    /// Starts `command` on `cores`, with its output in a file in `dir`.
    ///
    /// Only for the main thread: processes end with the thread that started them.
    pub fn start(cores: &Cores, dir: &Path, command: &[String]) -> io::Result<Self> {
        let output = dir.join(format!("output-{}", STARTED.fetch_add(1, Relaxed)));
        let mut words: Vec<&str> = Vec::new();
        if has("setpriv") {
            words.extend(["setpriv", "--pdeathsig", "KILL"]);
        }
        if let Some(list) = cores.list() {
            words.extend(["taskset", "-c", list]);
        }
        // 10,000 connections need as many descriptors.
        words.extend(["sh", "-c", "ulimit -n \"$(ulimit -Hn)\" 2>/dev/null; exec \"$@\"", "sh"]);
        words.extend(command.iter().map(String::as_str));
        let file = File::create(&output)?;
        let mut running = lock(&RUNNING);
        let child = Command::new(words[0])
            .args(&words[1..])
            .current_dir(dir)
            .stdin(Stdio::null())
            .stderr(file.try_clone()?)
            .stdout(file)
            .spawn()?;
        let child = Arc::new(Mutex::new(child));
        running.push(child.clone());
        Ok(Self { child, output })
    }

    /// Runs `command` to its end, and returns what it printed.
    pub fn run(
        cores: &Cores,
        dir: &Path,
        command: &[String],
        within: Duration,
    ) -> io::Result<String> {
        Self::start(cores, dir, command)?.finish(command, within)
    }

    /// Waits for the end of the process, and returns what it printed.
    pub fn finish(self, command: &[String], within: Duration) -> io::Result<String> {
        let started = Instant::now();
        loop {
            match self.ended()? {
                Some(status) if status.success() => return self.output(),
                Some(status) => return Err(self.failed(&format!("{status}"), command)),
                None if started.elapsed() > within => {
                    return Err(self.failed("too slow", command));
                }
                None => thread::sleep(POLL),
            }
        }
    }

    /// Waits until the process listens on all of `addresses`.
    pub fn until_open(self, addresses: &[SocketAddr], command: &[String]) -> io::Result<Self> {
        let started = Instant::now();
        for address in addresses {
            while TcpStream::connect(address).is_err() {
                if self.ended()?.is_some() || started.elapsed() > PATIENCE {
                    return Err(self.failed("does not listen", command));
                }
                thread::sleep(POLL);
            }
        }
        // The port may belong to another process, and ours fails a moment later.
        thread::sleep(POLL);
        match self.ended()? {
            Some(_) => Err(self.failed("has ended", command)),
            None => Ok(self),
        }
    }

    /// Stops the process with `SIGSTOP`; it is never continued.
    pub fn freeze(&self) -> io::Result<()> {
        let stopped = Command::new("kill").args(["-STOP", &self.id().to_string()]).status()?;
        match stopped.success() {
            true => Ok(()),
            false => Err(io::Error::other("it cannot be stopped")),
        }
    }

    pub fn id(&self) -> u32 {
        lock(&self.child).id()
    }

    pub fn output(&self) -> io::Result<String> {
        Ok(String::from_utf8_lossy(&fs::read(&self.output)?).into_owned())
    }

    fn ended(&self) -> io::Result<Option<ExitStatus>> {
        lock(&self.child).try_wait()
    }

    fn failed(&self, how: &str, command: &[String]) -> io::Error {
        let output = self.output().unwrap_or_default();
        let last: Vec<&str> = output.lines().rev().take(5).collect();
        let last: Vec<&str> = last.into_iter().rev().collect();
        io::Error::other(format!("{}: {how}\n{}", command.join(" "), last.join("\n")))
    }

    /// Reads the CPU time of each thread so far, user and system.
    pub fn threads(&self) -> io::Result<Vec<ThreadTime>> {
        let mut threads = Vec::new();
        for entry in fs::read_dir(format!("/proc/{}/task", self.id()))? {
            let path = entry?.path();
            let text = fs::read_to_string(path.join("schedstat"))?;
            let nanos = text.split(' ').next().and_then(|nanos| nanos.parse().ok());
            let nanos = nanos.ok_or_else(|| io::Error::other("schedstat is not readable"))?;
            let name = fs::read_to_string(path.join("comm"))?.trim_end().to_owned();
            threads.push(ThreadTime { name, nanos });
        }
        Ok(threads)
    }

    /// Reads the CPU time so far, user and system, in nanoseconds.
    pub fn cpu(&self) -> io::Result<u64> {
        Ok(self.threads()?.iter().map(|thread| thread.nanos).sum())
    }

    /// Reads the resident memory, in KiB.
    pub fn rss(&self) -> io::Result<f64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse().ok())
            .ok_or_else(|| io::Error::other("VmRSS is not readable"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        end(&self.child);
        lock(&RUNNING).retain(|child| !Arc::ptr_eq(child, &self.child));
    }
}

fn end(child: &Mutex<Child>) {
    let mut child = lock(child);
    let _ = child.kill();
    let _ = child.wait();
}

/// Takes the lock also after a panic in another thread, because the processes in it still have to be killed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
