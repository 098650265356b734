//! Three gateways with three accounts of one vendor, each with a quota of its own. Gateways, redis-server and the vendor are real.
//! Ends with 1 when a bound of the table is broken. `-- SECONDS` sets for how long requests are offered, 20 by default; `-- TEXT`
//! runs only the cases with that text in their name.
#![allow(clippy::print_stdout, reason = "a table is what it is for")]

#[path = "support/gateway.rs"]
mod gateway;
#[path = "support/stage.rs"]
mod stage;
#[path = "support/vendor.rs"]
mod vendor;

use parking_lot::Mutex;
use stage::Stage;
use std::{env, io, net::SocketAddr, process::ExitCode, sync::Arc, time::Duration};
use tokio::time::Instant;
use vendor::{Calls, Quota, SECOND};

const GATEWAYS: usize = 3;
const ACCOUNTS: usize = 3;
/// Calls of each account in any second.
const QUOTA: Quota = Quota { quota: 30, counts_refused: false, tells: false };
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

/// The calls that the vendor has seen.
#[derive(Default)]
struct Seen {
    /// By account.
    calls: [Calls; ACCOUNTS],
    /// Those of the first account after it was rejected.
    rejected: Vec<Instant>,
}

type Vendor = Arc<Mutex<Seen>>;

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
             limiters: {{ it: {{ algorithm: sliding_window, rate: {}/s, margin: 30ms, key: '{{account}}' }} }}\n\
             routes: [{{ suffix: /x, limiters: [it], max_wait: 500ms }}]\n",
            QUOTA.quota
        );
        let stage = Stage::set(GATEWAYS, address, &rest).await?;
        let rate = (QUOTA.quota * ACCOUNTS) as f64 * OFFERED;
        let answered = vendor::offer(&stage, rate, start, seconds).await?;
        let (served, own, end) = (answered.served, answered.own, answered.end);
        let others = answered.others + answered.of_vendor.values().sum::<usize>();
        let seen = vendor.lock();
        // The first second fills the windows at once.
        let from = if self.revoked < 1.0 { revoked + SECOND } else { start + SECOND };
        let within = |at: &&Instant| **at >= from && **at <= end;
        let count = |of: fn(&Calls) -> &Vec<Instant>| {
            seen.calls.iter().map(|own| of(own).iter().filter(within).count()).sum::<usize>() as f64
        };
        let (accepted, refused) = (count(|own| &own.accepted), count(|own| &own.refused));
        let open = if self.revoked < 1.0 { ACCOUNTS - 1 } else { ACCOUNTS } as f64;
        let most = (open - self.stranger) * QUOTA.quota as f64 / (1.0 + MARGIN);
        let used = accepted / (most * (end - from).as_secs_f64());
        let refused = refused / (accepted + refused).max(1.0);
        let rejected = &seen.rejected;
        let late = rejected
            .first()
            .map_or(0, |first| rejected.iter().filter(|at| **at > *first + KNOWN).count());
        println!(
            "| {} | {served}, {own}, {others} | {:.2} % | {:.1} % | {late} |",
            self.name,
            refused * 100.0,
            used * 100.0
        );
        if others > 0 {
            println!("answers of the vendor to callers, by status: {:?}", answered.of_vendor);
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
    let (seen, shared) = (vendor.clone(), vendor.clone());
    let rate = QUOTA.quota as f64 * case.stranger;
    vendor::share(rate, start, move || shared.lock().calls[0].share(Instant::now()));
    vendor::open(move |head| {
        let (field, now) = (head.to_lowercase(), Instant::now());
        let account =
            field.split_once("authorization: ").and_then(|(_, rest)| rest.split('\r').next());
        let account: usize = account.and_then(|own| own.parse().ok()).unwrap_or(0);
        let mut seen = seen.lock();
        if account == 0 && now >= revoked {
            seen.rejected.push(now);
            return "HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n".into();
        }
        seen.calls[account].answer(QUOTA, None, now)
    })
    .await
}
