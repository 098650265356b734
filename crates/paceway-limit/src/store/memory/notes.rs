//! The texts that gateways share, as the memory of one process keeps them.

use crate::{
    algorithm::Micros,
    store::{Note, NoteChange},
};
use parking_lot::Mutex;
use std::{collections::HashMap, sync::Arc};

/// The most texts: more than a configuration has limiters. Beyond it, no further text is kept.
const MOST: usize = 100_000;

/// Texts by key.
#[derive(Debug, Default)]
pub(super) struct Notes(Mutex<HashMap<Arc<str>, Arc<str>>>);

// === impl Notes ===

impl Notes {
    /// Reads the text at `key`, and replaces it if it is the one that `change` expects. Returns the text afterwards.
    pub(super) fn exchange(&self, key: &Arc<str>, change: Option<NoteChange>, now: Micros) -> Note {
        let mut texts = self.0.lock();
        let text = texts.get(key).cloned();
        let Some(change) = change.filter(|change| change.expected == text) else {
            return Note { text, now };
        };
        if text.is_some() || texts.len() < MOST {
            texts.insert(key.clone(), change.text.clone());
        }
        Note { text: Some(change.text), now }
    }
}
