//! Reads a YAML document into a tree in which each value knows its line and column, with `${...}` filled in. Knows no rule
//! about the content of a configuration.
//!
//! The tree is our own, on the parser of serde-saphyr. serde itself stops at the first mistake, and a configuration must show
//! all of them.

mod builder;
mod tree;
mod variables;

pub(super) use builder::{read, read_quietly};
pub(super) use tree::{Key, Scalar, YamlEntry, YamlNode, YamlValue};
pub(super) use variables::Outside;
