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

/// How the servers of a store execute the script, by their addresses. A server without a connection stays, so that it is not
/// named again in the log when it is connected to again.
#[derive(Debug, Default)]
pub struct ScriptedServers(Mutex<HashMap<Arc<str>, KnownServer>>);

/// How one server executes the script.
#[derive(Debug, Default)]
struct KnownServer {
    /// The connections over which the server is sent the script.
    scripted: usize,
    keeps_functions: bool,
}

/// A connection over which a server is sent the script, until it is dropped.
pub(in crate::store) struct ScriptedConnection {
    servers: Arc<ScriptedServers>,
    server: Arc<str>,
}

// === impl ScriptedServers ===

impl ScriptedServers {
    /// Whether the script is sent to a server that is connected to, or to all that were; `None` while no server was asked.
    pub fn is_script(&self) -> Option<bool> {
        let servers = self.0.lock();
        let is_sent = servers.values().any(|server| server.scripted > 0);
        let is_never_kept = !servers.values().any(|server| server.keeps_functions);
        (!servers.is_empty()).then_some(is_sent || is_never_kept)
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
            servers.retain(|_, server| server.scripted > 0);
        }
        let is_new =
            servers.get(server).is_none_or(|known| known.keeps_functions && known.scripted == 0);
        let known = servers.entry(server.clone()).or_default();
        (known.scripted, known.keeps_functions) = (known.scripted + 1, false);
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
    pub(in crate::store) fn note_library(&self, server: &Arc<str>) {
        let mut servers = self.0.lock();
        if servers.len() >= MOST {
            servers.retain(|_, server| server.scripted > 0);
        }
        servers.entry(server.clone()).or_default().keeps_functions = true;
    }
}

// === impl ScriptedConnection ===

impl Drop for ScriptedConnection {
    fn drop(&mut self) {
        if let Some(server) = self.servers.0.lock().get_mut(&self.server) {
            server.scripted -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_the_form_that_was_last_known() {
        let servers = Arc::new(ScriptedServers::default());
        let (old, new) = (Arc::from("old:6379"), Arc::from("new:6379"));
        assert_eq!(servers.is_script(), None);
        let connection = servers.add(&old, None);
        assert_eq!(servers.is_script(), Some(true));
        drop(connection);
        assert_eq!(servers.is_script(), Some(true), "also while it is away");
        servers.note_library(&new);
        assert_eq!(servers.is_script(), Some(false));
        let _connection = servers.add(&old, None);
        assert_eq!(servers.is_script(), Some(true), "one server of a Cluster");
    }
}
