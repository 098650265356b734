//! The form of a JSON number (RFC 8259 section 6), byte by byte. Knows no value.

/// The last part of a number so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NumberForm {
    Minus,
    Zero,
    Digits,
    Point,
    Fraction,
    E,
    ESign,
    Exponent,
}

// === impl NumberForm ===

impl NumberForm {
    /// The form of a number that begins with `byte`; `None` if no number does.
    pub(super) fn begin(byte: u8) -> Option<Self> {
        match byte {
            b'-' => Some(Self::Minus),
            b'0' => Some(Self::Zero),
            b'1'..=b'9' => Some(Self::Digits),
            _ => None,
        }
    }

    /// The form after one more byte; `None` if it is no byte of the number.
    pub(super) fn next(self, byte: u8) -> Option<Self> {
        match (self, byte) {
            (Self::Minus, b'0') => Some(Self::Zero),
            (Self::Minus, b'1'..=b'9') | (Self::Digits, b'0'..=b'9') => Some(Self::Digits),
            (Self::Zero | Self::Digits, b'.') => Some(Self::Point),
            (Self::Point | Self::Fraction, b'0'..=b'9') => Some(Self::Fraction),
            (Self::Zero | Self::Digits | Self::Fraction, b'e' | b'E') => Some(Self::E),
            (Self::E, b'+' | b'-') => Some(Self::ESign),
            (Self::E | Self::ESign | Self::Exponent, b'0'..=b'9') => Some(Self::Exponent),
            _ => None,
        }
    }

    /// Whether the number may end here.
    pub(super) fn is_whole(self) -> bool {
        matches!(self, Self::Zero | Self::Digits | Self::Fraction | Self::Exponent)
    }
}
