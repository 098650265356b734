//! A gateway of the fleet: the product's own guards over links, and the product's own loop through the limiters, without
//! HTTP.

use crate::{
    controls::{Defect, TIMEOUT},
    history::{History, Micros, Route},
    network::Network,
    upstream::{End, Upstream},
};
use metrics::Gauge;
use paceway::{
    limit::{self, Callee, Caller, Reservation, Waiter},
    store::{
        Check, Checks, Decision, Store, StoreError,
        batch::StoreMetrics,
        failover::{self, Failover},
        health::{Health, HealthMetrics, Pace, PaceMetrics},
    },
};
use std::{sync::Arc, time::Duration};
use tokio::{
    task::AbortHandle,
    time::{Instant, sleep, timeout},
};

/// How long the start of a gateway waits for the store.
const PROBE: Duration = Duration::from_secs(2);

/// A process of a gateway that runs.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) number: usize,
    /// The stores of its workers, each with the number of its connection.
    pub(crate) stores: Vec<(Arc<dyn Store>, usize)>,
    /// The requests that it has received.
    pub(crate) requests: Vec<AbortHandle>,
    pub(crate) is_open: bool,
    pub(crate) process: Arc<failover::Process>,
    _keeper: Arc<dyn Store>,
}

/// A request, as its gateway sees it.
pub(crate) struct Request {
    pub(crate) number: usize,
    pub(crate) gateway: usize,
    pub(crate) route: usize,
    pub(crate) key: i64,
    pub(crate) leaves_after: Option<Duration>,
    /// The number of the connection to the store.
    pub(crate) line: usize,
}

/// A request on its way through the limiters.
struct Call<'a> {
    network: &'a Network,
    gateway: usize,
    line: usize,
    budget: Duration,
    until: Instant,
    /// The instant of the permits that it has.
    granted: Option<(Micros, Micros)>,
    sends_late: bool,
}

/// The connection of a request: it is ready as soon as its gateway does not stall.
struct Awake<'a> {
    network: &'a Network,
    gateway: usize,
}

// === impl Process ===

impl Process {
    /// Starts a gateway for the `life`th time.
    pub(crate) async fn start(
        history: &History,
        network: &Network,
        number: usize,
        life: usize,
    ) -> Self {
        let gauge = Gauge::noop;
        let metrics = HealthMetrics { breaker: gauge(), gateways: gauge(), up: gauge() };
        let mut health = Health::new(metrics, Pace::new(TIMEOUT, PaceMetrics::noop()));
        if let Some(health) = Arc::get_mut(&mut health) {
            health.id = format!("gateway {number}, life {life}").into();
        }
        if history.is_told {
            health.expect(i64::try_from(history.gateways.len()).expect("few"));
        }
        let process = failover::Process::new("paceway", health);
        let link = |side: usize| {
            let number_of_calls = 1 + side + 8 * (life + 64 * number);
            let number_of_calls = i64::try_from(number_of_calls).expect("small");
            Arc::new(network.connect(history, number, number_of_calls))
        };
        let first = link(6);
        match network.reaches(number) {
            true => process.introduce(&*first, PROBE).await,
            false => process.health.open(&StoreError::Unreachable("no server answers".into())),
        }
        let noop = StoreMetrics::noop;
        let worker = |side| -> (Arc<dyn Store>, usize) {
            let link = link(side);
            let line = link.line;
            (Arc::new(Failover::new(link, noop(), process.clone())), line)
        };
        let stores = (0..history.gateways[number].workers).map(worker).collect();
        let keeper = Failover::with_recovery(link(7), noop(), process.clone(), looked(history));
        let (requests, is_open) = (Vec::new(), true);
        Self { number, stores, requests, is_open, process, _keeper: Arc::new(keeper) }
    }

    /// Ends the process and all of its requests.
    pub(crate) fn end(&mut self) {
        self.is_open = false;
        self.requests.drain(..).for_each(|request| request.abort());
    }
}

/// The checks of all limiters with a single state, whose levels a gateway looks at.
fn looked(history: &History) -> Vec<Check> {
    let routes = history.routes.iter().filter(|route| route.keys == 1);
    routes
        .flat_map(|route| {
            route
                .limiters
                .iter()
                .map(|limiter| Check { cost: 1, ..history.check(route, *limiter, 0) })
        })
        .collect()
}

/// The checks of a request of `route` with `key`.
pub(crate) fn checks(history: &History, route: &Route, key: i64) -> Checks {
    route.limiters.iter().map(|limiter| history.check(route, *limiter, key)).collect()
}

// === impl Request ===

impl Request {
    /// Runs the request from its arrival to the end of its call.
    pub(crate) async fn go(
        self,
        history: Arc<History>,
        network: Network,
        upstream: Arc<Upstream>,
        store: Arc<dyn Store>,
    ) {
        network.awake(self.gateway).await;
        let route = &history.routes[self.route];
        let checks = checks(&history, route, self.key);
        let mut told = upstream.arrives(&self, network.now());
        let admitted = self.admitted(route, &network, &store, &checks);
        let admitted = match self.leaves_after {
            Some(patience) => timeout(patience, admitted).await.unwrap_or(Err(End::Left)),
            None => admitted.await,
        };
        match admitted {
            Err(end) => told.end(network.now(), end),
            Ok((mut reservation, granted)) => {
                reservation.spend();
                told.sent(network.now(), granted, &reservation);
                sleep(limit::duration(route.hold)).await;
                network.awake(self.gateway).await;
                told.end(network.now(), End::Done);
            }
        }
    }

    async fn admitted(
        &self,
        route: &Route,
        network: &Network,
        store: &Arc<dyn Store>,
        checks: &Checks,
    ) -> Result<(Reservation, (Micros, Micros)), End> {
        let budget = limit::duration(route.budget);
        let Self { gateway, line, .. } = *self;
        let mut call = Call {
            network,
            gateway,
            line,
            budget,
            until: Instant::now() + budget,
            granted: None,
            sends_late: network.world.lock().defect == Some(Defect::LateSlotsAreSent),
        };
        let paced = limit::pace(store, checks, &mut call, &mut Awake { network, gateway }).await;
        let (reservation, ()) = paced?;
        Ok((reservation, call.granted.expect("it has a reservation")))
    }
}

// === impl Call ===

impl Caller for Call<'_> {
    type Error = End;

    fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    fn granted(&mut self, reservation: &Reservation) {
        let Self { network, line, .. } = *self;
        self.granted.get_or_insert_with(|| network.granted(line, reservation));
    }

    fn queued(&mut self, _: &Waiter) {
        self.granted = None;
    }

    fn refused(&mut self, decision: Decision) -> End {
        End::Refused(decision.retry_after)
    }

    fn undecided(&mut self, error: StoreError) -> End {
        End::Failed(error)
    }

    fn waits(&mut self, _: usize, time: Option<Duration>) -> Result<(), End> {
        match time.is_some_and(|time| time > self.budget) {
            true => Err(End::InVain),
            false => Ok(()),
        }
    }

    fn is_late(&self, reservation: &Reservation) -> bool {
        reservation.is_late() && !self.sends_late
    }

    fn late(&mut self, _: &Reservation) {
        self.granted = None;
    }

    async fn notified(&mut self, waiter: &Waiter) -> Result<(), End> {
        waiter.notified().await;
        self.network.awake(self.gateway).await;
        Ok(())
    }
}

// === impl Awake ===

impl Callee for Awake<'_> {
    type Ready = ();
    type Error = End;

    /// The gateway may stall until after the instant, and then the request is late.
    fn lead(&self) -> Duration {
        Duration::ZERO
    }

    fn at_hand(&mut self) -> Option<()> {
        None
    }

    async fn ready(&mut self) -> Result<(), End> {
        self.network.awake(self.gateway).await;
        Ok(())
    }

    fn put_back(&mut self, (): ()) {}
}
