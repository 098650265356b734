//! The order of the requests that wait for a limiter: their tenants and priorities. Decides nothing.

use super::{History, Limiter, MS, Micros, Route, SECOND, What, choice};
use fastrand::Rng;
use paceway::algorithm::{
    Algorithm, Rule, TokenBucket,
    fair::{Floor, Floors, Priority, Turn},
};

/// Requests with this budget can wait for as long as any history lasts.
const PATIENT: Micros = 40 * SECOND;

#[derive(Debug, Clone)]
pub(crate) struct Turns {
    /// The weights of the tenants. A request belongs to the one of its number.
    pub(crate) weights: Vec<i64>,
    /// The priorities of the requests, by route.
    pub(crate) priorities: Vec<Priority>,
    pub(crate) floors: Floors,
}

// === impl Turns ===

impl Turns {
    pub(crate) fn tenant(&self, number: usize) -> usize {
        number % self.weights.len()
    }

    pub(crate) fn turn(&self, route: usize, number: usize) -> Turn {
        let tenant = self.tenant(number);
        Turn::new(tenant.to_string(), self.weights[tenant], self.priorities[route])
    }

    /// The permits of a limiter that any of its requests leaves to others.
    pub(crate) fn permits_kept(&self, limiter: &Limiter) -> i64 {
        self.floors.kept_from(Priority::Low, limiter.rule.limit())
    }
}

// === impl Route ===

impl Route {
    /// Whether its requests can wait for as long as they have to, so that their order is that of their turns alone.
    pub(crate) fn is_patient(&self) -> bool {
        self.budget == PATIENT
    }
}

/// One limiter; a route whose requests wait, others beside it.
pub(super) fn take_turns(history: &mut History, rng: &mut Rng) {
    let mut limiter = Limiter::draw(rng);
    let permits = rng.i64(1..=2);
    let has_floor = rng.bool() && limiter.rule.limit() > permits + 1;
    let has_floor = has_floor && !matches!(limiter.rule, Rule::Rate(Algorithm::LeakyBucket(_)));
    match limiter.rule {
        Rule::Permits(rule) => limiter.rule = rule.with_turns(true).into(),
        // 50 ms before a slot its permit is taken: at 24/s a burst of 4 with a floor of 1 served 12 users of 15.
        Rule::Rate(Algorithm::TokenBucket(_)) if has_floor => {
            let ahead = 100 * MS * limiter.count / limiter.period;
            let burst = permits + ahead + rng.i64(4..8);
            let bucket = TokenBucket::new(limiter.count, limiter.period, burst);
            limiter.rule = bucket.map_or(limiter.rule, Rule::from);
        }
        Rule::Rate(_) => {}
    }
    let hold = *choice(rng, &[20, 100]) * MS;
    let spacing = limiter.spacing(hold);
    let mut route = |budget, load: i64| Route {
        limiters: vec![0],
        keys: 1,
        cost: 1,
        uses: 1..=1,
        budget,
        hold,
        every: spacing * 100 / load,
        leave: *choice(rng, &[0, 0, 30]),
    };
    history.routes = vec![route(PATIENT, 170), route(PATIENT, 50), route(0, 20)];
    for route in [0, 2] {
        history.routes[route].leave = 0;
    }
    if rng.bool() {
        history.routes[1].budget = *choice(rng, &[2 * spacing, SECOND]);
    }
    let second = *choice(rng, &[Priority::Low, Priority::Normal, Priority::High]);
    let first = *choice(rng, &[Priority::Low, Priority::Normal]);
    let second = if has_floor { second.max(Priority::Normal) } else { second };
    let floors = Floors { high: has_floor.then_some(Floor::Permits(permits)), normal: None };
    let tenants = rng.usize(1..=4);
    let weights = (0..tenants).map(|_| *choice(rng, &[1, 1, 2, 5])).collect();
    let priorities = vec![first, second, Priority::High];
    history.turns = Some(Turns { weights, priorities, floors });
    history.limiters = vec![limiter];
    history.has_blocks = false;
    history.throttles.clear();
    // Requests that wait for long outlast a clock that is set back.
    history.faults.retain(|fault| !matches!(fault.what, What::Step(_)));
}
