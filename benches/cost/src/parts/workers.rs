//! What a second worker adds.
//!
//! Where the load needs as many cores as the gateway, its throughput says more about the load. So a system of one core
//! (gateway, load and origin share it) is compared with one of two cores and twice the load: the gateway has to share
//! alike in both. Counted are requests per second of CPU that the workers got, which contention between them would make
//! less, times the workers in use: the kernel spreads connections over them, and the busier one is full first. Two
//! workers that disturb each other in nothing and are equally busy give 2.

use super::{Ask, Bench, missing};
use crate::{
    machine::Cores,
    process::ThreadTime,
    report::{Report, Row, Table, Target},
    rounds::{Spread, Turn, paired, rounds},
    stage::{Gateway, Server},
    wrk::Wrk,
};
use std::io;

/// For each worker. More than elsewhere, so that chance spreads them more evenly.
const CONNECTIONS: u32 = 128;

/// One round of a gateway.
#[derive(Debug)]
struct Work {
    per_second: f64,
    /// CPU of the workers for a request, in µs.
    cpu: f64,
    /// CPU of all workers to that of the busiest.
    spread: f64,
}

pub fn measure(bench: &Bench<'_>) -> io::Result<Report> {
    if let Some(why) = missing(&["wrk"]) {
        return Err(io::Error::other(why));
    }
    let stage = bench.stage;
    let (first, both) = (&stage.layout.measured, &stage.layout.two);
    let origins = (stage.another_origin(first)?, stage.another_origin(both)?);
    let gateway = |workers, cores: &Cores, origin: &Server| {
        let cores = cores.clone();
        stage.paceway(&Gateway { workers, cores, origin: origin.address, ..stage.usual() })
    };
    let (one, two) = (gateway(1, first, &origins.0)?, gateway(2, both, &origins.1)?);
    let turns: [Turn<'_, Work>; 2] =
        [Box::new(|| work(bench, first, 1, &one)), Box::new(|| work(bench, both, 2, &two))];
    let samples = rounds(bench.settings.rounds, &turns)?;
    let gain = paired(&samples[1], &samples[0], |two, one| one.cpu / two.cpu * two.spread);
    let row = Row::new(
        "2 workers against 1: requests per CPU-second × workers in use",
        2,
        Some(Target::AtLeast { must: 1.7 }),
        gain,
    );
    let line = |name: &str, own: &[Work]| {
        let rate = Spread::of(own.iter().map(|work| work.per_second)).median;
        let cpu = Spread::of(own.iter().map(|work| work.cpu));
        let spread = Spread::of(own.iter().map(|work| work.spread));
        vec![name.to_owned(), format!("{rate:.0}"), format!("{cpu:.1}"), spread.to_string()]
    };
    let table = Table {
        head: vec![
            "gateway, load and origin on the same cores",
            "requests/s",
            "CPU, µs per request",
            "workers in use",
        ],
        rows: vec![line("1 worker, 1 core", &samples[0]), line("2 workers, 2 cores", &samples[1])],
    };
    Ok(Report { rows: vec![row], tables: vec![table], bars: Vec::new() })
}

fn work(bench: &Bench<'_>, cores: &Cores, threads: u32, server: &Server) -> io::Result<Work> {
    let wrk = bench.wrk(server, Ask::path("/v1/search"));
    let before = workers(server)?;
    let load = Wrk { cores, threads, connections: CONNECTIONS * threads, ..wrk }.run()?;
    let after = workers(server)?;
    let spent: Vec<f64> =
        after.iter().zip(&before).map(|(after, before)| (after - before) as f64).collect();
    let total: f64 = spent.iter().sum();
    let busiest = spent.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
    Ok(Work {
        per_second: load.per_second,
        cpu: total / 1e3 / load.requests,
        spread: total / busiest,
    })
}

/// CPU time of each worker so far.
fn workers(server: &Server) -> io::Result<Vec<u64>> {
    let threads = server.process.threads()?;
    let is_worker = |thread: &&ThreadTime| thread.name.starts_with("worker-");
    Ok(threads.iter().filter(is_worker).map(|thread| thread.nanos).collect())
}
