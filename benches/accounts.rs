//! Three gateways with three accounts of one vendor, each with a quota of its own. Gateways, redis-server and the vendor are real.
//! Ends with 1 when a bound of the table is broken. `-- SECONDS` sets for how long requests are offered, 20 by default; `-- TEXT`
//! runs only the cases with that text in their name.
#![allow(clippy::print_stdout, reason = "a table is what it is for")]

#[path = "support/gateway.rs"]
mod gateway;
#[path = "support/stage.rs"]
mod stage;

use parking_lot::Mutex;
use stage::{Stage, head};
use std::{
    collections::VecDeque, env, io, net::SocketAddr, process::ExitCode, sync::Arc, time::Duration,
};
use tokio::{
    io::AsyncWriteExt,
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};

const GATEWAYS: usize = 3;
const ACCOUNTS: usize = 3;
/// Calls of each account in any second.
const QUOTA: usize = 30;
const SECOND: Duration = Duration::from_secs(1);
/// The margin of the limiters, within which calls may arrive early or late.
const MARGIN: f64 = 0.03;
/// All gateways know of a rejected account this long after the vendor has sent it.
const KNOWN: Duration = Duration::from_millis(100);
/// The load, as a multiple of all quotas; calls arrive at random (Poisson).
const OFFERED: f64 = 2.0;

/// One line of the table.
#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    /// The first account is rejected from this part of the run on.
    revoked: f64,
    /// Calls of another program with the first account, as a share of its quota.
    stranger: f64,
    /// The largest share of calls that the vendor may refuse.
    refused: f64,
    /// The least share of what the accounts may have that must be used.
    used: f64,
}

const CASES: [Case; 3] = [
    Case { name: "three accounts", revoked: 1e6, stranger: 0.0, refused: 0.0, used: 0.99 },
    Case { name: "one is revoked", revoked: 0.4, stranger: 0.0, refused: 0.0, used: 0.99 },
    Case {
        name: "another program uses one",
        revoked: 1e6,
        stranger: 0.2,
        refused: 0.05,
        used: 0.9,
    },
];

/// The calls of one account.
#[derive(Default)]
struct Calls {
    window: VecDeque<Instant>,
    accepted: Vec<Instant>,
    refused: Vec<Instant>,
    rejected: Vec<Instant>,
}

type Vendor = Arc<Mutex<[Calls; ACCOUNTS]>>;

#[tokio::main]
async fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    // `cargo test --all-targets` runs every bench without `--bench`: then there is nothing to measure.
    if !args.iter().any(|arg| arg == "--bench") {
        return ExitCode::SUCCESS;
    }
    let seconds = args.iter().find_map(|arg| arg.parse().ok()).unwrap_or(20.0);
    let chosen = args.iter().find(|arg| !arg.starts_with("--") && arg.parse::<f64>().is_err());
    println!(
        "| case | callers: served, 429 of the gateway, others | refused | used | with the rejected account later than {} ms |",
        KNOWN.as_millis()
    );
    println!("|---|---|---|---|---|");
    let mut kept = true;
    for case in CASES.iter().filter(|case| chosen.is_none_or(|text| case.name.contains(text))) {
        kept &= case.run(seconds).await.expect("a run");
    }
    if kept { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

// === impl Case ===

impl Case {
    /// Offers the load for `seconds` and returns whether the bounds were kept.
    async fn run(self, seconds: f64) -> io::Result<bool> {
        let (vendor, start) = (Vendor::default(), Instant::now() + 2 * SECOND);
        let revoked = start + Duration::from_secs_f64(seconds * self.revoked);
        let address = open(&vendor, self, start, revoked).await?;
        let accounts: String = (0..ACCOUNTS)
            .map(|i| format!("      - {{ name: a{i}, headers: {{ authorization: '{i}' }} }}\n"))
            .collect();
        let rest = format!(
            "upstreams:\n  api:\n    url: http://{address}\n    accounts:\n{accounts}\
             limiters: {{ it: {{ algorithm: sliding_window, rate: {QUOTA}/s, margin: 30ms, key: '{{account}}' }} }}\n\
             routes: [{{ suffix: /x, limiters: [it], max_wait: 500ms }}]\n"
        );
        let stage = Stage::set(GATEWAYS, address, &rest).await?;
        let (mut random, mut requests) = (fastrand::Rng::with_seed(1), JoinSet::new());
        let (mut at, mut offered) = (0.0, 0);
        while at < seconds {
            sleep_until(start + Duration::from_secs_f64(at)).await;
            requests.spawn(stage.request(offered, "/x"));
            offered += 1;
            at -= (1.0 - random.f64()).ln() / ((QUOTA * ACCOUNTS) as f64 * OFFERED);
        }
        let end = Instant::now();
        let (mut served, mut own, mut others) = (0, 0, 0);
        let mut statuses = std::collections::BTreeMap::new();
        while let Some(answer) = requests.join_next().await {
            let answer = answer.map_err(io::Error::other)??;
            match (answer.status, answer.is_own) {
                (200, _) => served += 1,
                (429, true) => own += 1,
                _ => others += 1,
            }
            if answer.status != 200 && !answer.is_own {
                *statuses.entry(answer.status).or_insert(0) += 1;
            }
        }
        let calls = vendor.lock();
        // The first second fills the windows at once.
        let from = if self.revoked < 1.0 { revoked + SECOND } else { start + SECOND };
        let within = |at: &&Instant| **at >= from && **at <= end;
        let count = |of: fn(&Calls) -> &Vec<Instant>| {
            calls.iter().map(|own| of(own).iter().filter(within).count()).sum::<usize>() as f64
        };
        let (accepted, refused) = (count(|own| &own.accepted), count(|own| &own.refused));
        let open = if self.revoked < 1.0 { ACCOUNTS - 1 } else { ACCOUNTS } as f64;
        let most = (open - self.stranger) * QUOTA as f64 / (1.0 + MARGIN);
        let used = accepted / (most * (end - from).as_secs_f64());
        let refused = refused / (accepted + refused).max(1.0);
        let rejected = &calls[0].rejected;
        let late = rejected
            .first()
            .map_or(0, |first| rejected.iter().filter(|at| **at > *first + KNOWN).count());
        println!(
            "| {} | {served}, {own}, {others} | {:.2} % | {:.1} % | {late} |",
            self.name,
            refused * 100.0,
            used * 100.0
        );
        if !statuses.is_empty() {
            println!("answers of the vendor to callers, by status: {statuses:?}");
        }
        Ok(refused <= self.refused && used >= self.used && others == 0 && late == 0)
    }
}

/// Starts the vendor of `case`. Another program uses the first account from `start` on.
async fn open(
    vendor: &Vendor,
    case: Case,
    start: Instant,
    revoked: Instant,
) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    if case.stranger > 0.0 {
        let vendor = vendor.clone();
        tokio::spawn(async move {
            let pause = SECOND.div_f64(QUOTA as f64 * case.stranger);
            for i in 0_u32.. {
                sleep_until(start + pause * i).await;
                vendor.lock()[0].window.push_back(Instant::now());
            }
        });
    }
    let vendor = vendor.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let vendor = vendor.clone();
            // An error of a connection matters to its client alone.
            tokio::spawn(async move { drop(serve(stream, &vendor, revoked).await) });
        }
    });
    Ok(address)
}

async fn serve(mut stream: TcpStream, vendor: &Vendor, revoked: Instant) -> io::Result<()> {
    stream.set_nodelay(true)?;
    while let Some(head) = head(&mut stream).await? {
        let field = head.to_lowercase();
        let account =
            field.split_once("authorization: ").and_then(|(_, rest)| rest.split('\r').next());
        let account: usize = account.and_then(|own| own.parse().ok()).unwrap_or(0);
        let is_revoked = account == 0 && Instant::now() >= revoked;
        let answer = vendor.lock()[account].answer(is_revoked, Instant::now());
        sleep(Duration::from_millis(5)).await;
        stream.write_all(answer.as_bytes()).await?;
    }
    Ok(())
}

// === impl Calls ===

impl Calls {
    /// Counts a call that arrives `now`, and returns the answer.
    fn answer(&mut self, is_revoked: bool, now: Instant) -> String {
        if is_revoked {
            self.rejected.push(now);
            return "HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n".into();
        }
        while self.window.front().is_some_and(|at| now - *at >= SECOND) {
            self.window.pop_front();
        }
        if self.window.len() < QUOTA {
            self.window.push_back(now);
            self.accepted.push(now);
            return "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".into();
        }
        self.refused.push(now);
        let free = self.window[self.window.len() - QUOTA] + SECOND;
        let after = free.saturating_duration_since(now).as_millis() + 1;
        format!(
            "HTTP/1.1 429 Too Many Requests\r\nRetry-After-Ms: {after}\r\nContent-Length: 0\r\n\r\n"
        )
    }
}
