//! The laws of requests that take turns: the shares of tenants, priorities, floors, and that no slot is unused.

use super::{Verdict, broken};
use crate::{
    history::{History, Limiter, MS, Micros, SECOND, Turns, Weather},
    run::Record,
    upstream::Seen,
};
use paceway::algorithm::{Algorithm, Rule, fair::Priority};
use std::ops::Range;

/// A slot is confirmed 50 ms before, and a request is known to the store after a round trip.
const AHEAD: Micros = 120 * MS;
/// A lower priority that waits has one slot of so many.
const LOWEST: i64 = 20;
/// One turn of each tenant, and those that had been confirmed.
const TURNS: i64 = 4;

pub(super) fn are_taken(history: &History, record: &Record) -> Verdict {
    let Some(turns) = &history.turns else { return Ok(()) };
    if history.weather != Weather::Calm {
        return Ok(());
    }
    let court = Court { history, record, turns };
    court.slots_are_used()?;
    court.priorities_hold()?;
    court.tenants_have_their_shares()?;
    court.floors_hold()
}

struct Court<'a> {
    history: &'a History,
    record: &'a Record,
    turns: &'a Turns,
}

// === impl Court ===

impl Court<'_> {
    fn limiter(&self) -> &Limiter {
        &self.history.limiters[0]
    }

    /// Turns that may come later than a share says. A window's permits are confirmed at one moment.
    fn late_turns(&self) -> i64 {
        match self.limiter().rule {
            rule if rule.window() > 0 => TURNS + self.limiter().count,
            _ => TURNS,
        }
    }

    fn priority(&self, seen: &Seen) -> Priority {
        self.turns.priorities[seen.route]
    }

    /// The requests that wait for as long as they have to, and were sent.
    fn patient(&self) -> impl Iterator<Item = &Seen> {
        let is_patient = |seen: &&Seen| self.history.routes[seen.route].is_patient();
        self.record.seen.iter().filter(is_patient).filter(|seen| seen.sent.is_some())
    }

    /// The spans in which one of these requests waits at any time.
    fn spans<'s>(&self, requests: impl Iterator<Item = &'s Seen>) -> Vec<Range<Micros>> {
        let mut spans: Vec<Range<Micros>> = Vec::new();
        // They are in the order in which they came.
        for seen in requests {
            let Some((at, _)) = seen.sent else { continue };
            let (from, until) = (seen.came + AHEAD, at - AHEAD);
            match spans.last_mut() {
                Some(last) if from <= last.end => last.end = last.end.max(until),
                _ if from < until => spans.push(from..until),
                _ => {}
            }
        }
        spans
    }

    /// How many of the requests that wait were sent within a span.
    fn count(&self, span: &Range<Micros>, counts: impl Fn(&Seen) -> bool) -> i64 {
        let is_in = |seen: &&Seen| seen.sent.is_some_and(|(at, _)| span.contains(&at));
        self.patient().filter(is_in).filter(|seen| counts(seen)).count() as i64
    }

    /// Law 2: while requests wait, all permits are used that no floor keeps back.
    fn slots_are_used(&self) -> Verdict {
        let limiter = self.limiter();
        if limiter.rule.lease().is_some() {
            return Ok(());
        }
        let whole = limiter.period + limiter.rule.margin();
        let spacing = match limiter.rule {
            Rule::Rate(Algorithm::SlidingWindow(_) | Algorithm::FixedWindow(_)) => {
                whole / (limiter.count - self.turns.permits_kept(limiter))
            }
            _ => limiter.spacing(0),
        };
        for span in self.spans(self.patient()) {
            let span = span.start.max(2 * SECOND)..span.end;
            let is_in = |seen: &&Seen| seen.sent.is_some_and(|(at, _)| span.contains(&at));
            let count = self.record.seen.iter().filter(is_in).count() as i64;
            let least = (span.end - span.start) * 99 / 100 / spacing - limiter.count - 1;
            if count < least {
                let how = format!("{count} calls in {span:?} µs, where {least} are possible");
                return broken("no slot is unused while requests wait", how);
            }
        }
        Ok(())
    }

    /// A request of a lower priority has at most one of 20 slots while a higher one waits, and at least that while it waits.
    fn priorities_hold(&self) -> Verdict {
        for own in Priority::ALL {
            for span in self.spans(self.patient().filter(|seen| self.priority(seen) == own)) {
                let all = self.count(&span, |_| true);
                let lower = |other: Priority| self.count(&span, |it| self.priority(it) == other);
                let most = all / LOWEST + self.late_turns();
                let above = Priority::ALL.into_iter().find(|it| *it > own && lower(*it) > most);
                let count = lower(own);
                if above.is_some() || count < all / LOWEST - self.late_turns() {
                    let how = format!("{own:?} has {count} of {all} in {span:?}; {above:?}");
                    return broken("priorities have their shares", how);
                }
            }
        }
        Ok(())
    }

    /// A tenant with requests that wait has the share of its weight among the requests of their priority. At a concurrency
    /// limiter these are also those that cannot wait for long: with weights 5 and 1 most of them belong to the first tenant (seed
    /// 369: 129 of the 323 patient ones are less than 5 of 12, and 171 of all 409 are more). A slot of a rate that is promised to
    /// one that cannot wait is no part of the order.
    fn tenants_have_their_shares(&self) -> Verdict {
        let sum: i64 = self.turns.weights.iter().sum();
        for (tenant, weight) in self.turns.weights.iter().enumerate() {
            for own in Priority::ALL {
                let is_own = |seen: &Seen| self.turns.tenant(seen.number) == tenant;
                let alike = |seen: &Seen| self.priority(seen) == own;
                let has_places = self.limiter().rule.lease().is_some();
                let waits = |seen: &Seen| {
                    let route = &self.history.routes[seen.route];
                    route.is_patient() || has_places && route.budget > 0
                };
                for span in self.spans(self.patient().filter(|it| alike(it) && is_own(it))) {
                    let is_in = |seen: &Seen| seen.sent.is_some_and(|(at, _)| span.contains(&at));
                    let sent = self.record.seen.iter().filter(|it| alike(it) && waits(it));
                    let sent: Vec<_> = sent.filter(|it| is_in(it)).collect();
                    let all = sent.len() as i64;
                    let count = sent.iter().filter(|it| is_own(it)).count() as i64;
                    if count < all * weight / sum - self.late_turns() {
                        let how = format!("tenant {tenant}, {own:?}: {count} of {all} in {span:?}");
                        return broken("tenants have their shares", how);
                    }
                }
            }
        }
        Ok(())
    }

    /// Callers of high priority that cannot wait, and come no faster than the permits of a bucket's floor come back, are served.
    fn floors_hold(&self) -> Verdict {
        let limiter = self.limiter();
        let floor = self.turns.floors.high.map_or(0, |floor| floor.of(limiter.rule.limit()));
        if floor == 0 || !matches!(limiter.rule, Rule::Rate(Algorithm::TokenBucket(_))) {
            return Ok(());
        }
        // The next permits are for the requests whose slots are confirmed.
        let back = limiter.spacing(0) + AHEAD;
        let (mut level, mut last) = (0, 0);
        let [mut came, mut served] = [0; 2];
        let is_user = |seen: &&Seen| {
            let route = &self.history.routes[seen.route];
            self.priority(seen) == Priority::High && route.budget == 0
        };
        for seen in self.record.seen.iter().filter(is_user) {
            level = (level + seen.came - last).min(floor * back);
            last = seen.came;
            if level >= back {
                came += 1;
                served += i64::from(seen.sent.is_some());
            }
            level -= if seen.sent.is_some() { back } else { 0 };
        }
        if served < came * 95 / 100 - 1 {
            return broken("floors serve", format!("{served} users of {came}, floor {floor}"));
        }
        Ok(())
    }
}
