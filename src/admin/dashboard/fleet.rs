//! The gateways that share a store, as each of them describes itself in one text of the store. It serves operators alone: the
//! number of gateways, by which shares are decided, comes from their heartbeats.

use super::super::AdminParts;
use crate::{
    algorithm::Micros,
    config::StoreConfig,
    store::{Note, NoteChange, StoreError},
};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    fs,
    hash::{BuildHasher, RandomState},
    sync::Arc,
    time::Duration,
};
use tokio::time::{Instant, timeout};

/// The time between two descriptions by one gateway, in ticks of the history.
pub(super) const TICKS: u64 = 2;
/// A gateway that has not described itself for this long is left out.
const GONE: u64 = 35_000_000;
/// The most gateways in the text; the one that was silent for the longest time is left out.
const MOST: usize = 128;
/// How often a change is tried when other gateways change the text at the same moment.
const ATTEMPTS: usize = 4;
const PATIENCE: Duration = Duration::from_secs(2);

/// The gateways as this one knows them.
pub(super) struct Fleet {
    /// The name of this gateway in the text. Each start has another one.
    id: String,
    host: String,
    known: Mutex<Option<KnownFleet>>,
}

/// The text as the store had it last, with the store's clock at an instant of ours.
struct KnownFleet {
    members: BTreeMap<String, FleetMember>,
    now: Micros,
    at: Instant,
}

/// The description of one gateway.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct FleetMember {
    host: String,
    version: String,
    /// The hash of its configuration.
    config: String,
    waiting: usize,
    /// The store's clock when it was written, µs.
    at: Micros,
}

// === impl Fleet ===

impl Default for Fleet {
    fn default() -> Self {
        let id = format!("{:016x}", RandomState::new().hash_one(std::process::id()));
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        Self { id, host: host.trim().to_owned(), known: Mutex::default() }
    }
}

impl Fleet {
    /// Describes this gateway to the others, and learns of them. Does nothing without a shared store.
    pub(super) async fn describe(&self, parts: &AdminParts) {
        let plan = parts.live.plan();
        let StoreConfig::Redis { prefix, .. } = &plan.config.store else { return };
        let key: Arc<str> = format!("{prefix}:about:{{gateways}}").into();
        let own = FleetMember {
            host: self.host.clone(),
            version: env!("CARGO_PKG_VERSION").into(),
            config: parts.live.loaded().hash,
            waiting: plan.waiting(),
            at: 0,
        };
        let told = timeout(PATIENCE, self.exchange(parts, key, own)).await;
        if let Ok(Err(error)) = told {
            tracing::debug!(%error, "the other gateways are not known");
        }
    }

    async fn exchange(
        &self,
        parts: &AdminParts,
        key: Arc<str>,
        own: FleetMember,
    ) -> Result<(), StoreError> {
        let mut note = parts.store.exchange(key.clone(), None).await?;
        for _ in 0..ATTEMPTS {
            let (members, text) = self.with(&note, own.clone());
            let change = NoteChange { expected: note.text, text: text.clone() };
            note = parts.store.exchange(key.clone(), Some(change)).await?;
            if note.text.as_ref() == Some(&text) {
                *self.known.lock() =
                    Some(KnownFleet { members, now: note.now, at: Instant::now() });
                break;
            }
        }
        Ok(())
    }

    /// The members of a text together with this gateway, and the text that describes them.
    fn with(&self, note: &Note, own: FleetMember) -> (BTreeMap<String, FleetMember>, Arc<str>) {
        // Another version may write another text; this one then begins again.
        let text = note.text.as_deref().unwrap_or("{}");
        let mut all: BTreeMap<String, FleetMember> = serde_json::from_str(text).unwrap_or_default();
        all.retain(|_, member| note.now.abs_diff(member.at) < GONE);
        all.insert(self.id.clone(), FleetMember { at: note.now, ..own });
        while all.len() > MOST
            && let Some(oldest) = all.iter().min_by_key(|(_, member)| member.at)
        {
            let oldest = oldest.0.clone();
            all.remove(&oldest);
        }
        let text = serde_json::to_string(&all).unwrap_or_default();
        (all, text.into())
    }

    /// The gateways that described themselves lately; `None` before the first answer of a shared store.
    pub(super) fn gateways(&self) -> Option<Value> {
        let known = self.known.lock();
        let KnownFleet { members, now, at } = known.as_ref()?;
        let now = now.saturating_add(i64::try_from(at.elapsed().as_micros()).unwrap_or(i64::MAX));
        let all = members.iter().map(|(id, member)| {
            json!({
                "id": id,
                "host": member.host,
                "version": member.version,
                "config": member.config,
                "waiting": member.waiting,
                "age_ms": now.saturating_sub(member.at) as f64 / 1e3,
                "is_this": *id == self.id,
            })
        });
        Some(all.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silent_gateways_are_omitted_and_the_list_is_bounded() {
        let fleet = Fleet::default();
        let member = |at| FleetMember {
            host: "a".into(),
            version: "1".into(),
            config: "c".into(),
            waiting: 0,
            at,
        };
        let now = 1_000_000_000;
        let others = (0..200).map(|i| (format!("{i:03}"), member(now - i * 1_000_000)));
        let others = others.chain([("later".into(), member(4 * now))]);
        let others: BTreeMap<_, _> = others.collect();
        let text = serde_json::to_string(&others).expect("a text");
        let (all, _) = fleet.with(&Note { text: Some(text.into()), now }, member(0));
        // Those of the last 35 s, and this one. None of a clock that was set back since.
        assert_eq!(all.len(), 36);
        assert_eq!(all[&fleet.id].at, now);
        let many = (0..200).map(|i| (format!("{i:03}"), member(now - i)));
        let text = serde_json::to_string(&many.collect::<BTreeMap<_, _>>()).expect("a text");
        let (all, _) = fleet.with(&Note { text: Some(text.into()), now }, member(0));
        assert_eq!(all.len(), MOST);
        assert!(all.contains_key(&fleet.id) && !all.contains_key("199"));
        let (all, text) = fleet.with(&Note { text: Some("no JSON".into()), now }, member(0));
        assert_eq!(all.len(), 1);
        assert!(serde_json::from_str::<Value>(&text).is_ok());
    }
}
