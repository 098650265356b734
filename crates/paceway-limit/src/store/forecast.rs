//! When calls would be sent, by the rules of decisions, on a copy of the states of their limiters. It charges nothing, and the
//! store that was copied knows nothing of it.

mod cycle;

use super::{Check, Checks, TenantLevel, Turn, memory::MemoryStore, turn::of_queue};
use crate::algorithm::{
    MAX_BUDGET, Micros,
    fair::{Claim, Turns},
};
use cycle::Cycle;

/// The number of calls after which a cycle is looked for. The next looks are after a quarter more each.
const FIRST_LOOK: usize = 1024;

/// The states of the limiters of a request at one instant, in a memory of their own.
#[derive(Debug)]
pub struct StateCopy {
    now: Micros,
    states: MemoryStore,
    /// The instants of the slots of the requests that wait for their turns.
    slots: Vec<Micros>,
}

/// Calls that are asked for one after another, each as soon as a limiter can tell its instant.
#[derive(Debug, Clone, Copy)]
pub struct ForecastAsk<'t> {
    /// How many calls, at least 1.
    pub count: u32,
    /// How long from now nothing is sent for another reason, such as the pause of an operator, µs.
    pub closed: Micros,
    /// The tenants that wait, if the limiter shares its slots among tenants.
    pub tenants: &'t [TenantLevel],
}

/// The instants at which calls would be sent, µs from the instant of the copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forecast {
    /// The instant of the first one.
    pub first: Micros,
    /// The instant of the last one.
    pub last: Micros,
}

// === impl StateCopy ===

impl StateCopy {
    pub(crate) fn new(now: Micros, states: MemoryStore, slots: Vec<Micros>) -> Self {
        Self { now, states, slots }
    }

    /// Computes when calls with these limiters would be sent, if no others come. `checks_at` returns the checks of one call as
    /// they are at an instant, µs of the store's clock; all of them name the states that were copied. A copy tells this once,
    /// because the calls are charged to it.
    ///
    /// Where the limiter has turns, the calls and those that wait now share the slots by the weights of their tenants, as if
    /// all cost the same.
    pub fn forecast(self, ask: ForecastAsk<'_>, checks_at: impl Fn(Micros) -> Checks) -> Forecast {
        let checks = checks_at(self.now);
        let own = self.instants(ask, &checks_at);
        let q = of_queue(&checks).filter(|_| !self.slots.is_empty());
        let turn = q.and_then(|q| Some((checks[q].turn.as_ref()?, checks[q].cost)));
        let [first, last] = match turn {
            Some((turn, cost)) => self.in_turn(&own, turn, cost, ask.tenants),
            None => [own.first(), own.last()].map(|at| at.copied().unwrap_or(self.now)),
        };
        Forecast { first: first - self.now, last: last - self.now }
    }

    /// The instants of the calls, first come, first served.
    fn instants(&self, ask: ForecastAsk<'_>, checks_at: impl Fn(Micros) -> Checks) -> Vec<Micros> {
        let mut now = self.now + ask.closed.max(0);
        let mut checks = checks_at(now);
        // The permits of a rate that is being found depend on those that are used by then.
        let is_found = checks.iter().any(|check: &Check| check.bounds.is_some());
        let budget = if is_found { 0 } else { MAX_BUDGET };
        // A gate has another rate at each instant.
        let is_steady = !is_found && checks.iter().all(|check| !self.states.has_gate(check));
        let (count, mut look) = (ask.count as usize, FIRST_LOOK);
        let mut all = Vec::new();
        while all.len() < count {
            if all.len() == look {
                if let Some(Cycle { calls, span }) = Cycle::of(&all, &checks).filter(|_| is_steady)
                {
                    (look..count).for_each(|i| all.push(all[i - calls] + span));
                    break;
                }
                look += look / 4;
            }
            let decision = self.states.decide_at(now, &checks, budget, None);
            if decision.admitted {
                all.push(now + decision.wait);
            } else {
                now += decision.wait.max(1);
                checks = checks_at(now);
            }
        }
        all.sort_unstable();
        all
    }

    /// The instants of the first and of the last of the calls when they take turns with those that wait.
    fn in_turn(
        &self,
        own: &[Micros],
        turn: &Turn,
        cost: i64,
        tenants: &[TenantLevel],
    ) -> [Micros; 2] {
        // A call that can be sent at once waits for no turn.
        let at_once = own.partition_point(|at| *at <= self.now);
        if at_once == own.len() {
            return [self.now; 2];
        }
        let mut slots: Vec<_> =
            self.slots.iter().chain(&own[at_once..]).map(|at| self.now.max(*at)).collect();
        slots.sort_unstable();
        let (mut turns, mut number) = (Turns::default(), 0);
        let mut wait = |turn: &Turn, count: usize| {
            for _ in 0..count {
                number += 1;
                let Turn { tenant, weight, priority } = turn.clone();
                turns.add(&Claim { number, tenant, weight, priority, cost });
            }
            number
        };
        let mut before = 0;
        let mut left = self.slots.len();
        for TenantLevel { tenant, weight, priority, waiting, .. } in tenants {
            let count = usize::try_from(*waiting).unwrap_or(left).min(left);
            left -= count;
            before = wait(&Turn::new(tenant.clone(), *weight, *priority), count);
        }
        let end = wait(turn, own.len() - at_once);
        for TenantLevel { tenant, priority, lead, .. } in tenants {
            turns.set_lead(tenant, *priority, *lead);
        }
        let mut found = [(at_once > 0).then_some(self.now); 2];
        for at in slots {
            let Some(number) = turns.first() else { break };
            turns.serve(number);
            if number > before {
                found = [found[0].or(Some(at)), Some(at)];
            }
            if number == end {
                break;
            }
        }
        found.map(|at| at.unwrap_or(self.now))
    }
}
