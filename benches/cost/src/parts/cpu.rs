//! CPU of a limited, proxied request with the memory store, compared with nginx and haproxy; and CPU of a refused one.

use super::{Ask, Bench, Sample, cpu_ratio, line, missing};
use crate::{
    report::{Bar, Report, Row, Table, Target},
    rounds::{Turn, rounds},
    stage::{Door, Server},
    wrk::Expect,
};
use std::io;

const PACEWAY: &str = "CPU per request, memory store / nginx `limit_req`";
const REFUSED: &str = "CPU of a refused request (429) / of a forwarded one";
const HAPROXY: &str = "haproxy: CPU per request / nginx `limit_req`";

pub fn measure(bench: &Bench<'_>) -> io::Result<Report> {
    if let Some(why) = missing(&["wrk"]) {
        return Err(io::Error::other(why));
    }
    let gateway = bench.stage.paceway(&bench.stage.usual())?;
    let nginx = missing(&["nginx"])
        .is_none()
        .then(|| bench.stage.nginx(Door::Clear, None, &[]))
        .transpose()?;
    let haproxy = missing(&["haproxy"])
        .is_none()
        .then(|| bench.stage.haproxy(Door::Clear, &[]))
        .transpose()?;
    let search = Ask::path("/v1/search");
    let refused = Ask { expect: Expect::Refusal, ..Ask::path("/v1/refused") };

    let mut names = vec!["paceway", "paceway, refused"];
    let mut loads: Vec<(&Server, Ask<'_>)> = vec![(&gateway, search), (&gateway, refused)];
    for (name, peer) in [("nginx `limit_req`", &nginx), ("haproxy", &haproxy)] {
        if let Some(peer) = peer {
            names.push(name);
            loads.push((peer, search));
        }
    }
    let turns: Vec<Turn<'_, Sample>> = loads
        .iter()
        .map(|(server, ask)| Box::new(|| bench.load(server, None, *ask)) as Turn<'_, Sample>)
        .collect();
    let samples = rounds(bench.settings.rounds, &turns)?;
    let of = |name: &str| names.iter().position(|own| *own == name).map(|i| samples[i].as_slice());
    let base = of("nginx `limit_req`");

    let ratio = |what, name, target| Row {
        what,
        target,
        decimals: 2,
        measured: match (of(name), base) {
            (Some(own), Some(base)) => Ok(cpu_ratio(own, base)),
            (_, None) => Err("nginx is not installed".into()),
            (None, _) => Err(format!("{name} is not installed")),
        },
    };
    let rows = vec![
        ratio(PACEWAY, "paceway", Some(Target::AtMost { must: 1.08, aim: Some(1.0) })),
        Row::new(
            REFUSED,
            2,
            Some(Target::AtMost { must: 0.6, aim: Some(0.4) }),
            cpu_ratio(&samples[1], &samples[0]),
        ),
        ratio(HAPROXY, "haproxy", None),
    ];
    let table = Table {
        head: vec!["memory store", "requests/s", "CPU, µs per request", "CPU × nginx"],
        rows: names.iter().zip(&samples).map(|(name, own)| line(name, own, base)).collect(),
    };
    let bar = |name| {
        let value = cpu_ratio(of(name)?, base?).median;
        Some(Bar { group: "CPU per request × nginx, memory store", name, value })
    };
    let bars = [bar("paceway"), bar("paceway, refused"), bar("nginx `limit_req`"), bar("haproxy")];
    Ok(Report { rows, tables: vec![table], bars: bars.into_iter().flatten().collect() })
}
