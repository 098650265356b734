//! Words of the labels that requests and connections are counted by: closed sets, the same in the access log.

/// The way in which a request ended: the label `outcome`, and the same word in the access log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The request was forwarded at once.
    Passed,
    /// The request was held, and forwarded when its slot came.
    Waited,
    /// The request was forwarded, although a limiter in `mode: observe` would have held or refused it.
    Observed,
    /// The limiters had no slot within the time that the request may wait: 429.
    Refused,
    /// The upstream has refused calls, and the limiters are paused for longer than the request may wait: 429.
    Throttled,
    /// An operator has paused a limiter for longer than the request may wait: 429.
    Paused,
    /// Too many requests wait on the route already, or too many clients are connected: 503.
    QueueFull,
    /// The gateway stops before the slot of the request: 503.
    Draining,
    /// No route matches the request: 404.
    NoRoute,
    /// The request cannot be forwarded as it is: 400, 405, 408, 413 and the like.
    BadRequest,
    /// The store gave no decision, and the limiter has `on_failure: reject`: 503.
    StoreUnavailable,
    /// A limiter of the route is neither in the file nor a row of `limits_from`: 503.
    LimiterMissing,
    /// The upstream gave no valid response: 502 or 504.
    UpstreamFailed,
    /// The client closed its connection before the response.
    Cancelled,
}

/// The decision of a limiter: the label `decision`. If a request waits and asks again, the greatest of its decisions counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// The request is forwarded now.
    Pass,
    /// The request is held until its slot comes.
    Wait,
    /// No slot comes within the time that the request may wait.
    Refuse,
    /// A limiter in `mode: observe` would have let the request pass.
    WouldPass,
    /// A limiter in `mode: observe` would have held the request.
    WouldWait,
    /// A limiter in `mode: observe` would have refused the request.
    WouldRefuse,
}

/// The result of a refusal by an upstream for the refused request: the label `result`. Each refusal has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryResult {
    /// The request was sent again, and the upstream did not refuse it.
    Answered,
    /// The request was sent again, and the upstream refused it again.
    Throttled,
    /// The request had a slot for another attempt, and got no answer of the upstream.
    Failed,
    /// No slot came within the time that the request may wait; the client got the refusal.
    NoSlot,
    /// The request was sent as often as `retry.attempts` allows; the client got the refusal.
    Exhausted,
    /// The request may not be sent twice, or its body is not kept; the client got the refusal.
    NotRepeatable,
    /// The client left before the request was sent again.
    Cancelled,
}

/// The protocol of a client's connection: the label `protocol`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.0 and HTTP/1.1, in clear text or over TLS.
    Http1,
    /// HTTP/2, in clear text or over TLS.
    Http2,
    /// A connection that was HTTP/1.1 before its upgrade, such as a WebSocket.
    Tunnel,
}

/// The reason for which the gateway ended a client's connection: the label `reason`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// `client.max_connections` connections are open already.
    Limit,
    /// The client's address has `client.max_connections_per_address` connections open already.
    Address,
    /// The TLS handshake failed, or the client showed no certificate that the gateway trusts.
    Tls,
    /// A trusted proxy did not begin the connection with a PROXY protocol header.
    ProxyProtocol,
    /// The client did not complete a request, or the handshake, within `client.header_timeout`.
    HeaderTimeout,
    /// The client read nothing of a response for `client.body_timeout`.
    Stalled,
    /// The client broke a rule of HTTP/2 or sent more frames than a limit allows.
    Http2,
}

// === impl Outcome ===

impl Outcome {
    /// All of them, in the order of their declaration.
    pub const ALL: [Self; 14] = [
        Self::Passed,
        Self::Waited,
        Self::Observed,
        Self::Refused,
        Self::Throttled,
        Self::Paused,
        Self::QueueFull,
        Self::Draining,
        Self::NoRoute,
        Self::BadRequest,
        Self::StoreUnavailable,
        Self::LimiterMissing,
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
            Self::Throttled => "throttled",
            Self::Paused => "paused",
            Self::QueueFull => "queue_full",
            Self::Draining => "draining",
            Self::NoRoute => "no_route",
            Self::BadRequest => "bad_request",
            Self::StoreUnavailable => "store_unavailable",
            Self::LimiterMissing => "limiter_missing",
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

// === impl RetryResult ===

impl RetryResult {
    /// All of them, in the order of their declaration.
    pub const ALL: [Self; 7] = [
        Self::Answered,
        Self::Throttled,
        Self::Failed,
        Self::NoSlot,
        Self::Exhausted,
        Self::NotRepeatable,
        Self::Cancelled,
    ];

    /// The label.
    pub fn name(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::Throttled => "throttled",
            Self::Failed => "failed",
            Self::NoSlot => "no_slot",
            Self::Exhausted => "exhausted",
            Self::NotRepeatable => "not_repeatable",
            Self::Cancelled => "cancelled",
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
    pub const ALL: [Self; 7] = [
        Self::Limit,
        Self::Address,
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
            Self::Address => "address",
            Self::Tls => "tls",
            Self::ProxyProtocol => "proxy_protocol",
            Self::HeaderTimeout => "header_timeout",
            Self::Stalled => "stalled",
            Self::Http2 => "http2",
        }
    }
}
