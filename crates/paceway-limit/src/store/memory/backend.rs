//! The memory store as a store of requests, and as the backend of a batch, which tests use in place of Redis.

use super::MemoryStore;
use crate::{
    algorithm::{Micros, concurrency::Ticket, reserve},
    store::{
        Answer, Backend, BoxFuture, Check, Checks, Decision, Entry, Note, NoteChange, Pause,
        Pauses, Question, Reply, ScanPlace, ScanStep, Source, StateCopy, Store, StoreAdmin,
        StoreError, batch::releases, calls::Calls, settlement,
    },
};
use std::sync::Arc;

impl Store for MemoryStore {
    #[inline]
    fn decide(
        &self,
        question: &Question,
        budget: Micros,
        ticket: Option<Ticket>,
    ) -> Answer<Decision> {
        // Each arm writes its decision where the caller reads it: it has 200 bytes, which would be copied otherwise.
        match question {
            Question::Checks(checks) => {
                Answer::Ready(Ok(self.decide_at(self.now(), checks, budget, ticket)))
            }
            Question::Ways(among) => {
                Answer::Ready(Ok(self.choose_at(self.now(), among, budget, ticket)))
            }
        }
    }

    fn execute(&self, entry: Entry) -> Answer<Reply> {
        let reply = self.execute_at(self.now(), &entry);
        if let Entry::Forget { check } = &entry {
            // The calls that wait ask again.
            self.shared.pauses.end(&check.key);
        }
        Answer::Ready(Ok(reply))
    }

    fn refund(&self, _: Source, checks: &Checks, parts: &[reserve::Part]) {
        let entries: Vec<_> = releases(checks, parts).collect();
        self.run_at(self.now(), &entries);
    }

    fn settle(&self, _: Source, check: &Check, part: reserve::Part, used: i64) {
        if let Some(entry) = settlement::unused(check, part, used) {
            let now = self.now();
            self.run_at(now, &[entry]);
            self.run_at(now, settlement::gives_room(check).as_slice());
        }
        match settlement::owed(check, part, used) {
            0 => {}
            owed => self.owe(check, owed),
        }
    }

    fn calls(&self) -> &Arc<Calls> {
        &self.shared.calls
    }

    fn pauses(&self) -> &Arc<Pauses> {
        &self.shared.pauses
    }

    fn pause(&self, checks: &Checks, pause: Pause) -> Answer<()> {
        let entries: Vec<_> = pause.entries(checks).collect();
        self.run_at(self.now(), &entries);
        for check in checks.iter().filter(|check| check.enforce) {
            match pause.unit(check) {
                0 => self.shared.pauses.learn(&check.key, pause.span, pause.status),
                _ => self.shared.pauses.learn_fall(&check.key, pause.span, pause.status),
            }
        }
        Answer::Ready(Ok(()))
    }
}

impl StoreAdmin for MemoryStore {
    fn states(&self) -> Option<usize> {
        Some(self.keys())
    }

    fn backend(&self) -> Result<&dyn Backend, StoreError> {
        Ok(self)
    }

    fn flush(&self) -> BoxFuture<()> {
        Box::pin(std::future::ready(()))
    }
}

impl Backend for MemoryStore {
    fn calls(&self) -> &Arc<Calls> {
        &self.shared.calls
    }

    fn run(&self, entries: Arc<Vec<Entry>>) -> BoxFuture<Result<Vec<Reply>, StoreError>> {
        let replies = self.run_at(self.now(), &entries);
        Box::pin(std::future::ready(Ok(replies)))
    }

    fn exchange(
        &self,
        key: Arc<str>,
        change: Option<NoteChange>,
    ) -> BoxFuture<Result<Note, StoreError>> {
        let note = self.shared.notes.exchange(&key, change, self.now());
        Box::pin(std::future::ready(Ok(note)))
    }

    fn scan(&self, prefix: Arc<str>, place: ScanPlace) -> BoxFuture<Result<ScanStep, StoreError>> {
        Box::pin(std::future::ready(Ok(self.scan_names(&prefix, &place))))
    }

    fn copy_states(&self, checks: Checks) -> BoxFuture<Result<StateCopy, StoreError>> {
        Box::pin(std::future::ready(Ok(self.copy_at(self.now(), &checks))))
    }
}
