//! Levels that change without a request: those of an upstream's quota, and charges. Twin of `reserve/adjust.lua`.

use crate::algorithm::{MAX_BUDGET, Open, OpenRate};

/// The most grants by which one step lowers a level. Only a limiter with more holes than that keeps permits
/// above the level, until the next step.
const LOWERINGS: usize = 64;

/// The most instants at which one charge fills windows. The rest is charged as a whole.
const CHARGES: usize = 16;

/// Takes permits for now from the open state of a rate until at most `most` are left of those that can be taken now.
/// An upstream that says how many calls remain knows of those of other programs. It never raises a level. Returns
/// whether it took any.
pub fn lower(open: &mut Open, most: i64) -> bool {
    let mut lowered = false;
    for _ in 0..LOWERINGS {
        let (mut cost, mut found) = (open.level().remaining - most, None);
        // Permits in several holes are not taken as one grant.
        while found.is_none() && cost > 0 {
            match open.earliest(0, cost, 0) {
                (..=0, start) => found = Some(start),
                _ => cost /= 2,
            }
        }
        let Some(start) = found else { break };
        open.take(start, cost);
        lowered = true;
    }
    lowered
}

/// Charges permits that were used already, and returns how many of them the state does not take yet. A window gives what
/// it has at the first instant with any: charged to the next one with room for all of them, they would leave this one open.
/// On a line of time each permit is charged at the end, wherever the first one is.
pub fn charge(open: &mut Open, permits: i64) -> i64 {
    let is_window = open.facts().window() > 0;
    let mut left = permits;
    for i in 0..=CHARGES {
        let mut cost = left;
        let (first, _) = open.earliest(0, if is_window && i < CHARGES { 1 } else { cost }, 0);
        if left == 0 || first > MAX_BUDGET {
            break;
        }
        let start = loop {
            match open.earliest(0, cost, 0) {
                (at, start) if at <= first => break start,
                _ => cost = (cost + 1) / 2,
            }
        };
        open.take(start, cost);
        left -= cost;
    }
    left
}
