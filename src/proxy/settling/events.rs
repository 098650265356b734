//! Reads the data of the events of a stream (`text/event-stream`, WHATWG HTML section 9.2) as its pieces pass. It keeps one
//! event, and knows no JSON.

use memchr::memchr;

/// The most bytes of one line and of the data of one event, 64 KiB. Longer ones are passed over.
const MOST: usize = 64 << 10;
/// The data of the event after which a client of a language model stops reading.
const DONE: &[u8] = b"[DONE]";

/// Reads the data of events.
#[derive(Debug, Default)]
pub(super) struct EventReader {
    /// The line that has not ended yet.
    line: Vec<u8>,
    /// The line is too long, and the rest of it is passed over.
    is_too_long: bool,
    /// The lines of data of the event that has not ended yet.
    data: Vec<u8>,
}

// === impl EventReader ===

impl EventReader {
    /// Reads a piece, and gives out the data of each event that ends in it. False after the last event of an answer.
    pub(super) fn read(&mut self, mut piece: &[u8], event: &mut dyn FnMut(&[u8])) -> bool {
        while let Some(end) = memchr(b'\n', piece) {
            self.extend(&piece[..end]);
            piece = &piece[end + 1..];
            if !self.end_line(event) {
                return false;
            }
        }
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
        let line = std::mem::take(&mut self.line);
        if std::mem::take(&mut self.is_too_long) {
            return true;
        }
        let line = line.strip_suffix(b"\r").unwrap_or(&line);
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
        let data = std::mem::take(&mut self.data);
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
    fn data_is_read_whatever_is_around_it() {
        let stream =
            b": hello\nevent: a\ndata: {\"a\":1}\n\nid: 5\r\ndata:{\r\ndata:}\r\n\r\ndata: last";
        assert_eq!(events(&[stream]).0, ["{\"a\":1}", "{\n}", "last"]);
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
        fn pieces_do_not_matter(stream in "(data: ?[a-c]{0,3}|:x|event: y)?\r?\n{0,2}(data: [a-c]{0,3}\n\n){0,4}", at in 0..60usize) {
            let at = at.min(stream.len());
            let (first, second) = stream.as_bytes().split_at(at);
            prop_assert_eq!(events(&[first, second]), events(&[stream.as_bytes()]));
        }

        #[test]
        fn anything_can_be_read(pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..8)) {
            let pieces: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
            events(&pieces);
        }
    }
}
