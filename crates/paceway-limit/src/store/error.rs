//! The reasons why a store gives no decision, and for each whether the request may have been charged.

use std::sync::Arc;

/// A store gave no decision, for one of the reasons below. The caller applies the limiter's `on_failure`.
///
/// ```
/// use paceway_limit::StoreError;
///
/// // A call that was never sent has spent no permits; one whose answer is missing may have.
/// assert!(StoreError::NotConnected.is_unasked());
/// assert!(!StoreError::Timeout.is_unasked());
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// No answer arrived within `store.timeout`. Whether the request was charged is unknown, so it counts as spent.
    #[error("the store did not answer within its timeout")]
    Timeout,
    /// No connection was open, so nothing was sent and nothing was charged.
    #[error("the store cannot be reached: not connected")]
    NotConnected,
    /// No connection was open, and the text says why the last attempt failed; nothing was sent or charged.
    #[error("the store cannot be asked: {0}")]
    Away(Arc<str>),
    /// The connection ended before the answer arrived. Whether the request was charged is unknown.
    #[error("the store cannot be reached: {0}")]
    Unreachable(String),
    /// The store answered with an error, such as `OOM` or `NOPERM`.
    #[error("the store answered: {0}")]
    Refused(String),
    /// The store's answer has a form that this version does not understand.
    #[error("the store gave an answer that is not understood")]
    Protocol,
    /// The key holds a value that this version of Paceway did not write.
    #[error(
        "the key `{0}` of the store holds a foreign value; delete it, or set another `store.prefix`"
    )]
    Foreign(Arc<str>),
}

// === impl StoreError ===

impl StoreError {
    /// Whether no answer arrived that this version understands, so that the store may be away.
    pub fn is_silence(&self) -> bool {
        !matches!(self, Self::Refused(_) | Self::Foreign(_))
    }

    /// Whether the request was never sent, so that the store has certainly charged nothing.
    pub fn is_unasked(&self) -> bool {
        matches!(self, Self::NotConnected | Self::Away(_))
    }

    /// Whether the error concerns one key alone, so that it says nothing about the store.
    pub fn is_of_a_key(&self) -> bool {
        matches!(self, Self::Foreign(_))
    }

    /// The `kind` label of this error in metrics, such as `timeout`.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::NotConnected | Self::Away(_) | Self::Unreachable(_) => "unreachable",
            Self::Refused(_) => "refused",
            Self::Protocol => "protocol",
            Self::Foreign(_) => "foreign",
        }
    }

    /// Every value that [`Self::kind`] can return, so that the metrics exist before the first error.
    pub const KINDS: [&'static str; 5] =
        ["timeout", "unreachable", "refused", "protocol", "foreign"];
}
