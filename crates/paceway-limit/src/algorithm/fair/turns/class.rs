//! The tenants with requests of one priority, in the order of worst-case fair weighted fair queueing.

use super::{Claim, MAX_WEIGHT};
use crate::algorithm::ceil_div;
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

/// Virtual time that a permit takes for a tenant of weight 1. A weight divides it, rounded up: if all tenants are ahead of
/// the virtual time, it moves on to the first of them, so that no error adds up.
pub(super) const PERMIT: i64 = 1_000_000;
/// A virtual time beyond this is moved back to zero, together with all that depend on it.
pub(super) const LATEST: i64 = 1 << 47;
/// How far a tenant can be ahead of the virtual time, and the greatest cost that counts. They keep every virtual time below
/// 2^49, so that the script can sort six kinds of them in one sorted set.
const FAR: i64 = 1 << 46;
const MOST: i64 = 1_000_000;
/// The tenant of all those that come after the first [`MAX_TENANTS`](super::MAX_TENANTS).
const OTHERS: &str = "";

/// The requests of one priority.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Class {
    /// The virtual time.
    pub(super) now: i64,
    pub(super) tenants: BTreeMap<Arc<str>, Tenant>,
    /// Tenants with waiting requests: those that would have started, by their virtual finish, and the others by their start.
    pub(super) started: BTreeSet<(i64, Arc<str>)>,
    later: BTreeSet<(i64, Arc<str>)>,
    /// The sum of the weights of the tenants with waiting requests.
    pub(super) weight: i64,
    /// The permits of others that were served while this one waited for a higher one, less [`PATIENCE`](super::PATIENCE) times its own.
    pub(super) passed: i64,
    /// The tenant of each waiting request.
    pub(super) requests: BTreeMap<u64, Arc<str>>,
}

/// The requests of one tenant in a class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tenant {
    pub(super) weight: i64,
    /// The virtual start of the first waiting request; without any, the virtual finish of the last one.
    pub(super) start: i64,
    /// The numbers and costs of the waiting requests, in the order in which they came.
    pub(super) waiting: VecDeque<(u64, i64)>,
    is_started: bool,
    /// The permits that it was granted since it is known.
    pub(super) granted: i64,
}

// === impl Class ===

impl Class {
    /// Forgets tenants without waiting requests that are not ahead of their shares any more.
    pub(super) fn forget_idle(&mut self) {
        let now = self.now;
        self.tenants.retain(|_, tenant| !tenant.waiting.is_empty() || tenant.start > now);
    }

    pub(super) fn add(&mut self, claim: &Claim, is_full: bool) {
        let now = self.now;
        let name = if is_full { Arc::from(OTHERS) } else { claim.tenant.clone() };
        let fresh = || Tenant {
            weight: 1,
            start: now,
            waiting: VecDeque::new(),
            is_started: false,
            granted: 0,
        };
        self.requests.insert(claim.number, name.clone());
        let tenant = self.tenants.entry(name.clone()).or_insert_with(fresh);
        let weight = claim.weight.clamp(1, MAX_WEIGHT);
        let (first, was) = (tenant.waiting.front().map(|(number, _)| *number), tenant.weight);
        let is_first = first.is_some_and(|first| claim.number < first);
        if first.is_some() && !is_first && was == weight {
            return tenant.waiting.push_back((claim.number, claim.cost));
        }
        self.leave(&name);
        if let Some(tenant) = self.tenants.get_mut(&name) {
            if is_first {
                tenant.waiting.push_front((claim.number, claim.cost));
            } else {
                tenant.waiting.push_back((claim.number, claim.cost));
            }
            match first {
                None => (tenant.start, self.weight) = (tenant.start.max(now), self.weight + weight),
                Some(_) => self.weight += weight - was,
            }
            tenant.weight = weight;
        }
        self.enter(&name);
    }

    pub(super) fn first(&mut self) -> Option<u64> {
        self.advance();
        let (_, name) = self.started.first()?;
        Some(self.tenants.get(name)?.waiting.front()?.0)
    }

    /// Moves the virtual time at least to the first start, and lets all tenants start whose start has come.
    pub(super) fn advance(&mut self) {
        if self.started.is_empty()
            && let Some((start, _)) = self.later.first()
        {
            self.now = self.now.max(*start);
        }
        while let Some((start, name)) = self.later.first()
            && *start <= self.now
        {
            let name = name.clone();
            self.leave(&name);
            self.enter(&name);
        }
    }

    /// Removes a request that takes a slot, and returns its cost.
    pub(super) fn serve(&mut self, number: u64) -> Option<i64> {
        if !self.requests.contains_key(&number) {
            return None;
        }
        self.advance();
        let (name, at) = self.take(number)?;
        self.leave(&name);
        let all = self.weight.max(1);
        let tenant = self.tenants.get_mut(&name)?;
        let (_, cost) = tenant.waiting.remove(at)?;
        tenant.start = (tenant.start + tenant.span(cost)).min(self.now + FAR);
        tenant.granted += cost;
        self.now += cost.min(MOST) * PERMIT / all;
        self.left(&name);
        if self.now >= LATEST {
            self.begin_again();
        }
        Some(cost)
    }

    pub(super) fn remove(&mut self, number: u64) -> Option<()> {
        let (name, at) = self.take(number)?;
        self.leave(&name);
        self.tenants.get_mut(&name)?.waiting.remove(at)?;
        self.left(&name);
        Some(())
    }

    pub(super) fn set_lead(&mut self, name: &Arc<str>, lead: i64) {
        self.leave(name);
        if let Some(tenant) = self.tenants.get_mut(name) {
            tenant.start = self.now + lead;
        }
        self.enter(name);
    }

    /// Sorts a tenant in again after one of its requests has left.
    fn left(&mut self, name: &Arc<str>) {
        let Some(tenant) = self.tenants.get(name) else { return };
        if !tenant.waiting.is_empty() {
            return self.enter(name);
        }
        self.weight -= tenant.weight;
        if self.weight == 0 {
            // No tenant waits any more, so none has an advantage to lose.
            (self.now, self.passed) = (0, 0);
            self.tenants.clear();
        } else if tenant.start <= self.now {
            self.tenants.remove(name);
        }
    }

    /// Forgets where a request waits: returns its tenant and its position there.
    fn take(&mut self, number: u64) -> Option<(Arc<str>, usize)> {
        let name = self.requests.remove(&number)?;
        let waiting = &self.tenants.get(&name)?.waiting;
        let at = waiting.binary_search_by_key(&number, |(number, _)| *number).ok()?;
        Some((name, at))
    }

    pub(super) fn enter(&mut self, name: &Arc<str>) {
        let now = self.now;
        let Some(tenant) = self.tenants.get_mut(name) else { return };
        tenant.is_started = tenant.start <= now;
        let key = tenant.key(name);
        if tenant.is_started {
            self.started.insert(key)
        } else {
            self.later.insert(key)
        };
    }

    pub(super) fn leave(&mut self, name: &Arc<str>) {
        let Some(tenant) = self.tenants.get(name) else { return };
        let key = tenant.key(name);
        if tenant.is_started {
            self.started.remove(&key)
        } else {
            self.later.remove(&key)
        };
    }

    /// Moves the virtual time back to zero, and all starts with it.
    fn begin_again(&mut self) {
        let by = self.now;
        self.now = 0;
        (self.started, self.later) = (BTreeSet::new(), BTreeSet::new());
        let mut names = Vec::new();
        for (name, tenant) in &mut self.tenants {
            tenant.start = (tenant.start - by).max(0);
            if !tenant.waiting.is_empty() {
                names.push(name.clone());
            }
        }
        names.iter().for_each(|name| self.enter(name));
    }
}

// === impl Tenant ===

impl Tenant {
    /// The virtual time that a request takes.
    fn span(&self, cost: i64) -> i64 {
        cost.min(MOST) * ceil_div(PERMIT, self.weight)
    }

    /// Where it is sorted in: by the virtual finish of its first request if that would have started, else by the start.
    fn key(&self, name: &Arc<str>) -> (i64, Arc<str>) {
        let cost = self.waiting.front().map_or(0, |(_, cost)| *cost);
        let finish = self.start + self.span(cost);
        (if self.is_started { finish } else { self.start }, name.clone())
    }
}
