//! Group commit around a store that does I/O. At most one call is under way in each queue; requests that arrive meanwhile
//! share the next call, in order. A task makes the calls, so that a caller that leaves blocks none of the others.

mod backlog;
mod batched;
mod blocks;
mod call;
mod callee;
mod charges;
mod delayed;
mod driver;
mod entry_queue;
mod pending;
mod queue;
mod queued;
mod releases;
mod replies;
mod store_metrics;

pub use batched::Batched;
pub use releases::parts_of;
pub use store_metrics::StoreMetrics;

pub(super) use releases::releases;

#[cfg(test)]
mod tests;
