//! Batch jobs beside interactive users at one quota: three gateways on one Redis serve the requests that wait first
//! come, first served, with a limiter for each tenant, and with `fair`. The gateway and the upstream are real. Ends with 1
//! when a bound is broken that `fair` has to keep. `-- TEXT` runs only the scenarios with that text in their name.
#![allow(clippy::print_stdout, reason = "a table is what it is for")]

#[path = "support/gateway.rs"]
mod gateway;
#[path = "fair/meter.rs"]
mod meter;
#[path = "fair/redis_cpu.rs"]
mod redis_cpu;
#[path = "support/stage.rs"]
mod stage;

use meter::Meter;
use redis_cpu::Costs;
use stage::{Answer, Stage};
use std::{env, io, process::ExitCode, time::Duration};
use tokio::{
    task::{JoinHandle, JoinSet},
    time::{Instant, sleep, sleep_until},
};

const GATEWAYS: usize = 3;
/// Between the moment that the last request of a backlog is sent and the first one that it competes with.
const SETTLED: Duration = Duration::from_millis(500);

/// How the requests that wait share a quota.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// One limiter, first come, first served.
    Fcfs,
    /// A limiter for each tenant, with its part of the rate.
    Split,
    /// One limiter with `fair`.
    Fair,
}

/// Requests of one kind, each with a route of its own.
struct Tenant {
    name: &'static str,
    weight: u32,
    max_wait: &'static str,
    cost: u32,
}

/// The outcome of a scenario: its text in the table, and whether it keeps the bounds.
struct Outcome {
    text: String,
    kept: bool,
}

type Asked = JoinHandle<io::Result<Answer>>;

#[tokio::main]
async fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    // `cargo test --all-targets` runs every bench without `--bench`: then there is nothing to measure.
    if !args.iter().any(|arg| arg == "--bench") {
        return ExitCode::SUCCESS;
    }
    let chosen = args.iter().find(|arg| !arg.starts_with("--"));
    let is_chosen = |name: &str| chosen.is_none_or(|text| name.contains(text.as_str()));
    println!("| scenario | first come, first served | split limiters | fair |\n|---|---|---|---|");
    let mut kept = true;
    for (i, name) in NAMES.iter().enumerate().filter(|(_, name)| is_chosen(name)) {
        let mut line = format!("| {name} |");
        for way in [Way::Fcfs, Way::Split, Way::Fair] {
            let outcome = run(i, way).await.expect("a run");
            // Requests that leave are replaced without `fair`, too.
            kept &= outcome.kept || (way != Way::Fair && (i, way) != (LEAVERS, Way::Fcfs));
            line += &format!(" {} |", outcome.text);
        }
        println!("{line}");
    }
    if is_chosen(CPU) {
        kept &= cpu().await.expect("a run");
    }
    if kept { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

const NAMES: [&str; 6] = [
    "a batch of 200 waits; 4 users a second of weight 4 with a budget of 1 s, at 20/s",
    "the same with users of weight 1",
    "three tenants with 300 waiting requests each, weights 4 : 1 : 1, at 40/s",
    "a newcomer while 900 requests wait, at 40/s",
    "80 of 100 waiting requests leave at once, at 20/s",
    "requests of cost 5 among 80/s of cost 1, at 40/s, budget 500 ms",
];
const LEAVERS: usize = 4;
const CPU: &str = "CPU of Redis";

async fn run(scenario: usize, way: Way) -> io::Result<Outcome> {
    match scenario {
        0 => users(way, 4).await,
        1 => users(way, 1).await,
        2 => weights(way).await,
        3 => newcomer(way).await,
        LEAVERS => leavers(way).await,
        _ => costs(way).await,
    }
}

/// Prints the CPU time of Redis for a decision; false if turns take more than twice of it.
async fn cpu() -> io::Result<bool> {
    let Costs { without, with } = redis_cpu::costs().await?;
    println!("\n| {CPU}, 1,000 requests wait | first come, first served | fair | ratio |");
    println!("|---|---|---|---|");
    let rows = [
        ("a decision, µs", without.decision, with.decision),
        ("of that in the script, µs", without.script, with.script),
        ("commands of the script for a decision", without.commands, with.commands),
        ("decisions of a request", without.decisions, with.decisions),
        ("a request, µs", without.request, with.request),
    ];
    for (what, without, with) in rows {
        println!("| {what} | {without:.1} | {with:.1} | {:.2} |", with / without);
    }
    Ok(with.decision <= 2.0 * without.decision)
}

/// The batch has weight 1. A slot is 50 ms long, and the next one is decided when a user comes: with a greater weight the user
/// has the one after it, with the same weight sometimes the third.
async fn users(way: Way, weight: u32) -> io::Result<Outcome> {
    let tenants = [Tenant::new("batch", 1, "60s"), Tenant::new("users", weight, "1s")];
    let (meter, stage) = set(way, 20, &tenants).await?;
    let batch = ask(&stage, "batch", 200);
    sleep(SETTLED).await;
    let mut users = Vec::new();
    let start = Instant::now();
    let mut served = 0;
    for i in 0_u32.. {
        sleep_until(start + i * Duration::from_millis(250)).await;
        if batch.iter().all(JoinHandle::is_finished) {
            break;
        }
        users.push(tokio::spawn(stage.request(i as usize, "/users?team=users")));
    }
    for request in batch {
        served += usize::from(request.await.map_err(io::Error::other)??.status == 200);
    }
    let answers = answers(users).await?;
    let waits = waits(&answers);
    let p95 = waits.get(waits.len().saturating_sub(1) * 95 / 100).copied().unwrap_or_default();
    let (used, span) = meter.used(20.0);
    let refused = meter.refused();
    let text = format!(
        "{} of {} users served, p95 of their wait {p95:.0} ms; {served} of the batch in {span:.1} s; {:.1} % of the slots used; {refused} refused by the upstream",
        waits.len(),
        answers.len(),
        used * 100.0
    );
    let slots = if weight > 1 { 3.0 } else { 4.0 };
    let kept = waits.len() == answers.len() && p95 <= slots * 50.0;
    Ok(Outcome { text, kept: kept && served == 200 && used >= 0.99 && refused == 0 })
}

async fn weights(way: Way) -> io::Result<Outcome> {
    let tenants =
        [Tenant::new("b", 1, "60s"), Tenant::new("a", 4, "60s"), Tenant::new("c", 1, "60s")];
    let (meter, stage) = set(way, 40, &tenants).await?;
    let asked: Vec<_> = tenants.iter().flat_map(|tenant| ask(&stage, tenant.name, 300)).collect();
    sleep(2 * SETTLED).await;
    // While all three wait: 400 slots have 267 of the 300 requests of the first.
    let from = meter.len();
    meter.until(from + 360).await;
    let shares = ["a", "b", "c"].map(|name| meter.share(from, 360, name) * 100.0);
    answers(asked).await?;
    let (_, span) = meter.used(40.0);
    let text = format!(
        "{:.0} : {:.0} : {:.0} %; all served in {span:.1} s",
        shares[0], shares[1], shares[2]
    );
    let near = |share: f64, target: f64| (share - target).abs() <= 2.0;
    let kept = near(shares[0], 66.7) && near(shares[1], 16.7) && near(shares[2], 16.7);
    Ok(Outcome { text, kept })
}

async fn newcomer(way: Way) -> io::Result<Outcome> {
    let tenants = [Tenant::new("batch", 1, "60s"), Tenant::new("new", 1, "60s")];
    let (_meter, stage) = set(way, 40, &tenants).await?;
    let batch = ask(&stage, "batch", 900);
    sleep(4 * SETTLED).await;
    let answer = stage.request(1, "/new?team=new").await?;
    batch.iter().for_each(JoinHandle::abort);
    let text = format!("waits {:.2} s", answer.wait / 1e3);
    Ok(Outcome { text, kept: answer.status == 200 && answer.wait <= 300.0 })
}

async fn leavers(way: Way) -> io::Result<Outcome> {
    let tenants = [Tenant::new("leave", 1, "60s"), Tenant::new("stay", 1, "60s")];
    let (meter, stage) = set(way, 20, &tenants).await?;
    let leave = ask(&stage, "leave", 80);
    sleep(SETTLED).await;
    let stay = ask(&stage, "stay", 20);
    sleep(SETTLED).await;
    leave.iter().for_each(JoinHandle::abort);
    let (left, from) = (Instant::now(), meter.len());
    let first = tokio::spawn({
        let calls = meter.clone();
        async move { calls.until(from + 1).await }
    });
    let first = first.await.map_err(io::Error::other)? - left;
    let before = meter.count("stay", from);
    answers(stay).await?;
    let all = left.elapsed();
    let text = format!(
        "the next call after {:.0} ms, the {} that were left served after {:.2} s",
        first.as_secs_f64() * 1e3,
        20 - before,
        all.as_secs_f64()
    );
    Ok(Outcome { text, kept: all <= Duration::from_millis(1_100) })
}

async fn costs(way: Way) -> io::Result<Outcome> {
    let heavy = Tenant { cost: 5, ..Tenant::new("heavy", 1, "500ms") };
    let (_meter, stage) = set(way, 40, &[Tenant::new("light", 1, "500ms"), heavy]).await?;
    let stage = std::sync::Arc::new(stage);
    let (start, mut light) = (Instant::now(), JoinSet::new());
    let own = stage.clone();
    let asked = tokio::spawn(async move {
        sleep(SETTLED).await;
        let (mut served, mut attempts, mut most) = (0, 0, 0);
        while start.elapsed() < Duration::from_secs(40) {
            let mut tries = 0;
            loop {
                tries += 1;
                let answer = own.request(tries, "/heavy?team=heavy").await?;
                if answer.status == 200 {
                    served += 1;
                    break;
                }
                if start.elapsed() >= Duration::from_secs(40) {
                    break;
                }
                sleep(answer.retry_after).await;
            }
            attempts += tries;
            most = most.max(tries);
        }
        io::Result::Ok((served, attempts, most))
    });
    for i in 0_u32..3_200 {
        sleep_until(start + i * Duration::from_micros(12_500)).await;
        light.spawn(stage.request(i as usize, "/light?team=light"));
    }
    let (served, attempts, most) = asked.await.map_err(io::Error::other)??;
    while light.join_next().await.is_some() {}
    let text = format!("{served} served in 40 s by {attempts} attempts, at most {most} for one");
    // A whole second, and the budget.
    Ok(Outcome { text, kept: most <= 2 && served >= 40 / 2 })
}

/// Starts the upstream and the gateways for these tenants.
async fn set(way: Way, rate: u32, tenants: &[Tenant]) -> io::Result<(Meter, Stage)> {
    let meter = Meter::start(rate).await?;
    let weights: Vec<_> =
        tenants.iter().map(|tenant| format!("{}: {}", tenant.name, tenant.weight)).collect();
    let sum: u32 = tenants.iter().map(|tenant| tenant.weight).sum();
    // A bucket from which the greatest cost can be taken.
    let burst = tenants.iter().map(|tenant| tenant.cost).max().unwrap_or(1);
    let limiters = match way {
        Way::Fcfs => format!("all: {{ rate: {rate}/s, burst: {burst} }}"),
        Way::Fair => format!(
            "all: {{ rate: {rate}/s, burst: {burst}, fair: {{ by: '{{query.team}}', weights: {{ {} }} }} }}",
            weights.join(", ")
        ),
        Way::Split => {
            let own = |tenant: &Tenant| {
                let rate = rate * tenant.weight;
                format!("{}: {{ rate: {rate}/{sum}s, burst: {burst} }}", tenant.name)
            };
            tenants.iter().map(own).collect::<Vec<_>>().join(", ")
        }
    };
    let routes = tenants.iter().map(|Tenant { name, max_wait, cost, .. }| {
        let limiter = if way == Way::Split { name } else { "all" };
        format!(
            "- {{ suffix: /{name}, limiters: [{{ limiter: {limiter}, cost: {cost} }}], max_wait: {max_wait} }}\n"
        )
    });
    let rest = format!("limiters: {{ {limiters} }}\nroutes:\n{}", routes.collect::<String>());
    let stage = Stage::set(GATEWAYS, meter.address, &rest).await?;
    Ok((meter, stage))
}

fn ask(stage: &Stage, tenant: &str, count: usize) -> Vec<Asked> {
    let target = format!("/{tenant}?team={tenant}");
    (0..count).map(|i| tokio::spawn(stage.request(i, &target))).collect()
}

async fn answers(asked: Vec<Asked>) -> io::Result<Vec<Answer>> {
    let mut answers = Vec::with_capacity(asked.len());
    for request in asked {
        answers.push(request.await.map_err(io::Error::other)??);
    }
    Ok(answers)
}

/// The waits of the requests that were served, ms, the shortest first.
fn waits(answers: &[Answer]) -> Vec<f64> {
    let served = answers.iter().filter(|answer| answer.status == 200);
    let mut waits: Vec<_> = served.map(|answer| answer.wait).collect();
    waits.sort_by(f64::total_cmp);
    waits
}

// === impl Tenant ===

impl Tenant {
    fn new(name: &'static str, weight: u32, max_wait: &'static str) -> Self {
        Self { name, weight, max_wait, cost: 1 }
    }
}
