//! Carries the facts about a request from the proxy to the rules for its headers. Decides nothing.

use http::{HeaderValue, Version};

static HTTP: HeaderValue = HeaderValue::from_static("http");
static HTTPS: HeaderValue = HeaderValue::from_static("https");

/// The facts about a request, beside its headers, that decide which fields the upstream receives.
#[derive(Debug)]
pub struct ForwardContext<'a> {
    /// The address of the peer, as `X-Forwarded-For` writes it.
    pub peer: &'a HeaderValue,
    /// The port that the peer connected to, for `X-Forwarded-Port`.
    pub port: &'a HeaderValue,
    /// Whether the request came over TLS, for `X-Forwarded-Proto`.
    pub is_tls: bool,
    /// Whether the peer is one of `trusted_proxies`, so that its forwarding fields are kept and extended.
    pub is_trusted: bool,
    /// The HTTP version in which the request came, for `Via`.
    pub version: Version,
    /// The host that the client asks for: the authority of an absolute target, or its field `Host`.
    pub host: Option<HeaderValue>,
    /// Whether it is such an authority, which outranks the field `Host` (RFC 9112 section 3.2.2).
    pub replaces_host: bool,
    /// The `Host` that the upstream's URL names.
    pub upstream_host: &'a HeaderValue,
    /// Whether the upstream gets the client's `Host` instead (`preserve_host`).
    pub preserve_host: bool,
    /// Whether the upstream gets the field `Forwarded` as well (RFC 7239).
    pub forwarded: bool,
    /// Whether the upstream sees no gateway: fields about proxies and clients are those that the client sent.
    pub is_unseen: bool,
    /// Whether the request has a body that has not ended yet, so that its framing must be written.
    pub is_open: bool,
    /// Whether the method is OPTIONS, for which `Max-Forwards` is counted down.
    pub is_options: bool,
}

// === impl ForwardContext ===

impl ForwardContext<'_> {
    /// The scheme in which the request came, `http` or `https`.
    pub fn proto(&self) -> &'static HeaderValue {
        if self.is_tls { &HTTPS } else { &HTTP }
    }
}
