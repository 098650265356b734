//! Finds in one pass which of the special fields a message has: testing a bit costs less than a search for each name.

use http::{HeaderMap, HeaderName};

/// A set of special fields that a message may have. It contains every field that the message has; `X-Forwarded-For` and
/// the like share a bit, so one that is absent may be in it, too.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct HeaderFlags(u32);

// === impl HeaderFlags ===

impl HeaderFlags {
    /// `Connection`.
    pub const CONNECTION: Self = Self(1);
    /// `TE`.
    pub const TE: Self = Self(1 << 1);
    /// `Transfer-Encoding`.
    pub const TRANSFER_ENCODING: Self = Self(1 << 2);
    /// `Upgrade`.
    pub const UPGRADE: Self = Self(1 << 3);
    /// `Keep-Alive`, `Proxy-Connection` and the others that are meant for one connection.
    pub const OTHER_HOP_BY_HOP: Self = Self(1 << 4);
    /// `Content-Length`.
    pub const CONTENT_LENGTH: Self = Self(1 << 5);
    /// `Expect`.
    pub const EXPECT: Self = Self(1 << 6);
    /// `Cookie`.
    pub const COOKIE: Self = Self(1 << 7);
    /// `Forwarded`, `X-Forwarded-*`.
    pub const FORWARDED: Self = Self(1 << 8);
    /// A name with `_`, which some origins read as `-`.
    pub const UNDERSCORE: Self = Self(1 << 9);
    /// `Prefer` and `Grpc-Timeout`, in which a client says how long it will wait.
    pub const PATIENCE: Self = Self(1 << 10);
    /// `X-Request-Id`.
    pub const REQUEST_ID: Self = Self(1 << 11);

    /// `Max-Forwards`.
    pub const MAX_FORWARDS: Self = Self(1 << 12);
    /// A name in which some proxies tell the address of the client, `X-Real-IP` for example.
    pub const CLIENT_ADDRESS: Self = Self(1 << 13);
    /// A name in which an upstream says what remains of a quota or when it may be called again, `X-RateLimit-Remaining` for
    /// example, or a gRPC status.
    pub const QUOTA: Self = Self(1 << 14);

    /// All fields that are meant for one connection (RFC 9110 section 7.6.1).
    pub const HOP_BY_HOP: Self = Self(
        Self::CONNECTION.0
            | Self::TE.0
            | Self::TRANSFER_ENCODING.0
            | Self::UPGRADE.0
            | Self::OTHER_HOP_BY_HOP.0,
    );

    /// Finds the special fields among the `headers` of a request, once for each message.
    pub fn of(headers: &HeaderMap) -> Self {
        let of_one = |name: &HeaderName| match Self::of_field(name) {
            Self(0) if name.as_str().as_bytes().contains(&b'_') => Self::UNDERSCORE,
            flag => flag,
        };
        Self(headers.keys().fold(0, |flags, name| flags | of_one(name).0))
    }

    /// The same for a response, whose names no origin reads, so that no `_` is looked for.
    pub fn of_response(headers: &HeaderMap) -> Self {
        Self(headers.keys().fold(0, |flags, name| flags | Self::of_field(name).0))
    }

    /// Adds these `fields` to the set.
    pub fn add(&mut self, fields: Self) {
        self.0 |= fields.0;
    }

    /// Whether the message may have one of these `fields`; false is certain.
    pub fn has(self, fields: Self) -> bool {
        self.0 & fields.0 != 0
    }

    /// The flag of a field with this name: none for most fields.
    pub fn of_field(name: &HeaderName) -> Self {
        let name = name.as_str();
        // The first letter selects the names to compare with, so that most fields need no comparison.
        match (name.as_bytes().first(), name) {
            (Some(b't'), "te") => Self::TE,
            (Some(b't'), "true-client-ip") => Self::CLIENT_ADDRESS,
            (Some(b't'), "transfer-encoding") => Self::TRANSFER_ENCODING,
            (Some(b'c'), "connection") => Self::CONNECTION,
            (Some(b'c'), "content-length") => Self::CONTENT_LENGTH,
            (Some(b'c'), "cookie") => Self::COOKIE,
            (Some(b'c'), "cf-connecting-ip" | "cf-connecting-ipv6" | "client-ip") => {
                Self::CLIENT_ADDRESS
            }
            (Some(b'a'), name) if name.starts_with("anthropic-ratelimit") => Self::QUOTA,
            (Some(b'e'), "expect") => Self::EXPECT,
            (Some(b'f'), "forwarded") => Self::FORWARDED,
            (Some(b'f'), "fastly-client-ip" | "fly-client-ip" | "forwarded-for") => {
                Self::CLIENT_ADDRESS
            }
            (Some(b'g'), "grpc-timeout") => Self::PATIENCE,
            (Some(b'g'), "grpc-status") => Self::QUOTA,
            (Some(b'k'), "keep-alive") => Self::OTHER_HOP_BY_HOP,
            (Some(b'm'), "max-forwards") => Self::MAX_FORWARDS,
            (Some(b'p'), "prefer") => Self::PATIENCE,
            (Some(b'p'), "proxy-authenticate" | "proxy-authorization" | "proxy-connection") => {
                Self::OTHER_HOP_BY_HOP
            }
            (Some(b'o'), name) if name.starts_with("opik-") => Self::QUOTA,
            (Some(b'r'), name) if name.starts_with("ratelimit") => Self::QUOTA,
            (Some(b's'), "sforce-limit-info") => Self::QUOTA,
            (Some(b'u'), "upgrade") => Self::UPGRADE,
            (Some(b'x'), "x-request-id") => Self::REQUEST_ID,
            (
                Some(b'x'),
                "x-real-ip"
                | "x-client-ip"
                | "x-cluster-client-ip"
                | "x-forwarded"
                | "x-original-forwarded-for"
                | "x-originating-ip"
                | "x-remote-ip"
                | "x-remote-addr"
                | "x-envoy-external-address",
            ) => Self::CLIENT_ADDRESS,
            (
                Some(b'x'),
                "x-forwarded-for" | "x-forwarded-host" | "x-forwarded-port" | "x-forwarded-proto",
            ) => Self::FORWARDED,
            (Some(b'x'), name) if is_quota(name) => Self::QUOTA,
            _ => Self(0),
        }
    }
}

/// Whether a name that begins with `x-` is one of a quota.
fn is_quota(name: &str) -> bool {
    // `x-ratelimit-remaining`, `x-rate-limit-reset`, `x-app-rate-limit`, `x-shopify-shop-api-call-limit`
    match name.as_bytes().get(2) {
        Some(b'r') => name.starts_with("x-rate"),
        Some(b'a') => name.starts_with("x-app-rate-limit") || name.starts_with("x-amzn-ratelimit"),
        Some(b'm') => name.starts_with("x-method-rate-limit"),
        Some(b's') => name == "x-shopify-shop-api-call-limit",
        Some(b'h') => name.starts_with("x-hubspot-ratelimit"),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::headers::names::{CLIENT_ADDRESSES, HOP_BY_HOP, KEPT};
    use http::HeaderValue;

    fn seen(names: &[&HeaderName]) -> HeaderFlags {
        let value = HeaderValue::from_static("x");
        HeaderFlags::of(&names.iter().map(|name| ((*name).clone(), value.clone())).collect())
    }

    #[test]
    fn every_hop_by_hop_header_is_flagged() {
        let connection = (HeaderFlags::CONNECTION, http::header::CONNECTION);
        for (flag, name) in HOP_BY_HOP.iter().chain([&connection]) {
            assert!(seen(&[name]).has(*flag), "{name}");
            assert!(flag.0 & !HeaderFlags::HOP_BY_HOP.0 == 0, "{name}");
        }
        for name in KEPT.iter() {
            assert!(!seen(&[name]).has(HeaderFlags::HOP_BY_HOP), "{name}");
        }
    }

    #[test]
    fn every_client_address_header_is_flagged() {
        for name in &CLIENT_ADDRESSES {
            assert!(seen(&[name]).has(HeaderFlags::CLIENT_ADDRESS), "{name}");
        }
        assert!(!seen(&[&http::header::ACCEPT]).has(HeaderFlags::CLIENT_ADDRESS));
    }

    #[test]
    fn a_flagged_header_is_found_among_many() {
        let names = ["host", "x_mine", "accept"].map(HeaderName::from_static);
        let seen = seen(&names.each_ref());
        assert!(seen.has(HeaderFlags::UNDERSCORE) && !seen.has(HeaderFlags::COOKIE));
    }
}
