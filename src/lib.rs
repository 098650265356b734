//! Paceway paces calls to APIs that throttle you: a gateway, and the limiter in it as a library.
//!
//! The modules are listed in the order of their dependence: each uses only those above it.
//!
//! A program that only wants the limiter needs [`Limiter`] (`acquire`, `try_acquire`), [`LimitLayer`] for tower
//! and axum, and a store: [`store::memory::MemoryStore`], or [`store::redis::RedisStore`] in
//! [`store::batch::Batched`] where several processes share one quota. See `examples/`.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod path;
pub mod suggest;
pub mod log;
pub mod tls;
pub mod upstream;
pub mod key;
pub mod config;
pub mod metrics;
pub mod route;
pub mod answer;
pub mod plan;
pub mod proxy;
pub mod admin;
pub mod server;
pub mod cli;

#[doc(inline)]
pub use config::Config;
#[doc(inline)]
pub use paceway_limit::{
    AcquireError, Acquired, Limit, LimitLayer, LimitService, LimitedCall, Limiter, PaceError,
    PaceLayer, PaceService, Rate, RuleError, StoreHandle, WithoutStore, memory, redis,
};
#[doc(hidden)]
pub use paceway_limit::{algorithm, limit, probing, store};
#[doc(inline)]
pub use proxy::Proxy;
#[doc(inline)]
pub use server::router;
