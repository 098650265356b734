//! The record of a CONNECT to the forward proxy that leads to no request: it was refused, or its octets were passed on unread.
//! Reads nothing of a tunnel.

use super::{Proxy, access_line::ConnectLine};
use crate::{answer::Failure, metrics::Outcome, upstream::UrlOrigin};
use http::StatusCode;
use std::net::IpAddr;
use tokio::time::Instant;

/// The record of one CONNECT.
pub(crate) struct TunnelRecord {
    proxy: Proxy,
    client: IpAddr,
    /// The host and port that it names.
    host: String,
    started: Instant,
}

/// The octets that a tunnel has passed on.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct TunnelBytes {
    /// From the host to the client.
    pub(crate) sent: u64,
    /// From the client to the host.
    pub(crate) received: u64,
}

// === impl TunnelRecord ===

impl TunnelRecord {
    /// Begins the record of a CONNECT of `client` to the host of `origin`.
    pub(crate) fn begin(proxy: Proxy, client: IpAddr, origin: &UrlOrigin) -> Self {
        let (client, host) = (client.to_canonical(), origin.host_and_port());
        Self { proxy, client, host, started: Instant::now() }
    }

    /// Counts and logs a CONNECT that is refused for `failure`, with an answer of this status.
    pub(crate) fn refuse(self, failure: &Failure, status: StatusCode) {
        let outcome = failure.outcome();
        self.proxy.counters().no_route.requests.count(outcome);
        self.write(outcome, status, None);
    }

    /// Logs a tunnel that has ended.
    pub(crate) fn end(self, bytes: TunnelBytes) {
        self.write(Outcome::Passed, StatusCode::OK, Some(bytes));
    }

    fn write(&self, outcome: Outcome, status: StatusCode, bytes: Option<TunnelBytes>) {
        if self.proxy.0.plan.redactor.is_some() {
            let (client, host, took) = (self.client, &*self.host, self.started.elapsed());
            ConnectLine { client, host, outcome, status, took, bytes }.write();
        }
    }
}
