//! One call of the script: its entries in the form in which the script reads them. Sends nothing; `answer` reads the reply.
//!
//! Requests that ask only one token bucket, all for the same cost, are a *group*: they take as many numbers as one of them,
//! and are decided in one step (`plain.lua`). Every other entry is written out (`entries.lua`).

use super::epoch::Expected;
use crate::{
    algorithm::{
        Algorithm, MAX_BUDGET, Micros, STATE_VERSION, TokenBucket, concurrency::Ticket,
        fair::Place, gate::MAX_PAUSE,
    },
    store::{Check, Checks, Entry, OnLoss, turn::of_queue},
};
use ahash::{HashMap, HashSet};
use redis::{Arg, Cmd, RedisWrite};
use std::{borrow::Cow, sync::Arc};

/// The greatest number of groups in a call. The script passes their keys to one `MGET` as arguments, of which Lua takes a
/// few thousand at most.
const GROUPS: usize = 1024;
/// The ends of the names of the two keys in which the requests of a limiter wait for their turns. The key of a limiter has
/// no such sign: names and values of keys are written with escapes.
pub(super) const QUEUE_KEYS: [&str; 2] = ["#queue", "#order"];
/// The number in the place of a group's for an entry that is in none.
const ALONE: u32 = u32::MAX;

/// Entries in the form of a call of the script, and what is needed to read its reply.
pub(super) struct ScriptCall<'e> {
    pub(super) entries: &'e [Entry],
    /// The number of each entry's group, or [`ALONE`].
    pub(super) places: Vec<u32>,
    pub(super) groups: Vec<BucketGroup<'e>>,
    /// The name of the epoch's key, which is the first key of the call.
    epoch: Cow<'e, str>,
    /// The other keys: first those of the groups, then those of the other entries.
    pub(super) keys: Vec<Cow<'e, str>>,
    numbers: HashMap<&'e str, usize>,
    /// The numbers of the keys of queues, by the keys of their limiters.
    queues: HashMap<&'e str, usize>,
    /// The words after the keys: the instant, the groups, the expected epoch, and the other entries.
    args: Cmd,
}

#[derive(Clone, Copy)]
pub(super) struct BucketGroup<'e> {
    check: &'e Check,
    pub(super) rule: TokenBucket,
    count: i64,
    least: Micros,
    greatest: Micros,
}

/// A request that can be in a group: it asks for permits of one token bucket, and is not waiting for concurrency.
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
        (check.enforce && budget >= 0 && check.turn.is_none()).then_some(Self {
            check,
            rule,
            budget,
        })
    }
}

// === impl ScriptCall ===

impl<'e> ScriptCall<'e> {
    /// Writes a call at `now` in µs since 1970, or at the server's time if that is `None`. `epoch` is the name of the key
    /// that holds the `expected` epoch.
    pub(super) fn new(
        now: Option<Micros>,
        epoch: Cow<'e, str>,
        expected: Expected,
        entries: &'e [Entry],
    ) -> Self {
        let mut call = Self {
            entries,
            places: Vec::with_capacity(entries.len()),
            // Often all requests ask for one bucket.
            groups: Vec::with_capacity(1),
            epoch,
            keys: Vec::with_capacity(1),
            numbers: HashMap::default(),
            queues: HashMap::default(),
            args: Cmd::with_capacity(16, 128),
        };
        let mut shared = HashSet::default();
        for entry in entries {
            if Plain::of(entry).is_none() {
                shared.extend(entry.checks().iter().map(|check| &*check.key));
            }
        }
        // When one entry of a key is written out, all of them are, so that they keep their order.
        while let Err(key) = call.group(&shared) {
            shared.insert(key);
        }
        call.number(now.unwrap_or(-1));
        call.push_groups();
        call.word(expected.word().as_bytes());
        for (entry, place) in entries.iter().zip(std::mem::take(&mut call.places)) {
            if place == ALONE {
                call.push(entry);
            }
            call.places.push(place);
        }
        call
    }

    /// Returns the name of the epoch's key, by which a Cluster finds the node.
    pub(super) fn epoch(&self) -> &str {
        &self.epoch
    }

    /// Returns the command: `EVALSHA` with the script's hash, or `EVAL` with its text.
    pub(super) fn command(&self, by: &str, script: &str) -> Cmd {
        let words = self.args.args_iter();
        let bytes =
            words.clone().map(|word| if let Arg::Simple(word) = word { word.len() } else { 0 });
        let keys = self.keys.iter().map(|key| key.len()).sum::<usize>();
        let length = 16 + script.len() + self.epoch.len() + keys + bytes.sum::<usize>();
        let mut command = Cmd::with_capacity(4 + self.keys.len() + words.len(), length);
        command.write_arg(by.as_bytes());
        command.write_arg(script.as_bytes());
        command.arg(self.keys.len() + 1);
        command.write_arg(self.epoch.as_bytes());
        self.keys.iter().for_each(|key| command.write_arg(key.as_bytes()));
        for word in words {
            if let Arg::Simple(word) = word {
                command.write_arg(word);
            }
        }
        command
    }

    /// Puts each entry into its group, except those that use `shared` keys.
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
            // Often all requests ask for one bucket, and no second group exists.
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
        self.keys.push(Cow::Borrowed(&check.key));
        self.groups.push(BucketGroup { check, rule, count: 1, least: budget, greatest: budget });
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
        let alike = |a: &BucketGroup<'_>, b: &BucketGroup<'_>| {
            (a.rule, a.check.cost, horizon(a.check)) == (b.rule, b.check.cost, horizon(b.check))
        };
        for groups in self.groups.chunk_by(alike) {
            let BucketGroup { check, rule, .. } = groups[0];
            let [per, den, most] = rule.args();
            packed.extend_from_slice(&[STATE_VERSION, check.algorithm.letter()]);
            for number in [per, den, most] {
                packed.extend_from_slice(&number.to_le_bytes());
            }
            let (full, length, count) = (most * per, check.cost * per, groups.len() as i64);
            doubles(&mut packed, &[den, full, length, rule.far(), horizon(check), count]);
            for BucketGroup { count, least, greatest, .. } in groups {
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
            Entry::Reserve { checks, budget, ticket: Some(ticket) } => {
                match of_queue(checks).and_then(|q| Some((q, checks[q].turn.as_ref()?))) {
                    None => self.word(b"T"),
                    Some((q, turn)) => {
                        self.word(b"Q");
                        self.queue(checks, q);
                        self.number(turn.priority as i64 + 1);
                        self.number(turn.weight);
                        self.word(turn.tenant.as_bytes());
                    }
                }
                let Ticket { gateway, number, deadline } = *ticket;
                [gateway, number, deadline, *budget].into_iter().for_each(|n| self.number(n));
                self.checks(checks);
            }
            Entry::Reserve { checks, budget, ticket: None } => {
                self.word(b"D");
                self.number(*budget);
                self.checks(checks);
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
            Entry::Confirm { checks, place } => self.push_place(b"C", checks, *place),
            Entry::Leave { checks, place } => self.push_place(b"V", checks, *place),
            Entry::Tenants { check } => {
                self.word(b"N");
                self.queue_of(check);
                self.number(horizon(check));
            }
            Entry::Look { check } => {
                self.word(b"P");
                self.head(check);
                self.rule(check);
            }
            Entry::Pause { check, pause } => {
                self.word(b"Z");
                self.head(check);
                self.number(pause.span.clamp(0, MAX_PAUSE));
                self.number(pause.status.into());
                self.rule(check);
            }
            Entry::Lower { check, remaining } => {
                self.word(b"M");
                self.head(check);
                self.number((*remaining).max(0));
                self.rule(check);
            }
        }
    }

    fn push_place(&mut self, step: &[u8], checks: &'e Checks, place: Place) {
        self.word(step);
        self.queue(checks, of_queue(checks).unwrap_or_default());
        self.number(place.0.cast_signed());
        self.checks(checks);
    }

    fn checks(&mut self, checks: &'e Checks) {
        self.number(checks.len() as i64);
        for check in checks.iter() {
            self.head(check);
            self.number(check.cost);
            self.number(i64::from(check.enforce));
            self.rule(check);
        }
    }

    /// Writes the number of the queue of check `q`, and of that check.
    fn queue(&mut self, checks: &'e Checks, q: usize) {
        self.queue_of(&checks[q]);
        self.number(q as i64 + 1);
    }

    /// Writes the number of the first key of a limiter's queue. The other one follows it.
    fn queue_of(&mut self, check: &'e Check) {
        let next = self.keys.len();
        let number = *self.queues.entry(&check.key).or_insert(next);
        if number == next {
            let names = QUEUE_KEYS.iter().map(|end| Cow::Owned(format!("{}{end}", check.key)));
            self.keys.extend(names);
        }
        self.number(number as i64 + 2);
    }

    fn head(&mut self, check: &'e Check) {
        let next = self.keys.len();
        let number = *self.numbers.entry(&check.key).or_insert(next);
        if number == next {
            self.keys.push(Cow::Borrowed(&check.key));
        }
        // Lua counts from 1, and the epoch's key is the first.
        self.number(number as i64 + 2);
        self.number(check.algorithm.letter().into());
    }

    fn rule(&mut self, check: &Check) {
        self.number(horizon(check));
        check.algorithm.args().into_iter().for_each(|arg| self.number(arg));
    }

    fn word(&mut self, word: &[u8]) {
        self.args.write_arg(word);
    }

    fn number(&mut self, number: i64) {
        self.args.arg(number);
    }
}

/// The horizon as the script reads it: that of a limiter which trusts the store after a loss is negative.
fn horizon(check: &Check) -> Micros {
    match check.on_loss {
        OnLoss::Close => check.horizon,
        OnLoss::Trust => -1 - check.horizon,
    }
}
