//! The state of `limits_from` or of one `rates_from`, for `/readyz`.

use crate::throttle::Timestamp;

/// The state of the database of `limits_from`, or of the source of one `rates_from`, and of its rows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RowsStatus {
    /// Whether the last query, or look at the file, gave its rows.
    pub up: bool,
    /// The reason why it gave none.
    pub error: Option<String>,
    /// When it gave its rows last.
    pub loaded: Option<Timestamp>,
    /// The number of rows in use.
    pub rows: usize,
    /// The number of rows that are invalid. Each keeps its last valid value.
    pub invalid: usize,
}
