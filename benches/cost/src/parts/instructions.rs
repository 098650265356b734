//! User instructions of a request, counted by callgrind: other load on the machine does not change them.

use super::{Bench, missing};
use crate::{
    client::page,
    machine::find,
    process::Process,
    report::{Bar, Report, Row, Table, Target},
    rounds::Spread,
    stage::{Door, Gateway, Server, nginx_modules, own},
};
use std::{fs, io, path::Path, time::Duration};

/// Requests before the first counted one: afterwards connections, pools and caches are there.
const WARM: u32 = 2000;
const REQUESTS: u32 = 20_000;
const PATIENCE: Duration = Duration::from_secs(300);

pub fn measure(bench: &Bench<'_>) -> io::Result<Report> {
    if let Some(why) = missing(&["valgrind", "vgdb"]) {
        return Err(io::Error::other(why));
    }
    let stage = bench.stage;
    let count =
        |name: &'static str, server: io::Result<Server>| -> io::Result<(&'static str, f64)> {
            eprint!("{name} ");
            Ok((name, requests(bench, &server?)?))
        };
    let under = under(bench);
    let mut counts: Vec<(&'static str, f64)> = vec![count("paceway, memory", gateway(bench))?];
    let off = Gateway { throttle: false, under: under.clone(), ..stage.usual() };
    counts.push(count("paceway, memory, `throttle: off`", stage.paceway(&off))?);
    let redis = missing(&["redis-server"]).is_none().then(|| stage.redis()).transpose()?;
    if let Some(redis) = &redis {
        let gateway = Gateway { redis: Some(redis.address), under: under.clone(), ..stage.usual() };
        counts.push(count("paceway, Redis", stage.paceway(&gateway))?);
    }
    if missing(&["nginx"]).is_none() {
        counts.push(count("nginx `limit_req`", stage.nginx(Door::Clear, None, &under))?);
        if let (Some(redis), Some(_)) = (&redis, nginx_modules()) {
            counts.push(count(
                "nginx + Lua, Redis",
                stage.nginx(Door::Clear, Some(redis.address), &under),
            )?);
        }
    }
    if missing(&["haproxy"]).is_none() {
        counts.push(count("haproxy", stage.haproxy(Door::Clear, &under))?);
    }
    eprintln!();
    let row = |what, of: &str, must, aim| {
        let measured = counts.iter().find(|(name, _)| *name == of)?.1;
        let target = Some(Target::AtMost { must, aim: Some(aim) });
        Some(Row::new(what, 0, target, Spread::one(measured)))
    };
    let rows = [
        row("user instructions per request, memory store", "paceway, memory", 29_000.0, 25_000.0),
        row(
            "the same with Redis, most decisions from blocks",
            "paceway, Redis",
            50_000.0,
            42_000.0,
        ),
    ];
    let rows = rows.into_iter().flatten().collect();
    let table = Table {
        head: vec!["callgrind", "user instructions per request"],
        rows: counts
            .iter()
            .map(|(name, count)| vec![(*name).into(), format!("{count:.0}")])
            .collect(),
    };
    let bar = |(name, value): (&'static str, f64)| Bar {
        group: "User instructions per request",
        name,
        value,
    };
    Ok(Report { rows, tables: vec![table], bars: counts.into_iter().map(bar).collect() })
}

/// Starts the usual gateway under callgrind.
pub fn gateway(bench: &Bench<'_>) -> io::Result<Server> {
    bench.stage.paceway(&Gateway { under: under(bench), ..bench.stage.usual() })
}

/// Starts `program`, an axum program, with the routes of the usual gateway and the given front under callgrind.
pub fn mounted(bench: &Bench<'_>, program: &Path, front: &str) -> io::Result<Server> {
    bench.stage.mounted(program, front, &under(bench))
}

fn under(bench: &Bench<'_>) -> Vec<String> {
    let dir = bench.stage.dir.display();
    vec![
        "valgrind".into(),
        "--tool=callgrind".into(),
        format!("--vgdb-prefix={dir}/vgdb"),
        format!("--callgrind-out-file={dir}/callgrind.%p"),
    ]
}

/// Counts the instructions of a request of `server`, which runs under callgrind. The counters are set to zero when the
/// server is warm and read while it runs, so they contain nothing of its start, such as a calibration of clocks, and
/// nothing of its end.
pub fn requests(bench: &Bench<'_>, server: &Server) -> io::Result<f64> {
    let stage = bench.stage;
    let send = |count: u32| {
        let address = server.address.to_string();
        let command = own(&["--repeat", &address, "/v1/search", &count.to_string()])?;
        Process::run(&stage.layout.load, &stage.dir, &command, PATIENCE)
    };
    // The work of a scrape for the requests before it counts as a part of these requests.
    let scrape = || server.admin.map_or(Ok(String::new()), |admin| page(admin, "/metrics"));
    send(WARM)?;
    scrape()?;
    tell(bench, server, "zero")?;
    send(REQUESTS)?;
    scrape()?;
    tell(bench, server, "dump")?;
    let file = stage.dir.join(format!("callgrind.{}.1", server.process.id()));
    let text = fs::read_to_string(&file)?;
    let total = text.lines().find_map(|line| line.strip_prefix("totals: ")?.trim().parse().ok());
    let total: f64 = total.ok_or_else(|| io::Error::other("callgrind says no total"))?;
    Ok(total / f64::from(REQUESTS))
}

fn tell(bench: &Bench<'_>, server: &Server, what: &str) -> io::Result<()> {
    let stage = bench.stage;
    let vgdb = find("vgdb").ok_or(io::ErrorKind::NotFound)?;
    let command = [
        vgdb.display().to_string(),
        format!("--vgdb-prefix={}/vgdb", stage.dir.display()),
        format!("--pid={}", server.process.id()),
        what.to_owned(),
    ];
    Process::run(&stage.layout.load, &stage.dir, &command, PATIENCE).map(drop)
}
