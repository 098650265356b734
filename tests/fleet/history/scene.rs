//! The scene of a history: a limit or an event that met a defect once. A seventh of the seeds has one; without it a seed is
//! the same history.

use super::{
    Fault, Gateway, History, Limiter, MS, Micros, Quota, Route, SECOND, UpstreamThrottle, Weather,
    What, choice, key_rates, turns,
};
use fastrand::Rng;

/// The scene of a history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scene {
    Plain,
    /// A gateway that serves nothing dies and starts again and again.
    IdleLoop,
    /// The same with a gateway that serves requests.
    BusyLoop,
    /// Routes use any of the limiters, in any order.
    Lists,
    /// Requests come within a second and wait. Their calls use less than they reserve.
    Settled,
    /// Calls use more than they reserve, and no request waits.
    Owed,
    /// Two gateways have configurations of their own: no request of the one waits, and those of the other wait for long.
    Files,
    /// The upstream's refusals end sooner than it says. An operator knows, and resets the limiters while requests wait.
    Freed,
    /// A limiter of a long period beside a short one, and a pause that is much shorter than that period.
    Long,
    /// The upstream has a lower quota than the limiter, while requests wait and leave, and calls use less than they reserve.
    Quota,
    /// The requests of a limiter take turns: tenants with weights, priorities, and floors.
    Turns,
    /// The keys of a limiter have rates of their own, which may change.
    KeyRates,
    /// Requests take the account whose slot is the earliest.
    Accounts,
}

// === impl Scene ===

impl Scene {
    pub(crate) const ALL: [Self; 9] = [
        Self::IdleLoop,
        Self::BusyLoop,
        Self::Lists,
        Self::Settled,
        Self::Owed,
        Self::Files,
        Self::Freed,
        Self::Long,
        Self::Quota,
    ];
    /// The scenes that no seed draws by itself, so that those which were found stay what they were.
    pub(crate) const NAMED: [Self; 3] = [Self::Turns, Self::KeyRates, Self::Accounts];

    pub(super) fn of(seed: u64) -> Self {
        match seed / 12 % 7 == 1 {
            true => Self::ALL[usize::try_from(seed / 84).expect("small") % Self::ALL.len()],
            false => Self::Plain,
        }
    }

    /// Whether the requests of a route have all slots of its limiters. A gateway that dies takes the slots of its requests with it,
    /// routes that use one limiter share it, and unused permits come back late.
    pub(crate) fn serves_all(self) -> bool {
        matches!(self, Self::Plain | Self::IdleLoop | Self::Freed | Self::Long)
    }

    /// The weather of a history that would have had another one.
    pub(crate) fn weather(self, other: Weather) -> Weather {
        match self {
            Self::Plain | Self::Lists => other,
            Self::Turns if other == Weather::Rough => other,
            _ => Weather::Calm,
        }
    }
}

/// Changes a history that was drawn without its scene.
pub(super) fn arrange(history: &mut History) {
    let mut rng = Rng::with_seed(history.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    match history.scene {
        Scene::Plain => {}
        Scene::IdleLoop | Scene::BusyLoop => die_again_and_again(history, &mut rng),
        Scene::Lists => list_in_any_order(history, &mut rng),
        Scene::Settled => reserve_too_much(history, &mut rng),
        Scene::Owed => reserve_too_little(history, &mut rng),
        Scene::Files => configure_each(history, &mut rng),
        Scene::Freed => end_a_pause(history, &mut rng),
        Scene::Long => pause_a_long_period(history, &mut rng),
        Scene::Quota => have_a_quota(history, &mut rng),
        Scene::Turns => turns::take_turns(history, &mut rng),
        Scene::KeyRates => key_rates::rate_by_key(history, &mut rng),
        Scene::Accounts => key_rates::have_accounts(history, &mut rng),
    }
}

/// The last gateway starts again and again. The others are always there.
fn die_again_and_again(history: &mut History, rng: &mut Rng) {
    let ways = &mut history.gateways;
    ways.iter_mut().for_each(|it| it.start = it.start.min(20 * MS));
    ways.push(Gateway { workers: 1, start: 0, ..ways[0].clone() });
    history.load = 8 * SECOND;
    history.throttles.clear();
    let lives = rng.i64(400..2500) * MS;
    // After 1.5 s the others miss a gateway.
    let is_dead = *choice(rng, &[30, 600, 2500, 3500]) * MS;
    let what = What::Loop(history.gateways.len() - 1, lives, is_dead);
    let at = rng.i64(0..SECOND);
    history.faults = vec![Fault { at, lasts: history.load - at, what }];
}

/// Two or three limiters, and three or four routes with some of them.
fn list_in_any_order(history: &mut History, rng: &mut Rng) {
    if history.limiters.len() < 2 || rng.bool() {
        history.limiters.push(Limiter::draw(rng));
    }
    history.throttles.clear();
    let limiters = &history.limiters;
    let mut route = |_| {
        let mut list: Vec<usize> = (0..limiters.len()).collect();
        rng.shuffle(&mut list);
        list.truncate(rng.usize(1..=limiters.len()));
        let hold = rng.i64(5..300) * MS;
        let slowest = list.iter().map(|one| limiters[*one].spacing(hold)).max();
        let period = list.iter().map(|one| limiters[*one].period).max().unwrap_or(SECOND);
        Route {
            limiters: list,
            keys: 1,
            cost: 1,
            uses: 1..=1,
            budget: *choice(rng, &[0, period / 2, 2 * period]),
            hold,
            every: slowest.unwrap_or(SECOND),
            leave: *choice(rng, &[0, 0, 20]),
        }
    };
    history.routes = (0..4).map(&mut route).collect();
}

/// A limiter of tokens alone.
fn count_tokens(history: &mut History, limiter: Limiter) {
    history.gateways.iter_mut().for_each(|it| it.start = it.start.min(20 * MS));
    history.throttles.clear();
    history.has_blocks = false;
    history.limiters = vec![limiter];
}

/// As many requests as the limiter can let through in four seconds.
fn reserve_too_much(history: &mut History, rng: &mut Rng) {
    let limiter = Limiter::tokens(rng);
    let cost = limiter.count / 10;
    history.load = 12 * SECOND;
    history.routes = vec![Route {
        limiters: vec![0],
        keys: 1,
        cost,
        uses: cost / 4..=cost / 2,
        budget: 30 * SECOND,
        hold: rng.i64(5..20) * MS,
        every: limiter.spacing(0) * cost * 3 / 8 / 4,
        leave: *choice(rng, &[0, 0, 20]),
    }];
    count_tokens(history, limiter);
}

fn reserve_too_little(history: &mut History, rng: &mut Rng) {
    let limiter = Limiter::tokens(rng);
    let cost = limiter.count / 12;
    history.load = 8 * SECOND;
    history.routes = vec![Route {
        limiters: vec![0],
        keys: 1,
        cost,
        uses: cost..=6 * cost,
        budget: 0,
        hold: rng.i64(5..200) * MS,
        every: limiter.spacing(0) * cost,
        leave: 0,
    }];
    count_tokens(history, limiter);
}

fn configure_each(history: &mut History, rng: &mut Rng) {
    let limiter = Limiter::tokens(rng);
    let cost = limiter.count / 10;
    let first = history.gateways[0].clone();
    history.gateways.resize(2, first);
    history.load = 8 * SECOND;
    let mut route = |budget| {
        let least = *choice(rng, &[1, cost / 2, cost]);
        Route {
            limiters: vec![0],
            keys: 1,
            cost,
            uses: least..=cost,
            budget,
            hold: *choice(rng, &[20, 300, 1500]) * MS,
            every: limiter.spacing(0) * cost * if budget > 0 { 1 } else { 2 },
            leave: 0,
        }
    };
    history.routes = vec![route(0), route(20 * SECOND)];
    count_tokens(history, limiter);
}

/// The period of a limiter that never binds.
const LONG: Micros = 20 * SECOND;

/// A limiter whose permits are counted over time.
pub(super) fn draw_rate(rng: &mut Rng) -> Limiter {
    loop {
        let limiter = Limiter::draw(rng);
        if limiter.rule.lease().is_none() {
            return limiter;
        }
    }
}

/// A route in which requests always wait: for each two that its limiter allows three come.
pub(super) fn saturated(limiter: &Limiter, limiters: Vec<usize>) -> Route {
    Route {
        limiters,
        keys: 1,
        cost: 1,
        uses: 1..=1,
        budget: 7 * SECOND,
        hold: 20 * MS,
        every: limiter.spacing(20 * MS) * 2 / 3,
        leave: 0,
    }
}

fn end_a_pause(history: &mut History, rng: &mut Rng) {
    let limiter = draw_rate(rng);
    history.load = 8 * SECOND;
    history.routes = vec![saturated(&limiter, vec![0])];
    history.limiters = vec![limiter];
    history.has_blocks = false;
    let at = rng.i64(SECOND..2 * SECOND);
    let ended = Some(at + rng.i64(300..900) * MS);
    history.throttles = vec![UpstreamThrottle { route: 0, at, until: at + 5 * SECOND, ended }];
}

fn pause_a_long_period(history: &mut History, rng: &mut Rng) {
    let short = loop {
        let drawn = draw_rate(rng);
        if drawn.period < SECOND {
            break drawn;
        }
    };
    history.load = 8 * SECOND;
    // As many calls as the short one allows in the whole history.
    let long = Limiter::at_once(10 * SECOND / short.spacing(0) + short.count, LONG, rng);
    let list = if rng.bool() { vec![0, 1] } else { vec![1, 0] };
    history.routes = vec![saturated(&short, list)];
    history.limiters = vec![short, long];
    history.has_blocks = false;
    let at = rng.i64(SECOND..2 * SECOND);
    let until = at + *choice(rng, &[150, 600, 1500]) * MS;
    history.throttles = vec![UpstreamThrottle { route: 0, at, until, ended: None }];
}

fn have_a_quota(history: &mut History, rng: &mut Rng) {
    let mut limiter = draw_rate(rng);
    if history.has_blocks {
        limiter.quicken();
    }
    let cost = *choice(rng, &[1, 1, 2, 4]);
    history.gateways.iter_mut().for_each(|it| it.start = it.start.min(20 * MS));
    history.load = 10 * SECOND;
    history.throttles.clear();
    history.routes = vec![Route {
        cost,
        uses: 1..=cost,
        budget: *choice(rng, &[limiter.period, 2 * SECOND, 5 * SECOND]),
        every: limiter.spacing(0) * cost * 2 / 3,
        leave: *choice(rng, &[0, 20, 40]),
        ..saturated(&limiter, vec![0])
    }];
    history.quota = Some(Quota::draw(rng, limiter.period / limiter.spacing(0), limiter.period));
    history.limiters = vec![limiter];
}
