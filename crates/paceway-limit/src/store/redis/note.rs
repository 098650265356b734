//! The texts that gateways share, on Redis: read and replaced by a script of their own.

use super::{
    RedisStore,
    transport::{command, words},
};
use crate::store::{KEPT, Note, NoteChange, StoreError};
use redis::Value;

const SCRIPT: &str = include_str!("note.lua");

// === impl RedisStore ===

impl RedisStore {
    /// Reads the text at `key`, and replaces it if it is the one that `change` expects. Returns the text afterwards.
    ///
    /// # Errors
    ///
    /// When the server refuses the script, or the connection is lost: then the text may have been replaced.
    pub(super) async fn exchange_note(
        &self,
        key: &str,
        change: Option<&NoteChange>,
    ) -> Result<Note, StoreError> {
        let kept = KEPT.as_millis().to_string();
        let expected = change.and_then(|change| change.expected.as_deref()).unwrap_or_default();
        let text = change.map_or("", |change| &change.text);
        let eval = [
            b"EVAL",
            SCRIPT.as_bytes(),
            b"1",
            key.as_bytes(),
            kept.as_bytes(),
            expected.as_bytes(),
            text.as_bytes(),
        ];
        match self.call(key, &command(&eval)).await? {
            Value::ServerError(error) => Err(StoreError::Refused(words(&error))),
            Value::Array(said) => match &said[..] {
                [Value::BulkString(text), Value::Int(seconds), Value::Int(micros)] => {
                    let text = std::str::from_utf8(text).map_err(|_| StoreError::Protocol)?;
                    let now =
                        seconds.checked_mul(1_000_000).and_then(|now| now.checked_add(*micros));
                    let now = now.ok_or(StoreError::Protocol)?;
                    Ok(Note { text: (!text.is_empty()).then(|| text.into()), now })
                }
                _ => Err(StoreError::Protocol),
            },
            _ => Err(StoreError::Protocol),
        }
    }
}
