//! One call of the script: its entries in the form in which the script reads them. Sends nothing; `answer` reads the reply.
//!
//! Requests that ask one token bucket or one window alone take `plain`. Every other entry is written out (`entries.lua`).

use super::{
    epoch::Expected,
    plain::{PlainWay, Way, horizon},
    topic::channel_end,
};
use crate::{
    algorithm::{
        Algorithm, Micros, concurrency::Ticket, fair::Place, gate::MAX_PAUSE, reserve::Part,
    },
    store::{Check, Checks, Entry, Turn, turn::of_queue},
};
use ahash::HashMap;
use redis::{Arg, Cmd, RedisWrite};
use std::borrow::Cow;

/// The ends of the names of the two keys in which the requests of a limiter wait for their turns. The key of a limiter has
/// no such sign: names and values of keys are written with escapes.
pub(super) const QUEUE_KEYS: [&str; 2] = ["#queue", "#order"];

/// Entries in the form of a call of the script, and what is needed to read its reply.
pub(super) struct ScriptCall<'e> {
    pub(super) entries: &'e [Entry],
    pub(super) plain: PlainWay<'e>,
    /// The name of the epoch's key, which is the first key of the call.
    epoch: Cow<'e, str>,
    /// The other keys: first those of the plain way, then those of the other entries.
    pub(super) keys: Vec<Cow<'e, str>>,
    numbers: HashMap<&'e str, usize>,
    /// The numbers of the keys of queues, by the keys of their limiters.
    queues: HashMap<&'e str, usize>,
    /// The words after the keys: the instant, those of the plain way, and the expected epoch.
    args: Cmd,
    /// The other entries, as `entries.lua` reads them.
    packed: Vec<u8>,
}

// === impl ScriptCall ===

impl<'e> ScriptCall<'e> {
    /// Writes a call at `now` in µs since 1970, or at the store's time if that is `None`. `epoch` is the name of the key
    /// that holds the `expected` epoch.
    pub(super) fn new(
        now: Option<Micros>,
        epoch: Cow<'e, str>,
        expected: Expected,
        entries: &'e [Entry],
    ) -> Self {
        let plain = PlainWay::of(entries);
        let mut keys = Vec::with_capacity(1);
        keys.extend(plain.keys().map(Cow::Borrowed));
        let mut call = Self {
            entries,
            plain,
            epoch,
            keys,
            numbers: HashMap::default(),
            queues: HashMap::default(),
            args: Cmd::with_capacity(3, 64),
            packed: Vec::new(),
        };
        call.args.arg(now.unwrap_or(-1 - expected.seen));
        call.args.write_arg(&call.plain.packed());
        call.args.write_arg(expected.word().as_bytes());
        for (i, entry) in entries.iter().enumerate() {
            if matches!(call.plain.ways[i], Way::Long) {
                call.push(entry);
            }
        }
        call
    }

    /// Returns the name of the epoch's key, by which a Cluster finds the node.
    pub(super) fn epoch(&self) -> &str {
        &self.epoch
    }

    /// Returns the command in a database: `EVALSHA` with the script's hash, or `EVAL` with its text.
    pub(super) fn command(&self, by: &str, script: &str, database: u8) -> Cmd {
        let words = self.args.args_iter();
        let bytes =
            words.clone().map(|word| if let Arg::Simple(word) = word { word.len() } else { 0 });
        let keys = self.keys.iter().map(|key| key.len()).sum::<usize>();
        let length = 16 + script.len() + self.epoch.len() + keys + bytes.sum::<usize>();
        let length = length + self.packed.len();
        let mut command = Cmd::with_capacity(5 + self.keys.len() + words.len(), length);
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
        if !self.packed.is_empty() {
            command.write_arg(&self.packed);
            if database > 0 {
                command.write_arg(channel_end(database).as_bytes());
            }
        }
        command
    }

    fn push(&mut self, entry: &'e Entry) {
        match entry {
            Entry::Reserve { checks, budget, ticket: Some(ticket) } => {
                match of_queue(checks).and_then(|q| Some((q, checks[q].turn.as_ref()?))) {
                    None => self.packed.push(b'T'),
                    Some((q, turn)) => {
                        self.packed.push(b'Q');
                        self.queue(checks, q);
                        self.number(turn.priority as i64 + 1);
                        self.number(turn.weight);
                        self.text(turn.tenant.as_bytes());
                    }
                }
                let Ticket { gateway, number, deadline } = *ticket;
                [gateway, number, deadline, *budget].into_iter().for_each(|n| self.number(n));
                self.checks(checks);
            }
            Entry::Block { checks, budget, ask } => {
                self.packed.push(b'B');
                [ask.requests, ask.reach, ask.jump, *budget]
                    .into_iter()
                    .for_each(|n| self.number(n));
                self.checks(checks);
            }
            Entry::Reserve { checks, budget, ticket: None } => {
                self.packed.push(b'D');
                self.number(*budget);
                self.checks(checks);
            }
            Entry::MoveUp { checks, budget, parts } => {
                self.packed.push(b'U');
                self.number(*budget);
                self.checks(checks);
                for Part { at, grant } in parts {
                    let numbers = [*at, grant.whole, grant.ticks, grant.born, grant.aux];
                    numbers.into_iter().for_each(|n| self.number(n));
                }
            }
            Entry::Refund { check, grant } => {
                self.packed.push(b'G');
                self.head(check);
                for number in [check.cost, grant.whole, grant.ticks, grant.born, grant.aux] {
                    self.number(number);
                }
                self.rule(check);
            }
            Entry::Renew { check, grant } => {
                self.packed.push(b'R');
                self.head(check);
                self.number(grant.whole);
                self.number(grant.ticks);
                self.rule(check);
            }
            Entry::Forget { check } => {
                self.packed.push(b'X');
                self.head(check);
                self.rule(check);
            }
            Entry::Confirm { checks, place } => self.push_place(b'C', checks, *place),
            Entry::Leave { checks, place } => self.push_place(b'V', checks, *place),
            Entry::Tenants { check } => {
                self.packed.push(b'N');
                self.queue_of(check);
                // The turns at a concurrency limiter are not lost with other data.
                self.number(if check.is_lease() { -1 } else { horizon(check) });
            }
            Entry::Look { check } => {
                self.packed.push(b'P');
                self.head(check);
                self.rule(check);
            }
            Entry::Pause { check, pause } => {
                self.packed.push(b'Z');
                self.head(check);
                self.number(pause.span.clamp(0, MAX_PAUSE));
                self.number(pause.status.into());
                self.number(pause.empties(check).into());
                self.rule(check);
            }
            Entry::Charge { check } => {
                self.packed.push(b'K');
                self.head(check);
                self.number(check.cost);
                self.rule(check);
            }
            Entry::Lower { check, remaining } => {
                self.packed.push(b'M');
                self.head(check);
                self.number((*remaining).max(0));
                self.rule(check);
            }
        }
    }

    fn push_place(&mut self, step: u8, checks: &'e Checks, place: Place) {
        self.packed.push(step);
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
            if takes_turns(check) {
                let turn = match &check.turn {
                    Some(turn) => Cow::Borrowed(turn),
                    None => Cow::Owned(Turn::of_nobody()),
                };
                self.number(turn.priority as i64 + 1);
                self.number(turn.weight);
                self.text(turn.tenant.as_bytes());
            }
        }
    }

    /// Writes the number of the queue of check `q`, and of that check.
    fn queue(&mut self, checks: &'e Checks, q: usize) {
        self.queue_of(&checks[q]);
        self.number(q as i64 + 1);
    }

    /// Writes the number of the first key of a limiter's queue. The other one follows it. The key of the limiter comes before
    /// them, so that the script can read the state of the first entry with the epoch.
    fn queue_of(&mut self, check: &'e Check) {
        self.key(check);
        let next = self.keys.len();
        let number = *self.queues.entry(&check.key).or_insert(next);
        if number == next {
            let names = QUEUE_KEYS.iter().map(|end| Cow::Owned(format!("{}{end}", check.key)));
            self.keys.extend(names);
        }
        self.number(number as i64 + 2);
    }

    /// Returns the number of the key of a limiter.
    fn key(&mut self, check: &'e Check) -> i64 {
        let next = self.keys.len();
        let number = *self.numbers.entry(&check.key).or_insert(next);
        if number == next {
            self.keys.push(Cow::Borrowed(&check.key));
        }
        // Lua counts from 1, and the epoch's key is the first.
        number as i64 + 2
    }

    fn head(&mut self, check: &'e Check) {
        let number = self.key(check);
        self.number(number);
        self.number(check.algorithm.letter().into());
    }

    fn rule(&mut self, check: &'e Check) {
        self.number(horizon(check));
        check.algorithm.args().into_iter().for_each(|arg| self.number(arg));
        match check.is_lease() {
            true if takes_turns(check) => self.queue_of(check),
            true => self.number(0),
            false => {}
        }
    }

    fn text(&mut self, text: &[u8]) {
        self.number(text.len() as i64);
        self.packed.extend_from_slice(text);
    }

    fn number(&mut self, number: i64) {
        self.packed.extend_from_slice(&(number as f64).to_le_bytes());
    }
}

/// Whether the requests that wait for permits of a concurrency limiter take turns.
fn takes_turns(check: &Check) -> bool {
    matches!(check.algorithm, Algorithm::Concurrency(rule) if rule.takes_turns())
}
