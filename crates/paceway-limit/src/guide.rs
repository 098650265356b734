//! Pages for programs that use another crate so far. They decide nothing.

#[doc = include_str!("../docs/from_governor.md")]
pub mod from_governor {}

#[doc = include_str!("../docs/from_tower.md")]
pub mod from_tower {}
