//! A load that several servers take in turn, and their CPU relative to nginx.

use super::{Bench, Sample, cpu_ratio, line, missing};
use crate::{
    report::{Report, Row, Table, Target},
    rounds::{Turn, rounds},
    stage::{Door, Server},
    wrk::Load,
};
use std::io;

/// The gateway and its peers at one door.
pub struct Rivals {
    gateway: Server,
    nginx: Option<Server>,
    haproxy: Option<Server>,
}

/// Loads a server once.
type Run<'a> = Box<dyn Fn(&Server) -> io::Result<Load> + 'a>;

/// One load of a contest, with the targets of the gateway.
pub struct Heat<'a> {
    /// The load in the names of the table's lines.
    pub load: &'static str,
    /// The row of the gateway among the targets.
    pub what: &'static str,
    pub target: Target,
    /// The row of haproxy, which is there for comparison.
    pub haproxy: Option<&'static str>,
    pub run: Run<'a>,
}

// === impl Rivals ===

impl Rivals {
    /// Starts the gateway, and each peer that is installed.
    pub fn start(bench: &Bench<'_>, door: Door) -> io::Result<Self> {
        let stage = bench.stage;
        let has = |name| missing(&[name]).is_none();
        Ok(Self {
            gateway: stage.paceway(&crate::stage::Gateway { door, ..stage.usual() })?,
            nginx: has("nginx").then(|| stage.nginx(door, None, &[])).transpose()?,
            haproxy: has("haproxy").then(|| stage.haproxy(door, &[])).transpose()?,
        })
    }

    /// The gateway and nginx alone, before another origin.
    pub fn of(gateway: Server, nginx: Option<Server>) -> Self {
        Self { gateway, nginx, haproxy: None }
    }

    fn named(&self) -> Vec<(&'static str, &Server)> {
        let peers = [("nginx `limit_req`", &self.nginx), ("haproxy", &self.haproxy)];
        let peers = peers.into_iter().filter_map(|(name, peer)| Some((name, peer.as_ref()?)));
        [("paceway", &self.gateway)].into_iter().chain(peers).collect()
    }
}

/// Runs all `heats` in the same rounds. The table's title is `title`.
pub fn contest(
    bench: &Bench<'_>,
    title: &'static str,
    heats: &[(&Rivals, Heat<'_>)],
) -> io::Result<Report> {
    let lanes: Vec<(usize, &str, &Server)> = heats
        .iter()
        .enumerate()
        .flat_map(|(i, (rivals, _))| {
            rivals.named().into_iter().map(move |(name, server)| (i, name, server))
        })
        .collect();
    let turns: Vec<Turn<'_, Sample>> = lanes
        .iter()
        .map(|(i, _, server)| {
            let run = &heats[*i].1.run;
            Box::new(move || bench.cost(server, None, || run(server))) as Turn<'_, Sample>
        })
        .collect();
    let samples = rounds(bench.settings.rounds, &turns)?;
    let of = |heat: usize, start: &str| {
        let lane = lanes.iter().position(|(i, name, _)| *i == heat && name.starts_with(start));
        lane.map(|lane| samples[lane].as_slice())
    };
    let mut rows = Vec::new();
    for (i, (_, heat)) in heats.iter().enumerate() {
        let wanted = [
            Some((heat.what, "paceway", Some(heat.target))),
            heat.haproxy.map(|what| (what, "haproxy", None)),
        ];
        for (what, name, target) in wanted.into_iter().flatten() {
            let measured = match (of(i, name), of(i, "nginx")) {
                (Some(own), Some(base)) => Ok(cpu_ratio(own, base)),
                (_, None) => Err("nginx is not installed".into()),
                (None, _) => Err(format!("{name} is not installed")),
            };
            rows.push(Row { what, target, decimals: 2, measured });
        }
    }
    let lines = lanes.iter().zip(&samples).map(|((i, name, _), own)| {
        line(&format!("{name}, {}", heats[*i].1.load), own, of(*i, "nginx"))
    });
    let head = vec![title, "requests/s", "CPU, µs per request", "CPU × nginx"];
    let table = Table { head, rows: lines.collect() };
    Ok(Report { rows, tables: vec![table], bars: Vec::new() })
}
