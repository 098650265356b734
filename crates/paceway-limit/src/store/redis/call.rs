//! One call of the script: its entries in the form in which the script reads them (`wire`, `entries.lua`). Sends nothing;
//! `answer` reads the reply.

use super::{
    alike::{self, Alike},
    epoch::Expected,
    topic::channel_end,
    wire::{self, EntryForm},
};
use crate::{
    algorithm::{
        Grant, Micros, Rule,
        concurrency::Ticket,
        fair::{Place, Priority},
        gate::{MAX_PAUSE, Refusal, Remainder},
        reserve::Part,
        token_bucket::BlockAsk,
    },
    store::{Alternative, Alternatives, Check, Checks, Entry, OnLoss, Turn, turn::of_queue},
};
use ahash::HashMap;
use redis::{Arg, Cmd, RedisWrite};
use std::{borrow::Cow, slice};

/// The ends of the names of the two keys in which the requests of a limiter wait for their turns. The key of a limiter has
/// no such sign: names and values of keys are written with escapes.
pub(super) const QUEUE_KEYS: [&str; 2] = ["#queue", "#order"];

/// Entries in the form of a call of the script, and what is needed to read its reply.
pub(super) struct ScriptCall<'e> {
    pub(super) entries: &'e [Entry],
    /// The entries in the order in which they are written; those of a group are written as one.
    pub(super) groups: Vec<Alike>,
    /// The name of the epoch's key, which is the first key of the call.
    epoch: Cow<'e, str>,
    /// The other keys.
    pub(super) keys: Vec<Cow<'e, str>>,
    numbers: HashMap<&'e str, usize>,
    /// The numbers of the keys of queues, by the keys of their limiters.
    queues: HashMap<&'e str, usize>,
    /// The words after the keys: the instant and the expected epoch.
    args: Cmd,
    /// The entries, as `entries.lua` reads them.
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
        let mut call = Self {
            entries,
            groups: alike::group(entries),
            epoch,
            keys: Vec::with_capacity(1),
            numbers: HashMap::default(),
            queues: HashMap::default(),
            args: Cmd::with_capacity(2, 40),
            packed: Vec::with_capacity(128 * entries.len()),
        };
        call.args.arg(now.unwrap_or(-1 - expected.seen));
        call.args.write_arg(expected.word().as_bytes());
        for group in std::mem::take(&mut call.groups) {
            match *group {
                [one] => call.push(&entries[one]),
                _ => call.push_alike(&group),
            }
            call.groups.push(group);
        }
        call
    }

    /// Returns the name of the epoch's key, by which a Cluster finds the node.
    pub(super) fn epoch(&self) -> &str {
        &self.epoch
    }

    /// Returns the command in a database: `FCALL` with the function's name, `EVALSHA` with the script's hash, or `EVAL` with its text.
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
        command.write_arg(&self.packed);
        if database > 0 {
            command.write_arg(channel_end(database).as_bytes());
        }
        command
    }

    fn push(&mut self, entry: &'e Entry) {
        match entry {
            Entry::Reserve { checks, budget, ticket: Some(ticket) } => {
                let Ticket { gateway, number, deadline } = *ticket;
                let numbers = [*budget, gateway, number, deadline];
                match of_queue(checks) {
                    None => self.write(&wire::RESERVE_WITH_TICKET, checks, &numbers),
                    Some(q) => {
                        let [budget, gateway, number, deadline] = numbers;
                        let numbers = [budget, gateway, number, deadline, q as i64 + 1];
                        self.write_in_turn(&wire::RESERVE_IN_TURN, checks, q, &numbers);
                    }
                }
            }
            Entry::Choose { among, budget, ticket } => self.push_ways(among, *budget, *ticket),
            Entry::Block { checks, budget, ask } => {
                let BlockAsk { requests, reach, jump } = *ask;
                self.write(&wire::RESERVE_BLOCK, checks, &[*budget, requests, reach, jump]);
            }
            Entry::Reserve { checks, budget, ticket: None } => {
                self.write(&wire::RESERVE, checks, &[*budget]);
            }
            Entry::MoveUp { checks, budget, parts } => {
                self.write(&wire::MOVE_UP, checks, &[*budget]);
                self.text(parts.iter().flat_map(|Part { at, grant }| {
                    [*at, grant.whole, grant.ticks, grant.born, grant.aux]
                }));
            }
            Entry::Refund { check, grant } => {
                let Grant { whole, ticks, born, aux } = *grant;
                self.write(&wire::REFUND, slice::from_ref(check), &[whole, ticks, born, aux]);
            }
            Entry::Renew { check, grant } => {
                self.write(&wire::RENEW, slice::from_ref(check), &[grant.whole, grant.ticks]);
            }
            Entry::Forget { check } => self.write(&wire::FORGET, slice::from_ref(check), &[]),
            Entry::Confirm { checks, place } => self.push_place(&wire::CONFIRM, checks, *place),
            Entry::Leave { checks, place } => self.push_place(&wire::LEAVE, checks, *place),
            Entry::Tenants { check } => {
                let queue = self.queue_of(check);
                // The turns at a concurrency limiter are not lost with other data.
                let horizon = if check.is_lease() { -1 } else { horizon(check) };
                self.write(&wire::TENANTS, &[], &[queue, horizon]);
            }
            Entry::Look { check } => self.write(&wire::LOOK, slice::from_ref(check), &[]),
            Entry::Pause { check, pause } => {
                let Refusal { span, status, unit, ago } = pause.refusal(check);
                let numbers = [span, status.into(), unit, ago];
                self.write(&wire::PAUSE, slice::from_ref(check), &numbers);
            }
            Entry::Charge { check } => self.write(&wire::CHARGE, slice::from_ref(check), &[]),
            Entry::Lower { check, told } => {
                let Remainder { permits, waiting, span } = *told;
                let next = told.next(check.algorithm.capacity());
                let numbers = [permits.max(0), waiting, next, span.clamp(0, MAX_PAUSE)];
                self.write(&wire::LOWER, slice::from_ref(check), &numbers);
            }
        }
    }

    /// Writes a request that can be made in several ways.
    fn push_ways(&mut self, among: &'e Alternatives, budget: Micros, ticket: Option<Ticket>) {
        let has_ticket = i64::from(ticket.is_some());
        let Ticket { gateway, number, deadline } =
            ticket.unwrap_or(Ticket { gateway: 0, number: 0, deadline: 0 });
        self.packed.push(wire::CHOOSE.letter);
        self.number(among.all().len() as i64);
        for Alternative { checks, .. } in among.ways() {
            let q = ticket.and_then(|_| of_queue(checks));
            for (i, check) in checks.iter().enumerate() {
                self.limiter(check, q == Some(i) || takes_turns(check));
            }
        }
        for number in [budget, has_ticket, gateway, number, deadline] {
            self.number(number);
        }
        let ways = among.ways().iter();
        self.text(ways.flat_map(|way| [way.checks.len() as i64, way.after]));
    }

    /// Writes requests for the same cost of one bucket as one entry.
    fn push_alike(&mut self, group: &Alike) {
        let entries = self.entries;
        let budgets = || group.iter().map(|i| entries[*i].budget());
        let (least, greatest) = (budgets().min().unwrap_or(0), budgets().max().unwrap_or(0));
        let numbers = [group.len() as i64, least];
        self.write(&wire::RESERVE_ALIKE, entries[group[0]].checks(), &numbers);
        self.text(budgets().filter(|_| least < greatest));
    }

    fn push_place(&mut self, form: &EntryForm, checks: &'e Checks, place: Place) {
        let q = of_queue(checks).unwrap_or_default();
        self.write_in_turn(form, checks, q, &[q as i64 + 1, place.0.cast_signed()]);
    }

    fn write(&mut self, form: &EntryForm, checks: &'e [Check], numbers: &[i64]) {
        self.write_in_turn(form, checks, usize::MAX, numbers);
    }

    /// Writes an entry without its text. The request takes its turn at the limiter with index `q`.
    fn write_in_turn(&mut self, form: &EntryForm, checks: &'e [Check], q: usize, numbers: &[i64]) {
        debug_assert_eq!(numbers.len(), form.numbers.len(), "{form:?}");
        self.packed.push(form.letter);
        self.number(checks.len() as i64);
        for (i, check) in checks.iter().enumerate() {
            self.limiter(check, i == q || takes_turns(check));
        }
        numbers.iter().for_each(|number| self.number(*number));
    }

    fn limiter(&mut self, check: &'e Check, has_queue: bool) {
        let key = self.key(check);
        self.number(key);
        let queue = if has_queue { self.queue_of(check) } else { 0 };
        self.number(queue);
        let args = check.algorithm.numbers();
        let bounds = check.bounds.as_ref().map(|bounds| [bounds.start, bounds.min, bounds.unit]);
        let kept = [Priority::Normal, Priority::Low].map(|priority| check.kept_from(priority));
        let kept = (!check.floors.is_none()).then_some(kept);
        let numbers = 3 + args.len() + kept.map_or(0, |kept| kept.len());
        let numbers = numbers + bounds.map_or(0, |bounds| bounds.len());
        self.number(1 + 8 * numbers as i64);
        self.packed.push(check.algorithm.letter());
        let flags = i64::from(check.enforce) + 2 * i64::from(bounds.is_some());
        let flags = flags + 4 * i64::from(kept.is_some());
        for number in [check.cost, flags, horizon(check)] {
            self.number(number);
        }
        let kept = kept.into_iter().flatten();
        let rule = bounds.into_iter().flatten().chain(args);
        kept.chain(rule).for_each(|number| self.number(number));
        if has_queue {
            let turn = match &check.turn {
                Some(turn) => Cow::Borrowed(turn),
                None => Cow::Owned(Turn::of_nobody()),
            };
            self.number(turn.priority as i64 + 1);
            self.number(turn.weight);
            self.number(turn.tenant.len() as i64);
            self.packed.extend_from_slice(turn.tenant.as_bytes());
        }
    }

    /// Returns the number of the first key of a limiter's queue. The other one follows it.
    fn queue_of(&mut self, check: &'e Check) -> i64 {
        let next = self.keys.len();
        let number = *self.queues.entry(&check.key).or_insert(next);
        if number == next {
            let names = QUEUE_KEYS.iter().map(|end| Cow::Owned(format!("{}{end}", check.key)));
            self.keys.extend(names);
        }
        number as i64 + 2
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

    /// Writes the text of an entry, which consists of numbers.
    fn text(&mut self, numbers: impl Iterator<Item = i64> + Clone) {
        self.number(8 * numbers.clone().count() as i64);
        numbers.for_each(|number| self.number(number));
    }

    fn number(&mut self, number: i64) {
        self.packed.extend_from_slice(&(number as f64).to_le_bytes());
    }
}

/// The horizon as the script reads it: that of a limiter which trusts the store after a loss is negative.
fn horizon(check: &Check) -> Micros {
    match check.on_loss {
        OnLoss::Close => check.horizon,
        OnLoss::Trust => -1 - check.horizon,
    }
}

/// Whether the requests that wait for permits of a concurrency limiter take turns.
fn takes_turns(check: &Check) -> bool {
    matches!(check.algorithm, Rule::Permits(rule) if rule.takes_turns())
}
