//! Finds the value that a user probably meant by a wrong number, rate or duration. Accepts nothing: it only words hints.

use super::{Bytes, Rate, SIZES, Span, UNITS, Written, read_rate};
use std::time::Duration;

/// Units that users write and that are not accepted: a month has no fixed length, and a week has no name here.
const OTHERS: &[(&str, u64)] = &[
    ("w", 7 * 86_400_000_000),
    ("week", 7 * 86_400_000_000),
    ("month", 30 * 86_400_000_000),
    ("year", 365 * 86_400_000_000),
];

/// Completes the reason why a text is no rate, which `read_rate` found, by the rate to write instead.
pub(super) fn rate(text: &str, reason: String) -> String {
    if let Some(list) = list(text) {
        return format!("holds several rates; write a list without quotes: `[{list}]`");
    }
    if text.matches('/').count() > 1 {
        return "has more than one `/`; write COUNT/PERIOD, as in 5/s or 10/250ms".into();
    }
    let meant = near_rate(text).or_else(|| worded(text)).map(|rate| rate.to_string());
    hinted(reason, meant.filter(|meant| read_rate(meant).is_ok()))
}

/// The same for a rate of a `fixed_window`: it says what a window in place of a calendar month or year is.
pub(super) fn rate_of_a_window(text: &str, reason: String) -> String {
    const CALENDAR: [&str; 2] = ["month", "year"];
    let unit =
        text.split_once('/').map_or("", |(_, period)| super::split(period).unit).to_lowercase();
    let unit = CALENDAR.into_iter().find(|name| unit.trim_end_matches('s') == *name);
    match (unit, near_rate(text)) {
        (Some(unit), Some(rate)) if read_rate(&rate.to_string()).is_ok() => {
            let days = rate.period.as_secs() / 86_400;
            let said = reason.split(';').next().unwrap_or_default();
            let calendar = if unit == "month" && rate.period.as_secs() == 30 * 86_400 {
                "a month of the calendar needs `resets`, as in `resets: \"00:00 UTC\"`".to_owned()
            } else {
                format!("there is no calendar {unit}")
            };
            format!("{said}; {calendar}; `{rate}` is {days} days, counted from 1970-01-01")
        }
        _ => self::rate(text, reason),
    }
}

/// Completes the reason why a text is no duration by the duration to write instead.
pub(super) fn duration(number: &str, unit: &str, reason: String) -> String {
    let meant = || {
        let ((num, den), micros) = (number_near(number)?, unit_near(unit)?);
        let micros = num.checked_mul(micros).filter(|micros| micros.is_multiple_of(den))? / den;
        Some(Span(Duration::from_micros(micros)).to_string())
    };
    hinted(reason, meant())
}

/// Completes the reason why a text is no size by the size to write instead.
pub(super) fn size(number: &str, unit: &str, reason: String) -> String {
    let meant = || {
        let ((num, den), bytes) = (number_near(number)?, size_near(unit)?);
        let bytes = num.checked_mul(bytes).filter(|bytes| bytes.is_multiple_of(den))? / den;
        Some(Bytes::from(bytes).to_string())
    };
    hinted(reason, meant())
}

/// Completes the reason why a text is no whole number by the number to write instead.
pub(super) fn whole(text: &str, reason: String) -> String {
    if read_rate(text).is_ok() {
        let count = text.split('/').next().unwrap_or_default().trim();
        return format!("is a rate, and this is a count without a unit: `{count}`");
    }
    let meant = number_near(text).filter(|(_, den)| *den == 1);
    hinted(reason, meant.map(|(whole, _)| whole.to_string()))
}

/// Replaces the general advice in a reason, which follows its `;`, by the value to write.
fn hinted(reason: String, meant: Option<String>) -> String {
    match meant {
        Some(meant) => {
            format!("{}; write `{meant}`", reason.split(';').next().unwrap_or_default())
        }
        None => reason,
    }
}

/// Recognises a list of rates in one text, such as `5/s, 100/min` or `[5/s, 100/min]`, and returns it without brackets.
fn list(text: &str) -> Option<String> {
    let items: Vec<_> = text.trim_matches(['[', ']', ' ']).split(',').map(str::trim).collect();
    let several = items.len() > 1 || text.starts_with('[');
    (several && items.iter().all(|item| item.contains('/'))).then(|| items.join(", "))
}

fn near_rate(text: &str) -> Option<Rate> {
    let (count, period) = text.split_once('/')?;
    let Written { number, unit } = super::split(period);
    let (count, fraction) = number_near(count.trim())?;
    let (number, parts) = if number.is_empty() { (1, 1) } else { number_near(number)? };
    let micros = unit_near(unit)?.checked_mul(number)?.checked_mul(fraction)?;
    let (count, micros) = if micros.is_multiple_of(parts) {
        (count, micros / parts)
    } else {
        (count.checked_mul(parts)?, micros)
    };
    Some(Rate { count, period: Duration::from_micros(micros) })
}

/// Reads a rate in the words of other gateways: `5rps`, `300 rpm`, `5r/s`, `5 per second`.
fn worded(text: &str) -> Option<Rate> {
    let small = text.to_lowercase();
    let end = small.find(|c: char| c.is_ascii_alphabetic())?;
    let (count, word) = (small[..end].trim(), small[end..].trim());
    let unit = ["r/", "req/", "requests/", "per", "a "]
        .iter()
        .find_map(|before| word.strip_prefix(before));
    let unit = match (unit.map(str::trim), word) {
        (Some(unit), _) => unit,
        (None, "rps" | "qps" | "tps") => "s",
        (None, "rpm" | "qpm" | "tpm") => "min",
        (None, "rph" | "qph") => "h",
        (None, "rpd" | "qpd") => "d",
        (None, _) => return None,
    };
    near_rate(&format!("{count}/{unit}"))
}

/// Reads `1.5`, `1_000`, `1,000`, `1k` or `2M` as a numerator and a denominator in lowest terms.
fn number_near(text: &str) -> Option<(u64, u64)> {
    let (text, times) = match text.char_indices().last()? {
        (end, 'k' | 'K') => (&text[..end], 1_000),
        (end, 'M') => (&text[..end], 1_000_000),
        _ => (text, 1),
    };
    let groups = text.split(',').skip(1).all(|group| group.len() == 3);
    let digits = text.replace(if groups { ['_', ',', ' '] } else { ['_', '_', ' '] }, "");
    let (whole, part) = digits.split_once('.').unwrap_or((&digits, ""));
    if whole.is_empty() || part.len() > 6 {
        return None;
    }
    // `parse` would also accept a sign.
    if !whole.bytes().chain(part.bytes()).all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let den = 10_u64.pow(u32::try_from(part.len()).ok()?);
    let num = format!("{whole}{part}").parse::<u64>().ok()?.checked_mul(times)?;
    let common = super::gcd(num, den);
    Some((num / common, den / common))
}

fn unit_near(unit: &str) -> Option<u64> {
    let micros = |unit: &str| {
        let found = UNITS.iter().chain(OTHERS).find(|(name, _)| *name == unit);
        found.map(|(_, micros)| *micros)
    };
    let small = unit.to_lowercase();
    micros(unit).or_else(|| micros(&small)).or_else(|| micros(small.strip_suffix('s')?))
}

/// Reads a unit of size in other spellings. `k`, `m` and `g` are powers of 1024, as in other gateways.
fn size_near(unit: &str) -> Option<u64> {
    let small = unit.to_lowercase();
    let small = small.strip_suffix("ytes").or(small.strip_suffix("yte")).unwrap_or(&small);
    match small {
        "" => Some(1),
        "k" | "ki" | "kib" => Some(1 << 10),
        "m" | "mi" | "mib" => Some(1 << 20),
        "g" | "gi" | "gib" => Some(1 << 30),
        _ => SIZES.iter().find(|(name, _)| name.to_lowercase() == small).map(|(_, bytes)| *bytes),
    }
}
