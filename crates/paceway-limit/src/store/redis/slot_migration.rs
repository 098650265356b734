//! Calls while a slot of a Cluster moves from one node to another. A node answers `TRYAGAIN` to a command with several
//! keys unless it has all of them, and a key that does not exist yet can be written at the new node only. A rejected call
//! is therefore split: one call reads the epoch's key, and then there is one call for each set of keys.

use super::{RedisStore, call::ScriptCall, epoch::Expected, reason::is_split};
use crate::store::{Entry, Reply, StoreError};
use ahash::HashMap;
use std::time::Duration;
use tokio::{task::JoinSet, time::sleep};

/// How often a call for one request with several keys is tried: all of its keys have moved within milliseconds.
const TRIES: usize = 16;
const TRY_AGAIN: Duration = Duration::from_millis(5);

/// Splits `entries` by their keys: the entries with the same keys share a call, in their order.
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
    /// Executes `entries` in several calls; the entries with the same keys keep their order.
    ///
    /// # Errors
    ///
    /// The error of a call, when no call has had a reply. Otherwise it is the reply of the entries of that call.
    pub(super) async fn run_split(
        &self,
        now: Option<i64>,
        lane: &str,
        entries: &[Entry],
    ) -> Result<Vec<Reply>, StoreError> {
        self.run_together(now, lane, &[]).await?;
        // The epoch is in doubt again when the node that was asked has been replaced since.
        let expected = self.epochs.settled(lane).ok_or(StoreError::NotConnected)?;
        let mut calls = JoinSet::new();
        for part in parts(entries) {
            let own: Vec<_> = part.iter().map(|i| entries[*i].clone()).collect();
            let store = self.clone();
            calls.spawn(async move { (part, store.run_part(now, expected, &own).await) });
        }
        let mut replies = vec![Reply::Failed(StoreError::Protocol); entries.len()];
        let (mut answered, mut failed) = (false, None);
        while let Some(call) = calls.join_next().await {
            // A call is cancelled only with the runtime.
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

    /// Executes entries with the same keys in a call that does not name the epoch's key.
    async fn run_part(
        &self,
        now: Option<i64>,
        expected: Expected,
        entries: &[Entry],
    ) -> Result<Vec<Reply>, StoreError> {
        // The script expects a key in the place of the epoch's. A key that is named twice is one key for the node.
        let first = entries.first().and_then(|entry| entry.checks().first());
        let first = first.map_or_else(String::new, |check| check.key.to_string());
        let call = ScriptCall::new(now, first.into(), expected, entries);
        let mut tries = 0;
        loop {
            tries += 1;
            match self.execute(&call).await {
                Err(StoreError::Refused(words)) if is_split(&words) && tries < TRIES => {
                    sleep(TRY_AGAIN).await;
                }
                result => return result.map(|reply| reply.replies),
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
    fn entries_with_the_same_keys_share_a_call() {
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
