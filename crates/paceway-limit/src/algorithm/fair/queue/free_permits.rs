//! Free permits before the last slots: a request that costs more or less than others has left, or a booking has lapsed. Law:
//! no slot stays unused while a request waits.

use super::{Effects, Grants, LOOKS, MOST_MOVED, Queue, Slot};
use crate::algorithm::{Micros, Open};

impl Queue {
    /// Notes that a limiter of the requests is paused until this instant; 0 if none is.
    pub fn close_until(&mut self, until: Micros) {
        self.closed_until = until;
    }

    /// Whether permits before the last slots may be free.
    pub fn has_room(&self) -> bool {
        self.has_room
    }

    /// Gives free permits to the requests with the last slots, as the rule of the limiter allows. Only requests with no
    /// further limiter move: the others need permits of both at one instant. Returns whether any did.
    pub fn fill(
        &mut self,
        now: Micros,
        open: &mut Open,
        horizon: Micros,
        effects: &mut Effects,
    ) -> bool {
        let (mut moved, mut below) = (false, i64::MAX);
        self.has_room = false;
        for _ in 0..MOST_MOVED {
            let Some((at, number, cost)) = self.last_movable(now, below) else { return moved };
            let (wait, start) = open.earliest(0, cost);
            if now + wait < at {
                let grants = Grants::from_elem(open.take(start, cost), 1);
                if let Some(old) = self.give(number, Slot { at: now + wait, grants }, effects) {
                    open.settle(old.grants[0], cost, horizon);
                }
                (moved, below) = (true, i64::MAX);
            } else if cost == 1 {
                return moved;
            } else {
                // One that costs less may fit.
                below = cost;
            }
        }
        // The next step moves others.
        self.has_room = true;
        moved
    }

    /// The request with the last slot that can move and costs less than `below`, with its slot and its cost.
    fn last_movable(&self, now: Micros, below: i64) -> Option<(Micros, u64, i64)> {
        let last = self.slots.range((now + 1, 0)..).rev().take(LOOKS);
        let mut last =
            last.filter_map(|(at, number)| Some((*at, *number, self.waiting.get(number)?)));
        let can_move = |(.., it): &(Micros, u64, &super::Waiting)| {
            !it.is_called && it.cost < below && it.slot.grants.len() == 1 && !self.is_gone(now, it)
        };
        last.find(can_move).map(|(at, number, it)| (at, number, it.cost))
    }
}
