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

mod class;

use crate::algorithm::ceil_div;
use class::Class;
use std::sync::Arc;

/// The greatest weight of a tenant.
pub const MAX_WEIGHT: i64 = 1_000;
/// The tenants of one limiter that have a turn of their own. Further ones share one.
pub const MAX_TENANTS: usize = 1_024;
/// A lower priority that waits is served once for so many permits of others: it keeps a twentieth.
const PATIENCE: i64 = 19;
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

/// A tenant as operators see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KnownTenant<'t> {
    /// The priority of its requests.
    pub priority: Priority,
    /// Its name.
    pub name: &'t Arc<str>,
    /// The weight of its last request.
    pub weight: i64,
    /// How many of its requests wait.
    pub waiting: usize,
    /// The permits that it was granted since it is known.
    pub granted: i64,
    /// How far it is ahead of its share, in virtual time.
    pub lead: i64,
}

/// The requests that wait for one limiter, and whose turn it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Turns {
    classes: [Class; 3],
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
        self.priority_of(number).is_some()
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

    /// The first requests, `each` at most, of the tenants whose turns come first among those that would have started, `most`
    /// at most.
    pub fn firsts(&mut self, most: usize, each: usize) -> impl Iterator<Item = u64> {
        let class = self.class().map(|class| &mut self.classes[class]);
        let tenants = class.into_iter().flat_map(move |class| {
            class.advance();
            let started = class.started.iter().take(most);
            started.filter_map(|(_, name)| class.tenants.get(name))
        });
        tenants.flat_map(move |tenant| tenant.waiting.iter().take(each).map(|(number, _)| *number))
    }

    /// The tenants with waiting requests, and those that are ahead of their shares.
    pub fn known(&self) -> impl Iterator<Item = KnownTenant<'_>> {
        Priority::ALL.into_iter().zip(&self.classes).flat_map(|(priority, class)| {
            class.tenants.iter().map(move |(name, tenant)| KnownTenant {
                priority,
                name,
                weight: tenant.weight,
                waiting: tenant.waiting.len(),
                granted: tenant.granted,
                lead: tenant.start - class.now,
            })
        })
    }

    /// Lets a tenant with waiting requests be ahead of its share as it was in other turns.
    pub fn set_lead(&mut self, tenant: &Arc<str>, priority: Priority, lead: i64) {
        self.classes[priority as usize].set_lead(tenant, lead);
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
        let highest = self.highest().map(|highest| highest as usize);
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
        if self.highest().is_some_and(|highest| priority > highest) {
            return 1 + PATIENCE;
        }
        let class = &self.classes[priority as usize];
        let own = class.tenants.get(tenant).filter(|own| !own.waiting.is_empty());
        let others = class.weight - own.map_or(0, |own| own.weight);
        1 + ceil_div(others, weight.clamp(1, MAX_WEIGHT)).max(1)
    }

    /// The highest priority with a waiting request, or a lower one that has waited for long enough.
    fn class(&self) -> Option<usize> {
        let highest = self.highest()? as usize;
        let due = (highest + 1..self.classes.len()).filter(|i| self.classes[*i].passed >= PATIENCE);
        Some(due.max_by_key(|i| self.classes[*i].passed).unwrap_or(highest))
    }

    /// The highest priority of the requests that wait.
    fn highest(&self) -> Option<Priority> {
        let waits = |priority: &Priority| self.classes[*priority as usize].weight > 0;
        Priority::ALL.into_iter().find(waits)
    }

    /// The highest priority of the requests that wait, and of one that has had its turn.
    pub fn most_urgent(&self, priority: Priority) -> Priority {
        self.highest().map_or(priority, |highest| highest.min(priority))
    }

    /// The priority of the request `number`; `None` if it does not wait.
    pub fn priority_of(&self, number: u64) -> Option<Priority> {
        let waits =
            |priority: &Priority| self.classes[*priority as usize].requests.contains_key(&number);
        Priority::ALL.into_iter().find(waits)
    }

    fn find_map<T>(&mut self, find: impl Fn(&mut Class) -> Option<T>) -> Option<(usize, T)> {
        self.classes.iter_mut().enumerate().find_map(|(i, class)| Some((i, find(class)?)))
    }
}

#[cfg(test)]
mod tests;
