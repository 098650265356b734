//! Claims the hash tags of limiters in a Cluster, once a second, and closes the limiters whose tag is not in use. `groups`
//! says why; this sends the calls.

use super::{
    RedisStore,
    groups::{Claimed, Groups},
    transport::{command, words},
};
use crate::{
    algorithm::{Level, MAX_BUDGET, concurrency::RETRY},
    store::{Decision, Entry, Reply, StoreError},
};
use redis::Value;
use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};

/// Returns 0 when the tag is in use, or is from now on; otherwise for how many ms another tag is still in use at least.
const SCRIPT: &str = "local held = redis.call('GET', KEYS[1]) \
                      if held and held ~= ARGV[1] then return math.max(redis.call('PTTL', KEYS[1]), 1) end \
                      redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]) \
                      return 0";
/// Records are renewed each second, and a call that takes longer is given up.
const RENEWED: Duration = Duration::from_secs(1);
/// The greatest number of claims that are asked for at one time. One after the other, the claims of 100 limiters at 60 ms a
/// round trip would take longer than a record lives without a renewal.
const AT_ONCE: usize = 64;
// === impl RedisStore ===

impl RedisStore {
    /// Returns the store for limiters whose states have the hash tags of `groups`.
    #[must_use]
    pub fn with_groups(self, groups: Arc<Groups>) -> Self {
        Self { groups: Some(groups), ..self }
    }

    /// Asks once for each limiter whether its tag is in use. Without a reply the limiter stays open or closed as it was.
    pub async fn claim_groups(&self) {
        let Some(groups) = &self.groups else { return };
        let mut asked = JoinSet::new();
        for i in 0..groups.claims.len() {
            let (store, groups) = (self.clone(), groups.clone());
            asked.spawn(async move {
                let claim = &groups.claims[i];
                if let Ok(Ok(left)) = timeout(RENEWED, store.claim(claim)).await {
                    claim.learn(left);
                }
            });
            if asked.len() >= AT_ONCE {
                asked.join_next().await;
            }
        }
        while asked.join_next().await.is_some() {}
        let some = groups.claims.iter().any(|claim| claim.is_displaced.load(Relaxed));
        groups.some.store(some, Relaxed);
    }

    /// Renews the records each second, for as long as the returned future is polled.
    pub async fn keep_groups(self) {
        loop {
            self.claim_groups().await;
            sleep(RENEWED).await;
        }
    }

    async fn claim(&self, claim: &Claimed) -> Result<i64, StoreError> {
        let [key, tag, lives] =
            [&claim.record, &claim.tag, &claim.lives].map(|word| word.as_bytes());
        let eval = [b"EVAL", SCRIPT.as_bytes(), b"1", key, tag, lives];
        match self.call(&claim.record, &command(&eval)).await? {
            Value::Int(left) => Ok(left),
            Value::ServerError(error) => Err(StoreError::Refused(words(&error))),
            _ => Err(StoreError::Protocol),
        }
    }

    /// Executes entries, except those that ask a limiter which counts as exhausted: these are refused without a call.
    ///
    /// # Errors
    ///
    /// As of [`Self::run_at`].
    pub(super) async fn run_in_use(&self, entries: &[Entry]) -> Result<Vec<Reply>, StoreError> {
        let Some(groups) = self.groups.as_ref().filter(|groups| groups.some.load(Relaxed)) else {
            return self.run_at(None, entries).await;
        };
        let refused: Vec<_> = entries.iter().map(|entry| groups.refuses(entry)).collect();
        let asked = entries.iter().zip(&refused).filter(|(_, refused)| refused.is_none());
        let asked: Vec<_> = asked.map(|(entry, _)| entry.clone()).collect();
        let mut replies = self.run_at(None, &asked).await?.into_iter();
        let reply = |refused: Option<usize>| match refused {
            Some(bound_by) => Reply::Decision(exhausted(bound_by)),
            None => replies.next().unwrap_or(Reply::Failed(StoreError::Protocol)),
        };
        Ok(refused.into_iter().map(reply).collect())
    }
}

/// The decision on a request whose limiter at `bound_by` counts as exhausted.
fn exhausted(bound_by: usize) -> Decision {
    Decision {
        // Longer than any budget, so that no request waits for a slot that may not come.
        wait: MAX_BUDGET,
        retry_after: RETRY,
        bound_by,
        level: Level { next: RETRY, reset_after: RETRY, ..Level::default() },
        ..Decision::default()
    }
}
