//! The gateways that share a store: each sends heartbeats. A gateway is absent while it decides alone or has sent none for
//! a while, and gone when it has sent none for longer. Counts them; `store/health` draws the conclusions.

use super::{
    RedisStore,
    transport::{command, words},
};
use crate::store::{
    StoreError,
    batch::{ABSENT, Beat, GONE},
};
use redis::Value;

const SCRIPT: &str = include_str!("presence.lua");

// === impl RedisStore ===

impl RedisStore {
    /// Sends the heartbeat of the gateway `id`; `alone` if it decides without the store.
    ///
    /// # Errors
    ///
    /// When the server refuses the script, or the connection is lost.
    pub(super) async fn say_alive(
        &self,
        key: &str,
        id: &str,
        alone: bool,
    ) -> Result<Beat, StoreError> {
        let [absent, gone] = [ABSENT, GONE].map(|span| span.as_millis().to_string());
        let alone: &[u8] = if alone { b"1" } else { b"0" };
        let eval = [
            b"EVAL",
            SCRIPT.as_bytes(),
            b"1",
            key.as_bytes(),
            id.as_bytes(),
            absent.as_bytes(),
            gone.as_bytes(),
            alone,
        ];
        match self.call(key, &command(&eval)).await? {
            Value::ServerError(error) => Err(StoreError::Refused(words(&error))),
            Value::Array(said) => match said[..] {
                [
                    Value::Int(gateways),
                    Value::Int(seconds),
                    Value::Int(micros),
                    Value::Int(absent),
                    Value::Int(entered),
                ] => Ok(Beat {
                    gateways,
                    absent,
                    entered: entered == 1,
                    now: seconds.checked_mul(1_000_000).and_then(|now| now.checked_add(micros)),
                }),
                _ => Err(StoreError::Protocol),
            },
            _ => Err(StoreError::Protocol),
        }
    }

    /// Removes this gateway from the set when it ends, so that the others do not wait for its heartbeats.
    pub(super) async fn say_goodbye(&self, key: &str, id: &str) -> Result<(), StoreError> {
        match self.call(key, &command(&[b"ZREM", key.as_bytes(), id.as_bytes()])).await? {
            Value::ServerError(error) => Err(StoreError::Refused(words(&error))),
            _ => Ok(()),
        }
    }
}
