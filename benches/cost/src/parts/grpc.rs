//! CPU of a unary gRPC call of 128 bytes, with HTTP/2 in clear text on both sides.

use super::{
    Bench,
    contest::{Heat, Rivals, contest},
    missing,
};
use crate::{
    h2load::H2Load,
    origin::{MESSAGE, message},
    report::{Report, Target},
    stage::{Door, Gateway},
};
use std::{fs, io};

pub fn measure(bench: &Bench<'_>) -> io::Result<Report> {
    if let Some(why) = missing(&["h2load"]) {
        return Err(io::Error::other(why));
    }
    let stage = bench.stage;
    let origin = stage.grpc_origin()?;
    let gateway = Gateway { door: Door::Calls, origin: origin.address, ..stage.usual() };
    let nginx = missing(&["nginx"]).is_none();
    let nginx =
        nginx.then(|| stage.nginx_to(origin.address, Door::Calls, None, &[])).transpose()?;
    let rivals = Rivals::of(stage.paceway(&gateway)?, nginx);
    let file = stage.dir.join("message");
    fs::write(&file, message())?;
    let run = Box::new(|server: &_| {
        let calls = H2Load {
            path: "/bench.Calls/Unary",
            message: Some(&file),
            body: MESSAGE as u64,
            ..bench.h2load(16, 8)
        };
        calls.run(server)
    });
    let heat = Heat {
        load: "16 × 8",
        what: "a unary gRPC call, 16 × 8: CPU / nginx `grpc_pass`",
        target: Target::AtMost { must: 0.7, aim: Some(0.5) },
        haproxy: None,
        run,
    };
    contest(bench, "gRPC", &[(&rivals, heat)])
}
