//! Where limiters keep their state, and the one promise of such a place: a request is decided once,
//! against all of its limiters, in one atomic step.

pub mod batch;
pub mod calls;
pub mod guard;
pub mod health;
pub mod memory;
#[cfg(feature = "redis")]
pub mod redis;

use crate::algorithm::{
    Algorithm, Grant, Level, Micros,
    concurrency::Ticket,
    reserve::{self, Queued},
};
use calls::Calls;
use memchr::memchr;
use std::{fmt, future::Future, pin::Pin, sync::Arc};

/// A future of a store that does I/O.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// An answer that is there already (the memory store's) or comes later, so that the first kind
/// costs no allocation.
pub enum Answer<T> {
    /// There.
    Ready(Result<T, StoreError>),
    /// On its way.
    Later(BoxFuture<Result<T, StoreError>>),
    /// In a batch, and how it is read there.
    Asked(batch::Asked, fn(Reply) -> Option<T>),
}

/// One limiter's part in a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    /// Name of the state in the store; the checks of one request share its `{hash tag}`.
    pub key: Arc<str>,
    /// The rule.
    pub algorithm: Algorithm,
    /// Permits, 1 to the rule's capacity.
    pub cost: i64,
    /// False: decide and count, never hold or refuse.
    pub enforce: bool,
    /// For how long behind a loss of the store's states grants from before it can count, µs:
    /// [`Algorithm::horizon`].
    pub horizon: Micros,
    /// Where a store that has room for no more keys counts this one together with others.
    pub overflow: Option<Arc<str>>,
    /// What is done when the store gives no decision.
    pub on_failure: OnFailure,
}

/// What a limiter does when the store gives no decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnFailure {
    /// Each gateway enforces its share, at least one permit in `period` µs.
    Share {
        /// Of its rate.
        period: Micros,
    },
    /// The gateway enforces the whole rule: nobody else shares its state.
    Whole,
    /// Requests pass.
    Allow,
    /// Requests that it must decide are refused.
    Reject,
}

/// Who decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The store.
    Shared,
    /// This gateway by itself, because the store gave no decision.
    Local,
    /// Nobody: [`OnFailure::Allow`].
    None,
}

/// What a gateway grants by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// How many share the rule.
    pub gateways: i64,
    /// What is left of it for one of them.
    pub rule: Algorithm,
    /// How full that is.
    pub level: Level,
}

/// A request's limiters, at least one, no key twice. Made once when a configuration is loaded.
pub type Checks = Arc<[Check]>;

/// The answer for a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// Every enforcing limiter grants the request and has been charged. When false, none has.
    pub admitted: bool,
    /// Until the instant of the grant, µs; when refused, until it would have been.
    pub wait: Micros,
    /// When refused: the same request, asked this much later by a lone caller, is admitted, µs.
    pub retry_after: Micros,
    /// Index of the limiter that bound: the one whose instant came last.
    pub bound_by: usize,
    /// Of that limiter, behind this request.
    pub level: Level,
    /// What each limiter gave, in the order of the checks; empty when refused.
    pub parts: reserve::Parts,
    /// Not admitted yet: a place that somebody else holds is waited for.
    pub queued: Option<Queued>,
    /// Who decided, and is given back to.
    pub source: Source,
}

/// Why there is no decision.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// No answer in time. Whether the request was charged is unknown; it counts as spent.
    #[error("the store did not answer within its timeout")]
    Timeout,
    /// No connection to it: it was not asked.
    #[error("the store cannot be reached: not connected")]
    NotConnected,
    /// No connection to it, and why: it was not asked.
    #[error("the store cannot be asked: {0}")]
    Away(Arc<str>),
    /// The connection ended before the answer came. Whether the request was charged is unknown.
    #[error("the store cannot be reached: {0}")]
    Unreachable(String),
    /// It answered with an error.
    #[error("the store answered: {0}")]
    Refused(String),
    /// It answered something that this version does not understand.
    #[error("the store gave an answer that is not understood")]
    Protocol,
    /// The key holds a value that this version of Paceway did not write.
    #[error(
        "the key `{0}` of the store holds a foreign value; delete it, or set another `store.prefix`"
    )]
    Foreign(Arc<str>),
}

/// A place that decides.
///
/// One call is one atomic step: all enforcing checks are charged, or none is. An implementation passes the
/// contract tests in `tests/it/contract.rs`.
pub trait Store: Send + Sync + fmt::Debug {
    /// Decides one request that may wait up to `budget` µs; `ticket` is who asks where places are held.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when there is no decision; the caller applies its policy.
    fn decide(&self, checks: &Checks, budget: Micros, ticket: Option<Ticket>) -> Answer<Decision>;

    /// Decides a request for which [`Self::decide`] had an error, by what its limiters say is done then.
    ///
    /// # Errors
    ///
    /// The same error, when they say that nothing is.
    fn decide_without(
        &self,
        error: StoreError,
        _checks: &Checks,
        _budget: Micros,
        _ticket: Option<Ticket>,
    ) -> Result<Decision, StoreError> {
        Err(error)
    }

    /// Whether this gateway decides requests for `checks` by itself now, so that who waits for a place in the store waits
    /// in vain, and nobody else waits for one here.
    fn decides_alone(&self, _checks: &Checks) -> bool {
        false
    }

    /// By what this gateway decides while the store is away; `None` while it is not, and of a limiter that has another
    /// policy. Changes nothing.
    fn share(&self, _check: &Check) -> Option<Share> {
        None
    }

    /// Gives back what an admitted request did not use of a decision by `source`. Never waits; a store that cannot
    /// take it keeps it as spent.
    fn give_back(&self, source: Source, checks: &Checks, parts: &[reserve::Part]);

    /// Holds a place that `source` gave for another lease; false when it has expired meanwhile.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when that cannot be known.
    fn renew(&self, source: Source, check: &Check, grant: Grant) -> Answer<bool>;

    /// Forgets the state of a limiter, as if nobody had used it; false when nobody had.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when that cannot be known.
    fn forget(&self, check: &Check) -> Answer<bool>;

    /// Who waits for a place.
    fn calls(&self) -> &Arc<Calls>;

    /// How full a limiter is. Changes nothing.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when that cannot be known.
    fn look(&self, check: &Check) -> Answer<Level>;

    /// Resolves when everything given back so far has reached the store or cannot reach it.
    fn flush(&self) -> BoxFuture<()>;
}

/// One step of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    /// Decide a request.
    Decide {
        /// Its limiters.
        checks: Checks,
        /// How long it may wait, µs.
        budget: Micros,
        /// Who asks where places are held.
        ticket: Option<Ticket>,
    },
    /// Give one grant back.
    GiveBack {
        /// The limiter, with the cost that was paid.
        check: Check,
        /// What it gave.
        grant: Grant,
    },
    /// Hold a place for another lease.
    Renew {
        /// The limiter.
        check: Check,
        /// The place.
        grant: Grant,
    },
    /// Forget a state.
    Forget {
        /// The limiter.
        check: Check,
    },
    /// Look at a limiter.
    Look {
        /// The limiter.
        check: Check,
    },
}

/// What became of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// Of [`Entry::Decide`].
    Decision(Decision),
    /// Of [`Entry::GiveBack`], [`Entry::Renew`], [`Entry::Forget`]: whether there was something to.
    Done(bool),
    /// Of [`Entry::GiveBack`]: a place went to somebody who waits, and who may be gone without a word.
    HandedOver,
    /// Of [`Entry::Look`].
    Level(Level),
    /// The step alone failed.
    Failed(StoreError),
}

// === impl Answer ===

impl<T> Answer<T> {
    /// The answer, whenever it is there.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn get(self) -> Result<T, StoreError> {
        match self {
            Self::Ready(answer) => answer,
            Self::Later(answer) => answer.await,
            Self::Asked(answer, read) => match answer.await? {
                Reply::Failed(error) => Err(error),
                reply => read(reply).ok_or(StoreError::Protocol),
            },
        }
    }
}

// === impl Decision ===

impl Decision {
    /// What `reserved` says.
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
        }
    }
}

// === impl Check ===

impl Check {
    /// One permit of `algorithm`, whose state is named `key`. It enforces, counts nothing that was lost, and refuses when
    /// the store gives no decision.
    pub fn new(key: impl Into<Arc<str>>, algorithm: Algorithm) -> Self {
        let on_failure = OnFailure::Reject;
        let key = key.into();
        Self { key, algorithm, cost: 1, enforce: true, horizon: 0, overflow: None, on_failure }
    }

    /// The same for `cost` permits.
    #[must_use]
    pub fn with_cost(self, cost: i64) -> Self {
        Self { cost, ..self }
    }

    /// The same with grants from before a loss that can count for so long, µs.
    #[must_use]
    pub fn with_horizon(self, horizon: Micros) -> Self {
        Self { horizon, ..self }
    }

    /// The same with something else that is done when the store gives no decision.
    #[must_use]
    pub fn with_on_failure(self, on_failure: OnFailure) -> Self {
        Self { on_failure, ..self }
    }

    /// Whether it holds a place, not permits.
    pub fn is_lease(&self) -> bool {
        matches!(self.algorithm, Algorithm::Concurrency(_))
    }
}

// === impl Entry ===

impl Entry {
    /// The limiters that it is about.
    pub fn checks(&self) -> &[Check] {
        match self {
            Self::Decide { checks, .. } => checks,
            Self::GiveBack { check, .. }
            | Self::Renew { check, .. }
            | Self::Forget { check }
            | Self::Look { check } => std::slice::from_ref(check),
        }
    }
}

// === impl Reply ===

impl Reply {
    /// Why the step failed, if it did.
    pub fn error(&self) -> Option<&StoreError> {
        match self {
            Self::Failed(error) => Some(error),
            Self::Decision(_) | Self::Done(_) | Self::HandedOver | Self::Level(_) => None,
        }
    }
}

// === impl Source ===

impl Source {
    /// All of them, in the order of their declaration.
    pub const ALL: [Self; 3] = [Self::Shared, Self::Local, Self::None];

    /// The `source` label in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Shared => "shared",
            Self::Local => "local",
            Self::None => "none",
        }
    }
}

// === impl StoreError ===

impl StoreError {
    /// Whether nothing was heard that could be understood.
    pub fn is_silence(&self) -> bool {
        !matches!(self, Self::Refused(_) | Self::Foreign(_))
    }

    /// Whether nothing was sent: what was asked for was not done.
    pub fn is_unasked(&self) -> bool {
        matches!(self, Self::NotConnected | Self::Away(_))
    }

    /// Whether it is about one key, not about the store.
    pub fn is_of_a_key(&self) -> bool {
        matches!(self, Self::Foreign(_))
    }

    /// The `kind` label in metrics.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::NotConnected | Self::Away(_) | Self::Unreachable(_) => "unreachable",
            Self::Refused(_) => "refused",
            Self::Protocol => "protocol",
            Self::Foreign(_) => "foreign",
        }
    }

    /// Every value that [`Self::kind`] has.
    pub const KINDS: [&'static str; 5] =
        ["timeout", "unreachable", "refused", "protocol", "foreign"];
}

/// The `{hash tag}` of a key: what its Redis Cluster slot is computed from.
pub fn hash_tag(key: &str) -> &str {
    // It is on the way of each decision.
    let find = |from: usize, what| memchr(what, &key.as_bytes()[from..]);
    let start = find(0, b'{').map_or(0, |at| at + 1);
    match find(start, b'}').filter(|_| start > 0) {
        Some(length) if length > 0 => &key[start..start + length],
        _ => key,
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    /// As Redis Cluster reads it: between the first `{` and the next `}`, when something is there.
    #[rstest]
    #[case("paceway:{account}:T:search", "account")]
    #[case("a{b}{c}", "b")]
    #[case("a}b{c}d", "c")]
    #[case("{}a{b}", "{}a{b}")]
    #[case("a{b", "a{b")]
    #[case("a}b", "a}b")]
    #[case("", "")]
    fn hash_tag(#[case] key: &str, #[case] tag: &str) {
        assert_eq!(super::hash_tag(key), tag);
    }
}
