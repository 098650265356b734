#![doc = include_str!("../README.md")]
//!
//! # Modules
//!
//! All that a program needs is listed here, at the root of the crate, and in [`redis`]; in [`backend`] for one that brings a
//! store of its own. The other modules are public because
//! the gateway, its tests and its benches use them, and hidden because they may change with each version: the compiler has
//! no visibility for one other crate. They are listed in the order of their dependence: each uses only those above it.

#![cfg_attr(test, allow(clippy::unwrap_used))]

#[doc(hidden)]
pub mod algorithm;
#[doc(hidden)]
pub mod probing;
#[doc(hidden)]
pub mod log;
#[doc(hidden)]
#[cfg(feature = "tls")]
pub mod tls;
#[doc(hidden)]
pub mod store;
pub mod backend;
pub mod guide;
#[doc(hidden)]
pub mod handle;
#[cfg(feature = "redis")]
pub mod redis;
#[doc(hidden)]
pub mod rate;
#[doc(hidden)]
pub mod key;
#[doc(hidden)]
pub mod answer;
#[doc(hidden)]
pub mod limit;

pub use algorithm::fair::Priority;
pub use handle::{StoreHandle, memory};
pub use limit::{
    AcquireError, Acquired, CostHandle, CostLimit, HandleError, KeyHandle, KeyLimit, Limit,
    LimitLayer, LimitService, LimitedCall, Limiter, PaceError, PaceLayer, PaceService,
    ReadResponse, Responses, RuleError, Settled, WithoutStore, retry_after,
};
pub use rate::Rate;
pub use store::{OnLoss, StoreError};
