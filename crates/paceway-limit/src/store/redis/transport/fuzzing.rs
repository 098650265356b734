//! The door to the bound on replies for the targets of `fuzz/`, which alone are built with `--cfg fuzzing`. Decides nothing.

use super::frames::Frames;

/// Returns the length of the reply at the start of `pieces`, joined; `None` while it is not whole.
///
/// # Errors
///
/// When the bytes are no reply of a Redis server, or announce a reply that is too long or nested too deeply.
pub fn frame<'p>(pieces: impl IntoIterator<Item = &'p [u8]>) -> Result<Option<usize>, ()> {
    let (mut frames, mut length) = (Frames::new(), 0);
    for piece in pieces {
        length += frames.advance(piece).map_err(|_| ())?;
        if frames.is_between() && length > 0 {
            return Ok(Some(length));
        }
    }
    Ok(None)
}

/// Whether redis-rs reads these bytes as a reply.
pub fn is_read(bytes: &[u8]) -> bool {
    redis::parse_redis_value(bytes).is_ok()
}
