//! The heads of an upstream's responses: read the same however they come in pieces, within bounds, as a plain reader
//! reads them, and with one end of the body (RFC 9112 section 6.3), or refused.
#![no_main]

use bytes::BytesMut;
use http::{Response, Version};
use libfuzzer_sys::fuzz_target;
use paceway::upstream::fuzzing::{BodyDecoder, FIELDS, FuzzedHead, HEAD_BYTES, take_head};
use paceway_fuzz::{Plain, expand, head, pieces, trim};

/// The heads that the reader found, interim ones first, and how the reading ended.
#[derive(Debug, PartialEq, Eq)]
struct Read {
    heads: Vec<Taken>,
    end: End,
}

#[derive(Debug, PartialEq, Eq)]
enum End {
    /// The final head was read; the number is that of the octets after it.
    Answer(usize),
    More,
    Refused,
}

#[derive(Debug, PartialEq, Eq)]
struct Taken {
    status: u16,
    version: Version,
    fields: Vec<(String, Vec<u8>)>,
    reason: Option<Vec<u8>>,
    stays_open: bool,
    length: usize,
}

fuzz_target!(|data: &[u8]| {
    let Some((choices, text)) = data.split_first_chunk::<4>() else { return };
    let text = expand(text);
    let mut answer = None;
    let whole = read(&[&text], &mut answer);
    let cut = read(&pieces(&text, &choices[1..]), &mut None);
    assert!(whole == cut, "in one piece {whole:?}, in several {cut:?}");
    let mut rest = &text[..];
    for taken in &whole.heads {
        let plain = head(rest, true).expect("a head");
        as_written(taken, &plain);
        rest = &rest[taken.length..];
    }
    let (Some(mut response), Some(taken)) = (answer, whole.heads.last()) else { return };
    let (is_bare, upgrade_asked) = (choices[0] & 1 == 1, choices[0] & 2 == 2);
    let body = BodyDecoder::of(&mut response, is_bare, upgrade_asked).ok();
    assert_eq!(body, end_of_body(taken, is_bare, upgrade_asked), "{taken:?}");
});

/// Reads heads from the pieces, up to the first that is a final response.
fn read(pieces: &[&[u8]], answer: &mut Option<Response<()>>) -> Read {
    let (mut heads, mut input) = (Vec::new(), BytesMut::new());
    let mut left: usize = pieces.iter().map(|piece| piece.len()).sum();
    for piece in pieces {
        input.extend_from_slice(piece);
        while !input.is_empty() {
            let before = input.len();
            let FuzzedHead { response, reason, stays_open } = match take_head(&mut input) {
                Err(_) => return Read { heads, end: End::Refused },
                Ok(None) => break,
                Ok(Some(head)) => head,
            };
            let length = before - input.len();
            left -= length;
            let fields = response.headers().iter();
            heads.push(Taken {
                status: response.status().as_u16(),
                version: response.version(),
                fields: fields
                    .map(|(name, value)| (name.to_string(), value.as_bytes().into()))
                    .collect(),
                reason,
                stays_open,
                length,
            });
            if !response.status().is_informational() || response.status() == 101 {
                *answer = Some(response);
                return Read { heads, end: End::Answer(left) };
            }
        }
    }
    Read { heads, end: End::More }
}

/// Checks that the head is the one that a plain reader finds.
fn as_written(taken: &Taken, plain: &Plain<'_>) {
    assert_eq!(taken.length, plain.length);
    assert!(taken.length <= HEAD_BYTES && taken.fields.len() <= FIELDS);
    let minor = if taken.version == Version::HTTP_11 { 1 } else { 0 };
    let start = format!("HTTP/1.{minor} {}", taken.status);
    let words = plain.first.strip_prefix(start.as_bytes()).expect("its first line");
    assert!(words.is_empty() || words[0] == b' ');
    if let Some(reason) = &taken.reason {
        // The reason phrase, if it is text.
        assert!(reason.is_empty() || trim(words) == trim(reason), "{reason:?} of {words:?}");
    }
    // Fields of one name keep their order.
    let mut fields: Vec<(String, Vec<u8>)> =
        plain.fields.iter().map(|(name, value)| (name.clone(), value.to_vec())).collect();
    let mut read = taken.fields.clone();
    fields.sort_by(|a, b| a.0.cmp(&b.0));
    read.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(fields, read);
    for (name, value) in &fields {
        assert!(!name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic()));
        assert!(!value.iter().any(|byte| matches!(byte, b'\r' | b'\n' | 0)));
    }
    let mut options = fields
        .iter()
        .filter(|(name, _)| name == "connection")
        .flat_map(|(_, value)| value.split(|byte| *byte == b','));
    let closes = options.any(|option| trim(option).eq_ignore_ascii_case(b"close"));
    assert_eq!(taken.stays_open, minor == 1 && !closes);
}

/// Reads RFC 9112 section 6.3, line by line; returns `None` where the head must be refused.
fn end_of_body(head: &Taken, is_bare: bool, upgrade_asked: bool) -> Option<BodyDecoder> {
    let all = |name: &str| -> Vec<&[u8]> {
        head.fields.iter().filter(|(own, _)| own == name).map(|(_, value)| &value[..]).collect()
    };
    let (codings, lengths) = (all("transfer-encoding"), all("content-length"));
    if head.status == 101 && !upgrade_asked {
        return None;
    }
    let mut length = None;
    for text in &lengths {
        let is_number = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
        if *text != lengths[0] || !is_number {
            return None;
        }
        length = Some(std::str::from_utf8(text).ok()?.parse().ok()?);
    }
    let is_chunked = match codings[..] {
        [] => false,
        [one] if one.eq_ignore_ascii_case(b"chunked") => true,
        _ => return None,
    };
    if is_chunked && (length.is_some() || head.version == Version::HTTP_10) {
        return None;
    }
    Some(match length {
        _ if is_bare || matches!(head.status, 100..200 | 204 | 304) => BodyDecoder::NONE,
        _ if is_chunked => BodyDecoder::CHUNKS,
        Some(length) => BodyDecoder::sized(length),
        None => BodyDecoder::OPEN,
    })
}
