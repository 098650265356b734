//! The steps at one instant of virtual time. A history that never leaves an instant would never end. Decides nothing.

use parking_lot::Mutex;
use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};
use tokio::{sync::Notify, time::Instant};

/// Requests that take more steps at one instant than this hand something around.
const MOST: u64 = 200_000;

/// Counts the steps of a history. Clones share the count.
#[derive(Debug, Clone, Default)]
pub(crate) struct Steps {
    last: Arc<Mutex<Option<(Instant, u64)>>>,
    too_many: Arc<Notify>,
}

/// A task whose polls are steps. It rests for ever after too many.
pub(crate) struct Counted<F> {
    steps: Steps,
    task: Pin<Box<F>>,
}

// === impl Steps ===

impl Steps {
    /// Counts a step; false after too many at one instant.
    pub(crate) fn step(&self) -> bool {
        let mut last = self.last.lock();
        let now = Instant::now();
        let before = last.filter(|(at, _)| *at == now).map_or(0, |(_, count)| count);
        *last = Some((now, before + 1));
        if before == MOST {
            self.too_many.notify_one();
        }
        before < MOST
    }

    pub(crate) fn count<F: Future>(&self, task: F) -> Counted<F> {
        Counted { steps: self.clone(), task: Box::pin(task) }
    }

    /// Resolves after too many steps at one instant.
    pub(crate) async fn too_many(&self) {
        self.too_many.notified().await;
    }
}

// === impl Counted ===

impl<F: Future> Future for Counted<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        if self.steps.step() { self.task.as_mut().poll(context) } else { Poll::Pending }
    }
}

#[tokio::test(start_paused = true)]
async fn tasks_that_never_leave_an_instant_are_found() {
    let steps = Steps::default();
    let endless = steps.count(async {
        loop {
            tokio::task::yield_now().await;
        }
    });
    let task = tokio::spawn(endless);
    steps.too_many().await;
    task.abort();
}
