//! CPU of a request that comes over HTTP/1.1 and TLS, on a connection that stays, and on one of its own.

use super::{
    Ask, Bench,
    contest::{Heat, Rivals, contest},
    missing,
};
use crate::{
    report::{Report, Target},
    stage::Door,
};
use std::io;

pub fn measure(bench: &Bench<'_>) -> io::Result<Report> {
    if let Some(why) = missing(&["wrk", "openssl"]) {
        return Err(io::Error::other(why));
    }
    let rivals = Rivals::start(bench, Door::Tls)?;
    let usual = Ask::path("/v1/search");
    let alone = Ask { script: Some(("close.lua", 0)), ..usual };
    let heat = |load, what, target, ask| {
        let run = Box::new(move |server: &_| bench.wrk(server, ask).run());
        (&rivals, Heat { load, what, target, haproxy: None, run })
    };
    let heats = [
        heat(
            "kept connections",
            "HTTP/1.1 over TLS: CPU per request / nginx `limit_req`",
            Target::AtMost { must: 1.0, aim: Some(0.95) },
            usual,
        ),
        heat(
            "a handshake each",
            "a TLS handshake and one request: CPU / nginx `limit_req`",
            Target::AtMost { must: 1.0, aim: Some(0.7) },
            alone,
        ),
    ];
    contest(bench, "HTTP/1.1 over TLS", &heats)
}
