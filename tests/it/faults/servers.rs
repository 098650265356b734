//! The servers of a stage: one, one over TLS with a user that has few rights, a master and its replica behind Sentinels, a
//! Cluster.

use super::{Fault, link::Link, stage::LIMITERS};
use crate::support::{Authority, Cluster, Redis, Said, Sentinels, rights};

/// How the servers of a store are set up, which decides the faults that they can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Standalone,
    /// Over TLS, with certificates on both sides, and as the user that docs/operation.md names.
    Tls,
    /// A master, its replica, and three Sentinels that watch them.
    Sentinel,
    /// Three nodes, and a replica of the first where it is to take over.
    Cluster,
}

/// The running servers of a store; one of them gets the fault.
pub(super) enum Servers {
    One { redis: Redis, link: Link, tls: Option<Box<Authority>> },
    Sentinels(Sentinels),
    Cluster(Cluster),
}

/// In a Cluster: the node with all limiters except `healthy`, the node with that one, and the node that takes over.
const SUFFERS: usize = 0;
const HEALTHY: usize = 2;
const REPLICA: usize = 3;

// === impl Kind ===

impl Kind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Standalone => "standalone",
            Self::Tls => "TLS, ACL",
            Self::Sentinel => "Sentinel",
            Self::Cluster => "Cluster",
        }
    }
}

// === impl Servers ===

impl Servers {
    pub(super) async fn start(kind: Kind, fault: Fault) -> Self {
        match kind {
            Kind::Standalone => {
                let redis = Redis::with(fault.arguments());
                let link = Link::before(redis.port()).await;
                Self::One { redis, link, tls: None }
            }
            Kind::Tls => {
                let authority = Authority::new();
                let (mut words, port) = authority.arguments("redis.internal", "yes");
                // Not by a command, so that it is there again after a restart.
                words.extend(["--user", "paceway", "reset", "on", ">secret"].map(str::to_owned));
                words.extend(rights().into_iter().map(str::to_owned));
                words.extend(fault.arguments().iter().map(|&word| word.to_owned()));
                let redis = Redis::with(&words.iter().map(String::as_str).collect::<Vec<_>>());
                let link = Link::before(port).await;
                Self::One { redis, link, tls: Some(Box::new(authority)) }
            }
            Kind::Sentinel => Self::Sentinels(Sentinels::start().await),
            Kind::Cluster => {
                let cluster = Cluster::start(3, usize::from(fault.is_replaced())).await;
                for limiter in LIMITERS {
                    cluster.bring(&tag(limiter), SUFFERS).await;
                }
                cluster.bring(&tag("healthy"), HEALTHY).await;
                Self::Cluster(cluster)
            }
        }
    }

    /// The value of `store` in the configuration, without its closing brace.
    pub(super) fn store(&self) -> String {
        match self {
            Self::One { link, tls: None, .. } => {
                format!("url: \"redis://127.0.0.1:{}\"", link.port)
            }
            Self::One { link, tls: Some(authority), .. } => {
                let (ca, (cert, key)) = (authority.file(), authority.files("paceway"));
                let tls = format!(
                    "{{ ca: {ca}, cert: {cert}, key: {key}, server_name: redis.internal }}"
                );
                format!("url: \"rediss://paceway:secret@127.0.0.1:{}\", tls: {tls}", link.port)
            }
            Self::Sentinels(all) => format!("url: \"{}\"", all.url()),
            Self::Cluster(cluster) => format!("url: \"{}\"", cluster.url()),
        }
    }

    /// The server that gets the fault: it has the states of all limiters but `healthy`.
    pub(super) fn suffers(&mut self) -> &mut Redis {
        match self {
            Self::One { redis, .. } => redis,
            Self::Sentinels(all) => &mut all.servers[0],
            Self::Cluster(cluster) => &mut cluster.nodes[SUFFERS],
        }
    }

    pub(super) fn link(&self) -> &Link {
        match self {
            Self::One { link, .. } => link,
            _ => panic!("no link is before these servers"),
        }
    }

    /// Whether another server has the place of the one that suffers.
    pub(super) fn are_replaced(&self) -> bool {
        match self {
            Self::One { .. } => false,
            Self::Sentinels(all) => is_master(&all.servers[1]),
            // The replica's own view: it is the first to know.
            // The replica is the first to know.
            Self::Cluster(cluster) => LIMITERS
                .iter()
                .all(|limiter| cluster.owner_by(REPLICA, &tag(limiter)) == Some(REPLICA)),
        }
    }

    /// Whether the server that was replaced would no longer be taken for its successor if it came back.
    pub(super) fn are_settled(&self) -> bool {
        match self {
            Self::One { .. } => true,
            Self::Sentinels(all) => all.all_name(1),
            Self::Cluster(cluster) => {
                let knows = |node: usize| {
                    LIMITERS
                        .iter()
                        .all(|limiter| cluster.owner_by(node, &tag(limiter)) == Some(REPLICA))
                };
                (SUFFERS + 1..=REPLICA).all(knows)
            }
        }
    }

    /// A piece of the way of all slots but that of `healthy` to another node.
    pub(super) fn move_slots(&self, step: Step) {
        let Self::Cluster(cluster) = self else { panic!("no slots here") };
        for key in LIMITERS.map(tag) {
            match step {
                Step::Begin => cluster.begin_to_move(&key, SUFFERS, HEALTHY),
                Step::Keys => cluster.move_keys(&key, SUFFERS, HEALTHY),
                Step::End => cluster.end_to_move(&key, SUFFERS, HEALTHY),
            }
        }
        if step == Step::Keys {
            // A call that is redirected there needs the function there.
            cluster.nodes[HEALTHY].command(&["FUNCTION", "FLUSH"]);
        }
    }
}

fn is_master(redis: &Redis) -> bool {
    let master = Said::Bytes(Some(b"master".into()));
    // A replica that is promoted closes all connections.
    matches!(redis.try_command(&["ROLE"]), Ok(Said::List(parts)) if parts.first() == Some(&master))
}

/// A step of the migration of slots from one node to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Begin,
    Keys,
    End,
}

/// The hash tag of the keys of a limiter that no route uses together with another one.
fn tag(limiter: &str) -> String {
    format!("paceway:{{{limiter}}}")
}
