//! The rates of a limiter that answers of its upstream name: `learn: limit`. It asks no store; `learn` does.

use crate::{
    algorithm::{Micros, nanohertz::Nanohertz},
    limit::{duration, micros},
    store::Note,
};
use parking_lot::RwLock;
use std::{
    collections::HashMap,
    fmt::Write as _,
    mem,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::{sync::Notify, time::Instant};

/// The most keys whose rates are known. The one that answers named least lately gives way.
const MOST: usize = 4096;
/// A rate that answers name again is written to the shared text after this time, so that it stays.
const RENEWED: Duration = Duration::from_secs(3600);
/// The first line of the text.
const HEAD: &str = "limits 1";

/// The rates of a limiter, by key. All workers share them.
pub struct LearnedLimits {
    /// The name of the text by which gateways share them.
    pub(crate) note: Arc<str>,
    keys: RwLock<HashMap<Box<str>, ToldRate>>,
    /// Resolves when the shared text is to be read.
    pub(crate) wake: Notify,
    is_stale: AtomicBool,
    is_asked: AtomicBool,
    is_replaced: AtomicBool,
}

/// A rate as an answer named it.
#[derive(Debug, Clone, Copy)]
struct ToldRate {
    rate: Nanohertz,
    told: Instant,
    /// Whether the shared text does not have it yet.
    is_fresh: bool,
}

// === impl LearnedLimits ===

impl LearnedLimits {
    /// Takes over from `before`, the rates of the limiter of the same name in the plan before.
    pub(super) fn new(note: String, before: Option<&Arc<Self>>) -> Arc<Self> {
        if let Some(before) = before.filter(|before| *before.note == *note) {
            return before.clone();
        }
        let (keys, wake, is_stale, is_asked, is_replaced) = Default::default();
        Arc::new(Self { note: note.into(), keys, wake, is_stale, is_asked, is_replaced })
    }

    /// The rate of a key; `None` if no answer has named one.
    pub(super) fn rate_of(&self, key: Option<&str>) -> Option<Nanohertz> {
        // A write would take the cache line from the other workers.
        if !self.is_asked.load(Relaxed) {
            self.is_asked.store(true, Relaxed);
        }
        self.keys.read().get(key.unwrap_or_default()).map(|own| own.rate)
    }

    /// Learns the rate of a key, in permits in 10^9 s.
    pub fn hear(&self, key: Option<&str>, rate: Nanohertz) {
        let (key, now) = (key.unwrap_or_default(), Instant::now());
        let mut keys = self.keys.write();
        let known = keys.get(key);
        if known.is_some_and(|own| own.rate == rate && now - own.told < RENEWED) {
            return;
        }
        if known.is_none() && keys.len() >= MOST {
            remove_oldest(&mut keys);
        }
        keys.insert(key.into(), ToldRate { rate, told: now, is_fresh: true });
    }

    /// Forgets the rate of a key, or of all keys.
    pub(crate) fn forget(&self, key: Option<&str>) {
        self.keys.write().retain(|own, _| key.is_some_and(|key| **own != *key));
    }

    /// Whether the shared text lacks a rate.
    pub(crate) fn has_news(&self) -> bool {
        self.keys.read().values().any(|own| own.is_fresh)
    }

    /// Lets the shared text be read soon.
    pub(crate) fn look_again(&self) {
        self.is_stale.store(true, Relaxed);
        self.wake.notify_one();
    }

    /// Whether the shared text is to be read, since the last call of this function.
    pub(crate) fn is_stale(&self) -> bool {
        self.is_stale.swap(false, Relaxed)
    }

    /// Whether a request has asked since the last call of this function.
    pub(crate) fn is_asked(&self) -> bool {
        self.is_asked.swap(false, Relaxed)
    }

    /// The shared text after a look at it; `None` if it stays, as one of another version does.
    pub(crate) fn next(&self, note: &Note) -> Option<Arc<str>> {
        let mut keys = match &note.text {
            Some(text) => parse(text, note.now)?,
            None => HashMap::new(),
        };
        let own = self.keys.read();
        // A store that has lost the text gets all of it.
        let is_lost = note.text.is_none();
        let mut news = own.iter().filter(|(_, own)| own.is_fresh || is_lost).peekable();
        news.peek()?;
        for (key, own) in news {
            if keys.get(key).is_none_or(|shared| shared.told < own.told) {
                keys.insert(key.clone(), *own);
            }
        }
        while keys.len() > MOST {
            remove_oldest(&mut keys);
        }
        Some(text(&keys, note.now))
    }

    /// The shared text without the rate of a key, or of all keys; `None` if it stays.
    pub(crate) fn without(note: &Note, key: Option<&str>) -> Option<Arc<str>> {
        let mut keys = parse(note.text.as_ref()?, note.now)?;
        keys.retain(|own, _| key.is_some_and(|key| **own != *key));
        Some(text(&keys, note.now))
    }

    /// Takes over the shared text. Rates that answers have named since `asked` stay.
    pub(crate) fn know(&self, note: &Note, asked: Instant) {
        let Some(mut shared) = note.text.as_ref().and_then(|text| parse(text, note.now)) else {
            return;
        };
        let mut keys = self.keys.write();
        for (key, own) in mem::take(&mut *keys) {
            if own.is_fresh && own.told >= asked {
                shared.insert(key, own);
            }
        }
        *keys = shared;
    }

    /// Ends the reports: a plan without these rates has replaced the one that they belonged to.
    pub(crate) fn replaced(&self) {
        self.is_replaced.store(true, Relaxed);
        self.wake.notify_one();
    }

    pub(crate) fn is_replaced(&self) -> bool {
        self.is_replaced.load(Relaxed)
    }
}

fn remove_oldest(keys: &mut HashMap<Box<str>, ToldRate>) {
    let oldest = keys.iter().min_by_key(|(_, own)| own.told).map(|(key, _)| key.clone());
    if let Some(oldest) = oldest {
        keys.remove(&oldest);
    }
}

/// Reads a shared text; `None` for a text that is none. Instants are those of the store's clock, where it is `now`.
fn parse(text: &str, now: Micros) -> Option<HashMap<Box<str>, ToldRate>> {
    let mut lines = text.lines();
    lines.next().filter(|head| *head == HEAD)?;
    let at = Instant::now();
    let entry = |line: &str| {
        let mut parts = line.splitn(3, ' ');
        let (rate, told) = (parts.next()?.parse().ok()?, parts.next()?.parse::<Micros>().ok()?);
        let age = duration(now.saturating_sub(told).max(0));
        let told = at.checked_sub(age).unwrap_or(at);
        Some((parts.next()?.into(), ToldRate { rate, told, is_fresh: false }))
    };
    Some(lines.filter_map(entry).take(MOST).collect())
}

fn text(keys: &HashMap<Box<str>, ToldRate>, now: Micros) -> Arc<str> {
    let mut text = HEAD.to_owned();
    for (key, own) in keys {
        let told = now - micros(own.told.elapsed());
        // Writing to a string cannot fail.
        let _ = write!(text, "\n{} {told} {key}", own.rate);
    }
    text.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::OnceLock;

    fn limits() -> Arc<LearnedLimits> {
        LearnedLimits::new("note".into(), None)
    }

    /// A note on a store's clock that shows another time than ours.
    fn note(text: Option<Arc<str>>) -> Note {
        static BEGUN: OnceLock<Instant> = OnceLock::new();
        let passed = micros(BEGUN.get_or_init(Instant::now).elapsed());
        Note { text, now: 1_000_000_000_000 + passed }
    }

    #[tokio::test(start_paused = true)]
    async fn gateways_share_the_rates_that_answers_named() {
        let (one, other) = (limits(), limits());
        one.hear(Some("a b"), 5);
        one.hear(None, 6);
        let text = one.next(&note(None));
        other.know(&note(text.clone()), Instant::now());
        assert_eq!(
            [Some("a b"), None, Some("c")].map(|key| other.rate_of(key)),
            [Some(5), Some(6), None]
        );
        assert_eq!(other.next(&note(text.clone())), None, "nothing new");
        // The later one of two counts, also if it is written first.
        tokio::time::advance(Duration::from_secs(1)).await;
        other.hear(Some("a b"), 7);
        let text = other.next(&note(text));
        one.know(&note(text.clone()), Instant::now());
        assert_eq!(one.rate_of(Some("a b")), Some(7));
        // A store that has lost it gets it back.
        assert!(one.next(&note(None)).is_some_and(|text| text.contains("7 ")));
        let without = LearnedLimits::without(&note(text), Some("a b"));
        one.know(&note(without.clone()), Instant::now());
        assert_eq!((one.rate_of(Some("a b")), one.rate_of(None)), (None, Some(6)));
        assert_eq!(LearnedLimits::without(&note(without), None), Some(HEAD.into()));
        assert_eq!(one.next(&note(Some("of another version".into()))), None);
    }

    #[tokio::test(start_paused = true)]
    async fn the_number_of_keys_has_a_bound() {
        let limits = limits();
        for i in 0..MOST + 10 {
            limits.hear(Some(&i.to_string()), 5);
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        let known = ["0", "9", "10", "4105"].map(|key| limits.rate_of(Some(key)).is_some());
        assert_eq!(known, [false, false, true, true]);
    }
}
