//! The costs of the calls of each key of a limiter, as their answers said: the base of `reserve: learned`. It asks no store;
//! `learn` does.

use crate::key::{CostModel, StateNames};
use parking_lot::Mutex;
use std::{
    collections::HashMap,
    mem,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::sync::Notify;
use tokio::time::Instant;

/// The most keys of a limiter of which a gateway knows the costs. The one that was asked least lately gives way.
const MOST: usize = 1000;

/// The costs of a limiter, by key. All workers share them.
pub struct LearnedReserves {
    /// The names of the texts by which gateways share them.
    names: StateNames,
    keys: Mutex<HashMap<Box<str>, Arc<KeyCosts>>>,
    /// Resolves when a key is asked for the first time.
    pub(crate) wake: Notify,
    is_replaced: AtomicBool,
}

/// The costs of the calls of one key.
#[derive(Debug)]
pub struct KeyCosts {
    /// The name of the text by which gateways share them.
    pub(crate) note: Arc<str>,
    state: Mutex<KeyState>,
}

/// A call whose cost its answer will say.
#[derive(Debug)]
pub(crate) struct LearnedCall {
    pub(crate) costs: Arc<KeyCosts>,
    /// The bytes of its body.
    pub(crate) bytes: u64,
}

#[derive(Debug)]
struct KeyState {
    /// All answers: those of the shared text, and of this gateway.
    model: CostModel,
    /// The answers of this gateway that are not in the text yet.
    fresh: CostModel,
    /// The text as the store had it last; `None` before it was read, and if there is none.
    known: Option<Arc<str>>,
    /// The last request, and the last look at the text.
    asked: Instant,
    looked: Option<Instant>,
}

/// The answers of one gateway that are brought into the shared text.
pub(crate) struct CostReport {
    fresh: CostModel,
    model: CostModel,
    known: Option<Arc<str>>,
}

// === impl LearnedReserves ===

impl LearnedReserves {
    /// Nothing is known yet.
    pub(super) fn new(names: StateNames) -> Self {
        let (keys, is_replaced) = (Mutex::default(), AtomicBool::new(false));
        Self { names, keys, wake: Notify::new(), is_replaced }
    }

    /// Takes over from `before`, the costs of the limiter of the same name in the plan before.
    pub(super) fn taking_over(self, before: Option<&Arc<Self>>) -> Arc<Self> {
        match before.filter(|before| before.names == self.names) {
            Some(before) => before.clone(),
            None => Arc::new(self),
        }
    }

    /// The costs of a key; of all calls without one.
    pub(crate) fn of(&self, key: Option<&str>) -> Arc<KeyCosts> {
        let (name, now) = (key.unwrap_or_default(), Instant::now());
        let mut keys = self.keys.lock();
        if let Some(known) = keys.get(name) {
            known.state.lock().asked = now;
            return known.clone();
        }
        if keys.len() >= MOST {
            let asked = |costs: &KeyCosts| costs.state.lock().asked;
            let oldest = keys.iter().min_by_key(|(_, costs)| asked(costs));
            if let Some(oldest) = oldest.map(|(name, _)| name.clone()) {
                keys.remove(&oldest);
            }
        }
        let (model, fresh) = (CostModel::default(), CostModel::default());
        let state = KeyState { model, fresh, known: None, asked: now, looked: None };
        let new = KeyCosts { note: self.names.of(key).into(), state: Mutex::new(state) };
        let new = Arc::new(new);
        keys.insert(name.into(), new.clone());
        drop(keys);
        self.wake.notify_one();
        new
    }

    /// All keys.
    pub(crate) fn all(&self) -> Vec<Arc<KeyCosts>> {
        self.keys.lock().values().cloned().collect()
    }

    /// Lets the shared texts be read soon.
    pub(crate) fn look_again(&self) {
        self.all().iter().for_each(|costs| costs.state.lock().looked = None);
        self.wake.notify_one();
    }

    /// Ends the reports: a plan without these costs has replaced the one that they belonged to.
    pub(crate) fn replaced(&self) {
        self.is_replaced.store(true, Relaxed);
        self.wake.notify_one();
    }

    pub(crate) fn is_replaced(&self) -> bool {
        self.is_replaced.load(Relaxed)
    }
}

// === impl KeyCosts ===

impl KeyCosts {
    /// The permits to reserve for a call with so many bytes; `None` until enough is known.
    pub(crate) fn reserve(&self, bytes: u64) -> Option<i64> {
        self.state.lock().model.reserve(bytes)
    }

    /// Learns the cost of a call with so many bytes.
    fn observe(&self, bytes: u64, cost: i64) {
        let KeyState { model, fresh, .. } = &mut *self.state.lock();
        let known = model.known();
        fresh.observe(bytes, cost, known);
        model.observe(bytes, cost, known);
    }

    /// Forgets all answers.
    pub(crate) fn forget(&self) {
        let state = &mut *self.state.lock();
        (state.model, state.fresh) = (CostModel::default(), CostModel::default());
        state.known = None;
    }

    /// The answers to bring into the shared text; `None` if it need not be read now. It is read before the first report, when
    /// there are answers, and `every` so often while the key is asked, at each call of this function until enough is known. A text
    /// is begun only then: callers may choose their keys.
    pub(crate) fn report(&self, every: Duration) -> Option<CostReport> {
        let KeyState { model, fresh, known, asked, looked } = &mut *self.state.lock();
        let every = if model.is_known() { every } else { Duration::ZERO };
        let is_due = looked.is_none_or(|looked| looked.elapsed() >= every && *asked > looked);
        let has_news = !fresh.is_empty() && (known.is_some() || model.is_known());
        (is_due || has_news).then(|| {
            *looked = Some(Instant::now());
            CostReport { fresh: mem::take(fresh), model: model.clone(), known: known.clone() }
        })
    }

    /// Whether the shared text lacks an answer.
    pub(crate) fn has_news(&self) -> bool {
        !self.state.lock().fresh.is_empty()
    }

    /// Ends a report: the store has `text` now, or the answers of the report are not in it.
    pub(crate) fn reported(&self, report: CostReport, text: Option<Arc<str>>) {
        let state = &mut *self.state.lock();
        match text.as_deref().and_then(CostModel::parse) {
            Some(mut shared) => {
                shared.add(&state.fresh);
                state.model = shared;
                state.known = text;
            }
            None => state.fresh.add(&report.fresh),
        }
    }
}

// === impl CostReport ===

impl CostReport {
    /// The text after this report, where the store has `text`; `None` if it stays, as one of another version does.
    pub(crate) fn next(&self, text: Option<&Arc<str>>) -> Option<Arc<str>> {
        let next = match text {
            Some(_) if self.fresh.is_empty() => return None,
            Some(text) => {
                let mut shared = CostModel::parse(text)?;
                shared.add(&self.fresh);
                shared
            }
            // The store never had it, or has lost it.
            None if self.known.is_some() || self.model.is_known() => self.model.clone(),
            None => return None,
        };
        Some(next.text().into())
    }
}

// === impl LearnedCall ===

impl LearnedCall {
    /// Learns the cost that the answer said.
    pub(crate) fn end(&self, cost: i64) {
        self.costs.observe(self.bytes, cost);
    }
}
