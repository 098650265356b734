//! The requests of a call that take the plain way: they ask one token bucket or one sliding window alone. Sends nothing.
//!
//! Requests that ask one token bucket, all for the same cost, are a *group*: they take as many numbers as one of them, and
//! are decided in one step (`plain.lua`). Windows are decided request by request (`sliding_window/plain.lua`), and so are
//! requests that ask for a block (`block.lua`).

use crate::{
    algorithm::{
        Algorithm, MAX_BUDGET, Micros, STATE_VERSION, SlidingWindow, TokenBucket,
        token_bucket::BlockAsk,
    },
    store::{Check, Entry, OnLoss},
};
use ahash::{HashMap, HashSet};
use std::sync::Arc;

/// The greatest number of groups in a call. The script passes their keys to one `MGET` as arguments, of which Lua takes a
/// few thousand at most.
const GROUPS: usize = 1024;
/// The greatest number of requests for windows in a call, for the same reason: each has seven numbers in the reply.
const WINDOWS: usize = 512;

/// The greatest number of requests for blocks in a call. The keys of a call are compared with each of them.
const BLOCKS: usize = 32;

/// The way of an entry through the script.
#[derive(Debug, Clone, Copy)]
pub(super) enum Way {
    /// With the group of this number.
    Group(usize),
    /// As the request for a window of this number.
    Window(usize),
    /// As the request for a block of this number.
    Block(usize),
    /// Written out.
    Long,
}

/// The groups, and the requests for windows, of a call.
pub(super) struct PlainWay<'e> {
    entries: &'e [Entry],
    /// The way of each entry.
    pub(super) ways: Vec<Way>,
    pub(super) groups: Vec<BucketGroup<'e>>,
    pub(super) windows: Vec<WindowRequest<'e>>,
    pub(super) blocks: Vec<BlockRequest<'e>>,
    /// The keys of the windows.
    window_keys: Vec<&'e str>,
    /// The places of the keys among the groups or the windows, while more than one is known.
    known: HashMap<&'e str, KeyPlace>,
}

#[derive(Clone, Copy)]
pub(super) struct BucketGroup<'e> {
    check: &'e Check,
    pub(super) rule: TokenBucket,
    count: i64,
    least: Micros,
    greatest: Micros,
}

#[derive(Clone, Copy)]
pub(super) struct WindowRequest<'e> {
    /// The position of the request among the entries of the call.
    pub(super) entry: usize,
    /// The position of the key among those of the windows.
    key: usize,
    check: &'e Check,
    rule: SlidingWindow,
    pub(super) budget: Micros,
}

#[derive(Clone, Copy)]
pub(super) struct BlockRequest<'e> {
    /// The position of the request among the entries of the call.
    pub(super) entry: usize,
    check: &'e Check,
    rule: TokenBucket,
    pub(super) budget: Micros,
    ask: BlockAsk,
}

/// The place of a key.
#[derive(Debug, Clone, Copy)]
enum KeyPlace {
    Group(usize),
    Window(usize),
    Block,
}

/// A request that can take the plain way: it asks for permits of one token bucket or one sliding window, and is not waiting
/// for concurrency.
pub(super) struct Plain<'e> {
    pub(super) check: &'e Check,
    pub(super) budget: Micros,
}

// === impl Plain ===

impl<'e> Plain<'e> {
    pub(super) fn of(entry: &'e Entry) -> Option<Self> {
        let Entry::Reserve { checks, budget, ticket: None } = entry else { return None };
        let [check] = &**checks else { return None };
        let budget = (*budget).min(MAX_BUDGET);
        // The long way remembers requests that wait so near to their permits.
        let knows = match check.algorithm {
            Algorithm::TokenBucket(rule) => rule.is_usual(check.cost),
            Algorithm::SlidingWindow(_) => true,
            _ => false,
        };
        let is_plain = knows && check.enforce && budget >= 0 && check.turn.is_none();
        is_plain.then_some(Self { check, budget })
    }
}

// === impl PlainWay ===

impl<'e> PlainWay<'e> {
    /// Finds the way of each entry. When one entry of a key is written out, all of them are, so that they keep their order.
    pub(super) fn of(entries: &'e [Entry]) -> Self {
        let mut way = Self {
            entries,
            ways: Vec::with_capacity(entries.len()),
            // Often all requests ask for one bucket.
            groups: Vec::with_capacity(1),
            windows: Vec::new(),
            blocks: Vec::new(),
            window_keys: Vec::new(),
            known: HashMap::default(),
        };
        let mut shared = HashSet::default();
        let is_long =
            |entry: &&Entry| Plain::of(entry).is_none() && !matches!(entry, Entry::Block { .. });
        for entry in entries.iter().filter(is_long) {
            shared.extend(entry.checks().iter().map(|check| &*check.key));
        }
        while let Err(key) = way.find(&shared) {
            shared.insert(key);
        }
        way
    }

    /// Returns the keys in the order in which the script expects them.
    pub(super) fn keys(&self) -> impl Iterator<Item = &'e str> {
        let groups = self.groups.iter().map(|group| &*group.check.key);
        let blocks = self.blocks.iter().map(|block| &*block.check.key);
        groups.chain(blocks).chain(self.window_keys.iter().copied())
    }

    /// Finds the way of each entry, where those of `shared` keys are written out.
    ///
    /// # Errors
    ///
    /// A key whose entries differ in more than their budgets.
    fn find(&mut self, shared: &HashSet<&str>) -> Result<(), &'e str> {
        self.ways.clear();
        self.groups.clear();
        self.windows.clear();
        self.blocks.clear();
        self.window_keys.clear();
        self.known.clear();
        for (i, entry) in self.entries.iter().enumerate() {
            let plain = Plain::of(entry).filter(|plain| !shared.contains(&*plain.check.key));
            let way = match plain {
                Some(plain) => match plain.check.algorithm {
                    Algorithm::TokenBucket(rule) => self.group(&plain, rule)?,
                    Algorithm::SlidingWindow(rule) => self.window(i, &plain, rule)?,
                    _ => Way::Long,
                },
                None => self.block(i, entry, shared)?,
            };
            self.ways.push(way);
        }
        Ok(())
    }

    fn group(&mut self, plain: &Plain<'e>, rule: TokenBucket) -> Result<Way, &'e str> {
        let Plain { check, budget } = *plain;
        let known = match self.groups.last() {
            // Often all requests ask for one bucket, and no second group exists.
            Some(last) if Arc::ptr_eq(&last.check.key, &check.key) => {
                Some(KeyPlace::Group(self.groups.len() - 1))
            }
            _ => self.place_of(&check.key),
        };
        let place = self.groups.len();
        match known {
            Some(KeyPlace::Group(place)) => {
                let group = &mut self.groups[place];
                if group.rule != rule || group.check.cost != check.cost {
                    return Err(&check.key);
                }
                group.count += 1;
                group.least = group.least.min(budget);
                group.greatest = group.greatest.max(budget);
                Ok(Way::Group(place))
            }
            Some(KeyPlace::Window(_) | KeyPlace::Block) => Err(&check.key),
            None if place >= GROUPS => Ok(Way::Long),
            None => {
                self.note(&check.key, KeyPlace::Group(place));
                let (least, greatest) = (budget, budget);
                self.groups.push(BucketGroup { check, rule, count: 1, least, greatest });
                Ok(Way::Group(place))
            }
        }
    }

    fn window(
        &mut self,
        entry: usize,
        plain: &Plain<'e>,
        rule: SlidingWindow,
    ) -> Result<Way, &'e str> {
        let Plain { check, budget } = *plain;
        let place = self.windows.len();
        let key = match self.place_of(&check.key) {
            Some(KeyPlace::Window(key)) if place < WINDOWS => key,
            Some(_) => return Err(&check.key),
            None if place >= WINDOWS => return Ok(Way::Long),
            None => {
                let key = self.window_keys.len();
                self.note(&check.key, KeyPlace::Window(key));
                self.window_keys.push(&check.key);
                key
            }
        };
        self.windows.push(WindowRequest { entry, key, check, rule, budget });
        Ok(Way::Window(place))
    }

    /// The way of an entry that is not plain, or whose key is shared.
    fn block(
        &mut self,
        i: usize,
        entry: &'e Entry,
        shared: &HashSet<&str>,
    ) -> Result<Way, &'e str> {
        let Entry::Block { checks, budget, ask } = entry else { return Ok(Way::Long) };
        let check = &checks[0];
        if shared.contains(&*check.key) {
            return Ok(Way::Long);
        }
        let (place, budget) = (self.blocks.len(), (*budget).min(MAX_BUDGET));
        match check.algorithm {
            Algorithm::TokenBucket(rule)
                if check.enforce
                    && rule.is_usual(check.cost)
                    && budget >= 0
                    && place < BLOCKS
                    && self.place_of(&check.key).is_none() =>
            {
                self.blocks.push(BlockRequest { entry: i, check, rule, budget, ask: *ask });
                Ok(Way::Block(place))
            }
            _ => Err(&check.key),
        }
    }

    fn place_of(&self, key: &str) -> Option<KeyPlace> {
        if self.blocks.iter().any(|block| *block.check.key == *key) {
            return Some(KeyPlace::Block);
        }
        match (&*self.groups, &*self.window_keys) {
            ([], []) => None,
            ([one], []) => (*one.check.key == *key).then_some(KeyPlace::Group(0)),
            ([], [one]) => (*one == key).then_some(KeyPlace::Window(0)),
            _ => self.known.get(key).copied(),
        }
    }

    /// Notes the place of a new key. The first key of a call is noted with the second one.
    fn note(&mut self, key: &'e str, place: KeyPlace) {
        match (&*self.groups, &*self.window_keys) {
            ([], []) => return,
            ([one], []) => drop(self.known.insert(&one.check.key, KeyPlace::Group(0))),
            ([], [one]) => drop(self.known.insert(one, KeyPlace::Window(0))),
            _ => {}
        }
        self.known.insert(key, place);
    }

    /// Returns the groups and the windows as one word of the call, as `plain.lua` describes it.
    pub(super) fn packed(&self) -> Vec<u8> {
        let (groups, windows, blocks) = (self.groups.len(), self.windows.len(), self.blocks.len());
        if groups + windows + blocks == 0 {
            return Vec::new();
        }
        let mut packed = Vec::with_capacity(84 + 24 * groups + 88 * windows + 106 * blocks);
        packed.extend((groups as u16).to_le_bytes());
        packed.extend((windows as u16).to_le_bytes());
        packed.extend((blocks as u16).to_le_bytes());
        let groups_and_blocks = groups + blocks;
        let mut place = 0;
        let alike = |a: &BucketGroup<'_>, b: &BucketGroup<'_>| {
            (a.rule, a.check.cost, horizon(a.check)) == (b.rule, b.check.cost, horizon(b.check))
        };
        for groups in self.groups.chunk_by(alike) {
            let BucketGroup { check, rule, .. } = groups[0];
            let [per, den, most] = rule.args();
            packed.extend_from_slice(&[STATE_VERSION, check.algorithm.letter()]);
            integers(&mut packed, &[per, den, most]);
            let (full, length, count) = (most * per, check.cost * per, groups.len() as i64);
            doubles(&mut packed, &[den, full, length, rule.far(), horizon(check), count]);
            for BucketGroup { count, least, greatest, .. } in groups {
                doubles(&mut packed, &[*count, *least, *greatest]);
                if least < greatest {
                    self.budgets(place).for_each(|budget| doubles(&mut packed, &[budget]));
                }
                place += 1;
            }
        }
        for BlockRequest { check, rule, budget, ask, .. } in &self.blocks {
            let [per, den, most] = rule.args();
            packed.extend_from_slice(&[STATE_VERSION, check.algorithm.letter()]);
            integers(&mut packed, &[per, den, most]);
            let (full, length) = (most * per, check.cost * per);
            doubles(&mut packed, &[per, den, full, length, rule.far(), horizon(check), *budget]);
            doubles(&mut packed, &[ask.requests, ask.reach, ask.jump]);
        }
        for WindowRequest { key, check, rule, budget, .. } in &self.windows {
            let [count, span, grain] = rule.args();
            integers(&mut packed, &[span, count, count, span]);
            // Lua counts from 1, and the epoch's key is the first.
            let number = (groups_and_blocks + key + 2) as i64;
            let horizon = horizon(check);
            doubles(&mut packed, &[number, check.cost, *budget, count, span, grain, horizon]);
        }
        packed
    }

    /// Returns the budgets of a group in the order of its requests.
    fn budgets(&self, place: usize) -> impl Iterator<Item = Micros> {
        let entries = self.entries.iter().zip(&self.ways);
        let own = entries.filter(move |(_, way)| matches!(way, Way::Group(at) if *at == place));
        own.filter_map(|(entry, _)| Some(Plain::of(entry)?.budget))
    }
}

fn integers(packed: &mut Vec<u8>, numbers: &[i64]) {
    numbers.iter().for_each(|n| packed.extend_from_slice(&n.to_le_bytes()));
}

fn doubles(packed: &mut Vec<u8>, numbers: &[i64]) {
    numbers.iter().for_each(|n| packed.extend_from_slice(&(*n as f64).to_le_bytes()));
}

/// The horizon as the script reads it: that of a limiter which trusts the store after a loss is negative.
pub(super) fn horizon(check: &Check) -> Micros {
    match check.on_loss {
        OnLoss::Close => check.horizon,
        OnLoss::Trust => -1 - check.horizon,
    }
}
