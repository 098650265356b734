//! Where limiters keep their state. A store keeps one promise: it decides a request once, against all of its limiters, in
//! one atomic step.

mod alternatives;
mod backend;
pub mod batch;
pub mod calls;
mod check;
mod entry;
mod error;
mod settlement;
pub mod failover;
mod forecast;
pub mod health;
pub mod memory;
mod note;
mod openings;
mod pauses;
mod scan;
mod turn;
#[cfg(feature = "redis")]
pub mod redis;

pub use crate::algorithm::fair::Turn;
pub use alternatives::{Alternative, Alternatives, Question, Way};
pub use backend::{ABSENT, Backend, Beat, GONE, Heartbeat, Placement};
pub use check::{Check, Checks, OnFailure, OnLoss, hash_tag};
pub use entry::{Entry, Pause, Reply};
pub use error::StoreError;
pub use forecast::{Forecast, ForecastAsk, StateCopy};
pub use note::{KEPT, Note, NoteChange};
pub(crate) use openings::LEAST_GAIN;
pub use openings::{Opening, Openings};
pub use pauses::{
    Covering, Doubt, GrantedSlot, KnownPause, LimiterHold, PauseEvent, PauseEvents, PauseVersion,
    Pauses, WaitingCount,
};
pub use scan::{ScanPlace, ScanStep};
pub use turn::TenantLevel;

use crate::algorithm::{
    Grant, Level, Micros, Rule,
    concurrency::{Queued, Ticket},
    fair::Place,
    gate::Remainder,
    reserve,
};
use calls::Calls;
use std::{
    fmt,
    future::{Future, ready},
    pin::Pin,
    sync::Arc,
};

/// The boxed future of a store operation that does I/O.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The answer of a store. The memory store answers at once, so this is no boxed future: that answer allocates nothing.
pub enum Answer<T> {
    /// The answer is known already.
    Ready(Result<T, StoreError>),
    /// The answer comes later, or the limiters' `on_failure` in its place.
    Later(BoxFuture<Result<T, StoreError>>),
}

/// The party that decided a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Source {
    /// The store that all gateways share.
    #[default]
    Shared,
    /// This gateway by its share of the rule, because the store gave no decision.
    Local,
    /// No limiter decided: [`OnFailure::Allow`] let the request pass.
    None,
}

/// The part of a rule that one gateway enforces while the store is away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// How many gateways share the rule, this one among them.
    pub gateways: i64,
    /// The rule of one of them: a third of the rate, say.
    pub rule: Rule,
    /// How full the state of that rule is in this gateway.
    pub level: Level,
}

/// The decision on a request; by default one that admits nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Decision {
    /// Whether every enforcing limiter grants the request and has been charged. If false, none has been charged.
    pub admitted: bool,
    /// Until the instant of the grant, in µs; for a refused request, until the instant that its budget did not reach.
    pub wait: Micros,
    /// For a refused request: how much later the same request of a lone caller is admitted, in µs.
    pub retry_after: Micros,
    /// Index of the limiter that bound: the one whose instant came last.
    pub bound_by: usize,
    /// The level of that limiter after this request.
    pub level: Level,
    /// The grant of each limiter, in the order of the checks; empty for a refused request.
    pub parts: reserve::Parts,
    /// If set, the request is not admitted yet: it waits for a concurrency permit that another call holds.
    pub queued: Option<Queued>,
    /// The party that decided, which is also the one that takes a refund.
    pub source: Source,
    /// The way that was taken, for a request with [`Alternatives`]: the other fields are about its limiters.
    pub chosen: Option<u8>,
}

/// A place that decides requests.
///
/// One call is one atomic step: it charges all enforcing checks, or none. An implementation passes the contract tests in
/// `tests/it/contract.rs`.
pub trait Store: Send + Sync + fmt::Debug {
    /// Decides a request that may wait up to `budget` µs, and charges its limiters if it is admitted. Among
    /// several ways it takes the one with the earliest slot, and charges the limiters of that alone. `ticket` names the request
    /// where it holds or awaits concurrency permits. A store that can be away applies each limiter's [`OnFailure`] by itself.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the store gives no decision and a limiter says [`OnFailure::Reject`].
    fn decide(
        &self,
        question: &Question,
        budget: Micros,
        ticket: Option<Ticket>,
    ) -> Answer<Decision>;

    /// Decides a request with these limiters as [`Self::decide`] does.
    ///
    /// # Errors
    ///
    /// As [`Self::decide`].
    fn reserve(&self, checks: &Checks, budget: Micros, ticket: Option<Ticket>) -> Answer<Decision> {
        self.decide(&Question::Checks(checks.clone()), budget, ticket)
    }

    /// Executes an entry that is no request's first question, no refund and no charge.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the store gave no answer. Unless it [was not asked](StoreError::is_unasked), it may have executed the
    /// entry.
    fn execute(&self, entry: Entry) -> Answer<Reply>;

    /// Decides whether a request that waits for its turn, and whose slot comes, is sent or yields its slot to another one. A
    /// decision that is not admitted says that the request does not wait any more, because the store has lost its queue.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the store gave no answer. Then the request may have been sent or have another slot.
    fn confirm(&self, checks: &Checks, place: Place) -> Answer<Decision> {
        self.execute(Entry::Confirm { checks: checks.clone(), place }).read(Reply::decision)
    }

    /// Gives a request that waits permits for an earlier instant in place of `parts`, which the shared state granted: in one
    /// step, because its own permits may be what takes the room of the earlier ones. A decision that is not admitted says that
    /// it keeps its own.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the store gave no answer. Unless it [was not asked](StoreError::is_unasked), the request may have
    /// the one permits or the others.
    fn move_up(
        &self,
        checks: &Checks,
        parts: &[reserve::Part],
        budget: Micros,
    ) -> Answer<Decision> {
        let entry = Entry::MoveUp { checks: checks.clone(), budget, parts: parts.into() };
        self.execute(entry).read(Reply::decision)
    }

    /// Returns the grants of a decision by `source` that were not used. It never waits; a grant that the store does not
    /// receive counts as spent.
    fn refund(&self, source: Source, checks: &Checks, parts: &[reserve::Part]);

    /// Resolves when the refunds of `checks` so far are on their way: questions from then on find their permits. It does not wait
    /// for a store that gives no answers.
    fn refunded(&self, _checks: &Checks) -> BoxFuture<()> {
        Box::pin(ready(()))
    }

    /// Settles the grant of one check for a request that turned out to cost `used` permits: those that it did not use are
    /// returned, and those beyond `check.cost` are charged, so that later requests wait for them. It never waits. A refund
    /// that the store does not receive counts as spent.
    fn settle(&self, source: Source, check: &Check, part: reserve::Part, used: i64);

    /// Extends the lease of a concurrency permit that `source` granted; false when the lease has expired meanwhile.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the store gave no answer, so that the lease may have expired or not.
    fn renew(&self, _source: Source, check: &Check, grant: Grant) -> Answer<bool> {
        self.execute(Entry::Renew { check: check.clone(), grant }).read(Reply::done)
    }

    /// Reads how full a limiter is, without changing it.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the store gave no answer.
    fn look(&self, check: &Check) -> Answer<Level> {
        self.execute(Entry::Look { check: check.clone() }).read(Reply::level)
    }

    /// Pauses the limiters of a request, except those that only observe: none of them grants anything before the end of the
    /// pause, through whichever gateway. A pause that ends earlier than the present one changes nothing. A store that loses
    /// its data loses its pauses, too.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the store gave no answer for one of the limiters, which may be paused or not.
    fn pause(&self, checks: &Checks, pause: Pause) -> Answer<()>;

    /// Lowers a limiter to `permits`, for `span` µs if that is not 0, as [`Remainder`] says, and reads its level. An upstream
    /// that says how many calls remain also counts those of other programs. It never raises a level.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the store gave no answer.
    fn lower(&self, check: &Check, permits: i64, span: Micros) -> Answer<Level> {
        let waiting = self.pauses().permits_awaited(&check.key, span);
        let told = Remainder { permits, waiting, span };
        self.execute(Entry::Lower { check: check.clone(), told }).read(Reply::level)
    }

    /// The requests that wait for concurrency permits through this store, which also issues their tickets.
    fn calls(&self) -> &Arc<Calls>;

    /// The pauses of limiters that this process knows.
    fn pauses(&self) -> &Arc<Pauses>;

    /// The time in µs for which the limiter of `check` stays closed because the store has lost its states, or may have; `None`
    /// if it is not closed for that reason, as far as this process knows. An operator's reset opens one key earlier.
    fn closed_for(&self, _check: &Check) -> Option<Micros> {
        None
    }

    /// Whether this gateway decides `checks` by itself now. A request that waits in the other queue then (in the store's
    /// when this is true, in the gateway's when it is false) would wait in vain, and has to ask again.
    fn decides_alone(&self, _checks: &Checks) -> bool {
        false
    }
}

/// The calls that operators and the end of a process make, and no request does.
pub trait StoreAdmin: Store {
    /// Deletes the state of a limiter, as if no request had used it; false when none had.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the store gave no answer.
    fn forget(&self, check: &Check) -> Answer<bool> {
        self.execute(Entry::Forget { check: check.clone() }).read(Reply::done)
    }

    /// The backend that keeps the shared texts and the states.
    ///
    /// # Errors
    ///
    /// [`StoreError::NotConnected`] while the store is not asked.
    fn backend(&self) -> Result<&dyn Backend, StoreError>;

    /// Reads a text that gateways share, and replaces it if it is the one that `change` expects. Resolves with the text
    /// afterwards.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the store gave no answer. Then the text may have been replaced.
    fn exchange(
        &self,
        key: Arc<str>,
        change: Option<NoteChange>,
    ) -> BoxFuture<Result<Note, StoreError>> {
        match self.backend() {
            Ok(backend) => backend.exchange(key, change),
            Err(error) => Box::pin(ready(Err(error))),
        }
    }

    /// Reads the names of some states that begin with `prefix`, from `place` on: a step of all states of the store. States
    /// that come or end meanwhile may be missing, all others are found.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the store gave no answer.
    fn scan(&self, prefix: Arc<str>, place: ScanPlace) -> BoxFuture<Result<ScanStep, StoreError>> {
        match self.backend() {
            Ok(backend) => backend.scan(prefix, place),
            Err(error) => Box::pin(ready(Err(error))),
        }
    }

    /// Copies the states of `checks`, the limiters of one request, as they are at one instant.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the store gave no answer.
    fn copy_states(&self, checks: Checks) -> BoxFuture<Result<StateCopy, StoreError>> {
        match self.backend() {
            Ok(backend) => backend.copy_states(checks),
            Err(error) => Box::pin(ready(Err(error))),
        }
    }

    /// Reads which tenants wait for a limiter that shares its slots fairly, those with the most waiting requests first, and
    /// what each was granted. Empty for a limiter whose checks have no [`Turn`].
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the store gave no answer.
    fn tenants(&self, check: &Check) -> Answer<Vec<TenantLevel>> {
        self.execute(Entry::Tenants { check: check.clone() }).read(Reply::tenants)
    }

    /// The states that the store keeps now, of all limiters and keys. `None` for a store outside of this process.
    fn states(&self) -> Option<usize> {
        None
    }

    /// The share by which this gateway decides `check` while the store is away. `None` while the store decides, and for a
    /// limiter with another policy.
    fn share(&self, _check: &Check) -> Option<Share> {
        None
    }

    /// Resolves when every refund so far has reached the store, or cannot reach it any more.
    fn flush(&self) -> BoxFuture<()>;
}

// === impl Answer ===

impl<T> Answer<T> {
    /// Waits for the answer.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the store gave no answer, and the limiters' `on_failure` gives no decision either.
    pub async fn get(self) -> Result<T, StoreError> {
        match self {
            Self::Ready(answer) => answer,
            Self::Later(answer) => answer.await,
        }
    }
}

impl Answer<Reply> {
    /// The part of the reply that `read` finds.
    fn read<T: 'static>(self, read: fn(Reply) -> Option<T>) -> Answer<T> {
        match self {
            Self::Ready(answer) => Answer::Ready(answer.and_then(|reply| reply.read(read))),
            Self::Later(answer) => Answer::Later(Box::pin(async move { answer.await?.read(read) })),
        }
    }
}

// === impl Decision ===

impl Decision {
    /// The decision of the shared state, from the outcome of its rules.
    pub fn new(reserved: reserve::Reserved) -> Self {
        let admitted = reserved.parts.is_some();
        Self {
            admitted,
            wait: reserved.at,
            retry_after: reserved.retry_after,
            bound_by: reserved.bound_by,
            level: reserved.level,
            parts: reserved.parts.unwrap_or_default(),
            queued: reserved.queued,
            source: Source::Shared,
            chosen: None,
        }
    }

    /// The answer to a request that keeps its own permits, because none are free for an earlier instant.
    pub fn kept(level: Level) -> Self {
        Self { retry_after: 1, level, ..Self::default() }
    }

    /// The refusal of a request that would have to wait `left` µs for the end of a pause of its limiter `bound_by`, as this
    /// gateway knows it.
    pub fn paused(bound_by: usize, left: Micros) -> Self {
        let level = Level { next: left, reset_after: left, paused: left, ..Level::default() };
        let (wait, retry_after, source) = (left, left, Source::Local);
        Self { wait, retry_after, bound_by, level, source, ..Self::default() }
    }
}

// === impl Source ===

impl Source {
    /// All sources, in the order of their declaration.
    pub const ALL: [Self; 3] = [Self::Shared, Self::Local, Self::None];

    /// The `source` label in metrics, such as `shared`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Shared => "shared",
            Self::Local => "local",
            Self::None => "none",
        }
    }
}
