//! The parts of the table, each measured by a file of its own.

pub mod away;
pub mod bodies;
pub mod contest;
pub mod cpu;
pub mod fleet;
pub mod grpc;
pub mod h2;
pub mod instructions;
pub mod latency;
pub mod memory;
pub mod redis;
pub mod scale;
pub mod tls;
pub mod workers;

use crate::{
    h2load::H2Load,
    machine::has,
    rounds::{Spread, paired},
    settings::Settings,
    stage::{Server, Stage},
    wrk::{Expect, Load, Wrk},
};
use std::io;

/// The processes, the settings and the report that each part works with.
#[derive(Debug, Clone, Copy)]
pub struct Bench<'a> {
    pub stage: &'a Stage,
    pub settings: &'a Settings,
}

/// The cost of one server under the load of one round.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    pub per_second: f64,
    /// CPU of the server for a request, in µs.
    pub cpu: f64,
    /// CPU of Redis for a request, in µs.
    pub redis: f64,
}

/// The load of a part: its path, the status that its answers must have, and the script that wrk runs with.
#[derive(Debug, Clone, Copy)]
pub struct Ask<'a> {
    pub path: &'a str,
    pub expect: Expect,
    pub script: Option<(&'a str, usize)>,
}

// === impl Ask ===

impl<'a> Ask<'a> {
    pub fn path(path: &'a str) -> Self {
        Self { path, expect: Expect::Success, script: None }
    }

    pub fn keys(path: &'a str, count: usize) -> Self {
        Self { script: Some(("keys.lua", count)), ..Self::path(path) }
    }
}

// === impl Bench ===

impl<'a> Bench<'a> {
    pub fn wrk<'b>(&self, server: &'b Server, ask: Ask<'b>) -> Wrk<'b>
    where
        'a: 'b,
    {
        Wrk {
            cores: &self.stage.layout.load,
            dir: &self.stage.dir,
            seconds: self.settings.seconds,
            threads: 1,
            connections: 64,
            server,
            path: ask.path,
            expect: ask.expect,
            script: ask.script,
        }
    }

    /// Loads `server` for one round, and returns what this cost the server and `redis`.
    pub fn load(
        &self,
        server: &Server,
        redis: Option<&Server>,
        ask: Ask<'a>,
    ) -> io::Result<Sample> {
        self.cost(server, redis, || self.wrk(server, ask).run())
    }

    /// Returns the load of HTTP/2 whose answers have 128 bytes.
    pub fn h2load(&self, connections: u32, streams: u32) -> H2Load<'a> {
        H2Load {
            cores: &self.stage.layout.load,
            dir: &self.stage.dir,
            seconds: self.settings.seconds,
            connections,
            streams,
            path: "/v1/search",
            message: None,
            body: 128,
        }
    }

    /// Runs one load, and returns what it cost `server` and `redis`.
    pub fn cost(
        &self,
        server: &Server,
        redis: Option<&Server>,
        run: impl Fn() -> io::Result<Load>,
    ) -> io::Result<Sample> {
        let cpu_of_redis = || redis.map_or(Ok(0), |redis| redis.process.cpu());
        let before = (server.process.cpu()?, cpu_of_redis()?);
        let load = run()?;
        let each = |after: u64, before: u64| (after - before) as f64 / 1e3 / load.requests;
        Ok(Sample {
            per_second: load.per_second,
            cpu: each(server.process.cpu()?, before.0),
            redis: each(cpu_of_redis()?, before.1),
        })
    }
}

/// Divides the CPU of our samples by that of theirs, round by round.
pub fn cpu_ratio(ours: &[Sample], theirs: &[Sample]) -> Spread {
    paired(ours, theirs, |ours, theirs| ours.cpu / theirs.cpu)
}

/// Makes a line of a table: requests/s, CPU, and the ratio to `base`.
pub fn line(name: &str, own: &[Sample], base: Option<&[Sample]>) -> Vec<String> {
    let rate = Spread::of(own.iter().map(|sample| sample.per_second));
    let cpu = Spread::of(own.iter().map(|sample| sample.cpu));
    let ratio = base.map_or(String::new(), |base| cpu_ratio(own, base).to_string());
    vec![name.to_owned(), format!("{:.0}", rate.median), format!("{cpu:.1}"), ratio]
}

/// Names the programs of `tools` that are not installed, or returns `None` if all are.
pub fn missing(tools: &[&str]) -> Option<String> {
    let missing: Vec<&str> = tools.iter().copied().filter(|tool| !has(tool)).collect();
    (!missing.is_empty()).then(|| format!("{} not installed", missing.join(", ")))
}
