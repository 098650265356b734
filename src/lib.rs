//! Paceway paces calls to APIs that throttle you: a gateway, and the limiter in it as a library.
//!
//! The modules are listed in the order of their dependence: each uses only those above it.
//!
//! A program that only limits its own calls needs the package `paceway-limit`, whose types are also shown here: a
//! [`Limiter`] of one or several [`Limit`]s over [`memory()`] or [`redis::connect`], as calls or as a [`LimitLayer`]. A
//! program that serves the routes of a configuration file itself mounts a [`Proxy`] or the [`router`]; see
//! `examples/mount.rs`.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod path;
pub mod suggest;
pub mod log;
pub mod tls;
mod socket;
pub mod json;
pub mod upstream;
pub mod key;
pub mod throttle;
pub mod config;
pub mod metrics;
pub mod trace;
pub mod route;
pub mod answer;
pub mod reads;
pub mod plan;
pub mod learn;
pub mod proxy;
pub mod services;
pub mod live;
pub mod rows;
pub mod overrides;
pub mod admin;
pub mod server;
pub mod cli;

#[doc(inline)]
pub use config::Config;
#[doc(inline)]
pub use paceway_limit::{
    AcquireError, Acquired, Limit, LimitLayer, LimitService, LimitedCall, Limiter, OnLoss,
    PaceError, PaceLayer, PaceService, Rate, RuleError, StoreHandle, WithoutStore, memory, redis,
};
#[doc(hidden)]
pub use paceway_limit::{algorithm, limit, probing, store};
#[doc(inline)]
pub use proxy::Proxy;
#[doc(inline)]
pub use server::router;
