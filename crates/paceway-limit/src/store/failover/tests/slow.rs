//! Stores that answer now and then, and connections that are late while others of the process are not.

use super::*;
use std::sync::atomic::AtomicBool;

const SECOND: Micros = 1_000_000;
const TICK: Duration = Duration::from_millis(10);

/// A connection to a store that is well.
#[derive(Debug)]
struct Sick {
    backend: FarBackend,
    is_sick: AtomicBool,
    /// Whether a connection that is replaced is well.
    can_be_cured: bool,
    renewed: AtomicUsize,
}

// === impl Sick ===

impl Sick {
    fn to(backend: &FarBackend, can_be_cured: bool) -> Arc<Self> {
        let (is_sick, renewed) = (AtomicBool::new(false), AtomicUsize::new(0));
        Arc::new(Self { backend: backend.clone(), is_sick, can_be_cured, renewed })
    }

    fn delay(&self) -> Duration {
        match self.is_sick.load(SeqCst) {
            true => TIMEOUT + TICK,
            false => Duration::ZERO,
        }
    }
}

async fn come_late<T>(delay: Duration, answer: BoxFuture<T>) -> T {
    let answer = answer.await;
    sleep(delay).await;
    answer
}

impl Backend for Sick {
    fn calls(&self) -> &Arc<Calls> {
        Backend::calls(&self.backend)
    }

    fn run(&self, entries: Arc<Vec<Entry>>) -> BoxFuture<Result<Vec<Reply>, StoreError>> {
        Box::pin(come_late(self.delay(), self.backend.run(entries)))
    }

    fn beat(&self, heartbeat: Heartbeat) -> BoxFuture<Result<Beat, StoreError>> {
        Box::pin(come_late(self.delay(), self.backend.beat(heartbeat)))
    }

    fn renew(&self) {
        self.renewed.fetch_add(1, SeqCst);
        self.is_sick.fetch_and(!self.can_be_cured, SeqCst);
    }
}

/// `burst` at once and 40 a second.
fn flow(burst: i64) -> Checks {
    let rule = TokenBucket::new(40, SECOND, burst).expect("a rule");
    [check(Algorithm::TokenBucket(rule), OnFailure::Share { period: SECOND })].into()
}

/// A third of its answers is late, and never three in a row: it is left, and asked again ever more seldom.
#[tokio::test(start_paused = true)]
async fn a_flapping_store_is_avoided_for_long() {
    let (far, [failover, _]) = failovers(1);
    let checks = flow(10);
    settled().await;
    set(&far, Mood::IsSlowAtTimes(3));
    let (mut openings, mut was_away, mut asked) = (0, false, 0);
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(60) {
        drop(ask(&failover, &checks, 0).await);
        let is_away = failover.is_away();
        openings += usize::from(is_away && !was_away);
        asked += usize::from(!is_away);
        was_away = is_away;
        sleep(TICK).await;
    }
    assert!((1..=12).contains(&openings), "{openings} openings in a minute");
    assert!(asked < 1500, "{asked} of 6000 asked it");
    set(&far, Mood::Works);
    until(&failover, Breaker::Closed).await;
}

#[tokio::test(start_paused = true)]
async fn a_connection_slower_than_the_rest_is_replaced() {
    let backend = FarBackend::default();
    let sick = Sick::to(&backend, true);
    let [failover, _keeper] = process_over(sick.clone(), Arc::new(backend));
    let checks = flow(10);
    settled().await;
    sick.is_sick.store(true, SeqCst);
    while !failover.is_away() {
        drop(ask(&failover, &checks, 0).await);
        sleep(TICK).await;
    }
    let away = Instant::now();
    until(&failover, Breaker::Closed).await;
    assert!(away.elapsed() < Duration::from_secs(3), "{:?}", away.elapsed());
    assert_eq!(sick.renewed.load(SeqCst), 1);
    assert_eq!(pass(&failover, &checks, 1).await, (1, Source::Shared));
}

/// When all workers have late answers, another connection helps none of them.
#[tokio::test(start_paused = true)]
async fn connections_to_a_store_that_is_away_are_left_alone() {
    let backend = FarBackend::default();
    let [worker, keeper] = [Sick::to(&backend, true), Sick::to(&backend, true)];
    let [failover, _keeper] = process_over(worker.clone(), keeper.clone());
    settled().await;
    set(&backend.0, Mood::Hangs);
    until(&failover, Breaker::Open).await;
    sleep(Duration::from_secs(60)).await;
    set(&backend.0, Mood::Works);
    until(&failover, Breaker::Closed).await;
    assert_eq!([&worker, &keeper].map(|side| side.renewed.load(SeqCst)), [0, 0]);
}

/// A gateway with a connection that nothing cures enforces its share, and what it grants is charged all the time: others
/// grant the rest, and no more.
#[tokio::test(start_paused = true)]
async fn a_gateway_with_a_partial_store_does_not_exceed_the_rule() {
    let backend = FarBackend::default();
    backend.0.gateways.store(2, SeqCst);
    let sick = Sick::to(&backend, false);
    let [ill, _keeper] = process_over(sick.clone(), Arc::new(backend.clone()));
    let [well, _other] = process(&backend);
    let checks = flow(10);
    settled().await;
    sick.is_sick.store(true, SeqCst);
    let (begun, mut passed) = (Instant::now(), [0, 0]);
    while begun.elapsed() < Duration::from_secs(60) {
        for (failover, passed) in [&ill, &well].into_iter().zip(&mut passed) {
            let decision = ask(failover, &checks, 0).await.expect("a decision");
            *passed += usize::from(decision.admitted);
        }
        sleep(TICK).await;
    }
    assert!(ill.is_away() && !well.is_away());
    assert!(sick.renewed.load(SeqCst) <= 60, "{:?}", sick.renewed);
    let (sum, most) = (passed[0] + passed[1], 10.0 + 40.0 * begun.elapsed().as_secs_f64());
    // The share grants up to 10 permits before they are charged, at the beginning and all the time.
    assert!(sum as f64 <= most + 10.0, "{passed:?} of {most}");
    assert!(sum as f64 >= 0.95 * most, "{passed:?} of {most}");
    assert!(passed.iter().all(|passed| *passed > 600), "{passed:?}");
}

/// The incident log reports a store that refuses, until it decides or executes writes again.
#[tokio::test(start_paused = true)]
async fn a_store_that_refuses_is_reported_until_it_decides_or_writes_again() {
    let (far, [failover, _]) = failovers(1);
    let checks = bucket(5, SHARE);
    let health = failover.process.health.clone();
    settled().await;
    assert_eq!((health.failures().len(), health.failure(&checks[0].key)), (0, None));
    set(&far, Mood::Refuses);
    assert_eq!(pass(&failover, &checks, 1).await, (1, Source::Local));
    let refused = Some(StoreError::Refused("NOPERM".into()));
    assert_eq!(health.failure(&checks[0].key), refused);
    assert!(failover.share(&checks[0]).is_some(), "this gateway decides");
    set(&far, Mood::Works);
    // A look proves nothing.
    assert!(failover.look(&checks[0]).get().await.is_ok());
    assert_eq!(health.failure(&checks[0].key), refused);
    settled().await;
    assert_eq!(health.failure(&checks[0].key), None);
    assert!(failover.share(&checks[0]).is_none());
}
