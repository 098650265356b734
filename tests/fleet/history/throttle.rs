//! The times in which the upstream refuses the calls of a route. Decides nothing.

use super::{History, MS, Micros, SECOND, choice};
use fastrand::Rng;

/// By this time a refusal of a call has reached the store.
const ANSWERED: Micros = 50 * MS;

/// The upstream refuses the calls of a route, because other programs have used its quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct UpstreamThrottle {
    pub(crate) route: usize,
    pub(crate) at: Micros,
    /// The end of the refusals, as the answers name it.
    pub(crate) until: Micros,
    /// The refusals end sooner than the answers say, and an operator ends the pause at this instant.
    pub(crate) ended: Option<Micros>,
}

// === impl UpstreamThrottle ===

impl UpstreamThrottle {
    /// The instant from which on calls may be sent again.
    pub(crate) fn end(&self) -> Micros {
        self.ended.unwrap_or(self.until)
    }
}

// === impl History ===

impl History {
    /// The end of a pause of `route` that is to last until `until`: an operator may end it.
    pub(crate) fn freed(&self, route: usize, until: Micros) -> Micros {
        let is_of = |it: &&UpstreamThrottle| it.route == route && it.until == until;
        self.throttles.iter().find(is_of).map_or(until, UpstreamThrottle::end)
    }

    /// The end of the refusals, as the answer to a call says that the upstream receives at `at`.
    pub(crate) fn refused_until(&self, route: usize, at: Micros) -> Option<Micros> {
        // The answers to the last refused calls come before the operator ends the pause.
        let last = |it: &UpstreamThrottle| it.ended.map_or(it.until, |ended| ended - ANSWERED);
        let refuses = |it: &&UpstreamThrottle| it.route == route && (it.at..last(it)).contains(&at);
        self.throttles.iter().filter(refuses).map(|it| it.until).max()
    }
}

/// Draws the refusals of the upstream, which a third of the histories has. Without them a seed is the same history.
pub(super) fn throttles(seed: u64, routes: usize, load: Micros) -> Vec<UpstreamThrottle> {
    if seed / 12 % 3 != 1 {
        return Vec::new();
    }
    let mut rng = Rng::with_seed(!seed);
    let mut draw = |_| {
        let at = rng.i64(SECOND..load - SECOND);
        let lasts = *choice(&mut rng, &[150, 600, 1500, 3000]) * MS;
        let (route, until) = (rng.usize(0..routes), (at + lasts).min(load));
        UpstreamThrottle { route, at, until, ended: None }
    };
    (0..1 + seed / 36 % 2).map(&mut draw).collect()
}
