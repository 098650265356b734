//! The hash tag that the states of a limiter have in a Cluster, on which all gateways agree. Decides nothing else.
//!
//! The limiters of one request need one hash tag there, so a route that uses two limiters together changes the names of
//! their states. Gateways with the old and the new routes would count separately, and grant twice the rule. A record
//! therefore says for each limiter which tag is in use, and gateways with that tag renew it each second. A gateway with
//! another tag refuses the limiter's requests: for it the state counts as exhausted until the record has expired. By then
//! no gateway renews the record, and the permits that were granted under the other tag do not count any more.

use crate::{
    algorithm::Micros,
    store::{Check, Entry, failover::is_delayed_charge},
};
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};

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
    pub(super) claims: Vec<Claimed>,
    /// Whether any limiter counts as exhausted: most of the time none does.
    pub(super) some: AtomicBool,
}

/// A claim, and whether another tag is in use for its limiter.
#[derive(Debug)]
pub(super) struct Claimed {
    limiter: String,
    /// The name of the record, such as `paceway:{account}:group`.
    pub(super) record: String,
    pub(super) tag: String,
    /// The time in ms for which the record outlives its last renewal.
    pub(super) lives: String,
    /// The parts of the names of its states that follow the tag.
    states: Vec<String>,
    /// Another tag is in use, or it is not known yet which tag is.
    pub(super) is_displaced: AtomicBool,
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

    /// Returns the first check of a request that enforces and whose state counts as exhausted. A charge is no request: it
    /// counts permits that this gateway has granted already, so it is executed.
    pub(super) fn refuses(&self, entry: &Entry) -> Option<usize> {
        match entry {
            Entry::Reserve { checks, .. } if !is_delayed_charge(checks) => self.exhausted(checks),
            // Each way has the limiters of the route.
            Entry::Choose { among, .. } => self.exhausted(among.checks(None)),
            Entry::Block { checks, .. } | Entry::MoveUp { checks, .. } => self.exhausted(checks),
            _ => None,
        }
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
    pub(super) fn learn(&self, left: i64) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        algorithm::{Algorithm, TokenBucket},
        store::{
            Checks,
            failover::{DuePermits, charges},
        },
    };

    #[test]
    fn a_claim_exhausts_only_the_states_of_its_limiter() {
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

    /// A gateway that granted permits while the store was away charges them after that. If its state counts as exhausted
    /// then, the charges were dropped, and their permits were granted again once the other tag was out of use.
    #[test]
    fn a_charge_is_executed_though_the_state_counts_as_exhausted() {
        let rule = Algorithm::TokenBucket(TokenBucket::new(5, 1_000_000, 5).expect("a rule"));
        let check = Check::new("p:{a}:T:b", rule);
        let claim = Claim { limiter: "b".into(), tag: "a".into(), checks: vec![check.clone()] };
        let groups = Groups::new("p", [claim]);
        let entry =
            |checks: &Checks| Entry::Reserve { checks: checks.clone(), budget: 0, ticket: None };
        assert_eq!(groups.refuses(&entry(&[check.clone()].into())), Some(0));
        let due = [(0, 1), (250_000, 2)].map(|(delay, permits)| DuePermits { delay, permits });
        for charge in charges(&check, &due) {
            assert_eq!(groups.refuses(&entry(&charge)), None, "{charge:?}");
        }
    }

    /// A gateway that starts while others use another tag has never used its own, and the log reports it nevertheless.
    #[test]
    fn the_log_reports_a_closed_limiter_at_the_start() {
        let claim =
            Claimed::new("p", Claim { limiter: "b".into(), tag: "a".into(), checks: vec![] });
        let logged = [7_000, 6_000, 0, 7_000].map(|left| {
            claim.learn(left);
            claim.is_logged.load(Relaxed)
        });
        assert_eq!(logged, [true, true, false, true]);
    }
}
