//! Pauses of limiters on every store: the promises of `Store::pause`, and how Redis keeps and tells them.

use crate::{
    contract::store,
    support::{Cluster, PATIENCE, Redis, Said},
    twins::{T0, connect},
};
use paceway::{
    algorithm::{
        Algorithm, Concurrency, FixedWindow, LeakyBucket, Rule, SlidingWindow, TokenBucket, WarmUp,
        concurrency::Ticket,
    },
    store::{
        Check, Checks, Decision, Entry, Pause, Reply, Source, StoreAdmin, memory::MemoryStore,
        redis::RedisUrl,
    },
};
use rstest::rstest;
use std::{
    io::{BufRead, BufReader, Write},
    net::TcpStream,
    sync::Arc,
    time::Duration,
};
use tokio::time::{Instant, sleep};

const SECOND: i64 = 1_000_000;
const HOUR: i64 = 3_600 * SECOND;
/// Longer than any test takes.
const LONG: i64 = 600 * SECOND;

#[derive(Debug, Clone, Copy)]
enum Kind {
    Memory,
    Redis,
    Cluster,
}

/// A store, and the servers that it needs.
struct Stage {
    store: Arc<dyn StoreAdmin>,
    _redis: Option<Redis>,
    _cluster: Option<Cluster>,
}

impl Stage {
    async fn new(kind: Kind) -> Self {
        let open = async |url: String| store(&RedisUrl::parse(&url).expect("a URL")).await;
        match kind {
            Kind::Memory => {
                Self { store: Arc::new(MemoryStore::default()), _redis: None, _cluster: None }
            }
            Kind::Redis => {
                let redis = Redis::that_is_heard();
                Self { store: open(redis.url()).await, _redis: Some(redis), _cluster: None }
            }
            Kind::Cluster => {
                let cluster = Cluster::start(3, 0).await;
                Self { store: open(cluster.url()).await, _redis: None, _cluster: Some(cluster) }
            }
        }
    }

    async fn pause(&self, checks: &Checks, span: i64) {
        let pause = Pause::for_micros(span, 429);
        self.store.pause(checks, pause).get().await.expect("paused");
    }

    async fn decide(&self, checks: &Checks, budget: i64) -> Decision {
        self.store.reserve(checks, budget, None).get().await.expect("a decision")
    }

    async fn ask(&self, checks: &Checks, budget: i64, number: i64, deadline: i64) -> Decision {
        let ticket = Ticket { gateway: 1, number, deadline };
        self.store.reserve(checks, budget, Some(ticket)).get().await.expect("a decision")
    }

    /// How long the limiter is still paused, µs.
    async fn paused(&self, check: &Check) -> i64 {
        self.store.look(check).get().await.expect("a level").paused
    }
}

/// All rules that count permits: ten a second.
fn rates() -> [Algorithm; 5] {
    [
        Algorithm::TokenBucket(TokenBucket::new(10, SECOND, 10).expect("a rule")),
        Algorithm::LeakyBucket(LeakyBucket::new(10, SECOND, 0, None).expect("a rule")),
        Algorithm::SlidingWindow(SlidingWindow::new(10, SECOND, 0).expect("a rule")),
        Algorithm::FixedWindow(FixedWindow::new(10, SECOND).expect("a rule")),
        Algorithm::WarmUp(WarmUp::new(10, SECOND, SECOND, 3.0).expect("a rule")),
    ]
}

fn bucket(key: &str, count: i64, period: i64, burst: i64) -> Check {
    Check::new(key, Algorithm::TokenBucket(TokenBucket::new(count, period, burst).expect("a rule")))
}

/// Nothing is granted before the end of a pause; of two pauses the later end counts; and the `retry_after` of a refusal is
/// the end. A reset ends the pause.
#[rstest]
#[tokio::test]
async fn no_permit_is_granted_before_the_end_of_a_pause(
    #[values(Kind::Memory, Kind::Redis, Kind::Cluster)] kind: Kind,
) {
    let stage = Stage::new(kind).await;
    for rule in rates() {
        let checks: Checks = [Check::new(format!("{{t}}:{}", rule.facts().name), rule)].into();
        stage.pause(&checks, LONG).await;
        for (span, least, most) in
            [(LONG, LONG / 2, LONG), (SECOND, LONG / 2, LONG), (2 * LONG, LONG + 1, 2 * LONG)]
        {
            stage.pause(&checks, span).await;
            let refused = stage.decide(&checks, 0).await;
            let paused = refused.level.paused;
            assert!((least..=most).contains(&paused), "{rule:?}: {paused}");
            assert_eq!((refused.admitted, refused.retry_after), (false, paused), "{rule:?}");
            assert_eq!((refused.level.remaining, refused.level.next), (0, paused), "{rule:?}");
            let level = stage.store.look(&checks[0]).get().await.expect("a level");
            assert!((least..=paused).contains(&level.paused) && level.next == level.paused);
        }
        assert!(stage.store.forget(&checks[0]).get().await.expect("forgotten"));
        assert_eq!(stage.paused(&checks[0]).await, 0);
        assert!(stage.decide(&checks, 0).await.admitted);
    }
}

/// Thirty requests that come within a pause get slots from its end on, a tenth of a second apart: neither a burst nor a gap.
#[rstest]
#[tokio::test]
async fn waiters_move_after_the_pause_at_an_even_pace(
    #[values(Kind::Memory, Kind::Redis, Kind::Cluster)] kind: Kind,
) {
    let stage = Stage::new(kind).await;
    for rule in rates() {
        let checks: Checks = [Check::new(format!("{{t}}:{}", rule.facts().name), rule)].into();
        stage.pause(&checks, LONG).await;
        let mut slots = Vec::new();
        for asked in (0..30).map(|_| stage.store.reserve(&checks, HOUR, None)) {
            let decision = asked.get().await.expect("a decision");
            assert!(decision.admitted && decision.level.paused > 0);
            slots.push(decision.wait - decision.level.paused);
        }
        slots.sort_unstable();
        match rule {
            Algorithm::TokenBucket(_) | Algorithm::LeakyBucket(_) => {
                // The working rate begins 3 % below the written one.
                for (i, slot) in (0..).zip(&slots) {
                    let even = i * SECOND / 10;
                    assert!((even..=even + even * 32 / 1_000).contains(slot), "{rule:?}: {slot}");
                }
            }
            // A cold limiter, or the windows of the clock, may take longer.
            _ => {
                for (i, slot) in (0..).zip(&slots) {
                    assert!(*slot >= i * SECOND / 10, "{rule:?}: slot {i} at {slot}");
                    assert!(*slot <= i * SECOND / 2 + SECOND, "{rule:?}: slot {i} at {slot}");
                }
            }
        }
    }
}

/// After a pause has ended the limiter begins with one permit and keeps its pace, and a lone caller that comes back at its
/// `retry_after` passes.
#[rstest]
#[tokio::test]
async fn a_limiter_begins_with_one_permit_after_its_pause(
    #[values(Kind::Memory, Kind::Redis, Kind::Cluster)] kind: Kind,
) {
    let stage = Stage::new(kind).await;
    let check = bucket("{t}:empty", 2, SECOND, 100);
    let checks: Checks = [Check { period: SECOND, ..check }].into();
    let began = Instant::now();
    stage.pause(&checks, SECOND / 5).await;
    let refused = stage.decide(&checks, 0).await;
    if !refused.admitted {
        sleep(Duration::from_micros(refused.retry_after.unsigned_abs())).await;
        assert!(stage.decide(&checks, 0).await.admitted);
    }
    let mut admitted = 1;
    while began.elapsed() < Duration::from_millis(1_500) {
        admitted += i64::from(stage.decide(&checks, 0).await.admitted);
        sleep(Duration::from_millis(5)).await;
    }
    let most = 1.0 + 2.0 * began.elapsed().as_secs_f64();
    assert!(admitted as f64 <= most, "{admitted} of {most}");
}

/// A request with two limiters, of which one is paused, is bound by that one and takes nothing from the other. A limiter
/// that only observes is not paused.
#[rstest]
#[tokio::test]
async fn a_pause_binds_only_its_limiters(
    #[values(Kind::Memory, Kind::Redis, Kind::Cluster)] kind: Kind,
) {
    let stage = Stage::new(kind).await;
    let (open, closed) = (bucket("{t}:open", 1, HOUR, 5), bucket("{t}:closed", 1, HOUR, 5));
    let both: Checks = [open.clone(), closed.clone()].into();
    stage.pause(&[closed].into(), LONG).await;
    let refused = stage.decide(&both, SECOND).await;
    assert!(!refused.admitted && refused.bound_by == 1 && refused.level.paused > 0);
    assert!(stage.decide(&[open.clone()].into(), 0).await.admitted);
    assert_eq!(stage.store.look(&open).get().await.expect("a level").remaining, 4);

    let observing = Check { enforce: false, ..open.clone() };
    stage.pause(&[observing.clone()].into(), LONG).await;
    assert_eq!(stage.paused(&open).await, 0);
    // It is paused by another gateway, whose configuration enforces it.
    stage.pause(&[open].into(), LONG).await;
    let observed = stage.decide(&[observing].into(), 0).await;
    assert_eq!((observed.admitted, observed.parts[0].at, observed.level.paused), (true, 0, 0));
}

/// A paused limiter of concurrency grants no permit and notifies no waiter. Those that wait ask again when the pause ends,
/// a holder renews its lease, and a request whose budget ends within the pause is refused at once.
#[rstest]
#[tokio::test]
async fn concurrency_waits_for_the_end_of_a_pause(
    #[values(Kind::Memory, Kind::Redis, Kind::Cluster)] kind: Kind,
) {
    let stage = Stage::new(kind).await;
    let rule = Rule::from(Concurrency::new(2, 60 * SECOND).expect("a rule"));
    let checks: Checks = [Check::new("{t}:C", rule)].into();
    let held = stage.ask(&checks, 0, 1, 0).await;
    assert!(held.admitted);
    stage.pause(&checks, LONG).await;

    let refused = stage.ask(&checks, SECOND, 2, 0).await;
    assert!(!refused.admitted && refused.queued.is_none());
    assert_eq!(refused.retry_after, refused.level.paused);
    let waits = stage.ask(&checks, 2 * LONG, 3, 0).await;
    let queued = waits.queued.expect("queued");
    assert!(!waits.admitted && queued.ask_after == waits.level.paused);
    let again = stage.ask(&checks, LONG, 3, queued.deadline).await;
    assert_eq!(again.queued.map(|queued| queued.deadline), Some(queued.deadline));
    assert!(
        stage
            .store
            .renew(Source::Shared, &checks[0], held.parts[0].grant)
            .get()
            .await
            .expect("an answer")
    );
    // A permit that is returned is handed to no waiter.
    stage.store.refund(Source::Shared, &checks, &held.parts);
    stage.store.flush().await;
    assert!(!stage.ask(&checks, 2 * LONG, 3, queued.deadline).await.admitted);

    assert!(stage.store.forget(&checks[0]).get().await.expect("forgotten"));
    assert!(stage.ask(&checks, LONG, 3, queued.deadline).await.admitted);
    assert!(stage.ask(&checks, 0, 4, 0).await.admitted);
}

/// A paused token bucket is kept with a prefix, and as before once its gate has ended.
#[tokio::test]
async fn a_paused_bucket_is_kept_with_a_prefix_until_its_gate_ends() {
    let redis = Redis::that_is_heard();
    let store = connect(&redis).await;
    let check = bucket("{k}", 1, 60 * SECOND, 2);
    let ask = [Entry::Reserve { checks: [check.clone()].into(), budget: 0, ticket: None }];
    let pause = Entry::Pause { check, pause: Pause::for_micros(10 * SECOND, 503) };
    store.run_at(Some(T0), &ask).await.expect("admitted");
    let plain = redis.bytes("{k}");
    assert_eq!(plain.len(), 58);

    store.run_at(Some(T0), &[pause]).await.expect("paused");
    let paused = redis.bytes("{k}");
    assert_eq!((paused[0], &paused[126..]), (b'V', &plain[..]));
    let Said::Number(left) = redis.command(&["PTTL", "{k}"]) else { panic!("no TTL") };
    assert!(left >= 60_000, "{left} ms");
    let refused = store.run_at(Some(T0 + 9 * SECOND), &ask).await.expect("a reply");
    assert!(matches!(&refused[..], [Reply::Decision(decision)] if decision.level.paused == SECOND));
    assert_eq!(redis.bytes("{k}"), paused, "a refusal writes nothing");

    // The period of the bucket is more than ten times the pause, so that the gate ends with it.
    store.run_at(Some(T0 + 70 * SECOND), &ask).await.expect("admitted");
    assert_eq!(redis.bytes("{k}").len(), 58);
}

/// A pause of a limiter without a state lives as long as it delays requests.
#[tokio::test]
async fn a_pause_lives_until_its_end() {
    let redis = Redis::that_is_heard();
    let store = store(&RedisUrl::parse(&redis.url()).expect("a URL")).await;
    for (i, rule) in rates().into_iter().enumerate() {
        let checks: Checks = [Check::new(format!("{{k}}{i}"), rule)].into();
        store.pause(&checks, Pause::for_micros(LONG, 429)).get().await.expect("paused");
        let Said::Number(left) = redis.command(&["PTTL", &checks[0].key]) else { panic!("no TTL") };
        assert!(left > LONG / 1000 - 60_000, "{left} ms");
    }
}

/// The script publishes a pause that begins, grows, or is reset; it publishes no shorter pause.
#[tokio::test]
async fn a_pause_is_published() {
    let redis = Redis::start();
    let store = connect(&redis).await;
    let mut ear = TcpStream::connect(("127.0.0.1", redis.port())).expect("a connection");
    ear.set_read_timeout(Some(PATIENCE)).expect("a limit");
    ear.write_all(b"SUBSCRIBE paceway:call:pauses\r\n").expect("a subscription");
    let mut ear = BufReader::new(ear).lines().map(|line| line.expect("a line"));
    assert!(ear.any(|line| line == ":1"));

    let bucket = bucket("{k}:T", 1, 60 * SECOND, 2);
    let lease = Concurrency::new(2, 60 * SECOND).expect("a rule");
    let lease = Check::new("{k}:C", lease);
    for check in [bucket, lease] {
        let pause = |span, status| Entry::Pause {
            check: check.clone(),
            pause: Pause::for_micros(span, status),
        };
        let forget = Entry::Forget { check: check.clone() };
        let entries = [pause(5_000_000, 429), pause(4_000_000, 503), pause(6_000_000, 503), forget];
        store.run_at(Some(T0), &entries).await.expect("replies");
        for (left, status) in [(5_000_000, 429), (6_000_000, 503), (0, 503)] {
            let expected = format!("{} {left} {status}", check.key);
            let message = ear.by_ref().find(|line| line.starts_with("{k}"));
            assert_eq!(message.as_deref(), Some(&*expected));
        }
    }
}

/// The gate is a part of the value, so that a slot which moves takes it along.
#[tokio::test(flavor = "multi_thread")]
async fn a_pause_moves_with_its_slot() {
    let cluster = Cluster::start(3, 0).await;
    let store = store(&RedisUrl::parse(&cluster.url()).expect("a URL")).await;
    let checks: Checks = [bucket("{k}:T", 1, SECOND, 5)].into();
    let key = "{k}:T";
    let from = cluster.owner(key);
    let to = (from + 1) % 3;
    let paused = async || {
        let decision = store.reserve(&checks, 0, None).get().await.expect("a decision");
        assert!(!decision.admitted && decision.level.paused > LONG / 2);
    };
    store.pause(&checks, Pause::for_micros(LONG, 429)).get().await.expect("paused");
    paused().await;
    cluster.begin_to_move(key, from, to);
    paused().await;
    store.pause(&checks, Pause::for_micros(LONG + SECOND, 429)).get().await.expect("paused");
    cluster.move_keys(key, from, to);
    paused().await;
    cluster.end_to_move(key, from, to);
    paused().await;
}
