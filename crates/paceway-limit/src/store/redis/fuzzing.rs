//! The door to the protocol for the targets of `fuzz/`, which alone are built with `--cfg fuzzing`. Decides nothing.

use super::resp::{self, Parsed};

/// What was made of octets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Read {
    /// A reply, written anew, and how many octets it took.
    Reply(Vec<u8>, usize),
    /// It needs so many octets.
    Needs(usize),
    /// It is none.
    Malformed,
}

/// Reads the reply at the start.
pub fn read(bytes: &[u8]) -> Read {
    match resp::parse(bytes) {
        Ok(Parsed::Reply(value, took)) => {
            let mut again = Vec::new();
            resp::encode(&value, &mut again);
            Read::Reply(again, took)
        }
        Ok(Parsed::Needs(length)) => Read::Needs(length),
        Err(resp::Malformed) => Read::Malformed,
    }
}

/// As [`read`], without what it says: whether it is a reply.
pub fn is_reply(bytes: &[u8]) -> bool {
    matches!(resp::parse(bytes), Ok(Parsed::Reply(..)))
}
