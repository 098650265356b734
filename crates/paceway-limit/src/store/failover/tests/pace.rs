//! Fleets whose store is at a distance: three gateways with links of their own, each with other round trips, at a limit of
//! 30/s. All are asked without a pause.

mod changes;

use super::*;
use crate::store::{ABSENT, GONE, health::SLOWEST};
use std::collections::{HashMap, HashSet};

const SECOND: Micros = 1_000_000;
const BURST: i64 = 10;
/// Each gateway is asked so often: three times what the limit allows, in sum.
const PAUSE: Duration = Duration::from_millis(33);

/// A store and the gateways that it knows of.
#[derive(Debug, Default)]
struct World {
    memory: MemoryStore,
    /// The last heartbeat of each gateway, and whether it had granted nothing lately.
    alive: Mutex<HashMap<Arc<str>, (Instant, bool)>>,
    /// The gateways whose connections are closed.
    ended: Mutex<HashSet<Arc<str>>>,
}

/// How one gateway reaches it: by calls that take so many ms, one after the other. None: it does not.
#[derive(Debug)]
struct Link {
    world: Arc<World>,
    delays: Mutex<&'static [u64]>,
    turn: AtomicUsize,
}

impl Link {
    fn to(world: &Arc<World>, delays: &'static [u64]) -> Arc<Self> {
        Arc::new(Self { world: world.clone(), delays: Mutex::new(delays), turn: 0.into() })
    }

    /// Half of the way there, or back.
    async fn travel(&self) {
        let turn = self.turn.fetch_add(1, SeqCst) / 2;
        loop {
            let delays = *self.delays.lock();
            if !delays.is_empty() {
                return sleep(Duration::from_millis(delays[turn % delays.len()]) / 2).await;
            }
            sleep(Duration::from_millis(5)).await;
        }
    }
}

impl Backend for Link {
    fn calls(&self) -> &Arc<Calls> {
        Backend::calls(&self.world.memory)
    }

    fn run(&self, entries: Arc<Vec<Entry>>) -> BoxFuture<Result<Vec<Reply>, StoreError>> {
        let link = Self::to(&self.world, *self.delays.lock());
        link.turn.store(self.turn.fetch_add(2, SeqCst), SeqCst);
        Box::pin(async move {
            link.travel().await;
            let answer = link.world.memory.run(entries).await;
            link.travel().await;
            answer
        })
    }

    fn beat(&self, heartbeat: Heartbeat) -> BoxFuture<Result<Beat, StoreError>> {
        let link = Self::to(&self.world, *self.delays.lock());
        link.turn.store(self.turn.fetch_add(2, SeqCst), SeqCst);
        Box::pin(async move {
            link.travel().await;
            let beat = link.world.hear(heartbeat);
            link.travel().await;
            Ok(beat)
        })
    }
}

impl World {
    /// As `presence.lua`.
    fn hear(&self, heartbeat: Heartbeat) -> Beat {
        let Heartbeat { id, is_alone, is_idle, is_last, .. } = heartbeat;
        let (mut alive, now) = (self.alive.lock(), Instant::now());
        if is_last {
            alive.remove(&id);
            return Beat { gateways: 1, absent: 0, entered: false, now: None };
        }
        let alone = is_alone && !is_idle;
        let last = if alone { now - ABSENT } else { now };
        let entered = alive.insert(id, (last, is_idle)).is_none();
        let ended = self.ended.lock();
        alive.retain(|id, (last, is_idle)| {
            now - *last < if *is_idle && ended.contains(id) { ABSENT } else { GONE }
        });
        let absent = alive.values().filter(|(last, _)| now - *last >= ABSENT).count();
        let [gateways, absent] = [alive.len(), absent - usize::from(alone)]
            .map(|n| i64::try_from(n).unwrap_or(i64::MAX));
        Beat { gateways, absent, entered, now: None }
    }
}

/// Three gateways under load.
struct Fleet {
    world: Arc<World>,
    links: Vec<Arc<Link>>,
    guards: Vec<[Failover; 2]>,
    /// The limiters of each request.
    checks: Checks,
    grants: Arc<Mutex<Vec<Micros>>>,
    begun: Instant,
}

impl Fleet {
    /// The round trips of each gateway, ms.
    async fn of(delays: [&'static [u64]; 3]) -> Self {
        let world = Arc::<World>::default();
        let links: Vec<_> = delays.iter().map(|delays| Link::to(&world, delays)).collect();
        let (mut guards, grants) = (Vec::new(), Arc::default());
        for link in &links {
            let process = unasked_process(Pace::new(TIMEOUT, PaceMetrics::noop()));
            process.introduce(&**link, Duration::from_secs(2)).await;
            guards.push(sides(process, link.clone(), link.clone()));
        }
        Self { world, links, guards, checks: flow(), grants, begun: Instant::now() }
    }

    /// Asks all gateways for the time `span`.
    async fn run(&self, span: Duration) {
        let (begun, end) = (self.begun, Instant::now() + span);
        let checks = self.checks.clone();
        let asking = self.guards.iter().map(|[failover, _]| {
            let (failover, grants, checks) =
                (failover.clone(), self.grants.clone(), checks.clone());
            tokio::spawn(async move {
                while Instant::now() < end {
                    let (failover, grants, checks) =
                        (failover.clone(), grants.clone(), checks.clone());
                    tokio::spawn(async move {
                        let decision = ask(&failover, &checks, 0).await.expect("a decision");
                        if decision.admitted {
                            grants.lock().push(micros(begun.elapsed()) + decision.wait);
                        }
                    });
                    sleep(PAUSE).await;
                }
            })
        });
        for asking in asking.collect::<Vec<_>>() {
            asking.await.expect("no panic");
        }
    }

    /// All gateways are asked so often at one instant; lasts a second.
    async fn flood(&self, asks: usize) {
        let end = Instant::now() + Duration::from_secs(1);
        for [failover, _] in &self.guards {
            for _ in 0..asks {
                let (failover, checks) = (failover.clone(), self.checks.clone());
                let (begun, grants) = (self.begun, self.grants.clone());
                tokio::spawn(async move {
                    if ask(&failover, &checks, 0).await.expect("a decision").admitted {
                        grants.lock().push(micros(begun.elapsed()));
                    }
                });
            }
        }
        tokio::time::sleep_until(end).await;
    }

    /// The most that was granted in any interval above burst and rate, and how much of the rate was used.
    fn over(&self) -> (f64, f64) {
        let mut grants = self.grants.lock().clone();
        grants.sort_unstable();
        let mut most = f64::NEG_INFINITY;
        for (i, from) in grants.iter().enumerate() {
            for (count, to) in grants[i..].iter().enumerate() {
                let allowed = BURST as f64 + 30.0 * (to - from) as f64 / 1e6;
                most = most.max((count + 1) as f64 - allowed);
            }
        }
        (most, grants.len() as f64 / (30.0 * self.begun.elapsed().as_secs_f64()))
    }

    /// Checks that one gateway was left its share of the burst, and of the rate until the others noticed that it is absent.
    fn check_share(&self) {
        for [failover, _] in &self.guards {
            assert!(!failover.is_away() && !failover.process.health.misses_others());
        }
        let (over, used) = self.over();
        assert!(over <= 10.0 / 3.0 + 10.0 * 2.1, "{over:.1} more than the law allows");
        assert!(used >= 0.85, "{used:.2} of the rate is used");
    }
}

fn micros(span: Duration) -> Micros {
    i64::try_from(span.as_micros()).expect("a short time")
}

fn flow() -> Checks {
    let rule = TokenBucket::new(30, SECOND, BURST).expect("a rule");
    [check(Algorithm::TokenBucket(rule), OnFailure::Share { period: SECOND })].into()
}

const JITTERS: &[u64] = &[30, 70, 45, 62, 38, 51, 66, 33, 57, 41];

/// A store with a round trip above `store.timeout` is used slowly, from the first request on.
#[rstest::rstest]
#[case::all([&[60][..], &[60][..], &[60][..]])]
#[case::all_in_another_region([&[100][..], &[100][..], &[100][..]])]
#[case::far_away([&[200][..], &[200][..], &[200][..]])]
#[case::one_of_three([&[60][..], &[1][..], &[1][..]])]
#[case::all_differ([&[1][..], &[60][..], &[150][..]])]
#[case::around_the_timeout([JITTERS, JITTERS, JITTERS])]
#[tokio::test(start_paused = true)]
async fn a_store_that_is_slow_is_used(#[case] delays: [&'static [u64]; 3]) {
    let fleet = Fleet::of(delays).await;
    fleet.run(Duration::from_secs(20)).await;
    let (over, used) = fleet.over();
    for [failover, _] in &fleet.guards {
        assert!(!failover.is_away() && failover.process.local.is_empty());
        assert_eq!(failover.process.health.gateways(), 3);
        let limit = failover.process.health.pace.limit();
        assert!((TIMEOUT..=SLOWEST).contains(&limit));
    }
    assert!(over <= 0.5, "{over:.1} more than the law allows");
    assert!(used >= 0.9, "{used:.2} of the rate is used");
}

/// One of three gateways is cut off, or so far away that it decides alone: the others leave it its share.
#[rstest::rstest]
#[case::cut_off(&[], 8)]
#[case::beyond_the_bound(&[700], 40)]
#[tokio::test(start_paused = true)]
async fn a_gateway_that_decides_alone_keeps_its_share(
    #[case] delays: &'static [u64],
    #[case] seconds: u64,
) {
    let fleet = Fleet::of([&[1]; 3]).await;
    fleet.run(Duration::from_secs(5)).await;
    *fleet.links[0].delays.lock() = delays;
    fleet.run(Duration::from_secs(seconds)).await;
    assert!(fleet.guards[0][0].is_away());
    *fleet.links[0].delays.lock() = &[1];
    fleet.run(Duration::from_secs(5)).await;
    fleet.check_share();
}

/// `FLUSHALL` while one of three gateways is cut off: it cannot enter the set of gateways again, and the others, which knew
/// of it, leave it its share until it counts as dead. Without that they granted the whole rule, and it granted its
/// share besides: 40/s at 30/s.
#[tokio::test(start_paused = true)]
async fn a_gateway_that_is_cut_off_keeps_its_share_when_the_set_is_lost() {
    let fleet = Fleet::of([&[1]; 3]).await;
    fleet.run(Duration::from_secs(5)).await;
    *fleet.links[0].delays.lock() = &[];
    fleet.run(Duration::from_secs(3)).await;
    fleet.world.alive.lock().clear();
    fleet.run(Duration::from_secs(6)).await;
    *fleet.links[0].delays.lock() = &[1];
    fleet.run(Duration::from_secs(5)).await;
    fleet.check_share();
}

/// A gateway that has granted nothing dies. Without the end of its connections, the others could not know it from one that is
/// cut off.
#[tokio::test(start_paused = true)]
async fn a_dead_gateway_without_grants_keeps_no_share() {
    let fleet = Fleet::of([&[1]; 3]).await;
    let idle = fleet.guards[0][0].process.health.id.clone();
    *fleet.links[0].delays.lock() = &[];
    fleet.world.ended.lock().insert(idle);
    let living = Fleet { guards: fleet.guards[1..].to_vec(), ..fleet };
    living.run(Duration::from_secs(12)).await;
    let [failover, _] = &living.guards[0];
    assert_eq!(failover.process.health.gateways(), 2);
    let (over, used) = living.over();
    assert!(over <= 0.5, "{over:.1} more than the law allows");
    assert!(used >= 0.98, "{used:.2} of the rate is used");
}

/// The store learns of the first grant before the next regular heartbeat.
#[tokio::test(start_paused = true)]
async fn a_first_grant_announces_a_gateway_at_once() {
    let fleet = Fleet::of([&[1]; 3]).await;
    sleep(Duration::from_millis(600)).await;
    let [failover, _] = &fleet.guards[0];
    let is_idle = || fleet.world.alive.lock()[&failover.process.health.id].1;
    assert!(is_idle());
    assert!(ask(failover, &fleet.checks, 0).await.expect("a decision").admitted);
    sleep(Duration::from_millis(10)).await;
    assert!(!is_idle());
}

/// The same in windows. The others use up each window at its start, before the share is charged: what is charged then has to
/// take room from the next window, or it changes nothing and each window grants 40 of 30.
#[tokio::test(start_paused = true)]
async fn a_gateway_that_decides_alone_keeps_its_share_of_windows() {
    let rule = Algorithm::FixedWindow(FixedWindow::new(30, SECOND).expect("a rule"));
    let checks = [check(rule, OnFailure::Share { period: SECOND })].into();
    let fleet = Fleet { checks, ..Fleet::of([&[1]; 3]).await };
    // By then, the heartbeats of all gateways have been answered.
    sleep(Duration::from_secs(1)).await;
    *fleet.links[0].delays.lock() = &[];
    // Until the others miss it, and the first windows after that.
    for _ in 0..4 {
        fleet.flood(40).await;
    }
    let from = micros(fleet.begun.elapsed());
    for _ in 0..5 {
        fleet.flood(40).await;
    }
    assert!(fleet.guards[0][0].is_away());
    let granted = fleet.grants.lock().iter().filter(|at| **at >= from).count();
    assert!((130..=160).contains(&granted), "{granted} in 5 s at 30/s");
}

/// A bucket of burst 1 grants one permit at once. Two absent gateways of three may grant two for each of this one.
#[tokio::test(start_paused = true)]
async fn all_that_absent_gateways_may_grant_is_charged() {
    let (_far, [failover, _]) = failovers(3);
    // Between two heartbeats, which would say that there are none.
    sleep(Duration::from_millis(100)).await;
    let beat = Beat { gateways: 3, absent: 2, entered: false, now: None };
    failover.process.health.counted(&beat, Instant::now());
    let rule = TokenBucket::new(1, 60 * SECOND, 1).expect("a rule");
    let checks = [check(Algorithm::TokenBucket(rule), SHARE)].into();
    assert!(ask(&failover, &checks, 0).await.expect("a decision").admitted);
    failover.flush().await;
    let level = failover.look(&checks[0]).get().await.expect("a level");
    assert!(level.next > 2 * 60 * SECOND, "{level:?}");
}

/// The others do not wait for one that says that it ends.
#[tokio::test(start_paused = true)]
async fn a_gateway_that_leaves_keeps_no_share() {
    let fleet = Fleet::of([&[1]; 3]).await;
    fleet.run(Duration::from_secs(5)).await;
    fleet.guards[0][0].process.leave(TIMEOUT).await;
    let [failover, _] = &fleet.guards[1];
    for _ in 0..200 {
        sleep(Duration::from_millis(100)).await;
        assert!(!failover.process.health.misses_others());
    }
    assert_eq!((fleet.world.alive.lock().len(), failover.process.health.gateways()), (2, 2));
}

/// A store that was fast and is dead costs a request no more than `store.timeout`, and the breaker opens.
#[tokio::test(start_paused = true)]
async fn a_dead_store_costs_one_timeout() {
    let fleet = Fleet::of([&[1]; 3]).await;
    fleet.run(Duration::from_secs(5)).await;
    fleet.links.iter().for_each(|link| *link.delays.lock() = &[]);
    let [failover, _] = &fleet.guards[0];
    for _ in 0..100 {
        let asked = Instant::now();
        ask(failover, &flow(), 0).await.expect("a decision");
        assert!(asked.elapsed() <= TIMEOUT, "{:?}", asked.elapsed());
        sleep(Duration::from_millis(20)).await;
    }
    assert!(failover.is_away());
}
