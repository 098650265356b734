//! What a Redis that is frozen adds to a request's latency once the breaker is open: no request asks it any more.

use super::{
    Bench,
    latency::{Latency, pace, table},
    missing,
};
use crate::{
    client::page,
    report::{Report, Row, Target},
    rounds::{Spread, Turn, rounds},
    stage::{Gateway, Server},
};
use std::{
    io, thread,
    time::{Duration, Instant},
};

/// Of the gateway's metrics, when no request asks the store.
const OPEN: &str = "\npaceway_store_breaker_state 2\n";
const PATIENCE: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(50);

pub fn measure(bench: &Bench<'_>) -> io::Result<Report> {
    if let Some(why) = missing(&["redis-server", "kill"]) {
        return Err(io::Error::other(why));
    }
    let stage = bench.stage;
    let redis = stage.redis()?;
    let timeout = "50ms";
    let gateway =
        stage.paceway(&Gateway { redis: Some(redis.address), timeout, ..stage.usual() })?;
    redis.process.freeze()?;
    until_open(&gateway)?;
    let loads = [("straight to the origin", &stage.origin), ("paceway, Redis is frozen", &gateway)];
    let turns =
        loads.map(|(_, server)| Box::new(move || pace(bench, server.address)) as Turn<'_, Latency>);
    let samples = rounds(bench.settings.rounds, &turns)?;
    // Still, and not again.
    if !is_open(&gateway)? {
        return Err(io::Error::other("the breaker has closed"));
    }
    let names = loads.map(|(name, _)| name);
    let pairs = samples[1].iter().zip(&samples[0]);
    let added = Spread::of(pairs.map(|(own, direct)| own.p99 - direct.p99));
    let target = Some(Target::AtMost { must: 1000.0, aim: None });
    let what = "added to the 99 % at 2,000/s while Redis is frozen and the breaker open, µs";
    let rows = vec![Row::new(what, 0, target, added)];
    Ok(Report { rows, tables: vec![table(&names, &samples)], bars: Vec::new() })
}

fn is_open(gateway: &Server) -> io::Result<bool> {
    let admin = gateway.admin.ok_or_else(|| io::Error::other("no admin side"))?;
    Ok(page(admin, "/metrics")?.contains(OPEN))
}

fn until_open(gateway: &Server) -> io::Result<()> {
    let started = Instant::now();
    while !is_open(gateway)? {
        if started.elapsed() > PATIENCE {
            return Err(io::Error::other("the breaker does not open"));
        }
        page(gateway.address, "/v1/search")?;
        thread::sleep(POLL);
    }
    Ok(())
}
