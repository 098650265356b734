//! The longest time that a request may wait, by its route and by its own headers. It reads no clock.

use http::{HeaderMap, HeaderName, HeaderValue};
use std::time::Duration;

const PREFER: HeaderName = HeaderName::from_static("prefer");
const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

/// Returns how long a request may wait: the route's budget, or the caller's preference (RFC 7240 section 4.3) up to the
/// cap. A gRPC call never waits longer than its deadline.
pub fn budget(max_wait: Duration, max_wait_cap: Duration, headers: &HeaderMap) -> Duration {
    let asked = headers.get_all(PREFER).iter().find_map(preferred_wait);
    let budget = asked.map_or(max_wait, |asked| asked.min(max_wait_cap));
    match deadline(headers) {
        Some(deadline) => budget.min(deadline),
        None => budget,
    }
}

/// The time that the client of a gRPC call leaves for its answer; `None` if it waits as long as it takes.
pub(crate) fn deadline(headers: &HeaderMap) -> Option<Duration> {
    headers.get(GRPC_TIMEOUT).and_then(grpc_timeout)
}

/// Reads the `wait` of a `Prefer` field; a value that is not a number of seconds is ignored (RFC 7240 section 2).
fn preferred_wait(value: &HeaderValue) -> Option<Duration> {
    value.to_str().ok()?.split(',').find_map(|preference| {
        let (name, seconds) = preference.split(';').next()?.split_once('=')?;
        if !name.trim().eq_ignore_ascii_case("wait") {
            return None;
        }
        let seconds = seconds.trim().trim_matches('"');
        let digits = !seconds.is_empty() && seconds.bytes().all(|byte| byte.is_ascii_digit());
        // A number that does not fit is greater than any cap.
        digits.then(|| Duration::from_secs(seconds.parse().unwrap_or(u32::MAX.into())))
    })
}

/// Reads the `Timeout` of a gRPC call: up to 8 digits and a unit. A malformed one is no deadline.
fn grpc_timeout(value: &HeaderValue) -> Option<Duration> {
    let (digits, unit) = value.to_str().ok()?.split_at_checked(value.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let number: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(number * 3600),
        "M" => Duration::from_secs(number * 60),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::plain("wait=5", Some(5))]
    #[case::zero("wait=0", Some(0))]
    #[case::among_others("respond-async, Wait = 10; x=y", Some(10))]
    #[case::quoted("wait=\"7\"", Some(7))]
    #[case::huge("wait=99999999999999999999999", Some(u64::from(u32::MAX)))]
    #[case::negative("wait=-1", None)]
    #[case::no_number("wait=soon", None)]
    #[case::nothing("wait", None)]
    #[case::other("waiting=5", None)]
    fn reads_prefer_wait(#[case] value: &'static str, #[case] seconds: Option<u64>) {
        let value = HeaderValue::from_static(value);
        assert_eq!(preferred_wait(&value), seconds.map(Duration::from_secs));
    }

    #[rstest]
    #[case::hours("2H", Some(7_200_000_000_000))]
    #[case::minutes("3M", Some(180_000_000_000))]
    #[case::seconds("4S", Some(4_000_000_000))]
    #[case::milliseconds("5m", Some(5_000_000))]
    #[case::microseconds("6u", Some(6_000))]
    #[case::nanoseconds("7n", Some(7))]
    #[case::eight_digits("99999999m", Some(99_999_999_000_000))]
    #[case::nine_digits("999999999n", None)]
    #[case::no_digits("S", None)]
    #[case::no_unit("5", None)]
    #[case::other_unit("5s", None)]
    #[case::sign("-5S", None)]
    #[case::empty("", None)]
    fn reads_grpc_timeouts(#[case] value: &'static str, #[case] nanos: Option<u64>) {
        let value = HeaderValue::from_static(value);
        assert_eq!(grpc_timeout(&value), nanos.map(Duration::from_nanos));
    }

    #[test]
    fn a_call_waits_no_longer_than_its_grpc_deadline() {
        let wait = |timeout| {
            let headers = [(GRPC_TIMEOUT, HeaderValue::from_static(timeout))];
            let second = Duration::from_secs(1);
            budget(second, second, &HeaderMap::from_iter(headers))
        };
        assert_eq!(wait("300m"), Duration::from_millis(300));
        assert_eq!(wait("5S"), Duration::from_secs(1));
    }
}
