//! The order in which the entries of a queue are sent. Makes no call.
//!
//! A permit that is given back serves the callers that are waiting already, so releases come first. But 1,000 requests can leave at
//! once, or ask again when a rate falls: callers have three quarters of each call.

use super::{
    call::BATCH,
    queued::{Message, QueuedEntry},
};
use crate::{algorithm::fair::Place, store::Entry};
use std::{collections::VecDeque, mem};
use tokio::time::Instant;

/// The number of releases that come before the callers of a call; and if more than [`MANY`] wait. Otherwise requests that all give
/// permits back fill the queue: each call would serve three of them for one release.
const FIRST: usize = BATCH / 4;
const FIRST_OF_MANY: usize = BATCH - FIRST;
const MANY: usize = 16 * BATCH;

/// The entries of one queue that wait for a call.
#[derive(Debug, Default)]
pub(super) struct EntryQueue {
    callers: VecDeque<QueuedEntry>,
    /// Releases and charges, the last one first: grants that come back in the reverse order leave a state as if they had not been
    /// made. A mark comes after those that were queued before it.
    others: VecDeque<Message>,
}

// === impl EntryQueue ===

impl EntryQueue {
    pub(super) fn len(&self) -> usize {
        self.callers.len() + self.others.len()
    }

    pub(super) fn push(&mut self, message: Message) {
        match message {
            Message::Mark(_) => self.others.push_back(message),
            Message::Entry(queued) if is_in_order(&queued) => self.callers.push_back(queued),
            Message::Entry(_) => self.others.push_front(message),
        }
    }

    /// Takes the next entry of a call that has `taken` entries so far.
    pub(super) fn next(&mut self, taken: usize) -> Option<QueuedEntry> {
        let first = if self.others.len() > MANY { FIRST_OF_MANY } else { FIRST };
        if taken < first
            && let Some(queued) = self.next_other()
        {
            return Some(queued);
        }
        self.callers.pop_front().or_else(|| self.next_other())
    }

    fn next_other(&mut self) -> Option<QueuedEntry> {
        loop {
            match self.others.pop_front()? {
                Message::Entry(queued) => return Some(queued),
                // The request may have left.
                Message::Mark(mark) => drop(mark.send(())),
            }
        }
    }

    /// The instants at which the callers were queued, in their order.
    pub(super) fn callers(&self) -> impl Iterator<Item = Instant> {
        self.callers.iter().filter(|queued| queued.origin.is_caller()).map(|queued| queued.since)
    }

    /// Removes the callers whose time is up, and answers them with a time-out.
    pub(super) fn time_out(&mut self, is_up: impl Fn(Instant) -> bool) {
        self.callers.retain_mut(|queued| {
            let stays = !queued.origin.is_caller() || !is_up(queued.since);
            if !stays {
                queued.origin.time_out();
            }
            stays
        });
    }

    /// Reaches all marks: a request that waits for one learns no more from a store that hangs.
    pub(super) fn reach_marks(&mut self) {
        self.others.retain(|message| message.entry().is_some());
    }

    /// Takes the entries out for which `is_later` says so.
    pub(super) fn split_off(&mut self, is_later: impl Fn(&QueuedEntry) -> bool) -> Self {
        let mut later = Self::default();
        let callers = mem::take(&mut self.callers).into_iter();
        (later.callers, self.callers) = callers.partition(&is_later);
        let is_other = |message: &Message| message.entry().is_some_and(&is_later);
        (later.others, self.others) = mem::take(&mut self.others).into_iter().partition(is_other);
        later
    }

    /// The first entry of the next call.
    pub(super) fn first(&self) -> Option<&QueuedEntry> {
        let mut others = self.others.iter().filter_map(Message::entry);
        others.next().or_else(|| self.callers.front())
    }

    /// Puts `later` after the entries of this queue.
    pub(super) fn append(&mut self, mut later: Self) {
        self.callers.append(&mut later.callers);
        self.others.append(&mut later.others);
    }
}

/// Whether an entry stays after those that were queued before it: that of a caller does, and one that looks for permits which an entry before it
/// gives back.
fn is_in_order(queued: &QueuedEntry) -> bool {
    queued.origin.is_caller() || matches!(queued.entry, Entry::Leave { place: Place::NONE, .. })
}
