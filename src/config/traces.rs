//! The settings of `tracing`: the collector of traces, and the requests that are traced.

use super::keys::Choice;
use crate::upstream::has_valid_port;
use http::Uri;
use std::fmt;

/// Traces of requests, which an OpenTelemetry collector receives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TracingConfig {
    /// The collector.
    pub collector: CollectorUrl,
    /// The part of the requests without a trace of their own that is traced.
    pub sample: SampleRatio,
}

/// The place and the protocol of a collector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CollectorUrl {
    /// The URL, for HTTP with the path to which spans are posted.
    pub url: String,
    /// The protocol that the collector speaks.
    pub protocol: OtlpProtocol,
}

/// A way to send spans, each with its usual port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OtlpProtocol {
    /// OTLP over gRPC, on port 4317.
    Grpc,
    /// OTLP over HTTP with protobuf, on port 4318.
    Http,
}

/// A part of all requests, in millionths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SampleRatio(u32);

// === impl OtlpProtocol ===

impl Choice for OtlpProtocol {
    const CHOICES: &'static [(&'static str, Self)] = &[("grpc", Self::Grpc), ("http", Self::Http)];
}

// === impl CollectorUrl ===

impl CollectorUrl {
    /// The path of spans over HTTP (OTLP specification, "OTLP/HTTP Request").
    const PATH: &str = "/v1/traces";

    /// Reads the URL of a collector. Without a `protocol`, port 4318 and a path mean HTTP.
    ///
    /// # Errors
    ///
    /// The reason, worded so that it completes a sentence that begins with the text.
    pub fn parse(text: &str, protocol: Option<OtlpProtocol>) -> Result<Self, String> {
        const FORM: &str = "is no URL of a collector, such as `http://collector:4317`";
        let uri: Uri = text.parse().map_err(|_| FORM.to_owned())?;
        let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
            return Err(FORM.into());
        };
        if !matches!(scheme, "http" | "https") || authority.host().is_empty() {
            return Err(FORM.into());
        }
        if authority.as_str().contains('@') || uri.query().is_some() {
            let reason = "holds credentials or a query; headers for a collector are written into \
                          the environment variable OTEL_EXPORTER_OTLP_HEADERS";
            return Err(reason.into());
        }
        if !has_valid_port(authority) {
            return Err("has a port that is 0 or above 65535".into());
        }
        let has_path = uri.path() != "/";
        let is_http = has_path || authority.port_u16() == Some(4318);
        let otherwise = if is_http { OtlpProtocol::Http } else { OtlpProtocol::Grpc };
        let protocol = protocol.unwrap_or(otherwise);
        match protocol {
            OtlpProtocol::Grpc if has_path => {
                Err("has a path, which gRPC does not; or write `protocol: http`".into())
            }
            OtlpProtocol::Http if scheme == "https" => {
                Err("is https, which needs `protocol: grpc`".into())
            }
            _ => {
                let path = if has_path { uri.path() } else { Self::PATH };
                let path = if protocol == OtlpProtocol::Http { path } else { "" };
                Ok(Self { url: format!("{scheme}://{authority}{path}"), protocol })
            }
        }
    }
}

impl fmt::Display for CollectorUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.url)
    }
}

// === impl SampleRatio ===

impl SampleRatio {
    const ALL: u32 = 1_000_000;

    /// Reads a number from 0 to 1.
    ///
    /// # Errors
    ///
    /// The reason, worded so that it completes a sentence that begins with the text.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        match text.parse::<f64>() {
            Ok(part) if (0.0..=1.0).contains(&part) => {
                Ok(Self((part * f64::from(Self::ALL)).round() as u32))
            }
            _ => Err("is no part of all requests: write 0 to 1, as in `0.01`"),
        }
    }

    /// Whether a trace with this random number is one of the part.
    pub fn takes(self, random: u64) -> bool {
        u128::from(random) * u128::from(Self::ALL) < u128::from(self.0) << 64
    }
}

impl Default for SampleRatio {
    fn default() -> Self {
        Self(Self::ALL / 100)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::grpc("http://collector:4317", None, Ok("http://collector:4317 Grpc"))]
    #[case::grpc_over_tls("https://collector:4317/", None, Ok("https://collector:4317 Grpc"))]
    #[case::http_by_port("http://c:4318", None, Ok("http://c:4318/v1/traces Http"))]
    #[case::http_by_path("http://c/otlp/v1/traces", None, Ok("http://c/otlp/v1/traces Http"))]
    #[case::http_by_key("http://c:1", Some(OtlpProtocol::Http), Ok("http://c:1/v1/traces Http"))]
    #[case::grpc_by_key("http://c:4318", Some(OtlpProtocol::Grpc), Ok("http://c:4318 Grpc"))]
    #[case::grpc_with_a_path("http://c/x", Some(OtlpProtocol::Grpc), Err("has a path"))]
    #[case::http_over_tls("https://c:4318", None, Err("is https"))]
    #[case::no_port("http://c:99999", None, Err("has a port"))]
    #[case::no_scheme("collector:4317", None, Err("is no URL"))]
    #[case::other_scheme("grpc://collector:4317", None, Err("is no URL"))]
    #[case::credentials("http://a:b@c:4317", None, Err("holds credentials"))]
    fn reads_collector_urls(
        #[case] text: &str,
        #[case] protocol: Option<OtlpProtocol>,
        #[case] expected: Result<&str, &str>,
    ) {
        match (CollectorUrl::parse(text, protocol), expected) {
            (Ok(url), Ok(expected)) => assert_eq!(format!("{url} {:?}", url.protocol), expected),
            (Err(reason), Err(start)) => assert!(reason.starts_with(start), "{reason}"),
            (found, _) => panic!("{found:?}"),
        }
    }

    #[rstest]
    #[case::none("0", [false, false, false])]
    #[case::half("0.5", [true, false, false])]
    #[case::nearly_all("0.999999", [true, true, false])]
    #[case::all("1", [true, true, true])]
    fn a_ratio_samples_its_part(#[case] text: &str, #[case] taken: [bool; 3]) {
        let ratio = SampleRatio::parse(text).expect("a part");
        assert_eq!([0, u64::MAX / 2 + 1, u64::MAX].map(|random| ratio.takes(random)), taken);
    }

    #[rstest]
    #[case("")]
    #[case("1%")]
    #[case("-0.1")]
    #[case("1.1")]
    #[case("NaN")]
    fn refuses_texts_that_are_no_ratio(#[case] text: &str) {
        assert!(SampleRatio::parse(text).is_err());
    }
}
