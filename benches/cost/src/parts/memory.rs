//! Resident memory of a connection that is idle after a request, of a connection whose request waits for its slot, and of the
//! process after all of them have gone.

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
/// The time after which a process has returned the memory of connections that have gone.
const RETURNED: Duration = Duration::from_secs(30);
const PATIENCE: Duration = Duration::from_secs(60);

/// The resident memory of a server with many connections.
struct Memory {
    /// KiB for each connection, beyond the memory before them.
    each: f64,
    /// KiB of the process before them.
    before: f64,
}

/// The state of the connections of a load.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Connections {
    Idle,
    Waiting,
}

pub fn measure(bench: &Bench<'_>) -> io::Result<Report> {
    let gateway = || bench.stage.paceway(&bench.stage.usual());
    let at_most = |must, aim| Some(Target::AtMost { must, aim: Some(aim) });
    let idle = memory(bench, &gateway()?, Connections::Idle)?;
    let server = gateway()?;
    let waiting = memory(bench, &server, Connections::Waiting)?;
    thread::sleep(RETURNED);
    let left = server.process.rss()? / waiting.before;
    let row = |what, decimals, target, kib| Row::new(what, decimals, target, Spread::one(kib));
    let mut rows = vec![
        row("memory of an idle connection, KiB", 1, at_most(7.5, 6.0), idle.each),
        row(
            "memory of a waiting request and its connection, KiB",
            1,
            at_most(15.0, 12.0),
            waiting.each,
        ),
        row("memory 30 s after 9,000 of these have gone / before", 2, at_most(2.0, 1.3), left),
    ];
    if missing(&["nginx"]).is_none() {
        let nginx = || bench.stage.nginx(Door::Clear, None, &[]);
        rows.push(row(
            "nginx: memory of an idle connection, KiB",
            1,
            None,
            memory(bench, &nginx()?, Connections::Idle)?.each,
        ));
        rows.push(row(
            "nginx: memory of a request that `limit_req` delays, KiB",
            1,
            None,
            memory(bench, &nginx()?, Connections::Waiting)?.each,
        ));
    }
    Ok(Report { rows, ..Report::default() })
}

/// Measures the memory with many connections. They are closed when it returns.
fn memory(bench: &Bench<'_>, server: &Server, connections: Connections) -> io::Result<Memory> {
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
    let each = (server.process.rss()? - before) / COUNT as f64;
    Ok(Memory { each, before })
}

/// Reads from the metrics how many requests a gateway holds.
fn waiting(server: &Server) -> io::Result<Option<f64>> {
    let Some(admin) = server.admin else { return Ok(None) };
    let page = page(admin, "/metrics")?;
    let lines = page.lines().filter(|line| line.starts_with("paceway_waiting{"));
    Ok(Some(lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()))
}
