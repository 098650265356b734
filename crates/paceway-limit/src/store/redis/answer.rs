//! Reads the script's reply to a call as one reply for each entry. A reply that the script cannot have sent is none, so that
//! a foreign server or a renamed command grants nothing.

use super::{alike::Alike, call::ScriptCall, epoch::Epoch, wire};
use crate::{
    algorithm::{
        Algorithm, EXACT, Grant, Level, Micros, Open, OpenRule, Rule,
        concurrency::Queued,
        fair::{Priority, turns::MAX_TENANTS},
        reserve::{self, Want},
        token_bucket,
    },
    store::{Checks, Decision, Entry, Reply, StoreError, TenantLevel},
};
use redis::Value;
use std::sync::Arc;

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
        let mut replies: Vec<Option<Reply>> = vec![None; self.entries.len()];
        for group in &self.groups {
            match **group {
                [one] => replies[one] = Some(self.read_one(&self.entries[one], &mut numbers)?),
                _ => self.read_alike(group, now, &mut numbers, &mut replies)?,
            }
        }
        let replies = replies.into_iter().collect::<Option<_>>()?;
        let epoch = match numbers.texts.as_slice() {
            [] => None,
            [Value::BulkString(epoch)] => Some(Epoch::parse(epoch)?),
            _ => return None,
        };
        (numbers.numbers.len() == 0).then_some(ScriptReply { replies, epoch, now })
    }

    /// Reads the replies to requests that were written as one entry. If they were decided in one step, the native rule, which is
    /// the same, repeats the decisions from the bucket's state before it.
    fn read_alike(
        &self,
        group: &Alike,
        now: Micros,
        numbers: &mut Numbers<'_>,
        replies: &mut [Option<Reply>],
    ) -> Option<()> {
        let entries = || group.iter().map(|i| (*i, &self.entries[*i]));
        let code = numbers.next()?;
        if code == 0 {
            for (i, entry) in entries() {
                replies[i] = Some(self.read_one(entry, numbers)?);
            }
            return Some(());
        }
        if code == wire::FOREIGN {
            let failed = self.read_foreign(numbers)?;
            entries().for_each(|(i, _)| replies[i] = Some(failed.clone()));
            return Some(());
        }
        let Rule::Rate(Algorithm::TokenBucket(rule)) = self.entries[group[0]].checks()[0].algorithm
        else {
            return None;
        };
        let mut admitted = numbers.next()?;
        let (tail, born) = (numbers.next()?, numbers.next()?);
        let open = token_bucket::Open::reported(rule, now, tail, born)?;
        let mut open = OpenRule::Rate(Open::TokenBucket(open));
        for (i, entry) in entries() {
            let cost = entry.checks()[0].cost;
            let want = Want { open: &mut open, cost, enforce: true, gate: None, kept: 0 };
            let decision = Decision::new(reserve::decide(&mut [want], entry.budget(), None));
            admitted -= i64::from(decision.admitted);
            replies[i] = Some(Reply::Decision(decision));
        }
        (code == 1 && admitted == 0).then_some(())
    }

    /// Reads which key holds a foreign value.
    fn read_foreign(&self, numbers: &mut Numbers<'_>) -> Option<Reply> {
        let key = self.keys.get(usize::try_from(numbers.next()?.checked_sub(2)?).ok()?)?;
        Some(Reply::Failed(StoreError::Foreign(Arc::from(&**key))))
    }

    fn read_one(&self, entry: &Entry, numbers: &mut Numbers<'_>) -> Option<Reply> {
        let code = numbers.next()?;
        if code == wire::FOREIGN {
            return self.read_foreign(numbers);
        }
        Some(match entry {
            Entry::Reserve { checks, .. } => Reply::Decision(read_decision(checks, code, numbers)?),
            Entry::Choose { among, .. } => {
                let way = among.ways().get(usize::try_from(code).ok()?)?;
                let code = numbers.next()?;
                if code == wire::FOREIGN {
                    return self.read_foreign(numbers);
                }
                let decision = read_decision(&way.checks, code, numbers)?;
                Reply::Decision(Decision { chosen: Some(way.id), ..decision })
            }
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
    let code = code % wire::GATED;
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
            lead: numbers.next()?,
        });
    }
    TenantLevel::sort(&mut tenants);
    tenants.truncate(MAX_TENANTS);
    Some(tenants)
}

/// Reads a level, which tells of a gate if the step's code says so.
fn read_level(code: i64, numbers: &mut Numbers<'_>) -> Option<Level> {
    let (remaining, next, reset_after) = (numbers.next()?, numbers.next()?, numbers.next()?);
    let level = Level { remaining, next, reset_after, ..Level::default() };
    if code < wire::GATED {
        return Some(level);
    }
    let (paused, rate, since) = (numbers.next()?, numbers.next()?, numbers.next()?);
    let status = u16::try_from(numbers.next()?).ok()?;
    Some(Level { paused, rate, since, status, ..level })
}
