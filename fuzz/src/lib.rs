//! Helpers of several targets: they make long input of short, cut it into pieces, and read heads in the plainest way.

/// A byte of the input that stands for many octets: 260 times the byte after it.
const MANY: u8 = 0xff;
/// A byte of the input that stands for many header fields: as many as the byte after it says.
const FIELDS: u8 = 0xfe;

/// A head as the plain reader of this file finds it, for comparison with the gateway's.
#[derive(Debug, PartialEq, Eq)]
pub struct Plain<'a> {
    /// The first line without its line end; empty for trailers, which have none.
    pub first: &'a [u8],
    /// The fields in their order: names in lower case, and values without spaces around them.
    pub fields: Vec<(String, &'a [u8])>,
    /// The length of the whole head with its empty line, in bytes.
    pub length: usize,
}

/// Expands an input of a few octets so that it reaches the bounds: the first `MANY` or `FIELDS` and the octet after it
/// become that number of octets or fields.
pub fn expand(data: &[u8]) -> Vec<u8> {
    let Some(at) = data.iter().position(|byte| [MANY, FIELDS].contains(byte)) else {
        return data.to_vec();
    };
    let count = usize::from(data.get(at + 1).copied().unwrap_or_default());
    let many = if data[at] == MANY { vec![b'x'; 260 * count] } else { b"a:b\r\n".repeat(count) };
    [&data[..at], &many, data.get(at + 2..).unwrap_or_default()].concat()
}

/// Cuts `data` into pieces, whose lengths the bytes of `cuts` give in turn.
pub fn pieces<'a>(mut data: &'a [u8], cuts: &[u8]) -> Vec<&'a [u8]> {
    // Long input is cut into few pieces, because the code under test may read each from its beginning again.
    let least = 1 + data.len() / 1024 * 128;
    let mut lengths = cuts.iter().cycle().map(|cut| {
        least.max(match cut {
            0..192 => usize::from(*cut) / 4,
            192.. => usize::from(cut - 191) * 1024,
        })
    });
    let mut pieces = Vec::new();
    while !data.is_empty() {
        let length = lengths.next().unwrap_or(data.len()).min(data.len());
        let (piece, rest) = data.split_at(length);
        pieces.push(piece);
        data = rest;
    }
    pieces
}

/// The head at the start of `text`: a first line if it `has_first`, then fields, then an empty line. Lines end in LF,
/// with or without CR (RFC 9112 section 2.2).
pub fn head(text: &[u8], has_first: bool) -> Option<Plain<'_>> {
    let (mut first, mut fields, mut length) = (None, Vec::new(), 0);
    loop {
        let rest = &text[length..];
        let end = rest.iter().position(|byte| *byte == b'\n')?;
        length += end + 1;
        let line = rest[..end].strip_suffix(b"\r").unwrap_or(&rest[..end]);
        match first {
            // Empty lines before the first line are skipped.
            None if has_first && line.is_empty() => {}
            None if has_first => first = Some(line),
            _ if line.is_empty() => {
                return Some(Plain { first: first.unwrap_or_default(), fields, length });
            }
            _ => {
                let colon = line.iter().position(|byte| *byte == b':')?;
                let name = std::str::from_utf8(&line[..colon]).ok()?.to_ascii_lowercase();
                fields.push((name, trim(&line[colon + 1..])));
            }
        }
    }
}

/// Removes the spaces and tabs at both ends, which are no part of a field's value.
pub fn trim(mut text: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = text {
        text = rest;
    }
    text
}
