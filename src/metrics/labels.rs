//! Words of the labels that requests and connections are counted by: closed sets, the same in the access log.

/// Declares closed sets: each value with its word.
macro_rules! words {
    ($($(#[doc = $doc:literal])+ $set:ident { $($(#[doc = $of:literal])+ $value:ident = $word:literal,)+ })+) => {$(
        $(#[doc = $doc])+
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum $set { $($(#[doc = $of])+ $value),+ }

        impl $set {
            /// All of them, in the order of their declaration.
            pub const ALL: [Self; [$($word),+].len()] = [$(Self::$value),+];

            /// The label.
            pub fn name(self) -> &'static str {
                match self { $(Self::$value => $word),+ }
            }
        }
    )+};
}

words! {
    /// The way in which a request ended: the label `outcome`, and the same word in the access log.
    Outcome {
        /// The request was forwarded at once.
        Passed = "passed",
        /// The request was held, and forwarded when its slot came.
        Waited = "waited",
        /// The request was forwarded, although a limiter in `mode: observe` would have held or refused it.
        Observed = "observed",
        /// The limiters had no slot within the time that the request may wait: 429.
        Refused = "refused",
        /// The upstream has refused calls, and the limiters are paused for longer than the request may wait: 429.
        Throttled = "throttled",
        /// An operator has paused a limiter for longer than the request may wait: 429.
        Paused = "paused",
        /// Too many requests wait on the route already, or too many clients are connected: 503.
        QueueFull = "queue_full",
        /// The gateway stops before the slot of the request: 503.
        Draining = "draining",
        /// No route matches the request: 404.
        NoRoute = "no_route",
        /// The request cannot be forwarded as it is: 400, 405, 408, 413 and the like.
        BadRequest = "bad_request",
        /// The store gave no decision, and the limiter has `on_failure: reject`: 503.
        StoreUnavailable = "store_unavailable",
        /// A limiter of the route is neither in the file nor a row of `limits_from`: 503.
        LimiterMissing = "limiter_missing",
        /// The upstream gave no valid response: 502 or 504.
        UpstreamFailed = "upstream_failed",
        /// The client closed its connection before the response.
        Cancelled = "cancelled",
    }

    /// The decision of a limiter: the label `decision`. If a request waits and asks again, the greatest of its decisions counts.
    Verdict {
        /// The request is forwarded now.
        Pass = "pass",
        /// The request is held until its slot comes.
        Wait = "wait",
        /// No slot comes within the time that the request may wait.
        Refuse = "refuse",
        /// A limiter in `mode: observe` would have let the request pass.
        WouldPass = "would_pass",
        /// A limiter in `mode: observe` would have held the request.
        WouldWait = "would_wait",
        /// A limiter in `mode: observe` would have refused the request.
        WouldRefuse = "would_refuse",
    }

    /// The result of a refusal by an upstream for the refused request: the label `result`. Each refusal has one.
    RetryResult {
        /// The request was sent again, and the upstream did not refuse it.
        Answered = "answered",
        /// The request was sent again, and the upstream refused it again.
        Throttled = "throttled",
        /// The request had a slot for another attempt, and got no answer of the upstream.
        Failed = "failed",
        /// No slot came within the time that the request may wait; the client got the refusal.
        NoSlot = "no_slot",
        /// The request was sent as often as `retry.attempts` allows; the client got the refusal.
        Exhausted = "exhausted",
        /// The request may not be sent twice, or its body is not kept; the client got the refusal.
        NotRepeatable = "not_repeatable",
        /// The client left before the request was sent again.
        Cancelled = "cancelled",
    }

    /// The reason for which a request left an account: the label `reason`.
    MoveReason {
        /// The vendor has refused a call, and another account has an earlier slot.
        Refused = "refused",
        /// The vendor has rejected the account.
        Parked = "parked",
        /// Its address could not be reached.
        Unreachable = "unreachable",
        /// The answer has a status after which another account takes the request.
        Failed = "failed",
    }

    /// The protocol of a client's connection: the label `protocol`.
    Protocol {
        /// HTTP/1.0 and HTTP/1.1, in clear text or over TLS.
        Http1 = "http1",
        /// HTTP/2, in clear text or over TLS.
        Http2 = "http2",
        /// A connection that was HTTP/1.1 before its upgrade, such as a WebSocket.
        Tunnel = "tunnel",
    }

    /// The reason for which the gateway ended a client's connection: the label `reason`.
    Refusal {
        /// `client.max_connections` connections are open already.
        Limit = "limit",
        /// The client's address has `client.max_connections_per_address` connections open already.
        Address = "address",
        /// The TLS handshake failed, or the client showed no certificate that the gateway trusts.
        Tls = "tls",
        /// A trusted proxy did not begin the connection with a PROXY protocol header.
        ProxyProtocol = "proxy_protocol",
        /// The client did not complete a request, or the handshake, within `client.header_timeout`.
        HeaderTimeout = "header_timeout",
        /// The client read nothing of a response for `client.body_timeout`.
        Stalled = "stalled",
        /// The client broke a rule of HTTP/2 or sent more frames than a limit allows.
        Http2 = "http2",
    }
}
