//! The servers of a store that are sent the decision script, because they keep no functions: for `/readyz` and the log. It
//! decides nothing: connections find out, and note it here.

use crate::log::{Permit, Throttle};
use ahash::HashMap;
use parking_lot::Mutex;
use std::sync::Arc;

/// How many servers without a connection are remembered: those of a great Cluster.
const MOST: usize = 1000;
/// A server may have another reason for each connection.
static SCRIPTED: Throttle = Throttle::new();

/// The servers that are sent the script, by their addresses, with the number of connections over which they are. A server
/// without any stays, so that it is not named again in the log when it is connected to again.
#[derive(Debug, Default)]
pub struct ScriptedServers(Mutex<HashMap<Arc<str>, usize>>);

/// A connection over which a server is sent the script, until it is dropped.
pub(in crate::store) struct ScriptedConnection {
    servers: Arc<ScriptedServers>,
    server: Arc<str>,
}

// === impl ScriptedServers ===

impl ScriptedServers {
    /// Whether every server that is connected to keeps functions.
    pub fn is_empty(&self) -> bool {
        self.0.lock().values().all(|connections| *connections == 0)
    }

    /// Notes a connection to `server`, and names the server in the log if it is new here. `why` is what the server said;
    /// nothing if it was not asked.
    pub(in crate::store) fn add(
        self: &Arc<Self>,
        server: &Arc<str>,
        why: Option<&str>,
    ) -> ScriptedConnection {
        let mut servers = self.0.lock();
        if servers.len() >= MOST {
            servers.retain(|_, connections| *connections > 0);
        }
        let is_new = !servers.contains_key(server);
        *servers.entry(server.clone()).or_default() += 1;
        drop(servers);
        if is_new
            && let Some(why) = why
            && let Some(Permit { suppressed }) = SCRIPTED.permit()
        {
            tracing::warn!(
                %server,
                why,
                suppressed,
                "the store keeps no functions: each decision is a script, which costs its server several times as much; \
                 give its user +fcall +function|load, or use Redis 7 or Valkey"
            );
        }
        ScriptedConnection { servers: self.clone(), server: server.clone() }
    }

    /// Notes that `server` keeps functions.
    pub(in crate::store) fn forget(&self, server: &str) {
        let mut servers = self.0.lock();
        if servers.get(server) == Some(&0) {
            servers.remove(server);
        }
    }
}

// === impl ScriptedConnection ===

impl Drop for ScriptedConnection {
    fn drop(&mut self) {
        if let Some(connections) = self.servers.0.lock().get_mut(&self.server) {
            *connections -= 1;
        }
    }
}
