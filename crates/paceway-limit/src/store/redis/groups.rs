//! The hash tag that the states of a limiter have in a Cluster, on which all gateways agree. Decides nothing else.
//!
//! The limiters of one request need one hash tag there, so a route that uses two limiters together changes the names of
//! their states. Gateways with the old and the new routes would count separately, and grant twice the rule. A record
//! therefore says for each limiter which tag is in use, and gateways with that tag renew it each second. A gateway with
//! another tag refuses the limiter's requests: for it the state counts as exhausted until the record has expired. By then
//! no gateway renews the record, and the permits that were granted under the other tag do not count any more.

use super::{
    RedisStore,
    transport::{command, words},
};
use crate::{
    algorithm::{Level, Micros, concurrency::RETRY},
    store::{Check, Decision, Entry, Reply, Source, StoreError},
};
use redis::Value;
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
/// The time in µs for which a record outlives its renewals: a gateway that is cut off for 5 s keeps its tags.
const SILENCE: Micros = 5_000_000;

/// The hash tag under which this process keeps the states of one limiter.
#[derive(Debug)]
pub struct Claim {
    /// The limiter's name in the configuration.
    pub limiter: String,
    /// The hash tag in the names of its states.
    pub tag: String,
    /// One check for each of its rates.
    pub checks: Vec<Check>,
}

/// The claims of a process, shared by all of its connections to one Cluster.
#[derive(Debug)]
pub struct Groups {
    claims: Vec<Claimed>,
    /// Whether any limiter counts as exhausted: most of the time none does.
    some: AtomicBool,
}

#[derive(Debug)]
struct Claimed {
    limiter: String,
    /// The name of the record, such as `paceway:{account}:group`.
    record: String,
    tag: String,
    /// The time in ms for which the record outlives its last renewal.
    lives: String,
    /// The parts of the names of its states that follow the tag.
    states: Vec<String>,
    /// Another tag is in use, or it is not known yet which tag is.
    is_displaced: AtomicBool,
    /// The log says that another tag is in use.
    is_logged: AtomicBool,
}

// === impl Groups ===

impl Groups {
    /// Makes the claims on states whose names begin with `prefix`. No tag is in use before [`RedisStore::claim_groups`] has
    /// asked.
    pub fn new(prefix: &str, claims: impl IntoIterator<Item = Claim>) -> Arc<Self> {
        let claims: Vec<_> = claims.into_iter().map(|claim| Claimed::new(prefix, claim)).collect();
        let some = AtomicBool::new(!claims.is_empty());
        Arc::new(Self { claims, some })
    }

    /// Returns the first of `checks` that enforces and whose state counts as exhausted.
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
            is_logged: AtomicBool::new(false),
            limiter,
            tag,
        }
    }

    /// Whether the state named `key` belongs to the limiter.
    fn has(&self, key: &str) -> bool {
        let Some((_, name)) = key.split_once('}') else { return false };
        let rests = self.states.iter().filter_map(|state| name.strip_prefix(state.as_str()));
        rests.into_iter().any(|rest| rest.is_empty() || rest.starts_with(':'))
    }

    /// Notes for how many ms another tag is still in use; 0 if none is.
    fn learn(&self, left: i64) {
        let is_displaced = left > 0;
        self.is_displaced.store(is_displaced, Relaxed);
        let was_logged = self.is_logged.swap(is_displaced, Relaxed);
        let (limiter, tag) = (&self.limiter, &self.tag);
        match (was_logged, is_displaced) {
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
        // Longer than any budget, so that no request waits for a slot that may not come.
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

    /// A gateway that starts while others use another tag has never used its own, and the log reports it nevertheless.
    #[test]
    fn the_log_tells_that_a_limiter_is_closed_also_at_the_start() {
        let claim =
            Claimed::new("p", Claim { limiter: "b".into(), tag: "a".into(), checks: vec![] });
        let logged = [7_000, 6_000, 0, 7_000].map(|left| {
            claim.learn(left);
            claim.is_logged.load(Relaxed)
        });
        assert_eq!(logged, [true, true, false, true]);
    }
}
