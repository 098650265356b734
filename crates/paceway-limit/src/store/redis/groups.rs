//! Which hash tag the states of a limiter have in a Cluster, agreed on by all gateways. Decides nothing else.
//!
//! There the limiters of one request need one hash tag, so a route that uses two limiters together changes the names of
//! their states. Gateways with the old and the new routes would count apart, and grant twice the rule. So a record says
//! for each limiter which tag is in use; gateways with that tag renew it each second. A gateway with another tag refuses
//! the limiter's requests: its state counts as exhausted until the record has expired, which is when no gateway renews
//! it any more and what was granted under the other tag no longer counts.

use super::{RedisStore, resp};
use crate::{
    algorithm::{Level, Micros, concurrency::RETRY},
    store::{Check, Decision, Entry, Reply, Source, StoreError},
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};

/// Returns 0 when the tag is in use, or is from now on; else for how many ms another one is at least.
const SCRIPT: &str = "local held = redis.call('GET', KEYS[1]) \
                      if held and held ~= ARGV[1] then return math.max(redis.call('PTTL', KEYS[1]), 1) end \
                      redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]) \
                      return 0";
/// How often records are renewed, and how long one call may take.
const RENEWED: Duration = Duration::from_secs(1);
/// Claims that are asked for at one time. One after the other, those of 100 limiters at 60 ms a round trip would take
/// longer than a record lives without a renewal.
const AT_ONCE: usize = 64;
/// How long a gateway may be silent before its records begin to run out, µs.
const SILENCE: Micros = 5_000_000;

/// The tag under which this process has the states of one limiter.
#[derive(Debug)]
pub struct Claim {
    /// The limiter's name.
    pub limiter: String,
    /// The hash tag of its states.
    pub tag: String,
    /// As it is asked, for each rate.
    pub checks: Vec<Check>,
}

/// The claims of a process. All of its connections to one Cluster share them.
#[derive(Debug)]
pub struct Groups {
    claims: Vec<Claimed>,
    /// Some limiter counts as exhausted.
    some: AtomicBool,
}

#[derive(Debug)]
struct Claimed {
    limiter: String,
    /// Name of the record.
    record: String,
    tag: String,
    /// The record outlives the last renewal so long, ms.
    lives: String,
    /// What the names of its states have after the tag.
    states: Vec<String>,
    /// Another tag is in use, or it is not known yet which one is.
    is_displaced: AtomicBool,
    /// The log has told that another one is.
    is_told: AtomicBool,
}

// === impl Groups ===

impl Groups {
    /// For states whose names begin with `prefix`; until [`RedisStore::claim_groups`] has asked, no tag is in use.
    pub fn new(prefix: &str, claims: impl IntoIterator<Item = Claim>) -> Arc<Self> {
        let claims: Vec<_> = claims.into_iter().map(|claim| Claimed::new(prefix, claim)).collect();
        let some = AtomicBool::new(!claims.is_empty());
        Arc::new(Self { claims, some })
    }

    /// The first of `checks` that enforces and whose state counts as exhausted.
    fn exhausted(&self, checks: &[Check]) -> Option<usize> {
        checks.iter().position(|check| {
            let mut displaced = self.claims.iter().filter(|claim| claim.is_displaced.load(Relaxed));
            check.enforce && displaced.any(|claim| claim.has(&check.key))
        })
    }
}

// === impl Claimed ===

impl Claimed {
    fn new(prefix: &str, Claim { limiter, tag, checks }: Claim) -> Self {
        let counts = checks.iter().map(|check| check.horizon + check.algorithm.window());
        let lives = SILENCE + counts.max().unwrap_or(0);
        let states =
            checks.iter().filter_map(|check| Some(check.key.split_once('}')?.1.to_owned()));
        Self {
            record: format!("{prefix}:{{{limiter}}}:group"),
            lives: (lives / 1_000 + 1).to_string(),
            states: states.collect(),
            is_displaced: AtomicBool::new(true),
            is_told: AtomicBool::new(false),
            limiter,
            tag,
        }
    }

    /// Whether the state named `key` is the limiter's.
    fn has(&self, key: &str) -> bool {
        let Some((_, behind)) = key.split_once('}') else { return false };
        let rests = self.states.iter().filter_map(|state| behind.strip_prefix(state.as_str()));
        rests.into_iter().any(|rest| rest.is_empty() || rest.starts_with(':'))
    }

    /// Hears for how many ms another tag is in use; 0: none is.
    fn learn(&self, left: i64) {
        let is_displaced = left > 0;
        self.is_displaced.store(is_displaced, Relaxed);
        let was_told = self.is_told.swap(is_displaced, Relaxed);
        let (limiter, tag) = (&self.limiter, &self.tag);
        match (was_told, is_displaced) {
            (false, true) => {
                tracing::warn!(
                    limiter,
                    tag,
                    left_ms = left,
                    "limiter closed: other gateways use another hash tag"
                );
            }
            (true, false) => tracing::info!(limiter, tag, "limiter open: its hash tag is in use"),
            _ => {}
        }
    }
}

// === impl RedisStore ===

impl RedisStore {
    /// The same for limiters whose states have these hash tags.
    #[must_use]
    pub fn with_groups(self, groups: Arc<Groups>) -> Self {
        Self { groups: Some(groups), ..self }
    }

    /// Asks once for each limiter whether its tag is in use. Without an answer it stays as it was.
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

    /// The same again and again.
    pub async fn keep_groups(self) {
        loop {
            self.claim_groups().await;
            sleep(RENEWED).await;
        }
    }

    async fn claim(&self, claim: &Claimed) -> Result<i64, StoreError> {
        let [key, tag, lives] =
            [&claim.record, &claim.tag, &claim.lives].map(|word| word.as_bytes());
        let words = [b"EVAL", SCRIPT.as_bytes(), b"1", key, tag, lives];
        match self.call(&claim.record, &resp::command(&words)).await? {
            resp::Value::Number(left) => Ok(left),
            resp::Value::Error(error) => Err(StoreError::Refused(error)),
            _ => Err(StoreError::Protocol),
        }
    }

    /// Executes entries; those that ask a limiter which counts as exhausted are refused.
    ///
    /// # Errors
    ///
    /// When nothing is known of any other entry.
    pub(super) async fn run_in_use(&self, entries: &[Entry]) -> Result<Vec<Reply>, StoreError> {
        let Some(groups) = self.groups.as_ref().filter(|groups| groups.some.load(Relaxed)) else {
            return self.run_at(None, entries).await;
        };
        let refused: Vec<_> = entries
            .iter()
            .map(|entry| match entry {
                Entry::Reserve { checks, .. } => groups.exhausted(checks),
                _ => None,
            })
            .collect();
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

fn exhausted(bound_by: usize) -> Decision {
    Decision {
        admitted: false,
        // Longer than any budget: whoever may wait is not told that its slot is near.
        wait: crate::algorithm::MAX_BUDGET,
        retry_after: RETRY,
        bound_by,
        level: Level { remaining: 0, next: RETRY, reset_after: RETRY },
        parts: Default::default(),
        queued: None,
        source: Source::Shared,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{Algorithm, TokenBucket};

    #[test]
    fn a_claim_is_about_the_states_of_its_limiter_only() {
        let rule = Algorithm::TokenBucket(TokenBucket::new(5, 1_000_000, 5).expect("a rule"));
        let check = |key: &str| Check::new(key, rule);
        let claim = Claim {
            limiter: "b".into(),
            tag: "a".into(),
            checks: vec![check("p:{a}:T:b"), check("p:{a}:T:b/1")],
        };
        let groups = Groups::new("p", [claim]);
        let exhausted = |key: &str| groups.exhausted(&[check("p:{a}:T:a"), check(key)]);
        for key in ["p:{a}:T:b", "p:{a}:T:b/1", "p:{a}:T:b:10.0.0.1", "p:{b.07}:T:b:x"] {
            assert_eq!(exhausted(key), Some(1), "{key}");
        }
        for key in ["p:{a}:T:bc", "p:{a}:C:b", "p:{b}:T:c", "b"] {
            assert_eq!(exhausted(key), None, "{key}");
        }
        groups.claims[0].learn(0);
        assert_eq!(exhausted("p:{a}:T:b"), None);
    }

    /// A gateway that starts while others use another tag has never had its own, and the log tells of it all the same.
    #[test]
    fn the_log_tells_that_a_limiter_is_closed_also_at_the_start() {
        let claim =
            Claimed::new("p", Claim { limiter: "b".into(), tag: "a".into(), checks: vec![] });
        let told = [7_000, 6_000, 0, 7_000].map(|left| {
            claim.learn(left);
            claim.is_told.load(Relaxed)
        });
        assert_eq!(told, [true, true, false, true]);
    }
}
