//! Resident memory of a connection that is idle after a request, and of a connection whose request waits for its slot.

use super::{Bench, missing};
use crate::{
    client::{page, repeat},
    process::Process,
    report::{Report, Row, Target},
    rounds::Spread,
    stage::{Door, Server, own},
};
use std::{
    io, thread,
    time::{Duration, Instant},
};

/// The connections of a load. A gateway accepts 9,890 where a process may have 20,000 open files.
const COUNT: usize = 9_000;
/// Connections before the first look at the memory, so that it includes all that every process needs once.
const WARM: usize = 500;
const SETTLED: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(60);

/// The state of the connections of a load.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Connections {
    Idle,
    Waiting,
}

pub fn measure(bench: &Bench<'_>) -> io::Result<Report> {
    let gateway = || bench.stage.paceway(&bench.stage.usual());
    let at_most = |must, aim| Some(Target::AtMost { must, aim: Some(aim) });
    let row = |what, target, kib| Row::new(what, 1, target, Spread::one(kib));
    let mut rows = vec![
        row(
            "memory of an idle connection, KiB",
            at_most(16.0, 8.0),
            each(bench, &gateway()?, Connections::Idle)?,
        ),
        row(
            "memory of a waiting request and its connection, KiB",
            at_most(20.0, 12.0),
            each(bench, &gateway()?, Connections::Waiting)?,
        ),
    ];
    if missing(&["nginx"]).is_none() {
        let nginx = || bench.stage.nginx(Door::Clear, None, &[]);
        rows.push(row(
            "nginx: memory of an idle connection, KiB",
            None,
            each(bench, &nginx()?, Connections::Idle)?,
        ));
        rows.push(row(
            "nginx: memory of a request that `limit_req` delays, KiB",
            None,
            each(bench, &nginx()?, Connections::Waiting)?,
        ));
    }
    Ok(Report { rows, ..Report::default() })
}

/// Measures the KiB for each of many connections.
fn each(bench: &Bench<'_>, server: &Server, connections: Connections) -> io::Result<f64> {
    let stage = bench.stage;
    repeat(server.address, "/v1/search", WARM)?;
    waiting(server)?;
    thread::sleep(SETTLED);
    let before = server.process.rss()?;
    let (role, path) = match connections {
        Connections::Idle => ("--hold", "/v1/search"),
        Connections::Waiting => ("--wait", "/v1/held"),
    };
    let command = own(&[role, &server.address.to_string(), path, &COUNT.to_string()])?;
    let (started, clients) =
        (Instant::now(), Process::start(&stage.layout.load, &stage.dir, &command)?);
    let all_there = || -> io::Result<bool> {
        let held = clients.output()?.contains("held");
        // A few requests have passed by then. nginx does not report how many wait.
        let wait = connections == Connections::Idle
            || waiting(server)?.is_none_or(|count| count > 0.98 * COUNT as f64);
        Ok(held && wait)
    };
    while !all_there()? {
        if started.elapsed() > PATIENCE {
            let said = clients.output()?;
            return Err(io::Error::other(format!("{COUNT} connections are not held: {said}")));
        }
        thread::sleep(Duration::from_millis(200));
    }
    thread::sleep(SETTLED);
    Ok((server.process.rss()? - before) / COUNT as f64)
}

/// Reads from the metrics how many requests a gateway holds.
fn waiting(server: &Server) -> io::Result<Option<f64>> {
    let Some(admin) = server.admin else { return Ok(None) };
    let page = page(admin, "/metrics")?;
    let lines = page.lines().filter(|line| line.starts_with("paceway_waiting{"));
    Ok(Some(lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()))
}
