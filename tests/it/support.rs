//! The processes that the tests start: a redis-server, the gateway's own binary, origins, and sockets to talk to them.
//! Nothing in here replaces a part of Paceway.
//!
//! No test sleeps until something has happened: it waits for it ([`eventually`]), and every wait ends in a
//! failure that names what did not come.

mod authority;
mod browser;
mod cluster;
mod database;
mod dns;
mod frames;
mod gateway;
mod proxies;
mod redis;
mod rights;
mod sentinels;
mod shorthand;
mod upstream;
mod wire;

pub(crate) use authority::{Authority, self_signed, showing};
pub(crate) use browser::Browser;
pub(crate) use cluster::Cluster;
pub(crate) use database::{DatabaseServer, ServerKind};
pub(crate) use dns::{Dns, Says};
pub(crate) use frames::{Frames, PREFACE, block, frame, headers};
pub(crate) use gateway::{Gateway, faketime, paceway, paceway_fed, paceway_in};
pub(crate) use proxies::{OTHER_PROXIES, OtherProxy, blocks, service_address, service_of};
pub(crate) use redis::{Chaos, Redis, Said};
pub(crate) use rights::rights;
pub(crate) use sentinels::Sentinels;
pub(crate) use shorthand::{closed, connected_store, store};
pub(crate) use upstream::{Call, Reply, Upstream, reply};
pub(crate) use wire::{Answer, Conn, Head, get, request};

use std::{
    net::TcpListener,
    process,
    sync::atomic::{AtomicU16, Ordering::Relaxed},
    time::Duration,
};
use tokio::{
    sync::Semaphore,
    time::{Instant, sleep, timeout},
};

/// Longer than a machine with other work needs for any step of a test, so that only what never comes fails. A wait costs
/// nothing beyond the time until its event.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// Calls `look` until it returns a value, and fails after the patience of a test.
pub(crate) async fn eventually<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(seen) = look().await {
            return seen;
        }
        assert!(started.elapsed() < PATIENCE, "in {PATIENCE:?} it never came to this: {what}");
        sleep(Duration::from_millis(10)).await;
    }
}

/// Waits for the other side of a test to get there.
pub(crate) async fn reached(place: &Semaphore, what: &str) {
    let permit = timeout(PATIENCE, place.acquire()).await;
    permit.unwrap_or_else(|_| panic!("it never came to this: {what}")).expect("open").forget();
}

/// A closed port of 127.0.0.1, below those that the system hands out by itself, so that no connection takes it while a
/// test wants it free, or wants it back.
pub(crate) fn free_port() -> u16 {
    const FIRST: u16 = 10_000;
    const COUNT: u16 = 20_000;
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Test runs beside this one start elsewhere.
    let own = u16::try_from(process::id() % u32::from(COUNT)).expect("below COUNT");
    for _ in 0..COUNT {
        let offset =
            (u32::from(own) * 61 + u32::from(NEXT.fetch_add(1, Relaxed))) % u32::from(COUNT);
        let port = FIRST + u16::try_from(offset).expect("below COUNT");
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    panic!("no port of 127.0.0.1 is free");
}

/// Every prefix of `arrivals` at an upstream obeys a token bucket: the k-th was granted between `start` and
/// its arrival, so it cannot arrive before the rule lets k go. A tenth of a permit is for clocks that drift.
pub(crate) fn assert_lawful(start: Instant, arrivals: &[Instant], burst: f64, per_second: f64) {
    let mut sorted = arrivals.to_vec();
    sorted.sort();
    for (i, arrival) in sorted.iter().enumerate() {
        let after = arrival.duration_since(start).as_secs_f64();
        let most = burst + per_second * after + 0.1;
        let count = i + 1;
        assert!((count as f64) <= most, "{count} arrivals in {after:.3} s, where {most:.1} may be");
    }
}
