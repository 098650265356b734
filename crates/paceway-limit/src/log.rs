//! A bound for log lines that a client, an upstream or a store can cause. Writes none itself.

mod throttle;

pub use throttle::{Permit, Throttle};
