//! The steps that a store executes in one call, and its reply to each. Every backend executes the same steps.

use super::{Alternatives, Check, Checks, Decision, Question, StoreError, TenantLevel};
use crate::algorithm::{
    Grant, Level, Micros,
    concurrency::Ticket,
    fair::Place,
    gate::{MAX_PAUSE, MOST_PAUSES, Refusal, Remainder},
    reserve::Parts,
    token_bucket::BlockAsk,
};
use std::{sync::Arc, time::Duration};

/// One step of a call to the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    /// Decides a request, and charges its limiters if it is admitted.
    Reserve {
        /// The limiters of the request.
        checks: Checks,
        /// How long the request may wait, in µs.
        budget: Micros,
        /// The name under which the request holds or awaits concurrency permits.
        ticket: Option<Ticket>,
    },
    /// Decides a request that can be made in several ways as [`Self::Reserve`] does: only the limiters of the way with the
    /// earliest slot are charged, and the decision is about these.
    Choose {
        /// The ways.
        among: Arc<Alternatives>,
        /// How long the request may wait, in µs.
        budget: Micros,
        /// The name under which the request holds or awaits concurrency permits.
        ticket: Option<Ticket>,
    },
    /// Decides a request of one limiter as [`Self::Reserve`] does. If the limiter has plenty of permits, a block of them is
    /// taken for this request and the next ones of the gateway.
    Block {
        /// The limiter of the request.
        checks: Checks,
        /// How long the request may wait, in µs.
        budget: Micros,
        /// The block.
        ask: BlockAsk,
    },
    /// Gives a request that waits permits for an earlier instant in place of its own. If the limiters grant none within the
    /// budget beside all other requests, it keeps its own, and nothing changes.
    MoveUp {
        /// The limiters of the request that count permits of a rate.
        checks: Checks,
        /// How long the request may wait in its new slot, in µs.
        budget: Micros,
        /// The permits that it has.
        parts: Parts,
    },
    /// Returns one grant that was not used.
    Refund {
        /// The limiter, with the cost that was paid.
        check: Check,
        /// The grant of that limiter.
        grant: Grant,
    },
    /// Extends the lease of a concurrency permit by its full length.
    Renew {
        /// The limiter.
        check: Check,
        /// The grant that names the permit.
        grant: Grant,
    },
    /// Deletes the state of a limiter, as an operator's reset does.
    Forget {
        /// The limiter.
        check: Check,
    },
    /// Reads how full a limiter is, without changing it.
    Look {
        /// The limiter.
        check: Check,
    },
    /// Pauses a limiter, and reads its level. A pause that ends earlier than the present one changes nothing.
    Pause {
        /// The limiter.
        check: Check,
        /// How long it grants nothing, and why.
        pause: Pause,
    },
    /// Lowers a limiter to the permits that remain as the upstream says, and reads its level. It never raises one.
    Lower {
        /// The limiter.
        check: Check,
        /// The permits that remain, and for how long.
        told: Remainder,
    },
    /// Charges permits that were used already: as many as a window has room for at the first instant with any, and the rest
    /// later, so that no window stays open while permits are owed.
    Charge {
        /// The limiter, with the number of permits as the cost.
        check: Check,
    },
    /// Decides whether a request that waits for its turn is sent in its slot or yields it, when the slot comes. Long before
    /// the slot it only says that the request still waits.
    Confirm {
        /// The limiters of the request, as in its [`Entry::Reserve`].
        checks: Checks,
        /// The place in the queue.
        place: Place,
    },
    /// Removes a request that waits for its turn from the queue, and gives its slot to another one.
    Leave {
        /// The limiters of the request, as in its [`Entry::Reserve`].
        checks: Checks,
        /// The place in the queue.
        place: Place,
    },
    /// Reads which tenants wait for a limiter.
    Tenants {
        /// The limiter.
        check: Check,
    },
}

/// A pause of limiters, which an upstream has asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pause {
    /// How long nothing is granted, in µs from the store's now; at most [`MAX_PAUSE`].
    pub span: Micros,
    /// How long it takes as a whole, in µs: [`span`](Self::span) is what is left of that. It says nothing about a much longer
    /// period ([`unit`](Self::unit)).
    pub whole: Micros,
    /// The status of the upstream's answer that asked for it, such as 429.
    pub status: u16,
    /// How long ago the refused call was sent, in µs.
    pub ago: Micros,
}

/// The store's reply to one [`Entry`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// The decision of an [`Entry::Reserve`], that of an [`Entry::Block`] that took none, and that of an [`Entry::MoveUp`],
    /// which is not admitted if the request keeps its own permits.
    Decision(Decision),
    /// The decision of an [`Entry::Block`] that took a block: its first grant, for the request itself.
    Block {
        /// The decision on the request, which is admitted for now.
        decision: Decision,
        /// For how long from the decision the first permit can be used, in µs.
        usable: Micros,
    },
    /// Whether an [`Entry::Refund`], [`Entry::Renew`] or [`Entry::Forget`] found the grant or the state that it names.
    Done(bool),
    /// An [`Entry::Refund`] passed a concurrency permit to a waiting request, which may have left since without a word.
    HandedOver,
    /// The level that an [`Entry::Look`], [`Entry::Pause`] or [`Entry::Lower`] read.
    Level(Level),
    /// How many permits of an [`Entry::Charge`] the state does not take yet, because that is more than an hour ahead.
    Owed(i64),
    /// The tenants that an [`Entry::Tenants`] read.
    Tenants(Vec<TenantLevel>),
    /// This step failed alone; the others of its call did not.
    Failed(StoreError),
}

// === impl Entry ===

impl Entry {
    /// The step that decides a request.
    pub(super) fn deciding(question: Question, budget: Micros, ticket: Option<Ticket>) -> Self {
        match question {
            Question::Checks(checks) => Self::Reserve { checks, budget, ticket },
            Question::Ways(among) => Self::Choose { among, budget, ticket },
        }
    }

    /// The limiters that the step concerns: all of the request for [`Self::Reserve`], [`Self::Choose`], [`Self::Block`],
    /// [`Self::MoveUp`], [`Self::Confirm`] and [`Self::Leave`], otherwise one.
    pub fn checks(&self) -> &[Check] {
        match self {
            Self::Reserve { checks, .. }
            | Self::Block { checks, .. }
            | Self::MoveUp { checks, .. }
            | Self::Confirm { checks, .. }
            | Self::Leave { checks, .. } => checks,
            Self::Choose { among, .. } => among.all(),
            Self::Refund { check, .. }
            | Self::Renew { check, .. }
            | Self::Forget { check }
            | Self::Look { check }
            | Self::Pause { check, .. }
            | Self::Lower { check, .. }
            | Self::Charge { check }
            | Self::Tenants { check } => std::slice::from_ref(check),
        }
    }

    /// The limiters that `decision` on this step is about.
    pub(super) fn checks_of(&self, decision: &Decision) -> Option<&Checks> {
        match self {
            Self::Reserve { checks, .. }
            | Self::Block { checks, .. }
            | Self::MoveUp { checks, .. }
            | Self::Confirm { checks, .. } => Some(checks),
            Self::Choose { among, .. } => Some(among.checks(decision.chosen)),
            _ => None,
        }
    }

    /// How long the request may wait, µs; 0 for a step that reserves nothing.
    pub fn budget(&self) -> Micros {
        match self {
            Self::Reserve { budget, .. }
            | Self::Choose { budget, .. }
            | Self::Block { budget, .. }
            | Self::MoveUp { budget, .. } => *budget,
            _ => 0,
        }
    }
}

// === impl Pause ===

impl Pause {
    /// The pause of `span`, or of [`MAX_PAUSE`] if that is shorter.
    pub fn of(span: Duration, status: u16) -> Self {
        Self::for_micros(Micros::try_from(span.as_micros()).unwrap_or(MAX_PAUSE), status)
    }

    /// The pause of `span` µs, or of [`MAX_PAUSE`] if that is shorter.
    pub fn for_micros(span: Micros, status: u16) -> Self {
        let span = span.min(MAX_PAUSE);
        Self { span, whole: span, status, ago: 0 }
    }

    /// The same pause because of a call that was sent that long ago.
    #[must_use]
    pub fn since_sent(self, ago: Duration) -> Self {
        Self { ago: Micros::try_from(ago.as_micros()).unwrap_or(MAX_PAUSE).min(MAX_PAUSE), ..self }
    }

    /// The pause of `span` µs that says nothing about the rate of a limiter.
    pub fn keeping_rate(span: Micros, status: u16) -> Self {
        Self { span, whole: 0, status, ago: 0 }
    }

    /// The unit of time in which the rate of a limiter returns after the pause, µs; 0 if it keeps its rate and its level, because
    /// its period is more than ten times the pause. A rate that has only bounds is found from every refusal.
    pub fn unit(self, check: &Check) -> Micros {
        if let Some(bounds) = &check.bounds {
            return bounds.unit.max(self.whole).clamp(1, MAX_PAUSE);
        }
        let lowers = check.period <= self.whole.saturating_mul(MOST_PAUSES);
        if lowers { check.period.max(self.whole).clamp(1, MAX_PAUSE) } else { 0 }
    }

    /// The same as the record of the limiter reads it.
    pub fn refusal(self, check: &Check) -> Refusal {
        let Self { span, status, ago, .. } = self;
        Refusal { span: span.clamp(0, MAX_PAUSE), status, unit: self.unit(check), ago }
    }

    /// The entries that pause the limiters of a request, except those that only observe.
    pub fn entries(self, checks: &[Check]) -> impl Iterator<Item = Entry> {
        let enforced = checks.iter().filter(|check| check.enforce);
        enforced.map(move |check| Entry::Pause { check: check.clone(), pause: self })
    }
}

// === impl Reply ===

impl Reply {
    /// Returns the part of the reply that `read` finds.
    ///
    /// # Errors
    ///
    /// The error of a step that failed alone; [`StoreError::Protocol`] when `read` finds nothing.
    pub(super) fn read<T>(self, read: fn(Self) -> Option<T>) -> Result<T, StoreError> {
        match self {
            Self::Failed(error) => Err(error),
            reply => read(reply).ok_or(StoreError::Protocol),
        }
    }

    pub(super) fn decision(self) -> Option<Decision> {
        if let Self::Decision(decision) = self { Some(decision) } else { None }
    }

    pub(super) fn done(self) -> Option<bool> {
        if let Self::Done(done) = self { Some(done) } else { None }
    }

    pub(super) fn level(self) -> Option<Level> {
        if let Self::Level(level) = self { Some(level) } else { None }
    }

    pub(super) fn tenants(self) -> Option<Vec<TenantLevel>> {
        if let Self::Tenants(tenants) = self { Some(tenants) } else { None }
    }

    /// The error of a step that failed alone, such as one on a key with a foreign value.
    pub fn error(&self) -> Option<&StoreError> {
        if let Self::Failed(error) = self { Some(error) } else { None }
    }
}
