//! A gateway of the fleet: the product's own guards over links, and the product's own loop through the limiters, without
//! HTTP.

use crate::{
    controls::{Defect, TIMEOUT},
    history::{Asker, History, MS, Micros, Route},
    network::Network,
    upstream::{End, Left, SeenRefusal, Upstream},
};
use paceway::{
    algorithm::{Grant, concurrency::Ticket, reserve::Part},
    limit::{self, Callee, Caller, Reservation, Waiter},
    store::{
        Alternative, Alternatives, Answer, Check, Checks, Decision, Entry, Pause, Pauses, Question,
        Reply, Source, Store, StoreError,
        batch::StoreMetrics,
        calls::Calls,
        failover::{self, Failover},
        health::{Health, HealthMetrics, Pace, PaceMetrics},
    },
};
use std::{sync::Arc, time::Duration};
use tokio::{
    sync::watch,
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
    pub(crate) keeper: Arc<Failover>,
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
    /// The instant of the permits that it has, as the gateway knows it and as it can be.
    granted: Option<(Instant, (Micros, Micros))>,
    /// The store has granted a slot which can still be exchanged.
    has_turn: bool,
    takes_turns: bool,
    sends_late: bool,
    /// The accounts that it can take, if there are several.
    ways: Option<Arc<Alternatives>>,
}

/// The connection of a request: it is ready as soon as its gateway does not stall.
struct Awake<'a> {
    network: &'a Network,
    gateway: usize,
}

/// A store whose requests see no pause: a defect of `controls.rs`.
#[derive(Debug)]
struct Unpaused {
    store: Arc<Failover>,
    none: Arc<Pauses>,
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
        let pace = Pace::new(TIMEOUT, PaceMetrics::noop());
        let mut health = Health::new(HealthMetrics::noop(), pace);
        if let Some(health) = Arc::get_mut(&mut health) {
            health.id = format!("life {life}@gateway {number}").into();
        }
        if history.is_told {
            health.expect(i64::try_from(history.gateways.len()).expect("few"));
        }
        let pauses = if network.has(Defect::PausesComeLate) {
            Arc::default()
        } else {
            health.pauses.clone()
        };
        network.change(|world, _| world.receive_pauses(number, Some(pauses)));
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
            let store = Arc::new(Failover::new(link, noop(), process.clone()));
            match network.has(Defect::SlotsAreKept) {
                true => (Arc::new(Unpaused { store, none: Arc::default() }), line),
                false => (store, line),
            }
        };
        let stores = (0..history.gateways[number].workers).map(worker).collect();
        let keeper = Failover::with_recovery(
            link(7),
            noop(),
            process.clone(),
            watch::channel(looked(history).into()).1,
        );
        let (requests, is_open) = (Vec::new(), true);
        Self { number, stores, requests, is_open, process, keeper: Arc::new(keeper) }
    }

    /// Ends the process and all of its requests.
    pub(crate) fn end(&mut self) {
        self.is_open = false;
        self.requests.drain(..).for_each(|request| request.abort());
    }
}

/// The checks of all limiters with a single state, whose levels a gateway looks at.
fn looked(history: &History) -> Vec<Check> {
    let routes = (0..history.routes.len()).filter(|route| history.routes[*route].keys == 1);
    let checks = routes.flat_map(|route| {
        checks(history, Asker { route, ..Asker::default() }).iter().cloned().collect::<Vec<_>>()
    });
    checks.map(|check| Check { cost: 1, turn: None, ..check }).collect()
}

/// The checks of a request.
pub(crate) fn checks(history: &History, asker: Asker) -> Checks {
    let limiters = &history.routes[asker.route].limiters;
    limiters.iter().map(|limiter| history.check(asker, *limiter)).collect()
}

/// The checks of a request with each account; `None` if there are none.
fn ways(history: &History, asker: Asker) -> Option<Arc<Alternatives>> {
    let way = |id: u8| Alternative {
        id,
        checks: checks(history, Asker { key: id.into(), ..asker }),
        after: 0,
    };
    let all = history.has_accounts.then(|| (0..history.key_rates.len() as u8).map(way))?;
    Alternatives::new(all.collect()).map(Arc::new)
}

/// Tells the store what remains of the upstream's quota. No request waits for that.
fn lower(store: &Arc<dyn Store>, check: &Check, left: Left, now: Micros) {
    let lowered = store.lower(check, left.permits, left.until - now);
    // Without an answer the next one says what remains.
    tokio::spawn(async move { drop(lowered.get().await) });
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
        let Self { route: of, key, number, .. } = self;
        let came = network.now();
        let checks = checks(&history, Asker { route: of, key, number, came });
        let mut told = upstream.arrives(&self, came);
        let ways = ways(&history, Asker { route: of, key, number, came });
        let admitted = self.admitted(route, &network, &store, &checks, ways);
        let admitted = match self.leaves_after {
            Some(patience) => timeout(patience, admitted).await.unwrap_or(Err(End::Left)),
            None => admitted.await,
        };
        match admitted {
            Err(end) => told.end(network.now(), end),
            Ok((mut reservation, granted)) => {
                reservation.spend();
                let sent = network.now();
                told.sent(sent, granted, &reservation);
                let said = upstream.answer(&history, &self, sent);
                let refused = said.refused_until;
                // A refusal is quick.
                let hold = refused.map_or(route.hold, |_| route.hold.min(10 * MS));
                sleep(limit::duration(hold)).await;
                network.awake(self.gateway).await;
                let now = network.now();
                told.end(now, End::Done);
                let heard = said.left.and_then(|left| upstream.hear(&self, sent, now, left));
                if let Some(after) = heard {
                    let (history, network, upstream) =
                        (history.clone(), network.clone(), upstream.clone());
                    let (store, checks) = (store.clone(), checks.clone());
                    let teller = (self.gateway, self.key);
                    tokio::spawn(async move {
                        sleep(limit::duration(after)).await;
                        let now = network.now();
                        if let Some(left) = upstream.report(&history, teller, now) {
                            checks.iter().for_each(|check| lower(&store, check, left, now));
                        }
                    });
                }
                let used = route.used(self.number);
                for check in (0..checks.len()).filter(|_| refused.is_none()) {
                    if let Some(settlement) = reservation.settlement(check) {
                        settlement.settle(used);
                    }
                }
                drop(reservation);
                if let Some(until) = refused.filter(|until| *until > now) {
                    let (gateway, route, key) = (self.gateway, self.route, self.key);
                    let refusal = SeenRefusal { gateway, route, key, at: now, until };
                    upstream.refusals.lock().push(refusal);
                    let learns = history.quota.is_none_or(|quota| quota.learns);
                    let pause = if learns { Pause::for_micros } else { Pause::keeping_rate };
                    let pause = pause(until - now, 429).since_sent(limit::duration(now - sent));
                    // Its error says that the store does not know of the pause yet.
                    drop(store.pause(&checks, pause).get().await);
                }
            }
        }
    }

    async fn admitted(
        &self,
        route: &Route,
        network: &Network,
        store: &Arc<dyn Store>,
        checks: &Checks,
        ways: Option<Arc<Alternatives>>,
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
            has_turn: false,
            takes_turns: checks.iter().any(|check| check.turn.is_some()),
            sends_late: network.world.lock().defect == Some(Defect::LateSlotsAreSent),
            ways,
        };
        let paced = limit::pace(store, checks, &mut call, &mut Awake { network, gateway }).await;
        let (reservation, ()) = paced?;
        let (at, granted) = call.granted.expect("it has a reservation");
        // A slot may have passed before the store confirmed it.
        let ahead = if call.has_turn { limit::micros(at - reservation.at) } else { 0 };
        Ok((reservation, (granted.0 - ahead, granted.1 - ahead)))
    }
}

// === impl Call ===

impl Caller for Call<'_> {
    type Error = End;

    fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    fn ways(&self) -> Option<Arc<Alternatives>> {
        self.ways.clone()
    }

    fn granted(&mut self, reservation: &Reservation) {
        // Concurrency permits come later, for the same instant.
        if self.granted.is_none_or(|(at, _)| at != reservation.at) {
            self.moved(reservation);
        }
        self.has_turn = self.takes_turns && reservation.source == Source::Shared;
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
        // The store may have said just now that the slot is another one, also a later one.
        if let Some(wait) = time.filter(|_| self.has_turn) {
            let granted = self.network.granted_by(Source::Shared, self.line, wait);
            self.granted = Some((Instant::now() + wait, granted));
        }
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

    fn paused(&mut self, _: &Reservation) {
        self.granted = None;
    }

    fn moved(&mut self, reservation: &Reservation) {
        let granted = self.network.granted(self.line, reservation);
        self.granted = Some((reservation.at, granted));
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

// === impl Unpaused ===

impl Store for Unpaused {
    fn decide(
        &self,
        question: &Question,
        budget: Micros,
        ticket: Option<Ticket>,
    ) -> Answer<Decision> {
        self.store.decide(question, budget, ticket)
    }

    fn execute(&self, entry: Entry) -> Answer<Reply> {
        self.store.execute(entry)
    }

    fn refund(&self, source: Source, checks: &Checks, parts: &[Part]) {
        self.store.refund(source, checks, parts);
    }

    fn settle(&self, source: Source, check: &Check, part: Part, used: i64) {
        self.store.settle(source, check, part, used);
    }

    fn renew(&self, source: Source, check: &Check, grant: Grant) -> Answer<bool> {
        self.store.renew(source, check, grant)
    }

    fn pause(&self, checks: &Checks, pause: Pause) -> Answer<()> {
        self.store.pause(checks, pause)
    }

    fn calls(&self) -> &Arc<Calls> {
        self.store.calls()
    }

    fn pauses(&self) -> &Arc<Pauses> {
        &self.none
    }

    fn decides_alone(&self, checks: &Checks) -> bool {
        self.store.decides_alone(checks)
    }
}
