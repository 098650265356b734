//! The upstream: its connections, kept alive and ready before they are needed, and what can go wrong with
//! them. It repeats nothing that the upstream may have acted upon, follows nothing and changes no body.

mod balance;
mod body;
mod connect;
mod connection;
mod request_boundary;
pub mod forwarded;
mod h1;
mod h2;
pub mod headers;
mod names;
mod pool;
mod response;
mod cluster;
mod sockets;
mod stream;
mod tls;
mod upload;

pub use crate::tls::client::{ClientTls, TrustError};
pub use body::ResponseBody;
pub use cluster::{Cluster, ClusterSettings};
pub use connection::{Connection, Resend, Sent};
#[cfg(fuzzing)]
pub use h1::fuzzing;
pub use h1::{Tunnel, WireError};
pub use names::follow;
pub use pool::{PendingConnection, Pool};
pub use request_boundary::RequestBoundary;
pub use sockets::Sockets;
pub use upload::{UnrequestedBody, Upload, UploadControl, UploadError, UploadLimits};

use crate::tls::client::Chain;
use http::{HeaderValue, Uri, uri::PathAndQuery};
use metrics::{Counter, Gauge};
use std::{error::Error, time::Duration};

/// Where an upstream is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// `http://host:port` or `https://host:port`: what is connected to.
    pub origin: Uri,
    /// Its `Host`.
    pub host: HeaderValue,
    /// What every path is put behind; empty or `/v2`, never with a `/` at its end.
    pub base: String,
}

/// How long an upstream may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// To be connected, TLS included.
    pub connect: Duration,
    /// From the slot, or from the last piece of the request's body that it took, to the head of the response.
    pub response: Duration,
    /// A connection that was idle for so long is closed.
    pub idle: Duration,
}

/// Of the addresses of an upstream.
#[derive(Clone)]
pub struct AddressMetrics {
    /// Those that requests go to.
    pub up: Gauge,
    /// Those that are out for a time.
    pub ejected: Gauge,
    /// Times that one was put out.
    pub ejections: Counter,
}

/// Why there is no response.
#[derive(Debug, thiserror::Error)]
pub enum UpstreamError {
    /// No connection: refused, no such name, TLS.
    #[error("the upstream cannot be reached")]
    Connect(#[source] Box<dyn Error + Send + Sync>),
    /// No connection in time.
    #[error("the upstream did not accept a connection in time")]
    ConnectTimeout,
    /// A connection in time, but not the end of its TLS handshake.
    #[error(
        "the upstream accepted a connection and did not answer the TLS handshake in time; does it speak TLS on this port?"
    )]
    TlsTimeout,
    /// No head of a response in time.
    #[error("the upstream did not answer in time")]
    ResponseTimeout,
    /// It closed the connection, or what it said is not HTTP.
    #[error("the upstream broke off or did not speak HTTP")]
    Broken(#[source] WireError),
    /// It gave no answer to the first attempt, and the limiters had no permit for a second one.
    #[error(
        "the upstream gave no answer, and no permit for sending the request once more was free in time"
    )]
    Unpaid(#[source] WireError),
    /// It closed the connection before anything of the request was on its way.
    #[error("the upstream took no request")]
    Unsent(#[source] WireError),
    /// It said what no request of ours can be answered with.
    #[error("the upstream gave an answer that HTTP does not allow: {0}")]
    Invalid(&'static str),
}

// === impl Target ===

impl Default for Target {
    fn default() -> Self {
        Self {
            origin: Uri::from_static("http://localhost"),
            host: HeaderValue::from_static("localhost"),
            base: String::new(),
        }
    }
}

impl Target {
    /// Reads `http[s]://host[:port][/base/path]`.
    ///
    /// # Errors
    ///
    /// What is wrong, for behind "`TEXT` ".
    pub fn parse(url: &str) -> Result<Self, &'static str> {
        let uri: Uri = url.parse().map_err(|_| "is no URL, as in https://api.example/v2")?;
        let scheme = match uri.scheme_str() {
            Some(scheme @ ("http" | "https")) => scheme,
            _ => return Err("is no http:// or https:// URL"),
        };
        let authority = uri.authority().ok_or("names no host")?;
        if authority.as_str().contains('@') {
            return Err("holds credentials; the upstream would never see them");
        }
        if authority.host().is_empty() {
            return Err("names no host");
        }
        if uri.query().is_some() {
            return Err("has a query; only a base path can be put before requests");
        }
        let base = uri.path().trim_end_matches('/').to_owned();
        let origin = Uri::builder().scheme(scheme).authority(authority.clone()).path_and_query("/");
        Ok(Self {
            origin: origin.build().map_err(|_| "is no URL")?,
            host: HeaderValue::from_str(authority.as_str()).map_err(|_| "has no valid host")?,
            base,
        })
    }

    /// Whether it speaks TLS.
    pub fn is_https(&self) -> bool {
        self.origin.scheme_str() == Some("https")
    }

    /// The target of a request for `path`: as the client sent it, behind the base path.
    pub fn uri(&self, path: Option<&PathAndQuery>) -> Option<Uri> {
        let root = PathAndQuery::from_static("/");
        let path = path.unwrap_or(&root);
        // `*` is the server, behind whatever path (RFC 9112 section 3.2.4).
        if self.base.is_empty() || path.as_str() == "*" {
            return Some(Uri::from(path.clone()));
        }
        // An absolute target may have a query and no path.
        let slash = if path.as_str().starts_with('/') { "" } else { "/" };
        let joined = [&self.base, slash, path.as_str()].concat();
        PathAndQuery::try_from(joined).ok().map(Uri::from)
    }
}

// === impl Timeouts ===

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(2),
            response: Duration::from_secs(30),
            // Below the keep-alive of common origins (Node: 5 s): a connection that the origin closes first may
            // take a request down with it.
            idle: Duration::from_secs(4),
        }
    }
}

// === impl UpstreamError ===

impl UpstreamError {
    /// Whether the upstream cannot have seen anything of the request.
    pub fn is_unsent(&self) -> bool {
        matches!(self, Self::Connect(_) | Self::ConnectTimeout | Self::TlsTimeout | Self::Unsent(_))
    }
}
