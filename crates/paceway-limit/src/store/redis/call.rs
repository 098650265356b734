//! One call of the script: entries as it reads them. `answer` reads what it says. Never talks to a server.
//!
//! Requests that ask one token bucket alone, all for one cost, are a *group*: as many numbers as one of them,
//! and decided in one step (`plain.lua`). Everything else is written out entry by entry (`reserve.lua`).

use super::{marker::Expected, resp};
use crate::{
    algorithm::{Algorithm, MAX_BUDGET, Micros, STATE_VERSION, TokenBucket, concurrency::Ticket},
    store::{Check, Entry},
};
use ahash::{HashMap, HashSet};
use std::sync::Arc;

/// Groups that a call has at most: Lua takes so many values at once, and no more than a few thousand.
const GROUPS: usize = 1024;
/// Stands for an entry that is in no group.
const ALONE: u32 = u32::MAX;

/// Entries as a script call.
pub(super) struct Call<'e> {
    pub(super) entries: &'e [Entry],
    /// For each entry its group.
    pub(super) places: Vec<u32>,
    pub(super) groups: Vec<Group<'e>>,
    marker: String,
    /// Of the groups, then of the other entries.
    pub(super) keys: Vec<&'e Arc<str>>,
    numbers: HashMap<&'e str, usize>,
    /// Now, the groups, and the other entries, as words of a command.
    args: Vec<u8>,
    words: usize,
}

#[derive(Clone, Copy)]
pub(super) struct Group<'e> {
    check: &'e Check,
    pub(super) rule: TokenBucket,
    count: i64,
    least: Micros,
    greatest: Micros,
}

/// What can be in a group.
pub(super) struct Plain<'e> {
    pub(super) check: &'e Check,
    rule: TokenBucket,
    pub(super) budget: Micros,
}

// === impl Plain ===

impl<'e> Plain<'e> {
    pub(super) fn of(entry: &'e Entry) -> Option<Self> {
        let Entry::Reserve { checks, budget, ticket: None } = entry else { return None };
        let [check] = &**checks else { return None };
        let Algorithm::TokenBucket(rule) = check.algorithm else { return None };
        let budget = (*budget).min(MAX_BUDGET);
        (check.enforce && budget >= 0).then_some(Self { check, rule, budget })
    }
}

// === impl Call ===

impl<'e> Call<'e> {
    /// `now` is `None` for the server's clock; `marker` is the name of the one that is `expected`.
    pub(super) fn new(
        now: Option<Micros>,
        marker: String,
        expected: Expected,
        entries: &'e [Entry],
    ) -> Self {
        let mut call = Self {
            entries,
            places: Vec::with_capacity(entries.len()),
            groups: Vec::new(),
            marker,
            keys: Vec::new(),
            numbers: HashMap::default(),
            args: Vec::with_capacity(128),
            words: 0,
        };
        let mut shared = HashSet::default();
        for entry in entries {
            if Plain::of(entry).is_none() {
                shared.extend(entry.checks().iter().map(|check| &*check.key));
            }
        }
        // A key whose entries are no group is written out, and then all that use it must be, to keep their order.
        while let Err(key) = call.group(&shared) {
            shared.insert(key);
        }
        call.number(now.unwrap_or(-1));
        call.push_groups();
        call.word(expected.to_string().as_bytes());
        for (entry, place) in entries.iter().zip(std::mem::take(&mut call.places)) {
            if place == ALONE {
                call.push(entry);
            }
            call.places.push(place);
        }
        call
    }

    /// The first of its keys.
    pub(super) fn marker(&self) -> &str {
        &self.marker
    }

    /// The command that has the server execute it, by the script's `hash` or its text.
    pub(super) fn command(&self, by: &str, script: &str) -> Vec<u8> {
        let keys = self.keys.iter().map(|key| key.len() + 8).sum::<usize>();
        let mut out = Vec::with_capacity(128 + script.len() + keys + self.args.len());
        resp::head(&mut out, 4 + self.keys.len() + self.words);
        resp::push(&mut out, by.as_bytes());
        resp::push(&mut out, script.as_bytes());
        resp::push_number(&mut out, self.keys.len() as i64 + 1);
        resp::push(&mut out, self.marker.as_bytes());
        self.keys.iter().for_each(|key| resp::push(&mut out, key.as_bytes()));
        out.extend_from_slice(&self.args);
        out
    }

    /// Puts each entry into its group, but for those that use `shared` keys.
    ///
    /// # Errors
    ///
    /// A key whose entries differ in more than their budgets.
    fn group(&mut self, shared: &HashSet<&str>) -> Result<(), &'e str> {
        self.places.clear();
        self.groups.clear();
        self.keys.clear();
        self.numbers.clear();
        for entry in self.entries {
            let plain = Plain::of(entry).filter(|plain| !shared.contains(&*plain.check.key));
            let place = match plain {
                Some(plain) => self.place(&plain)?,
                None => ALONE,
            };
            self.places.push(place);
        }
        Ok(())
    }

    fn place(&mut self, plain: &Plain<'e>) -> Result<u32, &'e str> {
        let Plain { check, rule, budget } = *plain;
        let known = match self.groups.last() {
            // Often all ask one bucket, and there is no second.
            Some(last) if Arc::ptr_eq(&last.check.key, &check.key) => Some(self.groups.len() - 1),
            Some(last) if last.check.key == check.key => Some(self.groups.len() - 1),
            Some(_) => self.numbers.get(&*check.key).copied(),
            None => None,
        };
        if let Some(place) = known {
            let group = &mut self.groups[place];
            if group.rule != rule || group.check.cost != check.cost {
                return Err(&check.key);
            }
            group.count += 1;
            group.least = group.least.min(budget);
            group.greatest = group.greatest.max(budget);
            return Ok(place as u32);
        }
        let place = self.groups.len();
        if place >= GROUPS {
            return Ok(ALONE);
        }
        if place == 1 {
            self.numbers.insert(&self.groups[0].check.key, 0);
        }
        if place > 0 {
            self.numbers.insert(&check.key, place);
        }
        self.keys.push(&check.key);
        self.groups.push(Group { check, rule, count: 1, least: budget, greatest: budget });
        Ok(place as u32)
    }

    fn push_groups(&mut self) {
        if self.groups.is_empty() {
            return self.word(b"");
        }
        let mut packed = Vec::with_capacity(80 + 24 * self.groups.len());
        packed.extend((self.groups.len() as u16).to_le_bytes());
        let doubles = |packed: &mut Vec<u8>, numbers: &[i64]| {
            numbers.iter().for_each(|n| packed.extend_from_slice(&(*n as f64).to_le_bytes()));
        };
        let mut place = 0;
        let alike = |a: &Group<'_>, b: &Group<'_>| {
            (a.rule, a.check.cost, a.check.horizon) == (b.rule, b.check.cost, b.check.horizon)
        };
        for groups in self.groups.chunk_by(alike) {
            let Group { check, rule, .. } = groups[0];
            let [per, den, most] = rule.args();
            packed.extend_from_slice(&[STATE_VERSION, check.algorithm.letter()]);
            for number in [per, den, most] {
                packed.extend_from_slice(&number.to_le_bytes());
            }
            let (full, length, count) = (most * per, check.cost * per, groups.len() as i64);
            doubles(&mut packed, &[den, full, length, rule.far(), check.horizon, count]);
            for Group { count, least, greatest, .. } in groups {
                doubles(&mut packed, &[*count, *least, *greatest]);
                if least < greatest {
                    let entries = self.entries.iter().zip(&self.places);
                    let own = entries.filter(|(_, at)| **at == place);
                    for plain in own.filter_map(|(entry, _)| Plain::of(entry)) {
                        doubles(&mut packed, &[plain.budget]);
                    }
                }
                place += 1;
            }
        }
        self.word(&packed);
    }

    fn push(&mut self, entry: &'e Entry) {
        match entry {
            Entry::Reserve { checks, budget, ticket } => {
                match ticket {
                    None => self.word(b"D"),
                    Some(Ticket { gateway, number, deadline }) => {
                        self.word(b"T");
                        [*gateway, *number, *deadline].into_iter().for_each(|n| self.number(n));
                    }
                }
                self.number(*budget);
                self.number(checks.len() as i64);
                for check in checks.iter() {
                    self.head(check);
                    self.number(check.cost);
                    self.number(i64::from(check.enforce));
                    self.rule(check);
                }
            }
            Entry::Refund { check, grant } => {
                self.word(b"G");
                self.head(check);
                for number in [check.cost, grant.whole, grant.ticks, grant.born, grant.aux] {
                    self.number(number);
                }
                self.rule(check);
            }
            Entry::Renew { check, grant } => {
                self.word(b"R");
                self.head(check);
                self.number(grant.whole);
                self.number(grant.ticks);
                self.rule(check);
            }
            Entry::Forget { check } => {
                self.word(b"X");
                self.head(check);
                self.rule(check);
            }
            Entry::Look { check } => {
                self.word(b"P");
                self.head(check);
                self.rule(check);
            }
        }
    }

    fn head(&mut self, check: &'e Check) {
        let next = self.keys.len();
        let number = *self.numbers.entry(&check.key).or_insert(next);
        if number == next {
            self.keys.push(&check.key);
        }
        // Behind the marker, and counted from 1.
        self.number(number as i64 + 2);
        self.number(check.algorithm.letter().into());
    }

    fn rule(&mut self, check: &Check) {
        self.number(check.horizon);
        check.algorithm.args().into_iter().for_each(|arg| self.number(arg));
    }

    fn word(&mut self, word: &[u8]) {
        self.words += 1;
        resp::push(&mut self.args, word);
    }

    fn number(&mut self, number: i64) {
        self.words += 1;
        resp::push_number(&mut self.args, number);
    }
}
