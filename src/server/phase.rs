//! How far a gateway is on its way to its end. The main thread sets the phase; every connection watches it.

use std::time::Duration;

/// After SIGTERM a connection stays open for 1 s, so that a client that was about to use it still gets an answer with
/// `Connection: close`. A refused client gets the same second to read its answer.
pub(super) const LINGER: Duration = Duration::from_secs(1);

/// How far a gateway is on its way to its end. Phases follow each other in this order and never return.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    /// The gateway accepts connections and requests.
    Running,
    /// The gateway accepts no connection. Open connections finish their requests and may begin further ones.
    Draining,
    /// [`LINGER`] after the signal: connections without a request are closed.
    ClosingIdle,
    /// Half a second before the end of `drain_timeout`, or a quarter of a shorter one: WebSockets get a close frame.
    ClosingTunnels,
    /// `drain_timeout` after the signal: every connection is closed, in the middle of a response if need be.
    Aborting,
}
