//! Free permits before the last slots: a request that costs more or less than others has left, or a booking has lapsed. Law:
//! no slot stays unused while a request waits.

use super::{AHEAD, Effects, Grants, LOOKS, MOST_MOVED, Queue, Slot};
use crate::algorithm::{Micros, Open, OpenRate, gate::OpenGate};

impl Queue {
    /// Notes that a limiter of the requests is paused until this instant; 0 if none is.
    pub fn close_until(&mut self, until: Micros) {
        self.closed_until = until;
    }

    /// Whether permits before the last slots may be free.
    pub fn has_room(&self) -> bool {
        self.has_room
    }

    /// Gives free permits to the requests with the last slots, as the rule of the limiter allows, and where those find none to
    /// the request with the first slot: the permits of a window may be free for it alone, because its own are in the same
    /// window. Only requests with no further limiter move: the others need permits of both at one instant. Returns whether
    /// any did.
    pub fn fill(
        &mut self,
        now: Micros,
        open: &mut Open,
        mut gate: Option<&mut OpenGate>,
        effects: &mut Effects,
    ) -> bool {
        let (mut moved, mut below) = (false, i64::MAX);
        self.has_room = false;
        for _ in 0..MOST_MOVED {
            let (last, is_first) = match self.last_movable(now, below) {
                Some(last) => (last, false),
                None => match self.first_movable(now) {
                    Some(first) => (first, true),
                    None => return moved,
                },
            };
            if self.moves(now, open, gate.as_deref_mut(), last, effects) {
                (moved, below) = (true, i64::MAX);
            } else if is_first {
                return moved;
            } else {
                // One that costs less may fit.
                below = self.waiting.get(&last).map_or(0, |it| it.cost);
            }
        }
        // The next step moves others.
        self.has_room = true;
        moved
    }

    /// Gives a request permits at an earlier instant in place of its own, if the rule has any.
    fn moves(
        &mut self,
        now: Micros,
        open: &mut Open,
        mut gate: Option<&mut OpenGate>,
        number: u64,
        effects: &mut Effects,
    ) -> bool {
        let Some(it) = self.waiting.get(&number) else { return false };
        let (at, cost, grant, before) = (it.slot.at, it.cost, it.slot.grants[0], open.clone());
        let kept = self
            .turns
            .priority_of(number)
            .map_or(0, |priority| self.floors.kept_from(priority, open.facts().capacity));
        let gate_before = gate.as_deref().cloned();
        let mut is_given = open.refund(grant, cost);
        if let Some(gate) = gate.as_deref_mut() {
            is_given |= gate.refund(open, grant, cost);
        }
        if is_given {
            // It learns of a slot by a message: one that has come by then is too late for a margin of a few ms.
            for from in [AHEAD, 0] {
                let (wait, start) = match gate.as_deref() {
                    Some(gate) => gate.earliest(open, from, cost, kept),
                    None => open.earliest(from, cost, kept),
                };
                if now + wait >= at {
                    continue;
                }
                let grant = match gate {
                    Some(gate) => gate.take(open, start, cost, wait),
                    None => open.take(start, cost),
                };
                open.promise(wait, start, kept);
                let grants = Grants::from_elem(grant, 1);
                self.give(number, Slot { at: now + wait, grants }, effects);
                return true;
            }
        }
        *open = before;
        if let (Some(gate), Some(before)) = (gate, gate_before) {
            *gate = before;
        }
        false
    }

    /// The request with the last slot that can move and costs less than `below`.
    fn last_movable(&self, now: Micros, below: i64) -> Option<u64> {
        let mut last = self.slots.range((now + AHEAD + 1, 0)..).rev().take(LOOKS);
        last.find(|(_, number)| self.can_move(now, *number, below)).map(|(_, number)| *number)
    }

    /// The request with the first slot that can move.
    fn first_movable(&self, now: Micros) -> Option<u64> {
        let mut first = self.slots.range((now + AHEAD + 1, 0)..).take(LOOKS);
        first.find(|(_, number)| self.can_move(now, *number, i64::MAX)).map(|(_, number)| *number)
    }

    fn can_move(&self, now: Micros, number: u64, below: i64) -> bool {
        self.waiting.get(&number).is_some_and(|it| {
            let is_alone = it.slot.grants.len() == 1;
            !it.is_called && it.cost < below && is_alone && !self.is_gone(now, it)
        })
    }
}
