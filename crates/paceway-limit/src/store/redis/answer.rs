//! Reads the script's reply to a call as one reply for each entry. A reply that the script cannot have sent is none, so that
//! a foreign server or a renamed command grants nothing.

use super::{
    call::ScriptCall,
    epoch::Epoch,
    plain::{Plain, Way},
};
use crate::{
    algorithm::{
        EXACT, Grant, Level, Micros, Open,
        concurrency::Queued,
        fair::{Priority, turns::MAX_TENANTS},
        reserve::{self, Parts, Reserved, Want},
        token_bucket,
    },
    store::{Checks, Decision, Entry, Reply, StoreError, TenantLevel},
};
use redis::Value;
use std::{collections::HashMap, sync::Arc};

/// The code of a reply is greater by this if its limiter is paused: then the level has a fourth number.
const PAUSED: i64 = 10;

/// The script's reply to a call.
pub(super) struct ScriptReply {
    /// A reply for each entry.
    pub(super) replies: Vec<Reply>,
    /// The epoch, if it is not the expected one.
    pub(super) epoch: Option<Epoch>,
    /// The instant at which the call was executed, µs of the store's clock.
    pub(super) now: Micros,
}

// === impl ScriptCall ===

impl ScriptCall<'_> {
    /// Reads the script's reply; `None` if the script cannot have sent this.
    pub(super) fn read(&self, reply: &Value) -> Option<ScriptReply> {
        let (packed, texts) = match reply {
            Value::BulkString(packed) => (packed, &[][..]),
            Value::Array(list) => match &**list {
                [Value::BulkString(packed), texts @ ..] => (packed, texts),
                _ => return None,
            },
            _ => return None,
        };
        let (packed, rest) = packed.as_chunks();
        if !rest.is_empty() {
            return None;
        }
        let mut numbers = Numbers { numbers: packed.iter(), texts: texts.iter() };
        let now = numbers.next()?;
        let (mut steps, blocks, windows) = self.read_plain(&mut numbers, now)?;
        let mut long = Vec::new();
        // The groups, blocks and windows that were decided entry by entry come first.
        let ways = self.entries.iter().zip(&self.plain.ways).enumerate();
        for (place, _) in steps.iter().enumerate().filter(|(_, step)| step.is_none()) {
            let is_own = |way: &Way| matches!(way, Way::Group(own) if *own == place);
            for (i, (entry, _)) in ways.clone().filter(|(_, (_, way))| is_own(way)) {
                long.push((i, self.read_one(entry, &mut numbers)?));
            }
        }
        let blocks_of_call = self.plain.blocks.iter().zip(&blocks);
        for (block, _) in blocks_of_call.filter(|(_, reply)| reply.is_none()) {
            let entry = self.entries.get(block.entry)?;
            long.push((block.entry, self.read_one(entry, &mut numbers)?));
        }
        let windows_of_call = self.plain.windows.iter().zip(&windows);
        for (window, _) in windows_of_call.filter(|(_, decision)| decision.is_none()) {
            let entry = self.entries.get(window.entry)?;
            long.push((window.entry, self.read_one(entry, &mut numbers)?));
        }
        let mut long = Replies::new(long);
        let mut replies = Vec::with_capacity(self.entries.len());
        for (i, (entry, way)) in ways {
            replies.push(match way {
                Way::Long => self.read_one(entry, &mut numbers)?,
                Way::Group(place) => match steps.get_mut(*place)? {
                    Some(step) => Reply::Decision(step.decide(entry)?),
                    None => long.take(i)?,
                },
                Way::Block(place) => match blocks.get(*place)? {
                    Some(reply) => reply.clone(),
                    None => long.take(i)?,
                },
                Way::Window(place) => match windows.get(*place)? {
                    Some(decision) => Reply::Decision(decision.clone()),
                    None => long.take(i)?,
                },
            });
        }
        let agreed = steps.iter().flatten().all(|step| step.admitted == 0);
        let epoch = match numbers.texts.as_slice() {
            [] => None,
            [Value::BulkString(epoch)] => Some(Epoch::parse(epoch)?),
            _ => return None,
        };
        (numbers.numbers.len() == 0 && agreed).then_some(ScriptReply { replies, epoch, now })
    }

    /// Reads the state of each group's bucket before the call, and the decision about each block and window; `None` for one
    /// that was decided entry by entry.
    fn read_plain(&self, numbers: &mut Numbers<'_>, now: Micros) -> Option<PlainReply> {
        let plain = &self.plain;
        if plain.groups.is_empty() && plain.windows.is_empty() && plain.blocks.is_empty() {
            return Some(PlainReply::default());
        }
        let mut next = || numbers.next();
        let mut groups = Vec::with_capacity(plain.groups.len());
        for group in &plain.groups {
            groups.push((group.rule, next()?, (next()?, next()?)));
        }
        let mut steps = Vec::with_capacity(groups.len());
        for (rule, admitted, state) in groups {
            let mut holes = Vec::new();
            let admitted = match admitted {
                -1 => {
                    steps.push(None);
                    continue;
                }
                0.. => admitted,
                _ => {
                    for _ in 0..next()? {
                        holes.push((next()?, next()?));
                    }
                    -2 - admitted
                }
            };
            let open = token_bucket::Open::reported(rule, now, state, holes)?;
            steps.push(Some(GroupReplay { open: Open::TokenBucket(open), admitted }));
        }
        let mut blocks = Vec::with_capacity(plain.blocks.len());
        for block in &plain.blocks {
            let (code, at) = (next()?, next()?);
            let level =
                Level { remaining: next()?, next: next()?, reset_after: next()?, paused: 0 };
            let grant = Grant { whole: next()?, ticks: next()?, born: next()?, aux: 0 };
            let (wait, usable) = if code == 1 { (0, Some(at)) } else { (at, None) };
            let retry_after = (wait - block.budget).max(0);
            // The script admits a request just when its budget is enough.
            let is_admitted = match (code, retry_after, at) {
                (-1, ..) => None,
                (1 | 2, 0, 0..) => Some(true),
                (0, 1.., 0..) => Some(false),
                _ => return None,
            };
            blocks.push(is_admitted.map(|is_admitted| {
                let part = reserve::Part { at: wait, grant };
                let parts = is_admitted.then(|| Parts::from_slice(&[part]));
                let (at, bound_by, queued) = (wait, 0, None);
                let reserved = Reserved { at, retry_after, bound_by, level, parts, queued };
                let decision = Decision::new(reserved);
                match usable {
                    Some(usable) => Reply::Block { decision, usable },
                    None => Reply::Decision(decision),
                }
            }));
        }
        let mut windows = Vec::with_capacity(plain.windows.len());
        for window in &plain.windows {
            let (admitted, at) = (next()?, next()?);
            let level =
                Level { remaining: next()?, next: next()?, reset_after: next()?, paused: 0 };
            let grant = Grant { whole: next()?, ticks: 0, born: next()?, aux: 0 };
            let retry_after = (at - window.budget).max(0);
            // The script admits a request just when its budget is enough.
            let is_admitted = match (admitted, retry_after) {
                (-1, _) => None,
                (1, 0) => Some(true),
                (0, 1..) => Some(false),
                _ => return None,
            };
            windows.push(is_admitted.map(|is_admitted| {
                let parts = is_admitted.then(|| Parts::from_slice(&[reserve::Part { at, grant }]));
                let (bound_by, queued) = (0, None);
                Decision::new(Reserved { at, retry_after, bound_by, level, parts, queued })
            }));
        }
        Some((steps, blocks, windows))
    }

    fn read_one(&self, entry: &Entry, numbers: &mut Numbers<'_>) -> Option<Reply> {
        let code = numbers.next()?;
        if code < 0 {
            let key = self.keys.get(usize::try_from(numbers.next()?.checked_sub(2)?).ok()?)?;
            return Some(Reply::Failed(StoreError::Foreign(Arc::from(&**key))));
        }
        Some(match entry {
            Entry::Reserve { checks, .. } => Reply::Decision(read_decision(checks, code, numbers)?),
            Entry::Block { checks, .. } => {
                let decision = read_decision(checks, code, numbers)?;
                match numbers.next()? {
                    usable @ 0.. if decision.admitted => Reply::Block { decision, usable },
                    -1 => Reply::Decision(decision),
                    _ => return None,
                }
            }
            Entry::Refund { .. } if code == 2 => Reply::HandedOver,
            Entry::Refund { .. } | Entry::Renew { .. } | Entry::Forget { .. } => {
                Reply::Done(code == 1)
            }
            Entry::Confirm { checks, .. } | Entry::MoveUp { checks, .. } => {
                Reply::Decision(read_decision(checks, code, numbers)?)
            }
            Entry::Leave { .. } => Reply::Done(code == 1),
            Entry::Charge { .. } => Reply::Owed(numbers.next()?),
            Entry::Tenants { .. } => Reply::Tenants(read_tenants(code, numbers)?),
            Entry::Look { .. } | Entry::Pause { .. } | Entry::Lower { .. } => {
                Reply::Level(read_level(code, numbers)?)
            }
        })
    }
}

/// Returns the integer that a number of Lua is; `None` beyond 2^53, where doubles skip integers.
fn integer(double: f64) -> Option<i64> {
    let is_one = double.fract() == 0.0 && double.abs() < EXACT as f64;
    is_one.then_some(double as i64)
}

/// The steps of the groups, and the decisions about the blocks and the windows.
type PlainReply = (Vec<Option<GroupReplay>>, Vec<Option<Reply>>, Vec<Option<Decision>>);

/// A bucket in the state in which the script found it, and how many requests of the group the script has admitted.
struct GroupReplay {
    open: Open,
    admitted: i64,
}

// === impl GroupReplay ===

impl GroupReplay {
    /// Repeats the decision for the next request of the group by the native rule, which is the same.
    fn decide(&mut self, entry: &Entry) -> Option<Decision> {
        let Plain { check, budget } = Plain::of(entry)?;
        let want = Want { open: &mut self.open, cost: check.cost, enforce: true, gate: None };
        let decision = Decision::new(reserve::decide(&mut [want], budget, None));
        self.admitted -= i64::from(decision.admitted);
        Some(decision)
    }
}

/// Replies that come in another order than their entries, by the position of the entry.
struct Replies(HashMap<usize, Reply>);

// === impl Replies ===

impl Replies {
    fn new(replies: Vec<(usize, Reply)>) -> Self {
        Self(replies.into_iter().collect())
    }

    fn take(&mut self, i: usize) -> Option<Reply> {
        self.0.remove(&i)
    }
}

/// The integers of a reply, each in the eight bytes of a double, and the texts that belong to some of them.
struct Numbers<'r> {
    numbers: std::slice::Iter<'r, [u8; 8]>,
    texts: std::slice::Iter<'r, Value>,
}

// === impl Numbers ===

impl Numbers<'_> {
    fn next(&mut self) -> Option<i64> {
        integer(f64::from_le_bytes(*self.numbers.next()?))
    }

    fn text(&mut self) -> Option<&str> {
        match self.texts.next()? {
            Value::BulkString(text) => str::from_utf8(text).ok(),
            _ => None,
        }
    }
}

fn read_decision(checks: &Checks, code: i64, numbers: &mut Numbers<'_>) -> Option<Decision> {
    let (at, retry_after) = (numbers.next()?, numbers.next()?);
    let bound_by = usize::try_from(numbers.next()?.checked_sub(1)?).ok()?;
    if bound_by >= checks.len() {
        return None;
    }
    let level = read_level(code, numbers)?;
    let code = code % PAUSED;
    let queued = match code {
        2 => Some(Queued { deadline: numbers.next()?, ask_after: numbers.next()? }),
        _ => None,
    };
    let mut part = || {
        let at = numbers.next()?;
        let grant = Grant {
            whole: numbers.next()?,
            ticks: numbers.next()?,
            born: numbers.next()?,
            aux: numbers.next()?,
        };
        Some(reserve::Part { at, grant })
    };
    let parts = match code {
        1 => Some((0..checks.len()).map(|_| part()).collect::<Option<_>>()?),
        _ => None,
    };
    let reserved = reserve::Reserved { at, retry_after, bound_by, level, parts, queued };
    Some(Decision::new(reserved))
}

/// Reads as many tenants, those with the most waiting requests first.
fn read_tenants(count: i64, numbers: &mut Numbers<'_>) -> Option<Vec<TenantLevel>> {
    let mut tenants = Vec::new();
    for _ in 0..count {
        let tenant = numbers.text()?.into();
        let class = usize::try_from(numbers.next()?.checked_sub(1)?).ok()?;
        tenants.push(TenantLevel {
            tenant,
            priority: *Priority::ALL.get(class)?,
            weight: numbers.next()?,
            waiting: u64::try_from(numbers.next()?).ok()?,
            granted: u64::try_from(numbers.next()?).ok()?,
        });
    }
    TenantLevel::sort(&mut tenants);
    tenants.truncate(MAX_TENANTS);
    Some(tenants)
}

/// Reads a level, which tells of a pause if the step's code says so.
fn read_level(code: i64, numbers: &mut Numbers<'_>) -> Option<Level> {
    Some(Level {
        remaining: numbers.next()?,
        next: numbers.next()?,
        reset_after: numbers.next()?,
        paused: if code >= PAUSED { numbers.next()? } else { 0 },
    })
}
