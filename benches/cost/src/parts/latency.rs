//! The median latency that a server adds to a request at 2,000 requests per second: its latency, minus that straight to
//! the origin.

use super::{Bench, missing};
use crate::{
    process::Process,
    report::{Report, Row, Table, Target},
    rounds::{Spread, Turn, rounds},
    stage::{Door, Gateway, nginx_modules, own},
};
use std::{io, net::SocketAddr, time::Duration};

const RATE: u32 = 2000;

/// The latency of one round, in µs.
#[derive(Debug)]
pub struct Latency {
    pub median: f64,
    pub p99: f64,
    pub p999: f64,
}

pub fn measure(bench: &Bench<'_>) -> io::Result<Report> {
    let stage = bench.stage;
    let memory = stage.paceway(&stage.usual())?;
    let nginx =
        missing(&["nginx"]).is_none().then(|| stage.nginx(Door::Clear, None, &[])).transpose()?;
    let redis = missing(&["redis-server"]).is_none().then(|| stage.redis()).transpose()?;
    let shared = redis
        .as_ref()
        .map(|redis| stage.paceway(&Gateway { redis: Some(redis.address), ..stage.usual() }));
    let shared = shared.transpose()?;
    let lua = match &redis {
        Some(redis) if nginx.is_some() && nginx_modules().is_some() => {
            Some(stage.nginx(Door::Clear, Some(redis.address), &[])?)
        }
        _ => None,
    };
    let mut loads =
        vec![("straight to the origin", stage.origin.address), ("paceway, memory", memory.address)];
    let others =
        [("nginx `limit_req`", &nginx), ("paceway, Redis", &shared), ("nginx + Lua, Redis", &lua)];
    loads
        .extend(others.iter().filter_map(|(name, server)| Some((*name, server.as_ref()?.address))));

    let turns: Vec<Turn<'_, Latency>> = loads
        .iter()
        .map(|(_, address)| Box::new(|| pace(bench, *address)) as Turn<'_, Latency>)
        .collect();
    let samples = rounds(bench.settings.rounds, &turns)?;
    let of = |name: &str| loads.iter().position(|(own, _)| *own == name).map(|i| &samples[i]);
    let added = |own: &[Latency]| added(own, &samples[0]);
    let row = |what, ours: &str, theirs: &str| Row {
        what,
        target: Some(Target::AtMost { must: 1.15, aim: Some(1.0) }),
        decimals: 2,
        measured: match (of(ours), of(theirs)) {
            (Some(ours), Some(theirs)) => {
                let (ours, theirs) = (added(ours), added(theirs));
                Ok(Spread::of(ours.iter().zip(&theirs).map(|(ours, theirs)| ours / theirs)))
            }
            _ => Err("a part of it is not installed".into()),
        },
    };
    let mut rows = vec![
        row(
            "added median latency at 2,000/s, memory / nginx `limit_req`",
            "paceway, memory",
            "nginx `limit_req`",
        ),
        row(
            "added median latency at 2,000/s, Redis / nginx + Lua",
            "paceway, Redis",
            "nginx + Lua, Redis",
        ),
    ];
    if let (Some(ours), Some(theirs)) = (of("paceway, memory"), of("nginx `limit_req`")) {
        let added = |own: &[Latency]| p999(own) - p999(&samples[0]);
        rows.push(Row::new(
            "added to the 99.9 % at 2,000/s, memory / nginx `limit_req`",
            2,
            Some(Target::AtMost { must: 1.3, aim: Some(1.0) }),
            Spread::one(added(ours) / added(theirs)),
        ));
    }
    let names: Vec<&str> = loads.iter().map(|(name, _)| *name).collect();
    Ok(Report { rows, tables: vec![table(&names, &samples)], bars: Vec::new() })
}

/// Makes the table; the first samples are those straight to the origin.
pub fn table(names: &[&str], samples: &[Vec<Latency>]) -> Table {
    let lines = names.iter().zip(samples).enumerate().map(|(i, (name, own))| {
        let median = Spread::of(own.iter().map(|sample| sample.median));
        let p99 = Spread::of(own.iter().map(|sample| sample.p99)).median;
        let p999 = p999(own);
        let more = match i {
            0 => String::new(),
            _ => format!("{:.0}", Spread::of(added(own, &samples[0]).into_iter())),
        };
        let parts = [format!("{median:.0}"), more, format!("{p99:.0}"), format!("{p999:.0}")];
        [(*name).to_owned()].into_iter().chain(parts).collect()
    });
    let head =
        vec!["2,000 requests/s", "median, µs", "added to the median, µs", "99 %, µs", "99.9 %, µs"];
    Table { head, rows: lines.collect() }
}

/// Subtracts the median of the origin from that of a server, round by round.
fn added(own: &[Latency], direct: &[Latency]) -> Vec<f64> {
    own.iter().zip(direct).map(|(own, direct)| own.median - direct.median).collect()
}

/// The 99.9th percentile, the median of all rounds. A ratio round by round would divide by what one pause of the host left.
fn p999(own: &[Latency]) -> f64 {
    Spread::of(own.iter().map(|sample| sample.p999)).median
}

pub fn pace(bench: &Bench<'_>, address: SocketAddr) -> io::Result<Latency> {
    let (stage, seconds) = (bench.stage, bench.settings.seconds);
    let (address, rate, span) = (address.to_string(), RATE.to_string(), seconds.to_string());
    let command = own(&["--pace", &address, "/v1/search", &rate, &span])?;
    let within = Duration::from_secs(seconds + 60);
    let text = Process::run(&stage.layout.load, &stage.dir, &command, within)?;
    let mut fields = text.split_whitespace().map_while(|field| field.parse().ok());
    match (fields.next(), fields.next(), fields.next()) {
        (Some(median), Some(p99), Some(p999)) => Ok(Latency { median, p99, p999 }),
        _ => Err(io::Error::other(format!("no latency: {text}"))),
    }
}
