//! The names of upstreams, looked up again whenever their time is up. One task a name, for all workers.

use super::Cluster;
use crate::tls::Stamp;
use hickory_resolver::{
    TokioResolver,
    config::{ConnectionConfig, LookupIpStrategy, NameServerConfig, ResolverConfig, ResolverOpts},
    net::{NetError, runtime::TokioRuntimeProvider},
    system_conf::read_system_conf,
};
use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::Path,
    sync::Arc,
    time::Duration,
};
use tokio::time::{Instant, sleep, timeout};

/// Bounds of how long an answer is used: servers say 0, and days.
const KEPT: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));
/// Bounds of the pause after a lookup that failed. It doubles with each.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// One question to one server.
const QUESTION: Duration = Duration::from_secs(2);
/// A lookup, whatever it takes: several servers, several domains to search.
const LOOKUP: Duration = Duration::from_secs(10);
/// What the system says of names; read again when it has changed.
const SYSTEM: [&str; 2] = ["/etc/resolv.conf", "/etc/hosts"];

/// Asks DNS servers as the system is set up to, or those it was told.
struct Resolver {
    servers: Arc<[SocketAddr]>,
    made: Option<(TokioResolver, [Option<Stamp>; 2])>,
}

/// Why a name stands for nothing.
#[derive(Debug, thiserror::Error)]
enum NameError {
    #[error("the DNS servers did not answer in time")]
    Timeout,
    #[error("the name has no address")]
    Empty,
    #[error(transparent)]
    Net(#[from] NetError),
}

/// Keeps the addresses of all names fresh, by tasks of the current runtime. `servers` are asked in place of the
/// system's, unless there are none.
pub fn follow(clusters: &[Arc<Cluster>], servers: &[SocketAddr]) {
    let servers: Arc<[SocketAddr]> = servers.into();
    for cluster in clusters {
        for (target, of) in cluster.unresolved() {
            let resolver = Resolver { servers: servers.clone(), made: None };
            tokio::spawn(keep(cluster.clone(), target, of.host_name().to_owned(), resolver));
        }
    }
}

async fn keep(cluster: Arc<Cluster>, target: usize, name: String, mut resolver: Resolver) {
    let mut pause = PAUSE.0;
    loop {
        let kept = match resolver.lookup(&name).await {
            Ok((ips, until)) => {
                cluster.resolved(target, ips.into_iter());
                pause = PAUSE.0;
                until.saturating_duration_since(Instant::now()).clamp(KEPT.0, KEPT.1)
            }
            Err(error) => {
                tracing::debug!(name, %error, "not resolved");
                cluster.not_resolved(target, error);
                let longer = (pause * 2).min(PAUSE.1);
                std::mem::replace(&mut pause, longer)
            }
        };
        sleep(kept).await;
    }
}

// === impl Resolver ===

impl Resolver {
    /// The addresses of a name, and until when they are.
    async fn lookup(&mut self, name: &str) -> Result<(Vec<IpAddr>, Instant), NameError> {
        let stamps = SYSTEM.map(|file| Stamp::of(Path::new(file)));
        let resolver = match &mut self.made {
            Some((resolver, made)) if *made == stamps => resolver,
            made => &mut made.insert((resolver(&self.servers)?, stamps)).0,
        };
        let answer = timeout(LOOKUP, resolver.lookup_ip(name)).await;
        let answer = answer.map_err(|_| NameError::Timeout)??;
        let ips: Vec<_> = answer.iter().collect();
        if ips.is_empty() {
            return Err(NameError::Empty);
        }
        Ok((ips, Instant::from_std(answer.valid_until())))
    }
}

fn resolver(servers: &[SocketAddr]) -> Result<TokioResolver, NetError> {
    // Without a file the system asks itself; its hosts are known all the same.
    let (config, mut options) = read_system_conf().unwrap_or_else(|_| {
        let own = NameServerConfig::udp_and_tcp(IpAddr::V4(Ipv4Addr::LOCALHOST));
        (ResolverConfig::from_name_servers(vec![own]), ResolverOpts::default())
    });
    options.timeout = options.timeout.min(QUESTION);
    options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
    // We keep the answers.
    options.cache_size = 0;
    let config = match servers {
        [] => config,
        servers => {
            let (domain, search, _) = config.into_parts();
            let servers = servers.iter().map(|server| {
                let mut ways = vec![ConnectionConfig::udp(), ConnectionConfig::tcp()];
                ways.iter_mut().for_each(|way| way.port = server.port());
                NameServerConfig::new(server.ip(), true, ways)
            });
            ResolverConfig::from_parts(domain, search, servers.collect())
        }
    };
    let provider = TokioRuntimeProvider::default();
    TokioResolver::builder_with_config(config, provider).with_options(options).build()
}
