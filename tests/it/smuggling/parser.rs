//! A parser of HTTP/1.1 requests that shares nothing with hyper, forgiving or strict.

/// A request as this parser, or the upstream, has read it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) target: String,
    pub(super) body: Vec<u8>,
}

/// The end of a connection, after the requests that the parser has read from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// The connection stays open, with no bytes left or the beginning of another request.
    Open,
    /// The connection ends because the last request says so, with `Connection: close`.
    Close,
    /// Bytes that must not be taken for a request.
    Malformed,
}

/// The requests in `bytes`, how many bytes they take, and what follows.
///
/// `strict`: what RFC 9112 lets a recipient forgive is malformed, too: bare LFs, empty lines before a request, chunk
/// extensions, a length twice.
pub(super) fn parse(bytes: &[u8], strict: bool) -> (Vec<Seen>, usize, End) {
    let (mut all, mut at) = (Vec::new(), 0);
    loop {
        let mut rest = &bytes[at..];
        while !strict && (rest.starts_with(b"\r\n") || rest.starts_with(b"\n")) {
            rest = &rest[rest.iter().position(|byte| *byte == b'\n').expect("one") + 1..];
        }
        if rest.is_empty() {
            return (all, at, End::Open);
        }
        match one(rest, strict) {
            Ok((seen, length, keeps)) => {
                at = bytes.len() - rest.len() + length;
                all.push(seen);
                if !keeps {
                    return (all, at, End::Close);
                }
            }
            Err(end) => return (all, at, end),
        }
    }
}

/// Splits the bytes into their first line and the rest; `strict` allows only CRLF.
fn take_line(bytes: &[u8], strict: bool) -> Result<(&[u8], &[u8]), End> {
    let end = bytes.iter().position(|byte| *byte == b'\n').ok_or(End::Open)?;
    let line = match bytes[..end].strip_suffix(b"\r") {
        Some(line) => line,
        None if strict => return Err(End::Malformed),
        None => &bytes[..end],
    };
    if line.iter().any(|byte| matches!(byte, b'\r' | b'\0')) {
        return Err(End::Malformed);
    }
    Ok((line, &bytes[end + 1..]))
}

/// The first request, its length, and whether another may follow.
fn one(bytes: &[u8], strict: bool) -> Result<(Seen, usize, bool), End> {
    let (line, mut rest) = take_line(bytes, strict)?;
    let line = String::from_utf8(line.to_vec()).map_err(|_| End::Malformed)?;
    let [method, target, version] = line.split(' ').collect::<Vec<_>>()[..] else {
        return Err(End::Malformed);
    };
    let is_method = |byte: u8| is_token(byte) && !byte.is_ascii_lowercase();
    if method.is_empty()
        || !method.bytes().all(is_method)
        || !target.starts_with('/')
        || !matches!(version, "HTTP/1.1" | "HTTP/1.0")
    {
        return Err(End::Malformed);
    }
    if matches!(method, "CONNECT" | "TRACE") {
        return Err(End::Malformed);
    }
    let mut fields: Vec<(String, Vec<u8>)> = Vec::new();
    loop {
        let (line, behind) = take_line(rest, strict)?;
        rest = behind;
        if line.is_empty() {
            break;
        }
        fields.push(field(line)?);
    }
    let all = |name: &str| {
        let same = fields.iter().filter(|(own, _)| own == name);
        same.map(|(_, value)| value.as_slice()).collect::<Vec<_>>()
    };
    if all("host").len() != 1 && (strict || version == "HTTP/1.1") {
        return Err(End::Malformed);
    }
    let connection = all("connection").join(&b',').to_ascii_lowercase();
    let has = |option: &[u8]| {
        connection.split(|byte| *byte == b',').any(|own| own.trim_ascii() == option)
    };
    let mut keeps = match version {
        "HTTP/1.1" => !has(b"close"),
        _ => has(b"keep-alive") && !has(b"close"),
    };
    let (codings, lengths) = (all("transfer-encoding"), all("content-length"));
    let (body, rest) = match (&codings[..], &lengths[..]) {
        ([], []) => (Vec::new(), rest),
        ([], [first, others @ ..]) => {
            let same = others.iter().all(|other| number(other, 10) == number(first, 10));
            if !same || (strict && !others.is_empty()) {
                return Err(End::Malformed);
            }
            let length = number(first, 10).ok_or(End::Malformed)?;
            let length = usize::try_from(length).map_err(|_| End::Open)?;
            if rest.len() < length {
                return Err(End::Open);
            }
            (rest[..length].to_vec(), &rest[length..])
        }
        ([coding], _) if coding.eq_ignore_ascii_case(b"chunked") && version == "HTTP/1.1" => {
            if strict && !lengths.is_empty() {
                return Err(End::Malformed);
            }
            let (body, rest, is_believed) = chunks(rest, strict)?;
            keeps &= lengths.is_empty() && is_believed;
            (body, rest)
        }
        _ => return Err(End::Malformed),
    };
    Ok((Seen { target: target.to_owned(), body }, bytes.len() - rest.len(), keeps))
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

fn field(line: &[u8]) -> Result<(String, Vec<u8>), End> {
    let colon = line.iter().position(|byte| *byte == b':').ok_or(End::Malformed)?;
    let (name, value) = (&line[..colon], &line[colon + 1..]);
    let is_text = |byte: &u8| *byte == b'\t' || (*byte >= 0x20 && *byte != 0x7f);
    if name.is_empty() || !name.iter().copied().all(is_token) || !value.iter().all(is_text) {
        return Err(End::Malformed);
    }
    let space = |byte: &u8| !matches!(byte, b' ' | b'\t');
    let start = value.iter().position(space).unwrap_or(value.len());
    let end = value.iter().rposition(space).map_or(start, |last| last + 1);
    Ok((String::from_utf8_lossy(name).to_ascii_lowercase(), value[start..end].to_vec()))
}

fn number(digits: &[u8], radix: u32) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0_u64, |all, digit| {
        let digit = (*digit as char).to_digit(radix)?;
        all.checked_mul(radix.into())?.checked_add(digit.into())
    })
}

/// The data of the chunks, the bytes after them, and whether those are believed.
fn chunks(mut rest: &[u8], strict: bool) -> Result<(Vec<u8>, &[u8], bool), End> {
    let mut body = Vec::new();
    loop {
        // Its line ends are CRLF and nothing else, or the next hop sees another.
        let (line, behind) = take_line(rest, true)?;
        rest = behind;
        let name = line.iter().position(|byte| *byte == b';').unwrap_or(line.len());
        let size = match strict {
            true => line,
            false => line[..name].trim_ascii_end(),
        };
        let size = number(size, 16).ok_or(End::Malformed)?;
        if size == 0 && !strict {
            if let Some(rest) = rest.strip_prefix(b"\r\n") {
                return Ok((body, rest, true));
            }
            // hyper looks for CRLF CRLF and nothing else, after a bare LF too: nothing after trailers is believed.
            let end = rest.windows(4).position(|part| part == b"\r\n\r\n").ok_or(End::Open)?;
            return Ok((body, &rest[end + 4..], false));
        }
        if size == 0 {
            loop {
                let (line, behind) = take_line(rest, true)?;
                rest = behind;
                if line.is_empty() {
                    return Ok((body, rest, true));
                }
                field(line)?;
            }
        }
        let size = usize::try_from(size).map_err(|_| End::Open)?;
        if rest.len() < size.saturating_add(2) {
            // Two bytes that are no line end are wrong, whatever comes.
            return Err(End::Open);
        }
        body.extend(&rest[..size]);
        if &rest[size..size + 2] != b"\r\n" {
            return Err(End::Malformed);
        }
        rest = &rest[size + 2..];
    }
}
