//! The permits that this gateway granted and the shared state does not know of, each with its instant, and the requests that
//! charge them there. A permit that is charged at another instant would leave room in the shared state that it has used.

use crate::{
    algorithm::{Algorithm, MAX_BUDGET, Micros, SlidingWindow, reserve::Part},
    store::{Check, Checks},
};
use std::{
    collections::BTreeMap,
    hash::{BuildHasher, RandomState},
    sync::atomic::{AtomicU64, Ordering::SeqCst},
};

/// Instants of one limiter that are kept. A permit of a further instant counts at the kept one before it.
const MAX_INSTANTS: usize = 10_000;
/// About how many requests charge a limiter at one time: up to 256 permits are charged one by one, more in equal pieces.
const PIECES: i64 = 256;

/// The permits of one limiter.
#[derive(Debug, Default)]
pub(super) struct Grants {
    /// By the name that a refund brings: the slot of the grant.
    all: BTreeMap<Micros, Granted>,
    /// How many permits are too old for their instants to matter.
    past: i64,
}

#[derive(Debug)]
struct Granted {
    at: Micros,
    permits: i64,
}

/// Permits that are due after a delay, µs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::store) struct DuePermits {
    pub(in crate::store) delay: Micros,
    pub(in crate::store) permits: i64,
}

/// The permits that [`Grants::take`] took.
pub(super) struct Taken {
    pub(super) grants: Grants,
    /// When each of them is due.
    pub(super) due: Vec<DuePermits>,
}

// === impl Grants ===

impl Grants {
    /// Adds `permits` that `rule` grants now with this part.
    pub(super) fn add(&mut self, rule: &Algorithm, now: Micros, part: Part, permits: i64) {
        self.forget(rule, now);
        let name = rule.slot(part.grant.whole);
        let is_full = self.all.len() >= MAX_INSTANTS && !self.all.contains_key(&name);
        let before = self.all.range(..name).next_back().map(|(name, _)| *name);
        let name = before.filter(|_| is_full).unwrap_or(name);
        let slot =
            self.all.entry(name).or_insert(Granted { at: rule.slot(now + part.at), permits: 0 });
        slot.permits += permits;
    }

    /// Removes permits that were not used, so that they are not charged.
    pub(super) fn refund(&mut self, rule: &Algorithm, whole: Micros, permits: i64) {
        let name = rule.slot(whole);
        match self.all.get_mut(&name) {
            Some(slot) if slot.permits > permits => slot.permits -= permits,
            Some(_) => drop(self.all.remove(&name)),
            None => self.past = (self.past - permits).max(0),
        }
    }

    /// Takes all permits. `owed` bounds the old ones: given the number of the others, it returns how many the state of this
    /// gateway still counts.
    pub(super) fn take(
        &mut self,
        rule: &Algorithm,
        now: Micros,
        owed: impl FnOnce(i64) -> i64,
    ) -> Taken {
        self.forget(rule, now);
        let grants = std::mem::take(self);
        let slots = grants.all.values();
        let due =
            slots.map(|slot| DuePermits { delay: (slot.at - now).max(0), permits: slot.permits });
        let mut due: Vec<_> = due.collect();
        // Permits that are due now come last: if they find no room, they must not take that of the later ones.
        due.sort_by_key(|due| (due.delay == 0, due.delay));
        let ahead = due.iter().map(|due| due.permits).sum();
        let past = owed(ahead).clamp(0, grants.past);
        if past > 0 {
            due.push(DuePermits { delay: 0, permits: past });
        }
        Taken { grants, due }
    }

    /// Puts back the permits that [`Self::take`] took, because their charge failed.
    pub(super) fn put_back(&mut self, taken: &Self) {
        self.past += taken.past;
        for (name, Granted { at, permits }) in &taken.all {
            self.all.entry(*name).or_insert(Granted { at: *at, permits: 0 }).permits += permits;
        }
    }

    fn forget(&mut self, rule: &Algorithm, now: Micros) {
        while let Some(first) = self.all.first_entry()
            && first.get().at + rule.counts_for() <= now
        {
            self.past += first.remove().permits;
        }
    }
}

/// Requests, in this order, that take permits from the state of `check`, whatever its level, and none before it is due.
pub(in crate::store) fn charges(check: &Check, due: &[DuePermits]) -> Vec<Checks> {
    let Some(rate) = check.algorithm.as_rate() else { return Vec::new() };
    let check = Check { algorithm: rate.facts().spent.into(), enforce: false, ..check.clone() };
    let all = due.iter().map(|due| due.permits).sum::<i64>();
    // A single permit takes the first free room. A larger piece would pass over small room and leave it to other requests.
    let most = ((all + PIECES - 1) / PIECES).clamp(1, check.algorithm.capacity());
    let mut pieces: Vec<DuePermits> = Vec::new();
    for &DuePermits { delay, permits } in due {
        let mut left = permits;
        while left > 0 {
            let room = pieces.last().map_or(0, |last| {
                // Permits that are due now and later ones are not charged together.
                if (last.delay == 0) == (delay == 0) { most - last.permits } else { 0 }
            });
            let cost = left.min(if room > 0 { room } else { most });
            match pieces.last_mut().filter(|_| room > 0) {
                Some(last) => last.permits += cost,
                None => pieces.push(DuePermits { delay, permits: cost }),
            }
            left -= cost;
        }
    }
    let at_once = pieces.chunk_by(|a, b| a.delay == b.delay).flat_map(|pieces| {
        let costs = pieces.iter().map(|piece| Check { cost: piece.permits, ..check.clone() });
        match wait_for(&check, pieces[0].delay, pieces.len()) {
            None => costs.map(|check| [check].into()).collect::<Vec<Checks>>(),
            Some(wait) => {
                let all: Checks = [wait.clone()].into();
                let one = Check { cost: 1, ..wait };
                let both =
                    costs.map(|check| [one.clone(), Check { enforce: true, ..check }].into());
                std::iter::once(all).chain(both).collect()
            }
        }
    });
    at_once.collect()
}

/// The part of the key of a limiter that only delays charges.
const WAIT: &str = ":#wait:";

/// Whether these are the checks of a delayed charge. It enforces its rule, though no request asks for it.
#[cfg(feature = "redis")]
pub(in crate::store) fn is_delayed_charge(checks: &[Check]) -> bool {
    checks.iter().any(|check| check.key.contains(WAIT))
}

/// A limiter that no other request uses. Once it is used up, it grants `count` permits after `delay` µs, so a charge that
/// asks it, too, is executed no sooner.
fn wait_for(check: &Check, delay: Micros, count: usize) -> Option<Check> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let count = i64::try_from(count).ok()?;
    let rule = SlidingWindow::new(count, delay.min(MAX_BUDGET), 0)?;
    let nonce = RandomState::new().hash_one(NEXT.fetch_add(1, SeqCst));
    let key = format!("{}{WAIT}{nonce:016x}", check.key).into();
    let algorithm = rule.into();
    Some(Check { key, algorithm, cost: count, enforce: true, horizon: 0, ..check.clone() })
}

#[cfg(test)]
mod tests;
