//! The entries of one queue that wait for a call or for their instant. Makes no call.

use super::{
    call::{BATCH, Call, CallBuilder},
    callee::CalledStore,
    charges::{NotCharged, OwedCharges},
    delayed::{Delayed, Later},
    entry_queue::EntryQueue,
    queued::{Message, Origin, QUEUE, QueuedEntry},
    releases::undo,
};
use crate::store::{Check, Entry, Reply, hash_tag};
use std::{mem, sync::Arc, time::Duration};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

/// For 5 s after Redis rejects a whole call (an ACL rule, say), only keys with one hash tag are batched together, so that one
/// forbidden key does not fail the others.
const APART: Duration = Duration::from_secs(5);

/// The entries of one queue that wait for a call or for their instant.
pub(super) struct Backlog {
    pub(super) callee: Arc<CalledStore>,
    queue: EntryQueue,
    pub(super) delayed: Delayed,
    owed: OwedCharges,
    tracker: TaskTracker,
    /// The instant at which the store last rejected a call.
    refused: Option<Instant>,
}

// === impl Backlog ===

impl Backlog {
    pub(super) fn new(callee: Arc<CalledStore>, tracker: TaskTracker) -> Self {
        let (queue, delayed, owed) = Default::default();
        Self { callee, queue, delayed, owed, tracker, refused: None }
    }

    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    /// Returns the instant at which the first caller in the queue was queued.
    pub(super) fn oldest(&self) -> Option<Instant> {
        self.queue.callers().next()
    }

    /// Queues entries that have arrived.
    pub(super) fn extend(&mut self, arrived: impl Iterator<Item = Message>) {
        arrived.for_each(|message| self.queue.push(message));
    }

    /// Queues the delayed entries whose instant has come.
    pub(super) fn queue_due(&mut self) {
        if self.delayed.next().is_none() {
            return;
        }
        let now = Instant::now();
        while let Some(later) = self.delayed.pop(now) {
            match later {
                Later::Release { entry, since } => self.release(entry, since),
                Later::Watch(check) => self.push(Entry::Look { check }, now, Origin::Watch),
                Later::Charge(key) => {
                    let (entries, next) = self.owed.take(&key, now);
                    entries.into_iter().for_each(|entry| self.push(entry, now, Origin::Charge));
                    next.into_iter().for_each(|next| {
                        self.delayed.push(next, Later::Charge(key.clone()));
                    });
                }
            }
        }
    }

    /// Queues an entry that gives a grant back; `since` is the instant of the first try.
    pub(super) fn release(&mut self, entry: Entry, since: Instant) {
        self.callee.note_release(&entry);
        self.push(entry, since, Origin::Release);
    }

    /// Queues a charge, or keeps it for later if the queue is full.
    pub(super) fn charge(&mut self, entry: Entry) {
        match entry.checks() {
            [check] if self.tracker.len() >= QUEUE => {
                self.owe(&check.clone(), NotCharged::Unanswered);
            }
            _ => self.push(entry, Instant::now(), Origin::Charge),
        }
    }

    /// Keeps a charge that the store did not take.
    pub(super) fn owe(&mut self, check: &Check, why: NotCharged) {
        if let Some(at) = self.owed.add(check, why, Instant::now()) {
            self.delayed.push(at, Later::Charge(check.key.clone()));
        }
    }

    fn push(&mut self, entry: Entry, since: Instant, origin: Origin) {
        let token = self.tracker.token();
        self.queue.push(Message::Entry(QueuedEntry { entry, since, origin, token }));
    }

    /// Notes that the store has rejected a call.
    pub(super) fn note_refused(&mut self) {
        self.refused = Some(Instant::now());
    }

    /// Takes the next call out of the queue: up to 128 entries in order, without those whose callers have left.
    pub(super) fn next_call(&mut self) -> Option<Call> {
        while self.queue.len() > 0 {
            let started = Instant::now();
            let mut call = CallBuilder::new(self.queue.len().min(BATCH), started);
            let mut later = self.entries_apart(started);
            while !call.is_full()
                && let Some(queued) = self.queue.next(call.len())
            {
                self.serve(queued, started).into_iter().for_each(|queued| call.push(queued));
            }
            // Callers are queued in the order of their arrival.
            let oldest =
                self.queue.callers().next().into_iter().chain(later.callers().next()).min();
            if later.len() > 0 {
                // The other limiters have their turn with the next call.
                later.append(mem::take(&mut self.queue));
                self.queue = later;
            }
            let call = call.build(oldest, self.callee.limit());
            if call.is_some() {
                return call;
            }
        }
        None
    }

    /// Serves a request from the block of its limiter. Returns an entry for which the store is needed.
    fn serve(&mut self, queued: QueuedEntry, now: Instant) -> Option<QueuedEntry> {
        let is_abandoned = queued.origin.is_abandoned();
        let decision = match &queued.origin {
            Origin::Caller(_) if !is_abandoned => {
                self.callee.blocks.serve_queued(&queued.entry, now)
            }
            _ => None,
        };
        let Some(decision) = decision else { return Some(queued) };
        if let (Origin::Caller(Some(sender)), Entry::Reserve { checks, .. }) =
            (queued.origin, queued.entry)
            && let Err(Ok(Reply::Decision(unused))) = sender.send(Ok(Reply::Decision(decision)))
        {
            for entry in undo(&checks, None, &unused) {
                self.release(entry, now);
            }
        }
        None
    }

    /// Leaves in the queue the entries that may share a call with its first one, and returns the others.
    fn entries_apart(&mut self, now: Instant) -> EntryQueue {
        let group =
            |queued: &QueuedEntry| -> Box<str> { hash_tag(&queued.entry.checks()[0].key).into() };
        match (self.refused, self.queue.first()) {
            (Some(refused), Some(first)) if now < refused + APART => {
                let own = group(first);
                self.queue.split_off(|queued| group(queued) != own)
            }
            _ => EntryQueue::default(),
        }
    }

    /// Removes the callers from the queue whose time is up, and answers them with a time-out. Releases and charges stay.
    pub(super) fn time_out(&mut self, is_up: impl Fn(Instant) -> bool) {
        self.queue.time_out(is_up);
    }

    /// The store hangs: all callers receive a time-out, and no request waits for a mark.
    pub(super) fn time_out_all(&mut self) {
        self.queue.time_out(|_| true);
        self.queue.reach_marks();
    }
}
