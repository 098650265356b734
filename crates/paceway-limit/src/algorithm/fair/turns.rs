//! The order in which waiting requests take the slots of a limiter, whatever these are.
//!
//! Among the tenants of one priority it is worst-case fair weighted fair queueing (WF²Q+, Bennett and Zhang, 1997): each
//! tenant has a virtual time at which its first request would start and finish if all tenants were served at once, each at
//! its weight's share. The next request is the one that would finish first among those that would have started. So in any
//! stretch of slots a tenant is at most one request ahead of its share or short of it, and a newcomer is served within its
//! share whatever others have waiting. Start-time fair queueing needs half of the state, but with weights 4 : 1 : 1 it
//! grants the first tenant four slots in a row.
//!
//! A tenant that leaves keeps its virtual finish until the virtual time has passed it, so that no tenant gains by leaving.
//! All numbers are integers below 2^53, as in Lua.

use crate::algorithm::ceil_div;
use smallvec::SmallVec;
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

/// Virtual time that a permit takes for a tenant of weight 1. A weight divides it, rounded up: if all tenants are ahead of
/// the virtual time, it moves on to the first of them, so that no error adds up.
const PERMIT: i64 = 1_000_000;
/// The greatest weight of a tenant.
pub const MAX_WEIGHT: i64 = 1_000;
/// The tenants of one limiter that have a turn of their own. Further ones share one.
pub const MAX_TENANTS: usize = 1_024;
/// A lower priority that waits is served once for so many permits of others: it keeps a twentieth.
const PATIENCE: i64 = 19;
/// A virtual time beyond this is moved back to zero, together with all that depend on it.
const LATEST: i64 = 1 << 47;
/// How far a tenant can be ahead of the virtual time, and the greatest cost that counts. They keep every virtual time below
/// 2^49, so that the script can sort six kinds of them in one sorted set.
const FAR: i64 = 1 << 46;
const MOST: i64 = 1_000_000;
/// The tenant of all those that come after the first [`MAX_TENANTS`].
const OTHERS: &str = "";

/// The order in which requests of different routes are served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// Before all others, except for a twentieth of the slots for each of the lower two while it waits.
    High,
    /// The priority of a route without another.
    Normal,
    /// After all others.
    Low,
}

// === impl Priority ===

impl Priority {
    /// All priorities, the highest first.
    pub const ALL: [Self; 3] = [Self::High, Self::Normal, Self::Low];

    /// The name in the configuration and in metrics, such as `high`.
    pub fn name(self) -> &'static str {
        match self {
            Self::High => "high",
            Self::Normal => "normal",
            Self::Low => "low",
        }
    }
}

/// A request that waits, as the order sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The number of the request. Later requests have greater numbers.
    pub number: u64,
    /// The tenant that shares are counted for.
    pub tenant: Arc<str>,
    /// The share of the tenant, from 1 to [`MAX_WEIGHT`]. The weight of a tenant's last request counts.
    pub weight: i64,
    /// The priority of the request.
    pub priority: Priority,
    /// The permits that the request costs, at least 1.
    pub cost: i64,
}

/// The requests that wait for one limiter, and whose turn it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Turns {
    classes: [Class; 3],
}

/// The requests of one priority.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Class {
    /// The virtual time.
    now: i64,
    tenants: BTreeMap<Arc<str>, Tenant>,
    /// Tenants with waiting requests: those that would have started, by their virtual finish, and the others by their start.
    started: BTreeSet<(i64, Arc<str>)>,
    later: BTreeSet<(i64, Arc<str>)>,
    /// The sum of the weights of the tenants with waiting requests.
    weight: i64,
    /// The permits of others that were served while this one waited for a higher one, less [`PATIENCE`] times its own.
    passed: i64,
    /// The tenant of each waiting request.
    requests: BTreeMap<u64, Arc<str>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Tenant {
    weight: i64,
    /// The virtual start of the first waiting request; without any, the virtual finish of the last one.
    start: i64,
    /// The numbers and costs of the waiting requests, in the order in which they came.
    waiting: VecDeque<(u64, i64)>,
    is_started: bool,
    /// The permits that it was granted since it is known.
    granted: i64,
}

// === impl Turns ===

impl Turns {
    /// How many requests wait.
    pub fn len(&self) -> usize {
        self.classes.iter().map(|class| class.requests.len()).sum()
    }

    /// Whether no request waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the request `number` waits.
    pub fn has(&self, number: u64) -> bool {
        self.classes.iter().any(|class| class.requests.contains_key(&number))
    }

    /// Adds a request that waits from now on. One whose number is smaller than those of its tenant comes before them.
    pub fn add(&mut self, claim: &Claim) {
        let class = claim.priority as usize;
        let is_new = !self.classes[class].tenants.contains_key(&claim.tenant);
        if is_new && self.tenants() >= MAX_TENANTS {
            self.classes.iter_mut().for_each(Class::forget_idle);
        }
        let is_full = is_new && self.tenants() >= MAX_TENANTS;
        self.classes[class].add(claim, is_full);
    }

    /// The number of the request whose turn it is; `None` if none waits.
    pub fn first(&mut self) -> Option<u64> {
        let class = self.class()?;
        self.classes[class].first()
    }

    /// The first requests of the tenants whose turns come first among those that would have started, `most` at most.
    pub fn firsts(&mut self, most: usize) -> SmallVec<[u64; 8]> {
        let Some(class) = self.class() else { return SmallVec::new() };
        let class = &mut self.classes[class];
        class.advance();
        let tenants =
            class.started.iter().take(most).filter_map(|(_, name)| class.tenants.get(name));
        tenants.filter_map(|tenant| Some(tenant.waiting.front()?.0)).collect()
    }

    /// The tenants with waiting requests, and those that are ahead of their shares: priority, name, weight, number of
    /// waiting requests, permits granted.
    pub fn known(&self) -> impl Iterator<Item = (Priority, &Arc<str>, i64, usize, i64)> {
        Priority::ALL.into_iter().zip(&self.classes).flat_map(|(priority, class)| {
            class.tenants.iter().map(move |(name, tenant)| {
                (priority, name, tenant.weight, tenant.waiting.len(), tenant.granted)
            })
        })
    }

    /// The numbers of all requests in their order, beginning with [`Self::first`], if no other comes.
    pub fn order(&self) -> impl Iterator<Item = u64> + use<> {
        let mut rest = self.clone();
        std::iter::from_fn(move || {
            let number = rest.first()?;
            rest.serve(number);
            Some(number)
        })
    }

    /// Records that the request `number` takes a slot, in its turn or out of turn. False if it does not wait.
    pub fn serve(&mut self, number: u64) -> bool {
        let highest = self.highest();
        let Some((class, cost)) = self.find_map(|class| class.serve(number)) else { return false };
        for (i, other) in self.classes.iter_mut().enumerate() {
            let is_lower = highest.is_some_and(|highest| i > highest) && other.weight > 0;
            other.passed = match i == class {
                true if is_lower => other.passed.min(PATIENCE * cost) - PATIENCE * cost,
                false if is_lower => other.passed + cost,
                _ => 0,
            };
        }
        true
    }

    /// Removes a request that waits no longer. False if it did not wait.
    pub fn remove(&mut self, number: u64) -> bool {
        self.find_map(|class| class.remove(number)).is_some()
    }

    /// How many tenants are known. Those without a waiting request count for as long as they are ahead of their share.
    pub fn tenants(&self) -> usize {
        self.classes.iter().map(|class| class.tenants.len()).sum()
    }

    /// How many permits all requests together have for one that a tenant of this weight and priority has, at least 2. The waiting
    /// requests of this tenant do not count.
    pub fn permits_between(&self, tenant: &Arc<str>, weight: i64, priority: Priority) -> i64 {
        if self.highest().is_some_and(|highest| priority as usize > highest) {
            return 1 + PATIENCE;
        }
        let class = &self.classes[priority as usize];
        let own = class.tenants.get(tenant).filter(|own| !own.waiting.is_empty());
        let others = class.weight - own.map_or(0, |own| own.weight);
        1 + ceil_div(others, weight.clamp(1, MAX_WEIGHT)).max(1)
    }

    /// The highest priority with a waiting request, or a lower one that has waited for long enough.
    fn class(&self) -> Option<usize> {
        let highest = self.highest()?;
        let due = (highest + 1..self.classes.len()).filter(|i| self.classes[*i].passed >= PATIENCE);
        Some(due.max_by_key(|i| self.classes[*i].passed).unwrap_or(highest))
    }

    fn highest(&self) -> Option<usize> {
        self.classes.iter().position(|class| class.weight > 0)
    }

    fn find_map<T>(&mut self, find: impl Fn(&mut Class) -> Option<T>) -> Option<(usize, T)> {
        self.classes.iter_mut().enumerate().find_map(|(i, class)| Some((i, find(class)?)))
    }
}

// === impl Class ===

impl Class {
    /// Forgets tenants without waiting requests that are not ahead of their shares any more.
    fn forget_idle(&mut self) {
        let now = self.now;
        self.tenants.retain(|_, tenant| !tenant.waiting.is_empty() || tenant.start > now);
    }

    fn add(&mut self, claim: &Claim, is_full: bool) {
        let now = self.now;
        let name = match is_full {
            true => Arc::from(OTHERS),
            false => claim.tenant.clone(),
        };
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
            match is_first {
                true => tenant.waiting.push_front((claim.number, claim.cost)),
                false => tenant.waiting.push_back((claim.number, claim.cost)),
            }
            match first {
                None => (tenant.start, self.weight) = (tenant.start.max(now), self.weight + weight),
                Some(_) => self.weight += weight - was,
            }
            tenant.weight = weight;
        }
        self.enter(&name);
    }

    fn first(&mut self) -> Option<u64> {
        self.advance();
        let (_, name) = self.started.first()?;
        Some(self.tenants.get(name)?.waiting.front()?.0)
    }

    /// Moves the virtual time at least to the first start, and lets all tenants start whose start has come.
    fn advance(&mut self) {
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
    fn serve(&mut self, number: u64) -> Option<i64> {
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

    fn remove(&mut self, number: u64) -> Option<()> {
        let (name, at) = self.take(number)?;
        self.leave(&name);
        self.tenants.get_mut(&name)?.waiting.remove(at)?;
        self.left(&name);
        Some(())
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

    fn enter(&mut self, name: &Arc<str>) {
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

    fn leave(&mut self, name: &Arc<str>) {
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

#[cfg(test)]
mod tests;
