//! Reads the times that upstreams write in headers and bodies. The form of the text decides the unit: `30` is 30 s,
//! `1700000000` an instant, `6m0s` a duration. Text without sense is `None`, never an error.

use jiff::{SignedDuration, Timestamp, civil::DateTime, fmt::rfc2822, fmt::strtime, tz::Offset};
use std::{cell::OnceCell, time::Duration};

/// A number above it is an instant in seconds since 1970; below it, a duration of at most 31 years.
const EPOCH_SECONDS: f64 = 1e9;
/// A number above it is an instant in milliseconds since 1970.
const EPOCH_MILLIS: f64 = 1e12;
/// An instant that is further away from the upstream's own time has no sense. The longest quota is one of a year.
const FARTHEST: Duration = Duration::from_secs(366 * 86_400);
/// The longest text of a time. A JavaScript date with the name of its time zone has 70 characters.
const MAX_LENGTH: usize = 128;
/// A fraction of a second in `RetryInfo` and headers is at most this precise.
const NANOS: f64 = 1e9;

/// The upstream's own time when it answered, against which the instants that it names are read: its clock may differ from
/// ours by hours.
#[derive(Debug)]
pub(super) struct UpstreamClock<'a> {
    date: Option<&'a str>,
    now: Timestamp,
    /// The time, once an instant was read. Most answers name none, and to read a date takes 1,000 instructions.
    time: OnceCell<Timestamp>,
}

// === impl UpstreamClock ===

impl<'a> UpstreamClock<'a> {
    /// Takes the time of a `Date` field; if the answer has none, or one that no date can be read from, the gateway's own time.
    pub(super) fn new(date: Option<&'a str>, now: Timestamp) -> Self {
        Self { date, now, time: OnceCell::new() }
    }

    /// Reads a duration or an instant, by its form, and returns how long it is until then. `None` for the past, negative
    /// numbers, NaN, and text without sense.
    pub(super) fn read(&self, text: &str) -> Option<Duration> {
        let text = text.trim();
        if text.is_empty() || text.len() > MAX_LENGTH {
            return None;
        }
        match number(text) {
            Some(number) => self.number(number),
            None => duration(text).or_else(|| self.until(instant(text)?)),
        }
    }

    /// Reads a number without a unit: an instant if it is large, otherwise seconds.
    pub(super) fn number(&self, number: f64) -> Option<Duration> {
        match number {
            _ if number > EPOCH_MILLIS => self.until(epoch(number / 1000.0)?),
            _ if number > EPOCH_SECONDS => self.until(epoch(number)?),
            _ => seconds(number),
        }
    }

    fn until(&self, instant: Timestamp) -> Option<Duration> {
        let time = self.time.get_or_init(|| self.date.and_then(self::instant).unwrap_or(self.now));
        let span = Duration::try_from(time.duration_until(instant)).ok()?;
        (span <= FARTHEST).then_some(span)
    }
}

/// Reads a number as JSON and HTTP fields write it. `None` for `NaN`, `inf` and text that only begins with a number.
pub(super) fn number(text: &str) -> Option<f64> {
    let text = text.trim();
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit() || b"+-.eE".contains(&byte));
    let number = text.parse::<f64>().ok().filter(|_| is_plain)?;
    number.is_finite().then_some(number)
}

/// Returns a time in seconds. `None` if it is negative or above 2^64.
pub(super) fn seconds(number: f64) -> Option<Duration> {
    Duration::try_from_secs_f64(number).ok()
}

/// Reads a number of milliseconds.
pub(super) fn millis(text: &str) -> Option<Duration> {
    seconds(number(text)? / 1000.0)
}

fn epoch(seconds: f64) -> Option<Timestamp> {
    // Instants in nanoseconds and such are too large, and have no sense here.
    let nanos = (seconds.fract() * NANOS) as i32;
    Timestamp::new(seconds.trunc() as i64, nanos).ok()
}

/// Reads a duration with units, such as `1s`, `12ms` or `6m0s`, as Go writes it.
fn duration(text: &str) -> Option<Duration> {
    if !text.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return None;
    }
    Duration::try_from(text.parse::<SignedDuration>().ok()?).ok()
}

/// Reads an instant: RFC 3339, the three forms of RFC 9110 section 5.6.7, or that of JavaScript's `Date`.
pub(crate) fn instant(text: &str) -> Option<Timestamp> {
    let text = text.trim();
    if text.len() > MAX_LENGTH {
        return None;
    }
    if text.starts_with(|c: char| c.is_ascii_digit()) {
        return text.parse().ok();
    }
    // `Tue Feb 16 2021 09:02:42 GMT+0100 (Central European Standard Time)`
    let text = text.split('(').next().unwrap_or_default().trim();
    let with_offset = |format: &str| strtime::parse(format, text).ok()?.to_timestamp().ok();
    let in_utc = |format: &str| utc(strtime::parse(format, text).ok()?.to_datetime().ok()?);
    rfc2822::DateTimeParser::new()
        .parse_timestamp(text)
        .ok()
        .or_else(|| with_offset("%a %b %d %Y %H:%M:%S GMT%z"))
        .or_else(|| in_utc("%A, %d-%b-%y %H:%M:%S GMT"))
        .or_else(|| in_utc("%a %b %e %H:%M:%S %Y"))
}

fn utc(date: DateTime) -> Option<Timestamp> {
    Offset::UTC.to_timestamp(date).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    const DATE: &str = "Tue, 16 Feb 2021 08:00:00 GMT";

    fn clock() -> UpstreamClock<'static> {
        UpstreamClock::new(Some(DATE), Timestamp::UNIX_EPOCH)
    }

    #[rstest]
    #[case::seconds("30", 30.0)]
    #[case::nothing("0", 0.0)]
    #[case::fraction("0.5", 0.5)]
    #[case::shopify("2.0", 2.0)]
    #[case::go_seconds("1s", 1.0)]
    #[case::go_millis("12ms", 0.012)]
    #[case::go_minutes("6m0s", 360.0)]
    #[case::go_hours("1h2m3.5s", 3723.5)]
    #[case::gemini("34.074824224s", 34.074_824_224)]
    #[case::epoch("1613462430", 30.0)]
    #[case::epoch_with_decimals("1613462430.25", 30.25)]
    #[case::epoch_millis("1613462430500", 30.5)]
    #[case::rfc_3339("2021-02-16T08:00:30Z", 30.0)]
    #[case::rfc_3339_with_offset("2021-02-16T09:00:30.5+01:00", 30.5)]
    #[case::imf("Tue, 16 Feb 2021 08:02:42 GMT", 162.0)]
    #[case::rfc_850("Tuesday, 16-Feb-21 08:02:42 GMT", 162.0)]
    #[case::asctime("Tue Feb 16 08:02:42 2021", 162.0)]
    #[case::javascript("Tue Feb 16 2021 09:02:42 GMT+0100 (Central European Standard Time)", 162.0)]
    #[case::javascript_cut("Tue Feb 16 2021 09:02:42 GMT+0100", 162.0)]
    #[case::spaces(" 30 ", 30.0)]
    fn a_time_is_read_by_its_form(#[case] text: &str, #[case] seconds: f64) {
        let read = clock().read(text).map(|span| span.as_secs_f64());
        assert!(read.is_some_and(|read| (read - seconds).abs() < 1e-6), "{text}: {read:?}");
    }

    #[rstest]
    #[case("-1")]
    #[case("NaN")]
    #[case("inf")]
    #[case("infinity")]
    #[case("1e400")]
    #[case("")]
    #[case("soon")]
    #[case("-5s")]
    #[case("1s ago")]
    #[case("0x10")]
    #[case("10, 20")]
    #[case("1613462399")]
    #[case("2021-02-16T07:59:59Z")]
    #[case("2031-02-16T07:59:59Z")]
    #[case("1e18")]
    #[case("Tue Feb 16 2021 09:02:42 GMT+0100 (Cent")]
    #[case("Tue, 99 Feb 2021 08:02:42 GMT")]
    fn a_text_without_sense_is_no_time(#[case] text: &str) {
        let is_date = text.starts_with("Tue Feb");
        assert_eq!(clock().read(text).is_some(), is_date, "{text}");
    }

    #[test]
    fn an_answer_without_a_date_is_read_against_our_own_time() {
        let now = instant(DATE).unwrap();
        for date in [None, Some("yesterday")] {
            let clock = UpstreamClock::new(date, now);
            assert_eq!(clock.read("1613462430"), Some(Duration::from_secs(30)));
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,140}", date in "\\PC{0,40}") {
            let _ = UpstreamClock::new(Some(&date), Timestamp::UNIX_EPOCH).read(&text);
        }

        #[test]
        fn an_instant_is_never_far_away(number in 1e9..1e300) {
            let span = clock().number(number);
            prop_assert!(span.is_none_or(|span| span <= FARTHEST));
        }

        #[test]
        fn more_seconds_are_a_longer_time(one in 0.0..1e9f64, other in 0.0..1e9f64) {
            let (short, long) = (one.min(other), one.max(other));
            prop_assert!(clock().number(short) <= clock().number(long));
        }
    }
}
