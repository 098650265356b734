//! CPU of Redis for a decision: one that comes alone, and one of a thousand gateways that share a hot limiter.

use super::{Bench, missing};
use crate::{
    machine::{Cores, Layout},
    process::Process,
    report::{Report, Row, Table, Target},
    rounds::{Spread, Turn, rounds},
    stage::Server,
};
use std::{fs, io, path::Path, time::Duration};

const GATEWAYS: &str = "1000";
/// The open files of a program with as many connections, and of Redis, which keeps 32 for itself.
const FILES: u64 = 1100;
/// The decisions of a round that come alone.
const ALONE: &str = "20000";
/// The requests per second of all gateways: as many as the hot limiter grants, and so few that each gateway has small blocks.
const RATES: [&str; 2] = ["50000", "15000"];
const PATIENCE: Duration = Duration::from_secs(120);

/// The cost of one load for Redis.
#[derive(Debug, Clone, Copy)]
struct Cost {
    /// CPU for a decision, µs.
    cpu: f64,
    per_call: f64,
    per_second: f64,
}

pub fn measure(bench: &Bench<'_>) -> io::Result<Report> {
    if let Some(why) = missing(&["redis-server"]) {
        return Err(io::Error::other(why));
    }
    let program = bench.stage.fleet()?;
    let redis = bench.stage.measured_redis()?;
    let seconds = bench.settings.seconds.to_string();
    let Layout { measured, load, .. } = &bench.stage.layout;
    // Lone decisions follow each other, so that the program shares the core of Redis. To wake another core of a virtual
    // machine costs more than the decision.
    let lone = |limiter| run(bench, &program, measured, &redis, &["lone", limiter, ALONE]);
    let fleet = |rate| run(bench, &program, load, &redis, &["gateways", GATEWAYS, rate, &seconds]);
    let mut turns: Vec<Turn<'_, Cost>> = vec![
        Box::new(|| lone("token_bucket")),
        Box::new(|| lone("sliding_window")),
        Box::new(|| lone("short_window")),
    ];
    let files = open_files();
    if files >= FILES {
        turns.push(Box::new(|| fleet(RATES[0])));
        turns.push(Box::new(|| fleet(RATES[1])));
    }
    let samples = rounds(bench.settings.rounds, &turns)?;

    let spread = |costs: &[Cost], of: fn(&Cost) -> f64| Spread::of(costs.iter().map(of));
    let at_most = |must, aim| Some(Target::AtMost { must, aim: Some(aim) });
    let what = [
        ("Redis' own CPU of a lone decision, token bucket, µs", at_most(22.0, 15.0)),
        ("Redis' own CPU of a lone decision, sliding window of 10,000, µs", at_most(40.0, 25.0)),
        ("Redis' own CPU of a lone decision, sliding window of 10, µs", at_most(40.0, 25.0)),
        ("Redis' own CPU per request, 1,000 gateways that ask 50,000/s, µs", at_most(8.0, 2.0)),
        ("Redis' own CPU per request, 1,000 gateways that ask 15,000/s, µs", None),
    ];
    let rows = what.into_iter().enumerate().map(|(i, (what, target))| {
        let cpu = samples.get(i).map(|costs| spread(costs, |cost| cost.cpu));
        let measured = cpu.ok_or_else(|| {
            format!("{GATEWAYS} gateways need {FILES} open files, `ulimit -Hn` is {files}")
        });
        Row { what, target, decimals: 1, measured }
    });
    let names =
        ["lone, token bucket", "lone, window of 10,000", "lone, of 10", "50,000/s", "15,000/s"];
    let lines = names.iter().zip(&samples).map(|(name, costs)| {
        let [rate, per_call, cpu]: [fn(&Cost) -> f64; 3] =
            [|cost| cost.per_second, |cost| cost.per_call, |cost| cost.cpu];
        vec![
            (*name).to_owned(),
            format!("{:.0}", spread(costs, rate).median),
            format!("{:.1}", spread(costs, per_call).median),
            format!("{:.1}", spread(costs, cpu)),
        ]
    });
    let head = vec!["decisions of Redis", "decisions/s", "decisions a call", "CPU of Redis, µs"];
    let table = Table { head, rows: lines.collect() };
    Ok(Report { rows: rows.collect(), tables: vec![table], bars: Vec::new() })
}

/// Runs one load of `redis` on `cores`.
fn run(
    bench: &Bench<'_>,
    program: &Path,
    cores: &Cores,
    redis: &Server,
    load: &[&str],
) -> io::Result<Cost> {
    let stage = bench.stage;
    let mut command = vec![program.display().to_string(), redis.address.to_string()];
    command.extend(load.iter().map(|word| (*word).to_owned()));
    let said = Process::run(cores, &stage.dir, &command, PATIENCE)?;
    let numbers = said.split_whitespace().map(str::parse).collect::<Result<Vec<f64>, _>>();
    match numbers.as_deref() {
        Ok(&[_, cpu, per_call, per_second]) => Ok(Cost { cpu, per_call, per_second }),
        _ => Err(io::Error::other(format!("{}: {said}", command.join(" ")))),
    }
}

/// Reads how many open files a process may have at most (proc(5)).
fn open_files() -> u64 {
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    let hard = line.and_then(|line| line.split_whitespace().nth(1));
    hard.map_or(0, |hard| hard.parse().unwrap_or(u64::MAX))
}
