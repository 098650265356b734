//! The part of a store that group commit needs: it executes a list of entries, and keeps the set of live gateways.

use crate::{
    algorithm::Micros,
    store::{
        BoxFuture, Entry, Note, NoteChange, Reply, ScanPlace, ScanStep, StoreError, calls::Calls,
        hash_tag,
    },
};
use std::{fmt, sync::Arc, time::Duration};

/// A gateway that has sent no heartbeat for 1.5 s counts as one that decides alone: three of its heartbeats are missing.
pub const ABSENT: Duration = Duration::from_millis(1500);
/// A gateway that has sent no heartbeat for 10 s counts as ended.
pub const GONE: Duration = Duration::from_secs(10);

/// A store that executes entries in order, atomically with regard to every other run.
pub trait Script: Send + Sync + fmt::Debug {
    /// Returns the requests of this process that wait for a concurrency permit.
    fn calls(&self) -> &Arc<Calls>;

    /// Returns the part of a key that decides which entries may share a call: entries with the same part do. Where keys
    /// live on several servers, that is their hash tag.
    fn lane<'k>(&self, key: &'k str) -> &'k str {
        hash_tag(key)
    }

    /// Whether keys live on several servers, so that one of them can be away while the others answer.
    fn has_many_servers(&self) -> bool {
        false
    }

    /// Whether one of several servers answers, as far as is known. It may be another one than was asked last.
    fn answers(&self) -> bool {
        false
    }

    /// Executes `entries`, and resolves with one reply for each.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when no entry has a reply, for example [`StoreError::NotConnected`].
    fn run(&self, entries: Arc<Vec<Entry>>) -> BoxFuture<Result<Vec<Reply>, StoreError>>;

    /// Sends a heartbeat to the set of gateways. A gateway without a heartbeat for [`ABSENT`] counts as one that decides
    /// alone, and one without any for [`GONE`] is removed from the set. One that has granted nothing lately is removed
    /// after [`ABSENT`] if its connections have ended.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the heartbeat did not arrive, or that is unknown.
    fn beat(&self, _heartbeat: Heartbeat) -> BoxFuture<Result<Beat, StoreError>> {
        Box::pin(std::future::ready(Ok(Beat { gateways: 1, absent: 0, entered: false, now: None })))
    }

    /// Removes the gateway `id` from the set of gateways named `key`, because it ends.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the message did not arrive, or that is unknown.
    fn leave(&self, _key: Arc<str>, _id: Arc<str>) -> BoxFuture<Result<(), StoreError>> {
        Box::pin(std::future::ready(Ok(())))
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
        Box::pin(std::future::ready(Err(StoreError::NotConnected)))
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
        Box::pin(std::future::ready(Err(StoreError::NotConnected)))
    }

    /// Replaces the connection by a new one, because it answers later than those of other workers, or not at all.
    fn renew(&self) {}

    /// Checks whether the store still has the states that it was given. Later calls know of a loss that it finds.
    fn inspect(&self) -> BoxFuture<()> {
        Box::pin(std::future::ready(()))
    }
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
