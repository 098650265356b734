//! Reads the data of the events of a stream (`text/event-stream`, WHATWG HTML section 9.2) as its pieces pass. It keeps one
//! event, and knows no JSON.

use crate::json::BYTE_ORDER_MARK;
use memchr::memchr2;
use std::mem;

/// The most bytes of one line and of the data of one event, 64 KiB. Longer ones are passed over.
pub(super) const MOST: usize = 64 << 10;
/// The data of the event after which a client of a language model stops reading.
const DONE: &[u8] = b"[DONE]";

/// Reads the data of events.
#[derive(Debug, Default)]
pub(super) struct EventReader {
    /// The line that has not ended yet.
    line: Vec<u8>,
    /// The first line has ended, so that no byte order mark can come.
    has_begun: bool,
    /// The byte before was a CR, so that a LF is the rest of its line end.
    is_after_cr: bool,
    /// The line is too long, and the rest of it is passed over.
    is_too_long: bool,
    /// The lines of data of the event that has not ended yet.
    data: Vec<u8>,
}

// === impl EventReader ===

impl EventReader {
    /// Reads a piece, and gives out the data of each event that ends in it. False after the last event of an answer.
    pub(super) fn read(&mut self, mut piece: &[u8], event: &mut dyn FnMut(&[u8])) -> bool {
        while let Some(end) = memchr2(b'\n', b'\r', piece) {
            let (line, is_cr) = (&piece[..end], piece[end] == b'\r');
            piece = &piece[end + 1..];
            let is_after_cr = mem::replace(&mut self.is_after_cr, is_cr);
            if is_after_cr && !is_cr && line.is_empty() {
                continue;
            }
            self.extend(line);
            if !self.end_line(event) {
                return false;
            }
        }
        self.is_after_cr &= piece.is_empty();
        self.extend(piece);
        true
    }

    /// Gives out the data of an event that the end of the stream ends.
    pub(super) fn end(&mut self, event: &mut dyn FnMut(&[u8])) {
        if self.end_line(event) {
            self.end_event(event);
        }
    }

    fn extend(&mut self, piece: &[u8]) {
        self.is_too_long |= self.line.len() + piece.len() > MOST;
        if !self.is_too_long {
            self.line.extend_from_slice(piece);
        }
    }

    fn end_line(&mut self, event: &mut dyn FnMut(&[u8])) -> bool {
        let line = mem::take(&mut self.line);
        let is_first = !mem::replace(&mut self.has_begun, true);
        if mem::take(&mut self.is_too_long) {
            return true;
        }
        let mark = if is_first { BYTE_ORDER_MARK } else { &[] };
        let line = line.strip_prefix(mark).unwrap_or(&line);
        if line.is_empty() {
            return self.end_event(event);
        }
        if let Some(data) = line.strip_prefix(b"data:") {
            let data = data.strip_prefix(b" ").unwrap_or(data);
            if self.data.len() + data.len() < MOST {
                if !self.data.is_empty() {
                    self.data.push(b'\n');
                }
                self.data.extend_from_slice(data);
            }
        }
        true
    }

    fn end_event(&mut self, event: &mut dyn FnMut(&[u8])) -> bool {
        let data = mem::take(&mut self.data);
        if !data.is_empty() {
            event(&data);
        }
        data.trim_ascii() != DONE
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn events(pieces: &[&[u8]]) -> (Vec<String>, bool) {
        let (mut reader, mut all) = (EventReader::default(), Vec::new());
        let mut keep = |event: &[u8]| all.push(String::from_utf8_lossy(event).into_owned());
        for piece in pieces {
            if !reader.read(piece, &mut keep) {
                return (all, true);
            }
        }
        reader.end(&mut keep);
        (all, false)
    }

    #[test]
    fn reads_data_among_other_fields() {
        let stream =
            b": hello\nevent: a\ndata: {\"a\":1}\n\nid: 5\r\ndata:{\r\ndata:}\r\n\r\ndata: last";
        assert_eq!(events(&[stream]).0, ["{\"a\":1}", "{\n}", "last"]);
    }

    #[test]
    fn lines_may_end_with_a_cr_and_begin_with_a_byte_order_mark() {
        let stream = b"\xef\xbb\xbfdata: 1\r\rdata: 2\rdata: 3\r\n\rdata: 4\n\r\ndata: [DONE]\r\r";
        let expected = (["1", "2\n3", "4", "[DONE]"].map(String::from).to_vec(), true);
        assert_eq!(events(&[stream]), expected);
        let bytes: Vec<&[u8]> = stream.chunks(1).collect();
        assert_eq!(events(&bytes), expected);
    }

    #[test]
    fn a_long_line_is_passed_over() {
        let long = [b"data: ".as_slice(), &[b'x'; 3 * MOST], b"\n\ndata: 1\n\n"].concat();
        assert_eq!(events(&[&long]).0, ["1"]);
    }

    #[test]
    fn nothing_is_read_after_the_last_event() {
        assert_eq!(
            events(&[b"data: 1\n\ndata: [DONE]\n\n", b"data: 2\n\n"]),
            (vec!["1".into(), "[DONE]".into()], true)
        );
    }

    proptest! {
        /// The pieces in which a stream comes change nothing.
        #[test]
        fn events_do_not_depend_on_how_bytes_are_split(stream in "(data: ?[a-c]{0,3}|:x|event: y)?\r?\n{0,2}(data: [a-c]{0,3}[\r\n]{1,3}){0,4}", at in 0..60usize) {
            let at = at.min(stream.len());
            let (first, second) = stream.as_bytes().split_at(at);
            prop_assert_eq!(events(&[first, second]), events(&[stream.as_bytes()]));
        }

        #[test]
        fn any_bytes_are_read_without_panic(pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..8)) {
            let pieces: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
            events(&pieces);
        }
    }
}
