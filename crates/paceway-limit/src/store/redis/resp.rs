//! The protocol of a Redis server (RESP2), strictly: what is not of it ends the connection, and nothing that a
//! server says takes more memory than it has sent.

/// A reply that is longer is none of ours. The longest is that of 128 requests with all limiters there are.
const LONGEST: usize = 8 * 1024 * 1024;
/// Of a line that is not a number.
const LINE: usize = 16 * 1024;
/// Sign and digits of an `i64`.
const NUMBER: usize = 20;
/// Bytes of any value.
const LEAST: usize = 3;
/// The map of a Cluster is that deep: ranges, servers, what is known of each.
const DEPTH: usize = 4;

/// What a server says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Value {
    Line(String),
    Error(String),
    Number(i64),
    Bytes(Vec<u8>),
    Nothing,
    List(Vec<Value>),
}

/// It does not speak RESP2, or too much.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Malformed;

/// What is known of the bytes so far.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Parsed {
    /// A reply, and how many bytes it took.
    Reply(Value, usize),
    /// It is not worth looking again before so many bytes are there.
    Needs(usize),
}

enum Stop {
    Malformed,
    Needs(usize),
}

/// Reads the reply at the start of `bytes`.
pub(super) fn parse(bytes: &[u8]) -> Result<Parsed, Malformed> {
    let mut at = 0;
    match value(bytes, &mut at, 0) {
        Ok(value) if at <= LONGEST => Ok(Parsed::Reply(value, at)),
        Err(Stop::Needs(length)) if length <= LONGEST => Ok(Parsed::Needs(length)),
        _ => Err(Malformed),
    }
}

fn value(bytes: &[u8], at: &mut usize, depth: usize) -> Result<Value, Stop> {
    let kind = *bytes.get(*at).ok_or(Stop::Needs(*at + LEAST))?;
    *at += 1;
    match kind {
        b':' => number(bytes, at).map(Value::Number),
        b'+' => line(bytes, at, LINE).map(|line| Value::Line(text(line))),
        b'-' => line(bytes, at, LINE).map(|line| Value::Error(text(line))),
        b'$' => match length(bytes, at)? {
            None => Ok(Value::Nothing),
            Some(length) => {
                let end = *at + length;
                let Some(tail) = bytes.get(end..end + 2) else { return Err(Stop::Needs(end + 2)) };
                if tail != b"\r\n" {
                    return Err(Stop::Malformed);
                }
                let value = bytes[*at..end].to_vec();
                *at = end + 2;
                Ok(Value::Bytes(value))
            }
        },
        b'*' if depth < DEPTH => match length(bytes, at)? {
            None => Ok(Value::Nothing),
            Some(count) => {
                // No number alone takes memory.
                let least = count * LEAST;
                if bytes.len() - *at < least {
                    return Err(Stop::Needs(*at + least));
                }
                let mut list = Vec::with_capacity(count);
                for left in (0..count).rev() {
                    list.push(value(bytes, at, depth + 1).map_err(|stop| match stop {
                        Stop::Needs(length) => Stop::Needs(length + left * LEAST),
                        Stop::Malformed => Stop::Malformed,
                    })?);
                }
                Ok(Value::List(list))
            }
        },
        _ => Err(Stop::Malformed),
    }
}

/// -1 is nothing.
fn length(bytes: &[u8], at: &mut usize) -> Result<Option<usize>, Stop> {
    match number(bytes, at)? {
        -1 => Ok(None),
        length => {
            let length = usize::try_from(length).map_err(|_| Stop::Malformed)?;
            if length > LONGEST { Err(Stop::Malformed) } else { Ok(Some(length)) }
        }
    }
}

fn number(bytes: &[u8], at: &mut usize) -> Result<i64, Stop> {
    let line = line(bytes, at, NUMBER)?;
    let (negative, digits) = match line.split_first() {
        Some((b'-', digits)) => (true, digits),
        _ => (false, line),
    };
    if digits.is_empty() {
        return Err(Stop::Malformed);
    }
    let mut number: i64 = 0;
    for digit in digits {
        let digit = digit.wrapping_sub(b'0');
        if digit > 9 {
            return Err(Stop::Malformed);
        }
        // Downwards: there is one more number below zero than above.
        let next = number.checked_mul(10).and_then(|number| number.checked_sub(digit.into()));
        number = next.ok_or(Stop::Malformed)?;
    }
    if negative { Ok(number) } else { number.checked_neg().ok_or(Stop::Malformed) }
}

/// Up to the end of the line, which is passed.
fn line<'b>(bytes: &'b [u8], at: &mut usize, longest: usize) -> Result<&'b [u8], Stop> {
    let rest = &bytes[*at..];
    match rest.iter().take(longest + 1).position(|byte| *byte == b'\r') {
        Some(end) => match rest.get(end + 1) {
            Some(b'\n') => {
                *at += end + 2;
                Ok(&rest[..end])
            }
            Some(_) => Err(Stop::Malformed),
            None => Err(Stop::Needs(*at + end + 2)),
        },
        None if rest.len() > longest => Err(Stop::Malformed),
        // At least its end.
        None => Err(Stop::Needs((bytes.len() + 1).max(*at + 2))),
    }
}

fn text(line: &[u8]) -> String {
    String::from_utf8_lossy(line).into_owned()
}

/// A command of these words.
pub(super) fn command(words: &[&[u8]]) -> Vec<u8> {
    let mut out = Vec::with_capacity(32 + words.iter().map(|word| word.len() + 16).sum::<usize>());
    head(&mut out, words.len());
    words.iter().for_each(|word| push(&mut out, word));
    out
}

/// The beginning of a command of so many words.
pub(super) fn head(out: &mut Vec<u8>, words: usize) {
    out.push(b'*');
    digits(out, words as u64);
    out.extend_from_slice(b"\r\n");
}

/// One more word.
pub(super) fn push(out: &mut Vec<u8>, word: &[u8]) {
    out.push(b'$');
    digits(out, word.len() as u64);
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(word);
    out.extend_from_slice(b"\r\n");
}

/// One more word, a number.
pub(super) fn push_number(out: &mut Vec<u8>, number: i64) {
    let mut word = [0; NUMBER];
    let mut from = write_digits(&mut word, number.unsigned_abs());
    if number < 0 {
        from -= 1;
        word[from] = b'-';
    }
    push(out, &word[from..]);
}

fn digits(out: &mut Vec<u8>, number: u64) {
    let mut word = [0; NUMBER];
    let from = write_digits(&mut word, number);
    out.extend_from_slice(&word[from..]);
}

/// Writes to the end of `word`; where it begins there.
fn write_digits(word: &mut [u8; NUMBER], mut number: u64) -> usize {
    let mut from = NUMBER;
    loop {
        from -= 1;
        word[from] = b'0' + (number % 10) as u8;
        number /= 10;
        // 20 digits are as many as there can be.
        if number == 0 || from == 0 {
            return from;
        }
    }
}

/// Writes a reply as a server does.
#[cfg(any(test, fuzzing))]
pub(super) fn encode(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Line(line) => out.extend(format!("+{line}\r\n").bytes()),
        Value::Error(line) => out.extend(format!("-{line}\r\n").bytes()),
        Value::Number(number) => out.extend(format!(":{number}\r\n").bytes()),
        Value::Nothing => out.extend(b"$-1\r\n"),
        Value::Bytes(bytes) => push(out, bytes),
        Value::List(list) => {
            head(out, list.len());
            list.iter().for_each(|value| encode(value, out));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    fn values() -> impl Strategy<Value = Value> {
        let leaf = || {
            prop_oneof![
                "[ -~]{0,20}".prop_map(Value::Line),
                "[ -~]{0,20}".prop_map(Value::Error),
                any::<i64>().prop_map(Value::Number),
                prop::collection::vec(any::<u8>(), 0..40).prop_map(Value::Bytes),
                Just(Value::Nothing),
            ]
        };
        let list = prop::collection::vec(leaf(), 0..8).prop_map(Value::List);
        prop_oneof![2 => leaf(), 1 => list]
    }

    proptest! {
        /// Whole it is read as it was written; cut anywhere it is waited for, and never for longer than it is.
        #[test]
        fn a_reply_is_read_when_it_is_whole(value in values(), behind in any::<[u8; 4]>()) {
            let mut bytes = Vec::new();
            encode(&value, &mut bytes);
            for cut in 0..bytes.len() {
                match parse(&bytes[..cut]) {
                    Ok(Parsed::Needs(length)) => prop_assert!(cut < length && length <= bytes.len()),
                    other => prop_assert!(false, "{other:?} at {cut} of {bytes:?}"),
                }
            }
            let whole = bytes.len();
            bytes.extend(behind);
            prop_assert_eq!(parse(&bytes), Ok(Parsed::Reply(value, whole)));
        }

        /// Whatever comes: an answer, no panic.
        #[test]
        fn garbage_is_read_without_harm(bytes in prop::collection::vec(
            prop_oneof![any::<u8>(), prop::sample::select(b"*$:+-\r\n0129".to_vec())], 0..64)) {
            let _ = parse(&bytes);
        }

        #[test]
        fn a_number_is_written_as_it_is_read(number in any::<i64>()) {
            let mut out = Vec::new();
            push_number(&mut out, number);
            let word = Value::Bytes(number.to_string().into_bytes());
            prop_assert_eq!(parse(&out), Ok(Parsed::Reply(word, out.len())));
        }
    }

    #[rstest]
    #[case::resp3("_\r\n")]
    #[case::huge_bytes("$9999999999\r\n")]
    #[case::huge_list("*1000000000\r\n")]
    #[case::less_than_nothing("$-2\r\n")]
    #[case::no_number(":\r\n")]
    #[case::too_large(":9223372036854775808\r\n")]
    #[case::endless_number(":00000000000000000000000")]
    #[case::plus(":+1\r\n")]
    #[case::half_an_end(":1\rx")]
    #[case::bytes_without_end("$1\r\nabc")]
    #[case::deep("*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n")]
    fn what_is_no_reply_is_refused(#[case] bytes: &str) {
        assert_eq!(parse(bytes.as_bytes()), Err(Malformed));
    }

    #[test]
    fn what_is_too_long_is_refused_in_one_piece_too() {
        let reply = |length: usize| {
            let text = vec![b'x'; length - 20];
            [b"*2\r\n:1\r\n$".as_slice(), format!("{}\r\n", text.len()).as_bytes(), &text, b"\r\n"]
                .concat()
        };
        let longest = reply(LONGEST);
        assert_eq!(longest.len(), LONGEST);
        assert!(matches!(parse(&longest), Ok(Parsed::Reply(_, LONGEST))));
        assert_eq!(parse(&reply(LONGEST + 1)), Err(Malformed));
    }

    #[test]
    fn a_line_without_end_is_refused_in_time() {
        let line = [b"-".as_slice(), &[b'x'; LINE + 1]].concat();
        assert_eq!(parse(&line), Err(Malformed));
    }

    /// More bytes never make it wait for less.
    #[test]
    fn what_is_needed_grows() {
        let text = b"*4\r\n*2\r\n:1\r\n:92\r\n*";
        let needed = |length: usize| match parse(&text[..length]) {
            Ok(Parsed::Needs(needed)) => needed,
            other => panic!("{other:?}"),
        };
        for length in 1..text.len() {
            assert!(needed(length) <= needed(length + 1), "{length}");
        }
    }
}
