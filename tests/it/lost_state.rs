//! A server that loses states under load, or seems to, and the gateways that use it: they continue within the law, as if
//! everything that can have been granted had been.

use crate::support::{
    Cluster, Conn, Gateway, Redis, Reply, Said, Upstream, assert_lawful, eventually, get,
};
use rstest::rstest;
use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::{
    sync::Semaphore,
    task::JoinSet,
    time::{Instant, sleep},
};

const RATE: f64 = 40.0;

fn config(redis: &Redis, upstream: &Upstream) -> String {
    format!(
        "store: {{ url: \"{}\", timeout: 10s, on_failure: reject }}
workers: 2
upstream: {}
limiters: {{ it: {{ rate: 40/s, burst: 40 }} }}
routes: [{{ name: it, suffix: /it, limiters: [it], max_wait: 400ms }}]
",
        redis.url(),
        upstream.url()
    )
}

/// Clients that ask without a pause for as long as it lives, and what they were answered.
struct Load {
    stop: Arc<AtomicBool>,
    clients: JoinSet<Vec<u16>>,
}

impl Load {
    fn new() -> Self {
        Self { stop: Arc::default(), clients: JoinSet::new() }
    }

    fn on(&mut self, gateway: SocketAddr) {
        for _ in 0..6 {
            let stop = self.stop.clone();
            self.clients.spawn(async move {
                let mut statuses = Vec::new();
                while !stop.load(Relaxed) {
                    let status = get(gateway, "/it").await.status;
                    statuses.push(status);
                    if status != 200 {
                        sleep(Duration::from_millis(10)).await;
                    }
                }
                statuses
            });
        }
    }

    async fn end(self) -> Vec<u16> {
        self.stop.store(true, Relaxed);
        self.clients.join_all().await.concat()
    }
}

async fn until_passed(upstream: &Upstream, more: usize) {
    let count = upstream.calls().len() + more;
    eventually("more requests pass", async || (upstream.calls().len() >= count).then_some(()))
        .await;
}

async fn losses(gateways: &[Gateway]) -> Vec<f64> {
    let mut all = Vec::new();
    for gateway in gateways {
        all.push(gateway.metric("paceway_store_losses_total", &[]).await);
    }
    all
}

fn warnings(gateway: &Gateway) -> usize {
    let is_one = |event: &serde_json::Value| {
        event["level"] == "WARN" && event.to_string().contains("the store has lost states")
    };
    gateway.events().iter().filter(|event| is_one(event)).count()
}

#[derive(Debug, Clone, Copy)]
enum What {
    Flushes,
    RestartsEmpty,
    RestartsWithItsData,
    ForgetsFunctions,
    Reloads,
}

#[rstest]
#[case::flushed(What::Flushes, 1.0)]
#[case::restarted_empty(What::RestartsEmpty, 1.0)]
#[case::restarted_with_its_data(What::RestartsWithItsData, 1.0)]
#[case::without_functions(What::ForgetsFunctions, 0.0)]
#[case::reloaded_and_stuck(What::Reloads, 0.0)]
#[tokio::test(flavor = "multi_thread")]
async fn the_law_holds_across_events_of_a_server(#[case] what: What, #[case] lost: f64) {
    let mut redis = match what {
        What::RestartsWithItsData => {
            Redis::with(&["--appendonly", "yes", "--appendfsync", "always"])
        }
        What::Reloads => Redis::with(&["--enable-debug-command", "yes"]),
        _ => Redis::start(),
    };
    let upstream = Upstream::ok().await;
    let yaml = config(&redis, &upstream);
    let start = Instant::now();
    let mut gateways = vec![Gateway::start(&yaml).await, Gateway::start(&yaml).await];
    let mut load = Load::new();
    gateways.iter().for_each(|gateway| load.on(gateway.listen));
    until_passed(&upstream, 60).await;
    match what {
        What::Flushes => drop(redis.command(&["FLUSHALL"])),
        What::RestartsEmpty | What::RestartsWithItsData => {
            redis.kill();
            redis.start_again();
        }
        What::ForgetsFunctions => {
            for _ in 0..20 {
                redis.command(&["FUNCTION", "FLUSH"]);
                until_passed(&upstream, 1).await;
            }
        }
        What::Reloads => {
            redis.command(&["DEBUG", "RELOAD"]);
            redis.command(&["DEBUG", "SLEEP", "0.3"]);
        }
    }
    // A new gateway that is the first to call after a loss cannot know of it.
    eventually("it is met", async || (losses(&gateways).await == [lost; 2]).then_some(())).await;
    gateways.push(Gateway::start(&yaml).await);
    load.on(gateways[2].listen);
    until_passed(&upstream, 60).await;
    let statuses = load.end().await;
    assert_lawful(start, &upstream.arrivals(), RATE, RATE);
    // While it starts or loads it decides nothing.
    let is_away = !matches!(what, What::Flushes | What::ForgetsFunctions);
    let expected: &[u16] = if is_away { &[200, 429, 503] } else { &[200, 429] };
    assert_eq!(statuses.iter().find(|status| !expected.contains(status)), None);
    assert_eq!(losses(&gateways[..2]).await, [lost; 2]);
    for gateway in &gateways[..2] {
        assert_eq!(warnings(gateway) as f64, lost, "{:?}", gateway.events());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_loss_neither_revokes_nor_adds_permits() {
    let (redis, gate) = (Redis::start(), Arc::new(Semaphore::new(0)));
    let behind = gate.clone();
    let upstream = Upstream::start(move |_| Reply::ok().behind(&behind)).await;
    let yaml = format!(
        "store: {{ url: \"{}\", timeout: 10s }}
upstream: {}
limiters: {{ places: {{ algorithm: concurrency, max: 1, lease: 3s }} }}
routes: [{{ name: it, suffix: /it, limiters: [places], max_wait: 5min }}]
",
        redis.url(),
        upstream.url()
    );
    let [one, other] = [Gateway::start(&yaml).await, Gateway::start(&yaml).await];
    let mut holder: Conn = one.ask("/it", &[]).await;
    eventually("it is held", async || (upstream.calls().len() == 1).then_some(())).await;
    assert_eq!(other.limiter("places").await["level"], 0, "the other has asked once, too");
    redis.command(&["FLUSHALL"]);
    let lost = Instant::now();
    let mut waiter = other.ask("/it", &[]).await;
    other.until_waiting("it", 1).await;
    // Two leases later the holder's is still renewed.
    sleep(Duration::from_secs(6).saturating_sub(lost.elapsed())).await;
    assert_eq!(upstream.calls().len(), 1, "one permit, one call");
    gate.add_permits(2);
    assert_eq!(holder.answer().await.expect("an answer").status, 200);
    assert_eq!(waiter.answer().await.expect("an answer").status, 200);
    assert_eq!(warnings(&one), 1, "{:?}", one.events());
}

/// A server evicts the state that has `key` and more, but not the epoch.
async fn evict(redis: &Redis, key: &str) {
    // The server evicts keys with the shortest time to live first: the state, and then some of these.
    let filler = "for i = 1, 1000 do redis.call('SET', KEYS[1] .. i, string.rep('x', 1000), 'EX', 864000) end";
    redis.command(&["EVAL", filler, "1", key]);
    redis.command(&["CONFIG", "SET", "maxmemory-samples", "64"]);
    redis.command(&["CONFIG", "SET", "maxmemory-policy", "volatile-ttl"]);
    let Said::Bytes(Some(memory)) = redis.command(&["INFO", "memory"]) else { panic!("no text") };
    let memory = String::from_utf8(memory).expect("text");
    let used = memory.lines().find_map(|line| line.strip_prefix("used_memory:"));
    let used: u64 = used.expect("a size").parse().expect("a number");
    redis.command(&["CONFIG", "SET", "maxmemory", &(used - 200_000).to_string()]);
    eventually("the state is evicted", async || {
        redis.command(&["SET", &format!("{key}:another"), "key"]);
        (redis.command(&["EXISTS", key]) == Said::Number(0)).then_some(())
    })
    .await;
    redis.command(&["CONFIG", "SET", "maxmemory", "0"]);
}

const THREE: &str =
    "limiters: { it: { rate: 1/hour, burst: 3 }, other: { rate: 1/hour, burst: 3 } }
routes: [{ suffix: /it, limiters: [it] }, { suffix: /other, limiters: [other] }]
";

#[tokio::test(flavor = "multi_thread")]
async fn evicted_states_are_lost_and_closed() {
    let (redis, upstream) = (Redis::start(), Upstream::ok().await);
    let yaml = format!(
        "store: {{ url: \"{}\", timeout: 10s, on_failure: reject }}\nupstream: {}\n{THREE}",
        redis.url(),
        upstream.url()
    );
    let gateways = [Gateway::start(&yaml).await, Gateway::start(&yaml).await];
    for gateway in &gateways {
        assert_eq!(gateway.get("/it").await.status, 200);
    }
    evict(&redis, "paceway:{it}:T:it").await;
    let are_met = async || losses(&gateways).await.iter().all(|count| *count >= 1.0).then_some(());
    eventually("it is met", are_met).await;
    for gateway in &gateways {
        assert_eq!(gateway.get("/it").await.status, 429);
        assert!(warnings(gateway) >= 1, "{:?}", gateway.events());
    }
    assert_eq!(upstream.calls().len(), 2);
}

/// A node of a Cluster evicts keys: its own limiters close, and those of another node stay open.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_evicts_closes_its_own_limiters() {
    let (cluster, upstream) = (Cluster::start(3, 0).await, Upstream::ok().await);
    let [it, other] = ["paceway:{it}:T:it", "paceway:{other}:T:other"];
    cluster.bring(it, 0).await;
    cluster.bring(other, 1).await;
    let yaml = format!(
        "store: {{ url: \"{}\", timeout: 10s, on_failure: reject }}\nupstream: {}\n{THREE}",
        cluster.url(),
        upstream.url()
    );
    let gateway = Gateway::start(&yaml).await;
    for target in ["/it", "/other"] {
        gateway.until_answered(target, 200).await;
    }
    evict(&cluster.nodes[0], it).await;
    eventually("it is met", async || {
        (gateway.metric("paceway_store_losses_total", &[]).await > 0.0).then_some(())
    })
    .await;
    let answers = [gateway.get("/it").await.status, gateway.get("/other").await.status];
    assert_eq!(answers, [429, 200], "{:?}", gateway.events());
}
