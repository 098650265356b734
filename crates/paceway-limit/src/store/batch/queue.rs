//! One queue of entries whose calls follow each other. Starts the driver that makes the calls, and starts another one after
//! the runtime of the first has ended.

use super::{
    callee::CalledStore,
    driver::drive,
    queued::{Message, Origin, QUEUE, QueuedEntry},
};
use crate::store::{Entry, Reply, StoreError};
use parking_lot::Mutex;
use std::sync::Arc;
use tokio::{
    runtime::Handle,
    sync::{mpsc, oneshot},
    time::Instant,
};
use tokio_util::task::TaskTracker;

/// One queue of entries whose calls follow each other.
#[derive(Debug)]
pub(super) struct CallQueue {
    /// The hash tag of its keys, if several servers have the keys; otherwise empty.
    name: Arc<str>,
    callee: Arc<CalledStore>,
    /// Leads to the driver; `None` before the first entry.
    sender: Mutex<Option<mpsc::UnboundedSender<Message>>>,
    /// Tracks each entry until its reply has been handled.
    entries: TaskTracker,
}

// === impl CallQueue ===

impl CallQueue {
    pub(super) fn new(name: &str, callee: Arc<CalledStore>) -> Self {
        let entries = TaskTracker::new();
        Self { name: name.into(), callee, sender: Mutex::default(), entries }
    }

    /// Queues an entry for a caller, and returns where its reply arrives. `None` when the queue is full.
    pub(super) fn ask(&self, entry: Entry) -> Option<oneshot::Receiver<Result<Reply, StoreError>>> {
        let (sender, receiver) = oneshot::channel();
        self.push(entry, Origin::Caller(Some(sender))).then_some(receiver)
    }

    /// Whether no entry waits here or for its reply.
    pub(super) fn is_idle(&self) -> bool {
        self.entries.is_empty()
    }

    /// Queues an entry that gives a grant back. A full queue drops it, and so does the end of the runtime, with which the
    /// connection has ended: then the grant counts as spent.
    pub(super) fn release(&self, entry: Entry) {
        self.callee.note_release(&entry);
        self.push(entry, Origin::Release);
    }

    /// Queues an entry that charges permits which a request used beyond those that it had reserved.
    pub(super) fn charge(&self, entry: Entry) {
        self.push(entry, Origin::Debt);
    }

    /// Resolves when every entry has been answered, or its call has been given up.
    pub(super) async fn flush(&self) {
        // Closing lets the tracker report when it is empty. It keeps accepting entries.
        self.entries.close();
        self.entries.wait().await;
    }

    /// Resolves when every release so far is on its way to the store: questions from then on come after them. It does not wait
    /// for a store that hangs.
    pub(super) async fn released(&self) {
        let (sender, mark) = oneshot::channel();
        let is_sent = {
            let driver = self.sender.lock();
            driver.as_ref().is_some_and(|driver| driver.send(Message::Mark(sender)).is_ok())
        };
        if is_sent {
            // Its driver may end.
            drop(mark.await);
        }
    }

    /// False when the queue is full, or no runtime can run its driver.
    fn push(&self, entry: Entry, origin: Origin) -> bool {
        if self.entries.len() >= QUEUE {
            return false;
        }
        let (since, token) = (Instant::now(), self.entries.token());
        let mut queued = Message::Entry(QueuedEntry { entry, since, origin, token });
        let mut sender = self.sender.lock();
        if let Some(sender) = &*sender {
            match sender.send(queued) {
                Ok(()) => return true,
                // The runtime of the driver has ended.
                Err(unsent) => queued = unsent.0,
            }
        }
        let Ok(runtime) = Handle::try_current() else { return false };
        let (new, receiver) = mpsc::unbounded_channel();
        // Fails only without a receiver, which is in our hands.
        let is_sent = new.send(queued).is_ok();
        *sender = Some(new);
        let (name, callee) = (self.name.clone(), self.callee.clone());
        runtime.spawn(drive(name, callee, receiver, self.entries.clone()));
        is_sent
    }
}
