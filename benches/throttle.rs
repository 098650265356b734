//! Gateways at an upstream whose quota is not the configured one: another program uses a part of it, it is lower, it is
//! unknown, or the upstream refuses every call for a while. Gateways, redis-server and the upstream are real. Ends with
//! 1 when a bound of the table is broken. `-- SECONDS` sets for how long requests are offered, 30 by default; `-- TEXT`
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
/// All gateways know of a refusal this long after the upstream has sent it.
const KNOWN: Duration = Duration::from_millis(100);

/// One line of the table.
struct Case {
    name: &'static str,
    limiter: &'static str,
    max_wait: &'static str,
    vendor: Vendor,
    /// The load, as a multiple of the quota; calls arrive at random (Poisson).
    offered: f64,
    /// Nothing before this part of the run counts.
    settled: f64,
    bounds: Bounds,
}

/// The bounds of a case: the run fails when one of them is broken.
struct Bounds {
    /// The largest share of calls that the upstream may refuse.
    refused: f64,
    /// The least share of what is left of the quota, or of the load if that is less, that must be used.
    used: f64,
    /// No caller may receive the upstream's own refusal.
    shields: bool,
}

/// How the upstream counts.
#[derive(Clone, Copy)]
struct Vendor {
    quota: Quota,
    /// Calls of another program, as a share of the quota.
    stranger: f64,
    /// It refuses every call for this long, 5 s after the start.
    closed: Duration,
}

/// An upstream of one vendor.
struct Upstream {
    address: SocketAddr,
    calls: Arc<Mutex<Calls>>,
}

#[tokio::main]
async fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    // `cargo test --all-targets` runs every bench without `--bench`: then there is nothing to measure.
    if !args.iter().any(|arg| arg == "--bench") {
        return ExitCode::SUCCESS;
    }
    let seconds = args.iter().find_map(|arg| arg.parse().ok()).unwrap_or(30.0);
    let chosen = args.iter().find(|arg| !arg.starts_with("--") && arg.parse::<f64>().is_err());
    println!(
        "| case | callers: served, 429 of the gateway, 429 of the upstream | refused by the upstream | used of what is left | sent while closed |"
    );
    println!("|---|---|---|---|---|---|");
    let mut kept = true;
    for case in cases().iter().filter(|case| chosen.is_none_or(|text| case.name.contains(text))) {
        kept &= case.run(seconds).await.expect("a run");
    }
    if kept { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn cases() -> Vec<Case> {
    let quota = Quota { quota: 50, counts_refused: false, tells: true };
    let vendor = Vendor { quota, stranger: 0.0, closed: Duration::ZERO };
    let fixed = "{ algorithm: sliding_window, rate: 50/s, margin: 30ms }";
    let written = "50/s";
    let auto = "{ algorithm: sliding_window, rate: auto, start: 50/s, min: 1/s, max: 100/s, margin: 30ms }";
    let unknown = "{ rate: auto, start: 5/s, min: 1/s, max: 100/s, burst: 1 }";
    let bounds = |refused, used, shields| Bounds { refused, used, shields };
    let case = |name, limiter, max_wait, vendor, offered, bounds| Case {
        name,
        limiter,
        max_wait,
        vendor,
        offered,
        settled: 0.0,
        bounds,
    };
    let shared = Vendor { stranger: 0.2, ..vendor };
    let counting = |vendor: Vendor, quota| Vendor { quota, ..vendor };
    let silent = counting(shared, Quota { tells: false, ..quota });
    let lower = counting(vendor, Quota { quota: 45, tells: false, ..quota });
    let penal = |vendor: Vendor| counting(vendor, Quota { counts_refused: true, ..vendor.quota });
    vec![
        case(
            "another program uses 20 %, load 75 %",
            fixed,
            "5s",
            shared,
            0.75,
            // A log has no instant at which the quota begins again, so that these fields are not quite true.
            bounds(0.05, 0.8, false),
        ),
        case(
            "the same, nothing told, rate: auto",
            auto,
            "5s",
            silent,
            0.75,
            bounds(0.05, 0.97, true),
        ),
        case(
            "another program uses 20 %, load 2 x, refused calls count",
            fixed,
            "500ms",
            penal(shared),
            2.0,
            bounds(0.05, 0.8, false),
        ),
        case(
            "the same, nothing told, rate: auto",
            auto,
            "500ms",
            penal(silent),
            2.0,
            bounds(0.05, 0.9, false),
        ),
        Case {
            settled: 20.0,
            ..case(
                "quota 10 % lower, load 2 x, rate: auto",
                auto,
                "500ms",
                lower,
                2.2,
                bounds(0.02, 0.95, false),
            )
        },
        Case {
            settled: 20.0,
            ..case(
                "quota 10 % lower, load 2 x, refused calls count, rate: auto",
                auto,
                "500ms",
                penal(lower),
                2.2,
                bounds(0.02, 0.95, false),
            )
        },
        Case {
            settled: 20.0,
            ..case(
                "another program uses 20 %, nothing told",
                written,
                "2s",
                silent,
                0.75,
                bounds(0.02, 0.76, false),
            )
        },
        Case {
            settled: 20.0,
            ..case("the same, load 2 x", written, "2s", silent, 2.0, bounds(0.02, 0.7, false))
        },
        Case {
            settled: 20.0,
            ..case(
                "quota 10 % lower, load 2 x",
                written,
                "2s",
                lower,
                2.2,
                bounds(0.004, 0.93, false),
            )
        },
        case(
            "callers: 6/s of 10/s, another program uses 2/s",
            "10/s",
            "6s",
            counting(silent, Quota { quota: 10, ..silent.quota }),
            0.6,
            bounds(0.02, 0.95, true),
        ),
        case(
            "everything refused for 2 s",
            fixed,
            "5s",
            Vendor { closed: 2 * SECOND, ..vendor },
            0.75,
            bounds(0.05, 0.0, true),
        ),
        Case {
            settled: 20.0,
            ..case(
                "unknown quota of 30/s",
                unknown,
                "500ms",
                counting(vendor, Quota { quota: 30, tells: false, ..quota }),
                3.0,
                bounds(0.03, 0.9, false),
            )
        },
    ]
}

// === impl Case ===

impl Case {
    /// Offers the load for `seconds` and returns whether the bounds were kept.
    async fn run(&self, seconds: f64) -> io::Result<bool> {
        let seconds = seconds.max(self.settled + 40.0);
        let quota = self.vendor.quota.quota as f64;
        let start = Instant::now() + 2 * SECOND;
        let upstream = Upstream::start(self.vendor, start).await?;
        let rest = format!(
            "limiters: {{ it: {} }}\nroutes: [{{ suffix: /x, limiters: [it], max_wait: {} }}]\n",
            self.limiter, self.max_wait
        );
        let stage = Stage::set(GATEWAYS, upstream.address, &rest).await?;
        let answered = vendor::offer(&stage, quota * self.offered, start, seconds).await?;
        let (served, own, end) = (answered.served, answered.own, answered.end);
        let theirs = answered.of_vendor.get(&429).copied().unwrap_or(0);
        let others = answered.others + answered.of_vendor.values().sum::<usize>() - theirs;
        let again = stage.sum("paceway_retries_total").await?;
        let calls = upstream.calls.lock();
        let from = start + Duration::from_secs_f64(self.settled);
        let within = |at: &&Instant| **at >= from && **at <= end;
        let accepted = calls.accepted.iter().filter(within).count() as f64;
        let refused = calls.refused.iter().filter(within).count() as f64;
        let left = quota * (1.0 - self.vendor.stranger);
        let span = (end - from).as_secs_f64();
        let used = accepted / (left.min(quota * self.offered) * span);
        let refused = refused / (accepted + refused).max(1.0);
        // The first refusal of the closed time, and those that follow when every gateway knows of it.
        let closed = (start + 5 * SECOND, start + 5 * SECOND + self.vendor.closed);
        let first = calls.refused.iter().find(|at| **at >= closed.0);
        let late = first.map_or(0, |first| {
            let late = calls.refused.iter().filter(|at| **at > *first + KNOWN && **at < closed.1);
            late.count()
        });
        let is_closed = !self.vendor.closed.is_zero();
        let sent = if is_closed { late.to_string() } else { "-".into() };
        println!(
            "| {} | {served}, {own}, {theirs} | {:.1} % | {again} | {:.1} % | {sent} |",
            self.name,
            refused * 100.0,
            used * 100.0,
        );
        if others > 0 {
            println!("{others} other answers");
        }
        let shields = !self.bounds.shields || theirs == 0;
        let refused = is_closed || refused <= self.bounds.refused;
        Ok(refused
            && used >= self.bounds.used
            && shields
            && others == 0
            && (!is_closed || late == 0))
    }
}

// === impl Upstream ===

impl Upstream {
    /// Starts the upstream of `vendor`, which the other program uses from `start` on.
    async fn start(vendor: Vendor, start: Instant) -> io::Result<Self> {
        let calls = Arc::<Mutex<Calls>>::default();
        let (log, shared) = (calls.clone(), calls.clone());
        let rate = vendor.quota.quota as f64 * vendor.stranger;
        vendor::share(rate, start, move || shared.lock().share(Instant::now()));
        let from = start + 5 * SECOND;
        let until = from + vendor.closed;
        let address = vendor::open(move |_| {
            let now = Instant::now();
            let closed = (now >= from && now < until).then_some(until);
            log.lock().answer(vendor.quota, closed, now)
        });
        Ok(Self { address: address.await?, calls })
    }
}
