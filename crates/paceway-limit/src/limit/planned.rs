//! A limit of a [`Limiter`](super::Limiter) with the facts that each call needs. It makes checks, and asks no store.

use super::{Limit, RuleError, micros};
use crate::{
    algorithm::{
        Rule,
        fair::{NO_TENANT, Priority, Turn},
    },
    answer::Policy,
    key::StateNames,
    store::{Check, OnFailure, OnLoss},
};
use std::{collections::HashMap, sync::Arc, time::Duration};

/// A limit as it is asked.
#[derive(Debug)]
pub(super) struct Planned {
    pub(super) name: Arc<str>,
    pub(super) policy: Policy,
    algorithm: Rule,
    /// The name of the state that calls without a key share.
    shared: Arc<str>,
    names: StateNames,
    pub(super) most: i64,
    enforce: bool,
    on_failure: OnFailure,
    on_loss: OnLoss,
    /// The period of its rate, µs.
    period: i64,
    /// The weights of its tenants; `None`: first come, first served.
    weights: Option<HashMap<Arc<str>, i64>>,
}

// === impl Planned ===

impl Planned {
    pub(super) fn new(prefix: &str, group: &str, limit: &Limit) -> Result<Self, RuleError> {
        let algorithm = limit.algorithm()?;
        let names = StateNames::new(prefix, group, algorithm.letter(), &limit.name);
        Ok(Self {
            name: limit.name.as_str().into(),
            policy: limit.policy(),
            algorithm,
            shared: names.of(None).into(),
            names,
            most: limit.most(&algorithm),
            enforce: limit.enforce,
            on_failure: limit.on_failure(),
            on_loss: limit.on_loss,
            period: limit.period(),
            weights: limit.weights.as_ref().map(|weights| {
                weights
                    .iter()
                    .map(|(tenant, weight)| ((**tenant).into(), (*weight).into()))
                    .collect()
            }),
        })
    }

    /// Whether it counts calls at a time, each with one permit.
    pub(super) fn is_concurrency(&self) -> bool {
        matches!(self.algorithm, Rule::Permits(_))
    }

    /// The check of a call of `tenant` that costs `cost`, on the state of `key`.
    pub(super) fn check(
        &self,
        key: Option<&str>,
        cost: i64,
        max_wait: Duration,
        tenant: Option<&Arc<str>>,
        priority: Priority,
    ) -> Check {
        let turn = |weights: &HashMap<Arc<str>, i64>| {
            let tenant = tenant.cloned().unwrap_or_else(|| NO_TENANT.into());
            let weight = weights.get(&tenant).copied().unwrap_or(1);
            Turn::new(tenant, weight, priority)
        };
        let algorithm = self.algorithm;
        Check {
            key: key.map_or_else(|| self.shared.clone(), |key| self.names.of(Some(key)).into()),
            algorithm,
            cost,
            enforce: self.enforce,
            horizon: algorithm.horizon(micros(max_wait), self.most),
            period: self.period,
            bounds: None,
            on_loss: self.on_loss,
            // A store in memory that is full of keys counts further ones together.
            overflow: key.map(|_| self.names.of(Some("#overflow")).into()),
            on_failure: self.on_failure,
            turn: self.weights.as_ref().map(turn),
            // A program may settle its permits, and name any cost.
            blocks: false,
        }
    }
}
