//! Words of the labels that requests and connections are counted by: closed sets, the same in the access log.

/// What became of a request; the `outcome` label and the word in the access log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Forwarded at once.
    Passed,
    /// Forwarded when its slot had come.
    Waited,
    /// Forwarded, though a limiter in `mode: observe` would have held or refused it.
    Observed,
    /// 429: no slot within its budget.
    Refused,
    /// 503: too many wait already.
    QueueFull,
    /// 503: the gateway stops before its slot comes.
    Draining,
    /// 404: no route matches.
    NoRoute,
    /// 400, 408, 413: a request that cannot be forwarded.
    BadRequest,
    /// 503: the store gave no decision.
    StoreUnavailable,
    /// 502, 504: the upstream gave no response.
    UpstreamFailed,
    /// The client left before the response.
    Cancelled,
}

/// What a limiter said; the `decision` label. The later ones say more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// Go now.
    Pass,
    /// Go later.
    Wait,
    /// Not within the budget.
    Refuse,
    /// As above, said by a limiter in `mode: observe`.
    WouldPass,
    /// As above, said by a limiter in `mode: observe`.
    WouldWait,
    /// As above, said by a limiter in `mode: observe`.
    WouldRefuse,
}

/// What a client speaks with us; the `protocol` label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.0 and 1.1.
    Http1,
    /// In clear text or over TLS.
    Http2,
    /// What was HTTP/1.1 before its upgrade.
    Tunnel,
}

/// Why a connection of a client was ended by us; the `reason` label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// `max_connections` are open.
    Limit,
    /// No agreement on TLS, or no certificate that is ours to trust.
    Tls,
    /// A trusted proxy that does not begin with its header.
    ProxyProtocol,
    /// No whole request, or handshake, within `header_timeout`.
    HeaderTimeout,
    /// It took nothing of a response within `body_timeout`.
    Stalled,
    /// It broke the rules of HTTP/2, or asked for too much.
    Http2,
}

// === impl Outcome ===

impl Outcome {
    /// All of them, in the order of their declaration.
    pub const ALL: [Self; 11] = [
        Self::Passed,
        Self::Waited,
        Self::Observed,
        Self::Refused,
        Self::QueueFull,
        Self::Draining,
        Self::NoRoute,
        Self::BadRequest,
        Self::StoreUnavailable,
        Self::UpstreamFailed,
        Self::Cancelled,
    ];

    /// The label.
    pub fn name(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Waited => "waited",
            Self::Observed => "observed",
            Self::Refused => "refused",
            Self::QueueFull => "queue_full",
            Self::Draining => "draining",
            Self::NoRoute => "no_route",
            Self::BadRequest => "bad_request",
            Self::StoreUnavailable => "store_unavailable",
            Self::UpstreamFailed => "upstream_failed",
            Self::Cancelled => "cancelled",
        }
    }
}

// === impl Verdict ===

impl Verdict {
    /// All of them, in the order of their declaration.
    pub const ALL: [Self; 6] =
        [Self::Pass, Self::Wait, Self::Refuse, Self::WouldPass, Self::WouldWait, Self::WouldRefuse];

    /// The label.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Wait => "wait",
            Self::Refuse => "refuse",
            Self::WouldPass => "would_pass",
            Self::WouldWait => "would_wait",
            Self::WouldRefuse => "would_refuse",
        }
    }
}

// === impl Protocol ===

impl Protocol {
    /// All of them, in the order of their declaration.
    pub const ALL: [Self; 3] = [Self::Http1, Self::Http2, Self::Tunnel];

    /// The label.
    pub fn name(self) -> &'static str {
        match self {
            Self::Http1 => "http1",
            Self::Http2 => "http2",
            Self::Tunnel => "tunnel",
        }
    }
}

// === impl Refusal ===

impl Refusal {
    /// All of them, in the order of their declaration.
    pub const ALL: [Self; 6] = [
        Self::Limit,
        Self::Tls,
        Self::ProxyProtocol,
        Self::HeaderTimeout,
        Self::Stalled,
        Self::Http2,
    ];

    /// The label.
    pub fn name(self) -> &'static str {
        match self {
            Self::Limit => "limit",
            Self::Tls => "tls",
            Self::ProxyProtocol => "proxy_protocol",
            Self::HeaderTimeout => "header_timeout",
            Self::Stalled => "stalled",
            Self::Http2 => "http2",
        }
    }
}
