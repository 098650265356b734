//! The gateways that live on a server: each sends heartbeats. One that has sent none for a while, or that decides alone, is
//! absent; one that has sent none for longer is gone.

use super::{RedisStore, resp};
use crate::store::{
    StoreError,
    batch::{ABSENT, Beat, GONE},
};

const SCRIPT: &str = include_str!("presence.lua");

// === impl RedisStore ===

impl RedisStore {
    pub(super) async fn say_alive(
        &self,
        key: &str,
        id: &str,
        alone: bool,
    ) -> Result<Beat, StoreError> {
        let [absent, gone] = [ABSENT, GONE].map(|span| span.as_millis().to_string());
        let alone: &[u8] = if alone { b"1" } else { b"0" };
        let words = [
            b"EVAL",
            SCRIPT.as_bytes(),
            b"1",
            key.as_bytes(),
            id.as_bytes(),
            absent.as_bytes(),
            gone.as_bytes(),
            alone,
        ];
        match self.call(key, &resp::command(&words)).await? {
            resp::Value::Error(error) => Err(StoreError::Refused(error)),
            resp::Value::List(said) => match said[..] {
                [
                    resp::Value::Number(gateways),
                    resp::Value::Number(seconds),
                    resp::Value::Number(micros),
                    resp::Value::Number(absent),
                ] => Ok(Beat {
                    gateways,
                    absent,
                    now: seconds.checked_mul(1_000_000).and_then(|now| now.checked_add(micros)),
                }),
                _ => Err(StoreError::Protocol),
            },
            _ => Err(StoreError::Protocol),
        }
    }

    /// The others need not miss this gateway first.
    pub(super) async fn say_goodbye(&self, key: &str, id: &str) -> Result<(), StoreError> {
        match self.call(key, &resp::command(&[b"ZREM", key.as_bytes(), id.as_bytes()])).await? {
            resp::Value::Error(error) => Err(StoreError::Refused(error)),
            _ => Ok(()),
        }
    }
}
