//! The checks of a call with the limits that they belong to, at the rates that held when it was made. They ask no store.

use super::{CostLimit, planned::Planned, rated::Rated};
use crate::{answer::Policy, store::Checks};
use smallvec::SmallVec;
use std::{sync::Arc, time::Duration};

/// A call as a store is asked for it.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) checks: Checks,
    pub(super) limits: Arc<[Planned]>,
    /// The limit of each check, in their order.
    pub(super) parts: SmallVec<[AskedPart; 2]>,
    /// How far ahead the limiter reserves.
    pub(super) max_wait: Duration,
}

/// The limit of a check.
#[derive(Debug, Clone, Copy)]
pub(super) struct AskedPart {
    /// Its index among the limits of the limiter.
    pub(super) index: usize,
    pub(super) rated: Rated,
    /// Whether the rate is that of the limit, and not one of the key.
    pub(super) is_common: bool,
}

// === impl Asked ===

impl Asked {
    /// The name of the limit of the check at `index`.
    pub(super) fn name(&self, index: usize) -> Option<Arc<str>> {
        Some(self.limits[self.parts.get(index)?.index].name.clone())
    }

    /// The index of the check of `limit`; `None` if the call does not ask it.
    pub(super) fn check_of(&self, limit: &impl CostLimit) -> Option<usize> {
        let index = limit.find(&self.limits).ok()?;
        self.check_at(index)
    }

    /// The index of the check of the limit with this index.
    pub(super) fn check_at(&self, index: usize) -> Option<usize> {
        self.parts.iter().position(|part| part.index == index)
    }

    /// The description of the limit `name` for a caller that it refused, at the rate that the call had.
    pub(super) fn policy(&self, name: &str) -> Option<Policy> {
        let named = |part: &&AskedPart| *self.limits[part.index].name == *name;
        let part = self.parts.iter().find(named).or(self.parts.first())?;
        Some(self.limits[part.index].policy(&part.rated))
    }

    /// The checks at the rates that hold by now; `None` if these are those of the call.
    pub(super) fn renewed(&self) -> Option<Checks> {
        let now = |part: &AskedPart| self.limits[part.index].rated();
        let is_old = |part: &AskedPart| part.is_common && now(part).rule != part.rated.rule;
        if !self.parts.iter().any(is_old) {
            return None;
        }
        let renewed = self.checks.iter().zip(&self.parts).map(|(check, part)| {
            let (rated, check) = (now(part), check.clone());
            // A slower window may never have as many permits at once as the call costs.
            let fits = part.is_common && check.cost <= rated.most;
            if fits { rated.apply(check, self.max_wait) } else { check }
        });
        Some(renewed.collect())
    }
}
