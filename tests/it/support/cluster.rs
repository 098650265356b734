//! A Redis Cluster of real servers, whose slots the test moves about.

use super::{Redis, Said, eventually, free_port};

/// The number of hash slots of every Redis Cluster.
const SLOTS: u32 = 16_384;

/// Masters first, then a replica of each of the first masters.
#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) nodes: Vec<Redis>,
    ids: Vec<String>,
}

// === impl Cluster ===

impl Cluster {
    /// One that serves the slots of nodes that live while others do not, and gives up a node after a second.
    pub(crate) async fn start(masters: usize, replicas: usize) -> Self {
        Self::with(masters, replicas, Vec::new).await
    }

    /// Starts a Cluster with more arguments for each of its servers.
    pub(crate) async fn with(
        masters: usize,
        replicas: usize,
        mut args: impl FnMut() -> Vec<String>,
    ) -> Self {
        let mut bus = Vec::new();
        let nodes = (0..masters + replicas).map(|_| {
            bus.push(free_port().to_string());
            let own = [
                "--cluster-enabled",
                "yes",
                "--cluster-node-timeout",
                "1000",
                "--cluster-require-full-coverage",
                "no",
                "--cluster-replica-validity-factor",
                "0",
                "--cluster-port",
                &bus[bus.len() - 1],
                // By itself it waits five seconds for further replicas.
                "--repl-diskless-sync-delay",
                "0",
                // Without writes, the others take a server for a replica when it has received one more ping of its master.
                "--repl-ping-replica-period",
                "1",
            ];
            let more = args();
            Redis::with(&own.into_iter().chain(more.iter().map(String::as_str)).collect::<Vec<_>>())
        });
        let nodes: Vec<_> = nodes.collect();
        let ids = nodes.iter().map(|node| bytes(&node.command(&["CLUSTER", "MYID"]))).collect();
        let cluster = Self { nodes, ids };
        for (i, node) in cluster.nodes.iter().enumerate() {
            // Before they meet, so that no two claim the same slots with one right.
            assert_done(&node.command(&["CLUSTER", "SET-CONFIG-EPOCH", &(i + 1).to_string()]));
        }
        for (node, bus) in cluster.nodes.iter().zip(&bus).skip(1) {
            let words = ["CLUSTER", "MEET", "127.0.0.1", &node.port().to_string(), bus];
            assert_done(&cluster.nodes[0].command(&words));
        }
        for i in 0..masters {
            let share = |i: usize| {
                SLOTS * u32::try_from(i).expect("few") / u32::try_from(masters).expect("few")
            };
            let (first, last) = (share(i).to_string(), (share(i + 1) - 1).to_string());
            assert_done(&cluster.nodes[i].command(&["CLUSTER", "ADDSLOTSRANGE", &first, &last]));
        }
        for i in 0..replicas {
            let (node, master) = (&cluster.nodes[masters + i], &cluster.ids[i]);
            eventually("the replica knows its master", async || {
                node.try_command(&["CLUSTER", "REPLICATE", master]).ok().filter(is_done)
            })
            .await;
        }
        for node in &cluster.nodes {
            eventually("all nodes see all slots", async || {
                let info = bytes(&node.command(&["CLUSTER", "INFO"]));
                let known = format!("cluster_known_nodes:{}\r", cluster.nodes.len());
                let sees = info.contains("cluster_state:ok")
                    && info.contains("cluster_slots_ok:16384")
                    && info.contains(&known);
                let Said::List(ranges) = node.command(&["CLUSTER", "SLOTS"]) else { return None };
                let servers = ranges.iter().map(|range| match range {
                    // The first and the last slot come before the servers.
                    Said::List(range) => range.len() - 2,
                    _ => 0,
                });
                (sees && servers.sum::<usize>() == cluster.nodes.len()).then_some(())
            })
            .await;
        }
        cluster
    }

    pub(crate) fn url(&self) -> String {
        let places: Vec<_> =
            self.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
        format!("redis-cluster://{}", places.join(","))
    }

    pub(crate) fn slot(&self, key: &str) -> u32 {
        // Tests take the first ones away.
        let node = &self.nodes[self.nodes.len() - 1];
        match node.try_command(&["CLUSTER", "KEYSLOT", key]).ok() {
            Some(Said::Number(slot)) => u32::try_from(slot).expect("a slot"),
            said => panic!("{said:?} is no slot"),
        }
    }

    /// The node that has the slot of `key` in the eyes of `asked`; there may be none for a moment.
    pub(crate) fn owner_by(&self, asked: usize, key: &str) -> Option<usize> {
        let slot = i64::from(self.slot(key));
        let Said::List(ranges) = self.nodes[asked].command(&["CLUSTER", "SLOTS"]) else {
            panic!("no list of slots")
        };
        let has = |range: &Said| {
            let Said::List(range) = range else { return None };
            let [Said::Number(first), Said::Number(last), Said::List(master), ..] = &range[..]
            else {
                return None;
            };
            match master[1] {
                Said::Number(port) if (*first..=*last).contains(&slot) => Some(port),
                _ => None,
            }
        };
        let port = ranges.iter().find_map(has)?;
        self.nodes.iter().position(|node| i64::from(node.port()) == port)
    }

    pub(crate) fn owner(&self, key: &str) -> usize {
        self.owner_by(0, key).expect("an owner")
    }

    /// The URL of this store over TLS, for clients of the authority.
    pub(crate) fn tls_url(&self) -> String {
        let place = |node: &Redis| match node.command(&["CONFIG", "GET", "tls-port"]) {
            Said::List(parts) => format!("127.0.0.1:{}", bytes(&parts[1])),
            said => panic!("{said:?} is no port"),
        };
        let places: Vec<_> = self.nodes.iter().map(place).collect();
        format!("rediss-cluster://{}", places.join(","))
    }

    /// Has a node have the slot of `key`, in the eyes of all.
    pub(crate) async fn bring(&self, key: &str, to: usize) {
        let from = self.owner(key);
        if from != to {
            self.begin_to_move(key, from, to);
            self.move_keys(key, from, to);
            self.end_to_move(key, from, to);
        }
        eventually("all know who has the slot", async || {
            (0..self.nodes.len()).all(|node| self.owner_by(node, key) == Some(to)).then_some(())
        })
        .await;
    }

    /// The slot of `key` is on its way from one node to another, keys and all; it may stay there for a while.
    pub(crate) fn begin_to_move(&self, key: &str, from: usize, to: usize) {
        let slot = self.slot(key).to_string();
        let words = |how, id| ["CLUSTER", "SETSLOT", slot.as_str(), how, id];
        assert_done(&self.nodes[to].command(&words("IMPORTING", &self.ids[from])));
        assert_done(&self.nodes[from].command(&words("MIGRATING", &self.ids[to])));
    }

    /// Moves all keys of the slot from one node to the other, as `redis-cli` does.
    pub(crate) fn move_keys(&self, key: &str, from: usize, to: usize) {
        let slot = self.slot(key).to_string();
        loop {
            let said = self.nodes[from].command(&["CLUSTER", "GETKEYSINSLOT", &slot, "100"]);
            let Said::List(keys) = said else { panic!("no list of keys") };
            if keys.is_empty() {
                return;
            }
            let keys: Vec<_> = keys.iter().map(bytes).collect();
            let port = self.nodes[to].port().to_string();
            let mut words = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
            words.extend(keys.iter().map(String::as_str));
            let said = self.nodes[from].command(&words);
            assert!(matches!(said, Said::Line(_)), "{said:?}");
        }
    }

    /// It belongs to the other node, and all know.
    pub(crate) fn end_to_move(&self, key: &str, from: usize, to: usize) {
        let slot = self.slot(key).to_string();
        let words = ["CLUSTER", "SETSLOT", &slot, "NODE", &self.ids[to]];
        for node in [to, from] {
            assert_done(&self.nodes[node].command(&words));
        }
    }
}

fn bytes(said: &Said) -> String {
    match said {
        Said::Bytes(Some(bytes)) => String::from_utf8_lossy(bytes).into_owned(),
        said => panic!("{said:?} is no text"),
    }
}

fn is_done(said: &Said) -> bool {
    *said == Said::Line("OK".into())
}

fn assert_done(said: &Said) {
    assert!(is_done(said), "{said:?}");
}
