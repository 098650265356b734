//! The process's log: [`sink`](Stream) writes lines to stdout and stderr from threads of their own, and [`Throttle`]
//! bounds lines that a client, an upstream or a store can cause. Nothing here waits for the reader of a log.

mod sink;

pub use paceway_limit::log::{Permit, Throttle};
pub use sink::{Sink, Stream, flush};
