//! Outages under load: the sum that two gateways let through stays lawful, however their store fails.

use super::{CLOSED, OPEN, config, decided_by, durable, until_breaker, until_gateways};
use crate::support::{Conn, Gateway, Redis, Upstream, request};
use parking_lot::Mutex;
use rstest::rstest;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::time::{Instant, sleep};

/// Clients of all gateways that ask without a pause, until it is dropped.
struct Load {
    ends: Arc<AtomicBool>,
    tasks: Vec<tokio::task::JoinHandle<Vec<u16>>>,
}

impl Load {
    fn on(gateways: &[Gateway], clients: usize) -> Self {
        let ends = Arc::<AtomicBool>::default();
        let load = gateways.iter().flat_map(|gateway| {
            let (ends, address) = (ends.clone(), gateway.listen);
            (0..clients).map(move |_| tokio::spawn(ask_on(address, ends.clone())))
        });
        Self { tasks: load.collect(), ends: ends.clone() }
    }

    /// Ends the load, and returns the statuses of all answers in their order.
    async fn end(self) -> Vec<u16> {
        self.ends.store(true, Relaxed);
        let mut all = Vec::new();
        for task in self.tasks {
            all.extend(task.await.expect("a client"));
        }
        all
    }
}

async fn ask_on(address: std::net::SocketAddr, ends: Arc<AtomicBool>) -> Vec<u16> {
    let mut statuses = Vec::new();
    while !ends.load(Relaxed) {
        let Ok(mut conn) = Conn::to(address).await else { break };
        while !ends.load(Relaxed) {
            if conn.send(request("GET", "/search", &[])).await.is_err() {
                break;
            }
            let Ok(answer) = conn.answer().await else { break };
            statuses.push(answer.status);
            if answer.status != 200 {
                sleep(Duration::from_millis(20)).await;
            }
        }
    }
    statuses
}

fn between(arrivals: &[Instant], from: Instant, to: Instant) -> usize {
    arrivals.iter().filter(|at| (from..to).contains(at)).count()
}

const FORTY: &str = "limiters: { search: { rate: 40/s, burst: 10 } }
routes: [{ name: search, suffix: /search, limiters: [search], max_wait: 500ms }]
";

/// The moments in which this machine ran no thread of ours: a thread that sleeps for a few ms notes each longer sleep.
struct Stalls {
    seen: Arc<Mutex<Vec<(Instant, Instant)>>>,
}

impl Stalls {
    const LEAST: Duration = Duration::from_millis(50);

    /// For as long as it lives.
    fn watch() -> Self {
        let seen = Arc::<Mutex<Vec<_>>>::default();
        let noted = Arc::downgrade(&seen);
        std::thread::spawn(move || {
            let mut last = Instant::now();
            while let Some(noted) = noted.upgrade() {
                std::thread::sleep(Duration::from_millis(5));
                let now = Instant::now();
                if now - last > Self::LEAST {
                    noted.lock().push((last, now));
                }
                last = now;
            }
        });
        Self { seen }
    }

    /// The length of those that had a part in that time.
    fn within(&self, from: Instant, to: Instant) -> Duration {
        let seen = self.seen.lock();
        seen.iter()
            .filter(|stall| stall.0 < to && from < stall.1)
            .map(|stall| stall.1 - stall.0)
            .sum()
    }
}

/// The event that ends an outage.
#[derive(Debug, Clone, Copy)]
enum Outage {
    Frozen,
    Killed,
}

/// The law holds before, during and after an outage, and the gateways together use the rate that is left.
#[rstest]
#[case::frozen(Outage::Frozen)]
#[case::killed(Outage::Killed)]
#[tokio::test(flavor = "multi_thread")]
async fn two_gateways_share_a_rate_without_their_store(#[case] outage: Outage) {
    let (mut redis, upstream) = (durable(), Upstream::ok().await);
    let yaml = config(&redis.url(), "timeout: 100ms", &upstream, FORTY);
    let gateways = [Gateway::start(&yaml).await, Gateway::start(&yaml).await];
    for gateway in &gateways {
        until_gateways(gateway, 2.0).await;
    }
    let started = Instant::now();
    let load = Load::on(&gateways, 15);
    sleep(Duration::from_secs(2)).await;
    let died = Instant::now();
    match outage {
        Outage::Frozen => redis.freeze(),
        Outage::Killed => redis.kill(),
    }
    for gateway in &gateways {
        until_breaker(gateway, OPEN).await;
    }
    sleep(Duration::from_secs(1)).await;
    let away = Instant::now();
    sleep(Duration::from_secs(4)).await;
    let back = Instant::now();
    match outage {
        Outage::Frozen => redis.thaw(),
        Outage::Killed => redis.start_again(),
    }
    for gateway in &gateways {
        until_breaker(gateway, CLOSED).await;
    }
    sleep(Duration::from_secs(2)).await;
    let ended = Instant::now();
    let answers = load.end().await;
    assert!(answers.iter().all(|status| [200, 429].contains(status)), "{answers:?}");

    let arrivals = upstream.arrivals();
    let span = (back - away).as_secs_f64();
    let passed = between(&arrivals, away, back) as f64;
    assert!(
        (0.75 * 40.0 * span..=1.1 * 40.0 * span + 1.0).contains(&passed),
        "{passed} passed in {span} s without the store"
    );
    // In sum over everything that came before, at any time. The gateways do not know of each other's last few.
    let mut sorted = arrivals.clone();
    sorted.sort();
    for (i, at) in sorted.iter().enumerate() {
        let after = (*at - started).as_secs_f64();
        let most = 10.0 + 40.0 * after + 8.0;
        assert!(
            (i + 1) as f64 <= most,
            "{} in {after} s; it died after {:?}",
            i + 1,
            died - started
        );
    }
    // After the return as well.
    let (later, span) = (between(&arrivals, back, ended) as f64, (ended - back).as_secs_f64());
    assert!(later <= 10.0 + 40.0 * span + 8.0, "{later} in {span} s after the return");
}

/// Requests wait when the store comes back: their slots lie ahead, and are not granted a second time.
#[rstest]
#[case::of_both(2)]
#[case::of_one(1)]
#[tokio::test(flavor = "multi_thread")]
async fn waiting_requests_keep_their_slots_when_the_store_returns(#[case] waiting: usize) {
    const COUNT: usize = 36;
    // The permits that both take while one has seen that the store is back, and the other has not. Before that, each of
    // the two gateways may grant its share beside the whole window of the other one: an answer that a busy machine delays
    // by more than the time-out is one that the store did not give (docs/operation.md, Some gateways without the store).
    const MORE: usize = 9;
    let (redis, upstream) = (Redis::start(), Upstream::ok().await);
    let rest = "limiters: { search: { algorithm: sliding_window, rate: 36/s, margin: 200ms } }
routes: [{ name: search, suffix: /search, limiters: [search], max_wait: 1500ms }]
";
    let yaml = config(&redis.url(), "timeout: 100ms", &upstream, rest);
    let gateways = [Gateway::start(&yaml).await, Gateway::start(&yaml).await];
    for gateway in &gateways {
        until_gateways(gateway, 2.0).await;
    }
    let stalls = Stalls::watch();
    let load = Load::on(&gateways[..waiting], 60);
    sleep(Duration::from_secs(1)).await;
    redis.freeze();
    for gateway in &gateways {
        until_breaker(gateway, OPEN).await;
    }
    sleep(Duration::from_secs(3)).await;
    assert!(decided_by(&gateways[0], "local").await > 0.0);
    let back = Instant::now();
    redis.thaw();
    for gateway in &gateways {
        until_breaker(gateway, CLOSED).await;
    }
    let later = Load::on(&gateways[waiting..], 15);
    sleep(Duration::from_secs(4)).await;
    let answers = [load.end().await, later.end().await].concat();
    assert!(answers.iter().all(|status| [200, 429].contains(status)), "{answers:?}");
    let mut arrivals = upstream.arrivals();
    arrivals.sort();
    let within = |from: &Instant| between(&arrivals, *from, *from + Duration::from_secs(1));
    for (i, from) in arrivals.iter().enumerate() {
        let (count, after) = (within(from), *from - arrivals[0]);
        // A stall of the machine brings arrivals together that belong as far apart as the stall lasted.
        let stalled = stalls.within(*from, *from + Duration::from_secs(1)).as_secs_f64();
        let more = if *from + Duration::from_secs(1) < back { COUNT } else { MORE };
        assert!(
            count as f64 <= (COUNT + more) as f64 + COUNT as f64 * stalled,
            "{count} in a second, the {i}th on, {after:?} after the first; stalls of {stalled} s"
        );
    }
}
