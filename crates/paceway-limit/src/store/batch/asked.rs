//! One caller's wait for the answer of a call that carries many. Who leaves before it came, or without having taken it,
//! leaves nothing charged.

use super::Batched;
use crate::{
    algorithm::concurrency::Ticket,
    store::{Checks, Decision, Reply, StoreError},
};
use parking_lot::Mutex;
use std::{
    future::Future,
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

/// An answer to come. Dropped, what was decided goes to somebody else.
#[derive(Debug)]
pub struct Asked {
    /// `None`: the store takes no more questions.
    wait: Option<Arc<Wait>>,
    /// What is given back if nobody takes the answer.
    unused: Option<Unused>,
}

#[derive(Debug)]
struct Unused {
    store: Batched,
    checks: Checks,
    ticket: Option<Ticket>,
}

/// Where a caller and its answer meet.
#[derive(Debug)]
pub(super) struct Wait(Mutex<State>);

#[derive(Debug)]
enum State {
    Waiting(Option<Waker>),
    Answered(Result<Reply, StoreError>),
    /// Nobody waits any more.
    Gone,
}

// === impl Asked ===

impl Asked {
    pub(super) fn new(wait: Option<Arc<Wait>>) -> Self {
        Self { wait, unused: None }
    }

    /// Of a decision.
    pub(super) fn deciding(
        mut self,
        store: &Batched,
        checks: &Checks,
        ticket: Option<Ticket>,
    ) -> Self {
        self.unused = Some(Unused { store: store.clone(), checks: checks.clone(), ticket });
        self
    }
}

impl Future for Asked {
    type Output = Result<Reply, StoreError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(wait) = &self.wait else { return Poll::Ready(Err(StoreError::Timeout)) };
        let state = &mut *wait.0.lock();
        match mem::replace(state, State::Gone) {
            State::Waiting(waker) => {
                let waker = waker.filter(|waker| waker.will_wake(cx.waker()));
                *state = State::Waiting(Some(waker.unwrap_or_else(|| cx.waker().clone())));
                Poll::Pending
            }
            State::Answered(answer) => Poll::Ready(answer),
            // Polled again behind its end.
            State::Gone => Poll::Ready(Err(StoreError::Timeout)),
        }
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        let Some(wait) = &self.wait else { return };
        let state = mem::replace(&mut *wait.0.lock(), State::Gone);
        if let (State::Answered(Ok(Reply::Decision(decision))), Some(unused)) =
            (state, &self.unused)
        {
            unused.store.undo(&unused.checks, unused.ticket, &decision);
        }
    }
}

// === impl Wait ===

impl Wait {
    pub(super) fn new() -> Self {
        Self(Mutex::new(State::Waiting(None)))
    }

    /// Whether nobody waits any more.
    pub(super) fn is_over(&self) -> bool {
        !matches!(&*self.0.lock(), State::Waiting(_))
    }

    /// Hands the answer over; gives back what was decided when nobody waits for it.
    pub(super) fn answer(&self, answer: Result<Reply, StoreError>) -> Option<Decision> {
        let mut state = self.0.lock();
        if let State::Waiting(waker) = &mut *state {
            let waker = waker.take();
            *state = State::Answered(answer);
            drop(state);
            waker.into_iter().for_each(Waker::wake);
            return None;
        }
        match answer {
            Ok(Reply::Decision(decision)) => Some(decision),
            _ => None,
        }
    }
}
