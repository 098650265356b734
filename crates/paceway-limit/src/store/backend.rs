//! The interface of a store of limiters: it keeps states, and executes lists of entries. Group commit, time-outs, outages and
//! blocks of permits are above it. Decides nothing.

use super::{
    BoxFuture, Checks, Entry, Note, NoteChange, Reply, ScanPlace, ScanStep, StateCopy, StoreError,
    calls::Calls, hash_tag,
};
use crate::algorithm::Micros;
use std::{fmt, future::ready, sync::Arc, time::Duration};

/// A gateway that has sent no heartbeat for 1.5 s counts as one that decides alone: three of its heartbeats are missing.
pub const ABSENT: Duration = Duration::from_millis(1500);
/// A gateway that has sent no heartbeat for 10 s counts as ended.
pub const GONE: Duration = Duration::from_secs(10);

/// A store that executes [entries](Entry) in order, each list atomically with regard to every other list.
///
/// Two methods are needed, [`calls`](Self::calls) and [`run`](Self::run); the others are for a store that several processes
/// share. The clock is the store's: `run` reads it once, and all entries of the list happen at that instant. It never steps
/// back: a store whose clock is set back continues with the latest instant that it has seen.
///
/// The states of [`Entry::Reserve`] and of the entries that change its grants are those of [`Rule`], read by
/// [`Rule::open`], decided together by [`reserve::decide`], and kept by [`OpenRule::close`] until the time that it says.
/// `examples/own_store.rs` of this package is such a store in 300 lines, and passes the contract that every store of the
/// gateway passes (`tests/it/contract.rs` of its repository).
///
/// [`Rule`]: crate::algorithm::Rule
/// [`Rule::open`]: crate::algorithm::Rule::open
/// [`OpenRule::close`]: crate::algorithm::OpenRule::close
/// [`reserve::decide`]: crate::algorithm::reserve::decide
pub trait Backend: Send + Sync + fmt::Debug {
    /// Returns the requests of this process that wait for a concurrency permit or a turn. A store that hands one on wakes the
    /// holder of its ticket ([`Calls::call_holder_of`]).
    fn calls(&self) -> &Arc<Calls>;

    /// Executes `entries`, and resolves with one reply for each. An entry that fails alone, such as one about a state that
    /// another program wrote, has the reply [`Reply::Failed`].
    ///
    /// # Errors
    ///
    /// [`StoreError`] when no entry has a reply: [`StoreError::NotConnected`] if the list was certainly not executed, and
    /// [`StoreError::Unreachable`] if that is unknown. An unknown list counts as executed, and is not sent again.
    fn run(&self, entries: Arc<Vec<Entry>>) -> BoxFuture<Result<Vec<Reply>, StoreError>>;

    /// Says where the states are; one server unless this is implemented.
    fn placement(&self) -> Placement {
        Placement::OneServer
    }

    /// Sends a heartbeat to the set of gateways, or removes this one if it is the last. A gateway without a heartbeat for
    /// [`ABSENT`] counts as one that decides alone, and one without any for [`GONE`] is removed from the set. One that has
    /// granted nothing lately is removed after [`ABSENT`] if its connections have ended. A store of one process answers at
    /// once that there is one.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the heartbeat did not arrive, or that is unknown.
    fn beat(&self, _heartbeat: Heartbeat) -> BoxFuture<Result<Beat, StoreError>> {
        Box::pin(ready(Ok(Beat { gateways: 1, absent: 0, entered: false, now: None })))
    }

    /// Reads a text that gateways share, and replaces it if it is the one that `change` expects. Resolves with the text
    /// afterwards. A store that keeps none is never connected.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the store gave no answer. Then the text may have been replaced.
    fn exchange(
        &self,
        _key: Arc<str>,
        _change: Option<NoteChange>,
    ) -> BoxFuture<Result<Note, StoreError>> {
        Box::pin(ready(Err(StoreError::NotConnected)))
    }

    /// Reads the names of some states that begin with `prefix`, from `place` on. A store that lists none is never connected.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the store gave no answer.
    fn scan(
        &self,
        _prefix: Arc<str>,
        _place: ScanPlace,
    ) -> BoxFuture<Result<ScanStep, StoreError>> {
        Box::pin(ready(Err(StoreError::NotConnected)))
    }

    /// Copies the states of `checks`, the limiters of one request, as they are at one instant. Without this, a store tells no
    /// forecasts.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the store gave no answer.
    fn copy_states(&self, _checks: Checks) -> BoxFuture<Result<StateCopy, StoreError>> {
        Box::pin(ready(Err(StoreError::NotConnected)))
    }

    /// Replaces the connection by a new one, because it answers later than those of other workers, or not at all.
    fn renew(&self) {}

    /// Checks whether the store still has the states that it was given. Later calls know of a loss that it finds.
    fn inspect(&self) -> BoxFuture<()> {
        Box::pin(ready(()))
    }
}

/// Where a store keeps its states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// One server has all keys, so entries about any of them may share a list.
    OneServer,
    /// Several servers have them by hash tag: a list is about keys of one tag, and one server can be away while the others
    /// answer.
    ManyServers {
        /// Whether one of them answers, as far as is known. It may be another one than was asked last.
        one_answers: bool,
    },
}

/// A sign of life of a gateway.
#[derive(Debug, Clone)]
pub struct Heartbeat {
    /// The name of the set of gateways.
    pub key: Arc<str>,
    /// The name of this life of the gateway. If it has an `@`, the part from there on is the name of the gateway.
    pub id: Arc<str>,
    /// The gateway decides alone, and cannot charge the permits that it grants.
    pub is_alone: bool,
    /// The gateway has granted nothing for [`GONE`], so that the others leave it no share once its
    /// connections have ended.
    pub is_idle: bool,
    /// No heartbeat of this life was answered yet. The others of the same name are removed from the set: they have ended, or
    /// enter it again with their next heartbeats.
    pub is_first: bool,
    /// The gateway has decided its last request, and is removed from the set. The numbers of the answer have no meaning.
    pub is_last: bool,
}

/// The answer to a heartbeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Beat {
    /// The number of gateways, including this one and those that decide alone.
    pub gateways: i64,
    /// The number of other gateways that decide alone, or have sent no heartbeat for [`ABSENT`]. One that has granted nothing
    /// lately counts only while its connections live.
    pub absent: i64,
    /// This gateway was not in the set of gateways before: it has just started, or the store has lost the set.
    pub entered: bool,
    /// The time on the store's clock in µs; `None` for a store without a clock of its own.
    pub now: Option<Micros>,
}

// === impl Placement ===

impl Placement {
    /// Returns the part of a key that decides which entries may share a list: entries with the same part do.
    pub(crate) fn lane(self, key: &str) -> &str {
        match self {
            Self::OneServer => "",
            Self::ManyServers { .. } => hash_tag(key),
        }
    }

    pub(crate) fn has_many_servers(self) -> bool {
        self != Self::OneServer
    }
}
