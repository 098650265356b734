//! Where a worker's connections to an upstream lie while nobody uses them, by address. Makes none.

use crate::upstream::{
    balance::{Address, AddressSet},
    connection::Wire,
    h1::H1Connection,
    h2::{H2Session, H2Stream},
};
use arc_swap::{ArcSwap, Cache};
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;

/// The connections of one worker to one upstream that are not in use, and those that can be shared.
pub(super) struct IdleConnections {
    /// The addresses there are now.
    pub(super) group: Cache<Arc<ArcSwap<AddressSet>>, Arc<AddressSet>>,
    /// One for each address that has been connected to.
    pub(super) all: Vec<AddressConnections>,
}

/// The connections to one address.
pub(super) struct AddressConnections {
    pub(super) address: Arc<Address>,
    /// Newest last.
    idle: Vec<IdleConnection>,
    /// Those of HTTP/2, in use or not.
    pub(super) lines: Vec<H2Session>,
    /// Held to make one of those: others wait for it and share it.
    pub(super) making: Arc<tokio::sync::Mutex<()>>,
}

struct IdleConnection {
    wire: Box<H1Connection>,
    address: Arc<Address>,
    since: Instant,
}

// === impl IdleConnections ===

impl IdleConnections {
    pub(super) fn new(group: Arc<ArcSwap<AddressSet>>) -> Self {
        Self { group: Cache::new(group), all: Vec::new() }
    }

    /// Puts a connection back, unless there are `most`, or its address is none any more.
    pub(super) fn put(&mut self, wire: Box<H1Connection>, address: Arc<Address>, most: usize) {
        let idle: usize = self.all.iter().map(|connections| connections.idle.len()).sum();
        if idle < most && self.group.load().contains(&address) {
            let since = Instant::now();
            self.of(&address).idle.push(IdleConnection { wire, address, since });
        }
    }

    /// Takes out the connection of HTTP/1.1 that is idle for longest; the caller closes it.
    pub(super) fn shed(&mut self) -> Option<Box<H1Connection>> {
        let used = self.all.iter_mut().filter(|connections| !connections.idle.is_empty());
        let oldest = used.min_by_key(|connections| connections.idle[0].since)?;
        Some(oldest.idle.remove(0).wire)
    }

    /// Lets go of what is idle for `limit`, or leads nowhere.
    pub(super) fn sweep(&mut self, limit: Duration) {
        let Self { group, all } = self;
        let group = group.load();
        all.retain_mut(|connections| {
            connections.sweep(limit);
            group.contains(&connections.address)
        });
    }

    /// Those to an address.
    pub(super) fn of(&mut self, address: &Arc<Address>) -> &mut AddressConnections {
        let found =
            self.all.iter().position(|connections| Arc::ptr_eq(&connections.address, address));
        let at = found.unwrap_or_else(|| {
            self.all.push(AddressConnections {
                address: address.clone(),
                idle: Vec::new(),
                lines: Vec::new(),
                making: Arc::default(),
            });
            self.all.len() - 1
        });
        &mut self.all[at]
    }
}

// === impl AddressConnections ===

impl AddressConnections {
    /// A connection for a request; `may_reuse` allows one that was idle, for less than `limit`.
    pub(super) fn take(
        &mut self,
        limit: Duration,
        may_reuse: bool,
    ) -> Option<(Wire, Arc<Address>)> {
        if let Some(stream) = self.stream() {
            return Some((Wire::Http2(stream), self.address.clone()));
        }
        while may_reuse && let Some(IdleConnection { mut wire, address, since }) = self.idle.pop() {
            if wire.is_ready() && since.elapsed() < limit {
                return Some((Wire::Http1(wire), address));
            }
        }
        None
    }

    /// Room for a request on a connection of HTTP/2.
    pub(super) fn stream(&self) -> Option<H2Stream> {
        self.lines.iter().find_map(H2Session::stream)
    }

    fn sweep(&mut self, limit: Duration) {
        self.idle.retain_mut(|idle| idle.wire.is_ready() && idle.since.elapsed() < limit);
        let is_old =
            |line: &H2Session| line.idle_since().is_some_and(|since| since.elapsed() >= limit);
        self.lines.retain(|line| line.is_open() && !is_old(line));
    }
}
