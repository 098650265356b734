//! Reads how long a server asks its callers to stay away. Has no clock.

use http::{
    HeaderMap, StatusCode,
    header::{DATE, RETRY_AFTER},
};
use std::time::Duration;

/// How long the server asks its callers to stay away: the `Retry-After` of a 429 or a 503, in seconds or as the time from
/// the response's `Date` on (RFC 9110 section 10.2.3). `None` for other responses, and without such a field.
///
/// ```
/// use http::{HeaderMap, StatusCode};
/// use paceway_limit::retry_after;
/// use std::time::Duration;
///
/// let mut headers = HeaderMap::new();
/// headers.insert("retry-after", "30".parse()?);
/// assert_eq!(retry_after(StatusCode::TOO_MANY_REQUESTS, &headers), Some(Duration::from_secs(30)));
/// assert_eq!(retry_after(StatusCode::OK, &headers), None);
/// # Ok::<(), http::header::InvalidHeaderValue>(())
/// ```
pub fn retry_after(status: StatusCode, headers: &HeaderMap) -> Option<Duration> {
    if !matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
        return None;
    }
    let text = |name| headers.get(name)?.to_str().ok().map(str::trim);
    let said = text(RETRY_AFTER)?;
    if let Ok(seconds) = said.parse() {
        return Some(Duration::from_secs(seconds));
    }
    // The clock of this process may differ from that of the server, so the server's own date counts.
    let (until, now) = (httpdate::parse_http_date(said).ok()?, text(DATE)?);
    until.duration_since(httpdate::parse_http_date(now).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::seconds(429, "7", "", Some(7))]
    #[case::of_a_closed_service(503, " 120 ", "", Some(120))]
    #[case::a_date(429, "Sun, 06 Nov 1994 08:49:37 GMT", "Sun, 06 Nov 1994 08:49:07 GMT", Some(30))]
    #[case::a_date_that_is_past(
        429,
        "Sun, 06 Nov 1994 08:49:07 GMT",
        "Sun, 06 Nov 1994 08:49:37 GMT",
        None
    )]
    #[case::a_date_without_a_clock(429, "Sun, 06 Nov 1994 08:49:37 GMT", "", None)]
    #[case::no_time(429, "soon", "", None)]
    #[case::a_negative_time(429, "-1", "", None)]
    #[case::another_status(302, "7", "", None)]
    fn reads_how_long_a_server_asks_to_stay_away(
        #[case] status: u16,
        #[case] said: &str,
        #[case] date: &str,
        #[case] seconds: Option<u64>,
    ) {
        let mut headers = HeaderMap::new();
        headers.insert(RETRY_AFTER, said.parse().unwrap());
        if !date.is_empty() {
            headers.insert(DATE, date.parse().unwrap());
        }
        let status = StatusCode::from_u16(status).unwrap();
        assert_eq!(retry_after(status, &headers), seconds.map(Duration::from_secs));
    }
}
