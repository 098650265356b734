//! Requests at a constant rate, whatever the answers do, and their latency.
//!
//! A request counts from the instant it was due, also when its connection was still busy then: a slow answer cannot hide
//! the requests that it held up (coordinated omission).

use crate::client::{Connection, request};
use std::{
    fs, io,
    net::SocketAddr,
    thread,
    time::{Duration, Instant},
};

const CONNECTIONS: u32 = 64;
/// The time before the first counted request: afterwards connections, caches and branch predictors are warm.
const WARM: Duration = Duration::from_millis(300);

/// Prints the median, the 99th percentile and the 99.9th of the latency, in microseconds.
pub fn run(address: SocketAddr, path: &str, rate: u32, span: Duration) -> io::Result<()> {
    let request = request(address, path);
    // A sleep may be 50 µs longer than asked by default, which is as much as what is measured; threads inherit this.
    // Where it cannot be changed, all servers get the same sleeps.
    let _ = fs::write("/proc/self/timerslack_ns", "1");
    // 200 ms later all connections are open.
    let start = Instant::now() + Duration::from_millis(200);
    let mut latencies = thread::scope(|scope| {
        let request = request.as_bytes();
        let clients: Vec<_> = (0..CONNECTIONS)
            .map(|i| scope.spawn(move || client(address, request, start, rate, span, i)))
            .collect();
        let mut latencies = Vec::new();
        for client in clients {
            let own = client.join().map_err(|_| io::Error::other("a client panicked"))?;
            latencies.extend(own?);
        }
        io::Result::Ok(latencies)
    })?;
    latencies.sort_unstable();
    let at = |share: f64| {
        let i = (latencies.len() as f64 * share) as usize;
        latencies.get(i).map_or(0.0, |latency: &Duration| latency.as_secs_f64() * 1e6)
    };
    println!("{:.1} {:.1} {:.1}", at(0.5), at(0.99), at(0.999));
    Ok(())
}

fn client(
    address: SocketAddr,
    request: &[u8],
    start: Instant,
    rate: u32,
    span: Duration,
    i: u32,
) -> io::Result<Vec<Duration>> {
    let mut connection = Connection::open(address)?;
    let mut latencies = Vec::new();
    let end = start + WARM + span;
    for turn in 0.. {
        let due = start + Duration::from_secs(1) * (turn * CONNECTIONS + i) / rate;
        if due >= end {
            break;
        }
        thread::sleep(due.saturating_duration_since(Instant::now()));
        connection.exchange(request)?;
        if due >= start + WARM {
            latencies.push(due.elapsed());
        }
    }
    Ok(latencies)
}
