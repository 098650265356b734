//! Names the reasons why a document is no JSON that every program reads alike. Decides nothing.

/// The reason why a document cannot be read, or can be read in two ways.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the body has to be JSON that can be read in one way alone, because a limiter reads it: {kind}, at byte {at}"
)]
pub struct JsonFault {
    pub(super) kind: JsonFaultKind,
    /// The bytes before the one that is at fault.
    pub(super) at: u64,
}

/// The mistake.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum JsonFaultKind {
    #[error("no JSON continues like this")]
    Syntax,
    #[error("the document does not end")]
    Unfinished,
    #[error("the text is not UTF-8")]
    Encoding,
    #[error("a text or a number is not one of Unicode or of 64 bits")]
    Value,
    #[error("a name on the way to the part comes twice")]
    Twice,
    #[error("a name is taken by some programs for one on the way to the part")]
    Alike,
    #[error("the document is nested deeper than 1,024 levels")]
    Deep,
    #[error("a text on the way to the part is longer than 64 KiB")]
    Long,
}
