//! Where the bodies of HTTP/1.1 messages end (RFC 9112 sections 6 and 7): an upstream's is taken out of its frames,
//! a request's is put into its own.

use super::{WireError, head};
use crate::upstream::{headers::number, response::Length};
use bytes::{Buf, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header::CONTENT_LENGTH};
use http_body::{Frame, SizeHint};
use httparse::Status;
use std::io::Write;

/// The line of a chunk's size may be this long, extensions included.
const SIZE_LINE: usize = 16 << 10;

/// What is still to come of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::upstream) enum Decoder {
    /// Nothing.
    Done,
    /// So many octets.
    Sized(u64),
    /// All until the connection ends.
    Open,
    /// Chunks.
    Chunks(Chunks),
}

/// What comes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::upstream) enum Chunks {
    Size,
    Data(u64),
    /// The line end behind data.
    End,
    Trailers,
}

/// How a request's body is framed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Encoder {
    /// So many octets are to follow.
    Sized(u64),
    Chunks,
}

// === impl Decoder ===

impl Decoder {
    /// What follows the head of a response that has been checked (RFC 9112 section 6.3); `is_bare` where it is one to a
    /// HEAD.
    pub(in crate::upstream) fn of(is_bare: bool, status: StatusCode, length: Length) -> Self {
        let has_none = status.is_informational()
            || [StatusCode::NO_CONTENT, StatusCode::NOT_MODIFIED].contains(&status);
        match length {
            _ if is_bare || has_none => Self::Done,
            Length::Known(0) => Self::Done,
            Length::Known(length) => Self::Sized(length),
            Length::Chunked => Self::Chunks(Chunks::Size),
            Length::Unknown => Self::Open,
        }
    }

    /// Nothing more comes.
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

    /// The next piece of what has come; `None` when that is used up, or all has been taken.
    ///
    /// # Errors
    ///
    /// [`WireError`], when it is not framed as HTTP frames it.
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

    /// The connection has ended.
    ///
    /// # Errors
    ///
    /// [`WireError::Ended`], unless that is what ends the body.
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

/// As much of `left` as has come.
fn piece(left: &mut u64, input: &mut BytesMut) -> Bytes {
    let count = usize::try_from(*left).unwrap_or(usize::MAX).min(input.len());
    *left -= count as u64;
    input.split_to(count).freeze()
}

/// The size of the next chunk.
fn size(input: &mut BytesMut) -> Result<Option<u64>, WireError> {
    if !input[0].is_ascii_hexdigit() {
        return Err(WireError::Chunk);
    }
    match httparse::parse_chunk_size(input).map_err(|_| WireError::Chunk)? {
        // A bare LF may end the line for others.
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
    /// Of a request that has a body.
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let length = headers.get(CONTENT_LENGTH).and_then(|length| number(length.as_bytes()));
        length.map_or(Self::Chunks, Self::Sized)
    }

    /// What stands before `data`.
    ///
    /// # Errors
    ///
    /// When it is more than was announced.
    pub(super) fn before(&mut self, data: &Bytes, out: &mut Vec<u8>) -> Result<(), WireError> {
        match self {
            Self::Sized(left) => {
                *left = left.checked_sub(data.len() as u64).ok_or(WireError::Length)?;
            }
            // Nothing would be the end.
            Self::Chunks if data.is_empty() => {}
            // Writing into memory does not fail.
            Self::Chunks => drop(write!(out, "{:x}\r\n", data.len())),
        }
        Ok(())
    }

    /// What stands behind it.
    pub(super) fn behind(self, data: &Bytes) -> &'static [u8] {
        match self {
            Self::Chunks if !data.is_empty() => b"\r\n",
            _ => b"",
        }
    }

    /// What stands at the end.
    ///
    /// # Errors
    ///
    /// When it is less than was announced.
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

    /// What a decoder makes of input that comes in these pieces, and how it ends.
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
    fn chunks_are_taken_out_however_they_come(#[case] text: &str, #[case] data: &str) {
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
    fn what_is_no_chunk(#[case] text: &str) {
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
    fn what_the_end_of_the_connection_means() {
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
    fn a_length_holds_both_ways() {
        let (mut encoder, mut out) = (Encoder::Sized(3), Vec::new());
        assert!(encoder.before(&Bytes::from_static(b"ab"), &mut out).is_ok());
        assert!(encoder.end(std::iter::empty(), &mut out).is_err(), "one is missing");
        assert!(encoder.before(&Bytes::from_static(b"cd"), &mut out).is_err(), "one too many");
    }

    proptest! {
        #[test]
        fn what_is_put_into_chunks_comes_out_of_them(
            pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..8),
        ) {
            let (mut encoder, mut out) = (Encoder::Chunks, Vec::new());
            for piece in &pieces {
                let data = Bytes::from(piece.clone());
                encoder.before(&data, &mut out).expect("no length");
                out.extend(&data);
                out.extend(encoder.behind(&data));
            }
            let trailers = HeaderMap::from_iter([(CONTENT_LENGTH, "x".parse().expect("a value"))]);
            encoder.end(trailers.iter(), &mut out).expect("no length");
            let (data, decoder) = decoded(CHUNKS, &[&out]).expect("chunks");
            prop_assert_eq!(data, pieces.concat());
            prop_assert_eq!(decoder, Decoder::Done);
        }
    }
}
