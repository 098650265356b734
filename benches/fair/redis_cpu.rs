//! The CPU time of Redis for a decision while a thousand requests wait, with and without turns: one call after the other, on
//! virtual time, so that the server is busy with nothing else.

use super::gateway::{PATIENCE, Process, free_port};
use paceway::{
    algorithm::{
        Algorithm, TokenBucket,
        concurrency::Ticket,
        fair::{Place, Priority, queue::AHEAD},
    },
    store::{
        Check, Checks, Decision, Entry, Reply, Turn,
        redis::{Epochs, RedisStore, RedisUrl},
    },
};
use std::{
    collections::BTreeMap,
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    process::{Command, Stdio},
};

/// The requests that wait all the time, the slots per second, and the requests of a round.
const WAITING: i64 = 1_000;
const RATE: i64 = 200;
const REQUESTS: i64 = 500;
const ROUNDS: usize = 7;
const T0: i64 = 1_700_000_000_000_000;
const HOUR: i64 = 3_600_000_000;
/// The tenants, with their weights. Each has as many requests, so their order changes all the time.
const TENANTS: [(&str, i64); 3] = [("a", 4), ("b", 1), ("c", 1)];

/// The costs of the two ways.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Costs {
    pub(crate) without: Cost,
    pub(crate) with: Cost,
}

/// The CPU time of one decision, and of one request with all of its decisions, µs.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Cost {
    pub(crate) decision: f64,
    /// The part of it that `INFO commandstats` counts for the script.
    pub(crate) script: f64,
    pub(crate) request: f64,
    /// Decisions of one request.
    pub(crate) decisions: f64,
    /// Commands that the script executes for one decision.
    pub(crate) commands: f64,
}

/// The work of the server so far.
#[derive(Debug, Clone, Copy)]
struct Work {
    /// CPU time of the main thread, µs.
    cpu: f64,
    /// Time in the script, µs.
    script: f64,
    calls: f64,
    /// Calls of all commands, those of the script included.
    commands: f64,
}

/// Requests that come and wait at one limiter.
struct Line {
    name: &'static str,
    with_turns: bool,
    now: i64,
    asked: i64,
    /// The requests that take turns, by their slots.
    slots: BTreeMap<i64, (Checks, Place)>,
}

/// Measures both ways by turns.
pub(crate) async fn costs() -> io::Result<Costs> {
    let address = free_port()?;
    let _server = Command::new("redis-server")
        .args(["--bind", "127.0.0.1", "--port", &address.port().to_string()])
        .args(["--save", "", "--appendonly", "no"])
        .stdout(Stdio::null())
        .spawn()
        .map(Process)?;
    let url = RedisUrl::parse(&format!("redis://{address}")).map_err(io::Error::other)?;
    let redis = RedisStore::open(&url, &Epochs::new("bench", metrics::Counter::noop()));
    let redis = redis.map_err(io::Error::other)?;
    redis.connected(PATIENCE).await.map_err(io::Error::other)?;
    let mut lines = [Line::new("plain", false), Line::new("fair", true)];
    for line in &mut lines {
        for _ in 0..=WAITING {
            line.ask(&redis).await?;
        }
    }
    let mut measured = [const { Vec::new() }; 2];
    for _ in 0..ROUNDS {
        for (line, costs) in lines.iter_mut().zip(&mut measured) {
            let before = Work::of(address)?;
            for _ in 0..REQUESTS {
                line.step(&redis).await?;
            }
            costs.push(Cost::between(before, Work::of(address)?));
        }
    }
    let median = |mut costs: Vec<Cost>| {
        costs.sort_by(|a, b| a.decision.total_cmp(&b.decision));
        costs[costs.len() / 2]
    };
    let [without, with] = measured.map(median);
    Ok(Costs { without, with })
}

// === impl Line ===

impl Line {
    fn new(name: &'static str, with_turns: bool) -> Self {
        Self { name, with_turns, now: T0, asked: 0, slots: BTreeMap::new() }
    }

    /// A slot passes: a request comes, and the one whose slot is next is sent.
    async fn step(&mut self, redis: &RedisStore) -> io::Result<()> {
        self.now += 1_000_000 / RATE;
        self.ask(redis).await?;
        while let Some(next) = self.slots.first_entry()
            && *next.key() - AHEAD <= self.now
        {
            let (at, (checks, place)) = (*next.key(), next.get().clone());
            let entry = Entry::Confirm { checks: checks.clone(), place };
            let decision = decide(redis, self.now, entry).await?;
            let own = self.slots.remove(&at).ok_or_else(unexpected)?;
            if Place::among(&decision.parts).is_some() {
                // It has the slot of another request now, whose turn it is.
                let other = self.slots.insert(self.now + decision.wait, own);
                self.slots.insert(at, other.ok_or_else(unexpected)?);
            }
        }
        Ok(())
    }

    async fn ask(&mut self, redis: &RedisStore) -> io::Result<()> {
        self.asked += 1;
        let rule = TokenBucket::new(RATE, 1_000_000, 1).map(Algorithm::TokenBucket);
        let (tenant, weight) = TENANTS[self.asked as usize % TENANTS.len()];
        let check = Check::new(self.name, rule.ok_or_else(unexpected)?);
        let turn = Turn::new(tenant, weight, Priority::Normal);
        let check = if self.with_turns { check.with_turn(turn) } else { check };
        let (checks, budget) = (Checks::from([check]), HOUR);
        let ticket = Ticket { gateway: 1, number: self.asked, deadline: 0 };
        let ticket = self.with_turns.then_some(ticket);
        let entry = Entry::Reserve { checks: checks.clone(), budget, ticket };
        let decision = decide(redis, self.now, entry).await?;
        if let Some((_, place)) = Place::among(&decision.parts) {
            self.slots.insert(self.now + decision.wait, (checks, place));
        }
        Ok(())
    }
}

async fn decide(redis: &RedisStore, now: i64, entry: Entry) -> io::Result<Decision> {
    let replies = redis.run_at(Some(now), &[entry]).await.map_err(io::Error::other)?;
    match replies.into_iter().next() {
        Some(Reply::Decision(decision)) if decision.admitted => Ok(decision),
        _ => Err(unexpected()),
    }
}

fn unexpected() -> io::Error {
    io::Error::other("an unexpected answer of the script")
}

// === impl Cost ===

impl Cost {
    fn between(before: Work, after: Work) -> Self {
        let calls = after.calls - before.calls;
        let cpu = after.cpu - before.cpu;
        Self {
            decision: cpu / calls,
            script: (after.script - before.script) / calls,
            request: cpu / REQUESTS as f64,
            decisions: calls / REQUESTS as f64,
            commands: (after.commands - before.commands - calls) / calls,
        }
    }
}

// === impl Work ===

impl Work {
    fn of(server: SocketAddr) -> io::Result<Self> {
        let mut stream = TcpStream::connect(server)?;
        stream.write_all(b"INFO cpu\r\nINFO commandstats\r\nQUIT\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        let number = |line: &str, name: &str| -> Option<f64> {
            line.split_once(name)?.1.split([',', '\r']).next()?.parse().ok()
        };
        let cpu = ["used_cpu_sys_main_thread:", "used_cpu_user_main_thread:"];
        let cpu: f64 = cpu.iter().filter_map(|name| number(&text, name)).sum();
        let line = text.lines().find(|line| line.starts_with("cmdstat_fcall:")).unwrap_or("");
        let lines = text.lines().filter(|line| line.starts_with("cmdstat_"));
        Ok(Self {
            cpu: cpu * 1e6,
            script: number(line, "usec=").unwrap_or_default(),
            calls: number(line, "calls=").unwrap_or_default(),
            commands: lines.filter_map(|line| number(line, "calls=")).sum(),
        })
    }
}
