//! Asking, waiting, and giving back what is not used: the way of a request between its route and its
//! upstream, and the same for programs that use this crate as a library.

mod layer;

pub use layer::{LimitLayer, LimitService};

use crate::{
    algorithm::{
        Algorithm, Grant, MAX_BUDGET, Micros, TokenBucket,
        reserve::{self, Part},
    },
    answer::{Policy, Quota},
    key,
    log::{Permit, Throttle},
    rate::Rate,
    store::{
        Answer, Check, Checks, Decision, Source, Store, StoreError, batch::places, calls::Callable,
    },
};
use std::{sync::Arc, time::Duration};
use tokio::{
    sync::Mutex,
    task::AbortHandle,
    time::{Instant, sleep, sleep_until},
};

/// How late a task may wake for a slot of a limiter that says nothing about it: a machine that stands still
/// for longer would send what has piled up at once.
const SLACK: Duration = Duration::from_millis(100);
/// A margin smaller than this is taken for this: timers count in ms.
const LEAST_SLACK: Duration = Duration::from_millis(5);

/// A lease that could not be renewed is tried again so soon.
const RENEW_AGAIN: Duration = Duration::from_secs(1);
/// A store that stalls lets all leases expire together.
static EXPIRED: Throttle = Throttle::new();

/// How far ahead a [`Limiter`] reserves permits by default. After Redis loses its data the limiter is closed for as
/// long, so a longer wait has to be asked for.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// A granted slot that has not been used, or whose places are still held. Dropped, it goes to somebody else.
#[derive(Debug)]
pub struct Slot {
    store: Arc<dyn Store>,
    checks: Checks,
    parts: reserve::Parts,
    /// When it may be used.
    pub at: Instant,
    /// How long that is from the decision.
    pub wait: Duration,
    /// Index of the check that made it so late.
    pub bound_by: usize,
    /// Who granted it, and takes it back.
    pub source: Source,
    spent: bool,
    /// Who holds its places.
    ticket: Option<Callable>,
    renewals: Vec<AbortHandle>,
    /// The places of a slot whose permits came later.
    places: Option<Box<Slot>>,
}

/// A wait for a place that somebody else holds. Dropped, it leaves the queue.
#[derive(Debug)]
pub struct Place {
    store: Arc<dyn Store>,
    checks: Checks,
    ticket: Option<Callable>,
    ask_at: Instant,
    /// Whose queue it is.
    pub source: Source,
    /// Index of the check whose places are all held.
    pub bound_by: usize,
}

/// The store's answer to one who asked.
#[derive(Debug)]
pub enum Admission {
    /// To be used at its instant.
    Granted(Slot),
    /// To be asked again when called.
    Queued(Place),
    /// Nothing was taken.
    Refused(Decision),
}

/// A limiter for programs that use this crate as a library. Clones share it.
#[derive(Debug, Clone)]
pub struct Limiter {
    policy: Policy,
    rule: TokenBucket,
    key: Arc<str>,
    store: Arc<dyn Store>,
    /// How far ahead permits are reserved.
    max_wait: Duration,
    /// Held by the one caller of `acquire` that asks for permits further ahead than `max_wait`; later callers wait for
    /// the lock, in order.
    beyond: Arc<Mutex<()>>,
}

/// Why a [`Limiter`] gave no permits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AcquireError {
    /// Not within the time; nothing was taken.
    #[error("no permits within the time; they can be had by asking again in {retry_after:?}")]
    Refused {
        /// The same call succeeds when a lone caller makes it this much later.
        retry_after: Duration,
    },
    /// More (or fewer) permits than the limiter can ever give at once.
    #[error("{asked} permits can never be had at once; between 1 and {most} can")]
    Impossible {
        /// What was asked for.
        asked: u32,
        /// The limiter's burst.
        most: i64,
    },
    /// The store gave no decision.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Asks once for all `checks` of a request that may wait up to `budget`.
///
/// # Errors
///
/// The store's.
pub async fn ask(
    store: &Arc<dyn Store>,
    checks: &Checks,
    budget: Duration,
) -> Result<Admission, StoreError> {
    let ticket = checks.iter().any(Check::is_lease).then(|| store.calls().ticket());
    ask_as(store, checks, budget, ticket).await
}

async fn ask_as(
    store: &Arc<dyn Store>,
    checks: &Checks,
    budget: Duration,
    ticket: Option<Callable>,
) -> Result<Admission, StoreError> {
    let (answer, place) = begin(store, checks, budget, ticket);
    // An answer that is known already needs no future.
    let decision = match answer {
        Answer::Ready(decision) => decision?,
        answer => answer.get().await?,
    };
    Ok(admission(store, checks, budget, decision, place))
}

/// Asks. Whoever leaves before the answer leaves its queue, too, with the place.
fn begin(
    store: &Arc<dyn Store>,
    checks: &Checks,
    budget: Duration,
    ticket: Option<Callable>,
) -> (Answer<Decision>, Option<Place>) {
    let asked = ticket.as_ref().map(|callable| callable.ticket);
    let place = ticket.map(|ticket| Place {
        store: store.clone(),
        checks: checks.clone(),
        ticket: Some(ticket),
        ask_at: Instant::now(),
        source: Source::Shared,
        bound_by: 0,
    });
    (store.reserve(checks, micros(budget), asked), place)
}

fn admission(
    store: &Arc<dyn Store>,
    checks: &Checks,
    budget: Duration,
    decision: Decision,
    mut place: Option<Place>,
) -> Admission {
    if let Some(queued) = decision.queued
        && let Some(mut place) = place.take()
    {
        place.ask_at = Instant::now() + duration(queued.ask_after).min(budget);
        (place.bound_by, place.source) = (decision.bound_by, decision.source);
        if let Some(callable) = &mut place.ticket {
            callable.ticket.deadline = queued.deadline;
        }
        return Admission::Queued(place);
    }
    if !decision.admitted {
        return Admission::Refused(decision);
    }
    let wait = duration(decision.wait);
    let mut slot = Slot {
        store: store.clone(),
        checks: checks.clone(),
        parts: decision.parts,
        at: Instant::now() + wait,
        wait,
        bound_by: decision.bound_by,
        source: decision.source,
        spent: false,
        ticket: place.and_then(|mut place| place.ticket.take()),
        renewals: Vec::new(),
        places: None,
    };
    if slot.ticket.is_some() {
        let source = slot.source;
        let held = slot.held().map(|(check, part)| renew(store, source, check, part.grant));
        slot.renewals = held.collect();
    }
    Admission::Granted(slot)
}

/// Renews a lease three times within its time, for as long as it is held.
fn renew(store: &Arc<dyn Store>, source: Source, check: &Check, grant: Grant) -> AbortHandle {
    let (store, check) = (store.clone(), check.clone());
    let period = duration(check.algorithm.lease().unwrap_or(MAX_BUDGET)) / 3;
    let renewal = tokio::spawn(async move {
        let mut pause = period;
        loop {
            sleep(pause).await;
            pause = match store.renew(source, &check, grant).get().await {
                Ok(true) => period,
                Ok(false) => {
                    if let Some(Permit { suppressed }) = EXPIRED.permit() {
                        let key = &check.key;
                        tracing::warn!(%key, suppressed, "a lease expired while it was held");
                    }
                    return;
                }
                // A store that is away may be back in time.
                Err(_) => period.min(RENEW_AGAIN),
            }
        }
    });
    renewal.abort_handle()
}

/// A budget in µs, as the rules count; what is longer than any wait is as long as the longest.
pub fn micros(span: Duration) -> Micros {
    i64::try_from(span.as_micros()).unwrap_or(MAX_BUDGET).min(MAX_BUDGET)
}

/// From µs.
pub fn duration(micros: Micros) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

// === impl Slot ===

impl Slot {
    /// Resolves `lead` before the slot's instant.
    pub async fn near(&self, lead: Duration) {
        if self.wait > lead {
            sleep_until(self.at - lead).await;
        }
    }

    /// Resolves at the slot's instant.
    pub async fn come(&self) {
        if !self.wait.is_zero() {
            sleep_until(self.at).await;
        }
    }

    /// Whether its instant is further in the past than the way upstream may vary: what is sent now could meet
    /// what is sent later.
    pub fn is_late(&self) -> bool {
        let margins = self.checks.iter().map(|check| duration(check.algorithm.margin()));
        let margin = margins.filter(|margin| !margin.is_zero()).min();
        let slack = margin.map_or(SLACK, |margin| margin.max(LEAST_SLACK));
        self.at.elapsed() > slack
    }

    /// Whether all is taken; places are only when the instant has come.
    pub fn is_complete(&self) -> bool {
        self.places.is_some() || !self.parts.contains(&Part::NOT_YET)
    }

    /// Whether it must be kept until the work is done.
    pub fn holds_places(&self) -> bool {
        self.places.is_some() || self.held().next().is_some()
    }

    /// Takes the places, now that the instant has come. If they are all held the permits go to somebody else, and
    /// everything is asked for again with a place.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn take_places(mut self, budget: Duration) -> Result<Admission, StoreError> {
        let places: Checks = self.checks.iter().filter(|check| check.is_lease()).cloned().collect();
        match ask_as(&self.store, &places, budget, self.ticket.take()).await? {
            Admission::Granted(places) => {
                self.places = Some(Box::new(places));
                Ok(Admission::Granted(self))
            }
            Admission::Queued(place) => {
                let index =
                    self.checks.iter().position(|check| check.key == places[place.bound_by].key);
                let bound_by = index.unwrap_or(0);
                Ok(Admission::Queued(place.for_all(self.checks.clone(), bound_by)))
            }
            Admission::Refused(mut decision) => {
                let bound = &places[decision.bound_by].key;
                let index = self.checks.iter().position(|check| check.key == *bound);
                decision.bound_by = index.unwrap_or(0);
                Ok(Admission::Refused(decision))
            }
        }
    }

    /// Asks for everything anew; what it had goes to somebody else first.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn ask_again(self, budget: Duration) -> Result<Admission, StoreError> {
        let (store, checks) = (self.store.clone(), self.checks.clone());
        drop(self);
        ask(&store, &checks, budget).await
    }

    /// What a request asks for before it is sent once more: all that it asked for, but for the places, which it still
    /// holds. With each check comes its index among all checks of the slot.
    pub fn for_another_attempt(&self) -> (Checks, Vec<usize>) {
        let rates = self.checks.iter().enumerate().filter(|(_, check)| !check.is_lease());
        let (indices, checks): (_, Vec<Check>) = rates.map(|(i, check)| (i, check.clone())).unzip();
        (checks.into(), indices)
    }

    /// Uses the slot: from now on, what is sent is paid for.
    pub fn spend(&mut self) {
        self.spent = true;
    }

    /// Nothing was sent after all: somebody else may.
    pub fn give_back(mut self) {
        self.spent = false;
    }

    /// What was asked of the limiter that bound.
    pub fn bound(&self) -> &Check {
        &self.checks[self.bound_by]
    }

    /// What each limiter gave, in the order of the checks.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Its places.
    fn held(&self) -> impl Iterator<Item = (&Check, &Part)> {
        let parts = self.checks.iter().zip(&self.parts);
        parts.filter(|(check, part)| check.is_lease() && part.at >= 0)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.renewals.iter().for_each(AbortHandle::abort);
        if !self.spent {
            self.store.refund(self.source, &self.checks, &self.parts);
            // The place that it was called to, and that it kept while it waited for permits.
            if let Some(Callable { ticket, .. }) = self.ticket.take()
                && ticket.deadline > 0
                && self.held().next().is_none()
            {
                self.store.refund(self.source, &self.checks, &places(&self.checks, ticket));
            }
        } else if self.held().next().is_some() {
            let mut parts = self.parts.clone();
            let spent =
                parts.iter_mut().zip(self.checks.iter()).filter(|(_, check)| !check.is_lease());
            spent.for_each(|(part, _)| *part = Part::NOTHING);
            self.store.refund(self.source, &self.checks, &parts);
        }
    }
}

// === impl Place ===

impl Place {
    /// Resolves when it is worth asking again: the place has been handed over, its holder may have died, or the
    /// budget is at its end and only the refusal is left.
    pub async fn called(&self) {
        let Some(ticket) = &self.ticket else { return };
        tokio::select! {
            biased;
            () = ticket.notified() => {}
            () = sleep_until(self.ask_at) => {}
        }
    }

    /// What was asked of the limiter whose places are all held.
    pub fn bound(&self) -> &Check {
        &self.checks[self.bound_by]
    }

    /// Asks for everything again, with the place in the queue; without it when who keeps that queue decides no longer.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn ask_again(mut self, budget: Duration) -> Result<Admission, StoreError> {
        if self.store.decides_alone(&self.checks) != (self.source == Source::Local) {
            let (store, checks) = (self.store.clone(), self.checks.clone());
            drop(self);
            return ask(&store, &checks, budget).await;
        }
        let ticket = self.ticket.take();
        ask_as(&self.store, &self.checks, budget, ticket).await
    }

    fn for_all(mut self, checks: Checks, bound_by: usize) -> Self {
        let ticket = self.ticket.take();
        let (store, ask_at, source) = (self.store.clone(), self.ask_at, self.source);
        Self { store, checks, ticket, ask_at, source, bound_by }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(Callable { ticket, .. }) = self.ticket.take()
            && ticket.deadline > 0
        {
            self.store.refund(self.source, &self.checks, &places(&self.checks, ticket));
        }
    }
}

// === impl Limiter ===

impl Limiter {
    /// A token bucket named `name` in `store`: `rate.count` permits per `rate.period`, at most `burst` at once.
    /// Two limiters with one name in one store are one. `None` when `rate` and `burst` make no rule:
    /// zero, more than one a microsecond, or a bucket that takes decades to fill.
    pub fn token_bucket(name: &str, rate: Rate, burst: u32, store: Arc<dyn Store>) -> Option<Self> {
        let period = i64::try_from(rate.period.as_micros()).ok()?;
        let rule = TokenBucket::new(i64::try_from(rate.count).ok()?, period, i64::from(burst))?;
        let policy = Policy { name: name.to_owned(), quota: Quota::Rate(rate) };
        let key = key::StateNames::new("paceway", name, b'T', name).of(None).into();
        Some(Self { policy, rule, key, store, max_wait: MAX_WAIT, beyond: Arc::default() })
    }

    /// Declares how far ahead the limiter reserves permits: one minute unless declared, one hour at most. No caller
    /// holds a reservation for a later instant, whatever its time-out.
    ///
    /// After Redis loses its data, each process refuses for this long and the time that the bucket takes to fill,
    /// because another process may hold reservations that far ahead. So every process that shares the limiter must
    /// declare the same value, as it must declare the same rate.
    #[must_use]
    pub fn max_wait(self, max_wait: Duration) -> Self {
        Self { max_wait: max_wait.min(duration(MAX_BUDGET)), ..self }
    }

    /// Takes `permits` and waits for them as long as needed; returns how long that was. The callers of one process
    /// are served in the order in which they asked, and so are all processes for permits that come within
    /// [`max_wait`](Self::max_wait). A dropped future gives its place to somebody else. A caller that wakes over
    /// 100 ms after its instant (the machine was suspended, say) asks again.
    ///
    /// # Errors
    ///
    /// [`AcquireError::Impossible`], [`AcquireError::Store`].
    pub async fn acquire(&self, permits: u32) -> Result<Duration, AcquireError> {
        let checks = self.checks(permits)?;
        let started = Instant::now();
        let mut turn = None;
        if self.beyond.try_lock().is_err() {
            turn = Some(self.beyond.lock().await);
        }
        loop {
            match self.reserve(&checks, self.max_wait).await {
                Ok(mut slot) => {
                    turn = None;
                    slot.come().await;
                    if !slot.is_late() {
                        slot.spend();
                        return Ok(started.elapsed());
                    }
                }
                // No reservation reaches so far yet. One caller asks when one does; the others wait for that caller.
                Err(AcquireError::Refused { retry_after }) => match turn {
                    Some(_) => sleep(retry_after).await,
                    None => turn = Some(self.beyond.lock().await),
                },
                Err(error) => return Err(error),
            }
        }
    }

    /// Takes `permits` if they can be had within `timeout`, or within [`max_wait`](Self::max_wait) if that is
    /// shorter, waits for them, and returns how long that was. If not, says so at once. A caller that wakes over 100 ms
    /// after its instant asks again, with what is left of its time.
    ///
    /// # Errors
    ///
    /// [`AcquireError`].
    pub async fn try_acquire(
        &self,
        permits: u32,
        timeout: Duration,
    ) -> Result<Duration, AcquireError> {
        let checks = self.checks(permits)?;
        let started = Instant::now();
        loop {
            let left = timeout.min(self.max_wait).saturating_sub(started.elapsed());
            let mut slot = self.reserve(&checks, left).await?;
            slot.come().await;
            if !slot.is_late() {
                slot.spend();
                return Ok(started.elapsed());
            }
        }
    }

    /// A slot that comes within `budget`.
    async fn reserve(&self, checks: &Checks, budget: Duration) -> Result<Slot, AcquireError> {
        match ask(&self.store, checks, budget).await? {
            Admission::Granted(slot) => Ok(slot),
            Admission::Refused(Decision { retry_after, .. }) => {
                Err(AcquireError::Refused { retry_after: duration(retry_after) })
            }
            // A token bucket has no places.
            Admission::Queued(_) => Err(AcquireError::Refused { retry_after: budget }),
        }
    }

    fn checks(&self, permits: u32) -> Result<Checks, AcquireError> {
        let (cost, most) = (i64::from(permits), self.rule.capacity());
        if !(1..=most).contains(&cost) {
            return Err(AcquireError::Impossible { asked: permits, most });
        }
        let algorithm = Algorithm::TokenBucket(self.rule);
        // It refuses without the store: nobody can be asked how many share it.
        Ok(Arc::new([Check::new(self.key.clone(), algorithm)
            .with_cost(cost)
            .with_horizon(algorithm.horizon(micros(self.max_wait), cost))]))
    }
}

#[cfg(test)]
mod tests;
