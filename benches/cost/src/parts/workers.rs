//! The gain of a second worker.
//!
//! Where the load needs as many cores as the gateway, its throughput says more about the load. So a system of one core
//! (gateway, load and origin share it) is compared with one of two cores and twice the load: the gateway has to share
//! alike in both. The figure is requests per second of CPU that the workers got, which contention between them would
//! lower, times the workers in use: they have equally many connections, and still the busier one is full first. Two
//! workers that disturb each other in nothing and are equally busy give 2, if the cores do not disturb each other.
//!
//! Two more systems show whether the cores do: two gateways of one worker at the same time, with nothing shared but the
//! machine. Bound to a core each, with their loads and origins, they never send a byte to the other core. Free on both
//! cores, as two workers and their load are, they pay for what the cores have to tell each other. Their gain is the CPU that
//! a second worker can have.

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

/// Connections of the load for each worker.
const CONNECTIONS: u32 = 128;
/// A factor for the number of rounds: the scheduler places processes differently in each.
const MORE: usize = 3;

/// The work of a gateway in one round.
#[derive(Debug)]
struct Work {
    per_second: f64,
    /// CPU of the workers for a request, in µs.
    cpu: f64,
    /// CPU of all workers divided by that of the busiest.
    spread: f64,
}

/// A gateway with its origin, on the same cores as its load.
struct System {
    cores: Cores,
    /// Threads of the load.
    threads: u32,
    gateway: Server,
    _origin: Server,
}

pub fn measure(bench: &Bench<'_>) -> io::Result<Report> {
    if let Some(why) = missing(&["wrk"]) {
        return Err(io::Error::other(why));
    }
    let stage = bench.stage;
    let (first, second, both) = (&stage.layout.measured, &stage.layout.second, &stage.layout.two);
    let system = |workers, cores: &Cores| -> io::Result<System> {
        let (cores, origin) = (cores.clone(), stage.another_origin(cores)?);
        let usual = stage.usual();
        let gateway = Gateway { workers, cores: cores.clone(), origin: origin.address, ..usual };
        Ok(System {
            cores,
            threads: workers as u32,
            gateway: stage.paceway(&gateway)?,
            _origin: origin,
        })
    };
    let (one, another, two) = (system(1, first)?, system(1, second)?, system(2, both)?);
    let (free, free_too) = (system(1, both)?, system(1, both)?);
    let turns: [Turn<'_, Work>; 4] = [
        Box::new(|| work(bench, &[&one])),
        Box::new(|| work(bench, &[&two])),
        Box::new(|| work(bench, &[&one, &another])),
        Box::new(|| work(bench, &[&free, &free_too])),
    ];
    let samples = rounds(bench.settings.rounds * MORE, &turns)?;
    let gain = |more: &Work, one: &Work| one.cpu / more.cpu * more.spread;
    let as_two = |two: &Work, apart: &Work| gain(two, apart) / apart.spread * 2.0;
    let rows = vec![
        Row::new(
            "2 workers against 1: requests per CPU-second × workers in use",
            2,
            None,
            paired(&samples[1], &samples[0], gain),
        ),
        Row::new(
            "2 gateways that share nothing against 1: the same, bound to a core each",
            2,
            None,
            paired(&samples[2], &samples[0], gain),
        ),
        Row::new(
            "2 gateways that share nothing against 1: the same, free on both cores",
            2,
            None,
            paired(&samples[3], &samples[0], gain),
        ),
        Row::new(
            "2 workers against 1, where 2 gateways bound to cores count as 2",
            2,
            None,
            paired(&samples[1], &samples[2], as_two),
        ),
        Row::new(
            "2 workers against 1, where 2 gateways free on both cores count as 2",
            2,
            Some(Target::AtLeast { must: 1.7 }),
            paired(&samples[1], &samples[3], as_two),
        ),
    ];
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
        rows: vec![
            line("1 worker, 1 core", &samples[0]),
            line("2 workers, 2 cores", &samples[1]),
            line("2 gateways, 1 worker and 1 core each", &samples[2]),
            line("2 gateways, 1 worker each, 2 cores", &samples[3]),
        ],
    };
    Ok(Report { rows, tables: vec![table], bars: Vec::new() })
}

/// Loads all of `systems` at the same time.
fn work(bench: &Bench<'_>, systems: &[&System]) -> io::Result<Work> {
    let all = || -> io::Result<Vec<u64>> {
        let each = systems.iter().map(|system| workers(&system.gateway));
        Ok(each.collect::<io::Result<Vec<_>>>()?.concat())
    };
    let loads: Vec<_> = systems
        .iter()
        .map(|System { cores, threads, gateway, .. }| Wrk {
            cores,
            threads: *threads,
            connections: CONNECTIONS * threads,
            ..bench.wrk(gateway, Ask::path("/v1/search"))
        })
        .collect();
    let before = all()?;
    let running = loads.iter().map(Wrk::start).collect::<io::Result<Vec<_>>>()?;
    let (mut requests, mut per_second) = (0.0, 0.0);
    for load in running {
        let load = load.finish()?;
        requests += load.requests;
        per_second += load.per_second;
    }
    let after = all()?;
    let spent: Vec<f64> =
        after.iter().zip(&before).map(|(after, before)| (after - before) as f64).collect();
    let total: f64 = spent.iter().sum();
    let busiest = spent.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
    Ok(Work { per_second, cpu: total / 1e3 / requests, spread: total / busiest })
}

/// Reads the CPU time of each worker so far.
fn workers(server: &Server) -> io::Result<Vec<u64>> {
    let threads = server.process.threads()?;
    let is_worker = |thread: &&ThreadTime| thread.name.starts_with("worker-");
    Ok(threads.iter().filter(is_worker).map(|thread| thread.nanos).collect())
}
