//! The view of an upstream that throttles several gateways on one Redis: how often it refuses, and how much of its
//! quota they use. Gateways, redis-server and upstream are real. Ends with 1 when a limiter broke its promise. `--
//! SECONDS` sets for how long requests are offered, 15 by default.
#![allow(clippy::print_stdout, reason = "a table is what it is for")]

#[path = "support/gateway.rs"]
mod gateway;
#[path = "support/stage.rs"]
mod stage;

use parking_lot::Mutex;
use stage::{Stage, head};
use std::{env, io, net::SocketAddr, process::ExitCode, sync::Arc, time::Duration};
use tokio::{
    io::AsyncWriteExt,
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};

/// One line of the table: a limiter, and the load and the rule of its upstream.
struct Case {
    limiter: &'static str,
    gateways: usize,
    max_wait: &'static str,
    /// Permits per second. The upstream accepts either that many in any second, or those of a bucket.
    rate: f64,
    upstream: Law,
    /// The load, as a multiple of the rate.
    offered: f64,
    /// The least share of the quota that the gateways must use.
    share: f64,
}

#[derive(Clone, Copy)]
enum Law {
    SlidingLog(usize),
    Bucket(f64),
}

/// An upstream that counts the calls that arrive and refuses those that exceed its rule.
struct Upstream {
    address: SocketAddr,
    calls: Arc<Mutex<Calls>>,
}

#[derive(Default)]
struct Calls {
    accepted: Vec<Instant>,
    refused: usize,
    /// The calls that are under way; `busiest` is the largest value so far.
    busy: usize,
    busiest: usize,
}

#[tokio::main]
async fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    // `cargo test --all-targets` runs every bench without `--bench`: then there is nothing to measure.
    if !args.iter().any(|arg| arg == "--bench") {
        return ExitCode::SUCCESS;
    }
    let seconds = args.iter().find_map(|arg| arg.parse().ok()).unwrap_or(15.0);
    println!(
        "{:<58}{:>8}{:>8}{:>8}{:>10}{:>10}{:>7}{:>12}",
        "limiter", "offered", "passed", "refused", "upstream", "quota", "late", "delay"
    );
    let mut kept = true;
    for case in cases() {
        kept &= case.run(seconds).await.expect("a run");
    }
    kept &= places().await.expect("a run");
    if kept { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn cases() -> [Case; 4] {
    let window = |limiter, count, share| Case {
        limiter,
        gateways: 3,
        max_wait: "500ms",
        rate: count as f64,
        upstream: Law::SlidingLog(count),
        offered: 2.0,
        share,
    };
    [
        window("{ algorithm: sliding_window, rate: 5/s, margin: 30ms }", 5, 0.93),
        window("{ algorithm: sliding_window, rate: 50/s, margin: 30ms }", 50, 0.93),
        // The vendor's rule is that of the limiter, with a bucket that is larger by the effect of varying delay.
        Case {
            limiter: "{ rate: 70/s, burst: 10 }",
            gateways: 3,
            max_wait: "500ms",
            rate: 70.0,
            upstream: Law::Bucket(10.0 + 70.0 * 0.1),
            offered: 3.0,
            share: 0.99,
        },
        Case {
            limiter: "{ rate: 1000/s, burst: 50 }",
            gateways: 3,
            max_wait: "500ms",
            rate: 1000.0,
            upstream: Law::Bucket(50.0 + 1000.0 * 0.1),
            offered: 2.0,
            share: 0.99,
        },
    ]
}

// === impl Case ===

impl Case {
    /// Offers the load for `seconds` and returns whether the limiter kept its promise.
    async fn run(&self, seconds: f64) -> io::Result<bool> {
        let upstream = Upstream::start(Some((self.upstream, self.rate)), Duration::ZERO).await?;
        let rest = format!(
            "limiters: {{ it: {} }}\nroutes: [{{ suffix: /x, limiters: [it], max_wait: {} }}]\n",
            self.limiter, self.max_wait
        );
        let stage = Stage::set(self.gateways, upstream.address, &rest).await?;
        let offered = (self.rate * self.offered * seconds) as u32;
        let pause = Duration::from_secs_f64(1.0 / (self.rate * self.offered));
        let (started, mut requests) = (Instant::now(), JoinSet::new());
        for i in 0..offered {
            sleep_until(started + pause * i).await;
            requests.spawn(stage.request(i as usize, "/x"));
        }
        let end = Instant::now();
        let (mut passed, mut refused) = (0, 0);
        while let Some(status) = requests.join_next().await {
            let answer = status.map_err(io::Error::other)??;
            match (answer.status, answer.is_own) {
                (200, _) => passed += 1,
                (429, true) => refused += 1,
                _ => println!("another answer: {answer:?}"),
            }
        }
        // The tasks that woke too late to send.
        let late = stage.sum("paceway_late_wakeups_total").await?;
        let calls = upstream.calls.lock();
        let within = calls.accepted.iter().filter(|at| **at <= end).count() as f64;
        let share = within / (self.rate * (end - started).as_secs_f64());
        let early = match self.upstream {
            Law::SlidingLog(count) => too_early(&calls.accepted, count),
            Law::Bucket(_) => Duration::ZERO,
        };
        println!(
            "{:<58}{offered:>8}{passed:>8}{refused:>8}{:>10}{:>9.1}%{late:>7}{:>9.1} ms",
            self.limiter,
            calls.refused,
            share * 100.0,
            early.as_secs_f64() * 1e3
        );
        Ok(calls.refused == 0 && share >= self.share && passed + refused == offered)
    }
}

/// Returns by how much the tightest `count + 1` calls were closer together than the limiter's margin allows.
fn too_early(arrivals: &[Instant], count: usize) -> Duration {
    let spans = arrivals.windows(count + 1).map(|calls| calls[count] - calls[0]);
    let least = spans.min().unwrap_or(Duration::from_secs(2));
    Duration::from_millis(1030).saturating_sub(least)
}

/// Sends 80 requests through 4 concurrency permits over two gateways.
async fn places() -> io::Result<bool> {
    let upstream = Upstream::start(None, Duration::from_millis(100)).await?;
    let rest = "limiters: { it: { algorithm: concurrency, max: 4 } }\n\
                routes: [{ suffix: /x, limiters: [it], max_wait: 10s }]\n";
    let stage = Stage::set(2, upstream.address, rest).await?;
    let (started, mut requests) = (Instant::now(), JoinSet::new());
    (0..80).for_each(|i| drop(requests.spawn(stage.request(i, "/x"))));
    let mut passed = 0;
    while let Some(status) = requests.join_next().await {
        passed += usize::from(status.map_err(io::Error::other)??.status == 200);
    }
    let took = started.elapsed();
    let busiest = upstream.calls.lock().busiest;
    println!(
        "\nconcurrency, max 4, 80 at once, 100 ms each, 2 gateways: {passed} passed, at most {busiest} at a time, {:.2} s",
        took.as_secs_f64()
    );
    Ok(passed == 80 && busiest == 4 && took < Duration::from_millis(2600))
}

// === impl Upstream ===

impl Upstream {
    async fn start(law: Option<(Law, f64)>, work: Duration) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let (address, calls) = (listener.local_addr()?, Arc::<Mutex<Calls>>::default());
        let (log, bucket) = (calls.clone(), Arc::new(Mutex::new(None)));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (calls, bucket) = (log.clone(), bucket.clone());
                // An error of a connection matters to its client alone.
                tokio::spawn(async move { drop(serve(stream, &calls, &bucket, law, work).await) });
            }
        });
        Ok(Self { address, calls })
    }
}

/// The level of the vendor's bucket, and the instant at which it was computed.
type Bucket = Mutex<Option<(f64, Instant)>>;

async fn serve(
    mut stream: TcpStream,
    calls: &Mutex<Calls>,
    bucket: &Bucket,
    law: Option<(Law, f64)>,
    work: Duration,
) -> io::Result<()> {
    stream.set_nodelay(true)?;
    while head(&mut stream).await?.is_some() {
        let accepted = {
            let (mut calls, now) = (calls.lock(), Instant::now());
            calls.busy += 1;
            calls.busiest = calls.busiest.max(calls.busy);
            let accepted = law.is_none_or(|(law, rate)| allows(law, rate, &calls, bucket, now));
            if accepted {
                calls.accepted.push(now)
            } else {
                calls.refused += 1
            }
            accepted
        };
        sleep(work).await;
        calls.lock().busy -= 1;
        let status = if accepted { "200 OK" } else { "429 Too Many Requests" };
        let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n");
        stream.write_all(answer.as_bytes()).await?;
    }
    Ok(())
}

fn allows(law: Law, rate: f64, calls: &Calls, bucket: &Bucket, now: Instant) -> bool {
    match law {
        Law::SlidingLog(count) => {
            let nth = calls.accepted.len().checked_sub(count).map(|i| calls.accepted[i]);
            nth.is_none_or(|nth| now - nth >= Duration::from_secs(1))
        }
        Law::Bucket(most) => {
            let mut bucket = bucket.lock();
            let (level, at) = bucket.unwrap_or((most, now));
            let level = (level + (now - at).as_secs_f64() * rate).min(most);
            let allowed = level >= 1.0;
            *bucket = Some((if allowed { level - 1.0 } else { level }, now));
            allowed
        }
    }
}
