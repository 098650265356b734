//! The cost of a decision in each algorithm, however many permits its rule has: time of the script on a Redis server of
//! the bench's own, bytes of a key, and decisions per second of the memory store. With `-- keys`: the memory of a
//! million keys in the memory store, and two checks: keys that are past are dropped, and the number of keys stays
//! bounded.
#![allow(clippy::print_stdout, reason = "a table is what it is for")]

#[path = "script/case.rs"]
mod case;

use case::{Call, Case, T0, is_given};
use paceway::{
    algorithm::{Algorithm, SlidingWindow, TokenBucket},
    key::StateNames,
    store::{
        Check, Entry,
        memory::{MAX_KEYS, MemoryStore},
        redis::{Epochs, RedisStore, RedisUrl},
    },
};
use std::{
    collections::BTreeMap,
    env, fs,
    io::{self, BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};
use tokio::{runtime, time::Instant};

const PATIENCE: Duration = Duration::from_secs(5);
const BATCH: i64 = 16;
/// Rounds over all cases, one case after the other, so that a disturbance of the machine affects all alike.
const ROUNDS: usize = 7;
/// Decisions of one round, on Redis and in memory.
const CALLS: i64 = 320;
const NATIVE: i64 = 50_000;
/// The number of groups that the keys of many clients are spread over.
const GROUPS: usize = 1_000;

fn main() {
    let args: Vec<String> = env::args().skip(1).collect();
    // `cargo test --all-targets` runs every bench without `--bench`: then there is nothing to measure.
    if !args.iter().any(|arg| arg == "--bench") {
        return;
    }
    if args.iter().any(|arg| arg == "keys") {
        return keys();
    }
    match Redis::start() {
        Some(server) => {
            let runtime = runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(script(&server));
        }
        None => eprintln!("redis-server is not installed: the script is skipped"),
    }
    native();
}

// === the script

/// Times of the script for one decision and for one return, µs.
#[derive(Default)]
struct Times {
    alone: Vec<f64>,
    batched: Vec<f64>,
    refused: Vec<f64>,
    back: Vec<f64>,
    back_batched: Vec<f64>,
}

async fn script(server: &Redis) {
    let store = server.store().await;
    let (mut alone, mut batched) = (Case::all(1), Case::all(BATCH));
    for case in alone.iter_mut().chain(&mut batched) {
        for (now, entries) in case.fill() {
            for entries in entries.chunks(128) {
                store.run_at(Some(now), entries).await.expect("replies");
            }
        }
    }
    let mut times: Vec<Times> = alone.iter().map(|_| Times::default()).collect();
    for _ in 0..ROUNDS {
        for ((one, many), times) in alone.iter_mut().zip(&mut batched).zip(&mut times) {
            let (back, took) = server.round(&store, one, CALLS).await;
            times.alone.push(took);
            times.back.extend(back);
            let (back, took) = server.round(&store, many, CALLS).await;
            times.batched.push(took);
            times.back_batched.extend(back);
        }
    }
    for _ in 0..ROUNDS {
        for (case, times) in alone.iter().zip(&mut times) {
            let refused = [case.refused()];
            // A fixed window has room until it ends, and a key with a short state expires soon.
            while is_given(&store.run_at(Some(case.now), &refused).await.expect("one")[0]) {}
            let calls = vec![(case.now, refused.to_vec()); CALLS as usize];
            times.refused.push(server.time(&store, &calls, false).await);
        }
    }
    println!(
        "{:<16}{:>7}{:>10}{:>10}{:>10}{:>8}{:>8}{:>8}{:>12}",
        "µs of script",
        "N",
        "alone",
        "of 16",
        "refused",
        "ratio",
        "of 16",
        "refused",
        "bytes a key"
    );
    let mut base = BTreeMap::new();
    for (case, times) in alone.iter().zip(&mut times) {
        let took =
            [&mut times.alone, &mut times.batched, &mut times.refused].map(|times| median(times));
        let base = base.entry(case.n).or_insert(took);
        let [alone, batched, refused] = took;
        let [by_alone, by_batched, by_refused] = [0, 1, 2].map(|i| took[i] / base[i]);
        let bytes = server.bytes(&case.checks[0].key);
        println!(
            "{:<16}{:>7}{alone:>10.1}{batched:>10.1}{refused:>10.1}{by_alone:>8.2}{by_batched:>8.2}{by_refused:>8.2}{bytes:>12}",
            case.algorithm().name(),
            case.n
        );
        if case.is_lease() {
            let [alone, batched] =
                [&mut times.back, &mut times.back_batched].map(|times| median(times));
            println!("{:<16}{:>7}{alone:>10.1}{batched:>10.1}", "  given back", case.n);
        }
    }
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// A Redis server that ends with the run.
struct Redis {
    child: Child,
    port: u16,
}

// === impl Redis ===

impl Redis {
    /// Starts the server, or returns `None` when redis-server is not installed.
    fn start() -> Option<Self> {
        let port = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
        let port = port.expect("a free port").port();
        let child = Command::new("redis-server")
            .args(["--bind", "127.0.0.1", "--port", &port.to_string()])
            .args(["--save", "", "--appendonly", "no"])
            .stdout(Stdio::null())
            .spawn();
        Some(Self { child: child.ok()?, port })
    }

    async fn store(&self) -> RedisStore {
        let url = RedisUrl::parse(&format!("redis://127.0.0.1:{}", self.port)).expect("a URL");
        let store = RedisStore::open(&url, &Epochs::new("paceway", metrics::Counter::noop()))
            .expect("a client");
        store.connected(PATIENCE).await.expect("a server");
        store
    }

    /// Runs a round of a case and returns the µs of each return, where the rule has one, and of a decision.
    async fn round(&self, store: &RedisStore, case: &mut Case, count: i64) -> (Vec<f64>, f64) {
        let (mut returns, mut decisions, mut left) = (Vec::new(), Vec::new(), count / case.step);
        while left > 0 {
            let (back, calls) = case.chunk(left.min(64));
            if !back.is_empty() {
                returns.push(self.time(store, &back, true).await);
            }
            decisions.push(self.time(store, &calls, true).await);
            left -= calls.len() as i64;
        }
        (returns, decisions.iter().sum::<f64>() / decisions.len() as f64)
    }

    /// Returns the µs of the script for one entry; the answers must be all granted or all refused, as `given` says.
    async fn time(&self, store: &RedisStore, calls: &[Call], given: bool) -> f64 {
        let before = self.script_time();
        for (now, entries) in calls {
            let replies = store.run_at(Some(*now), entries).await.expect("replies");
            assert!(replies.iter().all(|reply| is_given(reply) == given), "{replies:?}");
        }
        let entries: usize = calls.iter().map(|(_, entries)| entries.len()).sum();
        (self.script_time() - before) as f64 / entries as f64
    }

    /// Reads the time of the script in all calls so far, µs.
    fn script_time(&self) -> u64 {
        let stats = self.command(&["INFO", "commandstats"]).expect("statistics");
        let mut lines = stats.lines();
        let line = lines.find_map(|line| line.strip_prefix("cmdstat_fcall:"));
        let time =
            line.and_then(|line| line.split(',').find_map(|part| part.strip_prefix("usec=")));
        time.map_or(0, |time| time.parse().expect("a number"))
    }

    fn bytes(&self, key: &str) -> String {
        self.command(&["MEMORY", "USAGE", key, "SAMPLES", "0"]).expect("a number")
    }

    /// Sends one command on a connection of its own; the reply is a number or a text.
    fn command(&self, words: &[&str]) -> io::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.write_all((words.join(" ") + "\r\n").as_bytes())?;
        let (mut from, mut line) = (BufReader::new(stream), String::new());
        from.read_line(&mut line)?;
        let Some(length) = line.trim_end().strip_prefix('$') else {
            return Ok(line.trim_end().trim_start_matches(':').to_owned());
        };
        let mut text = vec![0; length.parse().map_err(io::Error::other)?];
        from.read_exact(&mut text)?;
        String::from_utf8(text).map_err(io::Error::other)
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

// === the memory store

fn native() {
    // Each case has a clock of its own, and so a store of its own.
    let mut cases: Vec<_> =
        Case::all(1).into_iter().map(|case| (case, MemoryStore::default())).collect();
    for (case, store) in &mut cases {
        for (now, entries) in case.fill() {
            store.run_at(now, &entries);
        }
    }
    let mut rates = vec![Vec::new(); cases.len()];
    for _ in 0..ROUNDS {
        for ((case, store), rates) in cases.iter_mut().zip(&mut rates) {
            let calls: Vec<_> = (0..NATIVE)
                .flat_map(|_| {
                    let (back, calls) = case.chunk(1);
                    back.into_iter().chain(calls)
                })
                .collect();
            let started = Instant::now();
            let given = calls.iter().all(|(now, call)| is_given(&store.run_at(*now, call)[0]));
            rates.push(NATIVE as f64 / started.elapsed().as_secs_f64() / 1e6);
            assert!(given);
        }
    }
    println!("\n{:<16}{:>7}{:>24}", "memory", "N", "million decisions/s");
    for ((case, _), rates) in cases.iter().zip(&mut rates) {
        println!("{:<16}{:>7}{:>24.1}", case.algorithm().name(), case.n, median(rates));
    }
}

// === many keys

fn keys() {
    let million = 1_000_000;
    for algorithm in [
        Algorithm::TokenBucket(TokenBucket::new(5, 1_000_000, 5).expect("a rule")),
        Algorithm::SlidingWindow(SlidingWindow::new(5, 1_000_000, 0).expect("a rule")),
    ] {
        let (store, before) = (MemoryStore::default(), resident());
        let ask = |now: i64, i: i64| store.run_at(now, &[stranger(algorithm, i)]);
        // Takes all five permits, each at its own instant.
        (0..5).for_each(|n| (0..million).for_each(|i| drop(ask(T0 + n, i))));
        let bytes = (resident() - before) as f64 / million as f64;
        println!("{}: {} keys in use, {bytes:.0} bytes each", algorithm.facts().name, store.keys());
        for quarter in 1..=4 {
            let used = GROUPS as i64;
            (0..million / 4)
                .for_each(|n| drop(ask(T0 + (quarter * 1_000 + n / used) * 1_000_000, n % used)));
            println!(
                "  all past, then {} decisions on others: {} keys",
                quarter * million / 4,
                store.keys()
            );
        }
        let most = (2 * million..4 * million).map(|i| {
            ask(T0 + 10_000_000_000, i);
            store.keys()
        });
        let most = most.max().expect("some");
        println!(
            "  {} strangers at once: {most} keys of {MAX_KEYS}, {} MB",
            2 * million,
            resident() >> 20
        );
        // One key more for each of the groups that the strangers' keys belong to.
        assert!(most <= MAX_KEYS + GROUPS);
    }
}

/// Makes a request of the client with the number `i`.
fn stranger(algorithm: Algorithm, i: i64) -> Entry {
    let key = |name: &str| -> Arc<str> {
        let tag = format!("route:{}", i % GROUPS as i64);
        StateNames::new("paceway", &tag, algorithm.facts().letter, name).of(None).into()
    };
    let check = Check {
        overflow: Some(key("per_client:#overflow")),
        ..Check::new(key(&format!("per_client:2001:db8::{i:x}")), algorithm)
    };
    Entry::Reserve { checks: Arc::new([check]), budget: 0, ticket: None }
}

/// Reads the resident memory of this process, bytes.
fn resident() -> u64 {
    let pages = fs::read_to_string("/proc/self/statm").expect("a Linux");
    let pages = pages.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
    pages.map_or(0, |pages| pages * 4096)
}
