//! Decisions per second of the memory store, and of a Redis server of the bench's own under group commit, asked by one
//! caller and by 64 at once.

use criterion::{BenchmarkGroup, Criterion, Throughput, measurement::WallTime};
use paceway::{
    algorithm::{
        Algorithm, FixedWindow, LeakyBucket, MAX_BUDGET, SlidingWindow, TokenBucket, WarmUp,
    },
    key::StateNames,
    store::{
        Answer, Check, Checks, Store,
        batch::{Batched, StoreMetrics},
        memory::MemoryStore,
        redis::{Epochs, RedisStore, RedisUrl},
    },
};
use std::{
    hint::black_box,
    net::TcpListener,
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};
use tokio::{
    runtime::{self, Runtime},
    task::JoinSet,
    time::{Instant, sleep},
};

/// More permits than a run takes, so that each decision reads and writes a state and none has to wait.
const PLENTY: i64 = 1_000_000_000;
/// The time-out of the store, far above the time that a busy machine needs for a call.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A Redis server that ends with the run.
struct Redis {
    child: Child,
    url: RedisUrl,
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    let mut group = criterion.benchmark_group("decide");
    group.throughput(Throughput::Elements(1));
    memory(&mut group);
    match Redis::start() {
        Some(server) => redis(&mut group, &server),
        None => eprintln!("redis-server is not installed: decisions on Redis are skipped"),
    }
    group.finish();
    criterion.final_summary();
}

fn memory(group: &mut BenchmarkGroup<'_, WallTime>) {
    let store = MemoryStore::default();
    let mut bench = |name: &str, checks: Checks, budget: i64, admitted: bool| {
        group.bench_function(name, |bencher| {
            bencher.iter(|| match store.reserve(black_box(&checks), budget, None) {
                Answer::Ready(Ok(decision)) => assert_eq!(decision.admitted, admitted),
                _ => unreachable!("the memory store answers at once"),
            });
        });
    };
    bench("memory, admitted", Arc::new([check("one", PLENTY)]), 0, true);
    bench(
        "memory, two limiters",
        Arc::new([check("first", PLENTY), check("second", PLENTY)]),
        0,
        true,
    );
    let empty: Checks = Arc::new([check("empty", 1)]);
    drop(store.reserve(&empty, 0, None));
    bench("memory, refused", empty, 0, false);
    let (window, day) = (1_000_000, 86_400_000_000);
    for rule in [
        SlidingWindow::new(PLENTY / 100, window, 0).map(Algorithm::SlidingWindow),
        FixedWindow::new(PLENTY, day).map(Algorithm::FixedWindow),
        LeakyBucket::new(window, window, 0, None).map(Algorithm::LeakyBucket),
        WarmUp::new(window, window, window, 3.0).map(Algorithm::WarmUp),
    ] {
        let algorithm = rule.expect("a rule");
        let name = format!("memory, {}", algorithm.facts().name);
        bench(
            &name,
            Arc::new([Check { algorithm: algorithm.into(), ..check(&name, PLENTY) }]),
            MAX_BUDGET,
            true,
        );
    }
}

fn redis(group: &mut BenchmarkGroup<'_, WallTime>, server: &Redis) {
    let runtime = runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let checks: Checks = Arc::new([check("hot", PLENTY)]);
    let store = runtime.block_on(server.store(&checks));
    for (callers, name) in [(1, "redis, 1 caller"), (64, "redis, 64 callers")] {
        group.bench_function(name, |bencher| {
            bencher.iter_custom(|count| ask(&runtime, &store, &checks, callers, count));
        });
    }
}

/// Measures the time that `count` decisions take when `callers` callers ask, each for one decision after the other.
fn ask(
    runtime: &Runtime,
    store: &Arc<dyn Store>,
    checks: &Checks,
    callers: u64,
    count: u64,
) -> Duration {
    runtime.block_on(async {
        let started = Instant::now();
        let mut tasks = JoinSet::new();
        for caller in 0..callers {
            let share = count / callers + u64::from(caller < count % callers);
            let (store, checks) = (store.clone(), checks.clone());
            tasks.spawn(async move {
                for _ in 0..share {
                    let decision = store.reserve(&checks, 0, None).get().await.expect("a decision");
                    assert!(decision.admitted);
                }
            });
        }
        tasks.join_all().await;
        started.elapsed()
    })
}

/// A limiter with `burst` permits that gains 1,000 a second, or one a day where `burst` is 1.
fn check(name: &str, burst: i64) -> Check {
    let (count, period) = if burst > 1 { (1_000, 1_000_000) } else { (1, 86_400_000_000) };
    let rule = TokenBucket::new(count, period, burst).expect("a rule");
    let key = StateNames::new("bench", "group", b'T', name).of(None);
    Check::new(key, Algorithm::TokenBucket(rule))
}

// === impl Redis ===

impl Redis {
    /// Starts the server, or returns `None` when redis-server is not installed.
    fn start() -> Option<Self> {
        let port = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
        let port = port.expect("a free port").port();
        let child = Command::new("redis-server")
            .args(["--bind", "127.0.0.1", "--port", &port.to_string()])
            .args(["--save", "", "--appendonly", "no"])
            .stdout(Stdio::null())
            .spawn();
        let url = RedisUrl::parse(&format!("redis://127.0.0.1:{port}")).expect("a URL");
        Some(Self { child: child.ok()?, url })
    }

    /// Connects a store to the server and waits for its first answer.
    async fn store(&self, checks: &Checks) -> Arc<dyn Store> {
        let script = RedisStore::open(&self.url, &Epochs::new("paceway", metrics::Counter::noop()))
            .expect("a client");
        let store = Batched::new(Arc::new(script), TIMEOUT, StoreMetrics::noop());
        let started = Instant::now();
        while let Err(error) = store.reserve(checks, 0, None).get().await {
            assert!(started.elapsed() < TIMEOUT, "{error}");
            sleep(Duration::from_millis(10)).await;
        }
        Arc::new(store)
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
