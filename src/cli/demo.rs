//! `paceway demo`: a pretend vendor that throttles, a gateway in front of it, and callers for the dashboard, in one process.

mod traffic;
mod vendor;

use super::{CommandError, log, print};
use crate::{
    config::{AccessLog, Config},
    server::Server,
};
use std::path::Path;
use vendor::{KEY, QUOTA};

/// The gateway's limiter. The vendor counts arrivals in a sliding window of 1 s; the margin keeps the gateway within it even
/// if a request travels up to 100 ms faster than the one five before it.
const LIMITER: &str = "{ algorithm: sliding_window, rate: 5/s, margin: 100ms }";

/// The limiters and routes of the callers that the dashboard shows. Their demand comes in waves, which exceed the limits for
/// some seconds; the vendor refuses calls to `/catalog` now and then, which pauses the limiter.
const SHOWN: &str = r#"
  catalog: { rate: 20/s, burst: 10 }
  per_shop: { rate: 4/s, key: "{header.x-shop}" }
  exports: { algorithm: concurrency, max: 3 }
  reports: { rate: 2/s, mode: observe }
routes:
- { name: catalog, suffix: /catalog, limiters: [catalog], max_wait: 4s }
- { name: orders, suffix: /orders, limiters: [per_shop], max_wait: 3s }
- { name: exports, suffix: /exports, limiters: [exports], max_wait: 8s }
- { name: reports, suffix: /reports, limiters: [reports], max_wait: 1s }
"#;

pub(super) fn demo(port: u16, admin_port: u16, vendor_port: u16) -> Result<(), CommandError> {
    let vendor = vendor::start(vendor_port)?;
    let text = format!(
        "listen: 127.0.0.1:{port}\nadmin: 127.0.0.1:{admin_port}\nupstream: http://{vendor}\n\
         limiters:\n  vendor: {LIMITER}{SHOWN}\
         - {{ name: all, suffix: \"*\", limiters: [vendor], max_wait: 30s,\n\
         \x20   headers: {{ request: {{ set: {{ {}: {} }} }} }} }}\n",
        KEY.0, KEY.1
    );
    let config =
        Config::parse(&text, "demo", Path::new("."), &|_| None).map_err(CommandError::usage)?;
    let (access_log, _flush) = log::start(Some(AccessLog::Off), None)?;
    let server = Server::bind(config, access_log).map_err(anyhow::Error::new)?;
    let (gateway, admin) = server.addresses();
    print(&format!(
        "# The dashboard, live with waits, refusals and pauses: http://{admin}/\n\
         # A pretend vendor, {QUOTA} calls a second for each API key: http://{vendor}\n\
         # The gateway before it, with an API key of its own:   http://{gateway}\n\
         # The state and the metrics of the gateway:            http://{admin}/limiters  http://{admin}/metrics\n\
         # Paste these lines into another terminal, all at once or one by one, in any order.\n\
         \n\
         # Straight to the vendor: {QUOTA} of 20 calls pass in each second, the others get a 429.\n\
         for i in $(seq 20); do curl -s -o /dev/null -w '%{{http_code}} ' http://{vendor}/search; done; echo\n\
         \n\
         # Through the gateway: all 20 pass. `max_wait: 30s` on its route holds each call until its slot comes, about 3\n\
         # seconds in all.\n\
         for i in $(seq 20); do curl -s -o /dev/null -w '%{{http_code}} ' http://{gateway}/search; done; echo\n\
         \n\
         # One call with its headers. Server-Timing says for how many ms it waited, if it did.\n\
         curl -i http://{gateway}/search; echo\n\
         \n\
         # Stop it all with Ctrl-C; calls that still wait are served first. Ctrl-C again ends it at once."
    ))?;
    traffic::start(gateway)?;
    Ok(server.run().map_err(anyhow::Error::new)?)
}
