//! The bodies of an upstream's responses: the reader finds the same octets however they arrive in pieces, within
//! bounds, and the same as a plain reader; a body that is framed again reads the same.
#![no_main]

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use libfuzzer_sys::fuzz_target;
use paceway::upstream::fuzzing::{BodyDecoder, FIELDS, HEAD_BYTES, framed};
use paceway_fuzz::{expand, head, pieces, trim};

/// The octets and trailers that the reader found, and how the body ended.
#[derive(Debug, PartialEq, Eq)]
struct Read {
    data: Vec<u8>,
    trailers: HeaderMap,
    end: End,
}

#[derive(Debug, PartialEq, Eq)]
enum End {
    /// A whole body, and the number of octets that are left after it.
    Whole(usize),
    /// More octets are needed; the flag says whether the connection may end here.
    More(bool),
    Refused,
}

fuzz_target!(|data: &[u8]| {
    let Some((choices, text)) = data.split_first_chunk::<4>() else { return };
    let text = expand(text);
    let body = match choices[0] % 8 {
        0 => BodyDecoder::OPEN,
        1 => BodyDecoder::sized(u64::from(choices[0]) * 4),
        _ => BodyDecoder::CHUNKS,
    };
    let mut frames = Vec::new();
    let whole = read(body, &[&text], &mut frames);
    let cut = read(body, &pieces(&text, &choices[1..]), &mut Vec::new());
    assert!(whole == cut, "in one piece {whole:?}, in several {cut:?}");
    assert_eq!(frames.concat(), whole.data);
    let End::Whole(left) = whole.end else { return };
    let length = text.len() - left;
    if body == BodyDecoder::CHUNKS {
        let (data, trailers) = unchunked(&text[..length]).expect("chunks");
        assert_eq!(data, whole.data);
        let fields = &text[trailers..length];
        assert!(fields.len() <= HEAD_BYTES && whole.trailers.len() <= FIELDS);
        let plain = head(fields, false).expect("trailers");
        assert_eq!((plain.length, plain.fields.len()), (fields.len(), whole.trailers.len()));
        for (name, value) in plain.fields {
            assert!(whole.trailers.get_all(name).iter().any(|own| own.as_bytes() == value));
        }
    } else {
        assert_eq!(text[..length], whole.data);
    }
    if length > HEAD_BYTES / 2 {
        // Trailers that were just within the bound may exceed it when they are written again.
        return;
    }
    let again = framed(None, &frames, &whole.trailers).expect("chunks have no length");
    let read = read(BodyDecoder::CHUNKS, &pieces(&again, &choices[1..]), &mut Vec::new());
    assert_eq!(read, Read { end: End::Whole(0), ..whole });
    let length = read.data.len() as u64;
    assert_eq!(framed(Some(length), &frames, &HeaderMap::new()).expect("its length"), read.data);
    assert!(framed(Some(length + 1), &frames, &HeaderMap::new()).is_err(), "one is missing");
    assert!(length == 0 || framed(Some(length - 1), &frames, &HeaderMap::new()).is_err());
});

fn read(mut body: BodyDecoder, pieces: &[&[u8]], frames: &mut Vec<Bytes>) -> Read {
    let (mut input, mut data, mut trailers) = (BytesMut::new(), Vec::new(), HeaderMap::new());
    let mut left: usize = pieces.iter().map(|piece| piece.len()).sum();
    for piece in pieces {
        input.extend_from_slice(piece);
        left -= piece.len();
        loop {
            match body.take(&mut input) {
                Err(_) => return Read { data, trailers, end: End::Refused },
                Ok(None) => break,
                Ok(Some(frame)) => match frame.into_data() {
                    Ok(piece) => {
                        assert!(!piece.is_empty(), "nothing is no piece");
                        data.extend_from_slice(&piece);
                        frames.push(piece);
                    }
                    Err(frame) => trailers = frame.into_trailers().expect("trailers"),
                },
            }
        }
        if body.is_done() {
            return Read { data, trailers, end: End::Whole(input.len() + left) };
        }
    }
    let end = if body.is_done() { End::Whole(0) } else { End::More(body.may_end()) };
    Read { data, trailers, end }
}

/// Reads RFC 9112 section 7.1, line by line: returns the octets, and where the trailers begin.
fn unchunked(text: &[u8]) -> Option<(Vec<u8>, usize)> {
    let (mut data, mut at) = (Vec::new(), 0);
    loop {
        let end = text[at..].windows(2).position(|two| two == b"\r\n")?;
        let line = &text[at..at + end];
        at += end + 2;
        let size = trim(line.split(|byte| *byte == b';').next()?);
        if line.iter().any(|byte| matches!(byte, b'\r' | b'\n'))
            || !size.iter().all(u8::is_ascii_hexdigit)
        {
            return None;
        }
        let size = usize::from_str_radix(std::str::from_utf8(size).ok()?, 16).ok()?;
        if size == 0 {
            return Some((data, at));
        }
        data.extend_from_slice(text.get(at..at.checked_add(size)?)?);
        at += size;
        if text.get(at..at + 2)? != b"\r\n" {
            return None;
        }
        at += 2;
    }
}
