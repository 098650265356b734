//! Reads that cost no permit: which requests and answers may be shared or kept (RFC 9110 and RFC 9111), the identical
//! requests that wait together, and the answers that an upstream is asked to confirm. Sends nothing.

mod identity;
mod kept;
mod rules;
mod update;
mod waits;

pub use identity::{Fingerprint, Identity};
pub use kept::{Keeping, KeptAnswer, KeptAnswers};
pub use rules::{
    CONDITIONS, Variant, has_condition, is_of_the_gateway, is_plain_read, may_be_kept,
    may_be_shared, varies_by_the_gateway,
};
pub use waits::{
    Follower, GroupPhase, Joined, Lead, MOST_SHARED, NextGroup, SharedAnswer, SharedWaits,
    SlotKnown,
};
