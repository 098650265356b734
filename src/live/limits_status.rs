//! The state of `limits_from`, for `/readyz`.

use crate::throttle::Timestamp;

/// The state of the database of `limits_from`, and of its rows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LimitsStatus {
    /// Whether the last query gave its rows.
    pub up: bool,
    /// The reason why the last query gave none.
    pub error: Option<String>,
    /// When the database gave its rows last.
    pub loaded: Option<Timestamp>,
    /// The number of rows in use.
    pub rows: usize,
    /// The number of rows that are invalid. Each keeps its last valid value.
    pub invalid: usize,
}
