//! The requests that hold or wait for concurrency permits, by ticket, and how the store wakes them.

use crate::algorithm::concurrency::Ticket;
use parking_lot::Mutex;
use std::{
    collections::{BTreeMap, HashMap},
    hash::{BuildHasher, RandomState},
    sync::{
        Arc, Weak,
        atomic::{AtomicI64, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::{sync::Notify, time::Instant};

/// A bit in the gateway's number of a ticket that asks its own gateway for a permit, and not the store. Under the number
/// without the bit, the store may have granted a permit in a call whose answer came late; that one is refunded there.
const HERE: i64 = 1 << 52;

/// The limiters whose last signs are kept. At a further one each request gives signs of its own.
const MAX_SIGNS: usize = 4_096;

/// The tickets of one connection to a store.
#[derive(Debug)]
pub struct Calls {
    gateway: i64,
    next: AtomicI64,
    /// One per request that holds or waits for a permit, in the order in which they came; each is removed with its request.
    waiting: Mutex<BTreeMap<i64, Arc<Notify>>>,
    /// When one of these requests last told the store that they wait for their turns at a limiter, by the key of that.
    signs: Mutex<HashMap<Arc<str>, Instant>>,
    /// Other connections of this process by the number in their tickets: as many as there are workers.
    others: Mutex<HashMap<i64, Weak<Calls>>>,
    /// The tickets that have been woken since the last [`Calls::take_woken`], if they are listed.
    woken: Option<Mutex<Vec<i64>>>,
}

/// A ticket whose request can be woken, until this is dropped.
#[derive(Debug)]
pub struct Callable {
    /// The name under which the request asks for permits.
    pub ticket: Ticket,
    notify: Arc<Notify>,
    calls: Arc<Calls>,
}

/// The name under which the request of `ticket` asks its own gateway.
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
        // 52 random bits above zero, so that no other gateway has the same number.
        let random = RandomState::new().hash_one(std::process::id());
        Self::numbered(i64::try_from(random >> 12).unwrap_or(0).max(1))
    }
}

impl Calls {
    /// Issues tickets with the number `gateway`, 1 to 2^52, which no other connection to the store may have.
    pub fn numbered(gateway: i64) -> Self {
        Self {
            gateway,
            next: AtomicI64::new(1),
            waiting: Mutex::default(),
            signs: Mutex::default(),
            others: Mutex::default(),
            woken: None,
        }
    }

    /// The same for a simulation on virtual time, which has no tasks to wake: it takes the list of woken tickets after each
    /// step.
    pub fn listed(gateway: i64) -> Self {
        Self { woken: Some(Mutex::default()), ..Self::numbered(gateway) }
    }

    /// Takes the numbers of the tickets that have been woken since the last time, in their order.
    pub fn take_woken(&self) -> Vec<i64> {
        self.woken.as_ref().map(|woken| std::mem::take(&mut *woken.lock())).unwrap_or_default()
    }

    /// The number in all of its tickets.
    pub fn gateway(&self) -> i64 {
        self.gateway
    }

    /// Issues a new ticket.
    pub fn ticket(self: &Arc<Self>) -> Callable {
        let number = self.next.fetch_add(1, Relaxed);
        let notify = Arc::new(Notify::new());
        self.waiting.lock().insert(number, notify.clone());
        let ticket = Ticket { gateway: self.gateway, number, deadline: 0 };
        Callable { ticket, notify, calls: self.clone() }
    }

    /// Wakes the request with this ticket number, if it still waits.
    pub fn call(&self, number: i64) {
        if let Some(woken) = &self.woken {
            woken.lock().push(number);
        }
        if let Some(notify) = self.waiting.lock().get(&number) {
            notify.notify_one();
        }
    }

    /// From now on, requests with tickets of `other` are woken through this, too.
    pub fn join(&self, other: &Arc<Self>) {
        let mut others = self.others.lock();
        others.retain(|_, other| other.strong_count() > 0);
        others.insert(other.gateway, Arc::downgrade(other));
    }

    /// Wakes the request with `ticket`, which is of this connection or of one that joined.
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

    /// Wakes all requests, because notifications may have been lost.
    pub fn call_all(&self) {
        self.waiting.lock().values().for_each(|notify| notify.notify_one());
    }
}

// === impl Callable ===

impl Callable {
    /// Resolves when the request has been woken, once for each notification.
    pub async fn notified(&self) {
        self.notify.notified().await;
    }

    /// Whether the request has to tell the store that requests of this connection wait at the limiter `key`. If another one
    /// has done so less than `every` ago, it returns when the next sign is due.
    pub(crate) fn sign_due(&self, key: &Arc<str>, every: Duration) -> Option<Instant> {
        let (now, mut signs) = (Instant::now(), self.calls.signs.lock());
        if let Some(last) = signs.get_mut(key) {
            if now < *last + every {
                return Some(*last + every);
            }
            *last = now;
            return None;
        }
        if signs.len() >= MAX_SIGNS {
            signs.retain(|_, last| now < *last + every);
        }
        if signs.len() < MAX_SIGNS {
            signs.insert(key.clone(), now);
        }
        None
    }
}

impl Drop for Callable {
    fn drop(&mut self) {
        self.calls.waiting.lock().remove(&self.ticket.number);
    }
}
