//! Which of several addresses a request goes to: the one with the fewest requests in flight, of those that work.
//! Knows no sockets, and no clock but its arguments.

use parking_lot::Mutex;
use smallvec::SmallVec;
use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::time::Instant;

/// So many requests in a row without an answer eject an address. One may be the request's fault.
const FAILURES: u32 = 3;
/// Bounds of how long an address is out. It doubles with each trial that fails.
const OUT: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// Where connections go, as all workers see it.
#[derive(Debug)]
pub(super) struct Address {
    /// Index of its [`super::Target`].
    pub(super) target: usize,
    /// Tried in order. More than one for `localhost` only, which is one place by two names.
    pub(super) sockets: SmallVec<[SocketAddr; 1]>,
    /// Counted only while the upstream has several addresses.
    in_flight: AtomicUsize,
    /// Requests without an answer in a row.
    failures: AtomicU32,
    /// Whether `out` says something.
    is_out: AtomicBool,
    out: Mutex<Option<Ejection>>,
    /// The log says that it does not work.
    pub(super) is_noted: AtomicBool,
}

#[derive(Debug)]
struct Ejection {
    until: Instant,
    span: Duration,
    /// A request is on its way to find out.
    on_trial: bool,
}

/// The addresses of an upstream.
#[derive(Debug)]
pub(super) struct AddressSet {
    pub(super) addresses: Vec<Arc<Address>>,
    /// Who comes first among equals.
    turn: AtomicUsize,
    /// Held to eject, so that no two take the last one out.
    ejecting: Mutex<()>,
}

/// A request, or a connection for one, that had several addresses to choose from and chose this one.
#[derive(Debug)]
pub(super) struct PickedAddress {
    pub(super) address: Arc<Address>,
    on_trial: bool,
}

/// What went wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AddressFailure {
    /// No connection.
    Unreachable,
    /// No answer.
    NoAnswer,
}

/// What an address has become.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AddressChange {
    /// No request is sent to it for this long.
    Ejected(Duration),
    /// Used like the others.
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
            is_out: AtomicBool::new(false),
            out: Mutex::default(),
            is_noted: AtomicBool::new(false),
        }
    }

    pub(super) fn is_out(&self) -> bool {
        self.is_out.load(Relaxed)
    }

    /// Forgets what went wrong; whether it was out.
    pub(super) fn pardon(&self) -> bool {
        if self.failures.load(Relaxed) == 0 && !self.is_out() {
            return false;
        }
        self.failures.store(0, Relaxed);
        let mut out = self.out.lock();
        self.is_out.store(false, Relaxed);
        out.take().is_some()
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

    /// The address for a request that has `tried` some; `None` when it has tried all. For groups of several.
    pub(super) fn choose(&self, now: Instant, tried: &[Arc<Address>]) -> Option<PickedAddress> {
        let count = self.addresses.len();
        let first = self.turn.fetch_add(1, Relaxed);
        let (mut least, mut soonest) = (None, None);
        for i in 0..count {
            let address = &self.addresses[first.wrapping_add(i) % count];
            if tried.iter().any(|tried| Arc::ptr_eq(tried, address)) {
                continue;
            }
            if address.is_out()
                && let Some(out) = &mut *address.out.lock()
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
        let address = least.map(|(_, address)| address).or(soonest.map(|(_, address)| address))?;
        Some(PickedAddress::new(address, false))
    }

    /// The same address once more; `None` where there is no choice.
    pub(super) fn again(&self, address: &Arc<Address>) -> Option<PickedAddress> {
        (self.addresses.len() > 1).then(|| PickedAddress::new(address, false))
    }

    /// A request had no answer, or no connection.
    pub(super) fn failed(
        &self,
        picked: &mut PickedAddress,
        fault: AddressFailure,
        now: Instant,
    ) -> Option<AddressChange> {
        let _one = self.ejecting.lock();
        let address = &picked.address;
        let others = self.addresses.iter().filter(|other| !Arc::ptr_eq(other, address));
        let is_last = others.filter(|other| !other.is_out()).count() == 0;
        let mut out = address.out.lock();
        let span = match &*out {
            // What was on its way when it was ejected says nothing new.
            Some(_) if !picked.on_trial => return None,
            Some(out) => (out.span * 2).min(OUT.1),
            None => {
                let failures = address.failures.fetch_add(1, Relaxed) + 1;
                let is_enough = fault == AddressFailure::Unreachable || failures >= FAILURES;
                if !is_enough || is_last {
                    return None;
                }
                OUT.0
            }
        };
        picked.on_trial = false;
        *out = Some(Ejection { until: now + span, span, on_trial: false });
        address.is_out.store(true, Relaxed);
        Some(AddressChange::Ejected(span))
    }
}

// === impl PickedAddress ===

impl PickedAddress {
    fn new(address: &Arc<Address>, on_trial: bool) -> Self {
        address.in_flight.fetch_add(1, Relaxed);
        Self { address: address.clone(), on_trial }
    }

    /// An answer came.
    pub(super) fn succeeded(&mut self) -> Option<AddressChange> {
        self.on_trial = false;
        self.address.pardon().then_some(AddressChange::Returned)
    }
}

impl Drop for PickedAddress {
    fn drop(&mut self) {
        self.address.in_flight.fetch_sub(1, Relaxed);
        // It ended without a verdict: somebody else may find out.
        if self.on_trial
            && let Some(out) = &mut *self.address.out.lock()
        {
            out.on_trial = false;
        }
    }
}

#[cfg(test)]
mod tests;
