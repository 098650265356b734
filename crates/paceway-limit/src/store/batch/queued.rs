//! An entry in a queue, and where its reply is needed.

use crate::store::{Entry, Reply, StoreError};
use tokio::{sync::oneshot, time::Instant};
use tokio_util::task::task_tracker::TaskTrackerToken;

/// How many entries one queue may hold, including those in the call that is under way. Callers leave after the store's
/// time-out, so that only a store that hangs can fill it.
pub(super) const QUEUE: usize = 65_536;

/// A message to the driver of a queue.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "nearly all messages are entries, which a box would slow"
)]
pub(super) enum Message {
    /// An entry, which waits for a call.
    Entry(QueuedEntry),
    /// Is reached when the releases before it are on their way to the store.
    Mark(oneshot::Sender<()>),
}

/// An entry that waits for a call.
#[derive(Debug)]
pub(super) struct QueuedEntry {
    pub(super) entry: Entry,
    /// The instant at which the entry was queued. A caller's time-out begins with it.
    pub(super) since: Instant,
    pub(super) origin: Origin,
    /// Keeps [`Batched::flush`](super::Batched) waiting, and counts against the bound of the queue.
    pub(super) token: TaskTrackerToken,
}

/// Where an entry comes from, which decides what happens with its reply.
#[derive(Debug)]
pub(super) enum Origin {
    /// A caller waits for the reply. `None` after it was answered with a time-out.
    Caller(Option<ReplySender>),
    /// A grant is given back.
    Release,
    /// Permits are charged that gateways without a store may grant.
    Charge,
    /// Permits are charged that a request used beyond those that it had reserved.
    Debt,
    /// The state of a limiter is read because a claim on a concurrency permit may have expired.
    Watch,
}

/// Carries the reply to a [`PendingReply`](super::pending::PendingReply).
pub(super) type ReplySender = oneshot::Sender<Result<Reply, StoreError>>;

// === impl Message ===

impl Message {
    pub(super) fn entry(&self) -> Option<&QueuedEntry> {
        if let Self::Entry(queued) = self { Some(queued) } else { None }
    }
}

// === impl Origin ===

impl Origin {
    pub(super) fn is_caller(&self) -> bool {
        matches!(self, Self::Caller(_))
    }

    /// Whether no caller is left that waits for the reply.
    pub(super) fn is_abandoned(&self) -> bool {
        matches!(self, Self::Caller(sender) if sender.as_ref().is_none_or(ReplySender::is_closed))
    }

    /// Answers a caller with a time-out.
    pub(super) fn time_out(&mut self) {
        if let Self::Caller(sender) = self
            && let Some(sender) = sender.take()
        {
            // A caller that has left needs no answer.
            drop(sender.send(Err(StoreError::Timeout)));
        }
    }
}
