//! Questions to the store: the first one of a call, and those of a call that was late or waited in a queue.

use super::{Reservation, Waiter, duration, micros};
use crate::{
    algorithm::reserve::Part,
    store::{
        Answer, Check, Checks, Covering, Decision, Doubt, PauseVersion, Question, Source, Store,
        StoreError, calls::Callable,
    },
};
use std::{future::poll_fn, sync::Arc, task::Poll, time::Duration};
use tokio::time::{Instant, sleep, sleep_until, timeout};

/// The pause before a waiter leaves a queue to which it had to return: Redis is back, say, but the call of the waiter had no
/// answer. Without it, the waiters of one queue would hand their turns around as fast as the processor can.
const LULL: Duration = Duration::from_millis(5);
/// How often a call moves from the queue of one limiter to that of another one. Where two limiters have a free permit each, calls that
/// need both can hand these to each other without an end: the one that gets the first finds the second with the next call, which
/// finds the first with yet another one.
const MOST_MOVES: u32 = 4;
/// Calls that have moved as often ask again within so many ms.
const APART: u64 = 16;

/// The store's answer to a call that asked for its permits.
#[derive(Debug)]
pub enum Admission {
    /// The call may be made from the instant of the reservation on.
    Granted(Reservation),
    /// The call waits for a concurrency permit, and asks again when it is notified.
    Queued(Waiter),
    /// Nothing was taken.
    Refused(Decision),
}

/// Asks once for the permits of a call that may wait up to `budget`: those of some checks, or of the way with the earliest slot. Either
/// all limiters grant it, or none is charged.
///
/// # Errors
///
/// [`StoreError`] when the store gives no decision and the limiters' policy for that (`on_failure`) gives none either.
pub fn ask(
    store: &Arc<dyn Store>,
    question: impl Into<Question>,
    budget: Duration,
) -> impl Future<Output = Result<Admission, StoreError>> + Send {
    let question = question.into();
    let needs = |check: &Check| check.is_lease() || check.turn.is_some();
    let ticket = question.all().iter().any(needs).then(|| store.calls().ticket());
    ask_as(store, question, budget, ticket)
}

/// Asks for permits at an earlier instant in place of `parts`, within the budget.
///
/// # Errors
///
/// As [`Store::move_up`].
pub(super) async fn ask_instead(
    store: &Arc<dyn Store>,
    checks: Checks,
    parts: &[Part],
    budget: Duration,
) -> Result<Admission, StoreError> {
    let known = store.pauses().version();
    let decision = store.move_up(&checks, parts, micros(budget)).get().await?;
    Ok(admission(store, checks, budget, decision, known, None))
}

async fn ask_as(
    store: &Arc<dyn Store>,
    question: Question,
    budget: Duration,
    ticket: Option<Callable>,
) -> Result<Admission, StoreError> {
    let asked = ticket.as_ref().map(|callable| callable.ticket);
    let waiter = ticket.map(|ticket| Waiter::new(store, question.all(), ticket));
    let known = store.pauses().version();
    // An answer that is known already needs no future.
    let decision = match store.decide(&question, micros(budget), asked) {
        Answer::Ready(decision) => decision?,
        answer => answer.get().await?,
    };
    let checks = question.into_checks(&decision);
    Ok(admission(store, checks, budget, decision, known, waiter))
}

#[inline(always)]
fn admission(
    store: &Arc<dyn Store>,
    checks: Checks,
    budget: Duration,
    decision: Decision,
    known: PauseVersion,
    mut waiter: Option<Waiter>,
) -> Admission {
    if let Some(queued) = decision.queued
        && let Some(mut waiter) = waiter.take()
    {
        waiter.ask_at = Instant::now() + duration(queued.ask_after).min(budget);
        (waiter.bound_by, waiter.source) = (decision.bound_by, decision.source);
        (waiter.checks, waiter.way) = (checks, decision.chosen);
        if let Some(callable) = &mut waiter.ticket {
            callable.ticket.deadline = queued.deadline;
        }
        return Admission::Queued(waiter);
    }
    if !decision.admitted {
        return Admission::Refused(decision);
    }
    let ticket = waiter.and_then(|mut waiter| waiter.ticket.take());
    Admission::Granted(Reservation::new(store, checks, decision, known, ticket))
}

// === impl Reservation ===

impl Reservation {
    /// Asks for everything again, after a refund of what this reservation had.
    /// `renewed` are the checks with the rules that hold by now, if these have changed, or all ways in which the call can be made.
    ///
    /// # Errors
    ///
    /// As [`ask`].
    pub async fn ask_again(
        self,
        renewed: Option<Question>,
        budget: Duration,
    ) -> Result<Admission, StoreError> {
        let (store, question) = (self.store.clone(), self.question(renewed));
        drop(self);
        ask(&store, question, budget).await
    }

    /// Refunds everything, waits until no operator holds a limiter of the call, and asks again.
    ///
    /// # Errors
    ///
    /// As [`ask`].
    pub async fn ask_when_released(
        self,
        renewed: Option<Question>,
        left: impl Fn() -> Duration + Send,
    ) -> Result<Admission, StoreError> {
        let (store, question) = (self.store.clone(), self.question(renewed));
        drop(self);
        let pauses = store.pauses();
        pauses.released(question.all()).await;
        let _turn = timeout(left(), pauses.turn()).await;
        ask(&store, question, left()).await
    }

    /// Refunds everything, and asks again when other calls that do the same have refunded their permits, too: a slower limiter
    /// finds no room between slots that are as close as before.
    ///
    /// # Errors
    ///
    /// As [`ask`].
    pub async fn ask_in_turn(
        self,
        renewed: Option<Question>,
        left: impl Fn() -> Duration + Send,
    ) -> Result<Admission, StoreError> {
        let (store, checks) = (self.store.clone(), self.checks.clone());
        let question = self.question(renewed);
        drop(self);
        let_others_run().await;
        let turn = async {
            store.refunded(&checks).await;
            store.pauses().turn().await
        };
        // A call whose budget ends before its turn has its answer then.
        let _turn = timeout(left(), turn).await;
        ask(&store, question, left()).await
    }

    /// The question that it asks again: about all that it was granted for, or `renewed`.
    fn question(&self, renewed: Option<Question>) -> Question {
        renewed.unwrap_or_else(|| Question::Checks(self.checks.clone()))
    }

    /// Asks for everything again, because the pause `covering` covers the instant. `left` says how long the call may still
    /// wait.
    ///
    /// # Errors
    ///
    /// As [`ask`].
    pub async fn ask_behind(
        self,
        covering: Covering,
        renewed: Option<Question>,
        left: impl Fn() -> Duration + Send,
    ) -> Result<Admission, StoreError> {
        let store = self.store.clone();
        let pauses = store.pauses();
        let has_ways = matches!(renewed, Some(Question::Ways(_)));
        if covering.is_held && !has_ways {
            let refused = Decision::paused(covering.index, covering.left());
            return Ok(Admission::Refused(refused));
        }
        // A decision that this process makes while the store is away says nothing about the store.
        if covering.is_lost && self.source == Source::Shared {
            let check = &self.checks[covering.index];
            match pauses.doubt(&check.key, self.known) {
                Doubt::Restore => self.restore(covering).await,
                Doubt::Ask => {}
                Doubt::Wait(_) if covering.until > Instant::now() + left() => {
                    let refused = Decision::paused(covering.index, covering.left());
                    return Ok(Admission::Refused(refused));
                }
                Doubt::Wait(until) => sleep_until(until).await,
            }
        }
        self.ask_in_turn(renewed, left).await
    }

    /// Pauses the limiter in the store again.
    async fn restore(&self, covering: Covering) {
        let checks = [self.checks[covering.index].clone()].into();
        // Without an answer the pause is restored by a later call, or when the store is back.
        drop(self.store.pause(&checks, covering.pause()).get().await);
    }

    /// Takes the concurrency permits, now that the instant has come. If none is free, the other permits are refunded, and
    /// the waiter asks for everything again once it has a concurrency permit.
    ///
    /// # Errors
    ///
    /// As [`ask`].
    pub async fn take_concurrency(mut self, budget: Duration) -> Result<Admission, StoreError> {
        let leases: Checks = self.checks.iter().filter(|check| check.is_lease()).cloned().collect();
        let index_of = |checks: &Checks, bound_by: usize| {
            let index = checks.iter().position(|check| check.key == leases[bound_by].key);
            index.unwrap_or(0)
        };
        match ask_as(&self.store, (&leases).into(), budget, self.ticket.take()).await? {
            Admission::Granted(held) => {
                self.held = Some(Box::new(held));
                Ok(Admission::Granted(self))
            }
            Admission::Queued(waiter) => {
                let bound_by = index_of(&self.checks, waiter.bound_by);
                Ok(Admission::Queued(waiter.for_all(self.checks.clone(), bound_by)))
            }
            Admission::Refused(mut decision) => {
                decision.bound_by = index_of(&self.checks, decision.bound_by);
                Ok(Admission::Refused(decision))
            }
        }
    }
}

/// Lets the calls run that were woken before this one, and those that were woken with it, in their order. Those that wait
/// in `yield_now` of tokio are woken in the reverse order.
async fn let_others_run() {
    let mut have_run = false;
    poll_fn(|context| {
        if std::mem::replace(&mut have_run, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

// === impl Waiter ===

impl Waiter {
    /// Asks for everything again, from this place in the queue. The place is given up when the store that keeps the queue
    /// decides no longer: when Redis failed meanwhile, or came back.
    ///
    /// # Errors
    ///
    /// As [`ask`].
    pub async fn ask_again(mut self, budget: Duration) -> Result<Admission, StoreError> {
        if self.store.decides_alone(&self.checks) != (self.source == Source::Local) {
            return self.ask_the_other_store(budget).await;
        }
        if self.moves > MOST_MOVES {
            return self.ask_apart(budget).await;
        }
        let (ticket, bound_by, moves) = (self.ticket.take(), self.bound_by, self.moves);
        let mut admission = ask_as(&self.store, (&self.checks).into(), budget, ticket).await?;
        if let Admission::Queued(waiter) = &mut admission {
            waiter.moves = moves + u32::from(waiter.bound_by != bound_by);
        }
        Ok(admission)
    }

    /// Leaves the queue, and asks again a little later, at another instant than others that do so.
    async fn ask_apart(self, budget: Duration) -> Result<Admission, StoreError> {
        let number = self.ticket.as_ref().map_or(0, |callable| callable.ticket.number);
        let pause = LULL + Duration::from_millis(number.unsigned_abs() % APART);
        let (store, checks) = (self.store.clone(), self.checks.clone());
        drop(self);
        sleep(pause).await;
        ask(&store, &checks, budget.saturating_sub(pause)).await
    }

    async fn ask_the_other_store(self, mut budget: Duration) -> Result<Admission, StoreError> {
        if self.is_back {
            sleep(LULL).await;
            budget = budget.saturating_sub(LULL);
        }
        let (store, checks, source) = (self.store.clone(), self.checks.clone(), self.source);
        drop(self);
        let mut admission = ask(&store, &checks, budget).await?;
        if let Admission::Queued(waiter) = &mut admission {
            waiter.is_back = waiter.source == source;
        }
        Ok(admission)
    }
}
