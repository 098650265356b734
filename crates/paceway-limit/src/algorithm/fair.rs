//! Fair sharing among the requests that wait for one limiter. It decides which request takes which slot; the rule of the
//! limiter decides which slots there are.
//!
//! [`Turns`] has the order: by priority, by the weights of tenants, and first come, first served within a tenant. [`Queue`]
//! has the waiting requests with their slots and deadlines, and changes which request has which slot. [`Place`] names a
//! waiting request where a grant names permits. [`Turn`] is what one request brings, and [`Floors`] what a limiter keeps back
//! from low priorities.

mod floors;
mod place;
pub mod queue;
mod turn;
pub mod turns;

pub use floors::{Floor, Floors};
pub use place::Place;
pub use queue::Queue;
pub use turn::{NO_TENANT, Turn};
pub use turns::{Claim, Priority, Turns};
