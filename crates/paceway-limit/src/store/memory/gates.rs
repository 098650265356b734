//! The gates of paused limiters in one part of the states. Few limiters are paused at one time, so gates have a table of
//! their own, which no decision looks at while it is empty.

use super::{MAX_KEYS, stored_state::Print};
use crate::algorithm::{Gate, Micros};
use ahash::HashMap;

/// The number of gates at which those that have ended are removed for the first time.
const FIRST_SWEEP: usize = 64;

/// Gates by the print of their key: at most as many as the store keeps states.
#[derive(Debug)]
pub(super) struct Gates {
    kept: HashMap<Print, KeptGate>,
    /// How many gates the table has when those that have ended are removed.
    sweep: usize,
}

#[derive(Debug)]
struct KeptGate {
    gate: Gate,
    /// The instant from which the gate delays no request any more.
    ends: Micros,
}

// === impl Gates ===

impl Default for Gates {
    fn default() -> Self {
        Self { kept: HashMap::default(), sweep: FIRST_SWEEP }
    }
}

impl Gates {
    pub(super) fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    pub(super) fn get(&self, print: Print) -> Option<Gate> {
        self.kept.get(&print).map(|kept| kept.gate.clone())
    }

    pub(super) fn remove(&mut self, print: Print) -> bool {
        self.kept.remove(&print).is_some()
    }

    /// Keeps a gate until the instant `ends`. In a full table it replaces the one that ends first.
    pub(super) fn put(&mut self, now: Micros, print: Print, gate: Gate, ends: Micros) {
        if self.kept.len() >= self.sweep {
            self.kept.retain(|_, kept| kept.ends > now);
            self.sweep = (2 * self.kept.len()).clamp(FIRST_SWEEP, MAX_KEYS);
        }
        if self.kept.len() >= MAX_KEYS && !self.kept.contains_key(&print) {
            let first = self.kept.iter().min_by_key(|(_, kept)| kept.ends);
            if let Some(first) = first.map(|(print, _)| *print) {
                self.kept.remove(&first);
            }
        }
        self.kept.insert(print, KeptGate { gate, ends });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A gate that no request meets again is removed when later ones come, so that keys which are paused once take no
    /// memory for long.
    #[test]
    fn gates_that_have_ended_are_removed() {
        let mut gates = Gates::default();
        for i in 0..1_000 {
            gates.put(i, Print([i as u64, 0]), Gate::new(i, 10, 429), i + 10);
            assert!(gates.kept.len() <= FIRST_SWEEP, "{}", gates.kept.len());
        }
        assert!(gates.get(Print([999, 0])).is_some());
        assert!(gates.remove(Print([999, 0])) && !gates.remove(Print([999, 0])));
    }
}
