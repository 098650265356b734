//! The gateways that share a store: each sends heartbeats. A gateway is absent while it decides alone or has sent none for
//! a while, and gone when it has sent none for longer. One that has granted nothing lately and has closed its connections is
//! gone as soon as it would be absent. Counts them; `store/health` draws the conclusions.

use super::{
    RedisStore,
    topic::CHANNEL,
    transport::{command, words},
};
use crate::store::{ABSENT, Beat, GONE, Heartbeat, StoreError};
use redis::Value;

const SCRIPT: &str = include_str!("presence.lua");

// === impl RedisStore ===

impl RedisStore {
    /// Sends the heartbeat of a gateway, or removes it from the set.
    ///
    /// # Errors
    ///
    /// When the server refuses the script, or the connection is lost.
    pub(super) async fn say_alive(&self, heartbeat: &Heartbeat) -> Result<Beat, StoreError> {
        let Heartbeat { key, id, .. } = heartbeat;
        if heartbeat.is_last {
            return self.say_goodbye(key, id).await;
        }
        let [absent, gone] = [ABSENT, GONE].map(|span| span.as_millis().to_string());
        let flag = |is_set: bool| if is_set { b"1".as_slice() } else { b"0" };
        let eval = [
            b"EVAL",
            SCRIPT.as_bytes(),
            b"1",
            key.as_bytes(),
            id.as_bytes(),
            absent.as_bytes(),
            gone.as_bytes(),
            flag(heartbeat.is_alone),
            flag(heartbeat.is_idle),
            flag(heartbeat.is_first),
            CHANNEL.as_bytes(),
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
                    now: seconds
                        .checked_mul(1_000_000)
                        .and_then(|now| now.checked_add(micros))
                        .map(|clock| self.epochs.see_server(clock)),
                }),
                _ => Err(StoreError::Protocol),
            },
            _ => Err(StoreError::Protocol),
        }
    }

    /// Removes this gateway from the set when it ends, so that the others do not wait for its heartbeats.
    async fn say_goodbye(&self, key: &str, id: &str) -> Result<Beat, StoreError> {
        let idle = format!("-{id}");
        let removes = command(&[b"ZREM", key.as_bytes(), id.as_bytes(), idle.as_bytes()]);
        match self.call(key, &removes).await? {
            Value::ServerError(error) => Err(StoreError::Refused(words(&error))),
            _ => Ok(Beat { gateways: 1, absent: 0, entered: false, now: None }),
        }
    }
}
