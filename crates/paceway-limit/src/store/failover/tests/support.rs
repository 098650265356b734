//! A store at a distance that behaves as a test says, and processes of two failover stores over it.

use super::*;

pub(super) const TIMEOUT: Duration = Duration::from_millis(50);
pub(super) const HOUR: Micros = 3_600_000_000;

/// How a store behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Mood {
    #[default]
    Works,
    Hangs,
    /// It answers after the time-out.
    IsSlow,
    /// Every n-th answer comes after the time-out.
    IsSlowAtTimes(usize),
    IsGone,
    /// It refuses decisions, and answers heartbeats.
    Refuses,
}

#[derive(Debug, Default)]
pub(super) struct Far {
    pub(super) memory: MemoryStore,
    pub(super) mood: Mutex<Mood>,
    pub(super) gateways: AtomicUsize,
    pub(super) calls: AtomicUsize,
    pub(super) probes: AtomicUsize,
    pub(super) answers: AtomicUsize,
    /// The lane whose server is away, if lanes have servers of their own.
    pub(super) gone: Mutex<Option<&'static str>>,
    /// Heartbeats under way, and the largest number of them.
    pub(super) under_way: AtomicUsize,
    pub(super) most: AtomicUsize,
}

#[derive(Debug, Clone, Default)]
pub(super) struct FarBackend(pub(super) Arc<Far>);

// === impl Far ===

impl Far {
    /// The permits that the store has left for the first of `checks`.
    pub(super) async fn remaining(&self, checks: &Checks) -> i64 {
        self.memory.look(&checks[0]).get().await.expect("a level").remaining
    }

    async fn answers(&self) -> Result<(), StoreError> {
        loop {
            let mood = *self.mood.lock();
            match mood {
                Mood::Works => return Ok(()),
                Mood::Refuses => return Err(StoreError::Refused("NOPERM".into())),
                Mood::IsGone => return Err(StoreError::NotConnected),
                Mood::IsSlow => {
                    sleep(4 * TIMEOUT).await;
                    return Ok(());
                }
                Mood::IsSlowAtTimes(each) => {
                    if self.answers.fetch_add(1, SeqCst).is_multiple_of(each) {
                        sleep(TIMEOUT + Duration::from_millis(5)).await;
                    }
                    return Ok(());
                }
                Mood::Hangs => sleep(Duration::from_millis(5)).await,
            }
        }
    }
}

impl Backend for FarBackend {
    fn calls(&self) -> &Arc<Calls> {
        Backend::calls(&self.0.memory)
    }

    fn placement(&self) -> Placement {
        match *self.0.gone.lock() {
            Some(_) => Placement::ManyServers { one_answers: false },
            None => Placement::OneServer,
        }
    }

    fn run(&self, entries: Arc<Vec<Entry>>) -> BoxFuture<Result<Vec<Reply>, StoreError>> {
        let far = self.0.clone();
        Box::pin(async move {
            far.calls.fetch_add(1, SeqCst);
            let gone = *far.gone.lock();
            if gone.is_some_and(|gone| hash_tag(&entries[0].checks()[0].key) == gone) {
                return Err(StoreError::NotConnected);
            }
            far.answers().await?;
            far.memory.run(entries).await
        })
    }

    fn beat(&self, _: Heartbeat) -> BoxFuture<Result<Beat, StoreError>> {
        let far = self.0.clone();
        Box::pin(async move {
            far.probes.fetch_add(1, SeqCst);
            let under_way = far.under_way.fetch_add(1, SeqCst) + 1;
            far.most.fetch_max(under_way, SeqCst);
            let answer = far.answers().await;
            far.under_way.fetch_sub(1, SeqCst);
            match answer {
                Err(StoreError::Refused(_)) | Ok(()) => {
                    let gateways = far.gateways.load(SeqCst).max(1);
                    let gateways = i64::try_from(gateways).unwrap_or(1);
                    Ok(Beat { gateways, absent: 0, entered: false, now: None })
                }
                Err(error) => Err(error),
            }
        })
    }
}

/// A process with two stores, of which the second one sends its heartbeats and brings the store back.
pub(super) fn failovers(gateways: usize) -> (Arc<Far>, [Failover; 2]) {
    let backend = FarBackend::default();
    backend.0.gateways.store(gateways, SeqCst);
    let guards = process(&backend);
    (backend.0, guards)
}

pub(super) fn process(backend: &FarBackend) -> [Failover; 2] {
    process_over(Arc::new(backend.clone()), Arc::new(backend.clone()))
}

/// The same with a connection for each store. The time-out does not grow, so a slower store gives no decisions.
pub(super) fn process_over(worker: Arc<dyn Backend>, keeper: Arc<dyn Backend>) -> [Failover; 2] {
    let pace = Pace::between(TIMEOUT, TIMEOUT, PaceMetrics::noop());
    sides(unasked_process(pace), worker, keeper)
}

/// A process that has had no answer of its store yet.
pub(super) fn unasked_process(pace: Pace) -> Arc<Process> {
    Process::new("paceway", Health::new(HealthMetrics::noop(), pace))
}

pub(super) fn sides(
    process: Arc<Process>,
    worker: Arc<dyn Backend>,
    keeper: Arc<dyn Backend>,
) -> [Failover; 2] {
    let noop = StoreMetrics::noop;
    let failover = Failover::new(worker, noop(), process.clone());
    [failover, Failover::with_recovery(keeper, noop(), process, watch::channel([].into()).1)]
}

pub(super) fn check(algorithm: impl Into<Rule>, on_failure: OnFailure) -> Check {
    Check::new("{t}:a", algorithm).with_on_failure(on_failure)
}

pub(super) const SHARE: OnFailure = OnFailure::Share { period: HOUR };

/// `burst` at once, and one more an hour.
pub(super) fn bucket(burst: i64, on_failure: OnFailure) -> Checks {
    let rule = TokenBucket::new(1, HOUR, burst).expect("a rule");
    [check(Algorithm::TokenBucket(rule), on_failure)].into()
}

pub(super) async fn ask(
    failover: &Failover,
    checks: &Checks,
    budget: Micros,
) -> Result<Decision, StoreError> {
    failover.reserve(checks, budget, None).get().await
}

/// Makes `count` requests at once. Returns how many pass, and the source of the last decision.
pub(super) async fn pass(failover: &Failover, checks: &Checks, count: usize) -> (usize, Source) {
    let (mut passed, mut source) = (0, Source::None);
    for _ in 0..count {
        let decision = ask(failover, checks, 0).await.expect("a decision");
        passed += usize::from(decision.admitted);
        source = decision.source;
    }
    (passed, source)
}

pub(super) async fn until(failover: &Failover, breaker: Breaker) {
    let health = &failover.process.health;
    for _ in 0..1000 {
        if health.breaker() == breaker {
            return;
        }
        sleep(Duration::from_millis(10)).await;
    }
    panic!("the breaker does not come to {breaker:?}");
}

pub(super) fn set(far: &Far, mood: Mood) {
    *far.mood.lock() = mood;
}

/// Lets the store work again, and waits until it decides and has been charged.
pub(super) async fn bring_back(far: &Far, failover: &Failover) {
    set(far, Mood::Works);
    until(failover, Breaker::Closed).await;
    settled().await;
}

/// Until the process has been counted, between two signs of life.
pub(super) async fn settled() {
    sleep(Duration::from_millis(2500)).await;
}
