//! The latency that a frozen Redis adds to a request once the breaker is open, when no request asks Redis any more.
//! nginx shows what the machine itself does to one request in a hundred.

use super::{
    Bench,
    latency::{Latency, pace, table},
    missing,
};
use crate::{
    client::page,
    report::{Report, Row, Target},
    rounds::{Turn, paired, rounds},
    stage::{Door, Gateway, Server},
};
use std::{
    io, thread,
    time::{Duration, Instant},
};

/// A line of the gateway's metrics that says that no request asks the store.
const OPEN: &str = "\npaceway_store_breaker_state 2\n";
const PATIENCE: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(50);
/// A factor for the number of rounds, each of a second: few rounds meet a pause of the machine.
const MORE: usize = 3;

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
    let nginx =
        missing(&["nginx"]).is_none().then(|| stage.nginx(Door::Clear, None, &[])).transpose()?;
    let mut loads =
        vec![("straight to the origin", &stage.origin), ("paceway, Redis is frozen", &gateway)];
    loads.extend(nginx.as_ref().map(|nginx| ("nginx `limit_req`", nginx)));
    let settings = bench.settings.with_seconds(1);
    let short = Bench { settings: &settings, ..*bench };
    let turn = |address| Box::new(move || pace(&short, address)) as Turn<'_, Latency>;
    let turns: Vec<_> = loads.iter().map(|(_, server)| turn(server.address)).collect();
    let samples = rounds(bench.settings.rounds * MORE, &turns)?;
    // The breaker must still be open, and must not have closed in between.
    if !is_open(&gateway)? {
        return Err(io::Error::other("the breaker has closed"));
    }
    let names: Vec<&str> = loads.iter().map(|(name, _)| *name).collect();
    let added = |own: &[Latency]| paired(own, &samples[0], |own, direct| own.p99 - direct.p99);
    let target = Some(Target::AtMost { must: 1000.0, aim: None });
    let what = "added to the 99 % at 2,000/s while Redis is frozen and the breaker open, µs";
    let mut rows = vec![Row::new(what, 0, target, added(&samples[1]))];
    let peer = samples.get(2).map(|nginx| added(nginx));
    rows.extend(peer.map(|added| Row::new("nginx `limit_req`: the same, µs", 0, None, added)));
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
