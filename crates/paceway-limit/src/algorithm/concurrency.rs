//! Concurrency permits: at most `max` requests hold one at a time, later requests wait in a queue. Twin of
//! `concurrency.lua`.
//!
//! A holder counts until its lease expires; the lease is renewed while its gateway lives and ends when the
//! work of the request is done. A permit that becomes free is handed to the head of the queue at once: that
//! waiter is *notified*, and holds the permit for a short claim, within which it must ask again. So no waiter
//! polls, and a free permit wakes one waiter only. The order is that of asking, or that of turns at a limiter with
//! fair sharing. An expired holder is forgotten: its late release or renewal changes nothing.

mod ticket;
mod waiters;

use super::{
    Gate, Grant, Level, Micros,
    fair::{Floors, Priority, Turn, Turns},
};
use std::{
    collections::{BTreeSet, HashMap},
    mem,
};
pub use ticket::{Holder, Ticket};
use waiters::Waiters;

/// How long a notified waiter holds its permit without having asked again, µs: 2 s. That is longer than a
/// call of the store, and short enough that a gateway which died in the queue blocks the permit only briefly.
pub const CLAIM: Micros = 2_000_000;
/// How many requests may wait in one queue; later ones are refused.
const MAX_QUEUE: usize = 100_000;
/// All but the first of a queue ask up to so many ms later: its question hands over all permits that are free by then, and a
/// thousand questions at the end of a pause would hold up those of other limiters.
const SPREAD: i64 = 1024;
/// The wait that a refused request is advised, µs: 1 s. The time at which a permit becomes free is unknown.
pub const RETRY: Micros = 1_000_000;

/// The rule of a concurrency limiter: at most `max` permits held at once, each for `lease` µs unless it is
/// renewed.
///
/// ```
/// use paceway_limit::algorithm::Concurrency;
///
/// // At most 10 calls at a time; the permit of a process that died is free after 30 s.
/// let rule = Concurrency::new(10, 30_000_000).expect("a legal rule");
/// assert_eq!((rule.max(), rule.lease()), (10, 30_000_000));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Concurrency {
    max: i64,
    lease: Micros,
    takes_turns: bool,
    floors: Floors,
}

/// The state that a store keeps: the holders with the end of their leases, and the waiters with their
/// deadlines.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct State {
    holders: HashMap<Holder, Micros>,
    expiries: BTreeSet<(Micros, Holder)>,
    /// Boxed, because few limiters have any.
    waiters: Option<Box<Waiters>>,
    /// Until when the limiter is paused; until 0 if it is not.
    gate: Gate,
}

/// The state of a concurrency limiter while it is worked on, with the rule under which it is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Open {
    rule: Concurrency,
    now: Micros,
    state: State,
    notified: Vec<Ticket>,
    /// The turn of the request that asks.
    turn: Option<Turn>,
    /// The instant until which unknown holders may exist after a loss of data, µs; 0 without a loss.
    unknown_until: Micros,
}

/// The wait of a request for a concurrency permit that another request holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Queued {
    /// When the request leaves the queue, µs of the store's clock.
    pub deadline: Micros,
    /// When the request asks again if no notification comes, µs from now.
    pub ask_after: Micros,
}

// === impl Concurrency ===

impl Concurrency {
    /// At most `max` permits held at once, each for `lease` µs. `None` when one of them is not positive or
    /// beyond exact arithmetic.
    pub fn new(max: i64, lease: Micros) -> Option<Self> {
        let exact =
            (1..=super::EXACT / 8).contains(&max) && (1..=super::EXACT / 8).contains(&lease);
        exact.then_some(Self { max, lease, takes_turns: false, floors: Floors::default() })
    }

    /// How many permits may be held at once.
    pub fn max(&self) -> i64 {
        self.max
    }

    /// How long a holder counts that is not renewed, µs.
    pub fn lease(&self) -> Micros {
        self.lease
    }

    /// Whether the requests that wait take turns; otherwise they get permits in the order in which they asked.
    pub fn takes_turns(&self) -> bool {
        self.takes_turns
    }

    /// The same rule for requests that take turns, or for those that do not.
    #[must_use]
    pub fn with_turns(self, takes_turns: bool) -> Self {
        Self { takes_turns, ..self }
    }

    /// The same rule with permits that requests of lower priorities leave to others, which count while requests take turns.
    #[must_use]
    pub fn with_floors(self, floors: Floors) -> Self {
        Self { floors, ..self }
    }

    /// The permits that a request of this priority leaves to others: not all of them.
    fn kept_from(&self, priority: Priority) -> i64 {
        let kept = if self.takes_turns { self.floors.kept_from(priority, self.max) } else { 0 };
        kept.min(self.max - 1).max(0)
    }

    /// The same rule with `max` permits instead. A rule with 0 permits admits no further holder.
    pub fn with_max(&self, max: i64) -> Self {
        Self { max: max.clamp(0, self.max), ..*self }
    }
}

// === impl State ===

impl State {
    /// The turns of the requests that wait; `None` if none waits.
    pub(crate) fn turns(&self) -> Option<&Turns> {
        Some(self.waiters.as_ref()?.turns())
    }
}

// === impl Open ===

impl Open {
    /// Reads a state at `now`, removes the expired holders, and hands their permits to the queue. If it has lost
    /// holders, their leases end at `unknown_until` (0: it has lost none). Before that instant no new request gets a
    /// permit, and every request that renews a lease stays a holder, known or not.
    pub fn held_until(
        unknown_until: Micros,
        state: Option<&mut State>,
        now: Micros,
        rule: Concurrency,
    ) -> Self {
        let state = state.map(mem::take).unwrap_or_default();
        let mut open = Self { rule, now, state, notified: Vec::new(), turn: None, unknown_until };
        while let Some((expiry, id)) = open.state.expiries.first().copied()
            && expiry <= now
        {
            open.state.expiries.pop_first();
            open.state.holders.remove(&id);
        }
        if !open.is_paused() {
            open.state.gate = Gate::default();
        }
        open.hand_over();
        open
    }

    /// How many permits are held now by known holders.
    fn held(&self) -> i64 {
        self.state.holders.len() as i64
    }

    /// How many requests wait for a permit.
    pub(super) fn waiting(&self) -> i64 {
        self.state.waiters.as_ref().map_or(0, |waiters| waiters.len() as i64)
    }

    /// Whether holders may exist that the state does not know.
    fn is_unknown(&self) -> bool {
        self.now < self.unknown_until
    }

    /// Whether the limiter is paused: no request gets a permit, and no waiter is notified.
    pub(super) fn is_paused(&self) -> bool {
        self.now < self.state.gate.until
    }

    /// How long the pause still takes, µs.
    pub(super) fn paused(&self) -> Micros {
        (self.state.gate.until - self.now).max(0)
    }

    /// Pauses the limiter. The pause ends with the later one of this gate and the one before.
    pub fn pause(&mut self, gate: Gate) {
        if gate.until > self.now {
            let old = mem::take(&mut self.state.gate);
            self.state.gate = old.or_later(gate);
        }
    }

    /// The gate of the pause, if the limiter is paused.
    pub fn gate(&self) -> Option<Gate> {
        self.is_paused().then(|| self.state.gate.clone())
    }

    /// Whether a new request can get a permit now, unless the limiter is paused.
    pub(super) fn has_room(&self) -> bool {
        self.held() < self.rule.max && !self.is_unknown()
    }

    /// The permits that the request which asks leaves to others.
    fn floor(&self) -> i64 {
        self.rule.kept_from(self.turn.as_ref().map_or(Priority::Normal, |turn| turn.priority))
    }

    /// Makes the request a holder for `lease` µs, or prolongs its lease.
    fn hold(&mut self, id: Holder, lease: Micros) {
        let expiry = self.now + lease;
        if let Some(before) = self.state.holders.insert(id, expiry) {
            self.state.expiries.remove(&(before, id));
        }
        self.state.expiries.insert((expiry, id));
    }

    /// The turn of the request that asks next, at a limiter with fair sharing.
    pub(crate) fn take_turn(&mut self, turn: &Turn) {
        self.turn = Some(turn.clone());
    }

    /// Hands the free permits to the waiters whose turn it is, and removes those whose deadline is past.
    fn hand_over(&mut self) {
        let is_closed = self.is_unknown() || self.is_paused();
        let takes_turns = self.rule.takes_turns;
        while (is_closed || self.has_room())
            && let Some(waiters) = &mut self.state.waiters
        {
            let next = if takes_turns && !is_closed { waiters.next() } else { waiters.oldest() };
            let waiter = next.and_then(|number| Some((number, waiters.ticket(number)?)));
            let Some((number, ticket)) = waiter else { break };
            let waits = ticket.deadline > self.now;
            let kept = waiters.most_urgent(number).map_or(0, |first| self.rule.kept_from(first));
            let held = self.state.holders.len() as i64;
            if is_closed && waits || !is_closed && held + kept >= self.rule.max {
                break;
            } else if waits {
                waiters.serve(number, takes_turns);
            } else {
                waiters.remove(ticket, takes_turns);
            }
            if waiters.is_empty() {
                self.state.waiters = None;
            }
            if waits {
                self.hold(ticket.holder(), self.rule.lease.min(CLAIM));
                self.notified.push(ticket);
            }
        }
    }

    /// Whether the request holds a permit now.
    pub(super) fn holds(&self, ticket: Ticket) -> bool {
        self.state.holders.contains_key(&ticket.holder())
    }

    /// Whether the request can hold a permit now, unless the limiter is paused: one is free, or it holds one
    /// already.
    pub fn is_free(&self, ticket: Ticket) -> bool {
        self.has_room() && self.held() + self.floor() < self.rule.max || self.holds(ticket)
    }

    /// Makes the request a holder for a whole lease, and returns the grant for its release.
    pub fn hold_for(&mut self, ticket: Ticket) -> Grant {
        self.hold(ticket.holder(), self.rule.lease);
        Ticket { deadline: 0, ..ticket }.grant()
    }

    /// Puts the request into the queue for `budget` µs, or lets it wait on. `None` when the queue is full, or
    /// its deadline is past or within a pause.
    pub fn enqueue(&mut self, ticket: Ticket, budget: Micros) -> Option<Queued> {
        let deadline = match ticket.deadline {
            0 => self.now + budget,
            deadline => deadline,
        };
        if deadline <= self.now.max(self.state.gate.until) {
            return None;
        }
        let (waiter, takes_turns) = (Ticket { deadline, ..ticket }, self.rule.takes_turns);
        // A request that was notified just before a pause returns to the head.
        let is_first = ticket.deadline != 0 && self.is_paused();
        let waiters = self.state.waiters.get_or_insert_default();
        if !waiters.has(waiter) {
            if waiters.is_full(takes_turns) {
                return None;
            }
            let turn = takes_turns.then(|| self.turn.clone().unwrap_or_else(Turn::of_nobody));
            waiters.add(self.now, waiter, is_first, turn.as_ref());
        }
        let later = if waiters.is_first(waiter) { 0 } else { 1 + ticket.number % SPREAD };
        Some(Queued { deadline, ask_after: self.next(self.floor()) + later * 1000 })
    }

    /// The time until a permit is free by itself beside `kept` others: until the first lease expires, µs.
    fn next(&self, kept: i64) -> Micros {
        let expiry = if self.held() + kept < self.rule.max {
            None
        } else {
            // A rule with 0 permits has no lease that could expire.
            let first = self.state.expiries.first().map(|(expiry, _)| *expiry);
            Some(first.unwrap_or(self.now + RETRY))
        };
        expiry.unwrap_or(self.now).max(self.unknown_until).max(self.state.gate.until) - self.now
    }

    /// Holds the permit for another lease; false when the lease has expired.
    pub fn renew(&mut self, grant: Grant) -> bool {
        let id = Ticket::of(grant).holder();
        let holds = self.is_unknown() || self.state.holders.contains_key(&id);
        if holds {
            self.hold(id, self.rule.lease);
        }
        holds
    }

    /// Returns the permit, or leaves the queue; false when the request was in neither any more.
    pub fn refund(&mut self, grant: Grant) -> bool {
        let ticket = Ticket::of(grant);
        if let Some(expiry) = self.state.holders.remove(&ticket.holder()) {
            self.state.expiries.remove(&(expiry, ticket.holder()));
            self.hand_over();
            return true;
        }
        let takes_turns = self.rule.takes_turns;
        let waiters = self.state.waiters.as_mut();
        let left = waiters.is_some_and(|waiters| waiters.remove(ticket, takes_turns));
        self.state.waiters.take_if(|waiters| waiters.is_empty());
        left
    }

    /// Frees all permits, ends the pause, and hands the permits to the waiters; false when none was held and
    /// there was no pause.
    pub fn forget(&mut self) -> bool {
        self.state.expiries.clear();
        let paused = mem::take(&mut self.state.gate) != Gate::default();
        let held = !mem::take(&mut self.state.holders).is_empty() || paused;
        self.hand_over();
        held
    }

    /// Returns the state to its store when no permit was taken; the expired holders stay removed.
    pub fn put_back(self, state: &mut State) {
        *state = self.state;
    }

    /// How many more permits may be held, and when the last of the present leases ends.
    pub fn level(&self) -> Level {
        let last = self.state.expiries.last().map_or(self.now, |(expiry, _)| *expiry);
        let is_open = self.has_room() && !self.is_paused();
        let remaining = if is_open { self.rule.max - self.held() } else { 0 };
        let reset_after = last.max(self.unknown_until).max(self.state.gate.until) - self.now;
        let (next, paused) = (self.next(0), self.paused());
        let status = if paused > 0 { self.state.gate.status } else { 0 };
        Level { remaining, next, reset_after, paused, status, ..Level::default() }
    }

    /// The waiters that got a permit since the state was opened; their gateways wake them.
    pub fn notified(&mut self) -> Vec<Ticket> {
        mem::take(&mut self.notified)
    }

    /// The state to keep and how long it matters, µs; `None` when it has neither holders nor waiters.
    pub fn close(self) -> Option<(State, Micros)> {
        let expiry = self.state.expiries.last().map(|(expiry, _)| *expiry);
        let deadline = self.state.waiters.as_ref().map(|waiters| waiters.latest());
        let paused = self.is_paused().then_some(self.state.gate.until);
        let until = expiry.max(deadline).max(paused)?;
        Some((self.state, until - self.now))
    }
}

#[cfg(test)]
mod tests;
