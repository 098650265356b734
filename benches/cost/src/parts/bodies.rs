//! CPU of bodies of 1 MiB, down and up, in clear text and over TLS.

use super::{
    Ask, Bench,
    contest::{Heat, Rivals, contest},
    missing,
};
use crate::{
    origin::LARGE,
    report::{Report, Target},
    stage::Door,
};
use std::io;

pub fn measure(bench: &Bench<'_>) -> io::Result<Report> {
    if let Some(why) = missing(&["wrk", "openssl"]) {
        return Err(io::Error::other(why));
    }
    let (clear, tls) = (Rivals::start(bench, Door::Clear)?, Rivals::start(bench, Door::Tls)?);
    let (down, up) = ("/v1/large", Some(("upload.lua", LARGE)));
    let down = Ask::path(down);
    let up = Ask { script: up, ..Ask::path("/v1/upload") };
    let in_clear = Target::AtMost { must: 0.95, aim: Some(0.85) };
    let over_tls = Target::AtMost { must: 1.0, aim: Some(0.95) };
    let heat = |rivals, load, what, target, ask| {
        // Few at a time: 64 MiB in flight measure the memory of the machine.
        let run = Box::new(move |server: &_| {
            crate::wrk::Wrk { connections: 8, ..bench.wrk(server, ask) }.run()
        });
        (rivals, Heat { load, what, target, haproxy: None, run })
    };
    let heats = [
        heat(&clear, "down", "1 MiB down: CPU / nginx `limit_req`", in_clear, down),
        heat(&clear, "up", "1 MiB up: CPU / nginx `limit_req`", in_clear, up),
        heat(&tls, "down, TLS", "1 MiB down over TLS: CPU / nginx `limit_req`", over_tls, down),
        heat(&tls, "up, TLS", "1 MiB up over TLS: CPU / nginx `limit_req`", over_tls, up),
    ];
    contest(bench, "bodies of 1 MiB", &heats)
}
