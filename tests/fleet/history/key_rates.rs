//! The rates of single keys of a limiter, as a file, an override or an answer of the upstream names them. Decides nothing.

use super::{History, Limiter, Micros, Route, SECOND, choice, scene};
use fastrand::Rng;

/// The rate of a key of its own.
#[derive(Debug, Clone)]
pub(crate) struct KeyRate {
    pub(crate) limiter: Limiter,
    /// Another rate, which all gateways have from an instant on.
    pub(crate) then: Option<Change>,
}

#[derive(Debug, Clone)]
pub(crate) struct Change {
    pub(crate) at: Micros,
    pub(crate) limiter: Limiter,
}

// === impl KeyRate ===

impl KeyRate {
    /// The limiter of a request that comes at `came`.
    pub(crate) fn at(&self, came: Micros) -> &Limiter {
        self.then.as_ref().filter(|then| then.at <= came).map_or(&self.limiter, |it| &it.limiter)
    }
}

/// Two or three accounts with rates that differ, and requests that are twice as many as all of them take.
pub(super) fn have_accounts(history: &mut History, rng: &mut Rng) {
    rate_by_key(history, rng);
    history.has_accounts = true;
    history.key_rates.iter_mut().for_each(|rate| rate.then = None);
    let permits: i64 =
        history.key_rates.iter().map(|rate| SECOND * 1_000 / rate.limiter.spacing(0)).sum();
    let route = &mut history.routes[0];
    (route.keys, route.every) = (1, (SECOND * 1_000 / permits / 2).max(1));
}

/// Two or three keys, whose requests always wait, with rates that differ and may change once.
pub(super) fn rate_by_key(history: &mut History, rng: &mut Rng) {
    let base = scene::draw_rate(rng);
    let mut draw = |_| {
        let [count, other] = [(); 2].map(|()| base.count * choice(rng, &[1, 2, 4]) / 2);
        let at = rng.i64(3 * SECOND..4 * SECOND);
        let then = Change { at, limiter: base.with_count(other) };
        KeyRate { limiter: base.with_count(count), then: rng.bool().then_some(then) }
    };
    let rates: Vec<_> = (0..2 + history.seed % 2).map(&mut draw).collect();
    let all = rates.iter().flat_map(|rate| [&rate.limiter, rate.at(Micros::MAX)]);
    let fastest = all.min_by_key(|limiter| limiter.spacing(0)).cloned().unwrap_or(base);
    let keys = rates.len() as i64;
    history.load = 9 * SECOND;
    history.routes = vec![Route {
        keys,
        budget: 2 * fastest.period,
        every: fastest.spacing(0) / 2 / keys,
        leave: *choice(rng, &[0, 0, 20]),
        ..scene::saturated(&fastest, vec![0])
    }];
    history.limiters = vec![fastest];
    history.key_rates = rates;
    history.has_blocks = false;
    history.throttles.clear();
}
