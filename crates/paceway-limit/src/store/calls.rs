//! Who waits for a place, and how the store calls them.

use crate::algorithm::concurrency::Ticket;
use parking_lot::Mutex;
use std::{
    collections::{BTreeMap, HashMap},
    hash::{BuildHasher, RandomState},
    sync::{
        Arc, Weak,
        atomic::{AtomicI64, Ordering::Relaxed},
    },
};
use tokio::sync::Notify;

/// Set in the gateway's number of a ticket that asks its own gateway for a place, and not the store. With the same number
/// the store may have given it a place in a call that was not answered in time; that one is given back there.
const HERE: i64 = 1 << 52;

/// The tickets of one connection to a store.
#[derive(Debug)]
pub struct Calls {
    gateway: i64,
    next: AtomicI64,
    /// One per request that holds or waits for a place, in the order in which they came; gone with it.
    waiting: Mutex<BTreeMap<i64, Arc<Notify>>>,
    /// Of other connections of this process, by the number in their tickets; as many as live.
    others: Mutex<HashMap<i64, Weak<Calls>>>,
}

/// A ticket that can be called. Dropped, it cannot any more.
#[derive(Debug)]
pub struct Callable {
    /// Who asks.
    pub ticket: Ticket,
    notify: Arc<Notify>,
    calls: Arc<Calls>,
}

/// `ticket` as it asks its own gateway.
pub(super) fn here(ticket: Ticket) -> Ticket {
    Ticket { gateway: ticket.gateway | HERE, ..ticket }
}

/// Whether `ticket` asked its own gateway.
pub(super) fn is_here(ticket: Ticket) -> bool {
    ticket.gateway & HERE != 0
}

// === impl Calls ===

impl Default for Calls {
    fn default() -> Self {
        // A number that no other gateway has: 52 random bits, above zero.
        let random = RandomState::new().hash_one(std::process::id());
        Self::numbered(i64::try_from(random >> 12).unwrap_or(0).max(1))
    }
}

impl Calls {
    /// With the number `gateway`, 1 to 2^52, which nobody else on the store may have.
    pub fn numbered(gateway: i64) -> Self {
        Self {
            gateway,
            next: AtomicI64::new(1),
            waiting: Mutex::default(),
            others: Mutex::default(),
        }
    }

    /// The number that stands in all of its tickets.
    pub fn gateway(&self) -> i64 {
        self.gateway
    }

    /// A new ticket.
    pub fn ticket(self: &Arc<Self>) -> Callable {
        let number = self.next.fetch_add(1, Relaxed);
        let notify = Arc::new(Notify::new());
        self.waiting.lock().insert(number, notify.clone());
        let ticket = Ticket { gateway: self.gateway, number, deadline: 0 };
        Callable { ticket, notify, calls: self.clone() }
    }

    /// Wakes who has this ticket, if somebody still waits with it.
    pub fn call(&self, number: i64) {
        if let Some(notify) = self.waiting.lock().get(&number) {
            notify.notify_one();
        }
    }

    /// From now on who has a ticket of `other` is called here, too.
    pub fn join(&self, other: &Arc<Self>) {
        let mut others = self.others.lock();
        others.retain(|_, other| other.strong_count() > 0);
        others.insert(other.gateway, Arc::downgrade(other));
    }

    /// Wakes who has `ticket`, be it of these or of those that joined.
    pub fn call_holder_of(&self, ticket: Ticket) {
        let ticket = Ticket { gateway: ticket.gateway & !HERE, ..ticket };
        if ticket.gateway == self.gateway {
            return self.call(ticket.number);
        }
        let other = self.others.lock().get(&ticket.gateway).and_then(Weak::upgrade);
        if let Some(other) = other {
            other.call(ticket.number);
        }
    }

    /// Wakes all: calls may have been lost.
    pub fn call_all(&self) {
        self.waiting.lock().values().for_each(|notify| notify.notify_one());
    }
}

// === impl Callable ===

impl Callable {
    /// Resolves when it has been called, once for each call.
    pub async fn notified(&self) {
        self.notify.notified().await;
    }
}

impl Drop for Callable {
    fn drop(&mut self) {
        self.calls.waiting.lock().remove(&self.ticket.number);
    }
}
