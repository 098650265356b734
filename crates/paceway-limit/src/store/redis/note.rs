//! The texts that gateways share, on Redis: read and replaced by a script of their own.

use super::{
    RedisStore, hash,
    transport::{command, words},
};
use crate::store::{KEPT, Note, NoteChange, StoreError};
use ahash::HashMap;
use parking_lot::Mutex;
use redis::Value;
use std::sync::Arc;

const SCRIPT: &str = include_str!("note.lua");

/// The most texts that one connection remembers: more than a configuration has limiters.
const MOST: usize = 100_000;

/// The texts as this connection has read them last, with their SHA-1. Most reads find the same text, which the server then
/// does not send again: a table of 1,000 overrides takes 200 KB, and every gateway reads it twice a second.
#[derive(Debug, Default)]
pub(super) struct KnownNotes(Mutex<HashMap<Arc<str>, KnownNote>>);

/// A text and its SHA-1 in hexadecimal digits.
#[derive(Debug, Clone)]
struct KnownNote {
    text: Arc<str>,
    hash: Arc<str>,
}

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
        let known = self.notes.get(key);
        let hash = known.as_ref().map_or("", |known| &known.hash);
        let eval = [
            b"EVAL",
            SCRIPT.as_bytes(),
            b"1",
            key.as_bytes(),
            kept.as_bytes(),
            expected.as_bytes(),
            text.as_bytes(),
            hash.as_bytes(),
        ];
        let said = match self.call(key, &command(&eval)).await? {
            Value::ServerError(error) => return Err(StoreError::Refused(words(&error))),
            Value::Array(said) => said,
            _ => return Err(StoreError::Protocol),
        };
        let [text, Value::Int(seconds), Value::Int(micros)] = &said[..] else {
            return Err(StoreError::Protocol);
        };
        let now = seconds.checked_mul(1_000_000).and_then(|now| now.checked_add(*micros));
        let now = now.ok_or(StoreError::Protocol)?;
        let text = match (text, known) {
            (Value::Int(1), Some(known)) => Some(known.text),
            (Value::BulkString(text), _) => {
                let text = std::str::from_utf8(text).map_err(|_| StoreError::Protocol)?;
                let text = (!text.is_empty()).then(|| Arc::from(text));
                self.notes.put(key, text.as_ref());
                text
            }
            _ => return Err(StoreError::Protocol),
        };
        Ok(Note { text, now })
    }
}

// === impl KnownNotes ===

impl KnownNotes {
    fn get(&self, key: &str) -> Option<KnownNote> {
        self.0.lock().get(key).cloned()
    }

    fn put(&self, key: &str, text: Option<&Arc<str>>) {
        let mut known = self.0.lock();
        match text {
            None => drop(known.remove(key)),
            Some(text) if known.len() < MOST || known.contains_key(key) => {
                let (text, hash) = (text.clone(), hash(text).into());
                known.insert(key.into(), KnownNote { text, hash });
            }
            Some(_) => {}
        }
    }
}
