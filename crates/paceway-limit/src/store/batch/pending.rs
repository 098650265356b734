//! The reply that one caller waits for. A caller that leaves before the reply came, or without taking it, leaves nothing
//! charged.

use super::{queue::CallQueue, releases::undo};
use crate::{
    algorithm::concurrency::Ticket,
    store::{Question, Reply, StoreError},
};
use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};
use tokio::sync::oneshot;

/// A reply that is under way. Dropped before it was taken, it gives back what was decided.
#[derive(Debug)]
pub(super) struct PendingReply {
    /// `None` when the queue was full, and after the reply was taken.
    receiver: Option<oneshot::Receiver<Result<Reply, StoreError>>>,
    unclaimed: Option<UnclaimedReply>,
}

/// The request whose decision is given back if no caller takes it.
#[derive(Debug)]
struct UnclaimedReply {
    queue: Arc<CallQueue>,
    asked: Question,
    ticket: Option<Ticket>,
}

// === impl PendingReply ===

impl PendingReply {
    /// Waits at `receiver`. Without one the queue was full, and the reply is a time-out.
    pub(super) fn new(receiver: Option<oneshot::Receiver<Result<Reply, StoreError>>>) -> Self {
        Self { receiver, unclaimed: None }
    }

    /// Gives back the decision on a request that `asked` these if it is not taken.
    pub(super) fn deciding(
        mut self,
        queue: Arc<CallQueue>,
        asked: Question,
        ticket: Option<Ticket>,
    ) -> Self {
        self.unclaimed = Some(UnclaimedReply { queue, asked, ticket });
        self
    }
}

impl Future for PendingReply {
    type Output = Result<Reply, StoreError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(receiver) = &mut self.receiver else {
            return Poll::Ready(Err(StoreError::Timeout));
        };
        let reply = ready!(Pin::new(receiver).poll(cx));
        self.receiver = None;
        // The sender is dropped without a reply when the runtime of the driver ends.
        Poll::Ready(reply.unwrap_or(Err(StoreError::Timeout)))
    }
}

impl Drop for PendingReply {
    fn drop(&mut self) {
        let (Some(receiver), Some(unclaimed)) = (&mut self.receiver, &self.unclaimed) else {
            return;
        };
        // From now on the driver cannot send, and undoes the decision itself.
        receiver.close();
        if let Ok(Ok(Reply::Decision(decision))) = receiver.try_recv() {
            let UnclaimedReply { queue, asked, ticket } = unclaimed;
            for entry in undo(asked.checks_of(&decision), *ticket, &decision) {
                queue.release(entry);
            }
        }
    }
}
