//! Finds where each reply ends in a stream of RESP2 bytes, and refuses a reply that is too long, nested too
//! deeply or of another protocol. Keeps no bytes: redis-rs reads the values.

use std::io;

/// A longer reply ends the connection. The script's longest reply, to 128 requests that each use every limiter of a
/// route, is shorter, and redis-rs keeps a reply in memory until it is whole.
const LONGEST_REPLY: usize = 8 * 1024 * 1024;
/// The greatest length of a status or error line. Redis cuts an error that it sends after a few hundred bytes.
const LONGEST_LINE: usize = 16 * 1024;
/// The greatest number of characters of a number: the sign and the digits of an `i64`.
const LONGEST_NUMBER: usize = 20;
/// The bytes of the shortest value, such as `+\r\n`: a list of n values is at least n times as long.
const SHORTEST_VALUE: usize = 3;
/// The deepest reply is the list of libraries: of their properties, one of which is a list of functions, of the properties of
/// each, one of which is a list of flags. redis-rs reads nested lists by recursion.
const DEPTH: usize = 5;

/// The reason why bytes are not let through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Malformed {
    /// They are no RESP2: another program listens there, or the server has switched to RESP3.
    #[error("it does not speak as a Redis server does")]
    Foreign,
    /// A reply has more than 8 MiB, or announces that it will.
    #[error("its reply is longer than 8 MiB")]
    TooLong,
    /// A reply has more than five lists within each other.
    #[error("its reply is nested more than 5 lists deep")]
    TooDeep,
}

/// The position in a stream of replies. A frame is one reply: a value that is in no list.
#[derive(Debug)]
pub(super) struct Frames {
    expects: Expects,
    /// Bytes of the current frame so far.
    taken: usize,
    /// For each open list, how many of its values are still to come.
    open: [usize; DEPTH],
    depth: usize,
}

#[derive(Debug, Clone, Copy)]
enum Announced {
    /// The value ends with the line.
    Nothing,
    /// A string of this many bytes.
    String(usize),
    /// A list of this many values.
    List(usize),
}

#[derive(Debug, Clone, Copy)]
enum Expects {
    /// The first byte of a value.
    Kind,
    /// The rest of a line of text that has had this many bytes.
    Text(usize),
    /// The rest of a number that has had `length` characters; `kind` says what it counts.
    Number { kind: u8, length: usize, is_negative: bool, value: usize },
    /// The `\n` after the `\r` of a line, and the value that the line announces.
    LineEnd(Announced),
    /// This many bytes of a string, then a line end.
    Bytes(usize),
}

// === impl Malformed ===

impl From<Malformed> for io::Error {
    fn from(why: Malformed) -> Self {
        Self::new(io::ErrorKind::InvalidData, why)
    }
}

// === impl Frames ===

impl Frames {
    /// Starts before the first byte of a stream.
    pub(super) fn new() -> Self {
        Self { expects: Expects::Kind, taken: 0, open: [0; DEPTH], depth: 0 }
    }

    /// Whether the last frame is whole and no byte of the next one has come.
    pub(super) fn is_between(&self) -> bool {
        self.taken == 0
    }

    /// Reads on in `bytes`, up to the end of the current frame at most; returns how many bytes it took.
    ///
    /// # Errors
    ///
    /// [`Malformed`], after which the stream cannot be read any further.
    pub(super) fn advance(&mut self, bytes: &[u8]) -> Result<usize, Malformed> {
        let mut at = 0;
        while let Some(&byte) = bytes.get(at) {
            let mut took = 1;
            let is_whole = match self.expects {
                Expects::Kind => {
                    self.expects = match byte {
                        b'+' | b'-' => Expects::Text(0),
                        b':' | b'$' | b'*' => {
                            Expects::Number { kind: byte, length: 0, is_negative: false, value: 0 }
                        }
                        _ => return Err(Malformed::Foreign),
                    };
                    false
                }
                Expects::Text(length) => {
                    let rest = &bytes[at..];
                    let end = memchr::memchr(b'\r', rest);
                    took = end.unwrap_or(rest.len());
                    if length + took > LONGEST_LINE {
                        return Err(Malformed::Foreign);
                    }
                    self.expects = match end {
                        Some(_) => Expects::LineEnd(Announced::Nothing),
                        None => Expects::Text(length + took),
                    };
                    took += usize::from(end.is_some());
                    false
                }
                Expects::Number { kind, length, is_negative, value } => {
                    self.expects = number(byte, kind, length, is_negative, value)?;
                    false
                }
                Expects::LineEnd(announced) if byte == b'\n' => self.begin(announced)?,
                Expects::Bytes(0) if byte == b'\r' => {
                    self.expects = Expects::LineEnd(Announced::Nothing);
                    false
                }
                Expects::Bytes(left) if left > 0 => {
                    took = left.min(bytes.len() - at);
                    self.expects = Expects::Bytes(left - took);
                    false
                }
                Expects::LineEnd(_) | Expects::Bytes(_) => return Err(Malformed::Foreign),
            };
            at += took;
            self.taken += took;
            if self.taken > LONGEST_REPLY {
                return Err(Malformed::TooLong);
            }
            if is_whole {
                self.taken = 0;
                break;
            }
        }
        Ok(at)
    }

    /// Goes on after a line; whether the frame ends with it.
    fn begin(&mut self, announced: Announced) -> Result<bool, Malformed> {
        let least = match announced {
            Announced::Nothing | Announced::List(0) => return Ok(self.close()),
            Announced::String(length) => length,
            Announced::List(count) => count.saturating_mul(SHORTEST_VALUE),
        };
        // Refused before its bytes come: redis-rs would make room for them.
        if least > LONGEST_REPLY - self.taken {
            return Err(Malformed::TooLong);
        }
        self.expects = match announced {
            Announced::List(count) => {
                *self.open.get_mut(self.depth).ok_or(Malformed::TooDeep)? = count;
                self.depth += 1;
                Expects::Kind
            }
            _ => Expects::Bytes(least),
        };
        Ok(false)
    }

    /// Ends a value, and the lists whose last value it is; whether no list is open any more.
    fn close(&mut self) -> bool {
        self.expects = Expects::Kind;
        while let Some(depth) = self.depth.checked_sub(1) {
            self.open[depth] -= 1;
            if self.open[depth] > 0 {
                return false;
            }
            self.depth = depth;
        }
        true
    }
}

/// Reads one more character of a number, or the end of its line.
fn number(
    byte: u8,
    kind: u8,
    length: usize,
    is_negative: bool,
    value: usize,
) -> Result<Expects, Malformed> {
    let has_digits = length > usize::from(is_negative);
    match byte {
        b'0'..=b'9' if length < LONGEST_NUMBER => {
            let value = value.saturating_mul(10).saturating_add(usize::from(byte - b'0'));
            Ok(Expects::Number { kind, length: length + 1, is_negative, value })
        }
        b'-' if length == 0 => Ok(Expects::Number { kind, length: 1, is_negative: true, value: 0 }),
        b'\r' if has_digits => Ok(Expects::LineEnd(match (kind, is_negative, value) {
            // `$-1` and `*-1` are the null values of RESP2.
            (b':', ..) | (_, true, 1) => Announced::Nothing,
            (b'$', false, length) => Announced::String(length),
            (_, false, count) => Announced::List(count),
            (_, true, _) => return Err(Malformed::Foreign),
        })),
        _ => Err(Malformed::Foreign),
    }
}

#[cfg(test)]
mod tests {
    use super::{Malformed::*, *};
    use proptest::prelude::*;
    use rstest::rstest;

    /// The length of the frame at the start of `bytes`, fed in two pieces; `None` while it is not whole.
    fn frame(bytes: &[u8], cut: usize) -> Result<Option<usize>, Malformed> {
        let mut frames = Frames::new();
        let mut at = 0;
        for end in [cut.min(bytes.len()), bytes.len()] {
            at += frames.advance(&bytes[at..end])?;
            if at > 0 && frames.is_between() {
                return Ok(Some(at));
            }
        }
        Ok(None)
    }

    fn replies() -> impl Strategy<Value = Vec<u8>> {
        let string = prop::collection::vec(any::<u8>(), 0..40).prop_map(|bytes| {
            [format!("${}\r\n", bytes.len()).as_bytes(), &bytes, b"\r\n"].concat()
        });
        let leaf = prop_oneof![
            "[+-][ -~]{0,20}\r\n".prop_map(String::into_bytes),
            any::<i64>().prop_map(|number| format!(":{number}\r\n").into_bytes()),
            string,
            Just(b"$-1\r\n".to_vec()),
            Just(b"*-1\r\n".to_vec()),
        ];
        leaf.prop_recursive(DEPTH as u32, 30, 8, |inner| {
            prop::collection::vec(inner, 0..8).prop_map(|values| {
                [format!("*{}\r\n", values.len()).into_bytes(), values.concat()].concat()
            })
        })
    }

    proptest! {
        /// Wherever a reply is cut, its end is found, and what follows it is not taken.
        #[test]
        fn finds_the_end_of_a_reply(reply in replies(), next in any::<[u8; 4]>(), cut in 0..200_usize) {
            prop_assert!(redis::parse_redis_value(&reply).is_ok());
            let all = [&reply[..], &next].concat();
            prop_assert_eq!(frame(&all, cut), Ok(Some(reply.len())));
            prop_assert_eq!(frame(&reply[..reply.len() - 1], cut), Ok(None));
        }

        /// redis-rs reads every frame that is let through, whatever else a server sends; of numbers it refuses those
        /// that are no `i64`, and of text what is not UTF-8.
        #[test]
        fn a_frame_of_garbage_is_read_without_harm(bytes in prop::collection::vec(
            prop_oneof![any::<u8>(), prop::sample::select(b"*$:+-\r\n0129".to_vec())], 0..64)) {
            if let Ok(Some(length)) = frame(&bytes, 7) {
                let _ = redis::parse_redis_value(&bytes[..length]);
            }
        }
    }

    #[rstest]
    #[case::resp3("_\r\n", Foreign)]
    #[case::a_map("%1\r\n+a\r\n:1\r\n", Foreign)]
    #[case::huge_bytes("$9999999999\r\n", TooLong)]
    #[case::beyond_any_number("$99999999999999999999\r\n", TooLong)]
    #[case::huge_list("*1000000000\r\n", TooLong)]
    #[case::less_than_nothing("$-2\r\n", Foreign)]
    #[case::no_number(":\r\n", Foreign)]
    #[case::a_sign_alone(":-\r\n", Foreign)]
    #[case::endless_number(":00000000000000000000000", Foreign)]
    #[case::plus(":+1\r\n", Foreign)]
    #[case::half_an_end(":1\rx", Foreign)]
    #[case::text_with_half_an_end("+a\rb\r\n", Foreign)]
    #[case::bytes_without_end("$1\r\nabc", Foreign)]
    #[case::deep("*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n", TooDeep)]
    fn refuses_bytes_that_are_no_reply(#[case] bytes: &str, #[case] expected: Malformed) {
        for cut in 0..bytes.len() {
            assert_eq!(frame(bytes.as_bytes(), cut), Err(expected));
        }
    }

    #[test]
    fn accepts_the_longest_reply_and_refuses_a_longer_one() {
        let reply = |length: usize| {
            let text = vec![b'x'; length - 20];
            [b"*2\r\n:1\r\n$".as_slice(), format!("{}\r\n", text.len()).as_bytes(), &text, b"\r\n"]
                .concat()
        };
        let longest = reply(LONGEST_REPLY);
        assert_eq!(longest.len(), LONGEST_REPLY);
        assert_eq!(frame(&longest, 100), Ok(Some(LONGEST_REPLY)));
        assert_eq!(frame(&reply(LONGEST_REPLY + 1), 100), Err(TooLong));
        let line = [b"-".as_slice(), &[b'x'; LONGEST_LINE + 1]].concat();
        assert_eq!(frame(&line, 100), Err(Foreign), "a line without an end");
    }

    /// The deepest nesting that redis-rs reads is 100 lists; a megabyte of them ends the process of a client that reads
    /// them by recursion without a bound.
    #[test]
    fn a_megabyte_of_nested_lists_is_refused_at_the_sixth() {
        let mut frames = Frames::new();
        assert_eq!(frames.advance(&b"*1\r\n".repeat(250_000)), Err(TooDeep));
        assert_eq!(frames.taken, 4 * DEPTH + 3);
    }
}
