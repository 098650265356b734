//! CPU of a request with one decision of a shared Redis, compared with nginx and Lua; and the CPU of Redis for it.

use super::{Ask, Bench, Sample, cpu_ratio, line, missing};
use crate::{
    report::{Bar, Report, Row, Table, Target},
    rounds::{Spread, Turn, rounds},
    stage::{Door, Gateway, Server, nginx_modules},
};
use std::io;

const KEYS: usize = 1000;
const NO_PEER: &str = "nginx with its Lua module is not installed";

pub fn measure(bench: &Bench<'_>) -> io::Result<Report> {
    if let Some(why) = missing(&["redis-server", "wrk"]) {
        return Err(io::Error::other(why));
    }
    // Each server has its own Redis, so that their figures do not mix.
    let redis = bench.stage.redis()?;
    let their_redis = bench.stage.redis()?;
    let gateway = Gateway { redis: Some(redis.address), ..bench.stage.usual() };
    let gateway = bench.stage.paceway(&gateway)?;
    let lua = missing(&["nginx"]).is_none() && nginx_modules().is_some();
    let lua =
        lua.then(|| bench.stage.nginx(Door::Clear, Some(their_redis.address), &[])).transpose()?;
    let alone = bench.stage.paceway(&bench.stage.usual())?;

    let mut loads: Vec<(&str, &Server, &Server, Ask<'_>)> = vec![
        ("paceway, hot key", &gateway, &redis, Ask::path("/v1/search")),
        ("paceway, 1,000 keys", &gateway, &redis, Ask::keys("/v1/keyed", KEYS)),
    ];
    if let Some(lua) = &lua {
        loads.push(("nginx + Lua, hot key", lua, &their_redis, Ask::path("/v1/search")));
        loads.push(("nginx + Lua, 1,000 keys", lua, &their_redis, Ask::keys("/v1/search", KEYS)));
    }
    let turns = loads.iter().map(|(_, server, redis, ask)| {
        Box::new(|| bench.load(server, Some(redis), *ask)) as Turn<'_, Sample>
    });
    let without = || bench.load(&alone, None, Ask::path("/v1/search"));
    let turns: Vec<Turn<'_, Sample>> =
        turns.chain([Box::new(without) as Turn<'_, Sample>]).collect();
    let mut samples = rounds(bench.settings.rounds, &turns)?;
    let memory = samples.pop().unwrap_or_default();

    let of_redis = |i: usize| Spread::of(samples[i].iter().map(|sample| sample.redis));
    let ratio = |what, i: usize, target| Row {
        what,
        target,
        decimals: 2,
        measured: match samples.get(i + 2) {
            Some(theirs) => Ok(cpu_ratio(&samples[i], theirs)),
            None => Err(NO_PEER.into()),
        },
    };
    let at_most = |must, aim| Some(Target::AtMost { must, aim: Some(aim) });
    let mut rows = vec![
        ratio("Redis, hot key: CPU per request / nginx + Lua", 0, at_most(0.8, 0.65)),
        ratio("Redis, 1,000 keys: CPU per request / nginx + Lua", 1, None),
        // The most that a gateway could save by asking less often, with slots leased in blocks.
        Row::new(
            "Redis, hot key: CPU per request / memory store",
            2,
            None,
            cpu_ratio(&samples[0], &memory),
        ),
        Row::new("Redis' own CPU per request, hot key, µs", 1, at_most(5.0, 4.0), of_redis(0)),
        Row::new("Redis' own CPU per request, 1,000 keys, µs", 1, at_most(14.0, 7.0), of_redis(1)),
    ];
    if lua.is_some() {
        rows.push(Row::new("nginx + Lua: Redis' own CPU, hot key, µs", 1, None, of_redis(2)));
        rows.push(Row::new("nginx + Lua: Redis' own CPU, 1,000 keys, µs", 1, None, of_redis(3)));
    }
    // Samples on the hot key are compared with the hot key, those on 1,000 keys with 1,000 keys.
    let base = |i: usize| samples.get(i % 2 + 2).map(Vec::as_slice);
    let lines = loads.iter().enumerate().map(|(i, (name, ..))| {
        let mut line = line(name, &samples[i], base(i));
        line.push(format!("{:.1}", of_redis(i)));
        line
    });
    let table = Table {
        head: vec![
            "Redis",
            "requests/s",
            "CPU, µs per request",
            "CPU × nginx + Lua",
            "CPU of Redis, µs",
        ],
        rows: lines.collect(),
    };
    let mut bars = Vec::new();
    for (i, (name, ..)) in loads.iter().enumerate() {
        if let Some(base) = base(i) {
            let value = cpu_ratio(&samples[i], base).median;
            bars.push(Bar { group: "CPU per request × nginx + Lua, Redis", name, value });
        }
    }
    Ok(Report { rows, tables: vec![table], bars })
}
