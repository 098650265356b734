//! The upstream side: finds the addresses of an upstream, keeps connections to them, sends requests and reads responses.
//! It never sends a request again that the upstream may have acted upon, follows no redirect and changes no body.

mod balance;
mod body;
mod by_host;
mod checks;
mod cluster;
mod connect;
mod connection;
mod deadline;
mod direct;
mod error;
mod exchange;
pub mod forwarded;
mod h1;
mod h2;
pub mod headers;
mod health;
mod names;
mod off_limits;
mod origin;
mod pool;
mod request_boundary;
mod response;
mod sockets;
mod stream;
mod target;
mod tls;
mod upload;
mod via;
mod wire;

pub use crate::tls::client::{ClientTls, TrustError};
pub use balance::AddressStatus;
pub use body::ResponseBody;
pub use by_host::{HostPoolError, HostPools, HostSettings};
pub use cluster::{AddressMetrics, Cluster, ClusterSettings, Timeouts};
pub use connection::Connection;
pub use direct::{DirectConnection, DirectError, DirectRoute, DirectTerms};
pub use error::{UpstreamError, WireError};
pub use exchange::{Answered, RequestExtras, Resend, Sent, move_host};
#[cfg(fuzzing)]
pub use h1::fuzzing;
pub use h1::{Tunnel, is_idempotent};
pub use health::HealthCheck;
pub use names::follow;
pub use off_limits::{METADATA, OffLimits};
pub use origin::UrlOrigin;
pub use pool::{PendingConnection, Pool};
pub use request_boundary::RequestBoundary;
pub use sockets::Sockets;
pub use target::Target;
pub(crate) use target::has_valid_port;
pub use upload::{
    BodyLine, JsonReading, KeptBuffer, KeptBytes, KeptShare, Replay, RequestBody, UnrequestedBody,
    Upload, UploadControl, UploadError, UploadLimits,
};
pub use via::Via;
