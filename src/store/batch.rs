//! Group commit around a store that does I/O: at most one call in flight per key group, and everybody who
//! comes meanwhile goes into the next one, in order. No caller drives a call, so none that leaves
//! can block the others.

use super::{
    Answer, BoxFuture, Check, Checks, Decision, Entry, Reply, Store, StoreError, calls::Calls,
    hash_tag,
};
use crate::algorithm::{
    Grant, Level, Micros,
    concurrency::{CLAIM, Ticket},
    reserve,
};
use metrics::{Counter, Gauge, Histogram};
use parking_lot::Mutex;
use std::{
    collections::{HashMap, HashSet, VecDeque},
    fmt,
    future::Future,
    sync::Arc,
    time::Duration,
};
use tokio::{
    sync::{Notify, oneshot},
    time::{Instant, sleep, timeout, timeout_at},
};

/// Entries a call carries at most; keeps one script run well below a millisecond.
const BATCH: usize = 128;
/// Entries that may wait for the next calls of one group. Callers leave after the store's time-out, so only
/// a store that is stuck gets here; what is over it is answered as an error at once.
const QUEUE: usize = 65_536;

/// A group is told to work again when none of its calls has failed for this long.
const RECOVERED: Duration = Duration::from_secs(1);
/// How long to wait before what was lost is given back again.
const MAKE_UP: Duration = Duration::from_millis(500);
/// A call that has no answer after this time is forgotten; the driver ends it sooner.
const GIVE_UP: Duration = Duration::from_secs(10);

/// Executes entries in order, atomically with regard to every other run.
pub trait Script: Send + Sync + fmt::Debug {
    /// Who waits for a place.
    fn calls(&self) -> &Arc<Calls>;

    /// One reply per entry.
    ///
    /// # Errors
    ///
    /// When nothing is known of any entry.
    fn run(&self, entries: Vec<Entry>) -> BoxFuture<Result<Vec<Reply>, StoreError>>;
}

/// The metrics of a store.
#[derive(Clone)]
pub struct StoreMetrics {
    /// Time of each call that was answered.
    pub seconds: Histogram,
    /// 1 while it answers.
    pub up: Gauge,
    /// Calls without an answer, by [`StoreError::KINDS`].
    pub errors: [Counter; StoreError::KINDS.len()],
}

/// A store over a [`Script`].
#[derive(Debug, Clone)]
pub struct Batched(Arc<Inner>);

struct Inner {
    script: Arc<dyn Script>,
    timeout: Duration,
    metrics: StoreMetrics,
    /// By hash tag. Tags come from the configuration.
    groups: Mutex<HashMap<Box<str>, Group>>,
    idle: Notify,
    /// Places that were handed over a moment ago, by key.
    watched: Mutex<HashSet<Arc<str>>>,
}

#[derive(Default)]
struct Group {
    queue: VecDeque<Queued>,
    in_flight: bool,
    /// The call in flight has outlived the time-out: nobody else need wait to learn that.
    stuck: bool,
    /// The kind of error that was last told to the log, so that each is told once, and when it was last seen.
    told: Option<(&'static str, Instant)>,
}

struct Queued {
    entry: Entry,
    since: Instant,
    reply: Option<oneshot::Sender<Delivery>>,
}

/// A reply on its way to its caller. When nobody takes it, because the caller has left before or after it was
/// sent, what was decided goes to somebody else.
struct Delivery {
    store: Batched,
    entry: Entry,
    reply: Option<Result<Reply, StoreError>>,
}

// === impl Batched ===

impl Batched {
    /// Group commit around `script`; no caller waits longer than `timeout`.
    pub fn new(script: Arc<dyn Script>, timeout: Duration, metrics: StoreMetrics) -> Self {
        let (groups, watched, idle) = (Mutex::default(), Mutex::default(), Notify::new());
        Self(Arc::new(Inner { script, timeout, metrics, groups, idle, watched }))
    }

    /// Joins the queue at once; the future is only the wait for the answer.
    fn ask(
        &self,
        tag: &str,
        entry: Entry,
    ) -> impl Future<Output = Result<Reply, StoreError>> + use<> {
        let (reply, answer) = oneshot::channel();
        let queued = self.enqueue(tag, Queued { entry, since: Instant::now(), reply: Some(reply) });
        let deadline = Instant::now() + self.0.timeout;
        async move {
            if !queued {
                return Err(StoreError::Timeout);
            }
            match timeout_at(deadline, answer).await {
                Ok(Ok(delivery)) => delivery.take(),
                // The driver has given up or is gone with its runtime, or the time is up.
                Ok(Err(_)) | Err(_) => Err(StoreError::Timeout),
            }
        }
    }

    fn ask_done(&self, key: &str, entry: Entry) -> Answer<bool> {
        let answer = self.ask(hash_tag(key), entry);
        Answer::Later(Box::pin(async move {
            match answer.await? {
                Reply::Done(done) => Ok(done),
                Reply::Failed(error) => Err(error),
                _ => Err(StoreError::Protocol),
            }
        }))
    }

    /// False when the group's queue is full or its call is stuck.
    fn enqueue(&self, tag: &str, queued: Queued) -> bool {
        let mut groups = self.0.groups.lock();
        let group = match groups.get_mut(tag) {
            Some(group) => group,
            None => groups.entry(tag.into()).or_default(),
        };
        let caller = queued.reply.is_some();
        if (group.stuck && caller) || group.queue.len() >= QUEUE {
            return false;
        }
        match caller {
            true => group.queue.push_back(queued),
            // What is given back is there for those who ask already.
            false => group.queue.push_front(queued),
        }
        if !std::mem::replace(&mut group.in_flight, true) {
            let (store, tag) = (self.clone(), Box::from(tag));
            // A task of its own: the caller that found nothing in flight may leave at any time.
            tokio::spawn(async move { store.drive(tag).await });
        }
        true
    }

    /// Makes calls until the group's queue is empty.
    async fn drive(&self, tag: Box<str>) {
        loop {
            let batch = self.next_batch(&tag);
            if batch.is_empty() {
                self.0.idle.notify_waiters();
                return;
            }
            let entries = batch.iter().map(|queued| queued.entry.clone()).collect();
            let started = Instant::now();
            let mut call = self.0.script.run(entries);
            let answer = match timeout(self.0.timeout, &mut call).await {
                Ok(answer) => answer,
                Err(_) => {
                    // What is not known yet is waited for: sent again, it could be charged twice, and
                    // more calls would only pile up in front of a store that hangs.
                    self.record(&tag, started, &Err(StoreError::Timeout));
                    self.set_stuck(&tag, true);
                    let late = timeout(GIVE_UP, call).await;
                    self.set_stuck(&tag, false);
                    late.unwrap_or(Err(StoreError::Timeout))
                }
            };
            self.record(&tag, started, &answer);
            self.deliver(&tag, batch, answer);
        }
    }

    /// The callers that go into the next call; those that have left stay out, and so does the time that the
    /// others have spent in the queue.
    fn next_batch(&self, tag: &str) -> Vec<Queued> {
        let mut groups = self.0.groups.lock();
        let Some(group) = groups.get_mut(tag) else { return Vec::new() };
        let mut batch = Vec::with_capacity(group.queue.len().min(BATCH));
        while batch.len() < BATCH {
            let Some(mut queued) = group.queue.pop_front() else { break };
            if queued.reply.as_ref().is_some_and(oneshot::Sender::is_closed) {
                continue;
            }
            if let Entry::Decide { budget, .. } = &mut queued.entry
                && *budget > 0
            {
                let waited = i64::try_from(queued.since.elapsed().as_micros()).unwrap_or(i64::MAX);
                // Past its budget it may still go now, but it may not wait.
                *budget = (*budget - waited).max(0);
            }
            batch.push(queued);
        }
        group.in_flight = !batch.is_empty();
        batch
    }

    /// While a group is stuck, whoever asks is answered at once, and so is whoever has asked. What was given
    /// back stays.
    fn set_stuck(&self, tag: &str, stuck: bool) {
        if let Some(group) = self.0.groups.lock().get_mut(tag) {
            group.stuck = stuck;
            group.queue.retain(|queued| queued.reply.is_none());
        }
    }

    fn deliver(&self, tag: &str, batch: Vec<Queued>, answer: Result<Vec<Reply>, StoreError>) {
        let count = batch.len();
        let replies = match answer {
            Ok(replies) if replies.len() == count => replies.into_iter().map(Ok).collect(),
            Ok(_) => vec![Err(StoreError::Protocol); count],
            Err(error) => vec![Err(error); count],
        };
        for (queued, reply) in batch.into_iter().zip(replies) {
            self.make_up_for(tag, &queued, &reply);
            let Queued { entry, reply: caller, .. } = queued;
            if let Some(caller) = caller {
                let delivery = Delivery { store: self.clone(), entry, reply: Some(reply) };
                drop(caller.send(delivery));
            } else if let (Entry::GiveBack { check, .. }, Ok(Reply::HandedOver)) = (entry, reply) {
                self.watch(check);
            }
        }
    }

    /// Places are given back until the store has heard it, which it may twice: a ticket is nobody else's. Without that
    /// a lost answer, or a lost release, would keep a place from everybody for as long as a lease.
    fn make_up_for(&self, tag: &str, queued: &Queued, reply: &Result<Reply, StoreError>) {
        let Err(error) = reply else { return };
        let (releases, since): (Vec<_>, _) = match &queued.entry {
            Entry::GiveBack { check, .. } => {
                let lease = check.algorithm.lease().unwrap_or_default();
                if queued.since.elapsed() >= Duration::from_micros(lease.unsigned_abs()) {
                    return; // A place that is free by now, or permits.
                }
                (vec![queued.entry.clone()], queued.since)
            }
            Entry::Decide { checks, ticket: Some(ticket), .. }
                if *error != StoreError::NotConnected =>
            {
                (gifts(checks, &places(checks, *ticket)).collect(), Instant::now())
            }
            _ => return,
        };
        let (store, tag) = (self.clone(), tag.to_owned());
        tokio::spawn(async move {
            // Not before the store has worked off what it was sent on a connection that is gone.
            sleep(MAKE_UP).await;
            for entry in releases {
                store.enqueue(&tag, Queued { entry, since, reply: None });
            }
        });
    }

    /// Looks at the places of `check` when a claim on one of them has expired, which gives it to the next in the queue:
    /// the gateway that was called may be dead, and nobody else knows of the claim.
    fn watch(&self, check: Check) {
        if !self.0.watched.lock().insert(check.key.clone()) {
            return;
        }
        let store = self.clone();
        tokio::spawn(async move {
            let mut claim = CLAIM;
            loop {
                sleep(Duration::from_micros(claim.unsigned_abs())).await;
                // Before the look: what is handed over behind it is watched anew.
                store.0.watched.lock().remove(&check.key);
                claim = match store.look(&check).get().await {
                    Ok(level) if (1..=CLAIM).contains(&level.next) => level.next,
                    // What expires later than a claim is somebody's who lives, or known to those who wait.
                    Ok(_) => return,
                    Err(_) => CLAIM,
                };
                if !store.0.watched.lock().insert(check.key.clone()) {
                    return;
                }
            }
        });
    }

    fn record(&self, tag: &str, started: Instant, answer: &Result<Vec<Reply>, StoreError>) {
        self.tell(tag, answer);
        let metrics = &self.0.metrics;
        metrics.up.set(f64::from(u8::from(answer.is_ok())));
        match answer {
            Ok(replies) => {
                metrics.seconds.record(started.elapsed());
                replies.iter().filter_map(Reply::error).for_each(|error| metrics.count(error));
            }
            Err(error) => metrics.count(error),
        }
    }
}

impl Batched {
    /// Logs when the store begins or ends to fail a group: once a change, not once a request.
    fn tell(&self, group: &str, answer: &Result<Vec<Reply>, StoreError>) {
        let error = match answer {
            Ok(replies) => replies.iter().find_map(Reply::error),
            Err(error) => Some(error),
        };
        let mut groups = self.0.groups.lock();
        let Some(Group { told, .. }) = groups.get_mut(group) else { return };
        match error {
            Some(error) => {
                let before = told.replace((error.kind(), Instant::now()));
                if before.is_none_or(|(kind, _)| kind != error.kind()) {
                    tracing::warn!(group, %error, "the store gives no decisions");
                }
            }
            // What only reads may work while what writes does not: believe it after a while.
            None if told.is_some_and(|(_, last)| last.elapsed() >= RECOVERED) => {
                *told = None;
                tracing::info!(group, "the store gives decisions again");
            }
            None => {}
        }
    }
}

impl Store for Batched {
    fn decide(&self, checks: &Checks, budget: Micros, ticket: Option<Ticket>) -> Answer<Decision> {
        let entry = Entry::Decide { checks: checks.clone(), budget, ticket };
        let answer = self.ask(hash_tag(&checks[0].key), entry);
        Answer::Later(Box::pin(async move {
            match answer.await? {
                Reply::Decision(decision) => Ok(decision),
                Reply::Failed(error) => Err(error),
                _ => Err(StoreError::Protocol),
            }
        }))
    }

    fn give_back(&self, checks: &Checks, parts: &[reserve::Part]) {
        if tokio::runtime::Handle::try_current().is_err() {
            return; // The runtime, and with it the connection, is gone: the grant counts as spent.
        }
        for entry in gifts(checks, parts) {
            self.enqueue(
                hash_tag(&checks[0].key),
                Queued { entry, since: Instant::now(), reply: None },
            );
        }
    }

    fn renew(&self, check: &Check, grant: Grant) -> Answer<bool> {
        self.ask_done(&check.key, Entry::Renew { check: check.clone(), grant })
    }

    fn forget(&self, check: &Check) -> Answer<bool> {
        self.ask_done(&check.key, Entry::Forget { check: check.clone() })
    }

    fn calls(&self) -> &Arc<Calls> {
        self.0.script.calls()
    }

    fn look(&self, check: &Check) -> Answer<Level> {
        let answer = self.ask(hash_tag(&check.key), Entry::Look { check: check.clone() });
        Answer::Later(Box::pin(async move {
            match answer.await? {
                Reply::Level(level) => Ok(level),
                Reply::Failed(error) => Err(error),
                _ => Err(StoreError::Protocol),
            }
        }))
    }

    fn flush(&self) -> BoxFuture<()> {
        let store = self.clone();
        Box::pin(async move {
            loop {
                let idle = store.0.idle.notified();
                if store.0.groups.lock().values().all(|group| !group.in_flight) {
                    return;
                }
                idle.await;
            }
        })
    }
}

// === impl Delivery ===

impl Delivery {
    fn take(mut self) -> Result<Reply, StoreError> {
        self.reply.take().unwrap_or(Err(StoreError::Protocol))
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        let Some(Ok(Reply::Decision(decision))) = self.reply.take() else { return };
        let Entry::Decide { checks, ticket, .. } = &self.entry else { return };
        self.store.give_back(checks, &decision.parts);
        if let (Some(queued), Some(ticket)) = (decision.queued, *ticket) {
            let ticket = Ticket { deadline: queued.deadline, ..ticket };
            self.store.give_back(checks, &places(checks, ticket));
        }
    }
}

// === impl StoreMetrics ===

impl StoreMetrics {
    fn count(&self, error: &StoreError) {
        let kind = StoreError::KINDS.iter().position(|kind| *kind == error.kind());
        if let Some(kind) = kind {
            self.errors[kind].increment(1);
        }
    }

    /// Metrics that go nowhere.
    pub fn noop() -> Self {
        Self {
            seconds: Histogram::noop(),
            up: Gauge::noop(),
            errors: std::array::from_fn(|_| Counter::noop()),
        }
    }
}

// === impl Inner ===

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batched").field("script", &self.script).finish_non_exhaustive()
    }
}

/// What an admitted request that did not go out gives back.
pub(super) fn gifts(checks: &Checks, parts: &[reserve::Part]) -> impl Iterator<Item = Entry> {
    let given = checks.iter().zip(parts).filter(|(_, part)| part.at >= 0);
    given.map(|(check, part)| Entry::GiveBack { check: check.clone(), grant: part.grant })
}

/// What leaves every queue and place that `ticket` may be in.
pub fn places(checks: &Checks, ticket: Ticket) -> reserve::Parts {
    let place = |check: &Check| match check.is_lease() {
        true => reserve::Part { at: 0, grant: ticket.grant() },
        false => reserve::Part::NOTHING,
    };
    checks.iter().map(place).collect()
}

#[cfg(test)]
mod tests;
