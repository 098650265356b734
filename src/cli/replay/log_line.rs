//! One line of an access log as a request: the gateway's JSON lines, and nginx's combined format. Never decides it.

use crate::{
    algorithm::{Micros, fair::Priority},
    key::Template,
};
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Uri,
    header::{HOST, REFERER, USER_AGENT},
};
use jiff::{Timestamp, fmt::strtime};
use serde_json::Value;
use std::net::IpAddr;

/// The form of an access line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LogFormat {
    /// The access log of the gateway with `access_log: json`.
    Json,
    /// The format `combined` of nginx and Apache.
    Combined,
}

/// A request as a log has it.
#[derive(Debug)]
pub(super) struct LoggedRequest {
    pub(super) format: LogFormat,
    /// When it arrived, µs since 1970. The combined format has whole seconds, of the end of the request.
    pub(super) at: Micros,
    pub(super) method: Method,
    pub(super) uri: Uri,
    pub(super) host: Option<String>,
    pub(super) client: IpAddr,
    /// The fields that the log has.
    pub(super) headers: HeaderMap,
    /// The time that the upstream took, µs; 0 if the log does not say it.
    pub(super) took: Micros,
    pub(super) recorded: LoggedEnding,
    /// How long it waited, µs; `None` if the log does not say it.
    pub(super) waited: Option<Micros>,
    /// The limiter that bound it.
    pub(super) limiter: Option<String>,
    /// Its tenant at that limiter, if the log says it.
    pub(super) tenant: Option<String>,
    /// Its priority among those that waited, if the log says it.
    pub(super) priority: Option<Priority>,
}

/// The end of a request, in a log or in a replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LoggedEnding {
    Passed,
    Waited,
    /// Limiters, a pause or a full queue refused it.
    Refused,
    /// It never reached a limiter, or ended for another reason.
    Other,
}

/// A line that is no request that could be decided.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LineError {
    /// The line is broken, with the reason.
    Bad(String),
    /// The gateway logged bytes that were no request.
    NoRequest,
}

// === impl LogFormat ===

impl LogFormat {
    /// Whether a log of this form lacks parts of requests that the template reads.
    pub(super) fn lacks(self, template: &Template) -> bool {
        let has = |header: &str| match self {
            Self::Json => header == "host",
            Self::Combined => matches!(header, "referer" | "user-agent"),
        };
        let lacks_host = self == Self::Combined && template.text().contains("{host}");
        lacks_host || template.reads_body() || template.headers().any(|name| !has(name.as_str()))
    }
}

// === impl LoggedRequest ===

impl LoggedRequest {
    /// Reads a line.
    ///
    /// # Errors
    ///
    /// The reason, or [`LineError::NoRequest`] for a line without a request.
    pub(super) fn parse(line: &str) -> Result<Self, LineError> {
        if line.trim_start().starts_with('{') { json(line) } else { combined(line) }
    }
}

fn bad(reason: impl Into<String>) -> LineError {
    LineError::Bad(reason.into())
}

fn json(line: &str) -> Result<LoggedRequest, LineError> {
    let line: Value =
        serde_json::from_str(line).map_err(|error| bad(format!("no JSON: {error}")))?;
    let text = |name: &str| line[name].as_str();
    let need = |name: &str| text(name).ok_or_else(|| bad(format!("no `{name}`")));
    let micros = |name: &str| line[name].as_f64().map(|millis| (millis.max(0.0) * 1e3) as Micros);
    let (method, path) = (need("method")?, need("path")?);
    if method == "-" || path == "-" {
        return Err(LineError::NoRequest);
    }
    let time = need("timestamp")?;
    let time: Timestamp = time.parse().map_err(|_| bad("`timestamp` is no time"))?;
    let target = match text("query") {
        Some(query) => format!("{path}?{query}"),
        None => path.to_owned(),
    };
    let client = need("client")?.parse().map_err(|_| bad("`client` is no address"))?;
    let (waited, took) = (micros("wait_ms"), micros("upstream_ms").unwrap_or_default());
    let recorded = match need("outcome")? {
        "passed" | "observed" => LoggedEnding::Passed,
        "waited" => LoggedEnding::Waited,
        "refused" | "throttled" | "paused" | "queue-full" | "queue_full" => LoggedEnding::Refused,
        _ => LoggedEnding::Other,
    };
    let host = text("host").map(str::to_owned);
    let mut headers = HeaderMap::new();
    insert(&mut headers, HOST, host.as_deref());
    Ok(LoggedRequest {
        format: LogFormat::Json,
        // The line is written at the end of the answer; before the gateway wrote `total_ms`, at its beginning.
        at: time.as_microsecond() - micros("total_ms").unwrap_or(waited.unwrap_or_default() + took),
        method: method_of(method)?,
        uri: target_of(&target)?,
        host,
        client,
        headers,
        took,
        recorded,
        waited,
        limiter: text("limiter").filter(|name| *name != "-").map(str::to_owned),
        tenant: text("tenant").map(str::to_owned),
        priority: text("priority")
            .and_then(|name| Priority::ALL.into_iter().find(|it| it.name() == name)),
    })
}

/// Reads `IP - USER [TIME] "REQUEST" STATUS BYTES "REFERER" "USER AGENT"`.
fn combined(line: &str) -> Result<LoggedRequest, LineError> {
    const FORM: &str = "neither JSON nor nginx's combined format";
    let (client, rest) = line.split_once(' ').ok_or_else(|| bad(FORM))?;
    let client = client.parse().map_err(|_| bad(format!("{FORM}: it begins with no address")))?;
    let (_, rest) = rest.split_once('[').ok_or_else(|| bad(format!("{FORM}: no `[TIME]`")))?;
    let (time, rest) = rest.split_once(']').ok_or_else(|| bad(format!("{FORM}: no `[TIME]`")))?;
    let time = strtime::parse("%d/%b/%Y:%H:%M:%S %z", time);
    let time = time.and_then(|time| time.to_timestamp());
    let time = time.map_err(|_| bad("the text in `[...]` is no time"))?;
    let mut quoted = rest.split('"');
    let request = quoted.nth(1).ok_or_else(|| bad(format!("{FORM}: no request")))?;
    let status = quoted.next().and_then(|text| text.split_whitespace().next());
    let (referer, agent) = (quoted.next(), quoted.nth(1));
    if matches!(request, "" | "-") || request.starts_with("\\x") {
        return Err(LineError::NoRequest);
    }
    let mut words = request.split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next());
    let target = target.ok_or_else(|| bad("the request has no target"))?;
    let recorded = match status.and_then(|status| status.parse::<u16>().ok()) {
        Some(429) => LoggedEnding::Refused,
        Some(_) => LoggedEnding::Passed,
        None => return Err(bad("no status")),
    };
    let mut headers = HeaderMap::new();
    let known = |value: Option<&'_ str>| value.filter(|value| *value != "-").map(str::to_owned);
    insert(&mut headers, REFERER, known(referer).as_deref());
    insert(&mut headers, USER_AGENT, known(agent).as_deref());
    Ok(LoggedRequest {
        format: LogFormat::Combined,
        at: time.as_microsecond(),
        method: method_of(method)?,
        uri: target_of(target)?,
        host: None,
        client,
        headers,
        took: 0,
        recorded,
        waited: None,
        limiter: None,
        tenant: None,
        priority: None,
    })
}

fn insert(headers: &mut HeaderMap, name: HeaderName, value: Option<&str>) {
    if let Some(value) = value.and_then(|value| HeaderValue::from_str(value).ok()) {
        headers.insert(name, value);
    }
}

fn method_of(text: &str) -> Result<Method, LineError> {
    Method::from_bytes(text.as_bytes()).map_err(|_| bad("the method is none"))
}

fn target_of(text: &str) -> Result<Uri, LineError> {
    text.parse().map_err(|_| bad("the path is none"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    const JSON: &str = r#"{"timestamp":"2026-11-23T10:00:02.500000Z","client":"10.0.0.1","method":"GET","host":"a:80","path":"/search","query":"q=1","route":"search","limiter":"shop","outcome":"waited","wait_ms":400.5,"upstream_ms":99.5,"status":200}"#;
    const COMBINED: &str = r#"10.0.0.1 - - [23/Nov/2026:11:00:02 +0100] "GET /search?q=1 HTTP/1.1" 200 12 "-" "curl/8""#;

    #[test]
    fn a_line_of_the_gateway_is_a_request_at_its_arrival() {
        let read = LoggedRequest::parse(JSON).expect("a request");
        assert_eq!(read.at % 60_000_000, 2_000_000);
        assert_eq!((read.took, read.waited), (99_500, Some(400_500)));
        assert_eq!(
            (read.uri.to_string(), read.recorded),
            ("/search?q=1".into(), LoggedEnding::Waited)
        );
        assert_eq!((read.limiter.as_deref(), read.host.as_deref()), (Some("shop"), Some("a:80")));
    }

    #[test]
    fn a_combined_line_has_the_same_instant_in_whole_seconds() {
        let read = LoggedRequest::parse(COMBINED).expect("a request");
        let other = LoggedRequest::parse(JSON).expect("a request");
        assert_eq!(read.at, other.at);
        assert_eq!(read.headers[USER_AGENT], "curl/8");
        assert_eq!((read.headers.len(), read.recorded), (1, LoggedEnding::Passed));
    }

    #[rstest]
    #[case::cut(&JSON[..60], "no JSON")]
    #[case::an_event(
        r#"{"timestamp":"2026-11-23T10:00:02Z","message":"listening"}"#,
        "no `method`"
    )]
    #[case::no_time(r#"{"timestamp":"x","client":"::1","method":"GET","path":"/"}"#, "no time")]
    #[case::text("GET / 200", "neither JSON nor nginx's combined format")]
    #[case::another_month(
        "::1 - - [23/Foo/2026:11:00:02 +0100] \"GET / HTTP/1.1\" 200 1",
        "no time"
    )]
    #[case::no_target("::1 - - [23/Nov/2026:11:00:02 +0100] \"GET\" 200 1", "no target")]
    #[case::cut_combined("::1 - - [23/Nov/2026:11:00:02 +0100] \"GET / HT", "no status")]
    fn bad_lines_have_a_reason(#[case] line: &str, #[case] expected: &str) {
        let Err(LineError::Bad(reason)) = LoggedRequest::parse(line) else { panic!("{line}") };
        assert!(reason.contains(expected), "{reason}");
    }

    #[test]
    fn a_logged_line_without_a_request_is_an_error() {
        let bytes = r#"::1 - - [23/Nov/2026:11:00:02 +0100] "\x16\x03" 400 1 "-" "-""#;
        let tunnel = r#"{"method":"CONNECT","host":"a:443","path":"-","outcome":"passed"}"#;
        for line in [bytes, tunnel] {
            assert_eq!(LoggedRequest::parse(line).err(), Some(LineError::NoRequest));
        }
    }
}
