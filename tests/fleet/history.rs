//! The events of a history and its fleet, all drawn from one seed before it begins. Runs nothing.

mod fault;
mod key_rates;
mod limiter;
mod quota;
mod scene;
mod throttle;
mod turns;

use crate::exceptions::answer_after;
use fastrand::Rng;
use paceway::{
    limit::micros,
    store::{Check, GONE},
};
use std::{fmt, ops::RangeInclusive};

pub(crate) use fault::{Fault, What};
pub(crate) use key_rates::KeyRate;
pub(crate) use limiter::Limiter;
pub(crate) use paceway::algorithm::Micros;
pub(crate) use quota::Quota;
pub(crate) use scene::Scene;
pub(crate) use throttle::UpstreamThrottle;
pub(crate) use turns::Turns;

pub(crate) const MS: Micros = 1000;
pub(crate) const SECOND: Micros = 1_000_000;
/// The time from the end of the last fault until no trace of it may be left.
pub(crate) const SETTLE: Micros = 6 * SECOND;

/// By this time gateways that start together know of each other: their second heartbeats are answered.
const KNOWN: Micros = 1300 * MS;

/// The kind of trouble that a history has; it decides which delays and faults are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Weather {
    /// No faults: round trips are constant and well below the time-out of 50 ms, so that no exception is allowed.
    Calm,
    /// Round trips of 0 to 100 ms, constant or not, for one gateway or all.
    Slow,
    /// One to three faults of the network, the store or gateways, such as a cut connection or a restart.
    Rough,
    /// One gateway has no store for six seconds, and there is no other fault.
    Apart,
}

/// All facts of a history that are known before it runs. The same seed draws the same facts.
#[derive(Debug, Clone)]
pub(crate) struct History {
    pub(crate) seed: u64,
    pub(crate) weather: Weather,
    /// Whether `store.gateways` is set to the number of gateways, so that a share is right before the first heartbeat.
    pub(crate) is_told: bool,
    /// Whether gateways take permits of token buckets in blocks. The buckets are fast then, so that many requests come in the
    /// time in which a permit can be used.
    pub(crate) has_blocks: bool,
    pub(crate) gateways: Vec<Gateway>,
    pub(crate) limiters: Vec<Limiter>,
    pub(crate) routes: Vec<Route>,
    pub(crate) faults: Vec<Fault>,
    /// The times in which the upstream refuses all calls, and says until when.
    pub(crate) throttles: Vec<UpstreamThrottle>,
    /// The quota that the upstream counts by itself.
    pub(crate) quota: Option<Quota>,
    /// The order of the requests that wait, if it is not first come, first served.
    pub(crate) turns: Option<Turns>,
    /// The rates of the keys of the first limiter, if they have rates of their own.
    pub(crate) key_rates: Vec<KeyRate>,
    /// The keys are accounts, of which each request takes the one with the earliest slot.
    pub(crate) has_accounts: bool,
    /// The further limits and events that the history has.
    pub(crate) scene: Scene,
    /// The time during which requests arrive; afterwards the history only waits for its last ones.
    pub(crate) load: Micros,
}

#[derive(Debug, Clone)]
pub(crate) struct Gateway {
    pub(crate) workers: usize,
    /// The least time that a message between this gateway and the store takes, one way, µs.
    pub(crate) delay: Micros,
    /// The largest random delay that is added to it, one way, µs.
    pub(crate) jitter: Micros,
    /// How many of a thousand messages are lost on their way; 0 in most histories.
    pub(crate) lost: u32,
    /// The instant at which the gateway starts; most start within the first 20 ms.
    pub(crate) start: Micros,
}

/// A request as its gateway tells it to the limiters.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Asker {
    pub(crate) route: usize,
    pub(crate) key: i64,
    pub(crate) number: usize,
    pub(crate) came: Micros,
}

/// A kind of requests, which need the same limiters and have the same budget.
#[derive(Debug, Clone)]
pub(crate) struct Route {
    /// The limiters that its requests need, as indexes into [`History::limiters`].
    pub(crate) limiters: Vec<usize>,
    pub(crate) keys: i64,
    /// The permits that a call reserves.
    pub(crate) cost: i64,
    /// The permits that a call uses, which its gateway learns when it ends.
    pub(crate) uses: RangeInclusive<i64>,
    pub(crate) budget: Micros,
    /// How long the upstream takes for a call, and the call holds its concurrency permit, µs.
    pub(crate) hold: Micros,
    /// The time between two of its requests, counted over all gateways together, µs.
    pub(crate) every: Micros,
    /// How many of a hundred callers leave while their request waits for its slot.
    pub(crate) leave: u32,
}

// === impl Weather ===

impl Weather {
    pub(crate) fn of(seed: u64) -> Self {
        match seed % 12 {
            0 | 3 | 6 | 9 => Self::Calm,
            1 | 4 | 7 | 10 => Self::Slow,
            11 => Self::Apart,
            _ => Self::Rough,
        }
    }
}

// === impl History ===

impl History {
    /// Draws the history of `seed`, with a weather that the seed decides as well.
    pub(crate) fn draw(seed: u64) -> Self {
        let scene = Scene::of(seed);
        Self::draw_in(scene.weather(Weather::of(seed)), scene, seed)
    }

    /// Draws the history of `seed` with this weather and scene, for defects that show in no other.
    pub(crate) fn draw_in(weather: Weather, scene: Scene, seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let load = if weather == Weather::Apart { 8 } else { rng.i64(4..8) } * SECOND;
        let is_told = rng.bool();
        let gateways = gateways(&mut rng, weather, is_told);
        let mut limiters: Vec<_> = (0..rng.usize(1..=2)).map(|_| Limiter::draw(&mut rng)).collect();
        // A third of the histories, half of them with refusals of the upstream.
        let has_blocks = matches!(seed / 12 % 6, 1 | 3);
        if has_blocks {
            limiters.iter_mut().for_each(Limiter::quicken);
        }
        let routes = routes(&mut rng, &limiters);
        let faults = match weather {
            Weather::Rough => {
                let count = rng.usize(1..=3);
                let first = if is_told { SECOND / 2 } else { KNOWN };
                let drawn = (0..count).map(|_| Fault::draw(&mut rng, gateways.len(), first..load));
                let mut ends = 0;
                // At most one gateway ends, and it ends once. A gateway that starts while the store is away must know
                // the number of gateways.
                let is_first = |fault: &Fault| {
                    ends += usize::from(fault.what.ends_a_gateway());
                    (is_told && ends < 2) || !fault.what.ends_a_gateway()
                };
                drawn.collect::<Vec<_>>().into_iter().filter(is_first).collect()
            }
            Weather::Apart => {
                let (at, gateway) = (rng.i64(KNOWN..2 * KNOWN), rng.usize(0..gateways.len()));
                let what = if rng.bool() { What::Silence(gateway) } else { What::Cut(gateway) };
                vec![Fault { at, lasts: 6 * SECOND, what }]
            }
            Weather::Calm | Weather::Slow => Vec::new(),
        };
        let throttles = throttle::throttles(seed, routes.len(), load);
        let mut history = Self {
            seed,
            weather,
            is_told,
            has_blocks,
            gateways,
            limiters,
            routes,
            faults,
            throttles,
            quota: None,
            turns: None,
            key_rates: Vec::new(),
            has_accounts: false,
            scene,
            load,
        };
        scene::arrange(&mut history);
        history
    }

    /// The number of gateways that receive requests: the first ones.
    pub(crate) fn serving(&self) -> usize {
        self.gateways.len() - usize::from(self.scene == Scene::IdleLoop)
    }

    /// The instant after which no request comes.
    pub(crate) fn last_request(&self) -> Micros {
        if self.scene == Scene::Settled { SECOND } else { self.load }
    }

    /// The gateway that receives a request of `route`, if any of them would be `other`.
    pub(crate) fn receiver(&self, route: usize, other: usize) -> usize {
        if self.scene == Scene::Files { route } else { other % self.serving() }
    }

    /// The instant from which on no fault has an effect; 0 in a history without faults.
    pub(crate) fn healed(&self) -> Micros {
        self.faults.iter().map(Fault::end).max().unwrap_or(0)
    }

    pub(crate) fn end(&self) -> Micros {
        let faults = self.load.max(self.healed()).max(self.missed()) + SETTLE;
        // The slots of a gateway that dies pass unused for a while.
        let turns = if self.turns.is_some() { self.healed() + micros(GONE) } else { 0 };
        faults.max(self.last_answer()).max(turns)
    }

    /// By then the last request has its answer. It may wait for its whole budget, which is longer than [`SETTLE`] in some scenes
    /// (`Long`, seed 1117: its last three requests were sent 6.1 s after they came, and counted as tasks that are left).
    fn last_answer(&self) -> Micros {
        let takes = self.routes.iter().map(|route| route.budget + route.hold).max().unwrap_or(0);
        self.last_request() + takes + answer_after(self) + SECOND
    }

    /// The instant from which on no gateway is missed. One that ends shortly before the store loses the set of gateways was
    /// not absent for the others yet. It may be cut off, so that they leave it its share for 10 s after they notice the loss
    /// (seed 16805: killed 1.47 s before a restart of 6 s, and charged for until 17.7 s after its end).
    fn missed(&self) -> Micros {
        let ends = || self.faults.iter().filter(|fault| fault.what.ends_a_gateway());
        let losses = self.faults.iter().filter(|fault| fault.what.loses_the_set());
        let missed = losses
            .filter(|loss| ends().any(|end| (end.at..end.at + micros(GONE)).contains(&loss.at)));
        missed.map(|loss| loss.end() + micros(GONE)).max().unwrap_or(0)
    }

    /// The limiter as a request of this key has it that comes at `came`.
    pub(crate) fn limiter(&self, number: usize, key: i64, came: Micros) -> &Limiter {
        let rate = usize::try_from(key).ok().and_then(|key| self.key_rates.get(key));
        rate.map_or(&self.limiters[number], |rate| rate.at(came))
    }

    /// Makes the check that a request sends to the store for one limiter.
    pub(crate) fn check(&self, asker: Asker, limiter: usize) -> Check {
        let Asker { route, key, number, came } = asker;
        let Limiter { rule, on_failure, .. } = *self.limiter(limiter, key, came);
        let order = self.turns.as_ref();
        let route = &self.routes[route];
        // A gateway knows the routes of its own configuration.
        let is_known = |other: &&Route| self.scene != Scene::Files || std::ptr::eq(*other, route);
        let users = self.routes.iter().filter(|route| route.limiters.contains(&limiter));
        let users = users.filter(is_known);
        let (wait, cost) = users
            .fold((0, 1), |(wait, cost), route| (route.budget.max(wait), route.cost.max(cost)));
        let own = if rule.lease().is_some() { 1 } else { route.cost };
        // Limiters that a request asks together need not be in one part of a store.
        let tag = if self.scene == Scene::Lists { limiter.to_string() } else { "f".into() };
        let check = Check::new(format!("paceway:{{{tag}}}:{limiter}:{key}"), rule)
            .with_cost(own)
            .with_horizon(rule.horizon(wait, cost))
            .with_on_failure(on_failure);
        let check = match order {
            Some(turns) => {
                check.with_turn(turns.turn(asker.route, number)).with_floors(turns.floors)
            }
            None => check,
        };
        if self.has_blocks { check.with_blocks() } else { check }
    }
}

fn gateways(rng: &mut Rng, weather: Weather, is_told: bool) -> Vec<Gateway> {
    let (count, all_alike) = (rng.usize(1..=4), rng.bool());
    let mut draw = |_| {
        let workers = rng.usize(1..=2);
        let (delay, jitter, lost) = match weather {
            Weather::Calm => (rng.i64(0..=10) * MS, 0, 0),
            Weather::Slow => (rng.i64(0..=50) * MS, *choice(rng, &[0, 0, 5, 20]) * MS, 0),
            Weather::Apart => (rng.i64(0..=10) * MS, rng.i64(0..=5) * MS, 0),
            Weather::Rough => {
                let lost = *choice(rng, &[0, 0, 0, 3]);
                (rng.i64(0..=10) * MS, rng.i64(0..=5) * MS, lost)
            }
        };
        // Most gateways start together.
        let is_late =
            rng.u8(0..8) == 0 && (is_told || matches!(weather, Weather::Calm | Weather::Slow));
        let start = if is_late { rng.i64(0..2000) } else { rng.i64(0..20) } * MS;
        Gateway { workers, delay, jitter, lost, start }
    };
    let mut all: Vec<_> = (0..count).map(&mut draw).collect();
    if all_alike {
        let first = all[0].clone();
        all.iter_mut().for_each(|it| *it = Gateway { start: it.start, ..first.clone() });
    }
    all
}

fn routes(rng: &mut Rng, limiters: &[Limiter]) -> Vec<Route> {
    let all: Vec<usize> = (0..limiters.len()).collect();
    let together = limiters.len() > 1 && rng.bool();
    let groups = if together { vec![all] } else { all.into_iter().map(|one| vec![one]).collect() };
    let mut route = |group: Vec<usize>| {
        let hold = rng.i64(5..300) * MS;
        let spacing = |limiter: &usize| limiters[*limiter].spacing(hold);
        let slowest = group.iter().map(spacing).max().unwrap_or(SECOND);
        let period = group.iter().map(|limiter| limiters[*limiter].period).max();
        let budgets = [0, period.unwrap_or(SECOND) / 2, 2 * period.unwrap_or(SECOND), 3 * SECOND];
        let load = *choice(rng, &[50, 150, 250]);
        let (keys, cost) = (*choice(rng, &[1, 1, 1, 2]), *choice(rng, &[1, 1, 1, 1, 2]));
        Route {
            limiters: group,
            keys,
            cost,
            uses: cost..=cost,
            budget: *choice(rng, &budgets),
            hold,
            every: slowest * cost * 100 / load / keys,
            leave: *choice(rng, &[0, 0, 0, 20]),
        }
    };
    groups.into_iter().map(&mut route).collect()
}

fn choice<'a, T>(rng: &mut Rng, all: &'a [T]) -> &'a T {
    &all[rng.usize(0..all.len())]
}

// === impl Route ===

impl Route {
    /// The permits that the call of a request uses.
    pub(crate) fn used(&self, request: usize) -> i64 {
        let (least, most) = self.uses.clone().into_inner();
        // A prime, so that requests that come one after the other use different numbers.
        let random = i64::try_from(request).expect("few") * 7919;
        least + random % (most - least + 1)
    }
}

impl fmt::Display for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let blocks = if self.has_blocks { ", with blocks" } else { "" };
        let told = if self.is_told { ", `store.gateways` is set" } else { "" };
        let seconds = self.load / SECOND;
        writeln!(
            f,
            "seed {}, {:?}, {:?}, requests for {seconds} s{told}{blocks}",
            self.seed, self.weather, self.scene
        )?;
        for (number, gateway) in self.gateways.iter().enumerate() {
            writeln!(f, "  gateway {number}: {gateway:?}")?;
        }
        for (number, limiter) in self.limiters.iter().enumerate() {
            writeln!(f, "  limiter {number}: {limiter:?}")?;
        }
        for (number, route) in self.routes.iter().enumerate() {
            writeln!(f, "  route {number}: {route:?}")?;
        }
        for UpstreamThrottle { route, at, until, ended } in &self.throttles {
            let [at, until] = [at, until].map(|at| at / MS);
            writeln!(f, "  {at:>5} ms: the upstream refuses route {route} until {until} ms")?;
            if let Some(ended) = ended {
                writeln!(f, "  {:>5} ms: it does no longer, and an operator knows", ended / MS)?;
            }
        }
        if let Some(turns) = &self.turns {
            writeln!(f, "  {turns:?}")?;
        }
        for (key, rate) in self.key_rates.iter().enumerate() {
            writeln!(f, "  key {key}: {rate:?}")?;
        }
        if let Some(quota) = &self.quota {
            writeln!(f, "  the upstream counts: {quota:?}")?;
        }
        for Fault { at, lasts, what } in &self.faults {
            writeln!(f, "  {:>5} ms, for {} ms: {what:?}", at / MS, lasts / MS)?;
        }
        Ok(())
    }
}
