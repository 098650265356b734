//! Frames the bodies of HTTP/1.1 messages (RFC 9112 sections 6 and 7): decodes those of responses, encodes those of
//! requests. Reads and writes no socket.

use super::head;
use crate::upstream::{error::WireError, headers::number, response::BodyLength};
use bytes::{Buf, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header::CONTENT_LENGTH};
use http_body::{Frame, SizeHint};
use httparse::Status;
use std::io::Write;

/// The most bytes of the line with a chunk's size, its extensions included.
const SIZE_LINE: usize = 16 << 10;

/// The part of a response's body that is still to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::upstream) enum Decoder {
    /// The body has ended.
    Done,
    /// A body with a `Content-Length`, of which this number of octets is left.
    Sized(u64),
    /// A body without a length, which lasts until the connection ends.
    Open,
    /// A chunked body.
    Chunks(Chunks),
}

/// The part of a chunked body that comes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::upstream) enum Chunks {
    /// The line with the size of a chunk.
    Size,
    /// The data of a chunk, of which this number of octets is left.
    Data(u64),
    /// The line end after the data.
    End,
    /// The trailers after the last chunk, and the empty line that ends them.
    Trailers,
}

/// The framing of a request's body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Encoder {
    /// A `Content-Length`, of which this number of octets is still to be written.
    Sized(u64),
    /// Chunks, for a body whose length is not known.
    Chunks,
}

// === impl Decoder ===

impl Decoder {
    /// The body that follows the head of a checked response (RFC 9112 section 6.3). `is_bare` says that the request was a
    /// HEAD, whose response has no body.
    pub(in crate::upstream) fn of(is_bare: bool, status: StatusCode, length: BodyLength) -> Self {
        let has_none = status.is_informational()
            || [StatusCode::NO_CONTENT, StatusCode::NOT_MODIFIED].contains(&status);
        match length {
            _ if is_bare || has_none => Self::Done,
            BodyLength::Known(0) => Self::Done,
            BodyLength::Known(length) => Self::Sized(length),
            BodyLength::Chunked => Self::Chunks(Chunks::Size),
            BodyLength::Unannounced => Self::Open,
        }
    }

    /// Whether the body has ended.
    pub(in crate::upstream) fn is_done(&self) -> bool {
        *self == Self::Done
    }

    pub(in crate::upstream) fn size_hint(&self) -> SizeHint {
        match self {
            Self::Done => SizeHint::with_exact(0),
            Self::Sized(length) => SizeHint::with_exact(*length),
            Self::Open | Self::Chunks(_) => SizeHint::default(),
        }
    }

    /// Takes the next piece from the front of `input`; `None` if all of `input` is taken, or the body has ended.
    ///
    /// # Errors
    ///
    /// [`WireError`] if the body is not framed as HTTP/1.1 frames it.
    pub(super) fn take(&mut self, input: &mut BytesMut) -> Result<Option<Frame<Bytes>>, WireError> {
        loop {
            if input.is_empty() {
                return Ok(None);
            }
            match self {
                Self::Done => return Ok(None),
                Self::Open => return Ok(Some(Frame::data(input.split().freeze()))),
                Self::Sized(left) => {
                    let data = piece(left, input);
                    if *left == 0 {
                        *self = Self::Done;
                    }
                    return Ok(Some(Frame::data(data)));
                }
                Self::Chunks(Chunks::Data(left)) => {
                    let data = piece(left, input);
                    if *left == 0 {
                        *self = Self::Chunks(Chunks::End);
                    }
                    return Ok(Some(Frame::data(data)));
                }
                Self::Chunks(Chunks::End) => match &input[..] {
                    [b'\r', b'\n', ..] => {
                        input.advance(2);
                        *self = Self::Chunks(Chunks::Size);
                    }
                    [b'\r'] => return Ok(None),
                    _ => return Err(WireError::Chunk),
                },
                Self::Chunks(Chunks::Size) => match size(input)? {
                    None => return Ok(None),
                    Some(0) => *self = Self::Chunks(Chunks::Trailers),
                    Some(size) => *self = Self::Chunks(Chunks::Data(size)),
                },
                Self::Chunks(Chunks::Trailers) => {
                    let Some(trailers) = head::take_trailers(input)? else { return Ok(None) };
                    *self = Self::Done;
                    return Ok((!trailers.is_empty()).then(|| Frame::trailers(trailers)));
                }
            }
        }
    }

    /// Notes that the connection has ended, which ends a body without a length.
    ///
    /// # Errors
    ///
    /// [`WireError::Ended`] if the body has a length or chunks, and is therefore incomplete.
    pub(super) fn end(&mut self) -> Result<(), WireError> {
        match self {
            Self::Done | Self::Open => {
                *self = Self::Done;
                Ok(())
            }
            Self::Sized(_) | Self::Chunks(_) => Err(WireError::Ended),
        }
    }
}

/// Takes as much of the `left` octets as has come.
fn piece(left: &mut u64, input: &mut BytesMut) -> Bytes {
    let count = usize::try_from(*left).unwrap_or(usize::MAX).min(input.len());
    *left -= count as u64;
    input.split_to(count).freeze()
}

/// Takes the line with the size of the next chunk; `None` while its end has not come.
fn size(input: &mut BytesMut) -> Result<Option<u64>, WireError> {
    if !input[0].is_ascii_hexdigit() {
        return Err(WireError::Chunk);
    }
    match httparse::parse_chunk_size(input).map_err(|_| WireError::Chunk)? {
        // Another parser may take a bare LF for the end of the line.
        Status::Complete((length, _)) if input[..length - 2].contains(&b'\n') => {
            Err(WireError::Chunk)
        }
        Status::Complete((length, size)) if length <= SIZE_LINE => {
            input.advance(length);
            Ok(Some(size))
        }
        Status::Partial if input.len() < SIZE_LINE => Ok(None),
        _ => Err(WireError::Limit("a line this long before a chunk")),
    }
}

// === impl Encoder ===

impl Encoder {
    /// The framing of a request with a body: its `Content-Length`, or chunks if it names none.
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let length = headers.get(CONTENT_LENGTH).and_then(|length| number(length.as_bytes()));
        length.map_or(Self::Chunks, Self::Sized)
    }

    /// Writes the framing before `data`: the size of a chunk, or nothing.
    ///
    /// # Errors
    ///
    /// [`WireError::Length`] if the body is longer than its `Content-Length`.
    pub(super) fn before(&mut self, data: &Bytes, out: &mut Vec<u8>) -> Result<(), WireError> {
        match self {
            Self::Sized(left) => {
                *left = left.checked_sub(data.len() as u64).ok_or(WireError::Length)?;
            }
            // A chunk without data would end the body.
            Self::Chunks if data.is_empty() => {}
            // Writing into memory does not fail.
            Self::Chunks => drop(write!(out, "{:x}\r\n", data.len())),
        }
        Ok(())
    }

    /// The framing after `data`: the line end of a chunk, or nothing.
    pub(super) fn after(self, data: &Bytes) -> &'static [u8] {
        match self {
            Self::Chunks if !data.is_empty() => b"\r\n",
            _ => b"",
        }
    }

    /// Writes the framing at the end of the body, with its trailers if it is chunked.
    ///
    /// # Errors
    ///
    /// [`WireError::Length`] if the body is shorter than its `Content-Length`.
    pub(super) fn end<'a>(
        self,
        trailers: impl Iterator<Item = (&'a HeaderName, &'a HeaderValue)>,
        out: &mut Vec<u8>,
    ) -> Result<(), WireError> {
        match self {
            Self::Sized(0) => Ok(()),
            Self::Sized(_) => Err(WireError::Length),
            Self::Chunks => {
                out.extend_from_slice(b"0\r\n");
                head::write_fields(trailers, out);
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    const CHUNKS: Decoder = Decoder::Chunks(Chunks::Size);

    /// Decodes input that comes in these pieces. Returns the data, and the state of the decoder at the end.
    fn decoded(mut decoder: Decoder, pieces: &[&[u8]]) -> Result<(Vec<u8>, Decoder), WireError> {
        let (mut input, mut data) = (BytesMut::new(), Vec::new());
        for piece in pieces {
            input.extend_from_slice(piece);
            while let Some(frame) = decoder.take(&mut input)? {
                data.extend(frame.into_data().unwrap_or_default());
            }
        }
        Ok((data, decoder))
    }

    #[rstest]
    #[case::plain("2\r\nok\r\n0\r\n\r\n", "ok")]
    #[case::several("2\r\nok\r\nA\r\n0123456789\r\n0\r\n\r\n", "ok0123456789")]
    #[case::extensions("2;a=b\r\nok\r\n0;c\r\n\r\n", "ok")]
    #[case::trailers("2\r\nok\r\n0\r\na: b\r\n\r\n", "ok")]
    #[case::zeros("002\r\nok\r\n000\r\n\r\n", "ok")]
    fn decodes_chunks_in_any_pieces(#[case] text: &str, #[case] data: &str) {
        let text = text.as_bytes();
        for cut in 0..text.len() {
            let (one, other) = text.split_at(cut);
            let decoded = decoded(CHUNKS, &[one, other]).expect("chunks");
            assert_eq!(decoded, (data.into(), Decoder::Done), "cut at {cut}");
        }
    }

    #[rstest]
    #[case::no_size("\r\nok")]
    #[case::no_digit("x\r\n")]
    #[case::negative("-2\r\nok\r\n")]
    #[case::prefix("0x2\r\nok\r\n")]
    #[case::bare_line_feed("2\nok\r\n")]
    #[case::line_feed_in_extension("2;a\nb\r\nok\r\n")]
    #[case::longer("2\r\nokay\r\n")]
    #[case::shorter("4\r\nok\r\n0\r\n\r\n\r\n")]
    #[case::huge("11112222333344445\r\n")]
    #[case::bad_trailer("0\r\nno field\r\n\r\n")]
    fn refuses_bytes_that_are_no_chunk(#[case] text: &str) {
        assert!(decoded(CHUNKS, &[text.as_bytes()]).is_err(), "{text:?}");
    }

    #[test]
    fn lines_and_trailers_have_bounds() {
        let endless = format!("2;{}", "x".repeat(SIZE_LINE));
        assert!(decoded(CHUNKS, &[endless.as_bytes()]).is_err());
        // The same bound for a line that comes in one piece.
        let extension = "x".repeat(SIZE_LINE - 4);
        let line = |more| format!("2;{extension}{more}\r\nok\r\n0\r\n\r\n");
        assert!(decoded(CHUNKS, &[line("").as_bytes()]).is_ok());
        assert!(decoded(CHUNKS, &[line("x").as_bytes()]).is_err());
        let endless = format!("0\r\n{}", "a: b\r\n".repeat(20_000));
        assert!(decoded(CHUNKS, &[endless.as_bytes()]).is_err());
    }

    #[test]
    fn the_end_of_a_connection_completes_only_open_bodies() {
        for (mut decoder, is_whole) in [
            (Decoder::Done, true),
            (Decoder::Open, true),
            (Decoder::Sized(1), false),
            (CHUNKS, false),
        ] {
            assert_eq!(decoder.end().is_ok(), is_whole, "{decoder:?}");
        }
    }

    #[test]
    fn a_length_is_enforced_in_both_directions() {
        let (mut encoder, mut out) = (Encoder::Sized(3), Vec::new());
        assert!(encoder.before(&Bytes::from_static(b"ab"), &mut out).is_ok());
        assert!(encoder.end(std::iter::empty(), &mut out).is_err(), "one is missing");
        assert!(encoder.before(&Bytes::from_static(b"cd"), &mut out).is_err(), "one too many");
    }

    proptest! {
        #[test]
        fn encoded_chunks_decode_to_the_body(
            pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..8),
        ) {
            let (mut encoder, mut out) = (Encoder::Chunks, Vec::new());
            for piece in &pieces {
                let data = Bytes::from(piece.clone());
                encoder.before(&data, &mut out).expect("no length");
                out.extend(&data);
                out.extend(encoder.after(&data));
            }
            let trailers = HeaderMap::from_iter([(CONTENT_LENGTH, "x".parse().expect("a value"))]);
            encoder.end(trailers.iter(), &mut out).expect("no length");
            let (data, decoder) = decoded(CHUNKS, &[&out]).expect("chunks");
            prop_assert_eq!(data, pieces.concat());
            prop_assert_eq!(decoder, Decoder::Done);
        }
    }
}
