//! Keeps one worker's connections to an upstream that no request uses, by address. Makes no connection.

use crate::upstream::{
    balance::{Address, AddressSet},
    h1::H1Connection,
    h2::{H2Session, H2Stream},
    wire::Wire,
};
use arc_swap::{ArcSwap, Cache};
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;

/// One worker's idle HTTP/1.1 connections to an upstream, and its HTTP/2 sessions, which are shared while in use.
pub(super) struct IdleConnections {
    /// The addresses that the upstream has now.
    pub(super) group: Cache<Arc<ArcSwap<AddressSet>>, Arc<AddressSet>>,
    /// The connections of each address that was connected to. An address that DNS no longer returns is removed by the
    /// next [`Self::sweep`], so that there are no more of them than addresses, plus those of one second.
    pub(super) by_address: Vec<AddressConnections>,
}

/// The connections to one address.
pub(super) struct AddressConnections {
    pub(super) address: Arc<Address>,
    /// The idle HTTP/1.1 connections, the newest last.
    idle: Vec<IdleConnection>,
    /// The HTTP/2 sessions, in use or not.
    pub(super) sessions: Vec<H2Session>,
    /// Held while a session is made: other requests wait for it and share it, instead of making one each.
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
        Self { group: Cache::new(group), by_address: Vec::new() }
    }

    /// Keeps a connection whose response had ended by an instant. It is closed instead if `most` are idle already, or if
    /// DNS no longer returns its address.
    pub(super) fn put(
        &mut self,
        wire: Box<H1Connection>,
        address: Arc<Address>,
        since: Instant,
        most: usize,
    ) {
        let idle: usize = self.by_address.iter().map(|connections| connections.idle.len()).sum();
        if idle < most && self.group.load().contains(&address) {
            self.of(&address).idle.push(IdleConnection { wire, address, since });
        }
    }

    /// Takes out the connection that has been idle for longest, an HTTP/1.1 connection or an HTTP/2 session; the caller
    /// closes it by dropping it.
    pub(super) fn take_oldest(&mut self) -> Option<Box<dyn Send>> {
        let at = |connections: &AddressConnections| {
            let http1 = connections.idle.first().map(|idle| idle.since);
            let http2 = connections.sessions.iter().filter_map(H2Session::idle_since).min();
            http1.into_iter().chain(http2).min()
        };
        let all = self.by_address.iter_mut();
        let (oldest, since) = all
            .filter_map(|connections| at(connections).map(|since| (connections, since)))
            .min_by_key(|(_, since)| *since)?;
        match oldest.idle.first() {
            Some(idle) if idle.since == since => Some(oldest.idle.remove(0).wire),
            _ => {
                let is_oldest = |session: &H2Session| session.idle_since() == Some(since);
                let session = oldest.sessions.iter().position(is_oldest)?;
                Some(Box::new(oldest.sessions.swap_remove(session)))
            }
        }
    }

    /// Closes the connections that have been idle for `limit`, and all idle ones of addresses that DNS no longer returns.
    /// Requests on a session of such an address finish first.
    pub(super) fn sweep(&mut self, limit: Duration) {
        let Self { group, by_address } = self;
        let group = group.load();
        by_address.retain_mut(|connections| {
            connections.sweep(limit);
            group.contains(&connections.address)
        });
    }

    /// The connections to an address, an empty entry if there are none yet.
    pub(super) fn of(&mut self, address: &Arc<Address>) -> &mut AddressConnections {
        let found = self.by_address.iter().position(|own| Arc::ptr_eq(&own.address, address));
        let at = found.unwrap_or_else(|| {
            self.by_address.push(AddressConnections {
                address: address.clone(),
                idle: Vec::new(),
                sessions: Vec::new(),
                making: Arc::default(),
            });
            self.by_address.len() - 1
        });
        &mut self.by_address[at]
    }
}

// === impl AddressConnections ===

impl AddressConnections {
    /// Takes a connection for a request: a stream of a session, or an HTTP/1.1 connection that has been idle for less than
    /// `limit` by `now`, unless `may_reuse` is false.
    pub(super) fn take(
        &mut self,
        now: Instant,
        limit: Duration,
        may_reuse: bool,
    ) -> Option<(Wire, Arc<Address>)> {
        if let Some(stream) = self.stream() {
            return Some((Wire::Http2(stream), self.address.clone()));
        }
        while may_reuse && let Some(IdleConnection { mut wire, address, since }) = self.idle.pop() {
            if wire.is_ready() && now.saturating_duration_since(since) < limit {
                return Some((Wire::Http1(wire), address));
            }
        }
        None
    }

    /// Opens a stream on a session that has room for one.
    pub(super) fn stream(&self) -> Option<H2Stream> {
        self.sessions.iter().find_map(H2Session::stream)
    }

    /// A session whose upstream has not said yet how many streams it takes; `None` if another one has said that they are few.
    pub(super) fn unsettled_session(&self) -> Option<H2Session> {
        if self.takes_few() {
            return None;
        }
        self.sessions.iter().find(|session| session.is_open() && !session.is_settled()).cloned()
    }

    /// Whether the upstream has said that it takes few streams on each session.
    pub(super) fn takes_few(&self) -> bool {
        self.sessions.iter().any(H2Session::takes_few)
    }

    fn sweep(&mut self, limit: Duration) {
        self.idle.retain_mut(|idle| idle.wire.is_ready() && idle.since.elapsed() < limit);
        let is_old = |session: &H2Session| {
            session.idle_since().is_some_and(|since| since.elapsed() >= limit)
        };
        self.sessions.retain(|session| session.is_open() && !is_old(session));
    }
}
