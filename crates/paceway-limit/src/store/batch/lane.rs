//! A queue and the calls that empty it, one after the other. A task of the lane's own makes them, so that no caller that
//! leaves can block the others; it sleeps while there is nothing to do.

use super::{Batched, Inner, asked::Wait};
use crate::store::{BoxFuture, Entry, Reply, StoreError, hash_tag};
use parking_lot::Mutex;
use std::{
    collections::VecDeque,
    future::{Future, poll_fn},
    mem,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};
use tokio::{
    sync::Notify,
    time::{Instant, Sleep, sleep, timeout},
};

/// Entries a call carries at most; keeps one script run well below a millisecond.
pub(super) const BATCH: usize = 128;
/// Entries that may wait for the next calls of one lane. Callers leave after the store's time-out, so only
/// a store that is stuck gets here; what is over it is answered as an error at once.
const QUEUE: usize = 65_536;
/// A call that has no answer after this time is forgotten; the driver ends it sooner.
const GIVE_UP: Duration = Duration::from_secs(10);

/// Behind a call that the store refused, for so long no limiters share one that no request uses together: what is
/// refused to one of them is not refused to all.
const APART: Duration = Duration::from_secs(5);

/// Entries whose calls follow each other.
#[derive(Debug)]
pub(super) struct Lane {
    name: Box<str>,
    line: Mutex<Line>,
    /// Told whenever a lane has nothing to do.
    idle: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Line {
    queue: VecDeque<Queued>,
    driver: Driver,
    /// There while there is work, so that it is done.
    store: Option<Arc<Inner>>,
    /// The call in flight has outlived the time-out: nobody else need wait to learn that.
    stuck: bool,
    /// When a call was last refused.
    refused: Option<Instant>,
    /// No more work will come.
    closed: bool,
}

/// The task that makes the calls.
#[derive(Debug, Default)]
enum Driver {
    #[default]
    None,
    Sleeps(Waker),
    Works,
}

/// An entry that waits for a call.
#[derive(Debug)]
pub(super) struct Queued {
    pub(super) entry: Entry,
    pub(super) since: Instant,
    /// `None`: what is given back.
    pub(super) caller: Option<Arc<Wait>>,
}

/// What goes into one call.
struct Batch {
    entries: Arc<Vec<Entry>>,
    /// Of each entry: since when, and who waits.
    callers: Vec<(Instant, Option<Arc<Wait>>)>,
    store: Arc<Inner>,
    started: Instant,
    /// How long it may take.
    limit: Duration,
    /// When the time of the first caller is up, here or in the queue.
    due: Instant,
}

// === impl Lane ===

impl Lane {
    pub(super) fn new(name: &str, idle: Arc<Notify>) -> Self {
        Self { name: name.into(), line: Mutex::default(), idle }
    }

    /// False when the queue is full or the call in flight is stuck.
    pub(super) fn push(self: &Arc<Self>, store: &Arc<Inner>, queued: Queued) -> bool {
        let mut line = self.line.lock();
        let is_asked = queued.caller.is_some();
        if (line.stuck && is_asked) || line.queue.len() >= QUEUE {
            return false;
        }
        match is_asked {
            true => line.queue.push_back(queued),
            // What is given back is there for those who ask already.
            false => line.queue.push_front(queued),
        }
        match mem::replace(&mut line.driver, Driver::Works) {
            Driver::Works => {}
            Driver::Sleeps(waker) => {
                line.store = Some(store.clone());
                drop(line);
                waker.wake();
            }
            Driver::None => {
                line.store = Some(store.clone());
                let limit = store.limit();
                drop(line);
                tokio::spawn(drive(self.clone(), limit));
            }
        }
        true
    }

    pub(super) fn is_idle(&self) -> bool {
        !matches!(self.line.lock().driver, Driver::Works)
    }

    /// The store is gone: so is the driver, when it has nothing to do.
    pub(super) fn close(&self) {
        let mut line = self.line.lock();
        line.closed = true;
        if let Driver::Sleeps(waker) = mem::take(&mut line.driver) {
            drop(line);
            waker.wake();
        }
    }

    /// The next call; `None` when there will be none.
    fn poll_batch(&self, cx: &mut Context<'_>) -> Poll<Option<Batch>> {
        let mut line = self.line.lock();
        while line.store.is_some() && !line.queue.is_empty() {
            // None of those who have left.
            if let Some(batch) = line.next_batch() {
                return Poll::Ready(Some(batch));
            }
        }
        let closed = line.closed;
        line.driver = if closed { Driver::None } else { Driver::Sleeps(cx.waker().clone()) };
        let store = line.store.take();
        drop(line);
        // Perhaps its last owner: not with the lock.
        drop(store);
        self.idle.notify_waiters();
        if closed { Poll::Ready(None) } else { Poll::Pending }
    }

    /// While it is stuck, whoever asks is answered at once, and so is whoever has asked. What was given back stays.
    fn set_stuck(&self, stuck: bool) {
        let mut line = self.line.lock();
        line.stuck = stuck;
        line.time_out(|_| true);
    }
}

// === impl Line ===

impl Line {
    /// The callers that go into the next call; those that have left stay out, and so does the time that the
    /// others have spent in the queue.
    fn next_batch(&mut self) -> Option<Batch> {
        let store = self.store.clone()?;
        let started = Instant::now();
        let expected = self.queue.len().min(BATCH);
        let (mut entries, mut callers) =
            (Vec::with_capacity(expected), Vec::with_capacity(expected));
        let mut due = started;
        let mut later = self.entries_apart(started);
        while entries.len() < BATCH {
            let Some(Queued { mut entry, since, caller }) = self.queue.pop_front() else { break };
            if let Some(caller) = &caller {
                if caller.is_over() {
                    continue;
                }
                due = due.min(since);
            }
            if let Entry::Reserve { budget, .. } = &mut entry
                && *budget > 0
            {
                let waited = started.saturating_duration_since(since).as_micros();
                // Past its budget it may still go now, but it may not wait.
                *budget = (*budget - i64::try_from(waited).unwrap_or(i64::MAX)).max(0);
            }
            entries.push(entry);
            callers.push((since, caller));
        }
        let mut waiting = self.queue.iter().chain(&later).filter(|queued| queued.caller.is_some());
        let oldest = match later.is_empty() {
            // In order of coming.
            true => waiting.next().map(|queued| queued.since),
            false => waiting.map(|queued| queued.since).min(),
        };
        let limit = store.limit();
        let due = oldest.map_or(due, |since| due.min(since)) + limit;
        if !later.is_empty() {
            // By turns.
            later.append(&mut self.queue);
            self.queue = later;
        }
        let entries = Arc::new(entries);
        (!entries.is_empty()).then_some(Batch { entries, callers, store, started, limit, due })
    }

    /// Leaves in the queue what may share a call with its head, and returns the rest.
    fn entries_apart(&mut self, now: Instant) -> VecDeque<Queued> {
        let group =
            |queued: &Queued| -> Box<str> { hash_tag(&queued.entry.checks()[0].key).into() };
        match (self.refused, self.queue.front()) {
            (Some(refused), Some(first)) if now < refused + APART => {
                let own = group(first);
                let (queue, later) =
                    mem::take(&mut self.queue).into_iter().partition(|queued| group(queued) == own);
                self.queue = queue;
                later
            }
            _ => VecDeque::new(),
        }
    }

    /// Answers those in the queue whose time is up.
    fn time_out(&mut self, is_up: impl Fn(Instant) -> bool) {
        self.queue.retain(|queued| match &queued.caller {
            Some(caller) if is_up(queued.since) => {
                caller.answer(Err(StoreError::Timeout));
                false
            }
            _ => true,
        });
    }
}

// === impl Batch ===

impl Batch {
    fn time_out(&self) {
        for caller in self.callers.iter().filter_map(|(_, caller)| caller.as_ref()) {
            caller.answer(Err(StoreError::Timeout));
        }
    }
}

impl Drop for Batch {
    /// Whoever still waits: the runtime of the driver has ended before the call.
    fn drop(&mut self) {
        self.time_out();
    }
}

/// Ends with its runtime, or the store.
struct Driven(Arc<Lane>);

impl Drop for Driven {
    fn drop(&mut self) {
        let mut line = self.0.line.lock();
        line.driver = Driver::None;
        line.stuck = false;
        line.time_out(|_| true);
        let store = line.store.take();
        drop(line);
        drop(store);
        self.0.idle.notify_waiters();
    }
}

/// Makes calls as long as there is a store.
async fn drive(lane: Arc<Lane>, limit: Duration) {
    let lane = Driven(lane);
    // One for all calls, far seldomer set than they are made.
    let mut timer = pin!(sleep(limit));
    while let Some(batch) = poll_fn(|cx| lane.0.poll_batch(cx)).await {
        lane.0.call(batch, timer.as_mut()).await;
    }
}

impl Lane {
    async fn call(&self, batch: Batch, timer: Pin<&mut Sleep>) {
        let store = Batched(batch.store.clone());
        let mut call = store.0.script.run(batch.entries.clone());
        let answer = match self.within(&batch, &mut call, timer).await {
            Some(answer) => answer,
            None => {
                // What is not known yet is waited for: sent again, it could be charged twice, and
                // more calls would only pile up in front of a store that hangs.
                self.record(&batch, &Err(StoreError::Timeout), false);
                batch.time_out();
                self.set_stuck(true);
                let late = timeout(GIVE_UP, call).await;
                self.set_stuck(false);
                let late = late.unwrap_or(Err(StoreError::Timeout));
                self.record(&batch, &late, true);
                return self.deliver(&store, batch, late, true);
            }
        };
        self.record(&batch, &answer, false);
        self.deliver(&store, batch, answer, false);
    }

    /// `None` when the call has not come back in time. Meanwhile each caller hears when its own time is up.
    async fn within(
        &self,
        batch: &Batch,
        call: &mut BoxFuture<Result<Vec<Reply>, StoreError>>,
        mut timer: Pin<&mut Sleep>,
    ) -> Option<Result<Vec<Reply>, StoreError>> {
        let limit = batch.limit;
        let end = batch.started + limit;
        if timer.deadline() > batch.due {
            timer.as_mut().reset(batch.due);
        }
        poll_fn(|cx| {
            if let Poll::Ready(answer) = call.as_mut().poll(cx) {
                return Poll::Ready(Some(answer));
            }
            while timer.as_mut().poll(cx).is_ready() {
                let now = Instant::now();
                if now >= end {
                    return Poll::Ready(None);
                }
                let mut next = end;
                if now >= batch.due {
                    let is_up = |since: Instant| since + limit <= now;
                    for (since, caller) in &batch.callers {
                        match caller {
                            Some(caller) if is_up(*since) => {
                                caller.answer(Err(StoreError::Timeout));
                            }
                            Some(_) => next = next.min(*since + limit),
                            None => {}
                        }
                    }
                    let mut line = self.line.lock();
                    line.time_out(is_up);
                    let left = line.queue.iter().find(|queued| queued.caller.is_some());
                    next = left.map_or(next, |queued| next.min(queued.since + limit));
                } else {
                    next = batch.due;
                }
                timer.as_mut().reset(next);
            }
            Poll::Pending
        })
        .await
    }

    /// `late`: it was told as timed out before.
    fn record(&self, batch: &Batch, answer: &Result<Vec<Reply>, StoreError>, late: bool) {
        if let Some(member) = &batch.store.member {
            member.heard(&self.name, &batch.entries, answer, batch.started, late);
        }
        if let Err(StoreError::Refused(_)) = answer {
            self.line.lock().refused = Some(Instant::now());
        }
        let metrics = &batch.store.metrics;
        match answer {
            Ok(replies) => {
                metrics.seconds.record(batch.started.elapsed());
                replies.iter().filter_map(Reply::error).for_each(|error| metrics.count(error));
            }
            Err(error) => metrics.count(error),
        }
    }

    /// `late`: the callers were told that the time was up.
    fn deliver(
        &self,
        store: &Batched,
        mut batch: Batch,
        answer: Result<Vec<Reply>, StoreError>,
        late: bool,
    ) {
        let (count, callers) = (batch.entries.len(), mem::take(&mut batch.callers));
        let (replies, error) = match answer {
            Ok(replies) if replies.len() == count => (replies, None),
            Ok(_) => (Vec::new(), Some(StoreError::Protocol)),
            Err(error) => (Vec::new(), Some(error)),
        };
        let mut replies = replies.into_iter();
        let member = store.0.member.as_ref().filter(|member| member.misses_others());
        for (entry, (since, caller)) in batch.entries.iter().zip(callers) {
            let reply = match (&error, replies.next()) {
                // It was in a call of its own, of which nothing is known.
                (None, Some(Reply::Failed(error))) if error.is_silence() => Err(error),
                (None, Some(reply)) => Ok(reply),
                (error, _) => Err(error.clone().unwrap_or(StoreError::Protocol)),
            };
            store.make_up_for(entry, since, &reply);
            match caller {
                Some(caller) => {
                    let granted = member.filter(|_| is_granted(&reply));
                    match (caller.answer(reply), entry) {
                        (Some(decision), Entry::Reserve { checks, ticket, .. }) => match late {
                            true => store.undo_late(checks, *ticket, decision),
                            false => store.undo(checks, *ticket, &decision),
                        },
                        (None, Entry::Reserve { checks, .. }) => {
                            granted.iter().for_each(|it| store.charge_for_others(it, checks));
                        }
                        _ => {}
                    }
                }
                None => {
                    if let (Entry::Refund { check, .. }, Ok(Reply::HandedOver)) = (entry, reply) {
                        store.watch(check.clone());
                    }
                }
            }
        }
    }
}

fn is_granted(reply: &Result<Reply, StoreError>) -> bool {
    matches!(reply, Ok(Reply::Decision(decision)) if decision.admitted)
}
