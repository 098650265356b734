//! Decisions of gateways on one Redis, and what they cost it. `make bench` runs it for its part `fleet`; it runs alone, too.
//!
//! `fleet ADDRESS lone LIMITER COUNT` makes COUNT decisions, one after the other: each is a call of its own. LIMITER is
//! `token_bucket`, or a `sliding_window` of 10,000 in 250 ms, which is kept in pieces, or a `short_window` of 10 in 250 µs.
//! No request waits: one after the other does not reach 40,000/s.
//! `fleet ADDRESS gateways COUNT RATE SECONDS` makes decisions in COUNT gateways, each with a connection, group commit and
//! blocks of its own. All of them ask one token bucket of 50,000/s, and together they ask RATE times a second if they get
//! answers in time. Prints the number of decisions, the µs of CPU of the Redis server for each, the decisions a call, and
//! the decisions per second.
#![allow(clippy::print_stdout, reason = "the figures are what it is for")]

use metrics::Counter;
use paceway::{
    algorithm::{Algorithm, SlidingWindow, TokenBucket},
    store::{
        Check, Checks, Entry, Store,
        batch::{Batched, StoreMetrics},
        redis::{Epochs, RedisStore, RedisUrl},
    },
};
use std::{
    env,
    error::Error,
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::{
    runtime::{self, Runtime},
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval_at, sleep},
};

const USAGE: &str =
    "usage: fleet ADDRESS lone LIMITER COUNT | fleet ADDRESS gateways COUNT SECONDS";
const SECOND: i64 = 1_000_000;
/// The rate of the hot limiter.
const RATE: i64 = 50_000;
/// The requests of a gateway that can be under way at one time.
const CALLERS: usize = 8;
/// The longest wait of a request, µs.
const BUDGET: i64 = 2 * SECOND;
const PATIENCE: Duration = Duration::from_secs(30);
/// How long the gateways ask before they are measured, until all of them have loaded the script.
const WARM: Duration = Duration::from_secs(1);

/// The gateways that connect at one time: a Redis server accepts 511 connections at once.
const CONNECTING: usize = 64;

type Failure = Box<dyn Error + Send + Sync>;

fn main() -> Result<(), Failure> {
    let args: Vec<String> = env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let (decisions, spent) = match args.as_slice() {
        [address, "lone", limiter, count] => {
            // Another thread would be another wake-up between two decisions.
            let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(lone(address.parse()?, limiter, count.parse()?))?
        }
        [address, "gateways", count, rate, seconds] => {
            let time = Duration::from_secs(seconds.parse()?);
            let (count, rate) = (count.parse()?, rate.parse()?);
            Runtime::new()?.block_on(gateways(address.parse()?, count, rate, time))?
        }
        _ => return Err(USAGE.into()),
    };
    let (Spent { cpu, calls, at }, count) = (spent, decisions as f64);
    let (cpu, calls, rate) = (cpu / count, count / calls, count / at.as_secs_f64());
    println!("{decisions} {cpu:.2} {calls:.2} {rate:.0}");
    Ok(())
}

/// The CPU time of the server, its calls of a script, and the time, all since a start.
#[derive(Debug, Clone, Copy)]
struct Spent {
    /// User and system time, µs.
    cpu: f64,
    calls: f64,
    at: Duration,
}

/// Makes decisions one after the other, all of which are admitted.
async fn lone(address: SocketAddr, limiter: &str, count: u64) -> Result<(u64, Spent), Failure> {
    let rule = match limiter {
        "token_bucket" => TokenBucket::new(RATE, SECOND, RATE).map(Algorithm::TokenBucket),
        "sliding_window" => SlidingWindow::new(10_000, SECOND / 4, 0).map(Algorithm::SlidingWindow),
        "short_window" => SlidingWindow::new(10, 250, 0).map(Algorithm::SlidingWindow),
        _ => return Err(USAGE.into()),
    };
    let store = connect(address).await?;
    let ask = [Entry::Reserve {
        checks: Arc::new([check(limiter, rule)?]),
        budget: BUDGET,
        ticket: None,
    }];
    for _ in 0..count / 10 {
        store.run_at(None, &ask).await?;
    }
    let (before, started) = (Spent::read(address)?, Instant::now());
    for _ in 0..count {
        store.run_at(None, &ask).await?;
    }
    Ok((count, Spent::read(address)?.since(before, started)))
}

/// Lets `count` gateways ask for `time`, each as often as the others.
async fn gateways(
    address: SocketAddr,
    count: usize,
    rate: usize,
    time: Duration,
) -> Result<(u64, Spent), Failure> {
    let mut connecting = JoinSet::new();
    let mut stores = Vec::with_capacity(count);
    while stores.len() + connecting.len() < count || !connecting.is_empty() {
        if stores.len() + connecting.len() < count && connecting.len() < CONNECTING {
            connecting.spawn(connect(address));
        } else if let Some(store) = connecting.join_next().await {
            stores.push(Batched::new(Arc::new(store??), PATIENCE, StoreMetrics::noop()));
        }
    }
    let decisions = Arc::new(AtomicU64::new(0));
    let rule = TokenBucket::new(RATE, SECOND, RATE).map(Algorithm::TokenBucket);
    let checks: Checks = Arc::new([check("hot", rule)?]);
    let places = count * CALLERS;
    let every = Duration::from_secs_f64(places as f64 / rate as f64);
    let mut callers = JoinSet::new();
    for place in 0..places {
        let (store, checks, decisions) =
            (stores[place % count].clone(), checks.clone(), decisions.clone());
        // Spread over the time between two requests, as the requests of many clients are.
        let begin = Instant::now() + every.mul_f64(place as f64 / places as f64);
        callers.spawn(async move {
            let mut turns = interval_at(begin, every);
            turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                turns.tick().await;
                store.reserve(&checks, BUDGET, None).get().await?;
                decisions.fetch_add(1, Relaxed);
            }
        });
    }
    let measured = async {
        sleep(WARM).await;
        let (first, before) = (decisions.load(Relaxed), Spent::read(address)?);
        let started = Instant::now();
        sleep(time).await;
        let spent = Spent::read(address)?.since(before, started);
        Ok((decisions.load(Relaxed) - first, spent))
    };
    tokio::select! {
        measured = measured => measured,
        Some(ended) = callers.join_next() => ended?,
    }
}

fn check(name: &str, rule: Option<Algorithm>) -> Result<Check, Failure> {
    Ok(Check::new(format!("{{bench}}:{name}"), rule.ok_or("not a rule")?).with_blocks())
}

async fn connect(address: SocketAddr) -> Result<RedisStore, Failure> {
    let url = RedisUrl::parse(&format!("redis://{address}"))?;
    let store = RedisStore::open(&url, &Epochs::new("bench", Counter::noop()))?;
    store.connected(PATIENCE).await?;
    Ok(store)
}

// === impl Spent ===

impl Spent {
    fn read(address: SocketAddr) -> Result<Self, Failure> {
        let (cpu, calls) = (info(address, "cpu")?, info(address, "commandstats")?);
        let user = field(&cpu, "used_cpu_user:")?;
        let cpu = (user + field(&cpu, "used_cpu_sys:")?) * 1e6;
        // Each connection begins with one that decides nothing.
        let calls = field(&calls, "cmdstat_fcall:calls=").unwrap_or_default();
        Ok(Self { cpu, calls, at: Duration::ZERO })
    }

    fn since(self, before: Self, started: Instant) -> Self {
        let (cpu, calls) = (self.cpu - before.cpu, self.calls - before.calls);
        Self { cpu, calls, at: started.elapsed() }
    }
}

/// Reads a section of the server's `INFO`.
fn info(address: SocketAddr, section: &str) -> Result<String, Failure> {
    let mut stream = TcpStream::connect(address)?;
    write!(stream, "INFO {section}\r\n")?;
    let (mut from, mut line) = (BufReader::new(stream), String::new());
    from.read_line(&mut line)?;
    let mut text = vec![0; line.trim_start_matches('$').trim_end().parse()?];
    from.read_exact(&mut text)?;
    Ok(String::from_utf8(text)?)
}

/// Finds the number after `name` in a section of `INFO`.
fn field(section: &str, name: &str) -> Result<f64, Failure> {
    let value =
        section.lines().find_map(|line| line.strip_prefix(name)).ok_or("INFO without a field")?;
    let value = value.split(',').next().unwrap_or_default();
    Ok(value.parse()?)
}
