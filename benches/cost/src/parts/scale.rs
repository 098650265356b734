//! The cost of a request with many routes, or many live keys, divided by its cost with ten. Requests are spread over
//! all of them at random, so that cache misses count.

use super::{Ask, Bench, Sample, cpu_ratio, line, missing};
use crate::{
    process::Process,
    report::{Report, Row, Table, Target},
    rounds::{Spread, Turn, rounds},
    stage::{Gateway, Server, own},
};
use std::{io, time::Duration};

const FEW: usize = 10;
const ROUTES: usize = 10_000;
const KEYS: usize = 1_000_000;
/// A factor for the number of rounds, each of a second: the difference is smaller than the disturbances of the machine.
const MORE: usize = 6;
/// The least number of bytes that a live key needs.
const LEAST: f64 = 32.0;

pub fn measure(bench: &Bench<'_>) -> io::Result<Report> {
    if let Some(why) = missing(&["wrk"]) {
        return Err(io::Error::other(why));
    }
    let mut report = routes(bench)?;
    report.add(keys(bench)?);
    Ok(report)
}

fn routes(bench: &Bench<'_>) -> io::Result<Report> {
    let gateway = |routes| bench.stage.paceway(&Gateway { routes, ..bench.stage.usual() });
    let (few, many) = (gateway(FEW)?, gateway(ROUTES)?);
    let ask = |count| Ask { script: Some(("paths.lua", count)), ..Ask::path("/") };
    compare(
        bench,
        ("10,000 routes against 10: CPU per request", ["10 routes", "10,000 routes"]),
        [(&few, ask(FEW)), (&many, ask(ROUTES))],
    )
}

fn keys(bench: &Bench<'_>) -> io::Result<Report> {
    let stage = bench.stage;
    let (few, many) = (stage.paceway(&stage.usual())?, stage.paceway(&stage.usual())?);
    let before = many.process.rss()?;
    let (address, count) = (many.address.to_string(), KEYS.to_string());
    let command = own(&["--keys", &address, "/v1/keyed", &count])?;
    Process::run(&stage.layout.load, &stage.dir, &command, Duration::from_secs(600))?;
    let bytes = (many.process.rss()? - before) * 1024.0 / KEYS as f64;
    if bytes < LEAST {
        return Err(io::Error::other(format!("{bytes:.0} bytes a key: they did not stay")));
    }
    let mut report = compare(
        bench,
        ("10^6 live keys against 10: CPU per request", ["10 live keys", "10^6 live keys"]),
        [(&few, Ask::keys("/v1/keyed", FEW)), (&many, Ask::keys("/v1/keyed", KEYS))],
    )?;
    report.rows.push(Row::new("memory of a live key, bytes", 0, None, Spread::one(bytes)));
    Ok(report)
}

fn compare(
    bench: &Bench<'_>,
    (what, names): (&'static str, [&'static str; 2]),
    loads: [(&Server, Ask<'_>); 2],
) -> io::Result<Report> {
    let settings = bench.settings.with_seconds(1);
    let short = Bench { settings: &settings, ..*bench };
    let turns = loads
        .map(|(server, ask)| Box::new(move || short.load(server, None, ask)) as Turn<'_, Sample>);
    let samples = rounds(bench.settings.rounds * MORE, &turns)?;
    let (few, many) = (&samples[0], &samples[1]);
    let target = Some(Target::AtMost { must: 1.05, aim: None });
    let table = Table {
        head: vec!["memory store", "requests/s", "CPU, µs per request", "CPU × 10"],
        rows: vec![line(names[0], few, Some(few)), line(names[1], many, Some(few))],
    };
    let rows = vec![Row::new(what, 2, target, cpu_ratio(many, few))];
    Ok(Report { rows, tables: vec![table], bars: Vec::new() })
}
