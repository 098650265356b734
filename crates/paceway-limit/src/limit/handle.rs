//! Handles of the limits of a [`Limiter`], for keys and costs: the name is looked up once, where the limiter is made, and
//! not in each call. They ask no store.

use super::{AcquireError, Limiter, planned::Planned};
use std::sync::Arc;

/// A limit whose permits a call takes by a key. [`Limiter::key`] makes it, and [`LimitedCall::key`](super::LimitedCall::key)
/// takes it in place of a name.
#[derive(Debug, Clone)]
pub struct KeyHandle(Handle);

/// A rate of which a call takes a number of permits. [`Limiter::cost`] makes it, and
/// [`LimitedCall::cost`](super::LimitedCall::cost) takes it in place of a name.
#[derive(Debug, Clone)]
pub struct CostHandle(Handle);

/// Why a [`Limiter`] has no such handle.
///
/// ```
/// use paceway_limit::{Limit, Limiter, Rate, memory};
///
/// let limits = [Limit::token_bucket("tokens", Rate::per_second(5), 9), Limit::concurrency("parallel", 2)];
/// let limiter = Limiter::all("llm", limits, memory())?;
/// let wrong = limiter.key("token").unwrap_err();
/// assert_eq!(wrong.to_string(), "the limiter has no limit `token`; it has `tokens`, `parallel`");
/// assert!(limiter.cost("parallel").is_err());
/// # Ok::<(), paceway_limit::RuleError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HandleError {
    /// The limiter has no limit of this name.
    #[error("the limiter has no limit `{name}`; it has {known}")]
    Unknown {
        /// The name that was asked for.
        name: String,
        /// The names of its limits.
        known: String,
    },
    /// The limit counts calls at a time, and each of them takes one permit.
    #[error(
        "the limit `{0}` counts calls at a time, so a call has no cost there: use the handle of a rate"
    )]
    NoCost(String),
}

/// The limit of a key: a [`KeyHandle`], or the name of a limit, which is looked up in each call.
pub trait KeyLimit: sealed::NamesLimit {}

/// The limit of a cost: a [`CostHandle`], or the name of a limit, which is looked up in each call.
pub trait CostLimit: sealed::NamesLimit {}

/// The place of a limit among those of its limiter.
#[derive(Debug, Clone)]
struct Handle {
    index: usize,
    name: Arc<str>,
}

/// Keeps the traits closed: a program names a limit by a text or by a handle.
pub(super) mod sealed {
    use super::{AcquireError, Planned};

    pub trait NamesLimit {
        /// The index of the limit in `limits`.
        #[doc(hidden)]
        fn find(&self, limits: &[Planned]) -> Result<usize, AcquireError>;
    }
}

// === impl Handle ===

impl Handle {
    /// A handle that was made by another limiter, or by a clone with other limits, counts as a name.
    fn find(&self, limits: &[Planned]) -> Result<usize, AcquireError> {
        match limits.get(self.index) {
            Some(planned) if Arc::ptr_eq(&planned.name, &self.name) => Ok(self.index),
            _ => find(&self.name, limits),
        }
    }
}

/// The index of the limit with this name.
fn find(name: &str, limits: &[Planned]) -> Result<usize, AcquireError> {
    let found = limits.iter().position(|planned| *planned.name == *name);
    found.ok_or_else(|| AcquireError::Unknown(name.into()))
}

// === impl NamesLimit ===

impl sealed::NamesLimit for &str {
    fn find(&self, limits: &[Planned]) -> Result<usize, AcquireError> {
        find(self, limits)
    }
}

impl KeyLimit for &str {}

impl CostLimit for &str {}

impl sealed::NamesLimit for &String {
    fn find(&self, limits: &[Planned]) -> Result<usize, AcquireError> {
        find(self, limits)
    }
}

impl KeyLimit for &String {}

impl CostLimit for &String {}

impl sealed::NamesLimit for &KeyHandle {
    fn find(&self, limits: &[Planned]) -> Result<usize, AcquireError> {
        self.0.find(limits)
    }
}

impl KeyLimit for &KeyHandle {}

impl sealed::NamesLimit for &CostHandle {
    fn find(&self, limits: &[Planned]) -> Result<usize, AcquireError> {
        self.0.find(limits)
    }
}

impl CostLimit for &CostHandle {}

// === impl Limiter ===

impl Limiter {
    /// The handle of `limit` for calls with a key.
    ///
    /// # Errors
    ///
    /// [`HandleError::Unknown`].
    pub fn key(&self, limit: &str) -> Result<KeyHandle, HandleError> {
        self.handle(limit).map(KeyHandle)
    }

    /// The handle of `limit` for calls with a cost.
    ///
    /// # Errors
    ///
    /// [`HandleError::Unknown`]; [`HandleError::NoCost`] for a concurrency limit.
    pub fn cost(&self, limit: &str) -> Result<CostHandle, HandleError> {
        let handle = self.handle(limit)?;
        if self.limits[handle.index].is_concurrency() {
            return Err(HandleError::NoCost(limit.to_owned()));
        }
        Ok(CostHandle(handle))
    }

    fn handle(&self, limit: &str) -> Result<Handle, HandleError> {
        match find(limit, &self.limits) {
            Ok(index) => Ok(Handle { index, name: self.limits[index].name.clone() }),
            Err(_) => {
                let known = self.limits.iter().map(|planned| format!("`{}`", planned.name));
                let known = known.collect::<Vec<_>>().join(", ");
                Err(HandleError::Unknown { name: limit.to_owned(), known })
            }
        }
    }
}
