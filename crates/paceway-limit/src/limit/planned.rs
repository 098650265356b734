//! A limit of a [`Limiter`](super::Limiter) with the facts that each call needs. It makes checks, and asks no store.

use super::{Limit, RuleError, rated::Rated};
use crate::{
    algorithm::{
        Rule,
        fair::{NO_TENANT, Priority, Turn},
    },
    answer::Policy,
    key::StateNames,
    rate::Rate,
    store::Check,
};
use parking_lot::RwLock;
use std::{collections::HashMap, sync::Arc, time::Duration};

/// A limit as it is asked.
#[derive(Debug)]
pub struct Planned {
    pub(super) name: Arc<str>,
    limit: Limit,
    /// The numbers of the rate that holds now, for all calls but those of keys with a rate of their own.
    rated: RwLock<Rated>,
    /// The name of the state that calls without a key share.
    shared: Arc<str>,
    names: StateNames,
    /// The weights of its tenants; `None`: first come, first served.
    weights: Option<HashMap<Arc<str>, i64>>,
}

/// The tenant and the priority of a call.
#[derive(Debug, Clone)]
pub(super) struct Seat {
    pub(super) tenant: Option<Arc<str>>,
    pub(super) priority: Priority,
}

// === impl Planned ===

impl Planned {
    pub(super) fn new(prefix: &str, group: &str, limit: Limit) -> Result<Self, RuleError> {
        let rated = Rated::new(&limit, limit.rate)?;
        let names = StateNames::new(prefix, group, rated.rule.letter(), &limit.name);
        let weights = limit.weights.as_ref().map(|weights| {
            weights.iter().map(|(tenant, weight)| ((**tenant).into(), (*weight).into())).collect()
        });
        Ok(Self {
            name: limit.name.as_str().into(),
            rated: RwLock::new(rated),
            shared: names.of(None).into(),
            names,
            weights,
            limit,
        })
    }

    /// Whether it counts calls at a time, each with one permit.
    pub(super) fn is_concurrency(&self) -> bool {
        matches!(self.rated().rule, Rule::Permits(_))
    }

    /// The numbers of the rate that holds now.
    pub(super) fn rated(&self) -> Rated {
        *self.rated.read()
    }

    /// The numbers of the rate that `key` has of its own; `None` if it has none.
    ///
    /// # Errors
    ///
    /// [`RuleError`] if that rate makes no rule.
    pub(super) fn rated_for(&self, key: &str) -> Result<Option<Rated>, RuleError> {
        let rate = self.limit.rates.as_ref().and_then(|rates| rates.of(key));
        rate.filter(|_| !self.is_concurrency())
            .map(|rate| Rated::new(&self.limit, rate))
            .transpose()
    }

    /// Sets the rate that holds from now on.
    ///
    /// # Errors
    ///
    /// [`RuleError`] if it makes no rule, or the limit counts calls at a time.
    pub(super) fn set_rate(&self, rate: Rate) -> Result<(), RuleError> {
        if self.is_concurrency() {
            let why = "a rate, and it counts calls at a time";
            return Err(RuleError { limit: self.limit.name.clone(), why });
        }
        let rated = Rated::new(&self.limit, rate)?;
        *self.rated.write() = rated;
        Ok(())
    }

    /// The description for a caller that was refused at the rate of `rated`.
    pub(super) fn policy(&self, rated: &Rated) -> Policy {
        Policy { name: self.limit.name.clone(), quota: rated.quota }
    }

    /// The check of a call with this `seat` that costs `cost`, on the state of `key`.
    pub(super) fn check(
        &self,
        rated: &Rated,
        key: Option<&str>,
        cost: i64,
        max_wait: Duration,
        seat: &Seat,
    ) -> Check {
        let turn = |weights: &HashMap<Arc<str>, i64>| {
            let tenant = seat.tenant.clone().unwrap_or_else(|| NO_TENANT.into());
            let weight = weights.get(&tenant).copied().unwrap_or(1);
            Turn::new(tenant, weight, seat.priority)
        };
        let state = key.map_or_else(|| self.shared.clone(), |key| self.names.of(Some(key)).into());
        let check = Check {
            cost,
            enforce: self.limit.enforce,
            on_loss: self.limit.on_loss,
            // A store in memory that is full of keys counts further ones together.
            overflow: key.map(|_| self.names.of(Some("#overflow")).into()),
            turn: self.weights.as_ref().map(turn),
            ..Check::new(state, rated.rule)
        };
        // Without blocks: a program may settle its permits, and name any cost.
        rated.apply(check, max_wait)
    }
}
