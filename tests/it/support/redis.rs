//! A redis-server of the test's own, and a proxy that can hold its answers back.

use super::{PATIENCE, free_port};
use std::{
    io::{BufRead, BufReader, Write},
    net::TcpStream,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU16, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net,
    sync::watch,
    task::JoinHandle,
    time::Instant,
};

/// A server without persistence on a port of its own. `REDIS_SERVER` names another binary (Valkey, other
/// versions).
#[derive(Debug)]
pub(crate) struct Redis {
    child: Child,
    port: u16,
    args: Vec<String>,
    /// Its clock is that of the file `clock` in its directory.
    has_clock: bool,
    dir: tempfile::TempDir,
}

/// A reply of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Said {
    Line(String),
    Error(String),
    Number(i64),
    Bytes(Option<Vec<u8>>),
    List(Vec<Said>),
}

// === impl Redis ===

impl Redis {
    pub(crate) fn start() -> Self {
        Self::with(&[])
    }

    /// Starts a server with a subscriber for all calls to places, for tests without gateways that subscribe.
    pub(crate) fn that_is_heard() -> Self {
        let redis = Self::start();
        let mut ear = TcpStream::connect(("127.0.0.1", redis.port)).expect("a connection");
        ear.write_all(b"PSUBSCRIBE paceway:call:*\r\n").expect("a subscription");
        let mut ear = BufReader::new(ear);
        ear.read_line(&mut String::new()).expect("its answer");
        thread::spawn(move || std::io::copy(&mut ear, &mut std::io::sink()));
        redis
    }

    /// With more arguments on the command line.
    pub(crate) fn with(args: &[&str]) -> Self {
        Self::launched(args, false)
    }

    /// With a clock that can be [set](Self::set_clock).
    pub(crate) fn with_a_clock() -> Self {
        Self::launched(&[], true)
    }

    /// Shifts its clock by seconds, as in `-3600`.
    pub(crate) fn set_clock(&self, shift: &str) {
        let new = self.dir.path().join("new");
        std::fs::write(&new, shift).expect("a file");
        std::fs::rename(new, self.dir.path().join("clock")).expect("a clock");
    }

    fn launched(args: &[&str], has_clock: bool) -> Self {
        let args: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
        // Another process may take the port between the look and the start.
        for _ in 0..10 {
            let dir = tempfile::tempdir().expect("a directory");
            let port = free_port();
            let child = launch(port, &args, has_clock, &dir);
            let mut redis = Self { child, port, args: args.clone(), has_clock, dir };
            if redis.comes_up() {
                return redis;
            }
        }
        panic!("redis-server does not start; run it by hand to see why");
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/0", self.port)
    }

    /// One command on a connection of its own.
    pub(crate) fn command(&self, words: &[&str]) -> Said {
        self.try_command(words).unwrap_or_else(|e| panic!("{words:?}: {e}"))
    }

    /// One command, whose answer comes later, or never.
    pub(crate) fn begin(&self, words: &[&str]) {
        let (port, words) = (self.port, words.iter().map(|word| (*word).to_owned()));
        let words: Vec<String> = words.collect();
        thread::spawn(move || {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            drop(command(port, &words));
        });
    }

    pub(crate) fn try_command(&self, words: &[&str]) -> std::io::Result<Said> {
        command(self.port, words)
    }

    pub(crate) fn bytes(&self, key: &str) -> Vec<u8> {
        match self.command(&["GET", key]) {
            Said::Bytes(Some(bytes)) => bytes,
            said => panic!("{key} holds no bytes but {said:?}"),
        }
    }

    /// All keys of states: without the epoch beside them, and without the set of gateways that live.
    pub(crate) fn keys(&self) -> Vec<String> {
        let Said::List(keys) = self.command(&["KEYS", "*"]) else { panic!("no list of keys") };
        let name = |key| match key {
            Said::Bytes(Some(bytes)) => String::from_utf8(bytes).expect("a readable key"),
            said => panic!("{said:?} is no key"),
        };
        let is_other = |key: &String| key.ends_with(":marker") || key.ends_with(":{gateways}");
        keys.into_iter().map(name).filter(|key| !is_other(key)).collect()
    }

    /// How often a command was called.
    pub(crate) fn calls_of(&self, command: &str) -> u64 {
        let Said::Bytes(Some(stats)) = self.command(&["INFO", "commandstats"]) else {
            panic!("no statistics")
        };
        let stats = String::from_utf8(stats).expect("text");
        let start = format!("cmdstat_{command}:calls=");
        let calls = stats.lines().find_map(|line| line.strip_prefix(&start)?.split(',').next());
        calls.map_or(0, |calls| calls.parse().expect("a number"))
    }

    /// It neither reads nor answers, and its connections stay.
    pub(crate) fn freeze(&self) {
        signal(self.child.id(), "STOP");
    }

    pub(crate) fn thaw(&self) {
        signal(self.child.id(), "CONT");
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("its end");
        self.child.wait().expect("its end");
    }

    /// Starts the server again, without data, on the port that it had.
    pub(crate) fn start_again(&mut self) {
        self.child = launch(self.port, &self.args, self.has_clock, &self.dir);
        assert!(self.comes_up(), "redis-server does not come back on port {}", self.port);
    }

    /// False when it ended instead, as it does when its port is taken.
    fn comes_up(&mut self) -> bool {
        let started = Instant::now();
        while started.elapsed() < PATIENCE {
            if self.child.try_wait().expect("its state").is_some() {
                return false;
            }
            // One with a password answers too, with an error. One with another pid is not ours.
            if let Ok(Said::Line(_) | Said::Error(_)) = self.try_command(&["PING"]) {
                return self.child.try_wait().expect("its state").is_none();
            }
            thread::sleep(Duration::from_millis(5));
        }
        panic!("redis-server neither answers nor ends");
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        // Also of one that is frozen.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends one command to the server on a port.
pub(super) fn command(port: u16, words: &[&str]) -> std::io::Result<Said> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut command = format!("*{}\r\n", words.len());
    for word in words {
        command += &format!("${}\r\n{word}\r\n", word.len());
    }
    stream.write_all(command.as_bytes())?;
    read(&mut BufReader::new(stream))
}

fn launch(port: u16, args: &[String], has_clock: bool, dir: &tempfile::TempDir) -> Child {
    let bin = binary();
    let mut command = Command::new(&bin);
    if has_clock {
        let (file, library) = (dir.path().join("clock"), dir.path().join("clock.so"));
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/clock.c");
        let mut build = Command::new("cc");
        build.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(source);
        assert!(build.status().expect("cc, which links Rust").success());
        std::fs::write(&file, "0").expect("a clock");
        command.env("LD_PRELOAD", library).env("CLOCK", file);
    }
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""]);
    command.args(["--appendonly", "no"]).args(args);
    command.current_dir(dir.path()).stdin(Stdio::null()).stdout(Stdio::null());
    let child = command.stderr(Stdio::null()).spawn();
    child.unwrap_or_else(|e| panic!("cannot start {bin}: {e}; `make test` installs it"))
}

pub(super) fn binary() -> String {
    std::env::var("REDIS_SERVER").unwrap_or_else(|_| "redis-server".into())
}

pub(super) fn signal(pid: u32, name: &str) {
    let sent = Command::new("kill").args([format!("-{name}"), pid.to_string()]).status();
    assert!(sent.expect("kill").success(), "no SIG{name} to {pid}");
}

fn read(from: &mut impl BufRead) -> std::io::Result<Said> {
    let mut line = String::new();
    from.read_line(&mut line)?;
    if line.is_empty() {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    }
    let (kind, rest) = line.trim_end().split_at(1);
    let number = || rest.parse::<i64>().expect("a number");
    Ok(match kind {
        "+" => Said::Line(rest.to_owned()),
        "-" => Said::Error(rest.to_owned()),
        ":" => Said::Number(number()),
        "$" => match usize::try_from(number()) {
            Err(_) => Said::Bytes(None),
            Ok(length) => {
                let mut bytes = vec![0; length + 2];
                from.read_exact(&mut bytes)?;
                bytes.truncate(length);
                Said::Bytes(Some(bytes))
            }
        },
        "*" => Said::List((0..number()).map(|_| read(from)).collect::<Result<_, _>>()?),
        kind => panic!("{kind} starts no reply"),
    })
}

/// A TCP proxy before a Redis: it can hold the answers back, and knows when something was asked.
#[derive(Debug)]
pub(crate) struct Chaos {
    port: u16,
    /// The port of the server that new connections lead to.
    to: Arc<AtomicU16>,
    hold: watch::Sender<bool>,
    delay: Arc<AtomicU64>,
    asked: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

// === impl Chaos ===

impl Chaos {
    pub(crate) async fn before(redis: &Redis) -> Self {
        let listener = net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("its address").port();
        let (hold, held) = watch::channel(false);
        let asked = Arc::<AtomicUsize>::default();
        let to = Arc::new(AtomicU16::new(redis.port));
        let delay = Arc::<AtomicU64>::default();
        let late = Late { held, delay: delay.clone() };
        let task = tokio::spawn(accept(listener, to.clone(), late, asked.clone()));
        Self { port, to, hold, delay, asked, task }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/0", self.port)
    }

    /// Leads new connections to another server, as after a failover.
    pub(crate) fn lead_to(&self, redis: &Redis) {
        self.to.store(redis.port, Relaxed);
    }

    /// From now on no answer of the server comes through to the gateway.
    pub(crate) fn hold(&self) {
        self.hold.send_replace(true);
    }

    /// The answers that were held come through, in their order.
    pub(crate) fn release(&self) {
        self.hold.send_replace(false);
    }

    /// From now on each answer comes through this much later.
    pub(crate) fn delay(&self, span: Duration) {
        let millis = span.as_millis().try_into().expect("a short time");
        self.delay.store(millis, Relaxed);
    }

    /// The number of bytes that gateways have sent to the server so far.
    pub(crate) fn asked(&self) -> usize {
        self.asked.load(Relaxed)
    }
}

impl Drop for Chaos {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The setting of a link: when answers come through.
#[derive(Debug, Clone)]
struct Late {
    held: watch::Receiver<bool>,
    /// ms.
    delay: Arc<AtomicU64>,
}

async fn accept(
    listener: net::TcpListener,
    to: Arc<AtomicU16>,
    late: Late,
    asked: Arc<AtomicUsize>,
) {
    let mut connections = tokio::task::JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        let to = to.load(Relaxed);
        let Ok(server) = net::TcpStream::connect(("127.0.0.1", to)).await else { continue };
        let (mut from_client, mut to_client) = client.into_split();
        let (mut from_server, mut to_server) = server.into_split();
        let asked = asked.clone();
        connections.spawn(async move {
            let mut bytes = vec![0; 65_536];
            while let Ok(count @ 1..) = from_client.read(&mut bytes).await {
                asked.fetch_add(count, Relaxed);
                if to_server.write_all(&bytes[..count]).await.is_err() {
                    return;
                }
            }
        });
        let Late { mut held, delay } = late.clone();
        connections.spawn(async move {
            let mut bytes = vec![0; 65_536];
            while let Ok(count @ 1..) = from_server.read(&mut bytes).await {
                tokio::time::sleep(Duration::from_millis(delay.load(Relaxed))).await;
                let released = held.wait_for(|held| !held).await.is_ok();
                if !released || to_client.write_all(&bytes[..count]).await.is_err() {
                    return;
                }
            }
        });
    }
}
