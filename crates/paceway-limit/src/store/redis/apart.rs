//! Calls while a slot of a Cluster is on its way from one node to another: one that names several keys is executed only
//! where all of them are, and one that is nowhere yet comes into being at the new node alone. So the marker is asked for
//! by itself, and what concerns one key is a call of that key.

use super::{RedisStore, call::Call, marker::Expected};
use crate::store::{Entry, Reply, StoreError};
use ahash::HashMap;
use std::time::Duration;
use tokio::{task::JoinSet, time::sleep};

/// How often a call with several keys is tried, for those that are on their way together.
const TRIES: usize = 16;
const TRY_AGAIN: Duration = Duration::from_millis(5);

/// Whether an error says that the keys of a call are not all in one place. Nothing was executed.
pub(super) fn are_apart(words: &str) -> bool {
    words.starts_with("TRYAGAIN")
}

/// Where each of `entries` goes: those of the same keys together, in their order.
fn parts(entries: &[Entry]) -> Vec<Vec<usize>> {
    let mut numbers = HashMap::default();
    let mut parts: Vec<Vec<usize>> = Vec::new();
    for (i, entry) in entries.iter().enumerate() {
        let keys: Vec<&str> = entry.checks().iter().map(|check| &*check.key).collect();
        let number = *numbers.entry(keys).or_insert(parts.len());
        if number == parts.len() {
            parts.push(Vec::new());
        }
        parts[number].push(i);
    }
    parts
}

// === impl RedisStore ===

impl RedisStore {
    /// Executes `entries`, those of one key in their order.
    ///
    /// # Errors
    ///
    /// When nothing is known of any entry.
    pub(super) async fn run_apart(
        &self,
        now: Option<i64>,
        lane: &str,
        entries: &[Entry],
    ) -> Result<Vec<Reply>, StoreError> {
        self.run_together(now, lane, &[]).await?;
        // In doubt again, the node that was asked has been replaced since.
        let expected = self.markers.settled(lane).ok_or(StoreError::NotConnected)?;
        let mut calls = JoinSet::new();
        for part in parts(entries) {
            let own: Vec<_> = part.iter().map(|i| entries[*i].clone()).collect();
            let store = self.clone();
            calls.spawn(async move { (part, store.run_part(now, expected, &own).await) });
        }
        let mut replies = vec![Reply::Failed(StoreError::Protocol); entries.len()];
        let (mut answered, mut failed) = (false, None);
        while let Some(call) = calls.join_next().await {
            // One that does not end has lost its runtime, and so have we.
            let Ok((part, result)) = call else { continue };
            let own = match result {
                Ok(own) => {
                    answered = true;
                    own
                }
                Err(error) => {
                    failed = Some(error.clone());
                    vec![Reply::Failed(error); part.len()]
                }
            };
            for (i, reply) in part.into_iter().zip(own) {
                replies[i] = reply;
            }
        }
        match failed {
            Some(error) if !answered => Err(error),
            _ => Ok(replies),
        }
    }

    /// Entries of the same keys, without the marker.
    async fn run_part(
        &self,
        now: Option<i64>,
        expected: Expected,
        entries: &[Entry],
    ) -> Result<Vec<Reply>, StoreError> {
        // In the marker's place: one key named twice is one key.
        let first = entries.first().and_then(|entry| entry.checks().first());
        let first = first.map_or_else(String::new, |check| check.key.to_string());
        let call = Call::new(now, first, expected, entries);
        let mut tries = 0;
        loop {
            tries += 1;
            match self.execute(&call).await {
                Err(StoreError::Refused(words)) if are_apart(&words) && tries < TRIES => {
                    sleep(TRY_AGAIN).await;
                }
                result => return result.map(|(replies, _)| replies),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        algorithm::{Algorithm, TokenBucket},
        store::Check,
    };

    #[test]
    fn those_of_the_same_keys_go_together() {
        let rule = TokenBucket::new(1, 1_000_000, 1).expect("a rule");
        let decide = |keys: &[&str]| {
            let check = |key: &&str| Check::new(*key, Algorithm::TokenBucket(rule));
            let checks = keys.iter().map(check).collect();
            Entry::Reserve { checks, budget: 0, ticket: None }
        };
        let entries = [&["a"][..], &["b"], &["a"], &["a", "b"], &["b"]].map(decide);
        assert_eq!(parts(&entries), [vec![0, 2], vec![1, 4], vec![3]]);
    }
}
