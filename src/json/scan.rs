//! The reader of JSON (RFC 8259) for pointers: it takes a document byte by byte, in time that is linear in its length,
//! and remembers the containers that it is in and the texts on the way of a pointer. Knows no request.

use super::{
    BYTE_ORDER_MARK, JsonFault, JsonPointer,
    fault::JsonFaultKind::{self as Kind, Deep, Encoding, Syntax, Unfinished},
    number::NumberForm,
    seek::Seek,
    utf8::Utf8Check,
};
use std::borrow::Borrow;

/// The most containers within each other. Programs stop between 64 and some thousands.
const MAX_DEPTH: usize = 1024;
/// The state between two bytes of a document.
#[derive(Debug)]
pub(super) struct Scan {
    /// The bytes before.
    at: u64,
    expected: Awaited,
    seek: Seek,
    /// The containers within those on the way of a pointer: whether each is an object.
    passed_over: Vec<bool>,
    utf8: Utf8Check,
}

/// The next bytes that may come.
#[derive(Debug, Clone, Copy)]
enum Awaited {
    /// The rest of a byte order mark, of which so many bytes came; or the document.
    Mark(usize),
    Value,
    /// A value, or the end of an array.
    FirstItem,
    /// A name, or the end of an object.
    FirstName,
    Name,
    Colon,
    /// A comma or the end of the container; the end of the document outside of all.
    Next,
    Text {
        is_name: bool,
        within: Within,
    },
    Number(NumberForm),
    /// The rest of `true`, `false` or `null`.
    Word(&'static [u8]),
}

/// A place in a text.
#[derive(Debug, Clone, Copy)]
enum Within {
    Plain,
    /// After a `\`.
    Escape,
    /// The number of hexadecimal digits that are missing.
    Hex(u8),
}

/// The consequence of a byte.
enum ByteUse {
    Taken,
    /// It ended a number, and is looked at again.
    Again,
}

// === impl Scan ===

impl Scan {
    pub(super) fn new(seek: Seek) -> Self {
        let (expected, passed_over) = (Awaited::Mark(0), Vec::new());
        Self { at: 0, expected, seek, passed_over, utf8: Utf8Check::default() }
    }

    /// The pointers, and what was found.
    pub(super) fn seek(&self) -> &Seek {
        &self.seek
    }

    /// Reads a piece. The pointers are the same for each.
    pub(super) fn feed<P: Borrow<JsonPointer>>(
        &mut self,
        pointers: &[P],
        piece: &[u8],
    ) -> Result<(), JsonFault> {
        if self.seek.is_strict() && !self.utf8.accepts(piece) {
            return Err(JsonFault { kind: Encoding, at: self.at });
        }
        let mut rest = piece;
        while let Some((byte, after)) = rest.split_first() {
            let plain = self.plain_bytes(rest);
            let step = if plain > 0 {
                let (text, after) = rest.split_at(plain);
                rest = after;
                self.keep(text)
            } else {
                self.step(pointers, *byte).map(|step| {
                    if matches!(step, ByteUse::Taken) {
                        rest = after;
                    }
                })
            };
            let at = self.at + (piece.len() - rest.len()) as u64;
            step.map_err(|kind| JsonFault { kind, at })?;
        }
        self.at += piece.len() as u64;
        Ok(())
    }

    /// Ends the document.
    pub(super) fn end<P: Borrow<JsonPointer>>(&mut self, pointers: &[P]) -> Result<(), JsonFault> {
        let at = self.at;
        let is_outside = self.is_in_object().is_none();
        match self.expected {
            Awaited::Mark(0) => self.seek.learn_missing(),
            Awaited::Next if is_outside => {}
            Awaited::Number(form) if is_outside && form.is_whole() => {
                self.seek.end_scalar(pointers).map_err(|kind| JsonFault { kind, at })?;
            }
            _ => return Err(JsonFault { kind: Unfinished, at }),
        }
        let is_whole = self.utf8.is_whole();
        is_whole.then_some(()).ok_or(JsonFault { kind: Encoding, at })
    }

    /// The number of bytes at the start of `rest` that are characters of the text that is being read.
    fn plain_bytes(&self, rest: &[u8]) -> usize {
        let Awaited::Text { within: Within::Plain, .. } = self.expected else { return 0 };
        let is_special = |byte: &u8| *byte < b' ' || matches!(byte, b'"' | b'\\');
        rest.iter().position(is_special).unwrap_or(rest.len())
    }

    fn step<P: Borrow<JsonPointer>>(&mut self, pointers: &[P], byte: u8) -> Result<ByteUse, Kind> {
        match self.expected {
            Awaited::Mark(count) => return self.read_mark(count, byte),
            Awaited::Number(form) => return self.read_number(pointers, form, byte),
            Awaited::Text { is_name, within } => {
                self.read_text(pointers, is_name, within, byte)?;
            }
            Awaited::Word(rest) => self.read_word(pointers, rest, byte)?,
            _ if matches!(byte, b' ' | b'\n' | b'\r' | b'\t') => {}
            Awaited::Value => self.begin_value(pointers, byte)?,
            Awaited::FirstItem if byte == b']' => self.close(),
            Awaited::FirstItem => {
                self.begin_item(pointers);
                self.begin_value(pointers, byte)?;
            }
            Awaited::FirstName if byte == b'}' => self.close(),
            Awaited::FirstName | Awaited::Name if byte == b'"' => {
                self.seek.begin_text();
                self.expected = Awaited::Text { is_name: true, within: Within::Plain };
            }
            Awaited::Colon if byte == b':' => self.expected = Awaited::Value,
            Awaited::Next => self.follow(pointers, byte)?,
            Awaited::FirstName | Awaited::Name | Awaited::Colon => return Err(Syntax),
        }
        Ok(ByteUse::Taken)
    }

    fn read_mark(&mut self, count: usize, byte: u8) -> Result<ByteUse, Kind> {
        if byte == BYTE_ORDER_MARK[count] {
            let count = count + 1;
            let is_whole = count == BYTE_ORDER_MARK.len();
            self.expected = if is_whole { Awaited::Value } else { Awaited::Mark(count) };
            return Ok(ByteUse::Taken);
        }
        self.expected = Awaited::Value;
        if count == 0 { Ok(ByteUse::Again) } else { Err(Syntax) }
    }

    fn read_number<P: Borrow<JsonPointer>>(
        &mut self,
        pointers: &[P],
        form: NumberForm,
        byte: u8,
    ) -> Result<ByteUse, Kind> {
        match form.next(byte) {
            Some(next) => {
                self.expected = Awaited::Number(next);
                self.keep(&[byte])?;
                Ok(ByteUse::Taken)
            }
            None if form.is_whole() => {
                self.end_scalar(pointers)?;
                Ok(ByteUse::Again)
            }
            None => Err(Syntax),
        }
    }

    fn read_word<P: Borrow<JsonPointer>>(
        &mut self,
        pointers: &[P],
        rest: &'static [u8],
        byte: u8,
    ) -> Result<(), Kind> {
        let Some(rest) = rest.strip_prefix(&[byte]) else { return Err(Syntax) };
        self.keep(&[byte])?;
        self.expected = Awaited::Word(rest);
        if rest.is_empty() { self.end_scalar(pointers) } else { Ok(()) }
    }

    /// Reads a byte of a text that is not plain.
    fn read_text<P: Borrow<JsonPointer>>(
        &mut self,
        pointers: &[P],
        is_name: bool,
        within: Within,
        byte: u8,
    ) -> Result<(), Kind> {
        let within = match (within, byte) {
            (Within::Plain, b'"') if is_name => return self.end_name(pointers),
            (Within::Plain, b'"') => {
                self.keep(b"\"")?;
                return self.end_scalar(pointers);
            }
            (Within::Plain, b'\\') => Within::Escape,
            (Within::Escape, b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => {
                Within::Plain
            }
            (Within::Escape, b'u') => Within::Hex(4),
            (Within::Hex(1), _) if byte.is_ascii_hexdigit() => Within::Plain,
            (Within::Hex(left), _) if byte.is_ascii_hexdigit() => Within::Hex(left - 1),
            _ => return Err(Syntax),
        };
        self.expected = Awaited::Text { is_name, within };
        self.keep(&[byte])
    }

    /// Keeps bytes of a text or a number, if it matters.
    fn keep(&mut self, bytes: &[u8]) -> Result<(), Kind> {
        let matters = match self.expected {
            Awaited::Text { is_name: true, .. } => self.passed_over.is_empty(),
            _ => self.seek.seeks(),
        };
        if matters { self.seek.extend_text(bytes) } else { Ok(()) }
    }

    fn begin_value<P: Borrow<JsonPointer>>(
        &mut self,
        pointers: &[P],
        byte: u8,
    ) -> Result<(), Kind> {
        self.seek.begin_text();
        self.expected = match byte {
            b'{' => return self.open(pointers, true),
            b'[' => return self.open(pointers, false),
            b'"' => Awaited::Text { is_name: false, within: Within::Plain },
            b't' => Awaited::Word(b"rue"),
            b'f' => Awaited::Word(b"alse"),
            b'n' => Awaited::Word(b"ull"),
            _ => Awaited::Number(NumberForm::begin(byte).ok_or(Syntax)?),
        };
        self.keep(&[byte])
    }

    /// Ends a text, a number or a word.
    fn end_scalar<P: Borrow<JsonPointer>>(&mut self, pointers: &[P]) -> Result<(), Kind> {
        self.expected = Awaited::Next;
        self.seek.end_scalar(pointers)
    }

    fn end_name<P: Borrow<JsonPointer>>(&mut self, pointers: &[P]) -> Result<(), Kind> {
        self.expected = Awaited::Colon;
        if self.passed_over.is_empty() { self.seek.end_name(pointers) } else { Ok(()) }
    }

    fn begin_item<P: Borrow<JsonPointer>>(&mut self, pointers: &[P]) {
        if self.passed_over.is_empty() {
            self.seek.begin_item(pointers);
        }
    }

    fn open<P: Borrow<JsonPointer>>(
        &mut self,
        pointers: &[P],
        is_object: bool,
    ) -> Result<(), Kind> {
        if self.seek.depth() + self.passed_over.len() == MAX_DEPTH {
            return Err(Deep);
        }
        self.expected = if is_object { Awaited::FirstName } else { Awaited::FirstItem };
        if !self.seek.open(pointers, is_object) {
            self.passed_over.push(is_object);
        }
        Ok(())
    }

    /// Ends the innermost container.
    fn close(&mut self) {
        self.expected = Awaited::Next;
        if self.passed_over.pop().is_none() {
            self.seek.close();
        }
    }

    /// Whether the innermost container is an object; `None` outside of all.
    fn is_in_object(&self) -> Option<bool> {
        self.passed_over.last().copied().or_else(|| self.seek.is_in_object())
    }

    /// Reads what follows a value.
    fn follow<P: Borrow<JsonPointer>>(&mut self, pointers: &[P], byte: u8) -> Result<(), Kind> {
        let Some(is_object) = self.is_in_object() else { return Err(Syntax) };
        match byte {
            b',' if is_object => self.expected = Awaited::Name,
            b',' => {
                self.begin_item(pointers);
                self.expected = Awaited::Value;
            }
            b'}' if is_object => self.close(),
            b']' if !is_object => self.close(),
            _ => return Err(Syntax),
        }
        Ok(())
    }
}
