//! Shows the reader of event streams to the targets of `fuzz/`, which alone are built with `--cfg fuzzing`. Decides nothing.

use super::events::EventReader;

/// The most bytes of the data of one event.
pub const MOST: usize = super::events::MOST;

/// The events of a stream.
#[derive(Debug, PartialEq, Eq)]
pub struct FuzzedEvents {
    /// The data of each.
    pub data: Vec<Vec<u8>>,
    /// The stream has had its last event, after which nothing is read.
    pub is_done: bool,
}

/// Reads a stream that comes in these pieces.
pub fn events(pieces: &[&[u8]]) -> FuzzedEvents {
    let (mut reader, mut data) = (EventReader::default(), Vec::new());
    let mut keep = |event: &[u8]| data.push(event.to_vec());
    let is_done = pieces.iter().any(|piece| !reader.read(piece, &mut keep)) || {
        reader.end(&mut keep);
        false
    };
    FuzzedEvents { data, is_done }
}
