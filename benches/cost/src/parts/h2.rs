//! CPU of a request that comes over HTTP/2 and TLS, with many streams of a connection open at one time.

use super::{
    Bench,
    contest::{Heat, Rivals, contest},
    missing,
};
use crate::{
    report::{Report, Target},
    stage::Door,
};
use std::io;

pub fn measure(bench: &Bench<'_>) -> io::Result<Report> {
    if let Some(why) = missing(&["h2load", "openssl"]) {
        return Err(io::Error::other(why));
    }
    let rivals = Rivals::start(bench, Door::Tls)?;
    let heat = |load, what, haproxy, connections, streams| {
        let run = Box::new(move |server: &_| bench.h2load(connections, streams).run(server));
        let target = Target::AtMost { must: 1.1, aim: Some(0.95) };
        (&rivals, Heat { load, what, target, haproxy: Some(haproxy), run })
    };
    let heats = [
        heat(
            "16 × 8",
            "HTTP/2 over TLS, 16 connections × 8 streams: CPU per request / nginx `limit_req`",
            "haproxy: HTTP/2 over TLS, 16 × 8, CPU per request / nginx `limit_req`",
            16,
            8,
        ),
        heat(
            "1 × 100",
            "HTTP/2 over TLS, 1 connection × 100 streams: CPU per request / nginx `limit_req`",
            "haproxy: HTTP/2 over TLS, 1 × 100, CPU per request / nginx `limit_req`",
            1,
            100,
        ),
    ];
    contest(bench, "HTTP/2 over TLS", &heats)
}
