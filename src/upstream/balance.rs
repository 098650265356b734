//! Picks the address of a request among those of its upstream: the one with the fewest requests in flight, without
//! those that were ejected. Opens no socket, and reads no clock: the time is an argument.

use super::health::CheckedHealth;
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::{
    fmt,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::time::Instant;

/// An address is ejected after 3 requests in a row without a response. A single one may have failed for its own reason:
/// an upstream may crash on one request body.
const FAILURES: u32 = 3;
/// The shortest and the longest ejection. Each trial request that fails doubles it, so a dead address costs one request
/// in 30 s at most.
const EJECTED: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// One address of an upstream and whether it works, shared by all workers.
#[derive(Debug)]
pub(super) struct Address {
    /// The index of the target that the address belongs to, in the order of the configuration.
    pub(super) target: usize,
    /// The socket addresses that are tried in order. Only `localhost` has two, `127.0.0.1` and `::1`.
    pub(super) sockets: SmallVec<[SocketAddr; 1]>,
    /// Requests and connects under way, counted only while the upstream has several addresses.
    in_flight: AtomicUsize,
    /// Requests in a row that had no response.
    failures: AtomicU32,
    /// Whether `ejection` holds a value, readable without its lock.
    is_ejected: AtomicBool,
    ejection: Mutex<Option<Ejection>>,
    reach: Mutex<Reach>,
    /// An attempt to connect to the dead address is under way, which no request ends.
    is_probed: AtomicBool,
    /// The findings of the health checks, if the upstream has any.
    pub(super) health: CheckedHealth,
    /// A log line has said that the address fails, and none yet that it works again.
    pub(super) is_noted: AtomicBool,
}

/// The findings of attempts to connect to an address.
#[derive(Debug, Default)]
struct Reach {
    /// When the last connection was made.
    reached: Option<Instant>,
    /// When the first attempt in vain since then began, and when the last one ended.
    in_vain: Option<(Instant, Instant)>,
}

/// The one attempt to connect to a dead address that outlasts its request. The next one may begin when it is dropped.
pub(super) struct Probe(Arc<Address>);

/// One address of an upstream, as operators see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddressStatus {
    /// The socket address; the first of the two that `localhost` has.
    pub socket: SocketAddr,
    /// The time until a request tries the address again, if it is ejected.
    pub ejected: Option<Duration>,
    /// Whether its health checks fail.
    pub is_down: bool,
    /// Requests and connects under way; 0 if the upstream has one address, where nothing counts them.
    pub in_flight: usize,
}

#[derive(Debug)]
struct Ejection {
    until: Instant,
    span: Duration,
    /// One request is under way to try the address; others wait for its result.
    on_trial: bool,
}

/// All addresses that an upstream has now. DNS replaces the whole set when its answer changes.
#[derive(Debug)]
pub(super) struct AddressSet {
    pub(super) addresses: Vec<Arc<Address>>,
    /// The place where the next search begins, so that addresses with equal load take turns.
    turn: AtomicUsize,
    /// Held while an address is ejected: two workers at once could eject the last two, and none would be left.
    ejecting: Mutex<()>,
}

/// The choice of an address for one request of an upstream with several. The request counts as in flight until drop.
#[derive(Debug)]
pub(super) struct PickedAddress {
    pub(super) address: Arc<Address>,
    on_trial: bool,
}

/// The way in which an address failed a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AddressFailure {
    /// No connection to it could be made: one such failure ejects it.
    Unreachable,
    /// It took the request and sent no response: three in a row eject it.
    NoAnswer,
}

/// The change of an address's state that a request caused, for log and metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AddressChange {
    /// No request is sent to it for this long.
    Ejected(Duration),
    /// The address answered its trial request and is picked like the others again.
    Returned,
}

// === impl Address ===

impl Address {
    pub(super) fn new(target: usize, sockets: impl IntoIterator<Item = SocketAddr>) -> Self {
        Self {
            target,
            sockets: sockets.into_iter().collect(),
            in_flight: AtomicUsize::new(0),
            failures: AtomicU32::new(0),
            is_ejected: AtomicBool::new(false),
            ejection: Mutex::default(),
            health: CheckedHealth::default(),
            is_noted: AtomicBool::new(false),
            reach: Mutex::default(),
            is_probed: AtomicBool::new(false),
        }
    }

    /// Notes that a connection to the address was made.
    pub(super) fn note_connected(&self, now: Instant) {
        *self.reach.lock() = Reach { reached: Some(now), in_vain: None };
    }

    /// Notes that the address accepted no connection on an attempt that began at `begun`. If another attempt has succeeded since
    /// then, it is no news.
    pub(super) fn note_unreached(&self, begun: Instant, now: Instant) {
        let mut reach = self.reach.lock();
        if reach.reached.is_none_or(|reached| reached < begun) {
            let first = reach.in_vain.map_or(begun, |(first, _)| first);
            reach.in_vain = Some((first, now));
        }
    }

    /// Whether the address has accepted no connection for as long as `limit`, which is longer than a restart takes. After a
    /// while without an attempt that is no longer known.
    pub(super) fn is_dead(&self, now: Instant, limit: Duration) -> bool {
        let in_vain = self.reach.lock().in_vain;
        in_vain.is_some_and(|(first, last)| now >= first + limit && now <= last + EJECTED.1)
    }

    /// Begins the one attempt that outlasts its request; `None` if it is under way.
    pub(super) fn probe(self: &Arc<Self>) -> Option<Probe> {
        (!self.is_probed.swap(true, Relaxed)).then(|| Probe(self.clone()))
    }

    pub(super) fn is_ejected(&self) -> bool {
        self.is_ejected.load(Relaxed)
    }

    /// Whether requests are sent to it: it is neither ejected nor down.
    pub(super) fn is_up(&self) -> bool {
        !self.is_ejected() && !self.health.is_down()
    }

    /// The address and its state at `now`, for operators.
    pub(super) fn status(&self, now: Instant) -> AddressStatus {
        let ejection = self.ejection.lock();
        let left = ejection.as_ref().map(|out| out.until.saturating_duration_since(now));
        AddressStatus {
            socket: self.sockets[0],
            ejected: left.filter(|_| self.is_ejected()),
            is_down: self.health.is_down(),
            in_flight: self.in_flight.load(Relaxed),
        }
    }

    /// Forgets all failures of the address. True if it was ejected until now.
    pub(super) fn reinstate(&self) -> bool {
        if self.failures.load(Relaxed) == 0 && !self.is_ejected() {
            return false;
        }
        self.failures.store(0, Relaxed);
        let mut out = self.ejection.lock();
        self.is_ejected.store(false, Relaxed);
        out.take().is_some()
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.sockets[0].fmt(f)
    }
}

// === impl Probe ===

impl Drop for Probe {
    fn drop(&mut self) {
        self.0.is_probed.store(false, Relaxed);
    }
}

// === impl AddressSet ===

impl AddressSet {
    pub(super) fn new(addresses: Vec<Arc<Address>>) -> Self {
        Self { addresses, turn: AtomicUsize::new(0), ejecting: Mutex::default() }
    }

    pub(super) fn contains(&self, address: &Arc<Address>) -> bool {
        self.addresses.iter().any(|own| Arc::ptr_eq(own, address))
    }

    /// Picks an address for a request that has `tried` some in vain; `None` if it has tried all. Only for sets of several
    /// addresses. An ejected address whose time is over gets one request as a trial; if all are ejected, the one whose
    /// time ends first is picked. An address whose health checks fail is picked where there is no other.
    pub(super) fn pick(&self, now: Instant, tried: &[Arc<Address>]) -> Option<PickedAddress> {
        let count = self.addresses.len();
        let first = self.turn.fetch_add(1, Relaxed);
        let (mut least, mut soonest, mut down) = (None, None, None);
        for i in 0..count {
            let address = &self.addresses[first.wrapping_add(i) % count];
            if tried.iter().any(|tried| Arc::ptr_eq(tried, address)) {
                continue;
            }
            if address.health.is_down() {
                down = down.or(Some(address));
                continue;
            }
            if address.is_ejected()
                && let Some(out) = &mut *address.ejection.lock()
            {
                if !out.on_trial && now >= out.until {
                    out.on_trial = true;
                    return Some(PickedAddress::new(address, true));
                }
                if soonest.is_none_or(|(until, _)| out.until < until) {
                    soonest = Some((out.until, address));
                }
                continue;
            }
            let load = address.in_flight.load(Relaxed);
            if least.is_none_or(|(least, _)| load < least) {
                least = Some((load, address));
            }
        }
        let address = least.map(|(_, address)| address).or(soonest.map(|(_, address)| address));
        // Where the checks of all addresses fail, the checks may be what is wrong.
        let address = address.or(down)?;
        Some(PickedAddress::new(address, false))
    }

    /// Picks the same address for another attempt; `None` if it is the only one, as nothing is counted then.
    pub(super) fn pick_again(&self, address: &Arc<Address>) -> Option<PickedAddress> {
        (self.addresses.len() > 1).then(|| PickedAddress::new(address, false))
    }

    /// Counts a failed request, and ejects the address if that was one too many. The last address that works stays.
    pub(super) fn failed(
        &self,
        picked: &mut PickedAddress,
        fault: AddressFailure,
        now: Instant,
    ) -> Option<AddressChange> {
        let _one = self.ejecting.lock();
        let address = &picked.address;
        let others = self.addresses.iter().filter(|other| !Arc::ptr_eq(other, address));
        let is_last = others.filter(|other| other.is_up()).count() == 0;
        let mut out = address.ejection.lock();
        let span = match &*out {
            // The request was sent before the ejection, so its failure is no news.
            Some(_) if !picked.on_trial => return None,
            Some(out) => (out.span * 2).min(EJECTED.1),
            None => {
                let failures = address.failures.fetch_add(1, Relaxed) + 1;
                let is_enough = fault == AddressFailure::Unreachable || failures >= FAILURES;
                if !is_enough || is_last {
                    return None;
                }
                EJECTED.0
            }
        };
        picked.on_trial = false;
        *out = Some(Ejection { until: now + span, span, on_trial: false });
        address.is_ejected.store(true, Relaxed);
        Some(AddressChange::Ejected(span))
    }
}

// === impl PickedAddress ===

impl PickedAddress {
    fn new(address: &Arc<Address>, on_trial: bool) -> Self {
        address.in_flight.fetch_add(1, Relaxed);
        Self { address: address.clone(), on_trial }
    }

    /// Whether the request tries an address whose ejection is over.
    pub(super) fn is_on_trial(&self) -> bool {
        self.on_trial
    }

    /// Notes a response: the address works, and an ejection ends.
    pub(super) fn succeeded(&mut self) -> Option<AddressChange> {
        self.on_trial = false;
        self.address.reinstate().then_some(AddressChange::Returned)
    }
}

impl Drop for PickedAddress {
    fn drop(&mut self) {
        self.address.in_flight.fetch_sub(1, Relaxed);
        // The trial ended without a result, as when its client left: another request may try.
        if self.on_trial
            && let Some(out) = &mut *self.address.ejection.lock()
        {
            out.on_trial = false;
        }
    }
}

#[cfg(test)]
mod tests;
