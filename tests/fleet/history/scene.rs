//! The scene of a history: a limit or an event that met a defect once. A seventh of the seeds has one; without it a seed is
//! the same history.

use super::{Fault, Gateway, History, Limiter, MS, Route, SECOND, Weather, What, choice};
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
}

// === impl Scene ===

impl Scene {
    const ALL: [Self; 3] = [Self::IdleLoop, Self::BusyLoop, Self::Lists];

    pub(super) fn of(seed: u64) -> Self {
        match seed / 12 % 7 == 1 {
            true => Self::ALL[usize::try_from(seed / 84).expect("small") % Self::ALL.len()],
            false => Self::Plain,
        }
    }

    /// The weather of a history that would have had another one.
    pub(super) fn weather(self, other: Weather) -> Weather {
        if matches!(self, Self::Plain | Self::Lists) { other } else { Weather::Calm }
    }
}

/// Changes a history that was drawn without its scene.
pub(super) fn arrange(history: &mut History) {
    let mut rng = Rng::with_seed(history.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    match history.scene {
        Scene::Plain => {}
        Scene::IdleLoop | Scene::BusyLoop => die_again_and_again(history, &mut rng),
        Scene::Lists => list_in_any_order(history, &mut rng),
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
            budget: *choice(rng, &[0, period / 2, 2 * period]),
            hold,
            every: slowest.unwrap_or(SECOND),
            leave: *choice(rng, &[0, 0, 20]),
        }
    };
    history.routes = (0..4).map(&mut route).collect();
}
