//! The normal form of a path, for matching only: the gateway forwards a path as the client sent it.
//!
//! Two spellings that common origins serve as one resource have one normal form. If origins read one spelling in several
//! ways, the path has several readings, and a request must satisfy the limits of all of them. `difference.rs` lists how
//! origins differ, `reading.rs` reads a path in one way, `origins.rs` says which ways are possible.

mod difference;
mod origins;
mod reading;
mod rule;
mod suffix;
mod template;

pub use origins::Paths;
pub use reading::normal;
pub use rule::PathRule;
pub use suffix::Suffix;
pub use template::{PathTemplate, Relation, TemplateSegment};

#[cfg(test)]
pub(crate) mod tests;
