//! Reads numbers with units as users write them: durations, rates and sizes.

mod meant;

use paceway_limit::rate::{MONTH, gcd, largest};
use std::{fmt, time::Duration};

pub use paceway_limit::Rate;

/// A duration that is displayed as users write it, in the largest unit that divides it: `90s`, `2min`.
pub(super) struct Span(pub(super) Duration);

/// A number of bytes that is displayed as users write it, in the largest unit that divides it: `32KiB`.
pub(super) struct Bytes(u64);

/// A number with its unit, as a text has them.
struct Written<'t> {
    number: &'t str,
    unit: &'t str,
}

const UNITS: &[(&str, u64)] = &[
    ("us", 1),
    ("ms", 1_000),
    ("s", 1_000_000),
    ("sec", 1_000_000),
    ("second", 1_000_000),
    ("m", 60_000_000),
    ("min", 60_000_000),
    ("minute", 60_000_000),
    ("h", 3_600_000_000),
    ("hour", 3_600_000_000),
    ("d", 86_400_000_000),
    ("day", 86_400_000_000),
];
const SIZES: &[(&str, u64)] = &[
    ("B", 1),
    ("kB", 1_000),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
];
const MAX_COUNT: u64 = 1_000_000_000;
const MIN_PERIOD: Duration = Duration::from_millis(1);
const MAX_PERIOD: Duration = Duration::from_secs(366 * 86_400);

/// Reads a duration such as `500ms`, `2s`, `5min`, `1h`, `1d`, or `0`.
///
/// # Errors
///
/// The reason, worded so that it completes a sentence that begins with the text: "`TEXT` needs a unit".
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let Written { number, unit } = split(text);
    if unit.is_empty() {
        return Err("needs a unit: 500ms, 10s, 5min, 1h, 1d".into());
    }
    if number.is_empty() {
        return Err("is no duration; write `2s`, `500ms` or `1min`".into());
    }
    let read = digits(number).and_then(|number| Ok((number, micros(unit)?)));
    let (number, micros) = read.map_err(|reason| meant::duration(number, unit, reason))?;
    Ok(Duration::from_micros(number.checked_mul(micros).ok_or("is too long")?))
}

/// Reads a rate such as `5/s`, `300/min`, `10/250ms` or `50000/day`.
///
/// # Errors
///
/// The reason, worded so that it completes a sentence that begins with the text: "`TEXT` is not a rate".
pub(crate) fn rate(text: &str) -> Result<Rate, String> {
    read_rate(text).map_err(|reason| meant::rate(text, reason))
}

/// Reads a rate of a `fixed_window`, whose windows begin at fixed instants.
///
/// # Errors
///
/// As [`rate`]. The reason says where the windows of a month begin, which has no fixed length.
pub(super) fn rate_of_a_window(text: &str) -> Result<Rate, String> {
    read_rate(text).map_err(|reason| meant::rate_of_a_window(text, reason))
}

/// Reads a rate of windows of a calendar: also `10000/month` or `500/week`.
///
/// # Errors
///
/// As [`rate`].
pub(super) fn rate_of_a_calendar(text: &str) -> Result<Rate, String> {
    let named = text.split_once('/').and_then(|(count, unit)| {
        let units = [("month", MONTH), ("week", Duration::from_secs(7 * 86_400))];
        let (_, period) = units.into_iter().find(|(name, _)| *name == unit.trim())?;
        Some((count, period))
    });
    match named {
        Some((count, period)) => {
            read_rate(&format!("{count}/d")).map(|rate| Rate { period, ..rate })
        }
        None => rate(text),
    }
}

/// Reads a whole number without a unit.
///
/// # Errors
///
/// The reason, worded so that it completes a sentence that begins with the text: "`TEXT` is negative".
pub(super) fn whole(text: &str) -> Result<u64, String> {
    digits(text).map_err(|reason| meant::whole(text, reason))
}

/// Reads a size such as `32KiB`, `1MiB`, `500B`, `10MB`, or a number of bytes without a unit.
///
/// # Errors
///
/// The reason, worded so that it completes a sentence that begins with the text: "`TEXT` has the unknown unit `x`".
pub(super) fn size(text: &str) -> Result<u64, String> {
    let Written { number, unit } = split(text);
    let of = |unit: &str| match SIZES.iter().find(|(name, _)| *name == unit) {
        Some((_, bytes)) => Ok(*bytes),
        None if unit.is_empty() => Ok(1),
        None => Err(format!("has the unknown unit `{unit}`; use B, KiB, MiB, GiB, KB, MB or GB")),
    };
    let read = digits(number).and_then(|number| Ok((number, of(unit)?)));
    let (number, bytes) = read.map_err(|reason| meant::size(number, unit, reason))?;
    Ok(number.checked_mul(bytes).ok_or("is too large")?)
}

fn read_rate(text: &str) -> Result<Rate, String> {
    let Some((count, period)) = text.split_once('/') else {
        return Err("is not a rate; write COUNT/PERIOD, as in 5/s, 300/min or 10/250ms".into());
    };
    let (count, period) = (count.trim(), period.trim());
    let count = match digits(count) {
        Ok(0) => return Err("allows nothing; the count must be at least 1".into()),
        Err(_) if count.starts_with('-') => {
            return Err("is negative; the count must be at least 1".into());
        }
        count => count?,
    };
    if count > MAX_COUNT {
        return Err(format!("counts more than {MAX_COUNT}"));
    }
    let Written { number, unit } = split(period);
    if unit.is_empty() {
        return Err("needs a unit after the `/`, as in 5/s or 10/250ms".into());
    }
    let number = if number.is_empty() { 1 } else { digits(number)? };
    let micros = number.checked_mul(micros(unit)?).ok_or("has too long a period")?;
    let period = Duration::from_micros(micros);
    if !(MIN_PERIOD..=MAX_PERIOD).contains(&period) {
        return Err("has a period outside of 1ms to 366d".into());
    }
    if u128::from(count) > period.as_micros() {
        return Err("is more than one a microsecond, which no limiter can tell apart".into());
    }
    Ok(Rate { count, period })
}

fn split(text: &str) -> Written<'_> {
    let end = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    Written { number: text[..end].trim(), unit: text[end..].trim() }
}

fn digits(text: &str) -> Result<u64, String> {
    if text.is_empty() {
        return Err("needs a whole number".into());
    }
    if text.starts_with('-') {
        return Err("is negative".into());
    }
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err("is not a whole number".into());
    }
    text.parse().map_err(|_| "is too large".into())
}

fn micros(unit: &str) -> Result<u64, String> {
    let found = UNITS.iter().find(|(name, _)| *name == unit);
    found.map(|(_, micros)| *micros).ok_or_else(|| {
        format!("has the unknown unit `{unit}`; use ms, s, min, h (hour) or d (day)")
    })
}

// === impl Span ===

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (n, name) = largest(self.0);
        write!(f, "{n}{name}")
    }
}

// === impl Bytes ===

impl From<usize> for Bytes {
    fn from(bytes: usize) -> Self {
        Self(u64::try_from(bytes).unwrap_or(u64::MAX))
    }
}

impl From<u64> for Bytes {
    fn from(bytes: u64) -> Self {
        Self(bytes)
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fits = |(_, unit): &&(&str, u64)| self.0 >= *unit && self.0.is_multiple_of(*unit);
        let (name, unit) =
            SIZES.iter().filter(fits).max_by_key(|(_, unit)| unit).unwrap_or(&SIZES[0]);
        write!(f, "{}{name}", self.0 / unit)
    }
}
