//! A bound for log lines that a client, an upstream or a store can cause. It writes no line itself.

mod throttle;

pub use throttle::{Permit, Throttle};
