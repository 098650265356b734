//! Shares the margins and costs that limiters learn with the other gateways: a task for each such limiter reads the shared
//! record, adds what this gateway saw, and lets the limiter decide by the result. No request waits for it.

mod limits;
mod reserves;

use crate::{
    algorithm::auto_margin::{LearnedMargin, MarginReport},
    limit::micros,
    plan::{LimiterPlan, Observed, Plan, SharedMargin},
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

/// How long a gateway that ends takes for its last reports.
const END: Duration = Duration::from_secs(1);

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
    limits::begin(plan, store).await;
}

/// Lets the tasks read the learned rates and costs soon: another gateway has forgotten some.
pub(crate) fn look_again(plan: &Plan) {
    for limiter in &plan.limiters {
        limiter.learned.iter().for_each(|limits| limits.look_again());
        limiter.reserves.iter().for_each(|reserves| reserves.look_again());
    }
}

/// Brings what this gateway saw since the last reports into the records, before it ends. Takes at most a second.
pub(crate) async fn finish(plan: &Plan, store: &Arc<dyn StoreAdmin>) {
    let margins = async {
        for margin in plan.limiters.iter().filter_map(|limiter| limiter.margin()) {
            drop(Learner::new(margin, store).report().await);
        }
    };
    let all =
        async { tokio::join!(margins, reserves::finish(plan, store), limits::finish(plan, store)) };
    drop(timeout(END, all).await);
}

/// Keeps the records of the limiters of `plan`, which has replaced `before`, on the current runtime. Limiters that both plans
/// share have their task already; those of `before` alone end theirs.
pub(crate) fn follow(plan: &Plan, before: &Plan, store: &Arc<dyn StoreAdmin>) {
    reserves::follow(plan, before, store);
    limits::follow(plan, before, store);
    let Followed { gone, new } = followed(plan, before, LimiterPlan::margin);
    gone.iter().for_each(|margin| margin.replaced());
    for margin in new {
        let mut learner = Learner::new(&margin, store);
        tokio::spawn(async move {
            drop(timeout(PATIENCE, learner.report()).await);
            learner.keep().await;
        });
    }
}

/// The margins or costs of the limiters that a plan has no more, and of its new ones.
struct Followed<T> {
    gone: Vec<Arc<T>>,
    new: Vec<Arc<T>>,
}

fn followed<T>(
    plan: &Plan,
    before: &Plan,
    learned: impl Fn(&LimiterPlan) -> Option<&Arc<T>>,
) -> Followed<T> {
    let all = |plan: &Plan| -> HashMap<_, _> {
        let learned = plan.limiters.iter().filter_map(&learned);
        learned.map(|own| (Arc::as_ptr(own), own.clone())).collect()
    };
    let (now, old) = (all(plan), all(before));
    let beyond = |some: &HashMap<_, Arc<T>>, others: &HashMap<_, Arc<T>>| {
        let others = some.iter().filter(|(own, _)| !others.contains_key(*own));
        others.map(|(_, own)| own.clone()).collect()
    };
    Followed { gone: beyond(&old, &now), new: beyond(&now, &old) }
}

/// Writes the text that `next` makes of the note as it is, unless that is `None` or the same. Returns the note then; `None` if
/// other gateways have written another one each time.
async fn revise(
    store: &Arc<dyn StoreAdmin>,
    key: &Arc<str>,
    next: impl Fn(&Note) -> Option<Arc<str>> + Send,
) -> Result<Option<Note>, StoreError> {
    let mut note = store.exchange(key.clone(), None).await?;
    for _ in 0..ATTEMPTS {
        let Some(text) = next(&note).filter(|text| note.text.as_ref() != Some(text)) else {
            return Ok(Some(note));
        };
        let change = NoteChange { expected: note.text, text: text.clone() };
        note = store.exchange(key.clone(), Some(change)).await?;
        if note.text.as_ref() == Some(&text) {
            return Ok(Some(note));
        }
    }
    Ok(None)
}

pub(crate) use limits::forget as forget_limits;
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
    let note = revise(store, &key, |note| Some(margin.rule.first(note.now).text().into())).await?;
    let first = note.and_then(|note| LearnedMargin::parse(&note.text?));
    if let Some(first) = first {
        margin.set_margin(first.margin);
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
        let next = |note: &Note| Some(self.next(note, observed)?.text().into());
        let text = revise(&self.store, &self.key, next).await?.and_then(|note| note.text);
        self.looked = Instant::now();
        // Another version of Paceway may have written it.
        if let Some(learned) = text.as_deref().and_then(LearnedMargin::parse) {
            self.margin.set_margin(learned.margin);
            self.known = text;
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
