//! The task that makes the calls of one queue, one after the other. It sleeps while there is nothing to do, and ends with its
//! runtime or with the store.

use super::{
    backlog::Backlog,
    call::Call,
    callee::CalledStore,
    queued::{Message, QUEUE},
    replies::{CallAnswer, handle},
};
use crate::store::{BoxFuture, StoreError};
use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::Arc,
    task::Poll,
    time::Duration,
};
use tokio::{
    sync::mpsc::UnboundedReceiver,
    time::{Instant, Sleep, sleep},
};
use tokio_util::task::TaskTracker;

/// A call without an answer is given up after 10 s. The connection usually fails it sooner.
const GIVE_UP: Duration = Duration::from_secs(10);

/// Makes the calls of one queue.
struct Driver {
    name: Arc<str>,
    receiver: UnboundedReceiver<Message>,
    /// The entries that are being received. Kept for its memory.
    received: Vec<Message>,
    backlog: Backlog,
}

/// Makes calls until the queue is closed and nothing is left to send.
pub(super) async fn drive(
    name: Arc<str>,
    callee: Arc<CalledStore>,
    receiver: UnboundedReceiver<Message>,
    tracker: TaskTracker,
) {
    // One timer serves all calls, and is set far less often than they are made.
    let mut timer = pin!(sleep(callee.limit()));
    let backlog = Backlog::new(callee, tracker);
    let mut driver = Driver { name, receiver, received: Vec::new(), backlog };
    while driver.receive(timer.as_mut()).await {
        while let Some(call) = driver.backlog.next_call() {
            driver.make(call, timer.as_mut()).await;
            driver.backlog.queue_due();
            if !driver.receiver.is_empty() {
                break;
            }
        }
    }
}

// === impl Driver ===

impl Driver {
    /// Waits until an entry is queued. Returns false when no further one will be.
    async fn receive(&mut self, mut timer: Pin<&mut Sleep>) -> bool {
        let mut is_open = true;
        loop {
            let (queued, due) = (self.backlog.len(), self.backlog.delayed.next());
            if !is_open && queued == 0 && due.is_none() {
                return false;
            }
            let count = poll_fn(|cx| {
                if is_open
                    && let Poll::Ready(count) =
                        self.receiver.poll_recv_many(cx, &mut self.received, QUEUE)
                {
                    return Poll::Ready(Some(count));
                }
                if queued > 0 {
                    return Poll::Ready(None);
                }
                let Some(due) = due else { return Poll::Pending };
                if timer.deadline() != due {
                    timer.as_mut().reset(due);
                }
                timer.as_mut().poll(cx).map(|()| None)
            });
            is_open = count.await != Some(0);
            self.backlog.extend(self.received.drain(..));
            self.backlog.queue_due();
            if self.backlog.len() > 0 {
                return true;
            }
        }
    }

    async fn make(&mut self, mut call: Call, timer: Pin<&mut Sleep>) {
        let mut answer = self.backlog.callee.blocks.run(call.entries.clone(), call.limit);
        match self.within(&mut call, &mut answer, timer).await {
            Some(answer) => {
                self.record(&call, &answer, false);
                handle(&mut self.backlog, call, answer, false);
            }
            None => {
                // The call may have charged. Sent again, it could charge twice, and further calls would only pile up at a
                // store that hangs.
                self.record(&call, &Err(StoreError::Timeout), false);
                call.time_out();
                let answer = self.late(answer).await;
                self.record(&call, &answer, true);
                handle(&mut self.backlog, call, answer, true);
            }
        }
    }

    /// Waits for the answer of a call until its time is up; then returns `None`. Meanwhile each caller, in the call and in the
    /// queue, receives a time-out when its own time is up.
    async fn within(
        &mut self,
        call: &mut Call,
        answer: &mut BoxFuture<CallAnswer>,
        mut timer: Pin<&mut Sleep>,
    ) -> Option<CallAnswer> {
        let end = call.started + call.limit;
        if timer.deadline() > call.due {
            timer.as_mut().reset(call.due);
        }
        poll_fn(|cx| {
            if let Poll::Ready(answer) = answer.as_mut().poll(cx) {
                return Poll::Ready(Some(answer));
            }
            while timer.as_mut().poll(cx).is_ready() {
                let now = Instant::now();
                if now >= end {
                    return Poll::Ready(None);
                }
                let mut next = call.due;
                if now >= call.due {
                    next = call.time_out_until(now);
                    self.backlog.time_out(|since| since + call.limit <= now);
                    let waiting = self.backlog.oldest();
                    next = waiting.map_or(next, |since| next.min(since + call.limit));
                }
                timer.as_mut().reset(next);
            }
            Poll::Pending
        })
        .await
    }

    /// Waits up to 10 s for the answer of a call that is late. Meanwhile callers receive a time-out at once: waiting would
    /// teach them nothing.
    async fn late(&mut self, mut answer: BoxFuture<CallAnswer>) -> CallAnswer {
        self.backlog.time_out_all();
        let mut end = pin!(sleep(GIVE_UP));
        let mut is_open = true;
        poll_fn(|cx| {
            while is_open
                && let Poll::Ready(count) =
                    self.receiver.poll_recv_many(cx, &mut self.received, QUEUE)
            {
                is_open = count > 0;
                self.backlog.extend(self.received.drain(..));
                self.backlog.time_out_all();
            }
            if let Poll::Ready(answer) = answer.as_mut().poll(cx) {
                return Poll::Ready(answer);
            }
            end.as_mut().poll(cx).map(|()| Err(StoreError::Timeout))
        })
        .await
    }

    fn record(&mut self, call: &Call, answer: &CallAnswer, is_late: bool) {
        self.backlog.callee.record(&self.name, &call.entries, answer, call.started, is_late);
        if let Err(StoreError::Refused(_)) = answer {
            self.backlog.note_refused();
        }
    }
}
