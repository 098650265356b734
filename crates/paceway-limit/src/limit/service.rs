//! The one way of a call through its limiters.
//!
//! A connection must be ready before its permits are spent: a connection that takes 300 ms to make would otherwise send
//! the call 300 ms after its instant, together with later ones. So [`pace`] asks for permits first, waits until shortly
//! before their instant, lets the [`Callee`] make ready what the call needs, and waits for the instant itself. A call that is
//! late by then, or whose concurrency permits other calls hold, asks again. At a limiter that shares its slots fairly, a call
//! confirms its slot before it makes anything ready, because it may have to yield it. Dropping the future refunds everything.

use super::{
    Reservation, Waiter,
    ask::{Admission, ask},
    move_up::Moved,
    ways::{among_all, other_way, question, take_way},
};
use crate::store::{
    Alternatives, Checks, Covering, Decision, Opening, Question, Store, StoreError,
};
use std::{
    future::{Future, pending},
    marker::PhantomData,
    sync::Arc,
    time::Duration,
};
use tokio::time::Instant;

/// The longest time before its instant at which a call makes its callee ready. A connection that is made earlier could be
/// closed as idle before it is used.
pub(super) const MOST_LEAD: Duration = Duration::from_secs(1);
/// The shortest: timers count in ms, and a task may wake some ms late.
const LEAST_LEAD: Duration = Duration::from_millis(20);

/// How long before its instant a call should begin to make its callee ready, if that took `took` last: twice as long, from
/// 20 ms to a second.
pub fn lead(took: Duration) -> Duration {
    (took * 2).clamp(LEAST_LEAD, MOST_LEAD)
}

/// The side of a call that asks: how long it waits, what it counts, and what ends its wait early.
pub trait Caller: Send + Sync {
    /// Why the call is not made.
    type Error;

    /// How long the call may still wait. With no time left, the next answer is a grant for now or a refusal.
    fn left(&self) -> Duration;

    /// The checks of the call with the rules that hold now, before it asks again; `None` if they are those that it asked
    /// with. A margin that is learned may have grown meanwhile.
    fn renewed(&self) -> Option<Checks> {
        None
    }

    /// The ways in which the call can be made now, if there are several; asked before each question for everything.
    fn ways(&self) -> Option<Arc<Alternatives>> {
        None
    }

    /// Sees the way that the store has taken, by its [id](crate::store::Alternative::id), before the answer.
    fn takes(&mut self, _way: u8) {}

    /// Sees each reservation that the store grants.
    fn granted(&mut self, _reservation: &Reservation) {}

    /// Sees each place in a queue that the store gives.
    fn queued(&mut self, _waiter: &Waiter) {}

    /// Makes the error of a call that the limiters refuse. Nothing was taken.
    fn refused(&mut self, decision: Decision) -> Self::Error;

    /// Makes the error of a call for which the store gave no decision.
    fn undecided(&mut self, error: StoreError) -> Self::Error;

    /// Sees that the call has to wait, before each of its waits: for `time`, or in a queue, because of the limiter of check
    /// `bound_by`. It may give up instead, because too many wait already.
    ///
    /// # Errors
    ///
    /// Those of the call, which ends with them.
    fn waits(&mut self, _bound_by: usize, _time: Option<Duration>) -> Result<(), Self::Error> {
        Ok(())
    }

    /// Whether the call must not be made any more with `reservation`, whose instant has come.
    fn is_late(&self, reservation: &Reservation) -> bool {
        reservation.is_late()
    }

    /// Sees that a reservation was late. The call asks again.
    fn late(&mut self, _reservation: &Reservation) {}

    /// Sees that a pause covers the instant of a reservation. The call asks again.
    fn paused(&mut self, _reservation: &Reservation) {}

    /// Sees that a reservation has moved to an earlier instant, because another call has left.
    fn moved(&mut self, _reservation: &Reservation) {}

    /// Waits until the place in the queue is worth asking again for, or gives up.
    ///
    /// # Errors
    ///
    /// Those of the call, which ends with them.
    fn notified(
        &mut self,
        waiter: &Waiter,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send {
        async {
            waiter.notified().await;
            Ok(())
        }
    }

    /// Resolves when the way that the store has taken is closed, so that the call asks again. Never, by default.
    fn way_closes(&self) -> impl Future<Output = ()> + Send {
        pending()
    }

    /// Resolves when the call must not wait any longer for a reservation that is due at this instant. Never, by default.
    fn interrupted(&self, _due: Instant) -> impl Future<Output = Self::Error> + Send {
        pending()
    }
}

/// The side of a call that is called: what it needs besides permits, such as a connection or a tower service that is
/// ready.
pub trait Callee: Send {
    /// The thing that the call is made with, such as a connection.
    type Ready: Send;
    /// Why there is none.
    type Error;

    /// How long before its instant the call should begin to make it, as [`lead`] says.
    fn lead(&self) -> Duration;

    /// Gives one out that is ready now, without waiting.
    fn at_hand(&mut self) -> Option<Self::Ready>;

    /// Makes one ready.
    ///
    /// # Errors
    ///
    /// Those of the call, which ends with them. Its permits are refunded.
    fn ready(&mut self) -> impl Future<Output = Result<Self::Ready, Self::Error>> + Send;

    /// Takes back one that the call did not use, because it was late or has no concurrency permit.
    fn put_back(&mut self, ready: Self::Ready);

    /// Sees the way that the store has taken, by its [id](crate::store::Alternative::id).
    fn takes(&mut self, _way: u8) {}

    /// Sees that the call waits now: for `time`, or in a queue. A connection that was begun or put back before may be closed
    /// by the time that the wait has ended.
    fn waits(&mut self, _time: Option<Duration>) {}
}

/// The callee of a call that is made elsewhere, by a program or by another proxy: it needs nothing but permits, and is always
/// ready.
#[derive(Debug)]
pub struct AlwaysReady<E>(PhantomData<fn() -> E>);

/// The event that ends the wait for a reservation.
enum Woken<R> {
    /// The instant has come, and the callee is ready.
    Ready(R),
    /// A pause covers the instant.
    Paused(Covering),
    /// A slot before the instant has become free, and is near; `None`: a limiter was freed.
    NearOpening(Option<Opening>),
    /// The slot has to be confirmed, or the store says that it is another one.
    Turn,
    /// The call cannot be made in its way any more.
    Closed,
}

/// The state of a call after an event.
enum NextStep<R> {
    /// It can be made.
    Ready(Reservation, R),
    /// It waits on, with this reservation.
    Waits(Reservation),
    /// It has asked again.
    Asked(Result<Admission, StoreError>),
}

/// Takes the permits of `checks`, makes the callee ready, and returns both at the instant of the reservation. The permits
/// are refunded unless the reservation is spent; spend it when the call is made.
///
/// Most calls are granted at once and find their callee ready, or are refused. They return without having waited, and without
/// a box.
///
/// # Errors
///
/// Those that the caller or the callee makes.
pub async fn pace<C: Caller, M: Callee<Error = C::Error>>(
    store: &Arc<dyn Store>,
    checks: &Checks,
    caller: &mut C,
    callee: &mut M,
) -> Result<(Reservation, M::Ready), C::Error> {
    let first = caller.ways().map_or_else(|| checks.into(), Question::Ways);
    let answer = ask(store, first, caller.left()).await;
    let admission = match answer {
        Ok(Admission::Granted(reservation)) if reservation.wait.is_zero() => {
            take_way(caller, callee, reservation.way);
            caller.granted(&reservation);
            if reservation.paused().is_none() {
                if let Some(ready) = callee.at_hand() {
                    return Ok((reservation, ready));
                }
                let ready = callee.ready().await?;
                if !caller.is_late(&reservation) && reservation.paused().is_none() {
                    return Ok((reservation, ready));
                }
                callee.put_back(ready);
            }
            Box::new(Admission::Granted(reservation))
        }
        Ok(Admission::Refused(decision)) => {
            take_way(caller, callee, decision.chosen);
            return Err(caller.refused(decision));
        }
        answer => Box::new(decided(caller, callee, answer)?),
    };
    // The box keeps all other calls small.
    Box::pin(wait(caller, callee, admission)).await
}

/// Waits until a call may be made, and asks again as often as it takes.
async fn wait<C: Caller, M: Callee<Error = C::Error>>(
    caller: &mut C,
    callee: &mut M,
    admission: Box<Admission>,
) -> Result<(Reservation, M::Ready), C::Error> {
    let mut admission = *admission;
    loop {
        let answer = match admission {
            Admission::Granted(reservation) => {
                if reservation.paused().is_none() {
                    caller.waits(reservation.bound_by, Some(reservation.wait))?;
                    callee.waits(Some(reservation.wait));
                }
                let lead = callee.lead();
                let woken = wake(caller, callee, &reservation, lead).await?;
                match step(caller, callee, reservation, woken, lead).await? {
                    NextStep::Ready(reservation, ready) => return Ok((reservation, ready)),
                    NextStep::Waits(reservation) => {
                        admission = Admission::Granted(reservation);
                        continue;
                    }
                    NextStep::Asked(answer) => answer,
                }
            }
            Admission::Queued(waiter) => {
                caller.waits(waiter.bound_by, None)?;
                callee.waits(None);
                let store = waiter.store.clone();
                let other = Box::pin(other_way(caller, &waiter)).await?;
                match other {
                    Some(other) => Ok(other),
                    None => {
                        let answer = Box::pin(waiter.ask_again(caller.left())).await;
                        among_all(caller, &store, answer).await
                    }
                }
            }
            Admission::Refused(decision) => return Err(caller.refused(decision)),
        };
        admission = decided(caller, callee, answer)?;
    }
}

/// Resolves with the first event that ends the wait for a reservation.
async fn wake<C: Caller, M: Callee<Error = C::Error>>(
    caller: &C,
    callee: &mut M,
    reservation: &Reservation,
    lead: Duration,
) -> Result<Woken<M::Ready>, C::Error> {
    Ok(tokio::select! {
        biased;
        covering = reservation.until_paused(lead) => {
            covering.map_or(Woken::NearOpening(None), Woken::Paused)
        }
        ready = ready_at(reservation, callee) => Woken::Ready(ready?),
        () = reservation.turn_comes() => Woken::Turn,
        () = caller.way_closes() => Woken::Closed,
        opening = reservation.near_opening(lead) => Woken::NearOpening(Some(opening)),
        error = caller.interrupted(reservation.at) => return Err(error),
    })
}

/// Moves, confirms, gives up or uses a reservation after an event.
async fn step<C: Caller, M: Callee<Error = C::Error>>(
    caller: &mut C,
    callee: &mut M,
    mut reservation: Reservation,
    woken: Woken<M::Ready>,
    lead: Duration,
) -> Result<NextStep<M::Ready>, C::Error> {
    Ok(NextStep::Asked(match woken {
        Woken::NearOpening(opening) if !reservation.takes_turns() => {
            let moving = reservation.move_up(opening, caller.renewed(), lead);
            match Box::pin(moving).await {
                Moved::Up(earlier) => {
                    caller.moved(&earlier);
                    return Ok(NextStep::Waits(earlier));
                }
                Moved::Stays(reservation) => return Ok(NextStep::Waits(reservation)),
                Moved::Unknown(store, checks) => {
                    let question = question(caller).unwrap_or(Question::Checks(checks));
                    Box::pin(ask(&store, question, caller.left())).await
                }
            }
        }
        Woken::Turn => {
            let was = reservation.at;
            if Box::pin(reservation.confirm()).await {
                if reservation.at < was {
                    caller.moved(&reservation);
                }
                return Ok(NextStep::Waits(reservation));
            }
            Box::pin(reservation.ask_again(question(caller), caller.left())).await
        }
        Woken::NearOpening(_) | Woken::Closed => {
            let renewed = question(caller);
            Box::pin(reservation.ask_in_turn(renewed, || caller.left())).await
        }
        Woken::Paused(covering) => pass_pause(caller, callee, reservation, covering).await?,
        Woken::Ready(ready) if caller.is_late(&reservation) => {
            callee.put_back(ready);
            caller.late(&reservation);
            Box::pin(reservation.ask_again(question(caller), caller.left())).await
        }
        Woken::Ready(ready) if reservation.is_complete() => {
            return Ok(NextStep::Ready(reservation, ready));
        }
        Woken::Ready(ready) => {
            callee.put_back(ready);
            let store = reservation.store.clone();
            let answer = Box::pin(reservation.take_concurrency(caller.left())).await;
            among_all(caller, &store, answer).await
        }
    }))
}

/// Asks again after a pause that covers the instant of `reservation`.
async fn pass_pause<C: Caller, M: Callee<Error = C::Error>>(
    caller: &mut C,
    callee: &mut M,
    reservation: Reservation,
    covering: Covering,
) -> Result<Result<Admission, StoreError>, C::Error> {
    caller.paused(&reservation);
    let renewed = question(caller);
    let has_ways = matches!(renewed, Some(Question::Ways(_)));
    let left = covering.until.saturating_duration_since(Instant::now());
    if !covering.is_held || has_ways || left > caller.left() {
        let again = reservation.ask_behind(covering, renewed, || caller.left());
        return Ok(Box::pin(again).await);
    }
    caller.waits(covering.index, Some(left))?;
    callee.waits(Some(left));
    // The permits are others' meanwhile: an operator may hold the limiter for long.
    let again = reservation.ask_when_released(renewed, || caller.left());
    tokio::select! {
        biased;
        answer = Box::pin(again) => Ok(answer),
        error = caller.interrupted(covering.until) => Err(error),
    }
}

/// Shows an answer of the store to the caller and the callee.
fn decided<C: Caller, M: Callee>(
    caller: &mut C,
    callee: &mut M,
    answer: Result<Admission, StoreError>,
) -> Result<Admission, C::Error> {
    let admission = answer.map_err(|error| caller.undecided(error))?;
    let way = match &admission {
        Admission::Granted(reservation) => reservation.way,
        Admission::Queued(waiter) => waiter.way,
        Admission::Refused(decision) => decision.chosen,
    };
    take_way(caller, callee, way);
    match &admission {
        Admission::Granted(reservation) => caller.granted(reservation),
        Admission::Queued(waiter) => caller.queued(waiter),
        Admission::Refused(_) => {}
    }
    Ok(admission)
}

/// Makes the callee ready for the instant of `reservation`, and resolves then.
async fn ready_at<M: Callee>(
    reservation: &Reservation,
    callee: &mut M,
) -> Result<M::Ready, M::Error> {
    if reservation.place().is_some() {
        // Another call may have its slot by then.
        return pending().await;
    }
    // How long it takes is known best when a call has just been made.
    reservation.wait_until(MOST_LEAD).await;
    reservation.wait_until(callee.lead()).await;
    let ready = callee.ready().await?;
    reservation.wait_until_due().await;
    Ok(ready)
}

// === impl AlwaysReady ===

impl<E> Default for AlwaysReady<E> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<E> Callee for AlwaysReady<E> {
    type Ready = ();
    type Error = E;

    fn lead(&self) -> Duration {
        Duration::ZERO
    }

    fn at_hand(&mut self) -> Option<()> {
        Some(())
    }

    async fn ready(&mut self) -> Result<(), E> {
        Ok(())
    }

    fn put_back(&mut self, (): ()) {}
}
