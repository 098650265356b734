//! Shares the margins and costs that limiters learn with the other gateways: a task for each such limiter reads the shared
//! record, adds what this gateway saw, and lets the limiter decide by the result. No request waits for it.

mod reserves;

use crate::{
    algorithm::auto_margin::{LearnedMargin, MarginReport},
    limit::micros,
    plan::{Observed, Plan, SharedMargin},
    store::{Note, NoteChange, StoreAdmin, StoreError},
};
use std::{collections::HashMap, sync::Arc, time::Duration};
use tokio::time::{Instant, sleep, timeout};

/// How often a record is read.
const EVERY: Duration = Duration::from_secs(1);

/// How often the record of a limiter is read that no request uses.
const UNUSED: Duration = Duration::from_secs(10);

/// How long a store may take for a record. The limiter keeps its rule meanwhile.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long the start waits for the records: a gateway then begins with the margins that were learned before.
const START: Duration = Duration::from_millis(500);

/// How often a report is tried when other gateways replace the record at the same moment.
const ATTEMPTS: usize = 4;

/// The learned margin of a limiter, with the knowledge of its record.
struct Learner {
    margin: Arc<SharedMargin>,
    store: Arc<dyn StoreAdmin>,
    key: Arc<str>,
    /// The record as the store had it last. It is written again when the store has lost it.
    known: Option<Arc<str>>,
    looked: Instant,
}

/// Reads the records of all limiters that learn, and keeps reading and writing them on the current runtime.
pub(crate) async fn begin(plan: &Plan, store: &Arc<dyn StoreAdmin>) {
    for margin in plan.limiters.iter().filter_map(|limiter| limiter.margin()) {
        let mut learner = Learner::new(margin, store);
        drop(timeout(START, learner.report()).await);
        tokio::spawn(learner.keep());
    }
    reserves::begin(plan, store).await;
}

/// Keeps the records of the limiters of `plan`, which has replaced `before`, on the current runtime. Limiters that both plans
/// share have their task already; those of `before` alone end theirs.
pub(crate) fn follow(plan: &Plan, before: &Plan, store: &Arc<dyn StoreAdmin>) {
    let all = |plan: &Plan| -> HashMap<_, _> {
        let learned = plan.limiters.iter().filter_map(|limiter| limiter.margin());
        learned.map(|margin| (Arc::as_ptr(margin), margin.clone())).collect()
    };
    reserves::follow(plan, before, store);
    let (new, old) = (all(plan), all(before));
    for (own, margin) in &old {
        if !new.contains_key(own) {
            margin.replaced();
        }
    }
    for (own, margin) in &new {
        if !old.contains_key(own) {
            let mut learner = Learner::new(margin, store);
            tokio::spawn(async move {
                drop(timeout(PATIENCE, learner.report()).await);
                learner.keep().await;
            });
        }
    }
}

pub(crate) use reserves::forget as forget_costs;

/// Forgets a learned margin: the limiter begins without one again.
///
/// # Errors
///
/// [`StoreError`] when the store gave no answer.
pub(crate) async fn forget(
    margin: &SharedMargin,
    store: &Arc<dyn StoreAdmin>,
) -> Result<(), StoreError> {
    let key: Arc<str> = margin.key.clone().into();
    let mut note = store.exchange(key.clone(), None).await?;
    for _ in 0..ATTEMPTS {
        let first = margin.rule.first(note.now);
        let text: Arc<str> = first.text().into();
        let change = NoteChange { expected: note.text, text: text.clone() };
        note = store.exchange(key.clone(), Some(change)).await?;
        if note.text.as_ref() == Some(&text) {
            margin.set_margin(first.margin);
            break;
        }
    }
    Ok(())
}

// === impl Learner ===

impl Learner {
    fn new(margin: &Arc<SharedMargin>, store: &Arc<dyn StoreAdmin>) -> Self {
        let key = margin.key.clone().into();
        let (margin, store, looked) = (margin.clone(), store.clone(), Instant::now());
        Self { margin, store, key, known: None, looked }
    }

    /// Reports until a plan without this limiter replaces the present one.
    async fn keep(mut self) {
        while !self.margin.is_replaced() {
            tokio::select! {
                () = sleep(EVERY) => {}
                () = self.margin.wake.notified() => {}
            }
            drop(timeout(PATIENCE, self.report()).await);
        }
    }

    /// Brings the observations of this gateway into the shared record, and the record into the limiter.
    async fn report(&mut self) -> Result<(), StoreError> {
        let observed = self.margin.observed();
        let is_unused = !observed.asked && observed.refused.is_none();
        if is_unused && self.known.is_some() && self.looked.elapsed() < UNUSED {
            return Ok(());
        }
        let result = self.report_observed(&observed).await;
        if let (Err(_), Some(refusal)) = (&result, observed.refused) {
            self.margin.put_back(refusal);
        }
        result
    }

    async fn report_observed(&mut self, observed: &Observed) -> Result<(), StoreError> {
        let mut note = self.store.exchange(self.key.clone(), None).await?;
        self.looked = Instant::now();
        for _ in 0..ATTEMPTS {
            let Some(next) = self.next(&note, observed) else {
                // Another version of Paceway has written it.
                return Ok(());
            };
            let text: Arc<str> = next.text().into();
            if note.text.as_ref() == Some(&text) {
                self.margin.set_margin(next.margin);
                self.known = Some(text);
                return Ok(());
            }
            let change = NoteChange { expected: note.text, text };
            note = self.store.exchange(self.key.clone(), Some(change)).await?;
        }
        Ok(())
    }

    /// The record after this gateway's observations; `None` for a text that is no record.
    fn next(&self, note: &Note, observed: &Observed) -> Option<LearnedMargin> {
        let rule = self.margin.rule;
        let learned = match note.text.as_ref().or(self.known.as_ref()) {
            Some(text) => LearnedMargin::parse(text)?,
            None => rule.first(note.now),
        };
        // Only a refusal while the limiter had no permit left is one of a window that was kept.
        let refused = observed.refused.filter(|_| observed.held);
        let refused = refused.map(|sent| note.now - micros(sent.elapsed()));
        let report = MarginReport { spread: self.margin.spread(), refused };
        Some(rule.next(learned, report, note.now))
    }
}
