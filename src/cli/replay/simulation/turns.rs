//! The requests of a replay that take turns at a limiter: each confirms shortly before its slot, as the gateway's do.

use super::{ReplayedCall, Simulation, Step};
use crate::{
    algorithm::{
        Micros,
        fair::{Place, queue::AHEAD},
    },
    store::{Decision, Entry, Reply},
};

/// A request that waits for its turn.
pub(super) struct TurnCall {
    call: ReplayedCall,
    /// The decision by which it waits. It has the answers of limiters that only observe.
    decision: Decision,
    place: Place,
    /// When it confirms, unless it is woken before.
    confirms_at: Micros,
}

// === impl Simulation ===

impl Simulation {
    /// Lets a request wait for its turn.
    pub(super) fn wait_for_turn(&mut self, call: ReplayedCall, decision: Decision, place: Place) {
        let Some(ticket) = call.ticket else { return };
        let (call, wait) = (self.hold(call), decision.wait);
        let waiting = TurnCall { call, decision, place, confirms_at: self.now };
        self.in_turn.insert(ticket.number, waiting);
        self.plan_confirmation(ticket.number, wait);
    }

    /// A request confirms at the instant that was planned, or does not if it has planned another one since.
    pub(super) fn confirm_as_planned(&mut self, number: i64) {
        if self.in_turn.get(&number).is_some_and(|turn| turn.confirms_at <= self.now) {
            self.confirm(number);
        }
    }

    /// Lets the requests ask that have concurrency permits now, and those confirm that have other slots.
    pub(super) fn serve_woken(&mut self) {
        loop {
            let woken = self.calls.take_woken();
            if woken.is_empty() {
                return;
            }
            for number in woken {
                match self.queue.remove(&number) {
                    Some(call) => self.ask(call),
                    None => self.confirm(number),
                }
            }
        }
    }

    fn confirm(&mut self, number: i64) {
        let Some(turn) = self.in_turn.get(&number) else { return };
        let confirm = Entry::Confirm { checks: turn.call.checks.clone(), place: turn.place };
        let decision = match self.run(confirm) {
            Some(Reply::Decision(decision)) if decision.admitted => Some(decision),
            _ => None,
        };
        match decision {
            Some(decision) if Place::among(&decision.parts).is_some() => {
                self.plan_confirmation(number, decision.wait);
            }
            decision => {
                let Some(turn) = self.in_turn.remove(&number) else { return };
                match decision {
                    Some(decision) => self.take_turn(turn, &decision),
                    None => self.ask(turn.call),
                }
            }
        }
    }

    fn plan_confirmation(&mut self, number: i64, wait: Micros) {
        // A gateway confirms more often, as a sign that it lives. A replay has one gateway, and each confirmation is such a
        // sign, so that the store never takes it for dead.
        let at = self.now + if wait > AHEAD { wait - AHEAD } else { wait / 2 };
        if let Some(turn) = self.in_turn.get_mut(&number) {
            turn.confirms_at = at;
            self.plan_step(at, Step::Confirm(number));
        }
    }

    /// The slot of a request is certain now.
    fn take_turn(&mut self, turn: TurnCall, confirmed: &Decision) {
        let TurnCall { call, mut decision, .. } = turn;
        let at = self.now + confirmed.wait;
        for (own, new) in decision.parts.iter_mut().zip(&confirmed.parts) {
            if new.at >= 0 {
                // The limiter is counted with the whole wait.
                *own = *new;
                own.at = at - call.arrival;
            }
        }
        decision.wait = confirmed.wait;
        self.go(call, decision);
    }
}
