//! The log of the process. [`LogStream`] names the two streams and writes their lines from separate threads; [`Throttle`]
//! bounds the lines that a client, an upstream or a store can cause. No caller waits for the reader of a log.

mod sink;

pub use paceway_limit::log::{Permit, Throttle};
pub use sink::{LogStream, Sink, flush};
