//! Copies of the states on Redis, read as they are kept by a script of their own. It changes nothing there.

use super::{
    RedisStore,
    call::QUEUE_KEYS,
    transport::{command, words},
};
use crate::{
    algorithm::{Micros, Rule, stored::StoredRate},
    store::{
        Backend, Check, Entry, Reply, StateCopy, StoreError, memory::MemoryStore, turn::of_queue,
    },
};
use redis::Value;
use std::sync::Arc;

const SCRIPT: &str = include_str!("copy.lua");

/// The states of some limiters as a server keeps them.
struct KeptStates {
    /// A value for each limiter; `None` where the server has none.
    values: Vec<Option<Vec<u8>>>,
    /// The instants of the slots of the requests that wait for their turns.
    slots: Vec<Micros>,
}

// === impl RedisStore ===

impl RedisStore {
    /// Copies the states of `checks`, the limiters of one request, at `now` in µs since 1970, or at the store's time if that is
    /// `None`.
    ///
    /// # Errors
    ///
    /// When a server refuses a call or its connection is lost; [`StoreError::Foreign`] for a value that is no state.
    pub async fn copy_at(
        &self,
        now: Option<Micros>,
        checks: &[Check],
    ) -> Result<StateCopy, StoreError> {
        let looks: Vec<_> =
            checks.iter().map(|check| Entry::Look { check: check.clone() }).collect();
        // The call brings the epoch and the clock.
        let replies = self.run_at(now, &looks).await?;
        if let Some(error) = replies.iter().find_map(Reply::error) {
            return Err(error.clone());
        }
        let lane = checks.first().map_or("", |check| self.placement().lane(&check.key));
        let now = now.unwrap_or_else(|| self.epochs.last_instant(lane));
        let states = MemoryStore::calling(Arc::default());
        if let Some(lost) = self.epochs.lost_at(lane) {
            states.lose(lost);
        }
        let KeptStates { values, slots } = self.read_states(checks).await?;
        for (check, value) in checks.iter().zip(values) {
            if let (Some(value), Rule::Rate(rule)) = (value, &check.algorithm) {
                let stored = StoredRate::read(rule, &value);
                let stored = stored.ok_or_else(|| StoreError::Foreign(check.key.clone()))?;
                states.keep_stored(now, check, stored);
            }
        }
        Ok(StateCopy::new(now, states, slots))
    }

    async fn read_states(&self, checks: &[Check]) -> Result<KeptStates, StoreError> {
        let order = of_queue(checks).map(|q| format!("{}{}", checks[q].key, QUEUE_KEYS[1]));
        let queues = usize::from(order.is_some());
        let (all, queues) = ((checks.len() + queues).to_string(), queues.to_string());
        let mut eval: Vec<&[u8]> = vec![b"EVAL", SCRIPT.as_bytes(), all.as_bytes()];
        eval.extend(checks.iter().map(|check| check.key.as_bytes()));
        eval.extend(order.iter().map(String::as_bytes));
        eval.push(queues.as_bytes());
        let key = checks.first().map_or("", |check| &*check.key);
        let said = match self.call(key, &command(&eval)).await? {
            Value::ServerError(error) => return Err(StoreError::Refused(words(&error))),
            Value::Array(said) => said,
            _ => return Err(StoreError::Protocol),
        };
        let [Value::Array(values), Value::Array(slots)] = &said[..] else {
            return Err(StoreError::Protocol);
        };
        let bytes = |value: &Value| match value {
            Value::BulkString(value) => Some(value.clone()),
            _ => None,
        };
        let slots = slots.iter().filter_map(bytes).map(|score| {
            let instant = std::str::from_utf8(&score).ok()?.parse::<f64>().ok()?;
            Some(instant as Micros)
        });
        let slots = slots.collect::<Option<_>>().ok_or(StoreError::Protocol)?;
        Ok(KeptStates { values: values.iter().map(bytes).collect(), slots })
    }
}
