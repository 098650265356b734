//! The gateways that live on a server: each says so, and who has not for three seconds is counted no longer.

use super::{RedisStore, resp};
use crate::store::{StoreError, batch::Beat};

const SCRIPT: &str = include_str!("presence.lua");
/// ms.
const LIFE: &str = "3000";

// === impl RedisStore ===

impl RedisStore {
    pub(super) async fn say_alive(&self, key: &str, id: &str) -> Result<Beat, StoreError> {
        let words =
            [b"EVAL", SCRIPT.as_bytes(), b"1", key.as_bytes(), id.as_bytes(), LIFE.as_bytes()];
        match self.call(key, &resp::command(&words)).await? {
            resp::Value::Error(error) => Err(StoreError::Refused(error)),
            resp::Value::List(said) => match said[..] {
                [
                    resp::Value::Number(gateways),
                    resp::Value::Number(seconds),
                    resp::Value::Number(micros),
                ] => Ok(Beat {
                    gateways,
                    now: seconds.checked_mul(1_000_000).and_then(|now| now.checked_add(micros)),
                }),
                _ => Err(StoreError::Protocol),
            },
            _ => Err(StoreError::Protocol),
        }
    }
}
