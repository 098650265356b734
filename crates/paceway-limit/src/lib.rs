//! Paces calls to APIs that throttle you: limiters that hold a call until it may be made, in one process or, through
//! Redis, in many.
//!
//! The modules stand in the order of their dependence: each uses only those above it.
//!
//! A program needs a [`Limiter`] (`acquire`, `try_acquire`), or a [`LimitLayer`] around a tower service, and a store:
//! [`store::memory::MemoryStore`], or `store::redis::RedisStore` in a [`store::batch::Batched`] where several processes
//! share one quota.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod algorithm;
#[doc(hidden)]
pub mod probing;
#[doc(hidden)]
pub mod log;
#[cfg(feature = "redis")]
pub mod tls;
pub mod store;
pub mod rate;
pub mod key;
pub mod answer;
pub mod limit;

pub use limit::{AcquireError, LimitLayer, LimitService, Limiter};
pub use rate::Rate;
