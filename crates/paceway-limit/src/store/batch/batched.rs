//! A store over a [`Backend`], with group commit. Finds the queue of each request.

use super::{
    callee::CalledStore, pending::PendingReply, queue::CallQueue, releases::releases,
    store_metrics::StoreMetrics,
};
use crate::{
    algorithm::{Micros, concurrency::Ticket, reserve},
    store::{
        Answer, Backend, BoxFuture, Check, Checks, Decision, Entry, Pause, Pauses, Question, Reply,
        Source, Store, StoreAdmin, StoreError, calls::Calls, health::Member, settlement,
    },
};
use ahash::RandomState;
use parking_lot::Mutex;
use std::{collections::HashMap, sync::Arc, time::Duration};

type Queues = HashMap<Box<str>, Arc<CallQueue>, RandomState>;

/// A store over a [`Backend`], with group commit.
#[derive(Debug, Clone)]
pub struct Batched {
    callee: Arc<CalledStore>,
    /// The queues by the lanes of their keys. Their number is bounded, because hash tags come from the
    /// configuration.
    queues: Arc<Mutex<Queues>>,
    pauses: Arc<Pauses>,
}

// === impl Batched ===

impl Batched {
    /// Makes a store with group commit over `backend`. A caller waits at most `timeout` for its answer.
    pub fn new(backend: Arc<dyn Backend>, timeout: Duration, metrics: StoreMetrics) -> Self {
        let pauses = Arc::default();
        Self::over(CalledStore::new(backend, metrics, None, timeout, &pauses), pauses)
    }

    /// Makes a store whose `member` learns how each call ends, and decides how long one may take.
    pub(in crate::store) fn with_member(
        member: Arc<Member>,
        backend: Arc<dyn Backend>,
        metrics: StoreMetrics,
    ) -> Self {
        let pauses = member.pauses().clone();
        Self::over(
            CalledStore::new(backend, metrics, Some(member), Duration::ZERO, &pauses),
            pauses,
        )
    }

    pub(super) fn over(callee: CalledStore, pauses: Arc<Pauses>) -> Self {
        Self { callee: Arc::new(callee), queues: Arc::default(), pauses }
    }

    /// Lets a permit count as spent from now on if the store's answer came after the time-out and the gateway decided by its
    /// share meanwhile. Given back, it would leave room in the shared state that the charges of the share have passed over,
    /// and that room would be granted besides.
    pub(in crate::store) fn spend_late(&self) {
        self.callee.set_spends_late();
    }

    /// Decides a request as [`Store::decide`] does. If the store gives no decision, `otherwise` decides.
    pub(in crate::store) fn decide_or(
        &self,
        question: Question,
        budget: Micros,
        ticket: Option<Ticket>,
        otherwise: impl FnOnce(StoreError) -> Result<Decision, StoreError> + Send + 'static,
    ) -> Answer<Decision> {
        let queue = self.queue(&question.all()[0].key);
        if let Question::Checks(checks) = &question
            && let Some(decision) = self.callee.blocks.enter(checks, ticket, queue.is_idle())
        {
            return Answer::Ready(Ok(decision));
        }
        let entry = Entry::deciding(question.clone(), budget, ticket);
        let reply = PendingReply::new(queue.ask(entry)).deciding(queue, question, ticket);
        Answer::Later(Box::pin(async move {
            reply.await.and_then(|reply| reply.read(Reply::decision)).or_else(otherwise)
        }))
    }

    /// Queues `entry` at once. The returned future only waits for the reply.
    fn ask(&self, entry: Entry) -> PendingReply {
        PendingReply::new(self.queue_of(&entry).ask(entry))
    }

    fn queue_of(&self, entry: &Entry) -> Arc<CallQueue> {
        self.queue(&entry.checks()[0].key)
    }

    fn queue(&self, key: &str) -> Arc<CallQueue> {
        let name = self.callee.backend.placement().lane(key);
        let mut queues = self.queues.lock();
        if let Some(queue) = queues.get(name) {
            return queue.clone();
        }
        let queue = Arc::new(CallQueue::new(name, self.callee.clone()));
        queues.insert(name.into(), queue.clone());
        queue
    }
}

impl Store for Batched {
    fn decide(
        &self,
        question: &Question,
        budget: Micros,
        ticket: Option<Ticket>,
    ) -> Answer<Decision> {
        self.decide_or(question.clone(), budget, ticket, Err)
    }

    fn execute(&self, entry: Entry) -> Answer<Reply> {
        match &entry {
            Entry::Lower { check, .. } => {
                self.callee.blocks.lowered(&check.key);
                self.pauses.drop_permits(Some(&check.key));
            }
            // The blocks are those of the workers; this store is that of the admin side.
            Entry::Forget { check } => self.pauses.drop_permits(Some(&check.key)),
            Entry::Confirm { checks, .. } => {
                let (queue, checks) = (self.queue_of(&entry), checks.clone());
                let reply = PendingReply::new(queue.ask(entry)).deciding(
                    queue,
                    Question::Checks(checks),
                    None,
                );
                return Answer::Later(Box::pin(reply));
            }
            _ => {}
        }
        Answer::Later(Box::pin(self.ask(entry)))
    }

    fn refund(&self, _: Source, checks: &Checks, parts: &[reserve::Part]) {
        for entry in releases(checks, parts) {
            self.queue_of(&entry).release(entry);
        }
    }

    fn refunded(&self, checks: &Checks) -> BoxFuture<()> {
        let queues: Vec<_> = checks.iter().map(|check| self.queue(&check.key)).collect();
        Box::pin(async move {
            for queue in queues {
                queue.released().await;
            }
        })
    }

    fn settle(&self, _: Source, check: &Check, part: reserve::Part, used: i64) {
        if let Some(entry) = settlement::unused(check, part, used) {
            let queue = self.queue_of(&entry);
            queue.release(entry);
            settlement::gives_room(check).into_iter().for_each(|entry| queue.release(entry));
        }
        for entry in settlement::charges(check, settlement::owed(check, part, used)) {
            self.queue_of(&entry).charge(entry);
        }
    }

    fn calls(&self) -> &Arc<Calls> {
        self.callee.backend.calls()
    }

    fn pauses(&self) -> &Arc<Pauses> {
        &self.pauses
    }

    fn pause(&self, checks: &Checks, pause: Pause) -> Answer<()> {
        for check in checks.iter().filter(|check| check.enforce) {
            self.pauses.drop_permits(Some(&check.key));
        }
        let asked: Vec<_> = pause.entries(checks).map(|entry| self.ask(entry)).collect();
        Answer::Later(Box::pin(async move {
            let mut answer = Ok(());
            for reply in asked {
                // After an error for one limiter the others are paused nevertheless.
                answer = answer.and(match reply.await {
                    Ok(Reply::Failed(error)) | Err(error) => Err(error),
                    Ok(_) => Ok(()),
                });
            }
            answer
        }))
    }
}

impl StoreAdmin for Batched {
    fn backend(&self) -> Result<&dyn Backend, StoreError> {
        Ok(&*self.callee.backend)
    }

    fn flush(&self) -> BoxFuture<()> {
        let queues: Vec<_> = self.queues.lock().values().cloned().collect();
        Box::pin(async move {
            for queue in queues {
                queue.flush().await;
            }
        })
    }
}
