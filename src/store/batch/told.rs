//! What the log has been told of a store that fails: each change once, not each request.

use crate::store::{Entry, Reply, StoreError, hash_tag};
use std::{collections::HashMap, time::Duration};
use tokio::time::Instant;

/// Decisions are there again when none has failed for this long: what only reads may work while what writes does not.
const RECOVERED: Duration = Duration::from_secs(1);

/// The kind of error that was last told, and when it was last seen: for a group of keys, by its hash tag, and by
/// nothing for all of them. Tags come from the configuration.
#[derive(Debug, Default)]
pub(super) struct Told(HashMap<Box<str>, (&'static str, Instant)>);

// === impl Told ===

impl Told {
    /// Hears what became of a call of the `lane`.
    pub(super) fn hear(
        &mut self,
        lane: &str,
        entries: &[Entry],
        answer: &Result<Vec<Reply>, StoreError>,
    ) {
        match answer {
            Err(error) => self.failed(lane, error),
            Ok(replies) => {
                let failed = replies.iter().any(|reply| reply.error().is_some());
                if !failed && self.0.is_empty() {
                    return;
                }
                for (entry, reply) in entries.iter().zip(replies) {
                    let group = hash_tag(&entry.checks()[0].key);
                    match reply.error() {
                        Some(error) => self.failed(group, error),
                        None => self.worked(group),
                    }
                }
                self.worked(lane);
            }
        }
    }

    fn failed(&mut self, group: &str, error: &StoreError) {
        let seen = (error.kind(), Instant::now());
        let before = match self.0.get_mut(group) {
            Some(told) => Some(std::mem::replace(told, seen)),
            None => self.0.insert(group.into(), seen),
        };
        if before.is_none_or(|(kind, _)| kind != error.kind()) {
            match group {
                "" => tracing::warn!(%error, "the store gives no decisions"),
                group => tracing::warn!(group, %error, "the store gives no decisions"),
            }
        }
    }

    fn worked(&mut self, group: &str) {
        if self.0.get(group).is_some_and(|(_, last)| last.elapsed() >= RECOVERED) {
            self.0.remove(group);
            match group {
                "" => tracing::info!("the store gives decisions again"),
                group => tracing::info!(group, "the store gives decisions again"),
            }
        }
    }
}
